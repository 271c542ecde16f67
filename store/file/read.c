/*
 * read.c - the bytes of a file that are read through the daemon: those of its
 * stage, or else of what is committed.
 *
 * The answer comes from mapped memory (file.h); only a stage's bytes, and a
 * read of too many pieces, are copied. Who reads in sequence has what comes
 * next read ahead.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file_private.h"

#define AHEAD_EXTENTS_MAX 1024u /* at each read */

static const uint8_t zeros[64 << 10];

static int read_stage(struct files *fs, struct stage *s, size_t len,
		      uint64_t off, struct file_read *r)
{
	struct stage_use use;
	size_t got = 0;
	int rc;

	r->buffer = malloc(len + 1);
	if (!r->buffer)
		return -ENOMEM;
	rc = stage_fd_get(fs->stages, s, false, &use);
	if (rc < 0)
		return rc;
	rc = io_read(use.fd, r->buffer, len, off, &got);
	stage_fd_put(fs->stages, &use);
	if (rc < 0)
		return rc;
	r->iov[0] = (struct iovec){ r->buffer, got };
	r->count = 1;
	return 0;
}

static int read_small(struct files *fs, struct inode *in,
		      const struct content *c, size_t len, uint64_t off,
		      struct file_read *r)
{
	size_t have;
	int rc = record_load(fs->kv, key_ino('D', in->ino), &r->buffer, &have);

	if (rc < 0 || have != c->size_bytes) {
		char path[4096];
		bool replaced;

		{
			HOLD(&in->lock);
			replaced = in->file->content != r->content ||
				   in->file->stage || in->deleted;
		}
		if (replaced) /* since we looked: look again */
			return -EAGAIN;

		inode_path(fs->inodes, in, path, sizeof(path));
		log_error("%s: its bytes are damaged or missing: run ckptctl "
			  "fsck on the unmounted store",
			  path);
		return -EIO;
	}
	if (off >= have)
		return 0;
	if (len > have - off)
		len = have - off;
	r->iov[0] = (struct iovec){ (uint8_t *)r->buffer + off, len };
	r->count = 1;
	return 0;
}

/* One vector of an extent's bytes: mapped, or read when it cannot be. */
static int read_extent(struct files *fs, const struct extent *e, uint64_t off,
		       size_t len, struct file_read *r)
{
	uint64_t at = e->image_offset + (off - e->offset);
	const uint8_t *map;
	struct image *i;
	int rc;

	rc = file_get_image(fs, e->image, &i);
	if (rc < 0)
		return rc;
	map = image_map(fs->images, i, at + len);
	if (!map) {
		image_put(fs->images, i);
		return -EIO;
	}
	r->image[r->images++] = i;
	r->iov[r->count].iov_base = (void *)(uintptr_t)(map + at);
	r->iov[r->count++].iov_len = len;
	return 0;
}

static void put_images(struct files *fs, struct file_read *r)
{
	while (r->images > 0) {
		struct image *i = r->image[--r->images];

		image_map_end(fs->images, i);
		image_put(fs->images, i);
	}
}

/*
 * How many bytes from off on, up to `end`, are of one extent, or in no extent
 * (NULL): a hole.
 */
static uint64_t piece_at(const struct content *c, uint64_t off, uint64_t end,
			 const struct extent **ret_extent)
{
	size_t i = extent_find(c, off);
	const struct extent *e = i < c->extent_count ? &c->extents[i] : NULL;
	bool hole = !e || e->offset > off;
	uint64_t to = !e ? end : hole ? e->offset : e->offset + e->len;

	*ret_extent = hole ? NULL : e;
	return (to < end ? to : end) - off;
}

/* What of [off, off + len) is there. */
static uint64_t end_of_read(const struct content *c, size_t len, uint64_t off)
{
	if (off >= c->size_bytes)
		return off;
	return len < c->size_bytes - off ? off + len : c->size_bytes;
}

/*
 * -E2BIG: it does not fit into the vectors. A direct_io reader takes a short
 * answer for the end of the file, so all of it is copied then.
 */
static int read_extents(struct files *fs, const struct content *c, size_t len,
			uint64_t off, struct file_read *r)
{
	uint64_t end = end_of_read(c, len, off);

	while (off < end && r->count < FILE_READ_VECTORS) {
		const struct extent *e;
		uint64_t n = piece_at(c, off, end, &e);

		if (e) {
			int rc = read_extent(fs, e, off, (size_t)n, r);

			if (rc < 0)
				return rc;
		} else {
			if (n > sizeof(zeros))
				n = sizeof(zeros);
			r->iov[r->count].iov_base = (void *)(uintptr_t)zeros;
			r->iov[r->count++].iov_len = (size_t)n;
		}
		off += n;
	}
	return off < end ? -E2BIG : 0;
}

/* What a reader in sequence will want next is read ahead. */
static void read_ahead(struct files *fs, struct inode *in,
		       const struct content *c, size_t len, uint64_t off)
{
	uint64_t from, to;
	size_t i;
	bool own;

	if (!fs->ahead)
		return;
	{
		HOLD(&in->lock);
		if (!ahead_follow(&in->file->ahead, off, len, c->size_bytes,
				  &from, &to))
			return;
		own = in->file->read_by_owner;
	}
	i = extent_find(c, from);
	for (unsigned n = 0; n < AHEAD_EXTENTS_MAX && i < c->extent_count;
	     n++, i++) {
		const struct extent *e = &c->extents[i];
		uint64_t start, end;
		struct image *image;

		if (e->offset >= to ||
		    image_get(fs->images, e->image, &image) < 0)
			return;
		start = from > e->offset ? from - e->offset : 0;
		end = to - e->offset < e->len ? to - e->offset : e->len;
		ahead_add(fs->ahead, image, e->image_offset + start,
			  end - start, own);
		image_put(fs->images, image);
	}
}

