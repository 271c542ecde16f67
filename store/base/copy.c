/* copy.c - see copy.h. */
#include "store/base/copy.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/base/scope.h"

#define COPY_BYTES (UINT64_C(1) << 20)

struct copying {
	int in, out;
	void *buf;
};

/* [at, end), or less where the file ends before. */
static int copy_range(void *arg, uint64_t at, uint64_t end)
{
	const struct copying *c = arg;

	while (at < end) {
		size_t want = end - at < COPY_BYTES ? (size_t)(end - at)
						    : (size_t)COPY_BYTES;
		size_t got = 0;
		int rc = io_read(c->in, c->buf, want, at, &got);

		if (rc == 0)
			rc = io_write_full(c->out, c->buf, got, at);
		if (rc < 0 || got < want)
			return rc;
		at += got;
	}
	return 0;
}

int copy_each_data(int in, uint64_t size,
		   int (*fn)(void *arg, uint64_t at, uint64_t end), void *arg)
{
	uint64_t at = 0;
	int rc = 0;

	while (rc == 0 && at < size) {
		off_t data = lseek(in, (off_t)at, SEEK_DATA);
		off_t hole = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);

		if (data < 0 && errno == ENXIO)
			break; /* no more of it */
		if (data < 0) /* no such call here */
			data = (off_t)at;
		if (hole < 0 || (uint64_t)hole > size)
			hole = (off_t)size;
		rc = fn(arg, (uint64_t)data, (uint64_t)hole);
		at = (uint64_t)hole;
	}
	return rc;
}

int copy_file(int in, int out)
{
	SCOPED(scope_free) void *buf = malloc(COPY_BYTES);
	struct copying c = { in, out, buf };
	struct stat sb;
	int rc;

	if (!buf)
		return -ENOMEM;
	if (fstat(in, &sb) < 0)
		return -errno;
	rc = copy_each_data(in, (uint64_t)sb.st_size, copy_range, &c);
	if (rc == 0 && ftruncate(out, sb.st_size) < 0)
		rc = -errno;
	return rc;
}
