/*
 * write.c - the bytes of a file that are written through the daemon, and what
 * changes them without an open: truncate, fallocate.
 *
 * Committed content is never changed in place: the first write to a file
 * that has no stage copies its content to a new one (copy-up). Each change
 * is made between file_begin() and file_change_end().
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"
#include "store/formats/chunks.h"
#include "store/names/names.h"
#include "store/names/series.h"

#define COPY_BYTES (UINT64_C(1) << 20)

/* It could be staged, but never become durable. */
static bool is_too_large(uint64_t off, uint64_t len)
{
	return off > CUT_FILE_BYTES_MAX || len > CUT_FILE_BYTES_MAX - off;
}

/* Copy the bytes [off, end) of what is committed. */
static int copy_up_range(struct files *fs, struct inode *in, int fd,
			 uint64_t off, uint64_t end)
{
	int rc = 0;

	while (rc == 0 && off < end) {
		size_t want = end - off < COPY_BYTES ? (size_t)(end - off)
						     : (size_t)COPY_BYTES;
		struct file_read r;
		size_t got = 0;

		rc = file_read_begin(fs, in, want, off, &r);
		for (int i = 0; rc == 0 && i < r.count; i++) {
			rc = io_write_full(fd, r.iov[i].iov_base,
					   r.iov[i].iov_len, off + got);
			got += r.iov[i].iov_len;
		}
		if (rc == -EFAULT)
			rc = file_read_failed(fs, in, &r, want, off);
		file_read_end(fs, &r);
		if (rc == 0 && got == 0)
			rc = -EIO;
		off += got;
	}
	return rc;
}

/* Copy the first `size` bytes of what is committed to a stage, but no hole. */
static int copy_up_bytes(struct files *fs, struct inode *in, struct stage *s,
			 uint64_t size)
{
	SCOPED(scope_close) int fd = stage_open(fs->stages, s, O_RDWR);
	uint64_t off = 0, end;
	int rc = fd < 0 ? fd : 0;

	while (rc == 0 && off < size) {
		rc = file_seek(fs, in, off, SEEK_DATA, &off);
		if (rc == -ENXIO) /* no more of it */
			off = size;
		rc = rc == -ENXIO ? 0 : rc;
		if (rc < 0 || off >= size)
			break;
		rc = file_seek(fs, in, off, SEEK_HOLE, &end);
		end = end < size ? end : size;
		if (rc == 0)
			rc = copy_up_range(fs, in, fd, off, end);
		off = end;
	}
	return rc == 0 && ftruncate(fd, (off_t)size) < 0 ? -errno : rc;
}

/* Room in memory for a copy of so many bytes. */
static uint64_t copy_expects(struct inode *in, uint64_t size)
{
	const struct content *c;
	uint64_t holes;

	HOLD(&in->lock);
	c = &in->file->content->c;
	holes = c->size_bytes - c->data_bytes;
	return series_expects(size, holes < size ? holes : size);
}

/*
 * A stage with the first keep_bytes of the committed content, installed. The
 * caller has in->changing, and nothing backs the file in the kernel.
 */
static int copy_up(struct files *fs, struct inode *in, uint64_t keep_bytes)
{
	struct stage *s;
	int rc = stage_create(fs->stages, in->ino, inode_attr(in).uid,
			      copy_expects(in, keep_bytes), &s);

	if (rc < 0)
		return rc;
	rc = copy_up_bytes(fs, in, s, keep_bytes);
	if (rc < 0) {
		stage_drop(fs->stages, s);
		return rc;
	}
	file_set_committed_time(fs, in, s);
	inode_ref(in, 1);
	HOLD(&in->lock);
	file_install_locked(in->file, s, FILE_STAGED);
	return 0;
}

/* The stage, if there is one, with a reference: to be written to. */
static struct stage *stage_to_write(struct inode *in, uint64_t *ret_size,
				    bool *ret_empty)
{
	struct file *f = in->file;

	HOLD(&in->lock);
	*ret_empty = !f->content;
	*ret_size = f->content ? f->content->c.size_bytes : 0;
	if (f->stage)
		file_move(&f->state, FILE_WRITTEN);
	return stage_ref(f->stage);
}

