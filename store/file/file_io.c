/*
 * file_io.c - the bytes of a file that pass through the daemon, and what
 * changes them without an open: truncate, fallocate, copy-up.
 *
 * Committed content is never changed in place: the first write to a file
 * that has no stage copies its content to a new one (copy-up).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file_private.h"
#include "store/file/in_place.h"
#include "store/names/names.h"
#include "store/names/series.h"
#include "store/store.h"

#define COPY_BYTES (UINT64_C(1) << 20)
#define AHEAD_EXTENTS_MAX 1024u /* at each read */

static const uint8_t zeros[64 << 10];

static int read_stage(struct store *st, struct stage *s, size_t len,
		      uint64_t off, struct file_read *r)
{
	struct stage_use use;
	size_t got = 0;
	int rc;

	r->buffer = malloc(len + 1);
	if (!r->buffer)
		return -ENOMEM;
	rc = stage_fd_get(&st->stages, s, false, &use);
	if (rc < 0)
		return rc;
	rc = io_read(use.fd, r->buffer, len, off, &got);
	stage_fd_put(&st->stages, &use);
	if (rc < 0)
		return rc;
	r->iov[0] = (struct iovec){ r->buffer, got };
	r->count = 1;
	return 0;
}

static int read_small(struct store *st, struct inode *in,
		      const struct content *c, size_t len, uint64_t off,
		      struct file_read *r)
{
	struct key k = key_ino('D', in->ino);
	size_t have;
	int rc;

	rc = kv_get(st->kv, k.data, k.len, &r->buffer, &have);
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

		inode_path(st, in, path, sizeof(path));
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
static int read_extent(struct store *st, const struct extent *e, uint64_t off,
		       size_t len, struct file_read *r)
{
	uint64_t at = e->image_offset + (off - e->offset);
	const uint8_t *map;
	struct image *i;
	int rc;

	rc = image_get(&st->images, e->image, &i);
	if (rc < 0)
		return rc == -ENOENT ? -EIO : rc;
	map = image_map(&st->images, i, at + len);
	if (!map) {
		image_put(&st->images, i);
		return -EIO;
	}
	r->image[r->images++] = i;
	r->iov[r->count].iov_base = (void *)(uintptr_t)(map + at);
	r->iov[r->count++].iov_len = len;
	return 0;
}

static void put_images(struct store *st, struct file_read *r)
{
	while (r->images > 0) {
		struct image *i = r->image[--r->images];

		image_map_end(&st->images, i);
		image_put(&st->images, i);
	}
}

static size_t extent_find(const struct content *c, uint64_t off)
{
	size_t low = 0, high = c->extent_count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (c->extents[mid].offset + c->extents[mid].len <= off)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* As much as the vectors hold; the kernel asks again for the rest. */
static int read_extents(struct store *st, const struct content *c, size_t len,
			uint64_t off, struct file_read *r)
{
	uint64_t end;
	size_t i;

	if (off >= c->size_bytes)
		return 0;
	end = len < c->size_bytes - off ? off + len : c->size_bytes;
	i = extent_find(c, off);
	while (off < end && r->count < FILE_READ_VECTORS) {
		const struct extent *e =
			i < c->extent_count ? &c->extents[i] : NULL;
		uint64_t n;

		if (e && e->offset <= off) {
			int rc;

			n = e->offset + e->len - off;
			if (n > end - off)
				n = end - off;
			rc = read_extent(st, e, off, (size_t)n, r);
			if (rc < 0)
				return rc;
			i++;
		} else {
			n = (e && e->offset < end ? e->offset : end) - off;
			if (n > sizeof(zeros))
				n = sizeof(zeros);
			r->iov[r->count].iov_base = (void *)(uintptr_t)zeros;
			r->iov[r->count++].iov_len = (size_t)n;
		}
		off += n;
	}
	/*
	 * A direct_io reader takes a short answer for the end of the file, so
	 * what did not fit into the vectors is copied behind them.
	 */
	return off < end ? -E2BIG : 0;
}

/* What a reader in sequence will want next is read ahead. */
static void read_ahead(struct store *st, struct inode *in,
		       const struct content *c, size_t len, uint64_t off)
{
	uint64_t from, to;
	size_t i;
	bool own;

	if (!st->ahead)
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
		    image_get(&st->images, e->image, &image) < 0)
			return;
		start = from > e->offset ? from - e->offset : 0;
		end = to - e->offset < e->len ? to - e->offset : e->len;
		ahead_add(st->ahead, image, e->image_offset + start,
			  end - start, own);
		image_put(&st->images, image);
	}
}

