/*
 * safetensors_header.h - the header of a safetensors file, checked.
 *
 *     8 bytes: length of the header, little-endian
 *     {"__metadata__": {"k": "v"},
 *      "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
 *     the tensors, from the end of the header on
 *
 * What is accepted here can be read without another check: every tensor lies
 * in the file, has as many bytes as its shape and dtype say, and a name that
 * no other has; and the tensors cover the data without a gap or an overlap.
 *
 * Errors:  0 or a negative errno. -EBADMSG: not such a file; *ret_error names
 *          the tensor and what is wrong, but not the file.
 */
#ifndef STORE_BASE_SAFETENSORS_HEADER_H
#define STORE_BASE_SAFETENSORS_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As many as safetensors itself reads. */
#define SAFETENSORS_HEADER_BYTES_MAX UINT64_C(100000000)
#define SAFETENSORS_PREFIX_BYTES 8

#define SAFETENSORS_RANK_MAX 64

struct safetensors_error {
	char what[768];
	/* Set with a type that is not known, and may be in order. */
	bool newer;
};

struct safetensors_tensor {
	const char *name;
	const char *dtype;
	const uint64_t *shape;
	unsigned rank;
	uint64_t offset; /* in the file */
	uint64_t bytes;
};

struct safetensors_pair { /* borrowed from the header */
	const char *key;
	const char *value;
};

struct safetensors_header {
	struct safetensors_tensor
		*entries; /* owned; by offset, empty ones first */
	struct safetensors_tensor **by_name; /* owned; the same, by name */
	size_t count;
	struct safetensors_pair *metadata; /* owned; in the file's order */
	size_t metadata_count;
	/* What they point to; owned. */
	uint64_t *shapes;
	char *strings;
};

/*
 * How long the header is that starts with these SAFETENSORS_PREFIX_BYTES, in
 * a file of file_bytes bytes.
 */
int safetensors_header_length(const void *prefix, uint64_t file_bytes,
			      size_t *ret_len,
			      struct safetensors_error *ret_error);

/*
 * Parse the header that lies behind the prefix. json[len] must be a NUL: some
 * versions of cJSON look at it. Release *ret with safetensors_header_release().
 */
int safetensors_header_parse(const char *json, size_t len, uint64_t file_bytes,
			     struct safetensors_header *ret,
			     struct safetensors_error *ret_error);
void safetensors_header_release(struct safetensors_header *h);

/* NULL: there is no tensor of that name. O(log n). */
const struct safetensors_tensor *
safetensors_header_find(const struct safetensors_header *h, const char *name);

/*
 * Bits of one element of a dtype ("BF16": 16), 0: there is no such dtype.
 * Elements of less than 8 bits are packed.
 */
unsigned safetensors_dtype_bits(const char *dtype);
/* The same text, static. NULL: there is no such dtype. */
const char *safetensors_dtype_name(const char *dtype);

#endif
