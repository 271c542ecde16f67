/*
 * mark.c - see mark.h. The file is one record of MARK_BYTES at offset 0, which
 * lies in one sector: a power cut leaves the old one or the new one.
 */
#include "store/db/mark.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "store/base/bytes.h"
#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/db/layout.h"

#define MARK_MAGIC UINT64_C(0x314b52414d504b43) /* "CKPMARK1" */
#define MARK_CLEAN 1
#define MARK_BYTES 32 /* magic, sequence, flags, checksum of these */

static void encode(const struct mark *mark, uint8_t ret[MARK_BYTES])
{
	const uint64_t words[] = { MARK_MAGIC, mark->sequence,
				   mark->clean ? MARK_CLEAN : 0 };

	for (size_t i = 0; i < 3; i++)
		put_be64(ret + 8 * i, words[i]);
	put_be64(ret + 24, XXH3_64bits(ret, 24));
}

int mark_read(int store_dirfd, struct mark *ret)
{
	uint8_t record[MARK_BYTES + 1]; /* and a NUL */
	ssize_t n = dir_read_text(store_dirfd, LAYOUT_MARK_FILE, (char *)record,
				  sizeof(record));

	if (n == -ENOENT)
		return -ENOENT;
	if (n != MARK_BYTES || get_be64(record) != MARK_MAGIC ||
	    get_be64(record + 24) != XXH3_64bits(record, 24))
		return -EIO;
	ret->sequence = get_be64(record + 8);
	ret->clean = (get_be64(record + 16) & MARK_CLEAN) != 0;
	return 0;
}

int marker_open(struct marker *m, int store_dirfd)
{
	m->sequence = 0;
	m->fd = openat(store_dirfd, LAYOUT_MARK_FILE,
		       O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
		       0600);
	if (m->fd < 0)
		return -errno;
	lock_init(&m->lock, LOCK_MARK);
	return 0;
}

void marker_close(struct marker *m)
{
	if (m->fd < 0)
		return;
	close(m->fd);
	m->fd = -1;
	lock_destroy(&m->lock);
}

int marker_write(struct marker *m, const struct mark *mark)
{
	uint8_t record[MARK_BYTES];
	int rc;

	encode(mark, record);
	HOLD(&m->lock);
	m->sequence = mark->sequence;
	rc = io_write_full(m->fd, record, sizeof(record), 0);
	return rc == 0 && fsync(m->fd) < 0 ? -errno : rc;
}

void marker_synced(struct marker *m, uint64_t sequence)
{
	const struct mark mark = { .sequence = sequence };
	uint8_t record[MARK_BYTES];

	encode(&mark, record);
	HOLD(&m->lock);
	/* Of two syncs that end at once the later one may come first. */
	if (sequence <= m->sequence)
		return;
	m->sequence = sequence;
	(void)io_write_full(m->fd, record, sizeof(record), 0);
}
