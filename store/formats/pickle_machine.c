/*
 * pickle_machine.c - the machine's room, its stack and its next bytes, each
 * with its limit. See pickle_machine.h.
 */
#include "store/formats/pickle_machine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX UINT32_MAX

const char *machine_opcode_name(uint8_t op)
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

int machine_refuse(struct machine *m, const char *format, ...)
{
	struct pickle_error *e = m->error;
	const char *name = NULL;
	va_list ap;
	int n = 0;

	e->offset = m->op_at;
	if (m->op_at < m->len)
		name = machine_opcode_name(m->p.data[m->op_at]);
	if (name)
		n = snprintf(e->what, sizeof(e->what), "%s: ", name);
	va_start(ap, format);
	(void)vsnprintf(e->what + n, sizeof(e->what) - (size_t)n, format, ap);
	va_end(ap);
	return -EBADMSG;
}

/* A name of the pickle's, as far as it can be shown. */
const char *machine_shown(const char *text, size_t len,
			  char ret[NAME_SHOWN + 4])
{
	size_t n = len < NAME_SHOWN ? len : NAME_SHOWN;

	for (size_t i = 0; i < n; i++)
		ret[i] = text[i] >= ' ' && text[i] < 0x7f ? text[i] : '?';
	(void)strcpy(ret + n, n < len ? "..." : "");
	return ret;
}

static int too_large(struct machine *m)
{
	(void)machine_refuse(m, "takes more memory than the limit allows");
	return -EFBIG;
}

/* Room for `more` words behind count. */
int machine_grow(struct machine *m, uint64_t **words, size_t *capacity,
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
int machine_add_words(struct machine *m, size_t count, uint32_t *ret_at)
{
	int rc = machine_grow(m, &m->p.words, &m->p.word_capacity,
			      m->p.word_count, count);

	if (rc < 0)
		return rc;
	*ret_at = (uint32_t)m->p.word_count;
	m->p.word_count += count;
	return 0;
}

int machine_push(struct machine *m, pickle_value v)
{
	int rc = machine_grow(m, &m->stack, &m->stack_capacity, m->stack_count,
			      1);

	if (rc == 0)
		m->stack[m->stack_count++] = v;
	return rc;
}

/* How many values there are above the last mark: no other may be taken. */
size_t machine_on_top(const struct machine *m)
{
	return m->stack_count -
	       (m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0);
}

int machine_need(struct machine *m, size_t count)
{
	if (machine_on_top(m) < count)
		return machine_refuse(m, "takes a value that is not there");
	return 0;
}

/* The next len bytes; NULL: refused. */
const uint8_t *machine_take(struct machine *m, uint64_t len)
{
	size_t end = m->frame_end ? m->frame_end : m->len;
	const uint8_t *at = m->p.data + m->at;

	if (len > end - m->at) {
		(void)machine_refuse(m, m->frame_end
						? "goes past its frame's end"
						: "goes past the pickle's end");
		return NULL;
	}
	m->at += (size_t)len;
	return at;
}

int machine_take_number(struct machine *m, size_t bytes, uint64_t *ret)
{
	const uint8_t *at = machine_take(m, bytes);

	if (!at)
		return -EBADMSG;
	*ret = 0;
	for (size_t i = bytes; i-- > 0;)
		*ret = *ret << 8 | at[i];
	return 0;
}

/* Whether anything may be in it. */
bool machine_is_open(const struct machine *m)
{
	return m->other < m->class_count;
}

/* A new object of a class, without a state. */
int machine_push_object(struct machine *m, size_t class)
{
	uint32_t at;
	int rc = machine_add_words(m, 1, &at);

	if (rc < 0)
		return rc;
	m->p.words[at] = value(TAG_NONE, 0);
	return machine_push(m, of_class(TAG_OBJECT, class, at));
}

/* An object that nothing is known of. */
int machine_push_other(struct machine *m)
{
	return machine_push_object(m, m->other);
}

bool machine_is_other(const struct machine *m, pickle_value v)
{
	return machine_is_open(m) && (tag_of(v) == TAG_OBJECT) &&
	       class_of(&m->p, v)->role == PICKLE_OTHER;
}
