/*
 * pickle_machine.h - a pickle as it is read: a stack of values, a memo, marks,
 * and the words that values refer to; for pickle*.c alone.
 *
 * Errors: 0, -ENOMEM, -EBADMSG or -EFBIG; of the last two m->error has what.
 */
#ifndef STORE_FORMATS_PICKLE_MACHINE_H
#define STORE_FORMATS_PICKLE_MACHINE_H

#include "store/formats/pickle_value.h"

/* Room for the beginning of a name in a message. */
#define NAME_SHOWN 60
#define CLASS_BUCKETS 256
#define MACHINE_NOT_READ "not an opcode of what is read here"

struct machine;

struct opcode {
	const char *name; /* NULL: there is no such opcode */
	int (*run)(struct machine *m); /* NULL: it is not read here */
	size_t n; /* what it is of, run knows */
	enum tag tag; /* of what it yields or extends */
	bool open; /* only in a pickle in which anything may be */
};

struct machine {
	struct pickle p;
	size_t len;
	size_t class_count;
	size_t memory_left;
	struct pickle_error *error;

	size_t at; /* the next byte */
	size_t op_at; /* the opcode that is being done ... */
	const struct opcode *op; /* ... or NULL: there is none */
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
	uint16_t heads[CLASS_BUCKETS];
	uint16_t nexts[PICKLE_CLASSES_MAX];
};

/* What is wrong with the opcode that is being done; returns -EBADMSG. */
int machine_refuse(struct machine *m, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A name of the pickle's, as far as it can be shown. */
const char *machine_shown(const char *text, size_t len,
			  char ret[NAME_SHOWN + 4]);

/* Room for `more` words behind count. */
int machine_grow(struct machine *m, uint64_t **words, size_t *capacity,
		 size_t count, size_t more);
/* *ret_at is the index of `count` new words. */
int machine_add_words(struct machine *m, size_t count, uint32_t *ret_at);

int machine_push(struct machine *m, pickle_value v);
/* How many values there are above the last mark: no other may be taken. */
size_t machine_on_top(const struct machine *m);
int machine_need(struct machine *m, size_t count);

/* The next len bytes; NULL: refused. */
const uint8_t *machine_take(struct machine *m, uint64_t len);
int machine_take_number(struct machine *m, size_t bytes, uint64_t *ret);

/* Whether anything may be in it. */
bool machine_is_open(const struct machine *m);
/*
 * What machine_refuse() was told of is no damage, where anything may be in it,
 * but more than is read here: -EOPNOTSUPP, else -EBADMSG.
 */
int machine_not_read(const struct machine *m);
/* A new list or dict, with nothing in it. */
int machine_push_empty(struct machine *m, enum tag tag);
/* A new object of a class, without a state. */
int machine_push_object(struct machine *m, size_t class);
/* An object that nothing is known of. */
int machine_push_other(struct machine *m);
bool machine_is_other(const struct machine *m, pickle_value v);

#endif
