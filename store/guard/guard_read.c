/*
 * guard_read.c - a step as structure.h looks into it: a folder's files as they
 * stand, staged, durable, or in a directory that nodes share.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/guard/guard_private.h"

struct folder {
	struct guard_visit *v;
	uint64_t dir;
	uint64_t metadata;
	const uid_t *reader; /* who must be able to read all of it, or NULL */
	bool refused; /* and is not */
};

int guard_find(struct guard_visit *v, uint64_t dir, const char *path,
	       uint64_t *ret_id)
{
	struct guard_attr a;
	uint64_t at = dir;

	for (;;) {
		char name[STORE_NAME_MAX + 1];
		size_t len = strcspn(path, "/");
		int rc;

		if (len == 0 || len > STORE_NAME_MAX)
			return -ENOENT;
		memcpy(name, path, len);
		name[len] = 0;
		/* .metadata may say anything. */
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
			return -ENOENT;
		rc = visit_find(v, at, name, &at);
		if (rc == 0 && !path[len])
			*ret_id = at;
		if (rc < 0 || !path[len])
			return rc;
		rc = visit_attr(v, at, &a);
		if (rc < 0 || !S_ISDIR(a.mode))
			return rc < 0 ? rc : -ENOTDIR;
		path += len + 1;
	}
}

/* What has this path in the folder ("": itself), if the reader may read it. */
static int find_readable(struct folder *f, const char *path, uint64_t *ret_id)
{
	struct guard_attr a;
	int rc = 0;

	if (!*path)
		*ret_id = f->dir;
	else if (f->metadata && strcmp(path, DCP_METADATA_NAME) == 0)
		*ret_id = f->metadata;
	else
		rc = guard_find(f->v, f->dir, path, ret_id);
	if (rc < 0 || !f->reader || *f->reader == 0)
		return rc;
	rc = visit_attr(f->v, *ret_id, &a);
	if (rc < 0 || *f->reader == a.uid || (a.mode & S_IROTH))
		return rc;
	f->refused = true;
	return -EACCES;
}

static int source_open(void *self, const char *name, struct cut_source *ret)
{
	struct folder *f = self;
	uint64_t id;
	int rc = find_readable(f, name, &id);

	return rc < 0 ? rc : visit_open(f->v, id, ret);
}

static void source_close(void *self, struct cut_source *source)
{
	struct folder *f = self;

	visit_close(f->v, source);
}

struct listing {
	struct guard_visit *v;
	uint64_t dir;
	int (*fn)(void *arg, const char *name, bool folder,
		  uint64_t size_bytes);
	void *arg;
};

static int list_one(void *arg, const char *name, uint32_t type, uint64_t number)
{
	struct listing *l = arg;
	struct guard_attr a;
	uint64_t id;

	(void)number;
	if (S_ISDIR(type))
		return l->fn(l->arg, name, true, 0);
	if (!S_ISREG(type) || visit_find(l->v, l->dir, name, &id) < 0 ||
	    visit_attr(l->v, id, &a) < 0 || a.nlink == 0)
		return 0; /* nothing of ours, or deleted since it was listed */
	return l->fn(l->arg, name, false, a.size_bytes);
}

static int source_list(void *self, const char *below,
		       int (*fn)(void *arg, const char *name, bool folder,
				 uint64_t size_bytes),
		       void *arg)
{
	struct folder *f = self;
	struct listing l = { .v = f->v, .fn = fn, .arg = arg };
	int rc = find_readable(f, below, &l.dir);

	return rc < 0 ? rc : visit_list(f->v, l.dir, list_one, &l);
}

static uint32_t source_world(void *self, const char *name)
{
	struct folder *f = self;
	uint64_t id;

	return find_readable(f, name, &id) < 0 ? 0 : visit_world(f->v, id);
}

static struct structure_source source_of(struct folder *f, bool whole)
{
	return (struct structure_source){
		.self = f,
		.list = source_list,
		.open = source_open,
		.close = source_close,
		.world = source_world,
		.whole = whole,
		.metadata_bytes_max = GUARD_METADATA_BYTES_MAX,
		.memory_bytes_max = GUARD_MEMORY_BYTES_MAX,
		.budget = &f->v->g->memory,
	};
}

int guard_read_dir(struct guard_visit *v, uint64_t dir, uint64_t metadata,
		   const uid_t *reader, bool whole, struct structure *ret)
{
	struct folder f = {
		.v = v, .dir = dir, .metadata = metadata, .reader = reader
	};
	const struct structure_source in = source_of(&f, whole);
	int rc = structure_of_folder(ret, &in);

	return f.refused ? -EACCES : rc;
}

int guard_read_file(struct guard_visit *v, uint64_t id, const char *name,
		    struct structure *ret)
{
	struct folder f = { .v = v };
	const struct structure_source beside = source_of(&f, false);
	struct cut_source file;
	struct guard_attr a;
	int rc;

	memset(ret, 0, sizeof(*ret));
	rc = visit_attr(v, id, &a);
	if (rc == 0)
		rc = visit_open(v, id, &file);
	if (rc == -EINPROGRESS)
		return structure_add_fault(ret, STRUCTURE_ELSEWHERE, name,
					   STRUCTURE_ELSEWHERE_TEXT);
	if (rc < 0)
		return rc;
	f.dir = a.parent;
	rc = structure_of_file(ret, &file, name, &beside);
	visit_close(v, &file);
	return rc;
}

int guard_read_step(struct guard_visit *v, const struct guard_step *step,
		    uint64_t dir, const uid_t *reader, bool whole,
		    struct structure *ret)
{
	struct guard_attr a;
	int rc;

	memset(ret, 0, sizeof(*ret));
	if (!step->file)
		return guard_read_dir(v, dir,
				      dir == step->dir ? step->metadata : 0,
				      reader, whole, ret);
	rc = visit_attr(v, dir, &a);
	if (rc < 0)
		return rc;
	if (reader && *reader != 0 && *reader != a.uid && !(a.mode & S_IROTH))
		return -EACCES;
	return guard_read_file(v, dir, dir == step->dir ? step->name : a.name,
			       ret);
}
