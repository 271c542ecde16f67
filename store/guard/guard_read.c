/*
 * guard_read.c - steps and files as they lie in the store, staged or durable,
 * for structure.h to look into.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/file/file.h"
#include "store/guard/guard_private.h"
#include "store/names/names.h"

#define PIECE_BYTES ((size_t)1 << 20)

struct folder {
	struct guard *g;
	uint64_t dir;
	uint64_t metadata;
	const uid_t *reader; /* who must be able to read all of it, or NULL */
	bool refused; /* and is not */
};

struct opened {
	struct guard *g;
	struct inode *in; /* a reference */
	int memory; /* what is read goes through this */
};

/*
 * The pieces may be mappings of files that somebody cuts short meanwhile:
 * system calls alone may touch them (see file_read), so they go through a file
 * in memory.
 */
static int read_piece(struct guard *g, struct inode *in, void *buf, size_t len,
		      uint64_t off, int memory, size_t *ret_len)
{
	struct file_read r;
	size_t got = 0;
	int rc = file_read_begin(g->use.files, in, len, off, &r);

	for (int i = 0; rc == 0 && i < r.count; i++) {
		rc = io_write_full(memory, r.iov[i].iov_base, r.iov[i].iov_len,
				   got);
		got += r.iov[i].iov_len;
	}
	file_read_end(g->use.files, &r);
	*ret_len = got;
	return rc == 0 ? io_read_full(memory, buf, got, 0) : rc;
}

static int read_through(struct guard *g, struct inode *in, void *buf,
			size_t len, uint64_t off, int memory)
{
	uint8_t *at = buf;
	int rc = 0;

	while (rc == 0 && len > 0) {
		size_t got = 0;

		rc = read_piece(g, in, at,
				len < PIECE_BYTES ? len : PIECE_BYTES, off,
				memory, &got);
		if (rc == 0 && got == 0)
			rc = -ESTALE;
		at += got;
		off += got;
		len -= got;
	}
	return rc;
}

int guard_read(struct guard *g, struct inode *in, void *buf, size_t len,
	       uint64_t off)
{
	SCOPED(scope_close) int memory = memfd_create("ckptfs", MFD_CLOEXEC);

	return memory < 0 ? -errno : read_through(g, in, buf, len, off, memory);
}

int guard_find(struct guard *g, uint64_t dir, const char *path,
	       struct inode **ret_inode)
{
	uint64_t at = dir;

	for (;;) {
		char name[STORE_NAME_MAX + 1];
		size_t len = strcspn(path, "/");
		bool folder;
		int rc;

		if (len == 0 || len > STORE_NAME_MAX)
			return -ENOENT;
		memcpy(name, path, len);
		name[len] = 0;
		rc = names_lookup(g->use.names, at, name, ret_inode);
		if (rc < 0 || !path[len])
			return rc;
		folder = S_ISDIR(inode_attr(*ret_inode).mode);
		at = (*ret_inode)->ino;
		inode_put(g->use.inodes, *ret_inode, 1);
		if (!folder)
			return -ENOTDIR;
		path += len + 1;
	}
}

static int source_read(void *self, void *buf, size_t len, uint64_t off)
{
	struct opened *o = self;

	return read_through(o->g, o->in, buf, len, off, o->memory);
}

/* What has this path in the folder ("": itself), if the reader may read it. */
static int find_readable(struct folder *f, const char *path,
			 struct inode **ret_inode)
{
	struct inode_table *inodes = f->g->use.inodes;
	struct attr a;
	int rc;

	if (!*path)
		rc = inode_get(inodes, f->dir, ret_inode);
	else if (f->metadata && strcmp(path, DCP_METADATA_NAME) == 0)
		rc = inode_get(inodes, f->metadata, ret_inode);
	else
		rc = guard_find(f->g, f->dir, path, ret_inode);
	if (rc < 0 || !f->reader || *f->reader == 0)
		return rc;
	a = inode_attr(*ret_inode);
	if (*f->reader == a.uid || (a.mode & S_IROTH))
		return 0;
	inode_put(inodes, *ret_inode, 1);
	f->refused = true;
	return -EACCES;
}

/* Takes over the reference. */
static int open_inode(struct guard *g, struct inode *in, struct cut_source *ret)
{
	SCOPED(scope_free) struct opened *o = malloc(sizeof(*o));
	struct stat sb;
	int rc = o ? inode_stat(g->use.inodes, in, &sb) : -ENOMEM;

	if (rc == 0 && !S_ISREG(sb.st_mode))
		rc = -EINVAL;
	if (rc == 0) {
		*o = (struct opened){ g, in,
				      memfd_create("ckptfs", MFD_CLOEXEC) };
		rc = o->memory < 0 ? -errno : 0;
	}
	if (rc < 0) {
		inode_put(g->use.inodes, in, 1);
		return rc;
	}
	*ret = (struct cut_source){ source_read, TAKE(o),
				    (uint64_t)sb.st_size };
	return 0;
}

