/*
 * file_header.h - the header of a safetensors file, checked.
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
 * Errors:  0 or a negative errno. -EBADMSG: not such a file; ckpt_last_error()
 *          names the file, the tensor and what is wrong.
 */
#ifndef GPU_FILE_HEADER_H
#define GPU_FILE_HEADER_H

#include "gpu/private.h"

/* As many as safetensors itself reads. */
#define FILE_HEADER_BYTES_MAX UINT64_C(100000000)
#define FILE_HEADER_PREFIX_BYTES 8

struct file_header_pair { /* borrowed from the header */
	const char *key;
	const char *value;
};

struct file_header {
	struct ckpt_entry *entries; /* owned; by offset, empty ones first */
	struct ckpt_entry **by_name; /* owned; the same, by name */
	size_t count;
	struct file_header_pair *metadata; /* owned; in the file's order */
	size_t metadata_count;
	/* What they point to; owned. */
	uint64_t *shapes;
	char *strings;
};

/*
 * How long the header is that starts with these FILE_HEADER_PREFIX_BYTES, in
 * a file of file_bytes bytes. path is for the message.
 */
int file_header_length(const char *path, const void *prefix,
		       uint64_t file_bytes, size_t *ret_len);

/*
 * Parse the header that lies behind the prefix. json[len] must be a NUL: some
 * versions of cJSON look at it. Release *ret with file_header_release().
 */
int file_header_parse(const char *path, const char *json, size_t len,
		      uint64_t file_bytes, struct file_header *ret);
void file_header_release(struct file_header *h);

/* NULL: there is no tensor of that name. O(log n). */
const struct ckpt_entry *file_header_find(const struct file_header *h,
					  const char *name);

#endif