/*
 * The stage to write to, with a reference; made when there is none, with the
 * first `keep` bytes of what is committed. A change has begun: see change.c.
 */
static int writable_stage(struct files *fs, struct inode *in, uint64_t keep,
			  struct stage **ret_stage)
{
	struct stage *s;
	uint64_t size;
	bool empty;
	int rc;

	while ((s = stage_to_write(in, &size, &empty)) == NULL) {
		rc = empty ? file_install_stage(fs, in, 0, &s)
			   : copy_up(fs, in, size < keep ? size : keep);
		if (rc < 0)
			return rc;
	}
	file_dirtied(fs, s);
	*ret_stage = s;
	return 0;
}

/* A stage in memory is full: the file goes on on the disk. Turn is held. */
static int move_to_disk(struct files *fs, struct inode *in, struct stage *old)
{
	struct stage *s;
	int rc;

	{
		HOLD(&in->lock);
		if (old->kind != STAGE_MEMORY || in->file->stage != old ||
		    in->file->state.mode == IO_BACKED)
			return -ENOSPC;
	}
	rc = stage_create(fs->stages, in->ino, inode_attr(in).uid, 0, &s);
	if (rc < 0)
		return rc;
	rc = stage_copy(fs->stages, old, s);
	if (rc < 0) {
		stage_drop(fs->stages, s);
		return rc;
	}
	{
		HOLD(&in->lock);
		in->file->stage = s;
		file_show_stage(in->file);
		/* The next daemon must not find both, once s is written to. */
		slot_free(old->slot);
	}
	drain_moved(fs->drain, in);
	stage_drop(fs->stages, old); /* the file's; our caller has his own */
	return 0;
}

static int write_stage(struct files *fs, const struct stage *s, const void *buf,
		       size_t len, uint64_t off)
{
	struct stage_use use;
	int rc = stage_fd_get(fs->stages, s, true, &use);

	if (rc < 0)
		return rc;
	rc = io_write_full(use.fd, buf, len, off);
	stage_fd_put(fs->stages, &use);
	return rc;
}

/* A change has begun. */
static int write_begun(struct files *fs, struct inode *in, const void *buf,
		       size_t len, uint64_t off)
{
	struct stage *s;
	int rc = writable_stage(fs, in, UINT64_MAX, &s);

	if (rc < 0)
		return rc;
	rc = write_stage(fs, s, buf, len, off);
	if (rc == -ENOSPC && stages_make_room(fs->stages, len))
		rc = write_stage(fs, s, buf, len, off);
	if (rc == -ENOSPC && move_to_disk(fs, in, s) == 0) {
		stage_put(fs->stages, s);
		rc = writable_stage(fs, in, UINT64_MAX, &s);
		if (rc < 0)
			return rc;
		rc = write_stage(fs, s, buf, len, off);
	}
	stage_put(fs->stages, s);
	return rc;
}

static int write_as_change(struct files *fs, struct inode *in, const void *buf,
			   size_t len, uint64_t off)
{
	enum file_step step;
	int rc;

	HOLD(&in->changing);
	rc = file_begin(fs, in, WISH_WRITE, FILE_BY_WRITER, &step);
	if (rc < 0)
		return rc;
	rc = write_begun(fs, in, buf, len, off);
	file_change_end(fs, in);
	return rc;
}

int file_write(struct files *fs, struct inode *in, const void *buf, size_t len,
	       uint64_t off)
{
	struct stage *s = NULL;
	int rc = inode_load_file(fs->inodes, in);

	if (rc == 0 && is_too_large(off, len))
		rc = -EFBIG;
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		/* With a writer a stage on disk stays: it can be used. */
		if (in->file->state.bytes == BYTES_DIRTY &&
		    in->file->stage->kind == STAGE_DISK &&
		    in->file->state.writers > 0)
			s = stage_ref(in->file->stage);
	}
	if (!s)
		return write_as_change(fs, in, buf, len, off);
	rc = write_stage(fs, s, buf, len, off);
	stage_put(fs->stages, s);
	return rc == -ENOSPC ? write_as_change(fs, in, buf, len, off) : rc;
}

