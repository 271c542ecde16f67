/*
 * tensors.c - tell the format by a file's first bytes and its name, and have
 * it read. See tensors.h.
 */
#include "store/formats/tensors.h"

#include "store/base/json_text.h"
#include "store/base/safetensors_header.h"
#include "store/base/scope.h"
#include "store/base/text.h"
#include "store/formats/chunks.h"
#include "store/formats/dtype.h"
#include "store/formats/magic.h"
#include "store/formats/npy_array.h"
#include "store/formats/torch_archive.h"

/* A header's text, its strings, and the tensors as they are parsed. */
#define TEXT_COPIES 4

/* --- safetensors ---------------------------------------------------------- */

static int read_safetensors(struct tensors *l, const struct cut_source *source,
			    const char *file)
{
	uint64_t size = source->size_bytes;
	uint8_t prefix[SAFETENSORS_PREFIX_BYTES] = { 0 };
	SCOPED(scope_free) char *json = NULL;
	SCOPED(safetensors_header_release)
	struct safetensors_header h = { .entries = NULL };
	struct safetensors_error error = { .newer = false };
	size_t len = 0;
	int rc = 0;

	if (size >= sizeof(prefix))
		rc = source->read(source->self, prefix, sizeof(prefix), 0);
	if (rc == 0)
		rc = safetensors_header_length(prefix, size, &len, &error);
	/* Its text, and flat arrays of what is in it. */
	if (rc == 0)
		rc = tensors_afford(l, (uint64_t)len * TEXT_COPIES,
				    "its header");
	if (rc == 0) {
		json = malloc(len + 1);
		rc = json ? source->read(source->self, json, len,
					 sizeof(prefix))
			  : -ENOMEM;
	}
	if (rc == 0) {
		json[len] = 0;
		rc = tensors_afford(l,
				    (uint64_t)len * TEXT_COPIES +
					    json_text_memory(json, len),
				    "its header");
	}
	if (rc == 0) {
		rc = safetensors_header_parse(json, len, size, &h, &error);
	}
	if (rc == -EBADMSG)
		rc = tensors_refuse(l, "%.500s", error.what);
	if (rc == -EBADMSG && error.newer)
		rc = -EOPNOTSUPP;
	for (size_t i = 0; rc == 0 && i < h.count; i++) {
		const struct safetensors_tensor *e = &h.entries[i];
		struct tensor t = { .name = e->name,
				    .file = file,
				    .dtype = dtype_of_safetensors(e->dtype),
				    .rank = e->rank,
				    .shape = e->shape,
				    .offset = e->offset,
				    .bytes = e->bytes };

		rc = tensors_add(l, &t);
	}
	return rc;
}

int tensors_read(struct tensors *l, const struct cut_source *source,
		 const char *name, const char *file)
{
	uint8_t magic[MAGIC_BYTES] = { 0 };
	size_t got = source->size_bytes < sizeof(magic)
			     ? (size_t)source->size_bytes
			     : sizeof(magic);
	const struct magic *known;
	int rc = 0;

	if (got > 0)
		rc = source->read(source->self, magic, got, 0);
	if (rc < 0)
		return rc;
	l->format = "plain";
	l->note = NULL;
	if (got >= 4 && memcmp(magic, "PK\3\4", 4) == 0) {
		l->format = "torch_zip";
		return torch_archives_read(l, source,
					   text_ends_in(name, ".distcp"), file);
	}
	if (text_ends_in(name, ".safetensors") ||
	    (got >= 9 && magic[6] == 0 && magic[7] == 0 && magic[8] == '{')) {
		l->format = "safetensors";
		return read_safetensors(l, source, file);
	}
	if (got >= 6 && memcmp(magic, "\x93NUMPY", 6) == 0) {
		l->format = "npy";
		return npy_array_add(l, source, 0, source->size_bytes,
				     TENSOR_NAMELESS, file);
	}
	known = magic_of(magic, got);
	if (known) {
		l->format = known->format;
		l->note = known->note;
	}
	return 0;
}