static int read_image(struct store *st, const struct image *im, void *buf,
		      size_t len, uint64_t off, size_t *ret_got)
{
	SCOPED(scope_close) int fd = image_open_fd(&st->images, im, O_RDONLY);

	return fd < 0 ? fd : io_read(fd, buf, len, off, ret_got);
}

/* A read of so many pieces that they have to be copied together. */
static int read_copied(struct store *st, const struct content *c, size_t len,
		       uint64_t off, struct file_read *r)
{
	uint8_t *buffer = malloc(len + 1);
	size_t done = 0;
	int rc = 0;

	if (!buffer)
		return -ENOMEM;
	while (done < len && off + done < c->size_bytes) {
		size_t i = extent_find(c, off + done);
		const struct extent *e =
			i < c->extent_count ? &c->extents[i] : NULL;
		uint64_t at = off + done, n = len - done;
		struct image *im;
		size_t got = 0;

		if (n > c->size_bytes - at)
			n = c->size_bytes - at;
		if (!e || e->offset > at) {
			if (e && n > e->offset - at)
				n = e->offset - at;
			memset(buffer + done, 0, (size_t)n);
			done += (size_t)n;
			continue;
		}
		if (n > e->offset + e->len - at)
			n = e->offset + e->len - at;
		rc = image_get(&st->images, e->image, &im);
		if (rc == -ENOENT)
			rc = -EIO;
		if (rc < 0)
			break;
		rc = read_image(st, im, buffer + done, (size_t)n,
				e->image_offset + (at - e->offset), &got);
		image_put(&st->images, im);
		if (rc == 0 && got < n)
			rc = -EIO;
		if (rc < 0)
			break;
		done += (size_t)n;
	}
	r->buffer = buffer;
	r->iov[0] = (struct iovec){ buffer, done };
	r->count = 1;
	return rc;
}

static int read_begin(struct store *st, struct inode *in, size_t len,
		    uint64_t off, struct file_read *r)
{
	struct stage *stage = NULL;
	const struct content *c;
	int rc;

	memset(r, 0, sizeof(*r));
	rc = inode_load_file(st, in);
	if (rc < 0)
		return rc;
	reclaim_enter(st->reclaim, &r->ticket);
	r->entered = true;
	{
		HOLD(&in->lock);
		if (in->deleted) /* its bytes may be somebody else's by now */
			return -ESTALE;
		if (in->file->stage) {
			stage = in->file->stage;
			stage_ref(stage);
		} else if (in->file->content) {
			r->content = in->file->content;
			atomic_fetch_add(&r->content->refs, 1);
		}
	}
	if (stage) {
		rc = read_stage(st, stage, len, off, r);
		stage_put(&st->stages, stage);
		return rc;
	}
	if (!r->content)
		return 0;
	c = &r->content->c;
	if (c->kind == CONTENT_SMALL)
		return read_small(st, in, c, len, off, r);
	read_ahead(st, in, c, len, off);
	rc = read_extents(st, c, len, off, r);
	if (rc == -E2BIG) {
		put_images(st, r);
		rc = read_copied(st, c, len, off, r);
	}
	return rc;
}

int file_read_begin(struct store *st, struct inode *in, size_t len,
		    uint64_t off, struct file_read *r)
{
	int rc;

	while ((rc = read_begin(st, in, len, off, r)) == -EAGAIN)
		file_read_end(st, r);
	return rc;
}

void file_read_end(struct store *st, struct file_read *r)
{
	put_images(st, r);
	free(r->buffer);
	content_ref_put(r->content);
	if (r->entered)
		reclaim_leave(st->reclaim, &r->ticket);
}

/* --- writing --------------------------------------------------------------- */

/* Copy the first `size` bytes of what is committed to a stage. */
static int copy_up_bytes(struct store *st, struct inode *in, struct stage *s,
			 uint64_t size)
{
	SCOPED(scope_close) int fd = stage_open(&st->stages, s, O_RDWR);
	uint64_t off = 0;
	int rc = fd < 0 ? fd : 0;

	while (rc == 0 && off < size) {
		size_t want = size - off < COPY_BYTES ? (size_t)(size - off) :
							(size_t)COPY_BYTES;
		struct file_read r;
		size_t got = 0;

		rc = file_read_begin(st, in, want, off, &r);
		for (int i = 0; rc == 0 && i < r.count; i++) {
			rc = io_write_full(fd, r.iov[i].iov_base,
					r.iov[i].iov_len, off + got);
			got += r.iov[i].iov_len;
		}
		file_read_end(st, &r);
		if (rc == 0 && got == 0)
			rc = -EIO;
		off += got;
	}
	return rc;
}

