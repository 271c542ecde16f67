/*
 * layout.h - where a save's tensors lie in its file, and the header that says
 * so: valid safetensors.
 *
 *     8 bytes: length of the header, little-endian
 *     the header, JSON, filled up with spaces to a multiple of LAYOUT_ALIGN
 *     the tensors, widest elements first, then by name, without gaps
 *
 * The order does not depend on that in which tensors were added, and elements
 * are aligned as their width wants it. Metadata that changes from save to save
 * (a step number) has some room to grow before the tensors move.
 *
 * A save whose tensors the caller has placed himself (layout_place()) has no
 * header: it is a file of any format, and zeros where nothing was placed.
 *
 * What has the same structure has the same signature, and may use the same
 * segment: names, dtypes, shapes, the places in the file, and whether a tensor
 * is in host memory or on which device. nvidia-resiliency-ext's key left the
 * offsets and the device out, and paired the wrong tensors (research: its
 * filesystem_async.py).
 *
 * Errors: 0 or a negative errno, with a sentence for ckpt_last_error().
 */
#ifndef GPU_LAYOUT_H
#define GPU_LAYOUT_H

#include <stdbool.h>

#include "gpu/ckpt_gpu.h"
#include "store/base/segment_wire.h"

#define LAYOUT_ALIGN 4096u
#define LAYOUT_NAME_BYTES_MAX 4096u
#define LAYOUT_TENSORS_MAX (1u << 22)

struct gpu_event;

/* A tensor that was added. Names and shapes are the layout's. */
struct layout_tensor {
	char *name;
	const char *dtype; /* static */
	uint64_t *shape;
	int64_t *stride; /* NULL: contiguous */
	unsigned rank;
	unsigned element_bytes; /* 0: less than a byte */
	uint64_t bytes;
	uint64_t offset; /* in the file; unless placed: after layout_finish() */
	const uint8_t *data; /* the caller's */
	int device; /* CKPT_DEVICE_HOST or an ordinal */
	void *stream; /* the caller's, by whose work the data comes to be */
	struct gpu_event *ready; /* recorded there; the save's */
};

struct layout_pair {
	char *key, *value;
};

struct layout {
	struct layout_tensor *tensors; /* in the file's order when finished */
	size_t count, room;
	uint32_t *slots; /* names by hash: index + 1, 0: free; 2 * room */
	struct layout_pair *metadata;
	size_t metadata_count, metadata_capacity;
	uint64_t data_bytes; /* of all tensors */
	bool placed; /* their offsets are the caller's */
	bool on_device; /* one of them is on a device */
	/* After layout_finish(): */
	char *header; /* with the length before it; header_bytes of it */
	uint64_t header_bytes; /* where the first tensor begins; 0: none */
	uint64_t file_bytes;
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
};

void layout_release(struct layout *l);
/*
 * A copy of all but t->data; device is where that is. -EEXIST: the name is
 * taken. See ckpt_add().
 */
int layout_add(struct layout *l, const struct ckpt_tensor *t, int device);
/*
 * The same at this offset of a file without a header. Contiguous tensors only.
 * -EINVAL also: others were added, or has metadata. See ckpt_place().
 */
int layout_place(struct layout *l, const struct ckpt_tensor *t, int device,
		 uint64_t offset);
/* -EEXIST: it has the key. */
int layout_add_metadata(struct layout *l, const char *key, const char *value);
/* Order the tensors, make the header. -EINVAL: placed over one another. */
int layout_finish(struct layout *l);

#endif