static int source_open(void *self, const char *name, struct cut_source *ret)
{
	struct folder *f = self;
	struct inode *in;
	int rc = find_readable(f, name, &in);

	return rc < 0 ? rc : open_inode(f->g, in, ret);
}

static void source_close(void *self, struct cut_source *source)
{
	struct opened *o = source->self;

	(void)self;
	(void)close(o->memory);
	inode_put(o->g->use.inodes, o->in, 1);
	free(o);
}

struct listing {
	struct guard *g;
	int (*fn)(void *arg, const char *name, bool folder,
		  uint64_t size_bytes);
	void *arg;
};

static int list_one(void *arg, const char *name, const struct dirent_rec *entry,
		    uint64_t cookie)
{
	struct listing *l = arg;
	struct inode *in;
	struct stat sb;
	int rc;

	(void)cookie;
	if (S_ISDIR(entry->type))
		return l->fn(l->arg, name, true, 0);
	if (!S_ISREG(entry->type) ||
	    inode_get(l->g->use.inodes, entry->ino, &in) < 0)
		return 0;
	rc = inode_stat(l->g->use.inodes, in, &sb);
	inode_put(l->g->use.inodes, in, 1);
	if (rc < 0 || sb.st_nlink == 0) /* deleted since it was listed */
		return 0;
	return l->fn(l->arg, name, false, (uint64_t)sb.st_size);
}

static int source_list(void *self, const char *below,
		       int (*fn)(void *arg, const char *name, bool folder,
				 uint64_t size_bytes),
		       void *arg)
{
	struct folder *f = self;
	struct listing l = { f->g, fn, arg };
	struct inode *in;
	int rc = find_readable(f, below, &in);

	if (rc < 0)
		return rc;
	rc = names_list(f->g->use.names, in->ino, 0, list_one, &l);
	inode_put(f->g->use.inodes, in, 1);
	return rc;
}

static uint32_t source_world(void *self, const char *name)
{
	struct folder *f = self;
	struct writer w = { .world_size = 0 };
	struct inode *in;

	if (find_readable(f, name, &in) < 0)
		return 0;
	if (names_get_writer(f->g->use.names, in->ino, &w) < 0)
		w.world_size = 0;
	inode_put(f->g->use.inodes, in, 1);
	return w.world_size;
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
		.budget = &f->g->memory,
	};
}

int guard_read_dir(struct guard *g, uint64_t dir, uint64_t metadata,
		   const uid_t *reader, bool whole, struct structure *ret)
{
	struct folder f = {
		.g = g, .dir = dir, .metadata = metadata, .reader = reader
	};
	const struct structure_source in = source_of(&f, whole);
	int rc = structure_of_folder(ret, &in);

	return f.refused ? -EACCES : rc;
}

int guard_read_file(struct guard *g, struct inode *in, const char *name,
		    struct structure *ret)
{
	const struct attr a = inode_attr(in);
	struct folder f = { .g = g, .dir = a.parent };
	const struct structure_source beside = source_of(&f, false);
	struct cut_source file;
	int rc;

	memset(ret, 0, sizeof(*ret));
	inode_ref(in, 1);
	rc = open_inode(g, in, &file);
	if (rc < 0)
		return rc;
	rc = structure_of_file(ret, &file, name, &beside);
	source_close(&f, &file);
	return rc;
}

int guard_read_step(struct guard *g, const struct guard_step *step,
		    uint64_t dir, const uid_t *reader, bool whole,
		    struct structure *ret)
{
	struct inode *in;
	struct attr a;
	int rc;

	memset(ret, 0, sizeof(*ret));
	if (!step->file)
		return guard_read_dir(g, dir,
				      dir == step->dir ? step->metadata : 0,
				      reader, whole, ret);
	rc = inode_get(g->use.inodes, dir, &in);
	if (rc < 0)
		return rc;
	a = inode_attr(in);
	rc = reader && *reader != 0 && *reader != a.uid && !(a.mode & S_IROTH)
		     ? -EACCES
		     : guard_read_file(g, in,
				       dir == step->dir ? step->name : a.name,
				       ret);
	inode_put(g->use.inodes, in, 1);
	return rc;
}
