/*
 * npy.c - "\x93NUMPY", a version, the length of a header, that header (the
 * shape and type as Python source, padded so that the array is aligned), then
 * the array itself to the end. Only the length is of interest here.
 */
#include "store/formats/npy.h"

#include "store/base/bytes.h"

#define NPY_PREFIX_BYTES 12

int npy_walk_member(struct walk *w, uint64_t at, uint64_t len_bytes)
{
	uint8_t prefix[NPY_PREFIX_BYTES];
	struct bytes_reader r;
	uint64_t array;
	uint8_t major;
	int rc;

	if (len_bytes < sizeof(prefix))
		return 0;
	rc = walk_read(w, prefix, sizeof(prefix), at);
	if (rc < 0)
		return rc;
	r = bytes_reader_of(prefix, sizeof(prefix));
	if (memcmp(bytes_take(&r, 6), "\x93NUMPY", 6) != 0)
		return 0;
	major = bytes_take_u8(&r);
	(void)bytes_take_u8(&r); /* minor */
	if (major == 1)
		array = 10 + (uint64_t)bytes_take_u16(&r);
	else if (major == 2 || major == 3)
		array = 12 + (uint64_t)bytes_take_u32(&r);
	else
		return 0;
	if (array > len_bytes || array > CUT_HEADER_BYTES_MAX)
		return 0;
	rc = walk_mark(w, at + array);
	return rc < 0 ? rc : 1;
}

int npy_walk(struct walk *w)
{
	return npy_walk_member(w, 0, walk_size(w));
}
