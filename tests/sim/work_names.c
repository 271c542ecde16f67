/*
 * work_names.c - how clients change names: files, links and folders.
 */
#include "tests/sim/work_private.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"

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

/* A file that changes its name, with the states that it leads to. */
struct moved {
	struct path *from, *to;
	size_t from_state, to_state;
};

static void move_begin(struct moved *m, struct path *from, struct path *to)
{
	size_t size;
	uint8_t *bytes = copy_of(from, model_last(from), &size);

	*m = (struct moved){ .from = from, .to = to };
	m->to_state = model_begin(to, bytes, size);
	m->from_state = model_begin(from, NULL, 0);
	model_moved(from, m->from_state, to, m->to_state);
}

/* waited: the rename had to wait until it was durable. */
static void move_end(const struct moved *m, bool ok, bool waited)
{
	if (!ok) {
		model_failed(m->from, m->from_state);
		model_failed(m->to, m->to_state);
		return;
	}
	model_end(m->from, m->from_state);
	model_close_end(m->to, m->to_state);
	model_end(m->to, m->to_state);
	if (waited)
		model_promise(m->to, m->to_state);
}

/* Does every rename wait, or one of what somebody counts on? */
static bool waits(const struct client *c, bool counted_on)
{
	enum publish_mode mode = c->plan->options.publish;

	return mode == PUBLISH_WAIT || (mode == PUBLISH_STEP && counted_on);
}

static void rename_over(struct client *c, struct own *from, struct own *to,
			bool synced)
{
	struct moved m;
	bool ok;
	int rc;

	move_begin(&m, from->path, to->path);
	say_op(c, "rename to", to->path, 0, 0);
	rc = kernel_rename(model_name(from->path), model_name(to->path), 0);
	say_op(c, "renamed to", to->path, 0, rc);
	ok = fine(c, "rename to", to->path, rc);
	move_end(&m, ok, waits(c, synced));
	if (!ok)
		return;
	to->linked = from->linked;
	from->linked = false;
}

void replace(struct client *c, struct own *own)
{
	bool sync;

	write_file(c, c->tmp.path, own->path);
	if (!model_known(c->tmp.path))
		return;
	sync = chance_one_in(&c->chance, 3);
	if (sync)
		sync = sync_path(c, c->tmp.path);
	rename_over(c, &c->tmp, own, sync);
}

void remove_file(struct client *c, struct own *own)
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

void make_link(struct client *c, struct own *own)
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
	if (!fine(c, "link", own->path,
		  kernel_link(model_name(own->path),
			      model_name(c->link.path)))) {
		model_failed(c->link.path, state);
		return;
	}
	model_end(c->link.path, state);
	/* Closed without a byte, a version gets its place when released. */
	if (c->plan->options.publish == PUBLISH_ASYNC || size == 0)
		return;
	model_promise(own->path, model_last(own->path));
	model_promise(c->link.path, state);
}

/* --- the folder
 * ------------------------------------------------------------------ */

static bool is_folder_known(const struct folder *f)
{
	for (unsigned at = 0; at < 2; at++)
		for (unsigned i = 0; i < FILES_OF_FOLDER; i++)
			if (!model_known(f->file[at][i]))
				return false;
	return true;
}

static void rename_folder(struct client *c)
{
	struct moved m[FILES_OF_FOLDER];
	struct folder *f = &c->folder;
	unsigned count = 0, to = 1 - f->at;
	size_t size;
	bool ok;
	int rc;

	for (unsigned i = 0; i < FILES_OF_FOLDER; i++) {
		struct path *p = f->file[f->at][i];

		if (model_bytes(p, model_last(p), &size))
			move_begin(&m[count++], p, f->file[to][i]);
	}
	say_op(c, "rename folder to", f->file[to][0], count, 0);
	rc = kernel_rename(f->name[f->at], f->name[to], 0);
	say_op(c, "renamed folder to", f->file[to][0], count, rc);
	ok = fine(c, "rename folder to", f->file[to][0], rc);
	for (unsigned i = 0; i < count; i++)
		move_end(&m[i], ok, waits(c, true));
	if (ok)
		f->at = to;
	else
		f->in_doubt = true;
}

void use_folder(struct client *c)
{
	struct folder *f = &c->folder;
	int rc;

	if (f->in_doubt || !is_folder_known(f))
		return;
	if (!kernel_has(f->name[f->at])) {
		rc = kernel_mkdir(f->name[f->at]);
		if (!fine(c, "make folder", NULL, rc))
			return;
	}
	for (unsigned i = 0; i < FILES_OF_FOLDER; i++)
		if (chance_one_in(&c->chance, 2))
			write_file(c, f->file[f->at][i], f->file[1 - f->at][i]);
	if (is_folder_known(f))
		rename_folder(c);
}

void find_folder(struct client *c)
{
	struct folder *f = &c->folder;
	bool first, second;

	if (!f->file[0][0])
		return;
	first = kernel_has(f->name[0]);
	second = kernel_has(f->name[1]);
	if (first && second)
		sim_fail("rename: %s and %s are both there", f->name[0],
			 f->name[1]);
	f->at = second ? 1 : 0;
	f->in_doubt = false;
}
