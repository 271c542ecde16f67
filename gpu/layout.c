/*
 * layout.c - tensors are kept in a table by name as they are added; at the end
 * they are put in the file's order, and the header and the signature made.
 */
#include "gpu/layout.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "gpu/say.h"
#include "store/base/bytes.h"
#include "store/base/safetensors_header.h"
#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/base/vec.h"

/* Metadata may grow by so much before the tensors move. */
#define METADATA_SPARE_BYTES 256u
#define METADATA_STEP_BYTES 1024u
#define METADATA_NAME "__metadata__"

static void tensor_release(struct layout_tensor *t)
{
	free(t->name);
	free(t->shape);
	free(t->stride);
}

void layout_release(struct layout *l)
{
	for (size_t i = 0; i < l->count; i++)
		tensor_release(&l->tensors[i]);
	for (size_t i = 0; i < l->metadata_count; i++) {
		free(l->metadata[i].key);
		free(l->metadata[i].value);
	}
	free(l->tensors);
	free(l->slots);
	free(l->metadata);
	free(l->header);
	memset(l, 0, sizeof(*l));
}

/* The bytes of a tensor; what is wrong with it goes to the message. */
static int tensor_bytes(const struct ckpt_tensor *t, unsigned bits,
			uint64_t *ret_bytes)
{
	uint64_t elements = 1, total;

	for (unsigned i = 0; i < t->rank; i++) {
		/* JSON readers keep integers up to 2^53. */
		if (t->shape[i] > UINT64_C(1) << 53 ||
		    __builtin_mul_overflow(elements, t->shape[i], &elements))
			return ckpt_say(-EOVERFLOW,
					"tensor '%s': its shape is too large",
					t->name);
	}
	if (__builtin_mul_overflow(elements, bits, &total) ||
	    total / 8 > UINT64_C(1) << 53)
		return ckpt_say(-EOVERFLOW, "tensor '%s': too many bytes",
				t->name);
	if (total % 8 != 0)
		return ckpt_say(-EINVAL,
				"tensor '%s': %s elements that do not fill "
				"whole bytes",
				t->name, t->dtype);
	*ret_bytes = total / 8;
	return 0;
}

/* Strides that say no more than "contiguous" are left out. */
static bool is_contiguous(const struct ckpt_tensor *t)
{
	uint64_t dense = 1;

	if (!t->stride)
		return true;
	for (unsigned i = 0; i < t->rank; i++)
		if (t->shape[i] == 0)
			return true;
	for (unsigned i = t->rank; i-- > 0;) {
		if (t->shape[i] != 1 && t->stride[i] != (int64_t)dense)
			return false;
		dense *= t->shape[i];
	}
	return true;
}

static int check(const struct ckpt_tensor *t, unsigned bits)
{
	if (bits == 0)
		return ckpt_say(-EINVAL,
				"tensor '%s': unknown dtype '%s': give one as "
				"safetensors writes it, such as F32 or BF16",
				t->name, t->dtype);
	if (t->rank > CKPT_RANK_MAX)
		return ckpt_say(-EINVAL,
				"tensor '%s': %u dimensions, not more "
				"than %d are possible",
				t->name, t->rank, CKPT_RANK_MAX);
	if (!is_contiguous(t) && bits % 8 != 0)
		return ckpt_say(-EINVAL,
				"tensor '%s': %s cannot be gathered: make it "
				"contiguous",
				t->name, t->dtype);
	return 0;
}

/* The slot that has the name, or the free one where it belongs. */
static uint32_t *find_slot(const struct layout *l, const char *name)
{
	size_t mask = 2 * l->room - 1;
	size_t at = XXH3_64bits(name, strlen(name)) & mask;

	while (l->slots[at] != 0 &&
	       strcmp(l->tensors[l->slots[at] - 1].name, name) != 0)
		at = (at + 1) & mask;
	return &l->slots[at];
}

