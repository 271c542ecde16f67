/*
 * pickle.c - see pickle.h.
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
#include "store/formats/pickle.h"

#include <stdarg.h>

#include "store/base/bytes.h"
#include "store/base/scope.h"

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
#define CLASS_SHIFT 32
#define CLASS_MASK UINT64_C(0xffffff)
#define SMALL_MIN (-(INT64_C(1) << 55))
#define SMALL_MAX ((INT64_C(1) << 55) - 1)
#define WORDS_MAX UINT32_MAX
/* Room for the beginning of a name in a message. */
#define NAME_SHOWN 60
#define BUCKETS 256

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

struct machine {
	struct pickle p;
	size_t len;
	size_t class_count;
	size_t memory_left;
	struct pickle_error *error;

	size_t at; /* the next byte */
	size_t op_at; /* the opcode that is being done */
	size_t frame_end; /* 0: in no frame */
	bool stopped;

	pickle_value *stack; /* owned */
	size_t stack_count, stack_capacity;
	pickle_value *memo; /* owned */
	size_t memo_count, memo_capacity;
	size_t marks[PICKLE_MARKS_MAX]; /* heights of the stack */
	size_t mark_count;

	size_t other, persistent; /* classes, or class_count: none is listed */

	/* Classes by a hash of their name: indexes plus 1. */
	uint16_t heads[BUCKETS];
	uint16_t nexts[PICKLE_CLASSES_MAX];
};

/* --- Words -----------------------------------------------------------------
 */

static pickle_value value(enum tag tag, uint64_t payload)
{
	return (uint64_t)tag << TAG_SHIFT |
	       (payload & ((UINT64_C(1) << TAG_SHIFT) - 1));
}

static enum tag tag_of(pickle_value v)
{
	return (enum tag)(v >> TAG_SHIFT);
}

static uint32_t index_of(pickle_value v)
{
	return (uint32_t)v;
}

static uint64_t payload_of(pickle_value v)
{
	return v & ((UINT64_C(1) << TAG_SHIFT) - 1);
}

static pickle_value of_class(enum tag tag, size_t class, uint32_t index)
{
	return value(tag, (uint64_t) class << CLASS_SHIFT | index);
}

static const struct pickle_class *class_of(const struct pickle *p,
					   pickle_value v)
{
	return &p->classes[v >> CLASS_SHIFT & CLASS_MASK];
}