/*
 * A stage with the first keep_bytes of the committed content, installed. The
 * caller holds the turn, and nothing backs the file in the kernel.
 */
static int copy_up(struct store *st, struct inode *in, uint64_t keep_bytes)
{
	struct timespec times[2] = { { 0, UTIME_OMIT }, { 0, 0 } };
	struct stage *s;
	int rc;

	rc = stage_create_hidden(&st->stages, in->ino, keep_bytes, &s);
	if (rc < 0)
		return rc;
	rc = copy_up_bytes(st, in, s, keep_bytes);
	if (rc < 0) {
		stage_drop(&st->stages, s);
		stage_put(&st->stages, s);
		return rc;
	}
	{
		HOLD(&in->lock);
		int64_t mtime = in->file->content->c.mtime_ns;

		if (in->attr.mtime_gen >= in->file->content->c.generation)
			mtime = in->attr.mtime_ns;
		times[1] = io_timespec(mtime);
	}
	stage_set_times(&st->stages, s, times);
	stage_show(s);
	inode_ref(st, in, 1);
	HOLD(&in->lock);
	in->file->stage = s;
	in->file->dirty = true;
	SLOT_SET(s->slot, opens, in->file->opens);
	SLOT_SET(s->slot, writers, in->file->writers);
	return 0;
}

/*
 * The stage to write to, with a reference; made when there is none. The
 * caller holds the turn, and ends the change with file_change_end() when
 * this returned 0.
 */
static int writable_stage(struct store *st, struct inode *in, uint64_t keep,
			  struct stage **ret_stage)
{
	struct stage *s;
	int rc;

	for (;;) {
		bool frozen = false, empty = false;
		uint64_t size = 0;

		{
			HOLD(&in->lock);
			s = in->file->stage;
			CHECK(!s || !s->sealed);
			if (s && !s->frozen) {
				stage_ref(s);
				in->file->dirty = true;
				in->file->changing++;
				break;
			}
			frozen = s != NULL;
			empty = !in->file->content;
			if (!empty)
				size = in->file->content->c.size_bytes;
		}
		if (frozen) {
			rc = drain_wait_idle(st, in);
			if (rc < 0)
				return rc;
			continue;
		}
		if (size > keep)
			size = keep;
		rc = empty ? file_install_stage(st, in, 0, &s) :
			     copy_up(st, in, size);
		if (rc < 0)
			return rc;
	}
	file_dirtied(st, in, s);
	*ret_stage = s;
	return 0;
}

static int copy_stage(struct store *st, const struct stage *from,
		      const struct stage *to)
{
	SCOPED(scope_free) uint8_t *buf = malloc(COPY_BYTES);
	SCOPED(scope_close) int in = stage_open(&st->stages, from, O_RDONLY);
	SCOPED(scope_close) int out = stage_open(&st->stages, to, O_RDWR);
	uint64_t off = 0;
	size_t got = 1;
	int rc = 0;

	if (!buf || in < 0 || out < 0)
		return !buf ? -ENOMEM : in < 0 ? in : out;
	while (rc == 0 && got > 0) {
		rc = io_read(in, buf, COPY_BYTES, off, &got);
		if (rc == 0)
			rc = io_write_full(out, buf, got, off);
		off += got;
	}
	return rc;
}

/* A stage in memory is full: the file goes on on the disk. Turn is held. */
static int move_to_disk(struct store *st, struct inode *in, struct stage *old)
{
	struct stage *s;
	int rc;

	{
		HOLD(&in->lock);
		if (old->kind != STAGE_MEMORY || in->file->stage != old ||
		    in->file->mode == IO_BACKED)
			return -ENOSPC;
	}
	rc = stage_create_hidden(&st->stages, in->ino, 0, &s);
	if (rc < 0)
		return rc;
	rc = copy_stage(st, old, s);
	if (rc < 0) {
		stage_drop(&st->stages, s);
		stage_put(&st->stages, s);
		return rc;
	}
	stage_show(s);
	{
		HOLD(&in->lock);
		in->file->stage = s;
		SLOT_SET(s->slot, opens, in->file->opens);
		SLOT_SET(s->slot, writers, in->file->writers);
	}
	drain_moved(st, in);
	stage_drop(&st->stages, old);
	stage_put(&st->stages, old); /* the file's; our caller has his own */
	return 0;
}

static int write_stage(struct store *st, const struct stage *s,
		       const void *buf, size_t len, uint64_t off)
{
	struct stage_use use;
	int rc = stage_fd_get(&st->stages, s, true, &use);

	if (rc < 0)
		return rc;
	rc = io_write_full(use.fd, buf, len, off);
	stage_fd_put(&st->stages, &use);
	return rc;
}

