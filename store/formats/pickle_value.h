/*
 * pickle_value.h - what a value of a pickle is made of; for pickle*.c alone.
 *
 * A value is one word: what it is, of which class, and where the rest is.
 *
 *   63      56 55             32 31                   0
 *   [ tag    ] [ class         ] [ index into words   ]
 *   [ tag    ] [ a number of 56 bits, or an offset    ]
 *
 * Behind an index there is, of
 *   a tuple   count, then so many values
 *   a list    (first segment << 32 | last one), count of all its values
 *   a dict    the same; keys and values take turns
 *   segment   (next segment << 32 | count), then so many values
 *   an object its state
 *   a number  itself, when it has more than 56 bits
 * and words[0] is the empty tuple, so that index 0 also means: no segment.
 * Texts stay where they are: the offset is of the opcode that has them.
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

enum opcode {
	OP_MARK = '(',
	OP_STOP = '.',
	OP_POP = '0',
	OP_POP_MARK = '1',
	OP_DUP = '2',
	OP_BINFLOAT = 'G',
	OP_BININT = 'J',
	OP_BININT1 = 'K',
	OP_BININT2 = 'M',
	OP_NONE = 'N',
	OP_REDUCE = 'R',
	OP_BINUNICODE = 'X',
	OP_APPEND = 'a',
	OP_BUILD = 'b',
	OP_GLOBAL = 'c',
	OP_EMPTY_DICT = '}',
	OP_APPENDS = 'e',
	OP_BINGET = 'h',
	OP_LONG_BINGET = 'j',
	OP_EMPTY_LIST = ']',
	OP_BINPUT = 'q',
	OP_LONG_BINPUT = 'r',
	OP_SETITEM = 's',
	OP_TUPLE = 't',
	OP_EMPTY_TUPLE = ')',
	OP_SETITEMS = 'u',
	OP_BINBYTES = 'B',
	OP_SHORT_BINBYTES = 'C',
	OP_PROTO = 0x80,
	OP_NEWOBJ = 0x81,
	OP_TUPLE1 = 0x85,
	OP_TUPLE2 = 0x86,
	OP_TUPLE3 = 0x87,
	OP_NEWTRUE = 0x88,
	OP_NEWFALSE = 0x89,
	OP_LONG1 = 0x8a,
	OP_LONG4 = 0x8b,
	OP_SHORT_BINUNICODE = 0x8c,
	OP_BINUNICODE8 = 0x8d,
	OP_BINBYTES8 = 0x8e,
	OP_STACK_GLOBAL = 0x93,
	OP_MEMOIZE = 0x94,
	OP_FRAME = 0x95,
	OP_BINPERSID = 'Q',
	OP_EMPTY_SET = 0x8f,
	OP_ADDITEMS = 0x90,
	OP_FROZENSET = 0x91,
	OP_NEWOBJ_EX = 0x92,
	OP_BYTEARRAY8 = 0x96,
};

#define TAG_SHIFT 56
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