int file_write_pages(struct files *fs, struct inode *in, const void *buf,
		     size_t len, uint64_t off)
{
	uint64_t end = off + len, from, to;
	int rc = inode_load_file(fs->inodes, in);

	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		from = in->file->tail_from;
		to = in->file->tail_to;
	}
	if (to <= off || from >= end)
		return file_write(fs, in, buf, len, off);
	if (from > off)
		rc = file_write(fs, in, buf, (size_t)(from - off), off);
	if (rc == 0 && to < end)
		rc = file_write(fs, in, (const uint8_t *)buf + (to - off),
				(size_t)(end - to), to);
	return rc;
}

/* The size it had, unless it is not longer now. */
static int cut_stage(struct files *fs, const struct stage *s, uint64_t size,
		     uint64_t *ret_from)
{
	SCOPED(scope_close) int fd = stage_open(fs->stages, s, O_RDWR);
	struct stat sb;

	if (fd < 0)
		return fd;
	if (fstat(fd, &sb) < 0 || ftruncate(fd, (off_t)size) < 0)
		return -errno;
	*ret_from = (uint64_t)sb.st_size;
	return size > *ret_from ? file_clear_tail(s, fd, *ret_from) : 0;
}

int file_cut_begun(struct files *fs, struct inode *in, uint64_t size)
{
	struct stage *s;
	uint64_t from = 0;
	int rc = writable_stage(fs, in, size, &s);

	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		if (in->file->content && size < in->file->content->c.size_bytes)
			in->file->open_since_ns = OPEN_REPLACES;
	}
	rc = drain_wait_unread(fs->drain, in);
	if (rc == 0) {
		stage_allocate(fs->stages, s, size);
		rc = cut_stage(fs, s, size, &from);
	}
	if (rc == 0 && size > from) {
		HOLD(&in->lock);
		file_tail_begins_locked(in->file, from);
	}
	drain_changed(fs->drain, in); /* one that began after we looked */
	stage_put(fs->stages, s);
	return rc;
}

/*
 * The size that a new file is given before it is written (safetensors,
 * numpy.memmap) is what its siblings will have, too: they need not wait until
 * it is durable to be staged in memory. It may be a hole for the most part, so
 * what is known of files that were drained counts more.
 */
static void note_size(struct files *fs, struct inode *in, uint64_t size)
{
	SCOPED(scope_batch) struct kv_batch *b = NULL;
	uint64_t keys[2];

	{
		HOLD(&in->lock);
		keys[0] = in->file->series[0];
		keys[1] = in->file->series[1];
	}
	if (series_is_known(fs->kv, keys))
		return;
	b = kv_batch_new();
	series_put(fs->kv, b, in, size);
	(void)kv_write(fs->kv, b); /* a hint: its drain notes it again */
}

/* Has nobody it open to write, and has it a name? */
static bool is_nobodys(struct inode *in)
{
	HOLD(&in->lock);
	return in->file->state.writers == 0 && in->attr.nlink > 0;
}

static int truncate_as_change(struct files *fs, struct inode *in, uint64_t size,
			      enum file_way way)
{
	enum file_step step;
	int rc;

	HOLD(&in->changing);
	rc = file_begin(fs, in, WISH_WRITE, way, &step);
	if (rc < 0)
		return rc;
	rc = file_cut_begun(fs, in, size);
	if (rc == 0 && is_nobodys(in)) /* no handle will close it */
		(void)drain_closed(fs->drain, in);
	file_change_end(fs, in);
	return rc;
}

static int truncate_by(struct files *fs, struct inode *in, uint64_t size,
		       enum file_way way)
{
	int rc = inode_load_file(fs->inodes, in);
	bool open, fresh;

	if (rc == 0 && is_too_large(0, size))
		rc = -EFBIG;
	if (rc < 0)
		return rc;
	rc = truncate_as_change(fs, in, size, way);
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		open = in->file->state.writers > 0;
		fresh = !in->file->content;
	}
	if (open && fresh && size > SMALL_BYTES_MAX)
		note_size(fs, in, size);
	return 0;
}

int file_truncate(struct files *fs, struct inode *in, uint64_t size)
{
	return truncate_by(fs, in, size, FILE_BY_WRITER);
}