static int write_turn(struct store *st, struct inode *in, const void *buf,
		      size_t len, uint64_t off)
{
	struct stage *s;
	int rc;

	HOLD(&in->turn);
	rc = writable_stage(st, in, UINT64_MAX, &s);
	if (rc < 0)
		return rc;
	rc = write_stage(st, s, buf, len, off);
	if (rc == -ENOSPC && stages_make_room(&st->stages, len))
		rc = write_stage(st, s, buf, len, off);
	if (rc == -ENOSPC && move_to_disk(st, in, s) == 0) {
		stage_put(&st->stages, s);
		file_change_end(st, in);
		rc = writable_stage(st, in, UINT64_MAX, &s);
		if (rc < 0)
			return rc;
		rc = write_stage(st, s, buf, len, off);
	}
	stage_put(&st->stages, s);
	file_change_end(st, in);
	return rc;
}

int file_write(struct store *st, struct inode *in, const void *buf, size_t len,
	       uint64_t off)
{
	struct stage *s = NULL;
	int rc = inode_load_file(st, in);

	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		/* With a writer a stage on disk stays: no turn is needed. */
		if (in->file->stage && in->file->dirty &&
		    in->file->stage->kind == STAGE_DISK &&
		    !in->file->stage->frozen && in->file->writers > 0) {
			s = in->file->stage;
			stage_ref(s);
		}
	}
	if (!s)
		return write_turn(st, in, buf, len, off);
	rc = write_stage(st, s, buf, len, off);
	stage_put(&st->stages, s);
	return rc == -ENOSPC ? write_turn(st, in, buf, len, off) : rc;
}

static int cut_stage(struct store *st, const struct stage *s, uint64_t size)
{
	SCOPED(scope_close) int fd = stage_open(&st->stages, s, O_RDWR);

	if (fd < 0)
		return fd;
	return ftruncate(fd, (off_t)size) < 0 ? -errno : 0;
}

int file_truncate_turn(struct store *st, struct inode *in, uint64_t size)
{
	struct stage *s;
	bool renumber = false, take;
	int rc;

	for (;;) {
		bool frozen, sealed, dirty;

		{
			HOLD(&in->lock);
			frozen = in->file->stage && in->file->stage->frozen;
			sealed = in->file->stage && in->file->stage->sealed;
			dirty = in->file->dirty;
			take = file_reads_image_locked(in->file);
		}
		if (sealed) {
			rc = dirty ? drain_sync(st, in) :
				     file_give_up_turn(st, in);
			if (rc == -EAGAIN) { /* its readers keep it */
				renumber = true;
				break;
			}
		} else if (frozen) {
			rc = drain_wait_idle(st, in);
		} else {
			break;
		}
		if (rc < 0)
			return rc;
	}
	rc = take ? file_take_image(st, in) : 0;
	if (renumber || rc == -EMLINK) {
		rc = names_renumber(st, in);
		return rc < 0 ? rc : -ESTALE;
	}
	if (rc == 0)
		rc = writable_stage(st, in, size, &s);
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		if (in->file->content &&
		    size < in->file->content->c.size_bytes)
			in->file->replaces = true;
	}
	drain_disturb(st, in, true);
	stage_reserve(&st->stages, s, size);
	rc = cut_stage(st, s, size);
	drain_changed(st, in); /* one that began after we looked */
	stage_put(&st->stages, s);
	file_change_end(st, in);
	return rc;
}

/*
 * The size that a new file is given before it is written (safetensors,
 * numpy.memmap) is what its siblings will have, too: they need not wait until
 * it is durable to be staged in memory.
 */
static void note_size(struct store *st, struct inode *in, uint64_t size)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	bool fresh;

	{
		HOLD(&in->lock);
		fresh = !in->file->content && in->file->writers > 0;
	}
	if (!b || !fresh || size <= SMALL_BYTES_MAX)
		return;
	series_put(st, b, in, size);
	(void)kv_write(st->kv, b); /* a hint: its drain notes it again */
}

/* A change that no open handle will close is queued as if it were closed. */
static void changed_without_handle(struct store *st, struct inode *in)
{
	bool closed;

	{
		HOLD(&in->lock);
		closed = in->file->writers == 0 && in->attr.nlink > 0;
	}
	if (closed)
		(void)drain_closed(st, in, true);
}

int file_truncate(struct store *st, struct inode *in, uint64_t size)
{
	int rc = inode_load_file(st, in);

	if (rc < 0)
		return rc;
	{
		HOLD(&in->turn);
		file_ask_left_turn(st, in);
		rc = file_truncate_turn(st, in, size);
	}
	if (rc == 0)
		note_size(st, in, size);
	if (rc == 0)
		changed_without_handle(st, in);
	return rc;
}

