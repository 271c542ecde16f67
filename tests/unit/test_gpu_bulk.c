/*
 * Copies that go past the caches have every byte that memcpy() would have
 * copied, and no other, wherever they begin and end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu/bulk.h"
#include "gpu/copy.h"

#define GUARD 0xa5
#define AROUND 128u

static uint8_t *random_bytes(size_t bytes)
{
	uint8_t *p = malloc(bytes);
	uint32_t word = 1;

	assert_non_null(p);
	for (size_t i = 0; i < bytes; i++) {
		word = word * 1664525u + 1013904223u;
		p[i] = (uint8_t)(word >> 24);
	}
	return p;
}

static void assert_guards(const uint8_t *p, size_t count)
{
	for (size_t i = 0; i < count; i++)
		assert_int_equal(p[i], GUARD);
}

static void every_beginning_and_end_is_copied(void **state)
{
	static const size_t sizes[] = { 0,     1,         63,    16383,
					16384, 16384 + 1, 65536, 65536 + 127 };
	uint8_t *from = random_bytes((64u << 10) + 2 * AROUND);
	uint8_t *room = NULL;

	(void)state;
	assert_int_equal(
		posix_memalign((void **)&room, 64, (64u << 10) + 4 * AROUND),
		0);
	for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++)
		for (size_t shift = 0; shift < 64; shift++) {
			size_t bytes = sizes[k];
			const uint8_t *source = from + shift * 5 % 64;
			uint8_t *to = room + AROUND + shift;

			memset(room, GUARD, (64u << 10) + 4 * AROUND);
			bulk_copy(to, source, bytes);
			assert_memory_equal(to, source, bytes);
			assert_guards(room, AROUND + shift);
			assert_guards(to + bytes, AROUND);
		}
	free(room);
	free(from);
}

/* More than fits in a cache, from several tensors to odd places. */
static void large_tensors_are_copied_by_several_threads(void **state)
{
	static const uint64_t sizes[] = { (UINT64_C(20) << 20) + 13, 1, 4099,
					  (UINT64_C(17) << 20) + 255 };
	enum { COUNT = sizeof(sizes) / sizeof(*sizes) };
	struct ckpt c = { .copy_threads = 2 };
	struct layout_tensor tensors[COUNT] = { 0 };
	struct copy_job jobs[COUNT];
	uint64_t total = 0;
	uint8_t *from, *to;

	(void)state;
	for (size_t i = 0; i < COUNT; i++)
		total += sizes[i];
	from = random_bytes(total);
	to = malloc(total + AROUND + 1);
	assert_non_null(to);
	memset(to, GUARD, total + AROUND + 1);
	for (uint64_t i = 0, at = 0; i < COUNT; at += sizes[i++]) {
		tensors[i].device = CKPT_DEVICE_HOST;
		tensors[i].data = from + at;
		tensors[i].bytes = sizes[i];
		jobs[i] = (struct copy_job){ .tensor = &tensors[i],
					     .bytes = sizes[i],
					     .to = to + 1 + at };
	}
	assert_int_equal(copy_run(&c, jobs, COUNT), 0);
	assert_memory_equal(to + 1, from, total);
	assert_guards(to, 1);
	assert_guards(to + 1 + total, AROUND);
	free(to);
	free(from);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_beginning_and_end_is_copied),
		cmocka_unit_test(large_tensors_are_copied_by_several_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
