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
#ifndef STORE_FORMATS_CUT_H
#define STORE_FORMATS_CUT_H

#include "store/formats/chunks.h"

/*
 * Cut a file. *ret_cut is written on success only; release it with
 * cut_release(). The same bytes are always cut in the same way.
 * -ENOMEM, -EFBIG (larger than CUT_FILE_BYTES_MAX), or the error of
 * source->read; never an error for odd contents.
 */
int cut_file(const struct cut_source *source, struct cut *ret_cut);

#endif
