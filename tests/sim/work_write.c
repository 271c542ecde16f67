/*
 * work_write.c - how clients write: files, changes of them, and segments.
 */
#include "tests/sim/work_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"

static uint8_t *pool; /* random bytes: a payload is a part of them */

void bytes_init(void)
{
	struct chance c = chance_of(1, 5);

	if (pool)
		return;
	pool = malloc(POOL_BYTES);
	CHECK(pool);
	for (size_t i = 0; i < POOL_BYTES; i += 8) {
		uint64_t x = chance_next(&c);

		memcpy(pool + i, &x, 8);
	}
}

static size_t draw_size(struct client *c)
{
	struct chance *r = &c->chance;
	unsigned kind = c->plan->sizes == 3 ? (unsigned)chance_below(r, 4)
					    : c->plan->sizes;

	if (chance_one_in(r, 12))
		return 0;
	switch (kind) {
	case 0: /* to the database */
		return 1 + 400 * chance_below(r, 5);
	case 1: /* one chunk */
		return 33u * KIB + 1000 * chance_below(r, 4);
	case 2: /* two chunks, the first of which may be shared */
		return 45u * KIB + 1000 * chance_below(r, 3);
	default: /* some spans */
		return 140u * KIB + 30000 * chance_below(r, 3);
	}
}

static uint8_t *draw_bytes(struct client *c, size_t size)
{
	uint8_t *p = malloc(size ? size : 1);
	size_t at = 4099 * chance_below(&c->chance, c->plan->payloads);

	CHECK(p && at + size <= POOL_BYTES);
	memcpy(p, pool + at, size);
	return p;
}

/* From `done` on, in some parts. */
static bool write_rest(struct client *c, struct path *p, struct kernel_file *f,
		       const uint8_t *bytes, size_t done, size_t size)
{
	unsigned parts = 1 + (unsigned)chance_below(&c->chance, 3);

	for (unsigned i = 0; i < parts; i++) {
		size_t part = i + 1 < parts ? (size - done) / 2 : size - done;

		if (part > 0 &&
		    !fine(c, "write", p,
			  kernel_write(f, bytes + done, part, done)))
			return false;
		done += part;
	}
	return true;
}

/* The file is open, and gets to be what `state` is, unless it failed before. */
static void write_and_close(struct client *c, struct path *p, size_t state,
			    struct kernel_file *f, size_t done, bool ok)
{
	size_t size;
	const uint8_t *bytes = model_bytes(p, state, &size);
	bool syncs = c->plan->options.durable_close;

	ok = ok && write_rest(c, p, f, bytes, done, size);
	if (!ok)
		model_failed(p, state);
	model_close_begin(p, state);
	if (syncs)
		(void)model_sync_begin(p);
	ok = fine(c, "close", p, kernel_close(f)) && ok;
	if (syncs)
		model_sync_end(p, state, ok);
	if (ok) {
		model_close_end(p, state);
		model_end(p, state);
	} else {
		model_failed(p, state);
	}
	say_op(c, "written", p, size, ok ? 0 : -1);
}

/* A size that no version of these paths had. */
static size_t new_size(const struct path *p, const struct path *also,
		       size_t about)
{
	while (model_has_size(p, about) || model_has_size(also, about))
		about++;
	return about;
}

void write_file(struct client *c, struct path *p, const struct path *also)
{
	size_t size = new_size(p, also, draw_size(c)), state;
	struct kernel_file *f;

	state = model_begin(p, draw_bytes(c, size), size);
	model_is_written(p, state);
	model_is_anew(p, state);
	say_op(c, "write", p, size, 0);
	if (!fine(c, "open to write", p,
		  open_again(model_name(p), O_WRONLY | O_CREAT | O_TRUNC,
			     &f))) {
		model_failed(p, state);
		return;
	}
	model_opened(p, state);
	if (chance_one_in(&c->chance, 8) && size > 0)
		(void)fine(c, "allocate", p,
			   kernel_fallocate(f, FALLOC_FL_KEEP_SIZE, 0, size));
	write_and_close(c, p, state, f, 0, true);
}

/* May it be changed in place? Then what it holds now. */
static const uint8_t *to_change(const struct own *own, size_t *ret_size)
{
	const uint8_t *old =
		model_bytes(own->path, model_last(own->path), ret_size);

	if (own->linked || !model_known(own->path) ||
	    *ret_size > FILE_BYTES_MAX - 4096)
		return NULL;
	return old;
}

/*
 * A state that is the last one, but no more than its first `keep` bytes, and
 * then bytes of this value.
 */
static size_t begin_change(struct own *own, size_t about, uint8_t value,
			   size_t keep)
{
	size_t old_size, size = new_size(own->path, own->path, about), state;
	const uint8_t *old =
		model_bytes(own->path, model_last(own->path), &old_size);
	size_t kept = size < old_size ? size : old_size;
	uint8_t *bytes;

	kept = kept < keep ? kept : keep;
	bytes = malloc(size ? size : 1);
	CHECK(bytes);
	if (kept > 0)
		memcpy(bytes, old, kept);
	memset(bytes + kept, value, size - kept);
	state = model_begin(own->path, bytes, size);
	model_is_written(own->path, state);
	return state;
}

