/*
 * dcp_reading.c - values of the pickle, with their limits, and names and places
 * that were seen. See dcp_reading.h.
 */
#include "store/formats/dcp_reading.h"

#include <string.h>

#include "store/base/utf8.h"
#include "store/base/vec.h"

/* Attributes of one object; no class here has more than eight. */
#define ATTRIBUTES_MAX ((size_t)16)
/* No tensor has more elements. */
#define ELEMENTS_MAX (UINT64_C(1) << 56)

static int too_large(struct reading *r)
{
	(void)reading_refuse(r, "takes more memory than the limit allows");
	return -EFBIG;
}

/* A copy of these bytes, and zeros behind them. */
static int reading_keep(struct reading *r, const void *bytes, size_t len,
			size_t zeros, void *ret_slot)
{
	char *p;

	if (len + zeros > r->memory_left)
		return too_large(r);
	r->memory_left -= len + zeros;
	p = dcp_alloc(&r->d.blocks, len + zeros);
	if (!p)
		return -ENOMEM;
	memcpy(p, bytes, len);
	memset(p + len, 0, zeros);
	memcpy(ret_slot, &p, sizeof(p));
	return 0;
}

int reading_grow(struct reading *r, void *slot, size_t count, size_t *capacity,
		 size_t item_bytes)
{
	int rc = vec_reserve_within(slot, count, 1, capacity, item_bytes,
				    &r->memory_left);

	return rc == -EFBIG ? too_large(r) : rc;
}

int reading_spend(struct reading *r)
{
	if (r->left == 0)
		return reading_refuse(
			r, "has more in it than its length allows: the "
			   "same things again and again");
	r->left--;
	return 0;
}

bool reading_is_class(const struct reading *r, pickle_value v, uint32_t id)
{
	const struct pickle_class *c = pickle_class(&r->p, v);

	return c && c->id == id && pickle_kind(v) != PICKLE_IS_CLASS;
}

bool reading_attributes(const struct reading *r, pickle_value object,
			const char *const *names, size_t count,
			pickle_value *ret)
{
	pickle_value state = pickle_state(&r->p, object), key, v;
	struct pickle_walk w = pickle_walk(&r->p, state);

	for (size_t i = 0; i < count; i++)
		ret[i] = 0; /* None */
	if (pickle_kind(state) != PICKLE_DICT || w.count > 2 * ATTRIBUTES_MAX)
		return false;
	while (pickle_next(&w, &key) && pickle_next(&w, &v))
		for (size_t i = 0; i < count; i++)
			if (pickle_is_text(&r->p, key, names[i]))
				ret[i] = v;
	return true;
}

bool reading_numbers(const struct reading *r, pickle_value v,
		     uint64_t dims[DCP_DIMENSIONS_MAX], unsigned *ret_count)
{
	return pickle_naturals(&r->p, v, CLASS_SIZE, dims, DCP_DIMENSIONS_MAX,
			       ret_count);
}

int reading_keep_dims(struct reading *r, const uint64_t *dims, unsigned count,
		      const uint64_t **ret)
{
	return reading_keep(r, dims, count * sizeof(*dims), sizeof(*dims), ret);
}

bool dims_volume(const uint64_t *dims, unsigned count, uint64_t *ret)
{
	uint64_t v = 1;

	*ret = 0;
	for (unsigned i = 0; i < count; i++)
		if (dims[i] == 0)
			return true;
	for (unsigned i = 0; i < count; i++)
		if (__builtin_mul_overflow(v, dims[i], &v) || v > ELEMENTS_MAX)
			return false;
	*ret = v;
	return true;
}

const char *name_shown(struct name n, char ret[NAME_SHOWN + 4])
{
	size_t len = n.len < NAME_SHOWN ? n.len : NAME_SHOWN;

	while (len < n.len && len > 0 && (n.text[len] & 0xc0) == 0x80)
		len--; /* not in the middle of a character */
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)n.text[i];

		ret[i] = c < ' ' || c == 0x7f ? '?' : (char)c;
	}
	(void)strcpy(ret + len, len < n.len ? "..." : "");
	return ret;
}

int name_take(struct reading *r, pickle_value v, const char *whose,
	      struct name *ret)
{
	ret->text = pickle_text(&r->p, v, &ret->len);
	if (!ret->text || pickle_kind(v) != PICKLE_TEXT)
		return reading_refuse(r, "%s is no text", whose);
	if (ret->len > DCP_NAME_BYTES_MAX)
		return reading_refuse(r,
				      "%s has %zu bytes; at most %u are read",
				      whose, ret->len, DCP_NAME_BYTES_MAX);
	if (!utf8_is(ret->text, ret->len))
		return reading_refuse(r, "%s is not UTF-8", whose);
	if (memchr(ret->text, 0, ret->len))
		return reading_refuse(r, "%s has a NUL in it", whose);
	return 0;
}

int name_keep(struct reading *r, struct name n, const char **ret)
{
	return reading_keep(r, n.text, n.len, 1, ret);
}

uint32_t reading_find_chunk(const struct reading *r, uint32_t item,
			    const uint64_t *offsets, unsigned dimensions)
{
	return dcp_table_find(&r->places, offsets,
			      dimensions * sizeof(*offsets), item);
}

int reading_add_chunk(struct reading *r, uint32_t item, const uint64_t *offsets,
		      unsigned dimensions)
{
	return dcp_table_add(&r->places, offsets, dimensions * sizeof(*offsets),
			     item, r->d.chunk_count);
}