static uint32_t high(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

static uint64_t both(uint32_t hi, uint32_t lo)
{
	return (uint64_t)hi << 32 | lo;
}

/* --- What is wrong ---------------------------------------------------------
 */

static const char *opcode_name(uint8_t op)
{
	static const char *const names[256] = {
		[OP_MARK] = "MARK",
		[OP_STOP] = "STOP",
		[OP_POP] = "POP",
		[OP_POP_MARK] = "POP_MARK",
		[OP_DUP] = "DUP",
		[OP_BINFLOAT] = "BINFLOAT",
		[OP_BININT] = "BININT",
		[OP_BININT1] = "BININT1",
		[OP_BININT2] = "BININT2",
		[OP_NONE] = "NONE",
		[OP_REDUCE] = "REDUCE",
		[OP_BINUNICODE] = "BINUNICODE",
		[OP_APPEND] = "APPEND",
		[OP_BUILD] = "BUILD",
		[OP_GLOBAL] = "GLOBAL",
		[OP_EMPTY_DICT] = "EMPTY_DICT",
		[OP_APPENDS] = "APPENDS",
		[OP_BINGET] = "BINGET",
		[OP_LONG_BINGET] = "LONG_BINGET",
		[OP_EMPTY_LIST] = "EMPTY_LIST",
		[OP_BINPUT] = "BINPUT",
		[OP_LONG_BINPUT] = "LONG_BINPUT",
		[OP_SETITEM] = "SETITEM",
		[OP_TUPLE] = "TUPLE",
		[OP_EMPTY_TUPLE] = "EMPTY_TUPLE",
		[OP_SETITEMS] = "SETITEMS",
		[OP_BINBYTES] = "BINBYTES",
		[OP_SHORT_BINBYTES] = "SHORT_BINBYTES",
		[OP_PROTO] = "PROTO",
		[OP_NEWOBJ] = "NEWOBJ",
		[OP_TUPLE1] = "TUPLE1",
		[OP_TUPLE2] = "TUPLE2",
		[OP_TUPLE3] = "TUPLE3",
		[OP_NEWTRUE] = "NEWTRUE",
		[OP_NEWFALSE] = "NEWFALSE",
		[OP_LONG1] = "LONG1",
		[OP_LONG4] = "LONG4",
		[OP_SHORT_BINUNICODE] = "SHORT_BINUNICODE",
		[OP_BINUNICODE8] = "BINUNICODE8",
		[OP_BINBYTES8] = "BINBYTES8",
		[OP_STACK_GLOBAL] = "STACK_GLOBAL",
		[OP_MEMOIZE] = "MEMOIZE",
		[OP_FRAME] = "FRAME",
		/* Those that are only refused. */
		['P'] = "PERSID",
		[OP_BINPERSID] = "BINPERSID",
		['i'] = "INST",
		['o'] = "OBJ",
		['I'] = "INT",
		['L'] = "LONG",
		['F'] = "FLOAT",
		['S'] = "STRING",
		['T'] = "BINSTRING",
		['U'] = "SHORT_BINSTRING",
		['V'] = "UNICODE",
		['d'] = "DICT",
		['l'] = "LIST",
		['g'] = "GET",
		['p'] = "PUT",
		[0x82] = "EXT1",
		[0x83] = "EXT2",
		[0x84] = "EXT4",
		[OP_EMPTY_SET] = "EMPTY_SET",
		[OP_ADDITEMS] = "ADDITEMS",
		[OP_FROZENSET] = "FROZENSET",
		[OP_NEWOBJ_EX] = "NEWOBJ_EX",
		[OP_BYTEARRAY8] = "BYTEARRAY8",
		[0x97] = "NEXT_BUFFER",
		[0x98] = "READONLY_BUFFER",
	};

	return names[op];
}

static int refuse(struct machine *m, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static int refuse(struct machine *m, const char *format, ...)
{
	struct pickle_error *e = m->error;
	const char *name = NULL;
	va_list ap;
	int n = 0;

	e->offset = m->op_at;
	if (m->op_at < m->len)
		name = opcode_name(m->p.data[m->op_at]);
	if (name)
		n = snprintf(e->what, sizeof(e->what), "%s: ", name);
	va_start(ap, format);
	(void)vsnprintf(e->what + n, sizeof(e->what) - (size_t)n, format, ap);
	va_end(ap);
	return -EBADMSG;
}

/* A name of the pickle's, as far as it can be shown. */
static const char *shown(const char *text, size_t len, char ret[NAME_SHOWN + 4])
{
	size_t n = len < NAME_SHOWN ? len : NAME_SHOWN;

	for (size_t i = 0; i < n; i++)
		ret[i] = text[i] >= ' ' && text[i] < 0x7f ? text[i] : '?';
	(void)strcpy(ret + n, n < len ? "..." : "");
	return ret;
}

/* --- Room ------------------------------------------------------------------
 */

static int too_large(struct machine *m)
{
	(void)refuse(m, "takes more memory than the limit allows");
	return -EFBIG;
}

/* Room for `more` words behind count. */
static int grow(struct machine *m, uint64_t **words, size_t *capacity,
		size_t count, size_t more)
{
	size_t want = *capacity ? *capacity : 64;
	uint64_t *grown;

	if (more <= *capacity - count)
		return 0;
	if (count > WORDS_MAX || more > WORDS_MAX - count)
		return too_large(m);
	while (want - count < more)
		want += want / 2;
	if ((want - *capacity) * sizeof(*grown) > m->memory_left)
		return too_large(m);
	grown = reallocarray(*words, want, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	m->memory_left -= (want - *capacity) * sizeof(*grown);
	*words = grown;
	*capacity = want;
	return 0;
}

/* *ret_at is the index of `count` new words. */
static int words_add(struct machine *m, size_t count, uint32_t *ret_at)
{
	int rc = grow(m, &m->p.words, &m->p.word_capacity, m->p.word_count,
		      count);

	if (rc < 0)
		return rc;
	*ret_at = (uint32_t)m->p.word_count;
	m->p.word_count += count;
	return 0;
}

static int push(struct machine *m, pickle_value v)
{
	int rc = grow(m, &m->stack, &m->stack_capacity, m->stack_count, 1);

	if (rc == 0)
		m->stack[m->stack_count++] = v;
	return rc;
}

/* How many values there are above the last mark: no other may be taken. */
static size_t on_top(const struct machine *m)
{
	return m->stack_count -
	       (m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0);
}

static int need(struct machine *m, size_t count)
{
	if (on_top(m) < count)
		return refuse(m, "takes a value that is not there");
	return 0;
}

/* --- Reading ---------------------------------------------------------------
 */

/* The next len bytes; NULL: refused. */
static const uint8_t *take(struct machine *m, uint64_t len)
{
	size_t end = m->frame_end ? m->frame_end : m->len;
	const uint8_t *at = m->p.data + m->at;

	if (len > end - m->at) {
		(void)refuse(m, m->frame_end ? "goes past its frame's end"
					     : "goes past the pickle's end");
		return NULL;
	}
	m->at += (size_t)len;
	return at;
}

static int take_number(struct machine *m, size_t bytes, uint64_t *ret)
{
	const uint8_t *at = take(m, bytes);

	if (!at)
		return -EBADMSG;
	*ret = 0;
	for (size_t i = bytes; i-- > 0;)
		*ret = *ret << 8 | at[i];
	return 0;
}

/* Whether anything may be in it. */
static bool is_open(const struct machine *m)
{
	return m->other < m->class_count;
}

/* A new object of a class, without a state. */
static int push_object(struct machine *m, size_t class)
{
	uint32_t at;
	int rc = words_add(m, 1, &at);

	if (rc < 0)
		return rc;
	m->p.words[at] = value(TAG_NONE, 0);
	return push(m, of_class(TAG_OBJECT, class, at));
}

/* An object that nothing is known of. */
static int push_other(struct machine *m)
{
	return push_object(m, m->other);
}

static bool is_other(const struct machine *m, pickle_value v)
{
	return is_open(m) && (tag_of(v) == TAG_OBJECT) &&
	       class_of(&m->p, v)->role == PICKLE_OTHER;
}

static int push_int(struct machine *m, int64_t v)
{
	uint32_t at;
	int rc;

	if (v >= SMALL_MIN && v <= SMALL_MAX)
		return push(m, value(TAG_INT, (uint64_t)v));
	rc = words_add(m, 1, &at);
	if (rc < 0)
		return rc;
	m->p.words[at] = (uint64_t)v;
	return push(m, value(TAG_WIDE, at));
}

static int do_int(struct machine *m, size_t bytes)
{
	uint64_t v;
	int rc = take_number(m, bytes, &v);

	if (rc < 0)
		return rc;
	/* Only that of four bytes has a sign. */
	return push_int(m, bytes == 4 ? (int32_t)(uint32_t)v : (int64_t)v);
}

static int do_long(struct machine *m, size_t length_bytes)
{
	uint64_t len, v = 0;
	const uint8_t *at;
	int rc = take_number(m, length_bytes, &len);

	if (rc < 0)
		return rc;
	if (len > 8 && !is_open(m))
		return refuse(m, "a number of more than 64 bits");
	at = take(m, len);
	if (at && len > 8)
		return push_other(m);
	if (!at)
		return -EBADMSG;
	if (len > 0 && (at[len - 1] & 0x80) != 0)
		v = UINT64_MAX;
	for (size_t i = (size_t)len; i-- > 0;)
		v = v << 8 | at[i];
	return push_int(m, (int64_t)v);
}

static int do_text(struct machine *m, size_t length_bytes, enum tag tag)
{
	uint64_t len;
	int rc = take_number(m, length_bytes, &len);

	if (rc < 0)
		return rc;
	if (len > PICKLE_TEXT_BYTES_MAX && !is_open(m))
		return refuse(m, "a text of %llu bytes; at most %u are read",
			      (unsigned long long)len, PICKLE_TEXT_BYTES_MAX);
	if (!take(m, len))
		return -EBADMSG;
	return push(m, value(tag, m->op_at));
}

static int do_frame(struct machine *m)
{
	uint64_t len;
	int rc;

	if (m->frame_end)
		return refuse(m, "a frame in a frame");
	rc = take_number(m, 8, &len);
	if (rc < 0)
		return rc;
	if (len > m->len - m->at)
		return refuse(m, "a frame of %llu bytes, and %zu are left",
			      (unsigned long long)len, m->len - m->at);
	m->frame_end = m->at + (size_t)len;
	return 0;
}

static int do_proto(struct machine *m)
{
	uint64_t version;
	int rc = take_number(m, 1, &version);

	if (rc < 0)
		return rc;
	if (m->op_at != 0)
		return refuse(m, "not at the beginning");
	if (version < 2 || version > 5)
		return refuse(m, "protocol %u; 2 to 5 are read",
			      (unsigned)version);
	return 0;
}

/* --- Containers ------------------------------------------------------------
 */

/* Replace the last count values by a tuple of them. */
static int do_tuple(struct machine *m, size_t count)
{
	uint32_t at = 0;
	int rc = need(m, count);

	if (rc == 0 && count > 0)
		rc = words_add(m, count + 1, &at);
	if (rc < 0)
		return rc;
	if (count > 0) {
		m->stack_count -= count;
		m->p.words[at] = count;
		memcpy(&m->p.words[at + 1], &m->stack[m->stack_count],
		       count * sizeof(*m->stack));
	}
	return push(m, value(TAG_TUPLE, at));
}

static int do_empty(struct machine *m, enum tag tag)
{
	uint32_t at;
	int rc = words_add(m, 2, &at);

	if (rc < 0)
		return rc;
	m->p.words[at] = 0;
	m->p.words[at + 1] = 0;
	return push(m, value(tag, at));
}

/*
 * Move the last count values into the list or dict below them. Where its last
 * segment is the last thing in words, that one grows.
 */
static int do_extend(struct machine *m, size_t count, enum tag tag)
{
	uint32_t head, last, at = 0;
	bool grows;
	int rc = need(m, count + 1);

	if (rc < 0)
		return rc;
	if (is_other(m, m->stack[m->stack_count - count - 1])) {
		m->stack_count -= count;
		return 0;
	}
	if (tag_of(m->stack[m->stack_count - count - 1]) != tag)
		return refuse(m, "what it is to extend is no %s",
			      tag == TAG_LIST ? "list" : "dict");
	if (tag == TAG_DICT && count % 2 != 0)
		return refuse(m, "a key without a value");
	if (count == 0)
		return 0;
	head = index_of(m->stack[m->stack_count - count - 1]);
	last = (uint32_t)m->p.words[head];
	grows = last != 0 &&
		last + 1 + (uint32_t)m->p.words[last] == m->p.word_count;
	rc = words_add(m, grows ? count : count + 1, &at);
	if (rc < 0)
		return rc;
	m->stack_count -= count;
	if (grows) {
		m->p.words[last] += count;
	} else {
		m->p.words[at] = both(0, (uint32_t)count);
		if (last != 0) {
			m->p.words[last] |= both(at, 0);
			m->p.words[head] = both(high(m->p.words[head]), at);
		} else {
			m->p.words[head] = both(at, at);
		}
		at++;
	}
	memcpy(&m->p.words[at], &m->stack[m->stack_count],
	       count * sizeof(*m->stack));
	m->p.words[head + 1] += count;
	return 0;
}

static int do_mark(struct machine *m)
{
	if (m->mark_count == PICKLE_MARKS_MAX)
		return refuse(m, "nested more than %u deep", PICKLE_MARKS_MAX);
	m->marks[m->mark_count++] = m->stack_count;
	return 0;
}

/* Take the last mark away; *ret_count values lie above it. */
static int pop_mark(struct machine *m, size_t *ret_count)
{
	if (m->mark_count == 0)
		return refuse(m, "there is no mark");
	*ret_count = on_top(m);
	m->mark_count--;
	return 0;
}

static int do_marked(struct machine *m, uint8_t op)
{
	size_t count = 0;
	int rc = pop_mark(m, &count);

	if (rc < 0)
		return rc;
	if (op == OP_TUPLE)
		return do_tuple(m, count);
	if (op == OP_APPENDS)
		return do_extend(m, count, TAG_LIST);
	if (op == OP_SETITEMS)
		return do_extend(m, count, TAG_DICT);
	if (op == OP_ADDITEMS && on_top(m) <= count)
		return refuse(m, "what it is to extend is not there");
	if (op == OP_FROZENSET) {
		m->stack_count -= count;
		return push_other(m);
	}
	m->stack_count -= count; /* POP_MARK, ADDITEMS */
	return 0;
}

static int do_pop(struct machine *m)
{
	size_t count;

	if (on_top(m) > 0) {
		m->stack_count--;
		return 0;
	}
	return pop_mark(m, &count);
}

/* --- The memo --------------------------------------------------------------
 */

/* Indexes come in order, as every pickler makes them: no hole takes room. */
static int put(struct machine *m, uint64_t index)
{
	int rc = need(m, 1);

	if (rc < 0)
		return rc;
	if (index > m->memo_count)
		return refuse(m, "index %llu in a memo of %zu",
			      (unsigned long long)index, m->memo_count);
	if (index == m->memo_count) {
		rc = grow(m, &m->memo, &m->memo_capacity, m->memo_count, 1);
		if (rc < 0)
			return rc;
		m->memo_count++;
	}
	m->memo[index] = m->stack[m->stack_count - 1];
	return 0;
}

static int do_memo(struct machine *m, uint8_t op)
{
	bool is_long = op == OP_LONG_BINGET || op == OP_LONG_BINPUT;
	uint64_t index;
	int rc = take_number(m, is_long ? 4 : 1, &index);

	if (rc < 0)
		return rc;
	if (op == OP_BINPUT || op == OP_LONG_BINPUT)
		return put(m, index);
	if (index >= m->memo_count)
		return refuse(m, "index %llu in a memo of %zu",
			      (unsigned long long)index, m->memo_count);
	return push(m, m->memo[index]);
}

/* --- Classes ---------------------------------------------------------------
 */

static size_t bucket(const char *name, size_t len)
{
	uint32_t h = (uint32_t)len;

	for (size_t i = 0; i < len && i < 16; i++)
		h = h * 31 + (uint8_t)name[i];
	return (h ^ h >> 8) % BUCKETS;
}

static void classes_index(struct machine *m)
{
	m->other = m->class_count;
	m->persistent = m->class_count;
	for (size_t i = 0; i < m->class_count; i++) {
		const char *name = m->p.classes[i].name;
		uint16_t *head;

		if (m->p.classes[i].role == PICKLE_OTHER)
			m->other = i;
		if (m->p.classes[i].role == PICKLE_PERSISTENT)
			m->persistent = i;
		if (!name)
			continue;
		head = &m->heads[bucket(name, strlen(name))];
		m->nexts[i] = *head;
		*head = (uint16_t)(i + 1);
	}
}

static bool is_text(const char *s, const char *text, size_t len)
{
	return strlen(s) == len && memcmp(s, text, len) == 0;
}

static int push_class(struct machine *m, const char *module, size_t module_len,
		      const char *name, size_t name_len)
{
	char shown_module[NAME_SHOWN + 4], shown_name[NAME_SHOWN + 4];

	for (size_t i = m->heads[bucket(name, name_len)]; i != 0;
	     i = m->nexts[i - 1]) {
		const struct pickle_class *c = &m->p.classes[i - 1];

		if (is_text(c->name, name, name_len) &&
		    is_text(c->module, module, module_len))
			return push(m, of_class(TAG_CLASS, i - 1, 0));
	}
	if (is_open(m))
		return push(m, of_class(TAG_CLASS, m->other, 0));
	return refuse(m, "'%s.%s' is none of the names that are known here",
		      shown(module, module_len, shown_module),
		      shown(name, name_len, shown_name));
}

static int take_line(struct machine *m, const char **ret, size_t *ret_len)
{
	size_t left = (m->frame_end ? m->frame_end : m->len) - m->at;
	const uint8_t *at = m->p.data + m->at;
	const uint8_t *end = memchr(
		at, '\n',
		left < PICKLE_TEXT_BYTES_MAX ? left : PICKLE_TEXT_BYTES_MAX);

	if (!end)
		return refuse(m, "a name without an end");
	*ret = (const char *)at;
	*ret_len = (size_t)(end - at);
	m->at += *ret_len + 1;
	return 0;
}

static int do_global(struct machine *m)
{
	const char *module, *name;
	size_t module_len, name_len;
	int rc = take_line(m, &module, &module_len);

	if (rc == 0)
		rc = take_line(m, &name, &name_len);
	if (rc < 0)
		return rc;
	return push_class(m, module, module_len, name, name_len);
}

static int do_stack_global(struct machine *m)
{
	const char *module, *name;
	size_t module_len, name_len;
	int rc = need(m, 2);

	if (rc < 0)
		return rc;
	module = pickle_text(&m->p, m->stack[m->stack_count - 2], &module_len);
	name = pickle_text(&m->p, m->stack[m->stack_count - 1], &name_len);
	if (!module || !name)
		return refuse(m, "the names are no texts");
	m->stack_count -= 2;
	return push_class(m, module, module_len, name, name_len);
}

/* The two on top: a class and a tuple. */
static int need_call(struct machine *m, const struct pickle_class **ret_class,
		     pickle_value *ret_args)
{
	pickle_value callee;
	int rc = need(m, 2);

	if (rc < 0)
		return rc;
	callee = m->stack[m->stack_count - 2];
	*ret_args = m->stack[m->stack_count - 1];
	if (tag_of(callee) != TAG_CLASS)
		return refuse(m, "what it is to call is no class");
	if (tag_of(*ret_args) != TAG_TUPLE)
		return refuse(m, "its arguments are no tuple");
	*ret_class = class_of(&m->p, callee);
	return 0;
}

/* Whether a class of this role may be called with these arguments. */
static bool may_call(const struct pickle *p, enum pickle_role role,
		     pickle_value args)
{
	const uint64_t *words = &p->words[index_of(args)];

	switch (role) {
	case PICKLE_CALL:
		return true;
	case PICKLE_ENUM:
		return words[0] == 1 && pickle_kind(words[1]) == PICKLE_INT;
	case PICKLE_GETATTR:
		return words[0] == 2 && tag_of(words[1]) == TAG_CLASS &&
		       class_of(p, words[1])->role == PICKLE_ENUM &&
		       tag_of(words[2]) == TAG_TEXT;
	case PICKLE_CONSTANT:
	case PICKLE_OBJECT:
	case PICKLE_MAKES_DICT:
	case PICKLE_OTHER:
	case PICKLE_PERSISTENT:
		break;
	}
	return false;
}

/*
 * A call or a making whose result is an object that nothing is known of, or
 * a dict. 1: done; 0: it is something else; or -errno.
 */
static int make_open(struct machine *m)
{
	pickle_value callee;
	enum pickle_role role;
	int rc = need(m, 2);

	if (rc < 0 || !is_open(m))
		return rc;
	callee = m->stack[m->stack_count - 2];
	if (tag_of(m->stack[m->stack_count - 1]) != TAG_TUPLE)
		return refuse(m, "its arguments are no tuple");
	if (tag_of(callee) != TAG_CLASS && tag_of(callee) != TAG_OBJECT &&
	    tag_of(callee) != TAG_CALLED)
		return refuse(m, "what it is to call is no class");
	role = class_of(&m->p, callee)->role;
	if (tag_of(callee) == TAG_CLASS && role != PICKLE_OTHER &&
	    role != PICKLE_MAKES_DICT)
		return 0;
	m->stack_count -= 2;
	if (tag_of(callee) == TAG_CLASS && role == PICKLE_MAKES_DICT)
		rc = do_empty(m, TAG_DICT);
	else
		rc = push_other(m);
	return rc < 0 ? rc : 1;
}

static int do_reduce(struct machine *m)
{
	const struct pickle_class *class;
	pickle_value args;
	int rc = make_open(m);

	if (rc == 0)
		rc = need_call(m, &class, &args);
	else
		return rc < 0 ? rc : 0;
	if (rc < 0)
		return rc;
	if (!may_call(&m->p, class->role, args))
		return refuse(m, "'%s.%s' is not called like that",
			      class->module, class->name);
	m->stack_count -= 2;
	return push(m, of_class(TAG_CALLED, (size_t)(class - m->p.classes),
				index_of(args)));
}

static int do_newobj(struct machine *m)
{
	const struct pickle_class *class;
	pickle_value args;
	int rc = make_open(m);

	if (rc == 0)
		rc = need_call(m, &class, &args);
	else
		return rc < 0 ? rc : 0;
	if (rc < 0)
		return rc;
	if (class->role != PICKLE_OBJECT || m->p.words[index_of(args)] != 0)
		return refuse(m, "'%s.%s' is not made like that", class->module,
			      class->name);
	m->stack_count -= 2;
	return push_object(m, (size_t)(class - m->p.classes));
}

/* A class, arguments and a dict of more of them. */
static int do_newobj_ex(struct machine *m)
{
	int rc = need(m, 3);

	if (rc < 0)
		return rc;
	m->stack_count -= 3;
	return push_other(m);
}

static int do_persistent(struct machine *m)
{
	uint32_t at = 0;
	int rc = need(m, 1);

	if (rc == 0)
		rc = words_add(m, 2, &at);
	if (rc < 0)
		return rc;
	m->p.words[at] = 1;
	m->p.words[at + 1] = m->stack[--m->stack_count];
	return push(m, of_class(TAG_CALLED, m->persistent, at));
}

/* What only a pickle in which anything may be can have. */
static int do_open(struct machine *m, uint8_t op)
{
	if (op == OP_BINPERSID && m->persistent < m->class_count)
		return do_persistent(m);
	if (!is_open(m) || op == OP_BINPERSID)
		return refuse(m, "not an opcode of what is read here");
	if (op == OP_EMPTY_SET)
		return push_other(m);
	if (op == OP_NEWOBJ_EX)
		return do_newobj_ex(m);
	if (op == OP_BYTEARRAY8)
		return do_text(m, 8, TAG_BYTES);
	return do_marked(m, op); /* ADDITEMS, FROZENSET */
}

static int do_build(struct machine *m)
{
	pickle_value object;
	uint64_t *state;
	int rc = need(m, 2);

	if (rc < 0)
		return rc;
	object = m->stack[m->stack_count - 2];
	if (is_open(m) && (tag_of(object) != TAG_OBJECT ||
			   class_of(&m->p, object)->role == PICKLE_OTHER)) {
		m->stack_count--;
		return 0;
	}
	if (tag_of(object) != TAG_OBJECT)
		return refuse(m, "a state for what is no object");
	state = &m->p.words[index_of(object)];
	if (tag_of(*state) != TAG_NONE)
		return refuse(m, "a second state for one object");
	*state = m->stack[--m->stack_count];
	return 0;
}

static int do_stop(struct machine *m)
{
	if (m->stack_count != 1 || m->mark_count != 0)
		return refuse(m, "%zu values are left instead of one",
			      m->stack_count);
	m->stopped = true;
	m->p.root = m->stack[0];
	m->p.end = m->at;
	return 0;
}

/* --- The machine -----------------------------------------------------------
 */

static int do_known(struct machine *m, enum opcode op)
{
	int rc;

	switch (op) {
	case OP_PROTO:
		return do_proto(m);
	case OP_FRAME:
		return do_frame(m);
	case OP_STOP:
		return do_stop(m);
	case OP_MARK:
		return do_mark(m);
	case OP_POP:
		return do_pop(m);
	case OP_DUP:
		rc = need(m, 1);
		return rc < 0 ? rc : push(m, m->stack[m->stack_count - 1]);
	case OP_NONE:
		return push(m, value(TAG_NONE, 0));
	case OP_NEWTRUE:
		return push(m, value(TAG_BOOL, 1));
	case OP_NEWFALSE:
		return push(m, value(TAG_BOOL, 0));
	case OP_BININT1:
		return do_int(m, 1);
	case OP_BININT2:
		return do_int(m, 2);
	case OP_BININT:
		return do_int(m, 4);
	case OP_LONG1:
		return do_long(m, 1);
	case OP_LONG4:
		return do_long(m, 4);
	case OP_BINFLOAT:
		return take(m, 8) ? push(m, value(TAG_FLOAT, 0)) : -EBADMSG;
	case OP_SHORT_BINUNICODE:
		return do_text(m, 1, TAG_TEXT);
	case OP_BINUNICODE:
		return do_text(m, 4, TAG_TEXT);
	case OP_BINUNICODE8:
		return do_text(m, 8, TAG_TEXT);
	case OP_SHORT_BINBYTES:
		return do_text(m, 1, TAG_BYTES);
	case OP_BINBYTES:
		return do_text(m, 4, TAG_BYTES);
	case OP_BINBYTES8:
		return do_text(m, 8, TAG_BYTES);
	case OP_EMPTY_TUPLE:
		return do_tuple(m, 0);
	case OP_TUPLE1:
		return do_tuple(m, 1);
	case OP_TUPLE2:
		return do_tuple(m, 2);
	case OP_TUPLE3:
		return do_tuple(m, 3);
	case OP_EMPTY_LIST:
		return do_empty(m, TAG_LIST);
	case OP_EMPTY_DICT:
		return do_empty(m, TAG_DICT);
	case OP_APPEND:
		return do_extend(m, 1, TAG_LIST);
	case OP_SETITEM:
		return do_extend(m, 2, TAG_DICT);
	case OP_TUPLE:
	case OP_APPENDS:
	case OP_SETITEMS:
	case OP_POP_MARK:
		return do_marked(m, (uint8_t)op);
	case OP_MEMOIZE:
		return put(m, m->memo_count);
	case OP_BINGET:
	case OP_LONG_BINGET:
	case OP_BINPUT:
	case OP_LONG_BINPUT:
		return do_memo(m, (uint8_t)op);
	case OP_GLOBAL:
		return do_global(m);
	case OP_STACK_GLOBAL:
		return do_stack_global(m);
	case OP_REDUCE:
		return do_reduce(m);
	case OP_NEWOBJ:
		return do_newobj(m);
	case OP_BUILD:
		return do_build(m);
	case OP_BINPERSID:
	case OP_EMPTY_SET:
	case OP_ADDITEMS:
	case OP_FROZENSET:
	case OP_NEWOBJ_EX:
	case OP_BYTEARRAY8:
		return do_open(m, (uint8_t)op);
	}
	if (opcode_name((uint8_t)op))
		return refuse(m, "not an opcode of what is read here");
	return refuse(m, "0x%02x is no opcode", (unsigned)op);
}

static int step(struct machine *m)
{
	uint8_t op;

	if (m->frame_end && m->at == m->frame_end)
		m->frame_end = 0;
	m->op_at = m->at;
	if (m->at == m->len)
		return refuse(m, "the pickle ends before its STOP");
	op = m->p.data[m->at++];
	if (m->op_at == 0 && op != OP_PROTO)
		return refuse(m, "not a pickle of protocol 2 or later");
	return do_known(m, (enum opcode)op);
}

int pickle_load(const void *data, size_t len,
		const struct pickle_class *classes, size_t class_count,
		size_t memory_bytes_max, struct pickle *ret,
		struct pickle_error *ret_error)
{
	SCOPED(scope_free) struct machine *m = calloc(1, sizeof(*m));
	uint32_t empty;
	int rc;

	CHECK(class_count <= PICKLE_CLASSES_MAX);
	if (!m)
		return -ENOMEM;
	m->p.data = data;
	m->p.classes = classes;
	m->len = len;
	m->class_count = class_count;
	m->memory_left = memory_bytes_max;
	m->error = ret_error;
	classes_index(m);

	rc = words_add(m, 1, &empty);
	if (rc == 0)
		m->p.words[empty] = 0;
	while (rc == 0 && !m->stopped)
		rc = step(m);
	free(m->stack);
	free(m->memo);
	if (rc < 0) {
		free(m->p.words);
		return rc;
	}
	*ret = m->p;
	return 0;
}

void pickle_release(struct pickle *p)
{
	free(p->words);
	memset(p, 0, sizeof(*p));
}

/* --- Looking at values -----------------------------------------------------
 */

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
	const uint8_t *at;
	size_t bytes = 1;

	if (tag_of(v) != TAG_TEXT && tag_of(v) != TAG_BYTES)
		return NULL;
	at = p->data + payload_of(v);
	if (*at == OP_BINUNICODE || *at == OP_BINBYTES)
		bytes = 4;
	else if (*at == OP_BINUNICODE8 || *at == OP_BINBYTES8 ||
		 *at == OP_BYTEARRAY8)
		bytes = 8;
	*ret_len = 0;
	for (size_t i = bytes; i > 0; i--)
		*ret_len = *ret_len << 8 | at[i];
	return (const char *)at + 1 + bytes;
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

const struct pickle_class *pickle_class(const struct pickle *p, pickle_value v)
{
	enum tag tag = tag_of(v);

	if (tag != TAG_CLASS && tag != TAG_CALLED && tag != TAG_OBJECT)
		return NULL;
	return class_of(p, v);
}

pickle_value pickle_arguments(const struct pickle *p, pickle_value v)
{
	(void)p;
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
