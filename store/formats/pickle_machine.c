/*
 * pickle_machine.c - the machine's room, its stack and its next bytes, each
 * with its limit. See pickle_machine.h.
 */
#include "store/formats/pickle_machine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "store/base/vec.h"

#define WORDS_MAX UINT32_MAX

int machine_refuse(struct machine *m, const char *format, ...)
{
	struct pickle_error *e = m->error;
	va_list ap;
	int n = 0;

	e->offset = m->op_at;
	if (m->op && m->op->name)
		n = snprintf(e->what, sizeof(e->what), "%s: ", m->op->name);
	va_start(ap, format);
	(void)vsnprintf(e->what + n, sizeof(e->what) - (size_t)n, format, ap);
	va_end(ap);
	return -EBADMSG;
}

const char *machine_shown(const char *text, size_t len,
			  char ret[NAME_SHOWN + 4])
{
	size_t n = len < NAME_SHOWN ? len : NAME_SHOWN;

	for (size_t i = 0; i < n; i++)
		ret[i] = text[i] >= ' ' && text[i] < 0x7f ? text[i] : '?';
	(void)strcpy(ret + n, n < len ? "..." : "");
	return ret;
}

int machine_grow(struct machine *m, uint64_t **words, size_t *capacity,
		 size_t count, size_t more)
{
	int rc = -EFBIG;

	if (more <= WORDS_MAX - count)
		rc = vec_reserve_within(words, count, more, capacity,
					sizeof(**words), &m->memory_left);
	if (rc == -EFBIG)
		(void)machine_refuse(m,
				     "takes more memory than the limit allows");
	return rc;
}

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

bool machine_is_open(const struct machine *m)
{
	return m->other < m->class_count;
}

int machine_not_read(const struct machine *m)
{
	return machine_is_open(m) ? -EOPNOTSUPP : -EBADMSG;
}

int machine_push_empty(struct machine *m, enum tag tag)
{
	uint32_t at;
	int rc = machine_add_words(m, 2, &at);

	if (rc < 0)
		return rc;
	m->p.words[at] = 0;
	m->p.words[at + 1] = 0;
	return machine_push(m, value(tag, at));
}

int machine_push_object(struct machine *m, size_t class)
{
	uint32_t at;
	int rc = machine_add_words(m, 1, &at);

	if (rc < 0)
		return rc;
	m->p.words[at] = value(TAG_NONE, 0);
	return machine_push(m, of_class(TAG_OBJECT, class, at));
}

int machine_push_other(struct machine *m)
{
	return machine_push_object(m, m->other);
}

bool machine_is_other(const struct machine *m, pickle_value v)
{
	return machine_is_open(m) && (tag_of(v) == TAG_OBJECT) &&
	       class_of(&m->p, v)->role == PICKLE_OTHER;
}
