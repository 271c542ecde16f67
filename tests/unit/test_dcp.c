/* What a .metadata says, of every version there is; and what is refused. */
#include "tests/unit/dcp_fixture.h"

static void assert_tensor(const struct dcp *d, const char *name,
			  const char *dtype, uint64_t rows, uint64_t columns,
			  uint32_t chunks)
{
	const struct dcp_item *item = dcp_fixture_item(d, name);

	assert_non_null(item->dtype);
	assert_string_equal(item->dtype->name, dtype);
	assert_int_equal(item->dimensions, 2);
	assert_int_equal(item->shape[0], rows);
	assert_int_equal(item->shape[1], columns);
	assert_int_equal(item->chunk_count, chunks);
}

/* Chunk n starts at this row, and lies in a file of this rank. */
static void assert_chunk(const struct dcp *d, const char *name, uint32_t n,
			 uint64_t row, uint64_t rows, uint32_t rank)
{
	const struct dcp_item *item = dcp_fixture_item(d, name);
	const struct dcp_chunk *c = &d->chunks[item->chunk_at + n];

	assert_int_equal(c->offsets[0], row);
	assert_int_equal(c->sizes[0], rows);
	assert_int_not_equal(c->entry, DCP_NONE);
	assert_string_equal(d->entries[c->entry].name, name);
	assert_int_equal(d->files[d->entries[c->entry].file].rank, rank);
}

static void one_rank_of_torch_is_read(void **state)
{
	struct dcp d = dcp_fixture("torch-2.13-one-rank");
	const struct dcp_item *lr = dcp_fixture_item(&d, "opt.lr");
	const struct dcp_item *s = dcp_fixture_item(&d, "s");
	const struct dcp_item *b = dcp_fixture_item(&d, "b");

	(void)state;
	assert_int_equal(d.item_count, 6);
	assert_int_equal(d.entry_count, 6);
	assert_int_equal(d.file_count, 1);
	assert_string_equal(d.files[0].name, "__0_0.distcp");
	assert_tensor(&d, "w", "float32", 4, 3, 1);
	assert_string_equal(b->dtype->name, "bfloat16");
	assert_int_equal(b->dtype->bits, 16);
	assert_int_equal(s->dimensions, 0);
	assert_string_equal(s->dtype->name, "int64");
	assert_int_equal(d.chunks[s->chunk_at].elements, 1);
	assert_null(lr->dtype);
	assert_int_equal(d.entries[lr->entry].offset, 0);
	assert_int_equal(d.trailing_bytes, 0);
	dcp_release(&d);
}

static void four_ranks_of_torch_are_read(void **state)
{
	struct dcp d = dcp_fixture("torch-2.13-four-ranks");
	const struct dcp_item *grid = dcp_fixture_item(&d, "grid");

	(void)state;
	assert_int_equal(d.file_count, 4);
	assert_tensor(&d, "rows", "float32", 1022, 15, 4);
	for (uint32_t i = 0; i < 4; i++)
		assert_chunk(&d, "rows", i, 256 * i, i < 3 ? 256 : 254, i);
	assert_chunk(&d, "few rows", 3, 3, 0, 3); /* an empty one */
	assert_int_equal(grid->chunk_count, 4);
	assert_int_equal(d.chunks[grid->chunk_at + 1].offsets[1], 5);
	assert_int_equal(d.chunks[grid->chunk_at + 1].sizes[1], 4);
	assert_string_equal(dcp_fixture_item(&d, "f8")->dtype->name,
			    "float8_e4m3fn");
	assert_null(dcp_fixture_item(&d, "extra.\xc3\xa4")->dtype);
	dcp_release(&d);

	d = dcp_fixture("torch-2.13-two-files-each");
	assert_int_equal(d.file_count, 8);
	for (uint32_t i = 0; i < d.chunk_count; i++)
		assert_int_not_equal(d.chunks[i].entry, DCP_NONE);
	dcp_release(&d);
}