static int make_room(struct layout *l)
{
	size_t room = l->room ? 2 * l->room : 64; /* a power of two */
	struct layout_tensor *more;
	uint32_t *slots;

	if (l->count < l->room)
		return 0;
	if (l->count >= LAYOUT_TENSORS_MAX)
		return ckpt_say(-EOVERFLOW, "more than %u tensors",
				LAYOUT_TENSORS_MAX);
	slots = calloc(2 * room, sizeof(*slots));
	more = reallocarray(l->tensors, room, sizeof(*more));
	if (more)
		l->tensors = more;
	if (!more || !slots) {
		free(slots);
		return ckpt_say(-ENOMEM, "no memory for %zu tensors", room);
	}
	free(l->slots);
	l->slots = slots;
	l->room = room;
	for (size_t i = 0; i < l->count; i++)
		*find_slot(l, l->tensors[i].name) = (uint32_t)i + 1;
	return 0;
}

static int add(struct layout *l, const struct ckpt_tensor *t, int device)
{
	struct layout_tensor *to;
	uint64_t bytes = 0;
	unsigned bits;
	int rc;

	if (!t->name || !t->dtype || (t->rank > 0 && !t->shape))
		return ckpt_say(-EINVAL, "a tensor without name, dtype or "
					 "shape");
	if (strlen(t->name) > LAYOUT_NAME_BYTES_MAX)
		return ckpt_say(-ENAMETOOLONG,
				"tensor '%.64s...': its name is longer than %u "
				"bytes",
				t->name, LAYOUT_NAME_BYTES_MAX);
	if (!utf8_is(t->name, strlen(t->name)))
		return ckpt_say(-EILSEQ, "a tensor's name is not UTF-8");
	if (strcmp(t->name, METADATA_NAME) == 0)
		return ckpt_say(-EINVAL,
				"no tensor can be named " METADATA_NAME);
	bits = safetensors_dtype_bits(t->dtype);
	rc = check(t, bits);
	if (rc == 0)
		rc = tensor_bytes(t, bits, &bytes);
	if (rc == 0 && bytes > 0 && !t->data)
		rc = ckpt_say(-EINVAL, "tensor '%s': no data", t->name);
	if (rc == 0 && bytes > (UINT64_C(1) << 53) - l->data_bytes)
		rc = ckpt_say(-EOVERFLOW,
			      "tensor '%s': more bytes than a file "
			      "can have",
			      t->name);
	if (rc == 0)
		rc = make_room(l);
	if (rc == 0 && *find_slot(l, t->name) != 0)
		rc = ckpt_say(-EEXIST, "tensor '%s' was added before", t->name);
	if (rc < 0)
		return rc;
	to = &l->tensors[l->count];
	*to = (struct layout_tensor){
		.name = strdup(t->name),
		.dtype = safetensors_dtype_name(t->dtype),
		.shape = calloc(t->rank + 1, sizeof(uint64_t)),
		.rank = t->rank,
		.element_bytes = bits / 8,
		.bytes = bytes,
		.data = t->data,
		.device = device,
		.stream = t->stream,
	};
	if (!is_contiguous(t))
		to->stride = calloc(t->rank + 1, sizeof(int64_t));
	if (!to->name || !to->shape || (!is_contiguous(t) && !to->stride)) {
		tensor_release(to);
		return ckpt_say(-ENOMEM, "no memory for tensor '%s'", t->name);
	}
	for (unsigned i = 0; i < t->rank; i++) {
		to->shape[i] = t->shape[i];
		if (to->stride)
			to->stride[i] = t->stride[i];
	}
	l->data_bytes += bytes;
	l->on_device = l->on_device || device != CKPT_DEVICE_HOST;
	*find_slot(l, t->name) = (uint32_t)++l->count;
	return 0;
}

int layout_add(struct layout *l, const struct ckpt_tensor *t, int device)
{
	if (l->placed)
		return ckpt_say(-EINVAL,
				"tensor '%s': the others of its file were "
				"placed",
				t->name ? t->name : "");
	return add(l, t, device);
}