/* How much of [off, off + len) is not there yet. */
static uint64_t missing_bytes(int fd, uint64_t off, uint64_t len)
{
	uint64_t missing = 0, end = off + len;

	while (off < end) {
		off_t hole = lseek(fd, (off_t)off, SEEK_HOLE);
		uint64_t from = hole < 0 ? off : (uint64_t)hole;
		off_t data = from < end ? lseek(fd, (off_t)from, SEEK_DATA) : 0;
		uint64_t to = data < 0 || (uint64_t)data > end ? end :
								 (uint64_t)data;

		if (from >= end)
			break;
		missing += to - from;
		off = to;
	}
	return missing;
}

/*
 * A stage on the disk takes its room from the store's. The last of that is for
 * deletions, so what would need it is refused before anything is allocated.
 */
static int allocate_room(struct store *st, const struct stage *s, int fd,
			 int mode, uint64_t off, uint64_t len)
{
	uint64_t missing;

	if (s->kind != STAGE_DISK ||
	    (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE)) ||
	    kv_room_for(st->kv, len) == 0)
		return 0;
	missing = missing_bytes(fd, off, len);
	return missing > 0 ? kv_room_for(st->kv, missing) : 0;
}

static int allocate_stage(struct store *st, const struct stage *s, int mode,
			  uint64_t off, uint64_t len)
{
	SCOPED(scope_close) int fd = stage_open(&st->stages, s, O_RDWR);
	int rc;

	if (fd < 0)
		return fd;
	rc = allocate_room(st, s, fd, mode, off, len);
	if (rc < 0)
		return rc;
	return fallocate(fd, mode, (off_t)off, (off_t)len) < 0 ? -errno : 0;
}

int file_fallocate(struct store *st, struct inode *in, int mode, uint64_t off,
		   uint64_t len)
{
	struct stage *s;
	int rc = inode_load_file(st, in);

	if (rc < 0)
		return rc;
	HOLD(&in->turn);
	rc = writable_stage(st, in, UINT64_MAX, &s);
	if (rc < 0)
		return rc;
	drain_disturb(st, in, true);
	rc = allocate_stage(st, s, mode, off, len);
	if (rc == -ENOSPC && stages_make_room(&st->stages, len))
		rc = allocate_stage(st, s, mode, off, len);
	drain_changed(st, in);
	stage_put(&st->stages, s);
	file_change_end(st, in);
	return rc;
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
		*ret_off = c->extents[i].offset > off ? c->extents[i].offset :
							off;
		return 0;
	}
	while (i < c->extent_count && c->extents[i].offset <= off) {
		off = c->extents[i].offset + c->extents[i].len;
		i++;
	}
	*ret_off = off;
	return 0;
}

static int seek_stage(struct store *st, const struct stage *s, uint64_t off,
		      int whence, uint64_t *ret_off)
{
	SCOPED(scope_close) int fd = stage_open(&st->stages, s, O_RDONLY);
	off_t at;

	if (fd < 0)
		return fd;
	at = lseek(fd, (off_t)off, whence);
	if (at < 0)
		return -errno;
	*ret_off = (uint64_t)at;
	return 0;
}

int file_seek(struct store *st, struct inode *in, uint64_t off, int whence,
	      uint64_t *ret_off)
{
	struct content_ref *content = NULL;
	struct stage *stage = NULL;
	int rc = inode_load_file(st, in);

	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		if (in->file->stage) {
			stage = in->file->stage;
			stage_ref(stage);
		} else if (in->file->content) {
			content = in->file->content;
			atomic_fetch_add(&content->refs, 1);
		}
	}
	if (stage) {
		rc = seek_stage(st, stage, off, whence, ret_off);
		stage_put(&st->stages, stage);
		return rc;
	}
	rc = content ? seek_extents(&content->c, off, whence, ret_off) : -ENXIO;
	content_ref_put(content);
	return rc;
}

void file_set_times(struct store *st, struct inode *in, unsigned valid,
		    const struct attr *to)
{
	struct timespec times[2] = { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } };
	struct stage *stage = NULL;

	if (valid & SET_MTIME)
		times[1] = io_timespec(to->mtime_ns);
	{
		HOLD(&in->lock);
		if (in->file && in->file->stage) {
			stage = in->file->stage;
			stage_ref(stage);
		}
	}
	if (!stage)
		return;
	stage_set_times(&st->stages, stage, times);
	stage_put(&st->stages, stage);
}
