/*
 * cut.h - where the chunks of a file lie.
 *
 * The same tensor sits at another, unaligned offset in each rank's file, so
 * fixed blocks of the file share nothing. The cutter therefore reads the
 * containers that trainers write and counts chunks from the start of each
 * payload. What it does not understand is one payload: a malformed header is
 * never an error, only worse sharing.
 *
 * The rule. The containers split a file into pieces: payloads, and what lies
 * between them. A piece of at least CHUNK_BYTES_MIN is cut by itself into
 * chunks of CHUNK_BYTES_MAX, the last one shorter; its chunks thus depend on
 * its own length alone. A run of shorter pieces is gathered into chunks of
 * whole pieces, none longer than CHUNK_BYTES_MAX.
 *
 * It trusts nothing in the file: every offset and length is checked against
 * the file's size before use, it reads headers only (never payloads), its
 * memory is bounded by CUT_CHUNKS_MAX and CUT_HEADER_BYTES_MAX, and its time by
 * the file's size.
 */
#ifndef STORE_CUT_H
#define STORE_CUT_H

#include <stddef.h>
#include <stdint.h>

/* The unit of hashing and sharing; the last chunk of a payload is shorter. */
#define CHUNK_BYTES_MAX (UINT32_C(1) << 20)
/* A run of neighbouring pieces that are all shorter than this is one chunk. */
#define CHUNK_BYTES_MIN (UINT32_C(16) << 10)

/* No longer header (safetensors) or directory (zip) is looked at. */
#define CUT_HEADER_BYTES_MAX (UINT32_C(100) << 20)
/* After so many chunks what is left of the file is one payload. */
#define CUT_CHUNKS_MAX (UINT32_C(1) << 22)
/* No larger file is cut; its chunks would not fit in memory. */
#define CUT_FILE_BYTES_MAX (UINT64_C(1) << 44)

struct cut_source {
	/*
	 * Read exactly len bytes at off into buf: 0, or -errno. The cutter
	 * asks only for ranges inside [0, size_bytes).
	 */
	int (*read)(void *self, void *buf, size_t len, uint64_t off);
	void *self;
	uint64_t size_bytes;
};

/* Chunk lengths in file order; together they cover the file exactly. */
struct cut {
	uint32_t *len; /* owned, count entries, each 1..CHUNK_BYTES_MAX */
	size_t count;
	size_t capacity;
	const char *format; /* "torch_zip", "safetensors", "npy" or "plain" */
};

/*
 * Cut a file. *ret_cut is written on success only; release it with
 * cut_release(). The same bytes are always cut in the same way.
 * -ENOMEM, -EFBIG (larger than CUT_FILE_BYTES_MAX), or the error of
 * source->read; never an error for odd contents.
 */
int cut_file(const struct cut_source *source, struct cut *ret_cut);

/* Free the lengths and leave c empty; NULL is a no-op. */
void cut_release(struct cut *c);

#endif
