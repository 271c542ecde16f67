/*
 * pickle.c - one opcode after the other. See pickle.h for what is read,
 * pickle_value.h for what becomes of it.
 */
#include "store/formats/pickle.h"

#include <errno.h>
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/formats/pickle_call.h"
#include "store/formats/pickle_data.h"

static int do_stop(struct machine *m)
{
	if (m->stack_count != 1 || m->mark_count != 0)
		return machine_refuse(m, "%zu values are left instead of one",
				      m->stack_count);
	m->stopped = true;
	m->p.root = m->stack[0];
	m->p.end = m->at;
	return 0;
}

static int do_known(struct machine *m, enum opcode op)
{
	int rc;

	switch (op) {
	case OP_PROTO:
		return pickle_do_proto(m);
	case OP_FRAME:
		return pickle_do_frame(m);
	case OP_STOP:
		return do_stop(m);
	case OP_MARK:
		return pickle_do_mark(m);
	case OP_POP:
		return pickle_do_pop(m);
	case OP_DUP:
		rc = machine_need(m, 1);
		return rc < 0 ? rc
			      : machine_push(m, m->stack[m->stack_count - 1]);
	case OP_NONE:
		return machine_push(m, value(TAG_NONE, 0));
	case OP_NEWTRUE:
		return machine_push(m, value(TAG_BOOL, 1));
	case OP_NEWFALSE:
		return machine_push(m, value(TAG_BOOL, 0));
	case OP_BININT1:
		return pickle_do_int(m, 1);
	case OP_BININT2:
		return pickle_do_int(m, 2);
	case OP_BININT:
		return pickle_do_int(m, 4);
	case OP_LONG1:
		return pickle_do_long(m, 1);
	case OP_LONG4:
		return pickle_do_long(m, 4);
	case OP_BINFLOAT:
		return machine_take(m, 8) ? machine_push(m, value(TAG_FLOAT, 0))
					  : -EBADMSG;
	case OP_SHORT_BINUNICODE:
		return pickle_do_text(m, 1, TAG_TEXT);
	case OP_BINUNICODE:
		return pickle_do_text(m, 4, TAG_TEXT);
	case OP_BINUNICODE8:
		return pickle_do_text(m, 8, TAG_TEXT);
	case OP_SHORT_BINBYTES:
		return pickle_do_text(m, 1, TAG_BYTES);
	case OP_BINBYTES:
		return pickle_do_text(m, 4, TAG_BYTES);
	case OP_BINBYTES8:
		return pickle_do_text(m, 8, TAG_BYTES);
	case OP_EMPTY_TUPLE:
		return pickle_do_tuple(m, 0);
	case OP_TUPLE1:
		return pickle_do_tuple(m, 1);
	case OP_TUPLE2:
		return pickle_do_tuple(m, 2);
	case OP_TUPLE3:
		return pickle_do_tuple(m, 3);
	case OP_EMPTY_LIST:
		return pickle_do_empty(m, TAG_LIST);
	case OP_EMPTY_DICT:
		return pickle_do_empty(m, TAG_DICT);
	case OP_APPEND:
		return pickle_do_extend(m, 1, TAG_LIST);
	case OP_SETITEM:
		return pickle_do_extend(m, 2, TAG_DICT);
	case OP_TUPLE:
	case OP_APPENDS:
	case OP_SETITEMS:
	case OP_POP_MARK:
		return pickle_do_marked(m, (uint8_t)op);
	case OP_MEMOIZE:
		return pickle_do_put(m, m->memo_count);
	case OP_BINGET:
	case OP_LONG_BINGET:
	case OP_BINPUT:
	case OP_LONG_BINPUT:
		return pickle_do_memo(m, (uint8_t)op);
	case OP_GLOBAL:
		return pickle_do_global(m);
	case OP_STACK_GLOBAL:
		return pickle_do_stack_global(m);
	case OP_REDUCE:
		return pickle_do_reduce(m);
	case OP_NEWOBJ:
		return pickle_do_newobj(m);
	case OP_BUILD:
		return pickle_do_build(m);
	case OP_BINPERSID:
	case OP_EMPTY_SET:
	case OP_ADDITEMS:
	case OP_FROZENSET:
	case OP_NEWOBJ_EX:
	case OP_BYTEARRAY8:
		return pickle_do_open(m, (uint8_t)op);
	}
	if (machine_opcode_name((uint8_t)op))
		return machine_refuse(m, "not an opcode of what is read here");
	return machine_refuse(m, "0x%02x is no opcode", (unsigned)op);
}

static int step(struct machine *m)
{
	uint8_t op;

	if (m->frame_end && m->at == m->frame_end)
		m->frame_end = 0;
	m->op_at = m->at;
	if (m->at == m->len)
		return machine_refuse(m, "the pickle ends before its STOP");
	op = m->p.data[m->at++];
	if (m->op_at == 0 && op != OP_PROTO)
		return machine_refuse(m, "not a pickle of protocol 2 or later");
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
