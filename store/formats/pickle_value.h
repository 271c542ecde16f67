/*
 * pickle_value.h - what a value of a pickle is made of; for pickle*.c alone.
 *
 * A value is one word: what it is, of which class, and where the rest is.
 *
 *   63      56 55             32 31                   0
 *   [ tag    ] [ class         ] [ index into words   ]
 *   [ tag    ] [ a number of 56 bits                  ]
 *   [ tag    ] [ n      ] [ offset of 48 bits         ]
 *
 * Behind an index there is, of
 *   a tuple   count, then so many values
 *   a list    (first segment << 32 | last one), count of all its values
 *   a dict    the same; keys and values take turns
 *   segment   (next segment << 32 | count), then so many values
 *   an object its state
 *   a number  itself, when it has more than 56 bits
 * and words[0] is the empty tuple, so that index 0 also means: no segment.
 * Texts stay where they are, behind their length: n bytes at the offset.
 */
#ifndef STORE_FORMATS_PICKLE_VALUE_H
#define STORE_FORMATS_PICKLE_VALUE_H

#include "store/formats/pickle.h"

enum tag {
	TAG_NONE,
	TAG_BOOL,
	TAG_INT, /* of 56 bits */
	TAG_WIDE, /* a longer one */
	TAG_FLOAT,
	TAG_TEXT,
	TAG_BYTES,
	TAG_TUPLE,
	TAG_LIST,
	TAG_DICT,
	TAG_CLASS,
	TAG_CALLED, /* index: its arguments, a tuple */
	TAG_OBJECT,
};

#define TAG_SHIFT 56
#define TEXT_SHIFT 48
#define CLASS_SHIFT 32
#define CLASS_MASK UINT64_C(0xffffff)
#define SMALL_MIN (-(INT64_C(1) << 55))
#define SMALL_MAX ((INT64_C(1) << 55) - 1)

static inline pickle_value value(enum tag tag, uint64_t payload)
{
	return (uint64_t)tag << TAG_SHIFT |
	       (payload & ((UINT64_C(1) << TAG_SHIFT) - 1));
}

static inline enum tag tag_of(pickle_value v)
{
	return (enum tag)(v >> TAG_SHIFT);
}

static inline uint32_t index_of(pickle_value v)
{
	return (uint32_t)v;
}

static inline uint64_t payload_of(pickle_value v)
{
	return v & ((UINT64_C(1) << TAG_SHIFT) - 1);
}

static inline pickle_value of_class(enum tag tag, size_t class, uint32_t index)
{
	return value(tag, (uint64_t) class << CLASS_SHIFT | index);
}

static inline const struct pickle_class *class_of(const struct pickle *p,
						  pickle_value v)
{
	return &p->classes[v >> CLASS_SHIFT & CLASS_MASK];
}

static inline uint32_t high(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

static inline uint64_t both(uint32_t hi, uint32_t lo)
{
	return (uint64_t)hi << 32 | lo;
}

#endif
