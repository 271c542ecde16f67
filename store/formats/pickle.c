/*
 * pickle.c - one opcode after the other, by a table of them: those of data are
 * here, those of classes in pickle_call.c. See pickle.h for what is read,
 * pickle_value.h for what becomes of it.
 */
#include "store/formats/pickle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/formats/pickle_call.h"

/* --- The pickle itself ---------------------------------------------------- */

static int run_frame(struct machine *m)
{
	uint64_t len;
	int rc;

	if (m->frame_end)
		return machine_refuse(m, "a frame in a frame");
	rc = machine_take_number(m, 8, &len);
	if (rc < 0)
		return rc;
	if (len > m->len - m->at)
		return machine_refuse(m,
				      "a frame of %llu bytes, and %zu are left",
				      (unsigned long long)len, m->len - m->at);
	m->frame_end = m->at + (size_t)len;
	return 0;
}

static int run_proto(struct machine *m)
{
	uint64_t version;
	int rc = machine_take_number(m, 1, &version);

	if (rc < 0)
		return rc;
	if (m->op_at != 0)
		return machine_refuse(m, "not at the beginning");
	if (version >= 2 && version <= 5)
		return 0;
	(void)machine_refuse(m, "protocol %u; 2 to 5 are read",
			     (unsigned)version);
	return machine_not_read(m);
}

static int run_stop(struct machine *m)
{
	if (m->stack_count != 1 || m->mark_count != 0)
		return machine_refuse(m, "%zu values are left instead of one",
				      m->stack_count);
	m->stopped = true;
	m->p.root = m->stack[0];
	m->p.end = m->at;
	return 0;
}

static int push_int(struct machine *m, int64_t v)
{
	uint32_t at;
	int rc;

	if (v >= SMALL_MIN && v <= SMALL_MAX)
		return machine_push(m, value(TAG_INT, (uint64_t)v));
	rc = machine_add_words(m, 1, &at);
	if (rc < 0)
		return rc;
	m->p.words[at] = (uint64_t)v;
	return machine_push(m, value(TAG_WIDE, at));
}

/* --- Numbers and texts: n is the length of the number, or of the length --- */

static int run_int(struct machine *m)
{
	uint64_t v;
	int rc = machine_take_number(m, m->op->n, &v);

	if (rc < 0)
		return rc;
	/* Only that of four bytes has a sign. */
	return push_int(m, m->op->n == 4 ? (int32_t)(uint32_t)v : (int64_t)v);
}

static int run_long(struct machine *m)
{
	uint64_t len, v = 0;
	const uint8_t *at;
	int rc = machine_take_number(m, m->op->n, &len);

	if (rc < 0)
		return rc;
	if (len > 8 && !machine_is_open(m))
		return machine_refuse(m, "a number of more than 64 bits");
	at = machine_take(m, len);
	if (at && len > 8)
		return machine_push_other(m);
	if (!at)
		return -EBADMSG;
	if (len > 0 && (at[len - 1] & 0x80) != 0)
		v = UINT64_MAX;
	for (size_t i = (size_t)len; i-- > 0;)
		v = v << 8 | at[i];
	return push_int(m, (int64_t)v);
}

static int run_float(struct machine *m)
{
	if (!machine_take(m, 8))
		return -EBADMSG;
	return machine_push(m, value(TAG_FLOAT, 0));
}

static int run_text(struct machine *m)
{
	uint64_t where = (uint64_t)m->op->n << TEXT_SHIFT | m->at;
	uint64_t len;
	int rc = machine_take_number(m, m->op->n, &len);

	if (rc < 0)
		return rc;
	if (len > PICKLE_TEXT_BYTES_MAX && !machine_is_open(m))
		return machine_refuse(
			m, "a text of %llu bytes; at most %u are read",
			(unsigned long long)len, PICKLE_TEXT_BYTES_MAX);
	if (!machine_take(m, len))
		return -EBADMSG;
	return machine_push(m, value(m->op->tag, where));
}

/* --- Containers: n is how many values they take --------------------------- */

#define MARKED SIZE_MAX /* all above the last mark, which goes */

static int run_mark(struct machine *m)
{
	if (m->mark_count == PICKLE_MARKS_MAX) {
		(void)machine_refuse(m, "nested more than %u deep",
				     PICKLE_MARKS_MAX);
		return machine_not_read(m);
	}
	m->marks[m->mark_count++] = m->stack_count;
	return 0;
}

/* *ret_count values are what the opcode takes; they stay on the stack. */
static int operands(struct machine *m, size_t *ret_count)
{
	*ret_count = m->op->n;
	if (m->op->n != MARKED)
		return machine_need(m, m->op->n);
	if (m->mark_count == 0)
		return machine_refuse(m, "there is no mark");
	*ret_count = machine_on_top(m);
	m->mark_count--;
	return 0;
}

