/*
 * cut_bench.c - how fast one core cuts by content, beside hashing the chunks
 * that come of it, which every new byte costs as well.
 *
 *     cut_bench [MIB [ROUNDS]]      (256 MiB of random bytes, 5 rounds)
 *
 * A line for each round: nanoseconds of both.
 */
#include "store/db/hash.h"
#include "store/formats/gear.h"
#include "tests/bench/bench.h"

static uint8_t secret[HASH_SECRET_BYTES];

int main(int argc, char **argv)
{
	const size_t len = (argc > 1 ? number(argv[1], 65536) : 256) << 20;
	const uint64_t rounds = argc > 2 ? number(argv[2], 1000) : 5;
	uint8_t *p = malloc(len), hash[HASH_BYTES];
	uint32_t *cut = calloc(len / CONTENT_BYTES_MIN + 2, sizeof(*cut));

	if (!p || !cut || len == 0)
		die("no memory for %zu bytes", len);
	fill_random(p, len);
	fill_random(secret, sizeof(secret));
	for (uint64_t round = 0; round < rounds; round++) {
		uint64_t start = now_ns(), mid;
		size_t count = 0, at = 0;

		while (at < len) {
			size_t left = len - at;

			cut[count] = gear_cut(
				p + at,
				(uint32_t)(left < CONTENT_BYTES_MAX
						   ? left
						   : CONTENT_BYTES_MAX));
			at += cut[count++];
		}
		mid = now_ns();
		at = 0;
		for (size_t i = 0; i < count; at += cut[i++])
			chunk_hash(secret, p + at, cut[i], hash);
		printf("%llu %llu\n", (unsigned long long)(mid - start),
		       (unsigned long long)(now_ns() - mid));
	}
	free(cut);
	free(p);
	return 0;
}
