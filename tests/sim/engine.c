/*
 * engine.c - files and directories of the shared directory, and what each node
 * remembers of them: see engine.h.
 *
 * Nothing is ever freed: a run is short, and what has no name any more may be
 * open, or remembered.
 */
#include "tests/sim/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/base/vec.h"

#define HIDDEN ".ckptfs"
#define FIRST_INO 1000
#define WALL_START INT64_C(1700000000000000000) /* as in locks.c */

struct engine engine;

int64_t engine_now(void)
{
	int64_t now = WALL_START + sim_clock();

	return now - now % engine.kind.tick_ns;
}

void engine_changed(struct einode *in, enum engine_change what)
{
	if (engine.on_change)
		engine.on_change(in, what);
}

/* --- lists of names ------------------------------------------------------- */

struct entry_of *list_find(const struct listing *l, const char *name)
{
	for (size_t i = 0; i < l->count; i++)
		if (strcmp(l->at[i].name, name) == 0)
			return &l->at[i];
	return NULL;
}

void list_add(struct listing *l, const char *name, struct einode *in)
{
	CHECK(vec_grow(&l->at, l->count, &l->room, sizeof(*l->at)) == 0);
	l->at[l->count].name = strdup(name);
	CHECK(l->at[l->count].name);
	l->at[l->count++].in = in;
}

void list_remove(struct listing *l, const char *name)
{
	struct entry_of *e = list_find(l, name);

	CHECK(e);
	free(e->name);
	*e = l->at[--l->count];
}

void list_clear(struct listing *l)
{
	for (size_t i = 0; i < l->count; i++)
		free(l->at[i].name);
	l->count = 0;
}

void list_copy(struct listing *to, const struct listing *from)
{
	list_clear(to);
	for (size_t i = 0; i < from->count; i++)
		list_add(to, from->at[i].name, from->at[i].in);
}

/* --- files ---------------------------------------------------------------- */

struct einode *einode_new(mode_t mode)
{
	struct einode *in = calloc(1, sizeof(*in));

	CHECK(in);
	CHECK(vec_grow(&engine.all, engine.count, &engine.room,
		       sizeof(*engine.all)) == 0);
	in->ino = FIRST_INO + engine.count;
	engine.all[engine.count++] = in;
	in->mode = mode;
	in->mtime_ns = in->ctime_ns = in->atime_ns = engine_now();
	return in;
}

/* Does `who` see what `node` has not brought there? 0 sees what others do. */
static bool sees(unsigned who, unsigned node)
{
	return who == node || !engine.kind.set_flushes;
}

size_t einode_size(const struct einode *in, unsigned node)
{
	size_t size = in->size;

	for (size_t i = 0; i < in->unsents; i++) {
		const struct unsent *u = &in->unsent[i];

		if (sees(node, u->node) && u->off + u->len > size)
			size = u->off + u->len;
	}
	return size;
}

size_t einode_read(const struct einode *in, unsigned node, void *buf,
		   size_t len, uint64_t off)
{
	size_t size = einode_size(in, node);
	uint8_t *out = buf;

	if (off >= size)
		return 0;
	if (len > size - off)
		len = size - off;
	memset(out, 0, len);
	if (off < in->size)
		memcpy(out, in->bytes + off,
		       len < in->size - off ? len : in->size - off);
	for (size_t i = 0; i < in->unsents; i++) {
		const struct unsent *u = &in->unsent[i];
		uint64_t from = u->off > off ? u->off : off;
		uint64_t to = u->off + u->len < off + len ? u->off + u->len
							  : off + len;

		if (sees(node, u->node) && from < to)
			memcpy(out + (from - off), u->bytes + (from - u->off),
			       to - from);
	}
	return len;
}

static void set_size(struct einode *in, size_t size)
{
	if (size > in->bytes_room) {
		in->bytes_room = size + size / 2;
		in->bytes = realloc(in->bytes, in->bytes_room);
		CHECK(in->bytes);
	}
	if (size > in->size)
		memset(in->bytes + in->size, 0, size - in->size);
	in->size = size;
}

static void put_bytes(struct einode *in, const void *buf, size_t len,
		      uint64_t off)
{
	if (off + len > in->size)
		set_size(in, off + len);
	if (len > 0)
		memcpy(in->bytes + off, buf, len);
}

void einode_write(struct einode *in, unsigned node, const void *buf, size_t len,
		  uint64_t off)
{
	in->mtime_ns = in->ctime_ns = engine_now();
	if (!engine.kind.buffers) {
		put_bytes(in, buf, len, off);
		return;
	}
	CHECK(vec_grow(&in->unsent, in->unsents, &in->unsents_room,
		       sizeof(*in->unsent)) == 0);
	in->unsent[in->unsents] = (struct unsent){
		.node = node, .off = off, .len = len, .bytes = malloc(len)
	};
	CHECK(in->unsent[in->unsents].bytes);
	memcpy(in->unsent[in->unsents++].bytes, buf, len);
}