/* The same checkpoint, as picklers of other protocols write it. */
static void every_protocol_says_the_same(void **state)
{
	static const char *const names[] = { "protocol-2", "protocol-3",
					     "protocol-5" };
	struct dcp want = dcp_fixture("torch-2.13-one-rank");

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		struct dcp d = dcp_fixture(names[i]);

		assert_int_equal(d.item_count, want.item_count);
		assert_int_equal(d.entry_count, want.entry_count);
		for (uint32_t n = 0; n < d.item_count; n++) {
			assert_string_equal(d.items[n].name,
					    want.items[n].name);
			assert_ptr_equal(d.items[n].dtype, want.items[n].dtype);
		}
		for (uint32_t n = 0; n < d.entry_count; n++) {
			assert_string_equal(d.entries[n].name,
					    want.entries[n].name);
			assert_int_equal(d.entries[n].offset,
					 want.entries[n].offset);
			assert_int_equal(d.entries[n].length,
					 want.entries[n].length);
		}
		dcp_release(&d);
	}
	dcp_release(&want);
}

static void other_versions_are_read(void **state)
{
	static const char *const old[] = {
		"torch-1.13-look-alike-protocol-2",
		"torch-1.13-look-alike-protocol-4",
	};
	static const char *const new[] = { "beyond-32-bits",
					   "plans-of-all-ranks",
					   "megatron-look-alike" };

	(void)state;
	for (size_t i = 0; i < sizeof(old) / sizeof(*old); i++) {
		struct dcp d = dcp_fixture(old[i]);

		assert_tensor(&d, "w", "float32", 4, 3, 2);
		assert_chunk(&d, "w", 0, 0, 2, 0);
		assert_chunk(&d, "w", 1, 2, 2, 1);
		assert_int_not_equal(dcp_fixture_item(&d, "lr")->entry,
				     DCP_NONE);
		dcp_release(&d);
	}
	for (size_t i = 0; i < sizeof(new) / sizeof(*new); i++) {
		struct dcp d = dcp_fixture(new[i]);

		assert_chunk(&d, "big", 0, 0, UINT64_C(1) << 33, 0);
		assert_chunk(&d, "big", 1, UINT64_C(1) << 33, UINT64_C(1) << 33,
			     1);
		assert_false(d.entries[0].transformed);
		assert_true(d.entries[1].transformed);
		assert_int_equal(d.entries[1].offset, UINT64_C(1) << 40);
		dcp_release(&d);
	}
}

static void what_is_stored_nowhere_says_so(void **state)
{
	struct dcp d = dcp_fixture("no-storage-data");

	(void)state;
	assert_int_equal(d.entry_count, 0);
	for (uint32_t i = 0; i < d.chunk_count; i++)
		assert_int_equal(d.chunks[i].entry, DCP_NONE);
	assert_int_equal(dcp_fixture_item(&d, "opt.lr")->entry, DCP_NONE);
	dcp_release(&d);
}

