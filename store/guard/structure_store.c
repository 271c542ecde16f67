/* structure_store.c - see structure_store.h. */
#include "store/guard/structure_store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/names/names.h"
#include "store/store.h"

#define PIECE_BYTES ((size_t)1 << 20)

struct folder {
	struct store *st;
	uint64_t dir;
	uint64_t metadata;
	const uid_t *reader; /* who must be able to read all of it, or NULL */
	bool refused; /* and is not */
};

struct opened {
	struct store *st;
	struct inode *in; /* a reference */
	int memory; /* what is read goes through this */
};

/*
 * The pieces may be mappings of files that somebody cuts short meanwhile:
 * system calls alone may touch them (see file_read), so they go through a file
 * in memory.
 */
static int read_piece(struct store *st, struct inode *in, void *buf, size_t len,
		      uint64_t off, int memory, size_t *ret_len)
{
	struct file_read r;
	size_t got = 0;
	int rc = file_read_begin(st, in, len, off, &r);

	for (int i = 0; rc == 0 && i < r.count; i++) {
		rc = io_write_full(memory, r.iov[i].iov_base, r.iov[i].iov_len,
				   got);
		got += r.iov[i].iov_len;
	}
	file_read_end(st, &r);
	*ret_len = got;
	return rc == 0 ? io_read_full(memory, buf, got, 0) : rc;
}

static int read_through(struct store *st, struct inode *in, void *buf,
			size_t len, uint64_t off, int memory)
{
	uint8_t *at = buf;
	int rc = 0;

	while (rc == 0 && len > 0) {
		size_t got = 0;

		rc = read_piece(st, in, at,
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

int structure_read(struct store *st, struct inode *in, void *buf, size_t len,
		   uint64_t off)
{
	SCOPED(scope_close) int memory = memfd_create("ckptfs", MFD_CLOEXEC);

	return memory < 0 ? -errno
			  : read_through(st, in, buf, len, off, memory);
}

int structure_lookup(struct store *st, uint64_t dir, const char *path,
		     struct inode **ret_inode)
{
	uint64_t at = dir;

	for (;;) {
		const char *slash = strchr(path, '/');
		char name[STORE_NAME_MAX + 1];
		size_t len = slash ? (size_t)(slash - path) : strlen(path);
		bool folder;
		int rc;

		if (len == 0 || len > STORE_NAME_MAX)
			return -ENOENT;
		memcpy(name, path, len);
		name[len] = 0;
		rc = names_lookup(st->names, at, name, ret_inode);
		if (rc < 0 || !slash)
			return rc;
		{
			HOLD(&(*ret_inode)->lock);
			folder = S_ISDIR((*ret_inode)->attr.mode);
		}
		at = (*ret_inode)->ino;
		inode_put(st->inodes, *ret_inode, 1);
		if (!folder)
			return -ENOTDIR;
		path = slash + 1;
	}
}

static int source_read(void *self, void *buf, size_t len, uint64_t off)
{
	struct opened *o = self;

	return read_through(o->st, o->in, buf, len, off, o->memory);
}

/* Of his groups nothing is known: their rights do not count. */
static bool may_read(struct folder *f, struct inode *in)
{
	HOLD(&in->lock);
	if (!f->reader || *f->reader == 0 || *f->reader == in->attr.uid ||
	    (in->attr.mode & S_IROTH))
		return true;
	f->refused = true;
	return false;
}

/* Takes over the reference. */
static int open_inode(struct store *st, struct inode *in,
		      struct cut_source *ret)
{
	struct opened *o = malloc(sizeof(*o));
	struct stat sb;
	int rc = o ? inode_stat(st->inodes, in, &sb) : -ENOMEM;
	int memory = -1;

	if (rc == 0 && !S_ISREG(sb.st_mode))
		rc = -EINVAL;
	if (rc == 0) {
		memory = memfd_create("ckptfs", MFD_CLOEXEC);
		rc = memory < 0 ? -errno : 0;
	}
	if (rc < 0) {
		free(o);
		inode_put(st->inodes, in, 1);
		return rc;
	}
	*o = (struct opened){ st, in, memory };
	*ret = (struct cut_source){ source_read, o, (uint64_t)sb.st_size };
	return 0;
}

static int source_open(void *self, const char *name, struct cut_source *ret)
{
	struct folder *f = self;
	struct inode *in;
	int rc;

	if (f->metadata && strcmp(name, DCP_METADATA_NAME) == 0)
		rc = inode_get(f->st->inodes, f->metadata, &in);
	else
		rc = structure_lookup(f->st, f->dir, name, &in);
	if (rc == 0 && !may_read(f, in)) {
		inode_put(f->st->inodes, in, 1);
		rc = -EACCES;
	}
	return rc < 0 ? rc : open_inode(f->st, in, ret);
}

static void source_close(void *self, struct cut_source *source)
{
	struct opened *o = source->self;

	(void)self;
	(void)close(o->memory);
	inode_put(o->st->inodes, o->in, 1);
	free(o);
}

struct listing {
	struct store *st;
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
	    inode_get(l->st->inodes, entry->ino, &in) < 0)
		return 0;
	rc = inode_stat(l->st->inodes, in, &sb);
	inode_put(l->st->inodes, in, 1);
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
	struct listing l = { f->st, fn, arg };
	struct inode *in;
	uint64_t dir;
	bool may;
	int rc;

	if (*below)
		rc = structure_lookup(f->st, f->dir, below, &in);
	else
		rc = inode_get(f->st->inodes, f->dir, &in);
	if (rc < 0)
		return rc;
	dir = in->ino;
	may = may_read(f, in);
	inode_put(f->st->inodes, in, 1);
	if (!may)
		return -EACCES;
	return names_list(f->st->names, dir, 0, list_one, &l);
}

int structure_of_dir(struct store *st, uint64_t dir, uint64_t metadata,
		     const struct structure_limits *limits,
		     const uid_t *reader, struct structure *ret)
{
	struct folder f = { .st = st,
			    .dir = dir,
			    .metadata = metadata,
			    .reader = reader };
	const struct structure_source in = { &f,
					     source_list,
					     source_open,
					     source_close,
					     limits->metadata_bytes_max,
					     limits->memory_bytes_max };
	int rc;

	rc = structure_of_folder(ret, &in);
	return f.refused ? -EACCES : rc;
}

int structure_of_inode(struct store *st, struct inode *in,
		       const struct structure_limits *limits,
		       struct structure *ret)
{
	struct folder f = { .st = st };
	const struct structure_source beside = { &f,
						 source_list,
						 source_open,
						 source_close,
						 limits->metadata_bytes_max,
						 limits->memory_bytes_max };
	char name[STORE_NAME_MAX + 1];
	struct cut_source file;
	int rc;

	{
		HOLD(&in->lock);
		f.dir = in->attr.parent;
		strcpy(name, in->attr.name);
	}
	memset(ret, 0, sizeof(*ret));
	inode_ref(st->inodes, in, 1);
	rc = open_inode(st, in, &file);
	if (rc < 0)
		return rc;
	rc = structure_of_file(ret, &file, name, &beside);
	source_close(&f, &file);
	return rc;
}