/* Those of `node` go; sent: their bytes are there then. */
static void take_unsent(struct einode *in, unsigned node, bool sent)
{
	size_t kept = 0;

	for (size_t i = 0; i < in->unsents; i++) {
		struct unsent *u = &in->unsent[i];

		if (u->node != node) {
			in->unsent[kept++] = *u;
			continue;
		}
		if (sent)
			put_bytes(in, u->bytes, u->len, u->off);
		free(u->bytes);
	}
	in->unsents = kept;
}

void einode_flush(struct einode *in, unsigned node)
{
	take_unsent(in, node, true);
}

void einode_recall(struct einode *in, unsigned node)
{
	for (unsigned n = 0; n < ENGINE_NODES_MAX; n++)
		if (n != node && sees(node, n))
			take_unsent(in, n, true);
}

void einode_lose(struct einode *in, unsigned node, bool all)
{
	for (size_t i = 0; i < in->unsents; i++) {
		struct unsent *u = &in->unsent[i];

		/* A page or two may have been written back. */
		if (u->node == node && !all && chance_one_in(&engine.chance, 2))
			put_bytes(in, u->bytes, u->len, u->off);
	}
	take_unsent(in, node, false);
}

void einode_cut(struct einode *in, unsigned node, size_t size)
{
	einode_recall(in, node);
	if (engine.kind.set_flushes)
		einode_flush(in, node);
	for (size_t i = 0; i < in->unsents; i++) {
		struct unsent *u = &in->unsent[i];

		if (u->off >= size)
			u->off = u->len = 0;
		else if (u->off + u->len > size)
			u->len = size - u->off;
	}
	set_size(in, size);
	in->mtime_ns = in->ctime_ns = engine_now();
}

/* --- what a node remembers ------------------------------------------------ */

static void fill_stat(const struct einode *in, unsigned node, struct stat *sb)
{
	*sb = (struct stat){
		.st_dev = 77,
		.st_ino = in->ino,
		.st_mode = in->mode,
		.st_nlink = in->links,
		.st_uid = in->uid,
		.st_gid = in->gid,
		.st_size = (off_t)einode_size(in, node),
		.st_blksize = 4096,
		.st_mtim = io_timespec(in->mtime_ns),
		.st_ctim = io_timespec(in->ctime_ns),
		.st_atim = io_timespec(in->atime_ns),
	};
}

static int64_t until_of(const struct einode *in)
{
	int64_t longest =
		S_ISDIR(in->mode) ? engine.kind.dirs_ns : engine.kind.files_ns;

	/* For how long, says its client: it depends on when it changed last. */
	return longest == 0
		       ? 0
		       : sim_clock() + (int64_t)chance_below(
						&engine.chance,
						(uint64_t)longest + 1);
}

void view_stat(struct einode *in, unsigned node, struct stat *sb, bool anew)
{
	struct view *v = &in->view[node];

	if (anew || v->sb_until_ns <= sim_clock()) {
		if (!engine.kind.set_flushes)
			einode_recall(in, node);
		fill_stat(in, node, &v->sb);
		v->sb_until_ns = until_of(in);
	}
	*sb = v->sb;
}

struct einode *view_lookup(struct einode *dir, unsigned node, const char *name,
			   bool anew)
{
	struct view *v = &dir->view[node];
	struct entry_of *e;
	size_t i;

	for (i = 0; i < v->names; i++)
		if (strcmp(v->name[i].entry.name, name) == 0)
			break;
	if (i < v->names && !anew && v->name[i].until_ns > sim_clock())
		return v->name[i].entry.in;
	if (i == v->names) {
		CHECK(vec_grow(&v->name, v->names, &v->names_room,
			       sizeof(*v->name)) == 0);
		v->name[i].entry.name = strdup(name);
		CHECK(v->name[i].entry.name);
		v->names++;
	}
	e = list_find(&dir->list, name);
	v->name[i].entry.in = e ? e->in : NULL;
	v->name[i].until_ns = until_of(dir);
	return v->name[i].entry.in;
}

void view_list(struct einode *dir, unsigned node, struct listing *ret)
{
	struct view *v = &dir->view[node];

	if (v->list_until_ns <= sim_clock()) {
		list_copy(&v->list, &dir->list);
		v->list_until_ns = until_of(dir);
	}
	list_copy(ret, &v->list);
}

void view_forget(struct einode *in, unsigned node)
{
	struct view *v = &in->view[node];

	v->sb_until_ns = v->list_until_ns = 0;
	for (size_t i = 0; i < v->names; i++)
		free(v->name[i].entry.name);
	v->names = 0;
}

/* --- for who checks ------------------------------------------------------- */

