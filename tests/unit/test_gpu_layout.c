/* Where tensors lie in a file, and when two saves have the same structure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/layout.h"
#include "store/base/bytes.h"
#include "store/base/safetensors_header.h"

static const uint8_t somewhere[1];

static int add(struct layout *l, const char *name, const char *dtype,
	       unsigned rank, const uint64_t *shape, int device)
{
	const struct ckpt_tensor t = {
		.name = name,
		.dtype = dtype,
		.rank = rank,
		.shape = shape,
		.data = somewhere,
		.device = device,
	};

	return layout_add(l, &t, device);
}

/* Parse it as a reader would: every rule of the format is checked there. */
static void assert_valid(const struct layout *l)
{
	size_t len = (size_t)l->header_bytes - 8;
	char *json = malloc(len + 1);
	struct safetensors_header h;
	struct safetensors_error error;
	uint64_t prefix;

	memcpy(&prefix, l->header, 8);
	assert_int_equal(le64toh(prefix), len);
	assert_int_equal(l->header_bytes % LAYOUT_ALIGN, 0);
	memcpy(json, l->header + 8, len);
	json[len] = 0;
	assert_int_equal(
		safetensors_header_parse(json, len, l->file_bytes, &h, &error),
		0);
	assert_int_equal(h.count, l->count);
	for (size_t i = 0; i < l->count; i++) {
		const struct layout_tensor *t = &l->tensors[i];
		const struct safetensors_tensor *e =
			safetensors_header_find(&h, t->name);

		assert_non_null(e);
		assert_int_equal(e->offset, t->offset);
		assert_int_equal(e->bytes, t->bytes);
		assert_string_equal(e->dtype, t->dtype);
		assert_int_equal(e->rank, t->rank);
		assert_memory_equal(e->shape, t->shape,
				    t->rank * sizeof(*t->shape));
		if (t->element_bytes > 0)
			assert_int_equal(t->offset % t->element_bytes, 0);
	}
	assert_int_equal(h.metadata_count, l->metadata_count);
	safetensors_header_release(&h);
	free(json);
}

static void every_layout_is_a_valid_file(void **state)
{
	static const char *const dtypes[] = { "U8",  "F64",     "BF16", "BOOL",
					      "F32", "F8_E4M3", "I64",  "F4" };
	static const uint64_t shapes[][3] = {
		{ 1, 1, 2 }, { 7, 3, 2 }, { 0, 5, 2 }, { 100, 1, 8 }
	};
	struct layout l = { 0 };

	(void)state;
	for (unsigned i = 0; i < 300; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "layer.%u.\"w\"\\\t%u", i,
			       i % 7);
		assert_int_equal(add(&l, name, dtypes[i % 8], 3, shapes[i % 4],
				     CKPT_DEVICE_HOST),
				 0);
	}
	assert_int_equal(layout_add_metadata(&l, "format", "pt"), 0);
	assert_int_equal(layout_add_metadata(&l, "\x01\"", "\n"), 0);
	assert_int_equal(layout_finish(&l), 0);
	assert_valid(&l);
	layout_release(&l);
}

static void a_file_without_tensors_is_valid(void **state)
{
	struct layout l = { 0 };

	(void)state;
	assert_int_equal(layout_finish(&l), 0);
	assert_valid(&l);
	assert_int_equal(l.file_bytes, l.header_bytes);
	layout_release(&l);
}

/* The structures of the vectors: what must, and must not, be told apart. */
struct item {
	const char *name, *dtype;
	uint64_t shape[2];
	unsigned rank;
	int device;
};

static void sign(const struct item *items, size_t count, const char *step,
		 uint8_t ret[SEGMENT_SIGNATURE_BYTES])
{
	struct layout l = { 0 };

	for (size_t i = 0; i < count; i++)
		assert_int_equal(add(&l, items[i].name, items[i].dtype,
				     items[i].rank, items[i].shape,
				     items[i].device),
				 0);
	if (step)
		assert_int_equal(layout_add_metadata(&l, "step", step), 0);
	assert_int_equal(layout_finish(&l), 0);
	memcpy(ret, l.signature, SEGMENT_SIGNATURE_BYTES);
	layout_release(&l);
}