enum change {
	CHANGE_APPEND,
	CHANGE_CUT,
	CHANGE_EXTEND,
	CHANGE_ALLOCATE,
	CHANGE_USUAL,
	CHANGE_ANEW = CHANGE_USUAL, /* cut, and made longer again */
	CHANGE_COUNT,
};

void change(struct client *c, struct own *own)
{
	enum change kind = chance_below(
		&c->chance, sim_seeks_rare() ? CHANGE_COUNT : CHANGE_USUAL);
	size_t old_size, size, state, about, keep = SIZE_MAX;
	struct path *p = own->path;
	struct kernel_file *f;
	int rc = 0;

	if (!to_change(own, &old_size))
		return;
	about = kind == CHANGE_CUT
			? chance_below(&c->chance, old_size + 1)
			: old_size + 1 + chance_below(&c->chance, 100);
	if (kind == CHANGE_ANEW)
		keep = chance_below(&c->chance, old_size + 1);
	state = begin_change(own, about, kind == CHANGE_APPEND ? 0x5a : 0,
			     keep);
	(void)model_bytes(p, state, &size);
	say_op(c, "change", p, size, (int)kind);
	if (!fine(c, "open to change", p,
		  open_again(model_name(p), O_RDWR, &f))) {
		model_failed(p, state);
		return;
	}
	if (kind == CHANGE_ANEW)
		rc = kernel_ftruncate(f, keep);
	if (rc == 0 && kind == CHANGE_ALLOCATE && size > old_size)
		rc = kernel_fallocate(f, 0, old_size, size - old_size);
	else if (rc == 0 && kind != CHANGE_APPEND)
		rc = kernel_ftruncate(f, size);
	write_and_close(c, p, state, f, kind == CHANGE_APPEND ? old_size : size,
			fine(c, "cut or extend", p, rc));
}

/* true: it was, and may be once more. */
static bool truncate_once(struct client *c, struct own *own)
{
	size_t old_size, size, state;
	int rc;

	if (!to_change(own, &old_size))
		return false;
	size = chance_below(&c->chance, old_size + 1000);
	if (sim_seeks_rare() && chance_one_in(&c->chance, 3))
		size = old_size + chance_below(&c->chance, 50u * KIB);
	state = begin_change(own, size, 0, SIZE_MAX);
	(void)model_bytes(own->path, state, &size);
	say_op(c, "truncate", own->path, size, 0);
	if (c->plan->interrupts && chance_one_in(&c->chance, 2))
		interrupt(c);
	rc = kernel_truncate(model_name(own->path), size);
	interrupt_end();
	say_op(c, "truncated", own->path, size, rc);
	if (rc == -EINTR)
		model_undone(own->path, state);
	else if (fine(c, "truncate", own->path, rc))
		model_end(own->path, state);
	else
		model_failed(own->path, state);
	return rc == 0 || rc == -EINTR;
}

void truncate_path(struct client *c, struct own *own)
{
	unsigned times = 1;

	if (sim_seeks_rare())
		times += (unsigned)chance_below(&c->chance, 3);

	while (times-- > 0 && truncate_once(c, own))
		;
}

/* Memory to fill; NULL: there is none now. */
static uint8_t *acquire(struct client *c, size_t size)
{
	uint8_t *memory;
	uint64_t busy;
	int rc;

	if (!c->saver)
		c->saver = saver_new(c->st);
	for (unsigned i = 0; i < 20; i++) {
		saver_drop_asked(c->saver);
		rc = saver_acquire(c->saver, size, &memory, &busy);
		if (rc == 0)
			return memory;
		if (rc != -EAGAIN || !busy)
			continue;
		/* It is one of these that is waited for. */
		for (unsigned k = 0; k < SAVED_OF_CLIENT; k++)
			(void)model_sync_begin(c->saved[k]);
		rc = saver_wait_for(c->saver, busy);
		for (unsigned k = 0; k < SAVED_OF_CLIENT; k++)
			model_sync_end(c->saved[k], 0, false);
		if (rc != -ENOENT && rc != -ESTALE)
			(void)fine(c, "wait for a save", NULL, rc);
	}
	return NULL;
}

void save(struct client *c)
{
	struct path *p = c->saved[chance_below(&c->chance, SAVED_OF_CLIENT)];
	size_t size = c->save_size, state;
	uint8_t *memory = acquire(c, size), *bytes;
	int rc;

	if (!memory)
		return;
	bytes = malloc(size);
	CHECK(bytes);
	memcpy(bytes, pool + 4099 * chance_below(&c->chance, 400), size);
	memcpy(memory, bytes, size / 2);
	say_op(c, "fill for", p, size, 0);
	memcpy(memory + size / 2, bytes + size / 2, size - size / 2);
	state = model_begin(p, bytes, size);
	model_is_anew(p, state);
	model_close_begin(p, state);
	say_op(c, "save", p, size, 0);
	rc = saver_commit(c->saver, model_name(p));
	say_op(c, "saved", p, size, rc);
	if (fine(c, "save", p, rc)) {
		model_close_end(p, state);
		model_end(p, state);
	} else {
		model_failed(p, state);
	}
}
