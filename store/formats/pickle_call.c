/*
 * pickle_call.c - opcodes that name a class, call it, or give an object its
 * state. None is executed: a call becomes a value that says what it was of.
 */
#include "store/formats/pickle_call.h"

#include <errno.h>
#include <string.h>

static size_t bucket(const char *name, size_t len)
{
	uint32_t h = (uint32_t)len;

	for (size_t i = 0; i < len && i < 16; i++)
		h = h * 31 + (uint8_t)name[i];
	return (h ^ h >> 8) % CLASS_BUCKETS;
}

void pickle_index_classes(struct machine *m)
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
			return machine_push(m, of_class(TAG_CLASS, i - 1, 0));
	}
	if (machine_is_open(m))
		return machine_push(m, of_class(TAG_CLASS, m->other, 0));
	(void)machine_refuse(m,
			     "'%s.%s' is none of the names that are known here",
			     machine_shown(module, module_len, shown_module),
			     machine_shown(name, name_len, shown_name));
	return -EOPNOTSUPP;
}

static int take_line(struct machine *m, const char **ret, size_t *ret_len)
{
	size_t left = (m->frame_end ? m->frame_end : m->len) - m->at;
	const uint8_t *at = m->p.data + m->at;
	const uint8_t *end = memchr(
		at, '\n',
		left < PICKLE_TEXT_BYTES_MAX ? left : PICKLE_TEXT_BYTES_MAX);

	if (!end)
		return machine_refuse(m, "a name without an end");
	*ret = (const char *)at;
	*ret_len = (size_t)(end - at);
	m->at += *ret_len + 1;
	return 0;
}

int pickle_run_global(struct machine *m)
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

int pickle_run_stack_global(struct machine *m)
{
	const char *module, *name;
	size_t module_len, name_len;
	int rc = machine_need(m, 2);

	if (rc < 0)
		return rc;
	module = pickle_text(&m->p, m->stack[m->stack_count - 2], &module_len);
	name = pickle_text(&m->p, m->stack[m->stack_count - 1], &name_len);
	if (!module || !name)
		return machine_refuse(m, "the names are no texts");
	m->stack_count -= 2;
	return push_class(m, module, module_len, name, name_len);
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
 * The two on top: a class and a tuple. 1: their result is an object that
 * nothing is known of, or a dict, and it was pushed; 0; or -errno.
 */
static int begin_call(struct machine *m, const struct pickle_class **ret_class,
		      pickle_value *ret_args)
{
	pickle_value callee;
	enum tag tag;
	int rc = machine_need(m, 2);

	if (rc < 0)
		return rc;
	callee = m->stack[m->stack_count - 2];
	*ret_args = m->stack[m->stack_count - 1];
	tag = tag_of(callee);
	if (tag != TAG_CLASS &&
	    !(machine_is_open(m) && (tag == TAG_OBJECT || tag == TAG_CALLED)))
		return machine_refuse(m, "what it is to call is no class");
	if (tag_of(*ret_args) != TAG_TUPLE)
		return machine_refuse(m, "its arguments are no tuple");
	*ret_class = class_of(&m->p, callee);
	if (!machine_is_open(m) ||
	    (tag == TAG_CLASS && (*ret_class)->role != PICKLE_OTHER &&
	     (*ret_class)->role != PICKLE_MAKES_DICT))
		return 0;
	m->stack_count -= 2;
	if (tag == TAG_CLASS && (*ret_class)->role == PICKLE_MAKES_DICT)
		rc = machine_push_empty(m, TAG_DICT);
	else
		rc = machine_push_other(m);
	return rc < 0 ? rc : 1;
}

int pickle_run_reduce(struct machine *m)
{
	const struct pickle_class *class;
	pickle_value args;
	int rc = begin_call(m, &class, &args);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	if (!may_call(&m->p, class->role, args)) {
		(void)machine_refuse(m, "'%s.%s' is not called like that",
				     class->module, class->name);
		return machine_not_read(m);
	}
	m->stack_count -= 2;
	return machine_push(m,
			    of_class(TAG_CALLED, (size_t)(class - m->p.classes),
				     index_of(args)));
}

int pickle_run_newobj(struct machine *m)
{
	const struct pickle_class *class;
	pickle_value args;
	int rc = begin_call(m, &class, &args);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	if (class->role != PICKLE_OBJECT || m->p.words[index_of(args)] != 0)
		return machine_refuse(m, "'%s.%s' is not made like that",
				      class->module, class->name);
	m->stack_count -= 2;
	return machine_push_object(m, (size_t)(class - m->p.classes));
}

/* A class, arguments and a dict of more of them. */
int pickle_run_newobj_ex(struct machine *m)
{
	int rc = machine_need(m, 3);

	if (rc < 0)
		return rc;
	m->stack_count -= 3;
	return machine_push_other(m);
}

int pickle_run_persistent(struct machine *m)
{
	uint32_t at = 0;
	int rc;

	if (m->persistent == m->class_count)
		return machine_refuse(m, MACHINE_NOT_READ);
	rc = machine_need(m, 1);
	if (rc == 0)
		rc = machine_add_words(m, 2, &at);
	if (rc < 0)
		return rc;
	m->p.words[at] = 1;
	m->p.words[at + 1] = m->stack[--m->stack_count];
	return machine_push(m, of_class(TAG_CALLED, m->persistent, at));
}

int pickle_run_build(struct machine *m)
{
	pickle_value object;
	uint64_t *state;
	int rc = machine_need(m, 2);

	if (rc < 0)
		return rc;
	object = m->stack[m->stack_count - 2];
	if (machine_is_open(m) &&
	    (tag_of(object) != TAG_OBJECT ||
	     class_of(&m->p, object)->role == PICKLE_OTHER)) {
		m->stack_count--;
		return 0;
	}
	if (tag_of(object) != TAG_OBJECT)
		return machine_refuse(m, "a state for what is no object");
	state = &m->p.words[index_of(object)];
	if (tag_of(*state) != TAG_NONE)
		return machine_refuse(m, "a second state for one object");
	*state = m->stack[--m->stack_count];
	return 0;
}