int file_truncate_path(struct files *fs, struct inode *in, uint64_t size,
		       enum file_way way)
{
	int rc = truncate_by(fs, in, size, way);
	bool open;

	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		open = in->file->state.writers > 0 && in->attr.nlink > 0;
	}
	if (open) /* else it was closed already */
		(void)drain_closed(fs->drain, in);
	return 0;
}

/* How much of [off, off + len) is not there yet. */
static uint64_t missing_bytes(int fd, uint64_t off, uint64_t len)
{
	uint64_t missing = 0, end = off + len;

	while (off < end) {
		off_t hole = lseek(fd, (off_t)off, SEEK_HOLE);
		uint64_t from = hole < 0 ? off : (uint64_t)hole;
		off_t data = from < end ? lseek(fd, (off_t)from, SEEK_DATA) : 0;
		uint64_t to =
			data < 0 || (uint64_t)data > end ? end : (uint64_t)data;

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
static int allocate_room(struct files *fs, const struct stage *s, int fd,
			 int mode, uint64_t off, uint64_t len)
{
	uint64_t missing;

	if (s->kind != STAGE_DISK ||
	    (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE)) ||
	    kv_room_for(fs->kv, len) == 0)
		return 0;
	missing = missing_bytes(fd, off, len);
	return missing > 0 ? kv_room_for(fs->kv, missing) : 0;
}

/* fallocate(2). tmpfs zeroes no range: it is punched, and allocated again. */
static int allocate(int fd, int mode, uint64_t off, uint64_t len)
{
	if (fallocate(fd, mode, (off_t)off, (off_t)len) == 0)
		return 0;
	if (errno != EOPNOTSUPP || !(mode & FALLOC_FL_ZERO_RANGE))
		return -errno;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)off, (off_t)len) < 0 ||
	    fallocate(fd, mode & FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) <
		    0)
		return -errno;
	return 0;
}

static int allocate_stage(struct files *fs, const struct stage *s, int mode,
			  uint64_t off, uint64_t len)
{
	SCOPED(scope_close) int fd = stage_open(fs->stages, s, O_RDWR);
	struct stat sb;
	int rc;

	if (fd < 0)
		return fd;
	rc = allocate_room(fs, s, fd, mode, off, len);
	if (rc == 0 && fstat(fd, &sb) < 0)
		rc = -errno;
	if (rc == 0)
		rc = allocate(fd, mode, off, len);
	if (rc == 0 && !(mode & FALLOC_FL_KEEP_SIZE) &&
	    off + len > (uint64_t)sb.st_size)
		rc = file_clear_tail(s, fd, (uint64_t)sb.st_size);
	return rc;
}

static int allocate_begun(struct files *fs, struct inode *in, int mode,
			  uint64_t off, uint64_t len)
{
	struct stage *s;
	int rc = writable_stage(fs, in, UINT64_MAX, &s);

	if (rc < 0)
		return rc;
	rc = drain_wait_unread(fs->drain, in);
	if (rc == 0)
		rc = allocate_stage(fs, s, mode, off, len);
	if (rc == -ENOSPC && stages_make_room(fs->stages, len))
		rc = allocate_stage(fs, s, mode, off, len);
	drain_changed(fs->drain, in);
	stage_put(fs->stages, s);
	return rc;
}

int file_fallocate(struct files *fs, struct inode *in, int mode, uint64_t off,
		   uint64_t len)
{
	enum file_step step;
	int rc = inode_load_file(fs->inodes, in);

	if (rc == 0 && is_too_large(off, len))
		rc = -EFBIG;
	if (rc < 0)
		return rc;
	HOLD(&in->changing);
	rc = file_begin(fs, in, WISH_WRITE, FILE_BY_WRITER, &step);
	if (rc < 0)
		return rc;
	rc = allocate_begun(fs, in, mode, off, len);
	file_change_end(fs, in);
	return rc;
}

void file_set_times(struct files *fs, struct inode *in, unsigned valid,
		    const struct attr *to)
{
	struct timespec times[2] = { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } };
	struct stage *stage = NULL;

	if (valid & SET_MTIME)
		times[1] = io_timespec(to->mtime_ns);
	{
		HOLD(&in->lock);
		if (in->file)
			stage = stage_ref(in->file->stage);
	}
	if (!stage)
		return;
	stage_set_times(fs->stages, stage, times);
	stage_put(fs->stages, stage);
}
