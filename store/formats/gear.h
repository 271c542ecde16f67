/*
 * gear.h - where bytes that no format explains are cut: at places that the
 * bytes themselves choose, so that what is moved, or has other neighbours, is
 * cut as before a few chunks on (FastCDC's gear hash and normalised sizes).
 *
 * The rule, which a store's sharing depends on: it may not change. For a byte b
 *
 *	x = (b + 1) * 0x9e3b;  x ^= x >> 7;  g(b) = x * 0xc2b3	(modulo 2^16)
 *
 * and at a place that follows the bytes b[0] (the last one), b[1], b[2]...
 *
 *	h = sum over i < 16 of g(b[i]) * 2^i			(modulo 2^16)
 *
 * the place is a candidate if h < 16. It ends the chunk if XXH3-64 of the last
 * 32 bytes has enough zero bits at its low end: so many that one place in
 * 8 * CONTENT_BYTES_NORMAL does in a chunk shorter than CONTENT_BYTES_NORMAL,
 * and one in CONTENT_BYTES_NORMAL / 2 in a longer one. No chunk but the last
 * ends before CONTENT_BYTES_MIN, and none goes beyond CONTENT_BYTES_MAX. On
 * random bytes a chunk has 184 KiB in the mean.
 *
 * Zeros are no data: where CONTENT_BYTES_MIN of them or more begin, a chunk
 * ends whatever its length, and where a chunk begins with 4096 of them or more,
 * they are one by themselves, so that a sparse file stays as sparse as it is.
 *
 * Why not one 64-bit gear hash with a table, as in the paper: that goes byte by
 * byte (1.3 GB/s where this has 3.1). Sums of 16 bits are made for many places
 * at once by any compiler that knows vectors. Equal bytes make no candidate,
 * whatever the byte: they are cut at CONTENT_BYTES_MAX.
 */
#ifndef STORE_FORMATS_GEAR_H
#define STORE_FORMATS_GEAR_H

#include <stddef.h>
#include <stdint.h>

#include "store/formats/chunks.h"

/*
 * Measured on steps of a model with tensors of 2 to 47 MiB of which half had
 * changed, as orbax stores them: chunks of 184 KiB find 94 % of what a cut at
 * tensors does; of 288 KiB (256 KiB, and rarer early ends) 90 %; of 144 KiB
 * 95 %, with a quarter more records.
 */
#ifndef CONTENT_BYTES_NORMAL /* a simulator's files are small */
#define CONTENT_BYTES_NORMAL (UINT32_C(128) << 10)
#endif
#define CONTENT_BYTES_MIN (CONTENT_BYTES_NORMAL / 2)
/*
 * Whole blocks, and shorter than any chunk that is cut by its place: whether a
 * store has a file by one rule or by the other can be told from a length.
 */
#define CONTENT_BYTES_MAX (CHUNK_BYTES_MAX - 4096)

/*
 * The length of the first chunk of what is at p. There are len bytes, at most
 * CONTENT_BYTES_MAX; fewer only if the piece ends with them.
 */
uint32_t gear_cut(const uint8_t *p, uint32_t len);

/* What one call of a scan looks at. */
#define GEAR_BLOCK_BYTES 2048
#define GEAR_WINDOW_BYTES 16
/*
 * The candidates of len (<= GEAR_BLOCK_BYTES) bytes: the indices of the bytes
 * that they follow, in order. The GEAR_WINDOW_BYTES before p can be read.
 */
typedef size_t (*gear_scan_fn)(const uint8_t *p, size_t len,
			       uint16_t at[GEAR_BLOCK_BYTES]);
size_t gear_scan_generic(const uint8_t *p, size_t len, uint16_t *at);
#if defined(__x86_64__)
size_t gear_scan_avx2(const uint8_t *p, size_t len, uint16_t *at);
#endif

#endif