static void only_the_same_structure_has_the_same_signature(void **state)
{
	static const struct item base[] = {
		{ "w", "F32", { 4, 8 }, 2, -1 },
		{ "v", "F32", { 8 }, 1, -1 },
	};
	static const struct item order[] = {
		{ "v", "F32", { 8 }, 1, -1 },
		{ "w", "F32", { 4, 8 }, 2, -1 },
	};
	static const struct item other[][3] = {
		/* dtype */
		{ { "w", "I32", { 4, 8 }, 2, -1 },
		  { "v", "F32", { 8 }, 1, -1 } },
		/* shape, with as many bytes */
		{ { "w", "F32", { 8, 4 }, 2, -1 },
		  { "v", "F32", { 8 }, 1, -1 } },
		/* name */
		{ { "x", "F32", { 4, 8 }, 2, -1 },
		  { "v", "F32", { 8 }, 1, -1 } },
		/* it moved to a device, or to another one */
		{ { "w", "F32", { 4, 8 }, 2, 0 },
		  { "v", "F32", { 8 }, 1, -1 } },
		{ { "w", "F32", { 4, 8 }, 2, 1 },
		  { "v", "F32", { 8 }, 1, -1 } },
		/* what lies before it grew: another offset */
		{ { "w", "F32", { 4, 8 }, 2, -1 },
		  { "v", "F32", { 9 }, 1, -1 } },
		/* names that only together are the same text */
		{ { "wv", "F32", { 4, 8 }, 2, -1 },
		  { "", "F32", { 8 }, 1, -1 } },
		/* one more, one less: below */
		{ { "w", "F32", { 4, 8 }, 2, -1 },
		  { "v", "F32", { 8 }, 1, -1 },
		  { "u", "F32", { 1 }, 1, -1 } },
	};
	uint8_t first[16], again[16], different[8][16], fewer[16];

	(void)state;
	sign(base, 2, "100", first);
	sign(base, 2, "100", again);
	assert_memory_equal(first, again, 16);
	sign(base, 2, "101000", again); /* metadata may change */
	assert_memory_equal(first, again, 16);
	sign(order, 2, "100", again); /* and the order of the calls */
	assert_memory_equal(first, again, 16);
	sign(base, 1, "100", fewer);
	assert_memory_not_equal(first, fewer, 16);
	for (size_t i = 0; i < 8; i++) {
		sign(other[i], i == 7 ? 3 : 2, "100", different[i]);
		assert_memory_not_equal(first, different[i], 16);
		for (size_t k = 0; k < i; k++)
			assert_memory_not_equal(different[i], different[k], 16);
	}
}

static void metadata_that_outgrows_its_room_moves_the_tensors(void **state)
{
	static const struct item base[] = { { "w", "F32", { 4, 8 }, 2, -1 } };
	char long_text[8192];
	uint8_t first[16], second[16];

	(void)state;
	memset(long_text, 'x', sizeof(long_text));
	long_text[sizeof(long_text) - 1] = 0;
	sign(base, 1, "1", first);
	sign(base, 1, long_text, second);
	assert_memory_not_equal(first, second, 16);
}

static void names_are_checked_when_they_are_added(void **state)
{
	static const uint64_t two[] = { 2 };
	struct layout l = { 0 };
	char name[16];

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		(void)snprintf(name, sizeof(name), "t%u", i);
		assert_int_equal(add(&l, name, "U8", 1, two, -1), 0);
	}
	for (unsigned i = 0; i < 1000; i++) {
		(void)snprintf(name, sizeof(name), "t%u", i);
		assert_int_equal(add(&l, name, "U8", 1, two, -1), -EEXIST);
	}
	assert_int_equal(add(&l, "\xc3", "U8", 1, two, -1), -EILSEQ);
	assert_int_equal(add(&l, "\xed\xa0\x80", "U8", 1, two, -1), -EILSEQ);
	assert_int_equal(add(&l, "__metadata__", "U8", 1, two, -1), -EINVAL);
	assert_int_equal(add(&l, NULL, "U8", 1, two, -1), -EINVAL);
	assert_int_equal(layout_add_metadata(&l, "k", "\xff"), -EILSEQ);
	assert_int_equal(l.count, 1000);
	layout_release(&l);
}

