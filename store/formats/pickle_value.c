/* pickle_value.c - looking at values, and walking through them. */
#include "store/formats/pickle_value.h"

#include <stdlib.h>
#include <string.h>

#include "store/base/bytes.h"

enum pickle_kind pickle_kind(pickle_value v)
{
	static const enum pickle_kind kinds[] = {
		[TAG_NONE] = PICKLE_NONE,        [TAG_BOOL] = PICKLE_BOOL,
		[TAG_INT] = PICKLE_INT,          [TAG_WIDE] = PICKLE_INT,
		[TAG_FLOAT] = PICKLE_FLOAT,      [TAG_TEXT] = PICKLE_TEXT,
		[TAG_BYTES] = PICKLE_BYTES,      [TAG_TUPLE] = PICKLE_TUPLE,
		[TAG_LIST] = PICKLE_LIST,        [TAG_DICT] = PICKLE_DICT,
		[TAG_CLASS] = PICKLE_IS_CLASS,   [TAG_CALLED] = PICKLE_CALLED,
		[TAG_OBJECT] = PICKLE_IS_OBJECT,
	};

	return kinds[tag_of(v)];
}

const char *pickle_text(const struct pickle *p, pickle_value v, size_t *ret_len)
{
	uint64_t offset = payload_of(v) & ((UINT64_C(1) << TEXT_SHIFT) - 1);
	const uint8_t *at = p->data + offset;
	size_t bytes = payload_of(v) >> TEXT_SHIFT;

	if (tag_of(v) != TAG_TEXT && tag_of(v) != TAG_BYTES)
		return NULL;
	*ret_len = 0;
	for (size_t i = bytes; i-- > 0;)
		*ret_len = *ret_len << 8 | at[i];
	return (const char *)at + bytes;
}

bool pickle_is_text(const struct pickle *p, pickle_value v, const char *text)
{
	size_t len = 0;
	const char *is = pickle_text(p, v, &len);

	return is && len == strlen(text) && memcmp(is, text, len) == 0;
}

bool pickle_int(const struct pickle *p, pickle_value v, int64_t *ret)
{
	if (tag_of(v) == TAG_WIDE)
		*ret = (int64_t)p->words[index_of(v)];
	else if (tag_of(v) == TAG_INT)
		*ret = (int64_t)(v << (64 - TAG_SHIFT)) >> (64 - TAG_SHIFT);
	else
		return false;
	return true;
}

bool pickle_natural(const struct pickle *p, pickle_value v, uint64_t *ret)
{
	int64_t i = 0;

	if (!pickle_int(p, v, &i) || i < 0)
		return false;
	*ret = (uint64_t)i;
	return true;
}

const struct pickle_class *pickle_class(const struct pickle *p, pickle_value v)
{
	enum tag tag = tag_of(v);

	if (tag != TAG_CLASS && tag != TAG_CALLED && tag != TAG_OBJECT)
		return NULL;
	return class_of(p, v);
}

pickle_value pickle_arguments(pickle_value v)
{
	return tag_of(v) == TAG_CALLED ? value(TAG_TUPLE, index_of(v))
				       : value(TAG_NONE, 0);
}

pickle_value pickle_state(const struct pickle *p, pickle_value v)
{
	return tag_of(v) == TAG_OBJECT ? p->words[index_of(v)]
				       : value(TAG_NONE, 0);
}

struct pickle_walk pickle_walk(const struct pickle *p, pickle_value v)
{
	struct pickle_walk w = { .p = p };
	uint32_t at = index_of(v);

	if (tag_of(v) == TAG_TUPLE) {
		w.count = p->words[at];
		w.left = (uint32_t)w.count;
		w.at = at + 1;
	} else if (tag_of(v) == TAG_LIST || tag_of(v) == TAG_DICT) {
		w.next = high(p->words[at]);
		w.count = p->words[at + 1];
	}
	return w;
}

bool pickle_next(struct pickle_walk *w, pickle_value *ret)
{
	if (w->left == 0) {
		uint64_t head;

		if (w->next == 0)
			return false;
		head = w->p->words[w->next];
		w->at = w->next + 1;
		w->left = (uint32_t)head;
		w->next = high(head);
	}
	w->left--;
	*ret = w->p->words[w->at++];
	return true;
}

bool pickle_naturals(const struct pickle *p, pickle_value v, uint32_t size_id,
		     uint64_t *ret, size_t max, unsigned *ret_count)
{
	struct pickle_walk w;
	pickle_value one;
	unsigned count = 0;

	if (tag_of(v) == TAG_CALLED && class_of(p, v)->id == size_id) {
		w = pickle_walk(p, pickle_arguments(v));
		if (w.count != 1 || !pickle_next(&w, &v))
			return false;
	}
	w = pickle_walk(p, v);
	if ((tag_of(v) != TAG_TUPLE && tag_of(v) != TAG_LIST) || w.count > max)
		return false;
	while (pickle_next(&w, &one))
		if (!pickle_natural(p, one, &ret[count++]))
			return false;
	*ret_count = count;
	return true;
}

void pickle_release(struct pickle *p)
{
	free(p->words);
	memset(p, 0, sizeof(*p));
}
