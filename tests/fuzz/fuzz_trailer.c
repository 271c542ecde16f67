/*
 * fuzz_trailer.c - the trailer of a pending file. The input is its beginning,
 * followed by zeros. It is read as it is, and once more with magic and checksum
 * put right, which a damaged one never has and a forged one may. What is
 * accepted is fine, and is written again to the same bytes.
 */
#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>

#include "store/base/scope.h"
#include "store/shared/trailer.h"
#include "tests/fuzz/fuzz.h"

static void look(const uint8_t bytes[TRAILER_BYTES])
{
	uint8_t again[TRAILER_BYTES];
	struct trailer t;
	int rc = trailer_decode(bytes, &t);

	CHECK(rc == 0 || rc == -ENODATA || rc == -EUCLEAN);
	if (rc < 0)
		return;
	CHECK(trailer_is_fine(&t));
	CHECK(shared_node_is_name(t.node));
	trailer_encode(&t, again);
	CHECK(memcmp(bytes, again, TRAILER_BYTES) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t bytes[TRAILER_BYTES] = { 0 };
	uint64_t check;

	if (size > sizeof(bytes))
		size = sizeof(bytes);
	if (size > 0)
		memcpy(bytes, data, size);
	look(bytes);
	memcpy(bytes, "ckptrail", 8);
	check = htole64(XXH3_64bits(bytes, TRAILER_BYTES - 8));
	memcpy(bytes + TRAILER_BYTES - 8, &check, 8);
	look(bytes);
	return 0;
}