/* A read of so many pieces that they have to be copied together. */
static int read_copied(struct files *fs, const struct content *c, size_t len,
		       uint64_t off, struct file_read *r)
{
	uint64_t at = off, end = end_of_read(c, len, off);
	uint8_t *buffer = malloc(len + 1);
	int rc = 0;

	if (!buffer)
		return -ENOMEM;
	r->buffer = buffer;
	while (rc == 0 && at < end) {
		const struct extent *e;
		size_t n = (size_t)piece_at(c, at, end, &e);

		if (e)
			rc = file_read_image(fs, e->image,
					     e->image_offset + at - e->offset,
					     buffer + (at - off), n);
		else
			memset(buffer + (at - off), 0, n);
		at += n;
	}
	r->iov[0] = (struct iovec){ buffer, at - off };
	r->count = 1;
	return rc;
}

/* What the bytes are read from, with a reference; neither: there are none. */
static void get_bytes_locked(const struct file *f, struct stage **ret_stage,
			     struct content_ref **ret_content)
{
	*ret_stage = stage_ref(f->stage);
	*ret_content = f->stage ? NULL : content_ref_get(f->content);
}

static int read_begin(struct files *fs, struct inode *in, size_t len,
		      uint64_t off, struct file_read *r)
{
	struct stage *stage = NULL;
	const struct content *c;
	int rc;

	memset(r, 0, sizeof(*r));
	rc = inode_load_file(fs->inodes, in);
	if (rc < 0)
		return rc;
	reclaim_enter(fs->reclaim, &r->ticket);
	r->entered = true;
	{
		HOLD(&in->lock);
		if (in->deleted) /* its bytes may be somebody else's by now */
			return -ESTALE;
		file_was_read_locked(in->file, off, len);
		get_bytes_locked(in->file, &stage, &r->content);
	}
	if (stage) {
		rc = read_stage(fs, stage, len, off, r);
		stage_put(fs->stages, stage);
		return rc;
	}
	if (!r->content)
		return 0;
	c = &r->content->c;
	if (c->kind == CONTENT_SMALL)
		return read_small(fs, in, c, len, off, r);
	read_ahead(fs, in, c, len, off);
	rc = read_extents(fs, c, len, off, r);
	if (rc != -E2BIG)
		return rc;
	put_images(fs, r);
	rc = read_copied(fs, c, len, off, r);
	if (rc == -EIO && file_mend(fs, in, c, off, len) == 0) {
		free(TAKE(r->buffer));
		rc = read_copied(fs, c, len, off, r);
	}
	return rc;
}

int file_read_begin(struct files *fs, struct inode *in, size_t len,
		    uint64_t off, struct file_read *r)
{
	int rc;

	while ((rc = read_begin(fs, in, len, off, r)) == -EAGAIN)
		file_read_end(fs, r);
	return rc;
}

int file_read_failed(struct files *fs, struct inode *in,
		     const struct file_read *r, size_t len, uint64_t off)
{
	char path[4096];
	int rc = r->images == 0 ? -EIO
				: file_mend(fs, in, &r->content->c, off, len);

	if (rc == 0)
		return -EIO; /* this time */
	inode_path(fs->inodes, in, path, sizeof(path));
	log_error("%s: bytes %llu to %llu of it cannot be read from the disk, "
		  "and no other copy is whole: %s; run ckptctl scrub on the "
		  "unmounted store",
		  path, (unsigned long long)off,
		  (unsigned long long)(off + len), strerror(-rc));
	return -EIO;
}

void file_read_end(struct files *fs, struct file_read *r)
{
	put_images(fs, r);
	free(r->buffer);
	content_ref_put(r->content);
	if (r->entered)
		reclaim_leave(fs->reclaim, &r->ticket);
}

static int seek_extents(const struct content *c, uint64_t off, int whence,
			uint64_t *ret_off)
{
	size_t i = extent_find(c, off);

	if (off >= c->size_bytes)
		return -ENXIO;
	if (c->kind == CONTENT_SMALL) {
		*ret_off = whence == SEEK_DATA ? off : c->size_bytes;
		return 0;
	}
	if (whence == SEEK_DATA) {
		if (i == c->extent_count)
			return -ENXIO;
		*ret_off =
			c->extents[i].offset > off ? c->extents[i].offset : off;
		return 0;
	}
	while (i < c->extent_count && c->extents[i].offset <= off) {
		off = c->extents[i].offset + c->extents[i].len;
		i++;
	}
	*ret_off = off;
	return 0;
}

static int seek_stage(struct files *fs, const struct stage *s, uint64_t off,
		      int whence, uint64_t *ret_off)
{
	SCOPED(scope_close) int fd = stage_open(fs->stages, s, O_RDONLY);
	off_t at;

	if (fd < 0)
		return fd;
	at = lseek(fd, (off_t)off, whence);
	if (at < 0)
		return -errno;
	*ret_off = (uint64_t)at;
	return 0;
}

int file_seek(struct files *fs, struct inode *in, uint64_t off, int whence,
	      uint64_t *ret_off)
{
	struct content_ref *content;
	struct stage *stage;
	int rc = inode_load_file(fs->inodes, in);

	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		get_bytes_locked(in->file, &stage, &content);
	}
	if (stage) {
		rc = seek_stage(fs, stage, off, whence, ret_off);
		stage_put(fs->stages, stage);
		return rc;
	}
	rc = content ? seek_extents(&content->c, off, whence, ret_off) : -ENXIO;
	content_ref_put(content);
	return rc;
}
