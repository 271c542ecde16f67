/*
 * work.c - see work.h. A client changes its own paths, one call after the
 * other, and reads and syncs everybody's. What it calls and what it is answered
 * goes to the model.
 */
#include "tests/sim/work.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "tests/sim/kernel.h"
#include "tests/sim/model.h"
#include "tests/sim/saver.h"
#include "tests/sim/sim.h"

#define KIB 1024u
#define MIB (1024u * KIB)
#define FILES_OF_CLIENT 3
#define SAVED_OF_CLIENT 2
#define POOL_BYTES (3u * MIB)
#define FILE_BYTES_MAX (400u * KIB)

struct own {
	struct path *path;
	bool linked; /* another name has the same file */
};

struct client {
	const struct plan *plan;
	struct chance chance;
	unsigned number;
	struct own file[FILES_OF_CLIENT], tmp, link;
	struct path *saved[SAVED_OF_CLIENT];
	struct saver *saver; /* NULL: it has not saved anything yet */
	struct store *st;
	size_t save_size;
	struct thread thread;
};

static struct client clients[CLIENTS_MAX];
static uint8_t *pool; /* random bytes: a payload is a part of them */

/* --- plans
 * ---------------------------------------------------------------------- */

static const unsigned usual[OP_COUNT] = {
	[OP_WRITE] = 30,   [OP_REPLACE] = 12, [OP_UNLINK] = 4, [OP_SYNC] = 12,
	[OP_SYNC_ALL] = 3, [OP_READ] = 10,    [OP_CHANGE] = 6, [OP_LINK] = 2,
	[OP_PAUSE] = 4,    [OP_SAVE] = 10,
};

static const char *const op_names[OP_COUNT] = {
	[OP_WRITE] = "write",       [OP_REPLACE] = "replace",
	[OP_UNLINK] = "unlink",     [OP_SYNC] = "sync",
	[OP_SYNC_ALL] = "sync-all", [OP_READ] = "read",
	[OP_CHANGE] = "change",     [OP_LINK] = "link",
	[OP_PAUSE] = "pause",       [OP_SAVE] = "save",
};

void plan_draw(struct plan *plan, uint64_t seed)
{
	struct chance c = chance_of(seed, 4);
	struct store_options o = STORE_OPTIONS_DEFAULT;

	*plan = (struct plan){ .seed = seed };
	o.backup_interval_s = 0;
	o.stage_bytes = 256u * MIB;
	o.drain_threads = 1 + (unsigned)chance_below(&c, 3);
	o.drain_interval_s = chance_one_in(&c, 8) ? 30 : 0;
	o.stage_all_in_memory = chance_one_in(&c, 2);
	o.no_stage_cache = chance_one_in(&c, 4);
	o.durable_close = chance_one_in(&c, 10);
	o.publish_async = chance_one_in(&c, 4);
	o.verify = chance_one_in(&c, 8) ? VERIFY_OFF : VERIFY_ON;
	o.dedup_min_saving_percent = chance_one_in(&c, 2) ? 0 : 3;
	plan->options = o;
	plan->passthrough = !chance_one_in(&c, 3);
	plan->clients = 1 + (unsigned)chance_below(&c, CLIENTS_MAX);
	plan->ops = 2 + (unsigned)chance_below(&c, 8);
	plan->sizes = (unsigned)chance_below(&c, 4);
	plan->payloads = 1 + (unsigned)chance_below(&c, 5);
	plan->crashes = chance_one_in(&c, 2) ? 0 : 1;
	while (plan->crashes > 0 && plan->crashes < CRASHES_MAX &&
	       chance_one_in(&c, 4))
		plan->crashes++;
	for (unsigned i = 0; i < plan->crashes; i++) {
		plan->crash[i].cut = chance_one_in(&c, 2);
		plan->crash[i].after =
			1 + chance_below(&c, 300 + (i ? 1 : plan->clients) *
							     plan->ops * 120);
	}
	if (chance_one_in(&c, 5))
		plan->errors = 5 + chance_below(&c, 200);
	if (chance_one_in(&c, 10))
		plan->errors_kv = 5 + chance_below(&c, 100);
	if (chance_one_in(&c, 12))
		plan->disk_bytes = (25u + chance_below(&c, 6)) * MIB;
	/* Some are left out: what is done often then is done more often. */
	for (unsigned i = 0; i < OP_COUNT; i++)
		plan->weight[i] = chance_one_in(&c, 3) ? 0 : usual[i];
	plan->weight[OP_WRITE] = usual[OP_WRITE];
}