/* --- files of other formats: the caller says where ----------------------- */

static int place(struct layout *l, const char *name, uint64_t bytes,
		 uint64_t offset)
{
	const struct ckpt_tensor t = {
		.name = name,
		.dtype = "U8",
		.rank = 1,
		.shape = &bytes,
		.data = somewhere,
		.device = CKPT_DEVICE_HOST,
	};

	return layout_place(l, &t, t.device, offset);
}

static void what_is_placed_lies_where_the_caller_says(void **state)
{
	struct layout l = { 0 }, moved = { 0 };

	(void)state;
	assert_int_equal(place(&l, "b", 100, 5000), 0);
	assert_int_equal(place(&l, "a", 10, 0), 0);
	assert_int_equal(place(&l, "empty", 0, 10), 0);
	assert_int_equal(layout_finish(&l), 0);
	assert_null(l.header);
	assert_int_equal(l.header_bytes, 0);
	assert_int_equal(l.file_bytes, 5100);
	assert_string_equal(l.tensors[0].name, "a");
	assert_int_equal(l.tensors[2].offset, 5000);
	assert_int_equal(place(&moved, "a", 10, 1), 0);
	assert_int_equal(place(&moved, "empty", 0, 11), 0);
	assert_int_equal(place(&moved, "b", 100, 5000), 0);
	assert_int_equal(layout_finish(&moved), 0);
	assert_memory_not_equal(l.signature, moved.signature,
				SEGMENT_SIGNATURE_BYTES);
	layout_release(&l);
	layout_release(&moved);
}

static void what_cannot_be_placed_is_refused(void **state)
{
	static const uint64_t shape[] = { 2, 3 };
	static const int64_t transposed[] = { 1, 2 };
	const struct ckpt_tensor strided = { .name = "s",
					     .dtype = "F32",
					     .shape = shape,
					     .rank = 2,
					     .stride = transposed,
					     .data = somewhere };
	struct layout l = { 0 }, header = { 0 };

	(void)state;
	assert_int_equal(place(&l, "far", 1, UINT64_MAX), -EOVERFLOW);
	assert_int_equal(place(&l, "a", 10, 0), 0);
	assert_int_equal(place(&l, "a", 10, 10), -EEXIST);
	assert_int_equal(layout_place(&l, &strided, CKPT_DEVICE_HOST, 10),
			 -EINVAL);
	assert_int_equal(add(&l, "t", "F32", 2, shape, CKPT_DEVICE_HOST),
			 -EINVAL);
	assert_int_equal(layout_add_metadata(&l, "step", "1"), -EINVAL);
	assert_int_equal(place(&l, "b", 10, 9), 0);
	assert_int_equal(layout_finish(&l), -EINVAL);
	assert_int_equal(add(&header, "t", "F32", 2, shape, CKPT_DEVICE_HOST),
			 0);
	assert_int_equal(place(&header, "a", 10, 0), -EINVAL);
	layout_release(&l);
	layout_release(&header);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_layout_is_a_valid_file),
		cmocka_unit_test(a_file_without_tensors_is_valid),
		cmocka_unit_test(
			only_the_same_structure_has_the_same_signature),
		cmocka_unit_test(
			metadata_that_outgrows_its_room_moves_the_tensors),
		cmocka_unit_test(names_are_checked_when_they_are_added),
		cmocka_unit_test(what_is_placed_lies_where_the_caller_says),
		cmocka_unit_test(what_cannot_be_placed_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
