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
 * CUT_BY_CONTENT makes two exceptions, whose chunks end where the bytes say
 * (gear.h): a file of no known format, and in a file of one torch archive the
 * storage of a tensor with one dimension and at least CUT_FLAT_BYTES_MIN. That
 * is no layer's but many parameters in a row, as sharded optimizers keep them;
 * where they begin in it differs with the number of ranks. CUT_FIXED, the rule
 * of stores that were written before there was another, makes none.
 *
 * It trusts nothing in the file: every offset and length is checked against
 * the file's size before use, it reads headers only (never payloads, but for
 * what it cuts by content), its memory is bounded by CUT_CHUNKS_MAX and
 * CUT_HEADER_BYTES_MAX, and its time by the file's size.
 */
#ifndef STORE_FORMATS_CUT_H
#define STORE_FORMATS_CUT_H

#include "store/formats/chunks.h"

#define CUT_FLAT_BYTES_MIN (UINT32_C(16) << 20)

enum cut_rule { CUT_FIXED, CUT_BY_CONTENT };

struct cutter; /* opaque; see cut.c */

/* Shorter ways to a file's bytes, for what is cut by content. */
struct cut_bytes {
	/* *ret is where len bytes at off lie in memory, until the next call. */
	int (*peek)(void *self, uint64_t off, size_t len, const uint8_t **ret);
	/* The first offset >= off that is not in a hole; off only grows. */
	uint64_t (*data_at)(void *self, uint64_t off);
	void *self;
};

/*
 * Look at the file's headers. *source and *bytes are copied, what they point to
 * is borrowed; bytes may be NULL, and then all is read.
 * -ENOMEM, -EFBIG (larger than CUT_FILE_BYTES_MAX), or the error of
 * source->read; never an error for odd contents.
 */
int cutter_open(const struct cut_source *source, const struct cut_bytes *bytes,
		enum cut_rule rule, struct cutter **ret);
/* The length of the next chunk. 1, 0: there is none, or an error as above. */
int cutter_next(struct cutter *c, uint32_t *ret_len);
/* How many chunks it can be at most. */
uint64_t cutter_count_max(const struct cutter *c);
/* The first piece that is cut by content. false: there is none. */
bool cutter_content(const struct cutter *c, uint64_t *ret_at,
		    uint64_t *ret_bytes);
/* NULL is a no-op. */
void cutter_close(struct cutter *c);

/*
 * Cut a file. *ret_cut is written on success only; release it with
 * cut_release(). The same bytes are always cut in the same way. Errors are
 * those of cutter_open().
 */
int cut_file(const struct cut_source *source, enum cut_rule rule,
	     struct cut *ret_cut);

#endif