void plan_print(const struct plan *plan)
{
	const struct store_options *o = &plan->options;

	fprintf(stderr,
		"seed %llu: %u clients, %u ops of each, sizes %u, %u payloads, "
		"%u workers, %s, stage %s%s%s%s%s; ",
		(unsigned long long)plan->seed, plan->clients, plan->ops,
		plan->sizes, plan->payloads, o->drain_threads,
		plan->passthrough ? "passthrough" : "through the daemon",
		o->stage_all_in_memory ? "in memory" : "on disk",
		o->durable_close ? ", durable close" : "",
		o->publish_async ? ", publish async" : "",
		o->drain_interval_s ? ", open files are drained" : "",
		o->no_stage_cache ? ", no cache" : "");
	for (unsigned i = 0; i < OP_COUNT; i++)
		if (plan->weight[i])
			fprintf(stderr, " %s", op_names[i]);
	if (plan->errors)
		fprintf(stderr, "; one call in %llu fails",
			(unsigned long long)plan->errors);
	if (plan->errors_kv)
		fprintf(stderr, "; one change in %llu fails",
			(unsigned long long)plan->errors_kv);
	if (plan->disk_bytes)
		fprintf(stderr, "; a disk of %llu MiB",
			(unsigned long long)(plan->disk_bytes >> 20));
	for (unsigned i = 0; i < plan->crashes; i++)
		fprintf(stderr, "; %s after %llu points",
			plan->crash[i].cut ? "power cut" : "kill",
			(unsigned long long)plan->crash[i].after);
	fprintf(stderr, "\n");
}

/* "what_1", or "what_1_0". */
static struct path *path_of(const char *what, unsigned client, int n)
{
	char name[64];

	if (n < 0)
		(void)snprintf(name, sizeof(name), "%s_%u", what, client);
	else
		(void)snprintf(name, sizeof(name), "%s_%u_%d", what, client, n);
	return model_path(name, client);
}

void work_init(const struct plan *plan)
{
	struct chance c = chance_of(1, 5);

	if (!pool) {
		pool = malloc(POOL_BYTES);
		CHECK(pool);
		for (size_t i = 0; i < POOL_BYTES; i += 8) {
			uint64_t x = chance_next(&c);

			memcpy(pool + i, &x, 8);
		}
	}
	if (!plan)
		return;
	model_init();
	if (plan->options.drain_interval_s > 0)
		model_expect_parts();
	if (plan->errors || plan->errors_kv || plan->disk_bytes)
		model_expect_errors();
	for (unsigned i = 0; i < plan->clients; i++) {
		struct client *cl = &clients[i];

		memset(cl, 0, sizeof(*cl));
		cl->plan = plan;
		cl->number = i;
		for (unsigned k = 0; k < FILES_OF_CLIENT; k++)
			cl->file[k].path = path_of("rank", i, (int)k);
		cl->tmp.path = path_of("tmp", i, -1);
		cl->link.path = path_of("link", i, -1);
		for (unsigned k = 0; k < SAVED_OF_CLIENT; k++)
			cl->saved[k] = path_of("saved", i, (int)k);
	}
}

/* --- bytes
 * ---------------------------------------------------------------------- */

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

/* --- ops
 * ------------------------------------------------------------------------ */

static void say_op(const struct client *c, const char *what,
		   const struct path *p, size_t size, int rc)
{
	char text[120];

	(void)snprintf(text, sizeof(text), "client %u %s %s %zu: %d", c->number,
		       what, p ? model_name(p) : "", size, rc);
	sim_point("op", text);
}

/* ESTALE: whoever asked tries again, as a person would. */
static int open_again(const char *name, int flags, struct kernel_file **ret)
{
	int rc = kernel_open(name, flags, ret);

	for (unsigned i = 0; i < 20 && rc == -ESTALE; i++)
		rc = kernel_open(name, flags, ret);
	return rc;
}