int layout_place(struct layout *l, const struct ckpt_tensor *t, int device,
		 uint64_t offset)
{
	int rc;

	if (!l->placed && (l->count > 0 || l->metadata_count > 0))
		return ckpt_say(-EINVAL,
				"tensor '%s': placed in a file that has a "
				"header",
				t->name ? t->name : "");
	if (offset > UINT64_C(1) << 53)
		return ckpt_say(-EOVERFLOW,
				"tensor '%s': beyond what a file "
				"can have",
				t->name ? t->name : "");
	if (t->stride && t->shape && !is_contiguous(t))
		return ckpt_say(-EINVAL,
				"tensor '%s': only what is contiguous can be "
				"placed",
				t->name ? t->name : "");
	rc = add(l, t, device);
	if (rc < 0)
		return rc;
	l->tensors[l->count - 1].offset = offset;
	l->placed = true;
	return 0;
}

int layout_add_metadata(struct layout *l, const char *key, const char *value)
{
	struct layout_pair *to;

	if (!key || !value)
		return ckpt_say(-EINVAL, "metadata without key or value");
	if (l->placed)
		return ckpt_say(-EINVAL,
				"metadata '%s' for a file without a "
				"header",
				key);
	if (!utf8_is(key, strlen(key)) || !utf8_is(value, strlen(value)))
		return ckpt_say(-EILSEQ, "metadata that is not UTF-8");
	for (size_t i = 0; i < l->metadata_count; i++)
		if (strcmp(l->metadata[i].key, key) == 0)
			return ckpt_say(-EEXIST, "metadata '%s' is there twice",
					key);
	if (vec_grow(&l->metadata, l->metadata_count, &l->metadata_capacity,
		     sizeof(*to)) < 0)
		return ckpt_say(-ENOMEM, "no memory for metadata");
	to = &l->metadata[l->metadata_count];
	to->key = strdup(key);
	to->value = strdup(value);
	if (!to->key || !to->value) {
		free(to->key);
		free(to->value);
		return ckpt_say(-ENOMEM, "no memory for metadata");
	}
	l->metadata_count++;
	return 0;
}

/* --- the header ---------------------------------------------------------- */

/* Widest elements first, so that each is aligned; then by name. */
static int by_place(const void *a, const void *b)
{
	const struct layout_tensor *x = a, *y = b;
	unsigned xb = safetensors_dtype_bits(x->dtype),
		 yb = safetensors_dtype_bits(y->dtype);

	if (xb != yb)
		return xb > yb ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* UTF-8 in quotes, and escaped. */
static void put_json(struct bytes *b, const char *s)
{
	char escape[8];

	bytes_put_u8(b, '"');
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\') {
			bytes_put_u8(b, '\\');
			bytes_put_u8(b, c);
		} else if (c < ' ') {
			(void)snprintf(escape, sizeof(escape), "\\u%04x", c);
			bytes_put(b, escape, 6);
		} else {
			bytes_put_u8(b, c);
		}
	}
	bytes_put_u8(b, '"');
}

static void put_text(struct bytes *b, const char *text)
{
	bytes_put(b, text, strlen(text));
}

static void put_number(struct bytes *b, uint64_t v)
{
	char text[24];

	(void)snprintf(text, sizeof(text), "%" PRIu64, v);
	put_text(b, text);
}

static void put_tensor(struct bytes *b, const struct layout_tensor *t,
		       uint64_t from)
{
	put_json(b, t->name);
	put_text(b, ":{\"dtype\":\"");
	put_text(b, t->dtype);
	put_text(b, "\",\"shape\":[");
	for (unsigned i = 0; i < t->rank; i++) {
		if (i > 0)
			put_text(b, ",");
		put_number(b, t->shape[i]);
	}
	put_text(b, "],\"data_offsets\":[");
	put_number(b, from);
	put_text(b, ",");
	put_number(b, from + t->bytes);
	put_text(b, "]}");
}

static void put_metadata(struct bytes *b, const struct layout *l)
{
	put_json(b, METADATA_NAME);
	put_text(b, ":{");
	for (size_t i = 0; i < l->metadata_count; i++) {
		if (i > 0)
			put_text(b, ",");
		put_json(b, l->metadata[i].key);
		put_text(b, ":");
		put_json(b, l->metadata[i].value);
	}
	put_text(b, "}");
}

