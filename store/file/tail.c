/*
 * tail.c - what a mapping has behind the end of its file, in the last page.
 *
 * A program can write there, and it is nobody's; but when the file is made
 * longer it lies in it, and has to be zeros. A file system on a disk sees to
 * that. tmpfs does not, so what we make longer there is cleared by us (a far
 * write in passthrough is the kernel's alone). Of a file that is served by us
 * the page is in the kernel's own cache:
 *
 *   a write or fallocate  the kernel is told to forget the page before, and
 *                         writes of it what lies in the file as it was
 *   a new size            cannot be told so: the kernel holds writes back until
 *                         it has its answer. Then it writes what it has of the
 *                         page, up to the new end, and forgets it, before
 *                         ftruncate(2) returns. So what comes of the tail is
 *                         not taken until somebody reads the page once more,
 *                         as whoever changes it through a mapping must.
 */
#include <errno.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file_private.h"

static uint64_t page_end(uint64_t at)
{
	return (at + FILE_PAGE - 1) / FILE_PAGE * FILE_PAGE;
}

void file_tail_begins_locked(struct file *f, uint64_t from)
{
	f->tail_from = from;
	f->tail_to = page_end(from);
}

void file_was_read_locked(struct file *f, uint64_t off, size_t len)
{
	f->was_read = true;
	if (off < f->tail_to &&
	    off + len > f->tail_from / FILE_PAGE * FILE_PAGE)
		f->tail_from = f->tail_to = 0;
}

int file_clear_tail(const struct stage *s, int fd, uint64_t from)
{
	static const uint8_t zeros[FILE_PAGE];
	uint64_t end = page_end(from);
	struct stat sb;

	if (s->kind != STAGE_MEMORY || end == from)
		return 0;
	if (fstat(fd, &sb) < 0)
		return -errno;
	if ((uint64_t)sb.st_size < end)
		end = (uint64_t)sb.st_size;
	return end > from ? io_write_full(fd, zeros, end - from, from) : 0;
}

bool file_has_tail(struct files *fs, struct inode *in, uint64_t end,
		   uint64_t *ret_at)
{
	struct stat sb;

	{
		HOLD(&in->lock);
		if (!in->file || !in->file->was_read ||
		    in->file->state.mode != IO_DAEMON)
			return false;
	}
	if (inode_stat(fs->inodes, in, &sb) < 0)
		return false;
	*ret_at = (uint64_t)sb.st_size;
	return end > *ret_at && *ret_at % FILE_PAGE != 0;
}