/* false: it failed, and may have: errors are injected. */
static bool fine(const struct client *c, const char *what, const struct path *p,
		 int rc)
{
	const struct plan *plan = c->plan;

	if (rc >= 0)
		return true;
	if (!plan->errors && !plan->errors_kv && !plan->disk_bytes)
		sim_fail("client %u: %s %s: %s", c->number, what,
			 p ? model_name(p) : "", strerror(-rc));
	return false;
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

/* The file is open, and gets to be what `state` is. */
static void write_and_close(struct client *c, struct path *p, size_t state,
			    struct kernel_file *f, size_t done)
{
	size_t size;
	const uint8_t *bytes = model_bytes(p, state, &size);
	bool ok = write_rest(c, p, f, bytes, done, size);

	if (!ok)
		model_failed(p, state);
	model_close_begin(p, state);
	ok = fine(c, "close", p, kernel_close(f)) && ok;
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

/* also: where it is to be renamed to, or p. */
static void write_file(struct client *c, struct path *p,
		       const struct path *also)
{
	size_t size = new_size(p, also, draw_size(c)), state;
	struct kernel_file *f;

	state = model_begin(p, draw_bytes(c, size), size);
	model_is_written(p, state);
	model_is_anew(p, state);
	say_op(c, "write", p, size, 0);
	if (fine(c, "open to write", p,
		 open_again(model_name(p), O_WRONLY | O_CREAT | O_TRUNC, &f)))
		write_and_close(c, p, state, f, 0);
	else
		model_failed(p, state);
}

static void sync_path(struct client *c, struct path *p)
{
	size_t promised = model_sync_begin(p);
	int rc;

	say_op(c, "sync", p, promised, 0);
	rc = kernel_sync(model_name(p));
	say_op(c, "synced", p, promised, rc);
	/* Nobody can sync a file that is not there, or just went. */
	if (rc != -ENOENT && rc != -ESTALE)
		(void)fine(c, "sync", p, rc);
	model_sync_end(p, promised, rc == 0);
}

static void sync_all(struct client *c)
{
	size_t promised[64];
	int rc;

	for (unsigned i = 0; i < model_paths(); i++)
		promised[i] = model_sync_begin(model_path_at(i));
	say_op(c, "sync-all", NULL, 0, 0);
	rc = kernel_sync_all();
	say_op(c, "synced-all", NULL, 0, rc);
	(void)fine(c, "sync of all", NULL, rc);
	for (unsigned i = 0; i < model_paths(); i++)
		model_sync_end(model_path_at(i), promised[i], rc == 0);
}

static uint8_t *copy_of(const struct path *p, size_t state, size_t *ret_size)
{
	const uint8_t *bytes = model_bytes(p, state, ret_size);
	uint8_t *copy;

	if (!bytes)
		return NULL;
	copy = malloc(*ret_size ? *ret_size : 1);
	CHECK(copy);
	memcpy(copy, bytes, *ret_size);
	return copy;
}

static void rename_over(struct client *c, struct own *from, struct own *to)
{
	size_t size, a, b, old = model_last(from->path);
	size_t promised = model_promise_begin(from->path);
	uint8_t *bytes = copy_of(from->path, old, &size);
	int rc;

	b = model_begin(to->path, bytes, size);
	a = model_begin(from->path, NULL, 0);
	model_moved(from->path, a, to->path, b);
	say_op(c, "rename to", to->path, size, 0);
	rc = kernel_rename(model_name(from->path), model_name(to->path), 0);
	say_op(c, "renamed to", to->path, size, rc);
	if (!fine(c, "rename to", to->path, rc)) {
		model_failed(from->path, a);
		model_failed(to->path, b);
		return;
	}
	model_end(from->path, a);
	model_close_end(to->path, b);
	model_end(to->path, b);
	if (!c->plan->options.publish_async)
		model_promise(to->path, b);
	(void)promised;
	to->linked = from->linked;
	from->linked = false;
}

static void replace(struct client *c, struct own *own)
{
	write_file(c, c->tmp.path, own->path);
	if (!model_known(c->tmp.path))
		return;
	if (chance_one_in(&c->chance, 3))
		sync_path(c, c->tmp.path);
	rename_over(c, &c->tmp, own);
}

static void remove_file(struct client *c, struct own *own)
{
	size_t size, state;

	if (!model_known(own->path) ||
	    !model_bytes(own->path, model_last(own->path), &size))
		return;
	state = model_begin(own->path, NULL, 0);
	say_op(c, "unlink", own->path, 0, 0);
	if (fine(c, "unlink", own->path,
		 kernel_unlink(model_name(own->path)))) {
		model_end(own->path, state);
		own->linked = false;
	} else {
		model_failed(own->path, state);
	}
}

/* Read all of it; NULL: an error, which is *ret_size. */
static uint8_t *read_all(struct kernel_file *f, size_t *ret_size)
{
	size_t room = FILE_BYTES_MAX, size = 0;
	uint8_t *bytes = malloc(room);
	ssize_t n;

	CHECK(bytes);
	while ((n = kernel_read(f, bytes + size,
				room - size < 70000 ? room - size : 70000,
				size)) > 0)
		size += (size_t)n;
	if (n < 0) {
		free(bytes);
		*ret_size = (size_t)-n;
		return NULL;
	}
	*ret_size = size;
	return bytes;
}

static void read_path(struct client *c, struct path *p)
{
	size_t from = model_ended(p), size = 0;
	uint64_t since = sim_points();
	struct kernel_file *f;
	uint8_t *bytes;
	int rc;

	say_op(c, "read", p, from, 0);
	rc = open_again(model_name(p), O_RDONLY, &f);
	if (rc == -ESTALE) /* replaced again and again */
		return;
	if (rc == -EIO && !fine(c, "open to read", p, rc)) /* said once */
		rc = open_again(model_name(p), O_RDONLY, &f);
	if (rc != -ENOENT && !fine(c, "open to read", p, rc))
		return;
	if (rc < 0) {
		model_check_read(p, since, from, model_last(p), NULL, 0, true);
		return;
	}
	if (chance_one_in(&c->chance, 3))
		kernel_sleep((int64_t)chance_below(&c->chance, 3000000000));
	bytes = read_all(f, &size);
	if (!bytes)
		sim_fail("read: %s: %s", model_name(p), strerror((int)size));
	model_check_read(p, since, from, model_last(p), bytes, size, false);
	free(bytes);
	(void)kernel_close(f);
}

/* It gets a little longer, in place. */
static void change(struct client *c, struct own *own)
{
	size_t last = model_last(own->path), old_size, size, state;
	const uint8_t *old = model_bytes(own->path, last, &old_size);
	struct kernel_file *f;
	uint8_t *bytes;

	if (!old || own->linked || !model_known(own->path) ||
	    old_size > FILE_BYTES_MAX - 4096)
		return;
	size = new_size(own->path, own->path,
			old_size + 1 + chance_below(&c->chance, 100));
	bytes = calloc(1, size);
	CHECK(bytes);
	if (old_size > 0)
		memcpy(bytes, old, old_size);
	memset(bytes + old_size, 0x5a, size - old_size);
	state = model_begin(own->path, bytes, size);
	say_op(c, "append", own->path, size, 0);
	model_is_written(own->path, state);
	if (fine(c, "open to change", own->path,
		 open_again(model_name(own->path), O_RDWR, &f)))
		write_and_close(c, own->path, state, f, old_size);
	else
		model_failed(own->path, state);
}

static void make_link(struct client *c, struct own *own)
{
	size_t size, state;
	uint8_t *bytes = copy_of(own->path, model_last(own->path), &size);

	if (!bytes || own->linked || !model_known(own->path) ||
	    !model_known(c->link.path) || model_has_size(c->link.path, size)) {
		free(bytes);
		return;
	}
	if (model_bytes(c->link.path, model_last(c->link.path), &state)) {
		free(bytes);
		remove_file(c, &c->link);
		return;
	}
	own->linked = c->link.linked = true;
	state = model_begin(c->link.path, bytes, size);
	model_linked(own->path, c->link.path, state);
	say_op(c, "link", own->path, size, 0);
	if (fine(c, "link", own->path,
		 kernel_link(model_name(own->path), model_name(c->link.path))))
		model_end(c->link.path, state);
	else
		model_failed(c->link.path, state);
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

/*
 * The same memory again and again: so each save is as long as the others, and a
 * save of one path is told from the next by its bytes alone.
 */
static void save(struct client *c)
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

void work_end(void)
{
	for (unsigned i = 0; i < CLIENTS_MAX; i++) {
		if (clients[i].saver)
			saver_end(clients[i].saver);
		clients[i].saver = NULL;
	}
}

static void one_op(struct client *c)
{
	const struct plan *plan = c->plan;
	unsigned sum = 0, at, op = 0;
	struct own *own = &c->file[chance_below(&c->chance, FILES_OF_CLIENT)];
	struct path *any = model_path_at(
		(unsigned)chance_below(&c->chance, model_paths()));

	for (unsigned i = 0; i < OP_COUNT; i++)
		sum += plan->weight[i];
	at = (unsigned)chance_below(&c->chance, sum);
	while (at >= plan->weight[op])
		at -= plan->weight[op++];
	switch ((enum op)op) {
	case OP_WRITE: /* a file with two names is left as it is */
		if (own->linked)
			replace(c, own);
		else
			write_file(c, own->path, own->path);
		break;
	case OP_REPLACE:
		replace(c, own);
		break;
	case OP_UNLINK:
		remove_file(c, own);
		break;
	case OP_SYNC:
		sync_path(c, any);
		break;
	case OP_SYNC_ALL:
		sync_all(c);
		break;
	case OP_READ:
		read_path(c, any);
		break;
	case OP_CHANGE:
		change(c, own);
		break;
	case OP_LINK:
		make_link(c, own);
		break;
	case OP_PAUSE:
		kernel_sleep((int64_t)chance_below(
			&c->chance,
			chance_one_in(&c->chance, 3) ? 40000000000 : 5000000));
		break;
	case OP_SAVE:
		save(c);
		break;
	case OP_COUNT:
		break;
	}
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	char name[16];

	(void)snprintf(name, sizeof(name), "client-%u", c->number);
	sim_name(name);
	for (unsigned i = 0; i < c->plan->ops; i++)
		one_op(c);
	return NULL;
}

void work_run(const struct plan *plan, struct store *st, unsigned round)
{
	for (unsigned i = 0; i < plan->clients; i++) {
		clients[i].st = st;
		clients[i].saver = NULL; /* of before a crash: it is gone */
		clients[i].save_size = (i % 2 ? 35u : 110u) * KIB + 77;
		clients[i].chance = chance_of(plan->seed, 100 + i + 16 * round);
		CHECK(thread_create(&clients[i].thread, client_main,
				    &clients[i]) == 0);
	}
	for (unsigned i = 0; i < plan->clients; i++)
		thread_join(&clients[i].thread);
}

void work_check_all(void)
{
	for (unsigned i = 0; i < model_paths(); i++) {
		struct path *p = model_path_at(i);
		struct client c = { .number = 99, .plan = clients[0].plan };

		read_path(&c, p);
	}
}

/* A rename that a power cut took back may have taken a link's name back, too.
 */
static void relink(struct client *c)
{
	size_t size;

	if (!c->link.path ||
	    !model_bytes(c->link.path, model_last(c->link.path), &size))
		return;
	c->link.linked = c->tmp.linked = true;
	for (unsigned i = 0; i < FILES_OF_CLIENT; i++)
		c->file[i].linked = true;
}

void work_check_found(bool cut)
{
	for (unsigned i = 0; i < model_paths(); i++) {
		struct path *p = model_path_at(i);
		struct kernel_file *f;
		uint8_t *bytes = NULL;
		size_t size = 0;
		int rc = open_again(model_name(p), O_RDONLY, &f);

		if (rc == -EIO) /* said once */
			rc = open_again(model_name(p), O_RDONLY, &f);
		if (rc < 0 && rc != -ENOENT)
			sim_fail("found: %s: %s", model_name(p), strerror(-rc));
		if (rc == 0) {
			bytes = read_all(f, &size);
			if (!bytes)
				sim_fail("found: %s: %s", model_name(p),
					 strerror((int)size));
			(void)kernel_close(f);
		}
		model_check_found(p, bytes, size, cut);
	}
	model_check_found_all(cut);
	for (unsigned i = 0; i < CLIENTS_MAX; i++)
		relink(&clients[i]);
}
