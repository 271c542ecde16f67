/*
 * fuzz_dcp.c - a .metadata of torch.distributed.checkpoint. The input is the
 * file. What is accepted must hang together: every name is clean, every index
 * leads somewhere, and back. The closure check is run over it with sizes that
 * the input itself decides; whatever it finds, it comes to an end.
 */
#include <errno.h>

#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/step/closure.h"
#include "store/formats/dcp.h"
#include "tests/fuzz/fuzz.h"

#define MEMORY_BYTES_MAX (64u << 20)
#define FILES_MAX 64

static void check_name(const char *name)
{
	size_t len = strlen(name);

	CHECK(len <= DCP_NAME_BYTES_MAX);
	CHECK(utf8_is(name, len));
}

static void check_items(const struct dcp *d)
{
	uint32_t chunks = 0;

	for (uint32_t i = 0; i < d->item_count; i++) {
		const struct dcp_item *item = &d->items[i];

		check_name(item->name);
		CHECK(item->chunk_at == chunks);
		CHECK(item->dtype || item->chunk_count == 0);
		CHECK(item->dimensions <= DCP_DIMENSIONS_MAX);
		CHECK(item->entry == DCP_NONE || !item->dtype);
		CHECK(item->entry == DCP_NONE ||
		      d->entries[item->entry].item == i);
		for (; chunks < item->chunk_at + item->chunk_count; chunks++)
			CHECK(d->chunks[chunks].item == i);
	}
	CHECK(chunks == d->chunk_count);
}

static void check_chunks(const struct dcp *d)
{
	for (uint32_t i = 0; i < d->chunk_count; i++) {
		const struct dcp_chunk *c = &d->chunks[i];
		unsigned dimensions = d->items[c->item].dimensions;
		const struct dcp_entry *e;

		if (c->entry == DCP_NONE)
			continue;
		CHECK(c->entry < d->entry_count);
		e = &d->entries[c->entry];
		CHECK(e->item == c->item);
		CHECK(e->dimensions == dimensions);
		CHECK(memcmp(e->offsets, c->offsets,
			     dimensions * sizeof(*e->offsets)) == 0);
	}
}

static void check_entries(const struct dcp *d)
{
	for (uint32_t i = 0; i < d->entry_count; i++) {
		const struct dcp_entry *e = &d->entries[i];

		check_name(e->name);
		CHECK(e->file < d->file_count);
		CHECK(e->length <= INT64_MAX - e->offset);
		CHECK(e->chunk == DCP_NONE || e->item != DCP_NONE);
		CHECK(e->chunk == DCP_NONE || d->chunks[e->chunk].entry == i);
	}
	for (uint32_t i = 0; i < d->file_count; i++) {
		const char *name = d->files[i].name;

		check_name(name);
		CHECK(name[0] != '/' && name[0] != 0);
		CHECK(strcmp(name, "..") != 0);
		CHECK(strncmp(name, "../", 3) != 0);
		CHECK(!strstr(name, "/../"));
	}
}

static void check_closure(const struct dcp *d)
{
	struct closure_file files[FILES_MAX + 1];
	struct closure c;
	size_t count = 0;

	/* All but the second file, some too short; and one too many. */
	for (uint32_t i = 0; i < d->file_count && count < FILES_MAX; i++)
		if (i != 1)
			files[count++] =
				(struct closure_file){ d->files[i].name,
						       (uint64_t)i * 40000 };
	files[count++] = (struct closure_file){ "__9999_0.distcp", 1 };
	CHECK(closure_check(d, files, count, &c) == 0);
	for (size_t i = 0; i < c.count; i++)
		CHECK(c.findings[i].item || c.findings[i].file);
	closure_release(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dcp_error error;
	struct dcp d;
	int rc = dcp_read(data, size, MEMORY_BYTES_MAX, &d, &error);

	CHECK(rc == 0 || rc == -EBADMSG || rc == -EFBIG || rc == -EOPNOTSUPP);
	CHECK((rc == 0) == (error.what[0] == 0));
	if (rc < 0)
		return 0;
	check_items(&d);
	check_chunks(&d);
	check_entries(&d);
	check_closure(&d);
	dcp_release(&d);
	return 0;
}