/* The header's text into l->header, and where the tensors begin. */
static int make_header(struct layout *l)
{
	struct bytes b = { 0 };
	uint64_t at = 0, metadata, total, len;
	uint8_t prefix[8] = { 0 };
	uint8_t *full;

	bytes_put(&b, prefix, sizeof(prefix));
	put_text(&b, "{");
	if (l->metadata_count > 0)
		put_metadata(&b, l);
	metadata = b.len;
	for (size_t i = 0; i < l->count; i++) {
		if (i > 0 || l->metadata_count > 0)
			put_text(&b, ",");
		put_tensor(&b, &l->tensors[i], at);
		at += l->tensors[i].bytes;
	}
	put_text(&b, "}");
	if (b.failed) {
		bytes_release(&b);
		return ckpt_say(-ENOMEM, "no memory for the header");
	}
	total = b.len - metadata;
	metadata += METADATA_SPARE_BYTES;
	metadata += METADATA_STEP_BYTES - metadata % METADATA_STEP_BYTES;
	total = (total + metadata + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN *
		LAYOUT_ALIGN;
	full = realloc(b.data, total);
	if (!full) {
		bytes_release(&b);
		return ckpt_say(-ENOMEM, "no memory for the header");
	}
	memset(full + b.len, ' ', total - b.len);
	len = htole64(total - sizeof(prefix));
	memcpy(full, &len, sizeof(len));
	l->header = (char *)full;
	l->header_bytes = total;
	for (size_t i = 0; i < l->count; i++) {
		l->tensors[i].offset = total;
		total += l->tensors[i].bytes;
	}
	l->file_bytes = total;
	return 0;
}

static int by_offset(const void *a, const void *b)
{
	const struct layout_tensor *x = a, *y = b;

	return x->offset < y->offset   ? -1
	       : x->offset > y->offset ? 1
				       : strcmp(x->name, y->name);
}

/* The end of what was placed, in the file's order, is the file's. */
static int end_of_placed(struct layout *l)
{
	for (size_t i = 0; i < l->count; i++) {
		const struct layout_tensor *t = &l->tensors[i];

		if (t->offset < l->file_bytes)
			return ckpt_say(-EINVAL,
					"tensor '%s': placed over another one",
					t->name);
		if (t->bytes > 0)
			l->file_bytes = t->offset + t->bytes;
	}
	return 0;
}

static int make_signature(struct layout *l)
{
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t canonical;

	if (!state)
		return ckpt_say(-ENOMEM, "no memory for the signature");
	XXH3_128bits_reset(state);
	XXH3_128bits_update(state, &l->file_bytes, sizeof(l->file_bytes));
	XXH3_128bits_update(state, &l->header_bytes, sizeof(l->header_bytes));
	for (size_t i = 0; i < l->count; i++) {
		const struct layout_tensor *t = &l->tensors[i];
		const uint64_t numbers[] = { t->rank, t->offset, t->bytes,
					     (uint64_t)(int64_t)t->device };

		/* With their final NULs, so that no two texts run together. */
		XXH3_128bits_update(state, t->name, strlen(t->name) + 1);
		XXH3_128bits_update(state, t->dtype, strlen(t->dtype) + 1);
		XXH3_128bits_update(state, numbers, sizeof(numbers));
		XXH3_128bits_update(state, t->shape,
				    t->rank * sizeof(*t->shape));
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	_Static_assert(sizeof(canonical) == SEGMENT_SIGNATURE_BYTES, "fits");
	memcpy(l->signature, &canonical, sizeof(canonical));
	return 0;
}

int layout_finish(struct layout *l)
{
	int rc;

	if (l->count > 1)
		qsort(l->tensors, l->count, sizeof(*l->tensors),
		      l->placed ? by_offset : by_place);
	rc = l->placed ? end_of_placed(l) : make_header(l);
	return rc < 0 ? rc : make_signature(l);
}
