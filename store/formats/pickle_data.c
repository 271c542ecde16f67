/*
 * pickle_data.c - opcodes that yield numbers, texts and containers, and those
 * of the memo.
 */
#include "store/formats/pickle_data.h"

#include <errno.h>
#include <string.h>

#include "store/base/bytes.h"
#include "store/base/check.h"

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

int pickle_do_int(struct machine *m, size_t bytes)
{
	uint64_t v;
	int rc = machine_take_number(m, bytes, &v);

	if (rc < 0)
		return rc;
	/* Only that of four bytes has a sign. */
	return push_int(m, bytes == 4 ? (int32_t)(uint32_t)v : (int64_t)v);
}

int pickle_do_long(struct machine *m, size_t length_bytes)
{
	uint64_t len, v = 0;
	const uint8_t *at;
	int rc = machine_take_number(m, length_bytes, &len);

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

int pickle_do_text(struct machine *m, size_t length_bytes, enum tag tag)
{
	uint64_t len;
	int rc = machine_take_number(m, length_bytes, &len);

	if (rc < 0)
		return rc;
	if (len > PICKLE_TEXT_BYTES_MAX && !machine_is_open(m))
		return machine_refuse(
			m, "a text of %llu bytes; at most %u are read",
			(unsigned long long)len, PICKLE_TEXT_BYTES_MAX);
	if (!machine_take(m, len))
		return -EBADMSG;
	return machine_push(m, value(tag, m->op_at));
}

int pickle_do_frame(struct machine *m)
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

int pickle_do_proto(struct machine *m)
{
	uint64_t version;
	int rc = machine_take_number(m, 1, &version);

	if (rc < 0)
		return rc;
	if (m->op_at != 0)
		return machine_refuse(m, "not at the beginning");
	if (version < 2 || version > 5)
		return machine_refuse(m, "protocol %u; 2 to 5 are read",
				      (unsigned)version);
	return 0;
}

/* Replace the last count values by a tuple of them. */
int pickle_do_tuple(struct machine *m, size_t count)
{
	uint32_t at = 0;
	int rc = machine_need(m, count);

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

int pickle_do_empty(struct machine *m, enum tag tag)
{
	uint32_t at;
	int rc = machine_add_words(m, 2, &at);

	if (rc < 0)
		return rc;
	m->p.words[at] = 0;
	m->p.words[at + 1] = 0;
	return machine_push(m, value(tag, at));
}

/*
 * Move the last count values into the list or dict below them. Where its last
 * segment is the last thing in words, that one grows.
 */
int pickle_do_extend(struct machine *m, size_t count, enum tag tag)
{
	uint32_t head, last, at = 0;
	bool grows;
	int rc = machine_need(m, count + 1);

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

int pickle_do_mark(struct machine *m)
{
	if (m->mark_count == PICKLE_MARKS_MAX)
		return machine_refuse(m, "nested more than %u deep",
				      PICKLE_MARKS_MAX);
	m->marks[m->mark_count++] = m->stack_count;
	return 0;
}

/* Take the last mark away; *ret_count values lie above it. */
static int pop_mark(struct machine *m, size_t *ret_count)
{
	if (m->mark_count == 0)
		return machine_refuse(m, "there is no mark");
	*ret_count = machine_on_top(m);
	m->mark_count--;
	return 0;
}

int pickle_do_marked(struct machine *m, uint8_t op)
{
	size_t count = 0;
	int rc = pop_mark(m, &count);

	if (rc < 0)
		return rc;
	if (op == OP_TUPLE)
		return pickle_do_tuple(m, count);
	if (op == OP_APPENDS)
		return pickle_do_extend(m, count, TAG_LIST);
	if (op == OP_SETITEMS)
		return pickle_do_extend(m, count, TAG_DICT);
	if (op == OP_ADDITEMS && machine_on_top(m) <= count)
		return machine_refuse(m, "what it is to extend is not there");
	if (op == OP_FROZENSET) {
		m->stack_count -= count;
		return machine_push_other(m);
	}
	m->stack_count -= count; /* POP_MARK, ADDITEMS */
	return 0;
}

int pickle_do_pop(struct machine *m)
{
	size_t count;

	if (machine_on_top(m) > 0) {
		m->stack_count--;
		return 0;
	}
	return pop_mark(m, &count);
}

/* Indexes come in order, as every pickler makes them: no hole takes room. */
int pickle_do_put(struct machine *m, uint64_t index)
{
	int rc = machine_need(m, 1);

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

int pickle_do_memo(struct machine *m, uint8_t op)
{
	bool is_long = op == OP_LONG_BINGET || op == OP_LONG_BINPUT;
	uint64_t index;
	int rc = machine_take_number(m, is_long ? 4 : 1, &index);

	if (rc < 0)
		return rc;
	if (op == OP_BINPUT || op == OP_LONG_BINPUT)
		return pickle_do_put(m, index);
	if (index >= m->memo_count)
		return machine_refuse(m, "index %llu in a memo of %zu",
				      (unsigned long long)index, m->memo_count);
	return machine_push(m, m->memo[index]);
}
