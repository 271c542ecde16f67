/*
 * fuzz_header.c - the header of a safetensors file. The input is the file.
 * What is accepted must be true: every tensor has the bytes of its shape, they
 * cover the data in order, and each is found by its name, which is alone.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/safetensors_header.h"
#include "store/base/scope.h"
#include "tests/fuzz/fuzz.h"

static void check_entry(const struct safetensors_header *h,
			const struct safetensors_tensor *e)
{
	unsigned bits = safetensors_dtype_bits(e->dtype);
	unsigned __int128 elements = 1;

	CHECK(bits > 0);
	CHECK(e->rank <= SAFETENSORS_RANK_MAX);
	for (unsigned i = 0; i < e->rank; i++) {
		elements *= e->shape[i];
		CHECK(elements <= UINT64_MAX);
	}
	CHECK(elements * bits == (unsigned __int128)e->bytes * 8);
	CHECK(safetensors_header_find(h, e->name) == e);
}

static void check_header(const struct safetensors_header *h, size_t start,
			 size_t end)
{
	uint64_t at = start;

	for (size_t i = 0; i < h->count; i++) {
		CHECK(h->entries[i].offset == at);
		at += h->entries[i].bytes;
		check_entry(h, &h->entries[i]);
	}
	CHECK(at == end);
	for (size_t i = 0; i < h->metadata_count; i++) {
		CHECK(strlen(h->metadata[i].key) < start);
		CHECK(strlen(h->metadata[i].value) < start);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	SCOPED(scope_free) char *json = NULL;
	struct safetensors_error error;
	struct safetensors_header h;
	size_t len = 0;
	int rc = safetensors_header_length(data, size, &len, &error);

	CHECK(rc == 0 || rc == -EBADMSG);
	if (rc < 0)
		return 0;
	json = malloc(len + 1);
	CHECK(json);
	memcpy(json, data + SAFETENSORS_PREFIX_BYTES, len);
	json[len] = '\0';
	rc = safetensors_header_parse(json, len, size, &h, &error);
	CHECK(rc == 0 || rc == -EBADMSG || rc == -ENOMEM);
	if (rc < 0)
		return 0;
	check_header(&h, SAFETENSORS_PREFIX_BYTES + len, size);
	safetensors_header_release(&h);
	return 0;
}