void engine_init(uint64_t seed, const struct engine_kind *k)
{
	engine.kind = *k;
	engine.chance = chance_of(seed, 21);
	engine.all = NULL;
	engine.count = engine.room = 0;
	(void)einode_new(S_IFDIR | 0755);
	engine.all[0]->links = 2;
	engine.all[0]->parent = engine.all[0];
}

void engine_errors(uint64_t one_in)
{
	engine.errors_one_in = one_in;
}

uint64_t engine_calls(unsigned node)
{
	return engine.calls[node];
}

void engine_on_change(void (*fn)(struct einode *, enum engine_change))
{
	engine.on_change = fn;
}

struct einode *engine_at(const char *path)
{
	struct einode *in = engine.all[0];
	char copy[600], *save = NULL;

	(void)snprintf(copy, sizeof(copy), "%s", path);
	for (char *part = strtok_r(copy, "/", &save); part;
	     part = strtok_r(NULL, "/", &save)) {
		struct entry_of *e = list_find(&in->list, part);

		if (!e)
			return NULL;
		in = e->in;
	}
	return in;
}

/* Is the directory HIDDEN, or below it? */
static bool is_hidden(const struct einode *dir)
{
	const struct entry_of *e = list_find(&engine.all[0]->list, HIDDEN);

	while (dir != engine.all[0] && (!e || dir != e->in))
		dir = dir->parent;
	return dir != engine.all[0];
}

/*
 * A directory with a name of it, of those that users see if there is one: links
 * in HIDDEN are the store's own, but what was made there first is there only.
 */
static struct einode *dir_with(const struct einode *in, const char **ret_name)
{
	struct einode *found = NULL;

	for (size_t i = 0; i < engine.count; i++) {
		const struct listing *l = &engine.all[i]->list;

		for (size_t k = 0; k < l->count; k++)
			if (l->at[k].in == in &&
			    (!found || !is_hidden(engine.all[i]))) {
				*ret_name = l->at[k].name;
				found = engine.all[i];
				if (!is_hidden(found))
					return found;
			}
	}
	return found;
}

bool engine_path(const struct einode *in, char *buf, size_t size)
{
	char path[600] = "", longer[600];
	const char *name;

	while (in && in != engine.all[0]) {
		in = dir_with(in, &name);
		if (!in)
			return false;
		(void)snprintf(longer, sizeof(longer), "%s%s%.300s", name,
			       path[0] ? "/" : "", path);
		strcpy(path, longer);
	}
	(void)snprintf(buf, size, "%s", path);
	return true;
}

static int compare_entries(const void *a, const void *b)
{
	const struct entry_of *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static void each_in(const char *path, struct einode *dir,
		    void (*fn)(void *, const char *, struct einode *),
		    void *arg)
{
	struct listing l = { 0 };
	char below[600];

	list_copy(&l, &dir->list);
	if (l.count > 1)
		qsort(l.at, l.count, sizeof(*l.at), compare_entries);
	for (size_t i = 0; i < l.count; i++) {
		if (!path[0] && strcmp(l.at[i].name, HIDDEN) == 0)
			continue;
		(void)snprintf(below, sizeof(below), "%.300s%s%s", path,
			       path[0] ? "/" : "", l.at[i].name);
		fn(arg, below, l.at[i].in);
		if (S_ISDIR(l.at[i].in->mode))
			each_in(below, l.at[i].in, fn, arg);
	}
	list_clear(&l);
	free(l.at);
}

void engine_each(const char *path,
		 void (*fn)(void *, const char *, struct einode *), void *arg)
{
	struct einode *in = engine_at(path);

	if (in && S_ISDIR(in->mode))
		each_in(path, in, fn, arg);
}

bool engine_remove(const char *path)
{
	const char *name = strrchr(path, '/');
	struct einode *dir;
	char at[600];

	(void)snprintf(at, sizeof(at), "%.*s",
		       name ? (int)(name - path) : 0, path);
	name = name ? name + 1 : path;
	dir = engine_at(at);
	if (!dir || !list_find(&dir->list, name))
		return false;
	list_find(&dir->list, name)->in->links--;
	list_remove(&dir->list, name);
	return true;
}

uint64_t einode_number(const struct einode *in)
{
	return in->ino;
}

mode_t einode_mode(const struct einode *in)
{
	return in->mode;
}

nlink_t einode_links(const struct einode *in)
{
	return in->links;
}

unsigned *einode_mark(struct einode *in)
{
	return &in->mark;
}

const uint8_t *einode_bytes(const struct einode *in, size_t *ret_len)
{
	static uint8_t *buf;
	static size_t room;
	size_t len = einode_size(in, 0);

	if (len + 1 > room) {
		room = len + 1;
		buf = realloc(buf, room);
		CHECK(buf);
	}
	*ret_len = einode_read(in, 0, buf, len, 0);
	return buf;
}