static void bad_files_are_refused_with_a_reason(void **state)
{
	static const struct {
		const char *name, *what;
	} bad[] = {
		{ "calls-os-system", "offset 14: STACK_GLOBAL: 'os.system'" },
		{ "calls-posix-system-global", "offset 2: GLOBAL: 'posix." },
		{ "chunk-in-two-tensors", "tensor 'b' has 1 dimensions" },
		{ "dict-in-itself", "no Metadata" },
		{ "list-in-itself", "no Metadata" },
		{ "empty", "offset 0: " },
		{ "frame-longer-than-the-file", "offset 2: FRAME" },
		{ "truncated", "offset 2: FRAME" },
		{ "memo-index-too-far", "LONG_BINPUT" },
		{ "metadata-is-its-own-dict", "'self' is neither" },
		{ "negative-length", "where 'w' is stored" },
		{ "offset-wraps", "where 'w' is stored" },
		{ "number-of-80-bits", "64 bits" },
		{ "one-list-of-chunks-many-times", "again and again" },
		{ "path-absolute", "'/etc/passwd' is no name" },
		{ "path-out-of-the-folder", "'../../etc/passwd' is no name" },
		{ "path-with-a-nul", "NUL" },
		{ "shape-has-other-dimensions", "tensor 'w' has 1 dim" },
		{ "shape-of-2-to-the-80", "2^56" },
		{ "protocol-0", "protocol 2 or later" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		bool calls = strncmp(bad[i].name, "calls-", 6) == 0;
		struct dcp_error e;
		struct dcp d;

		/* A class that nobody knows here may be a newer torch's. */
		assert_int_equal(dcp_fixture_try(bad[i].name, &d, &e),
				 calls ? -EOPNOTSUPP : -EBADMSG);
		if (!strstr(e.what, bad[i].what))
			fail_msg("%s: '%s' is not in '%s'", bad[i].name,
				 bad[i].what, e.what);
	}
}

static void a_file_that_cannot_be_read_is_an_error_of_its_own(void **state)
{
	struct dcp_error e;
	struct dcp d;

	(void)state;
	assert_int_equal(dcp_fixture_try("no such file", &d, &e), -ENOENT);
	assert_string_equal(e.what, "");
	assert_int_equal(dcp_fixture_try("", &d, &e), -EINVAL);
}

static void memory_is_limited(void **state)
{
	SCOPED(scope_free) char *data = calloc(1, 65536);
	struct dcp_error e;
	struct dcp d;
	size_t len;
	FILE *f = fopen(DCP_CORPUS "/torch-2.13-four-ranks", "r");

	(void)state;
	assert_non_null(f);
	assert_non_null(data);
	len = fread(data, 1, 65536, f);
	(void)fclose(f);
	assert_int_equal(dcp_read(data, len, 4096, &d, &e), -EFBIG);
	assert_true(strlen(e.what) > 0);
	/* Whatever the limit: an answer, and nothing leaks. */
	for (size_t memory = 0; memory < 65536; memory += 512) {
		if (dcp_read(data, len, memory, &d, &e) == 0)
			dcp_release(&d);
	}
	assert_int_equal(dcp_read(data, len, 65536, &d, &e), 0);
	dcp_release(&d);
}

static void a_file_tells_its_rank(void **state)
{
	static const struct {
		const char *name;
		uint32_t rank;
	} names[] = {
		{ "__0_0.distcp", 0 },
		{ "__17_3.distcp", 17 },
		{ "hint__17_0.distcp", 17 },
		{ "hint__8__17_0.distcp", 17 },
		{ "folder/__5_0.distcp", 5 },
		{ "__999999999_0.distcp", 999999999 },
		{ "__4294967296_0.distcp", DCP_NONE },
		{ "__1_0.distcp.tmp", DCP_NONE },
		{ "_1_0.distcp", DCP_NONE },
		{ "__1.distcp", DCP_NONE },
		{ "___0.distcp", DCP_NONE },
		{ "__0_.distcp", DCP_NONE },
		{ "__0_0distcp", DCP_NONE },
		{ ".distcp", DCP_NONE },
		{ "0.distcp", DCP_NONE },
		{ "", DCP_NONE },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		assert_int_equal(dcp_file_rank(names[i].name), names[i].rank);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_rank_of_torch_is_read),
		cmocka_unit_test(four_ranks_of_torch_are_read),
		cmocka_unit_test(every_protocol_says_the_same),
		cmocka_unit_test(other_versions_are_read),
		cmocka_unit_test(what_is_stored_nowhere_says_so),
		cmocka_unit_test(bad_files_are_refused_with_a_reason),
		cmocka_unit_test(
			a_file_that_cannot_be_read_is_an_error_of_its_own),
		cmocka_unit_test(memory_is_limited),
		cmocka_unit_test(a_file_tells_its_rank),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