/* Replace them by a tuple of them. */
static int run_tuple(struct machine *m)
{
	uint32_t at = 0;
	size_t count;
	int rc = operands(m, &count);

	if (rc == 0 && count > 0)
		rc = machine_add_words(m, count + 1, &at);
	if (rc < 0)
		return rc;
	if (count > 0) {
		m->stack_count -= count;
		m->p.words[at] = count;
		memcpy(&m->p.words[at + 1], &m->stack[m->stack_count],
		       count * sizeof(*m->stack));
	}
	return machine_push(m, value(TAG_TUPLE, at));
}

static int run_empty(struct machine *m)
{
	return machine_push_empty(m, m->op->tag);
}

/*
 * Move them into the list or dict below them. Where its last segment is the
 * last thing in words, that one grows.
 */
static int run_extend(struct machine *m)
{
	enum tag tag = m->op->tag;
	uint32_t head, last, at = 0;
	size_t count;
	bool grows;
	int rc = operands(m, &count);

	if (rc == 0)
		rc = machine_need(m, count + 1);
	if (rc < 0)
		return rc;
	if (machine_is_other(m, m->stack[m->stack_count - count - 1])) {
		m->stack_count -= count;
		return 0;
	}
	if (tag_of(m->stack[m->stack_count - count - 1]) != tag)
		return machine_refuse(m, "what it is to extend is no %s",
				      tag == TAG_LIST ? "list" : "dict");
	if (tag == TAG_DICT && count % 2 != 0)
		return machine_refuse(m, "a key without a value");
	if (count == 0)
		return 0;
	head = index_of(m->stack[m->stack_count - count - 1]);
	last = (uint32_t)m->p.words[head];
	grows = last != 0 &&
		last + 1 + (uint32_t)m->p.words[last] == m->p.word_count;
	rc = machine_add_words(m, grows ? count : count + 1, &at);
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

/* POP_MARK: they go, and nothing takes their place. */
static int run_drop(struct machine *m)
{
	size_t count;
	int rc = operands(m, &count);

	if (rc == 0)
		m->stack_count -= count;
	return rc;
}

/* What a set has is passed over. */
static int run_additems(struct machine *m)
{
	int rc = run_drop(m);

	if (rc == 0 && machine_on_top(m) == 0)
		return machine_refuse(m, "what it is to extend is not there");
	return rc;
}

static int run_frozenset(struct machine *m)
{
	int rc = run_drop(m);

	return rc < 0 ? rc : machine_push_other(m);
}

/* --- The stack and the memo ----------------------------------------------- */

static int run_constant(struct machine *m)
{
	return machine_push(m, value(m->op->tag, m->op->n));
}

static int run_dup(struct machine *m)
{
	int rc = machine_need(m, 1);

	return rc < 0 ? rc : machine_push(m, m->stack[m->stack_count - 1]);
}

static int run_pop(struct machine *m)
{
	if (machine_on_top(m) > 0)
		m->stack_count--;
	else if (m->mark_count > 0)
		m->mark_count--;
	else
		return machine_refuse(m, "there is no mark");
	return 0;
}

/* Indexes come in order, as every pickler makes them: no hole takes room. */
static int run_put(struct machine *m)
{
	uint64_t index = m->memo_count; /* MEMOIZE names none */
	int rc = 0;

	if (m->op->n > 0)
		rc = machine_take_number(m, m->op->n, &index);
	if (rc == 0)
		rc = machine_need(m, 1);
	if (rc < 0)
		return rc;
	if (index > m->memo_count)
		return machine_refuse(m, "index %llu in a memo of %zu",
				      (unsigned long long)index, m->memo_count);
	if (index == m->memo_count) {
		rc = machine_grow(m, &m->memo, &m->memo_capacity, m->memo_count,
				  1);
		if (rc < 0)
			return rc;
		m->memo_count++;
	}
	m->memo[index] = m->stack[m->stack_count - 1];
	return 0;
}

static int run_get(struct machine *m)
{
	uint64_t index;
	int rc = machine_take_number(m, m->op->n, &index);

	if (rc < 0)
		return rc;
	if (index >= m->memo_count)
		return machine_refuse(m, "index %llu in a memo of %zu",
				      (unsigned long long)index, m->memo_count);
	return machine_push(m, m->memo[index]);
}

/* --- All opcodes ---------------------------------------------------------- */

#define OP(opcode, runs, ...)                             \
	{                                                 \
		.name = #opcode, .run = runs, __VA_ARGS__ \
	}

static const struct opcode opcodes[256] = {
	[0x80] = OP(PROTO, run_proto),
	[0x95] = OP(FRAME, run_frame),
	['.'] = OP(STOP, run_stop),

	['N'] = OP(NONE, run_constant, .tag = TAG_NONE),
	[0x88] = OP(NEWTRUE, run_constant, .tag = TAG_BOOL, .n = 1),
	[0x89] = OP(NEWFALSE, run_constant, .tag = TAG_BOOL, .n = 0),
	['K'] = OP(BININT1, run_int, .n = 1),
	['M'] = OP(BININT2, run_int, .n = 2),
	['J'] = OP(BININT, run_int, .n = 4),
	[0x8a] = OP(LONG1, run_long, .n = 1),
	[0x8b] = OP(LONG4, run_long, .n = 4),
	['G'] = OP(BINFLOAT, run_float),
	[0x8c] = OP(SHORT_BINUNICODE, run_text, .tag = TAG_TEXT, .n = 1),
	['X'] = OP(BINUNICODE, run_text, .tag = TAG_TEXT, .n = 4),
	[0x8d] = OP(BINUNICODE8, run_text, .tag = TAG_TEXT, .n = 8),
	['C'] = OP(SHORT_BINBYTES, run_text, .tag = TAG_BYTES, .n = 1),
	['B'] = OP(BINBYTES, run_text, .tag = TAG_BYTES, .n = 4),
	[0x8e] = OP(BINBYTES8, run_text, .tag = TAG_BYTES, .n = 8),
	[0x96] = OP(BYTEARRAY8, run_text, .tag = TAG_BYTES, .n = 8,
		    .open = true),

	['('] = OP(MARK, run_mark),
	[')'] = OP(EMPTY_TUPLE, run_tuple, .n = 0),
	[0x85] = OP(TUPLE1, run_tuple, .n = 1),
	[0x86] = OP(TUPLE2, run_tuple, .n = 2),
	[0x87] = OP(TUPLE3, run_tuple, .n = 3),
	['t'] = OP(TUPLE, run_tuple, .n = MARKED),
	[']'] = OP(EMPTY_LIST, run_empty, .tag = TAG_LIST),
	['a'] = OP(APPEND, run_extend, .tag = TAG_LIST, .n = 1),
	['e'] = OP(APPENDS, run_extend, .tag = TAG_LIST, .n = MARKED),
	['}'] = OP(EMPTY_DICT, run_empty, .tag = TAG_DICT),
	['s'] = OP(SETITEM, run_extend, .tag = TAG_DICT, .n = 2),
	['u'] = OP(SETITEMS, run_extend, .tag = TAG_DICT, .n = MARKED),
	[0x8f] = OP(EMPTY_SET, machine_push_other, .open = true),
	[0x90] = OP(ADDITEMS, run_additems, .n = MARKED, .open = true),
	[0x91] = OP(FROZENSET, run_frozenset, .n = MARKED, .open = true),

	['0'] = OP(POP, run_pop),
	['1'] = OP(POP_MARK, run_drop, .n = MARKED),
	['2'] = OP(DUP, run_dup),
	[0x94] = OP(MEMOIZE, run_put, .n = 0),
	['q'] = OP(BINPUT, run_put, .n = 1),
	['r'] = OP(LONG_BINPUT, run_put, .n = 4),
	['h'] = OP(BINGET, run_get, .n = 1),
	['j'] = OP(LONG_BINGET, run_get, .n = 4),

	['c'] = OP(GLOBAL, pickle_run_global),
	[0x93] = OP(STACK_GLOBAL, pickle_run_stack_global),
	['R'] = OP(REDUCE, pickle_run_reduce),
	[0x81] = OP(NEWOBJ, pickle_run_newobj),
	[0x92] = OP(NEWOBJ_EX, pickle_run_newobj_ex, .open = true),
	['b'] = OP(BUILD, pickle_run_build),
	['Q'] = OP(BINPERSID, pickle_run_persistent),

	/* Those that are only refused. */
	['P'] = OP(PERSID, NULL),
	['i'] = OP(INST, NULL),
	['o'] = OP(OBJ, NULL),
	['I'] = OP(INT, NULL),
	['L'] = OP(LONG, NULL),
	['F'] = OP(FLOAT, NULL),
	['S'] = OP(STRING, NULL),
	['T'] = OP(BINSTRING, NULL),
	['U'] = OP(SHORT_BINSTRING, NULL),
	['V'] = OP(UNICODE, NULL),
	['d'] = OP(DICT, NULL),
	['l'] = OP(LIST, NULL),
	['g'] = OP(GET, NULL),
	['p'] = OP(PUT, NULL),
	[0x82] = OP(EXT1, NULL),
	[0x83] = OP(EXT2, NULL),
	[0x84] = OP(EXT4, NULL),
	[0x97] = OP(NEXT_BUFFER, NULL),
	[0x98] = OP(READONLY_BUFFER, NULL),
};

static int step(struct machine *m)
{
	uint8_t code;

	if (m->frame_end && m->at == m->frame_end)
		m->frame_end = 0;
	m->op_at = m->at;
	m->op = NULL;
	if (m->at == m->len)
		return machine_refuse(m, "the pickle ends before its STOP");
	code = m->p.data[m->at++];
	m->op = &opcodes[code];
	if (!m->op->name)
		return machine_refuse(m, "0x%02x is no opcode", code);
	if (m->op_at == 0 && m->op->run != run_proto) {
		(void)machine_refuse(m, "not a pickle of protocol 2 or later");
		return machine_not_read(m);
	}
	if (m->op->run && (!m->op->open || machine_is_open(m)))
		return m->op->run(m);
	(void)machine_refuse(m, MACHINE_NOT_READ);
	return machine_not_read(m);
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
	pickle_index_classes(m);

	rc = machine_add_words(m, 1, &empty);
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
