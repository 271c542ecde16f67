/* copy.c - see copy.h. */
#include "store/base/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/base/scope.h"

#define COPY_BYTES (UINT64_C(1) << 20)

/* [at, end), or less where the file ends before. */
static int copy_range(int in, int out, uint64_t at, uint64_t end, void *buf)
{
	while (at < end) {
		size_t want = end - at < COPY_BYTES ? (size_t)(end - at) :
						      (size_t)COPY_BYTES;
		size_t got = 0;
		int rc = io_read(in, buf, want, at, &got);

		if (rc == 0)
			rc = io_write_full(out, buf, got, at);
		if (rc < 0 || got < want)
			return rc;
		at += got;
	}
	return 0;
}

int copy_file(int in, int out)
{
	SCOPED(scope_free) void *buf = malloc(COPY_BYTES);
	uint64_t at = 0, size;
	struct stat sb;
	int rc = 0;

	if (!buf)
		return -ENOMEM;
	if (fstat(in, &sb) < 0)
		return -errno;
	size = (uint64_t)sb.st_size;
	while (rc == 0 && at < size) {
		off_t data = lseek(in, (off_t)at, SEEK_DATA);
		off_t hole = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);

		if (data < 0 && errno == ENXIO)
			break; /* no more of it */
		if (data < 0) /* no such call here */
			data = (off_t)at;
		if (hole < 0 || (uint64_t)hole > size)
			hole = (off_t)size;
		rc = copy_range(in, out, (uint64_t)data, (uint64_t)hole, buf);
		at = (uint64_t)hole;
	}
	if (rc == 0 && ftruncate(out, (off_t)size) < 0)
		rc = -errno;
	return rc;
}
