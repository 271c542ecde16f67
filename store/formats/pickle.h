/*
 * pickle.h - read a pickle without executing anything.
 *
 * A pickle is a program that builds objects, and an ordinary reader calls
 * whatever it names. This one knows the classes that its caller lists, and
 * calls none: a "call" is noted as the class and its arguments. The result is
 * a graph of values to be walked through, which may have cycles and may share
 * parts: who walks through it must not trust it to be a tree.
 *
 * What is read: protocols 2 to 5, with frames. What is not known is refused,
 * with its place in the bytes: other classes, opcodes of protocols 0 and 1,
 * persistent ids, extensions, out-of-band buffers, sets, numbers beyond 64
 * bits. A caller whose pickles may hold anything lists PICKLE_OTHER: then
 * other classes, what is made with them, sets and long numbers become objects
 * that nothing is known of, and PICKLE_PERSISTENT allows persistent ids.
 *
 * Memory is bounded: by a limit, and by about 24 bytes for each byte of the
 * pickle. Nothing recurses, and time grows with the pickle's length.
 */
#ifndef STORE_FORMATS_PICKLE_H
#define STORE_FORMATS_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Deepest nesting of what is being built. */
#define PICKLE_MARKS_MAX 1024
/* Longest text, and longest name of a class or module. */
#define PICKLE_TEXT_BYTES_MAX (UINT32_C(1) << 20)
#define PICKLE_CLASSES_MAX 256

/* What may be done with a class. */
enum pickle_role {
	PICKLE_CONSTANT, /* it is a value by itself */
	PICKLE_OBJECT, /* made without arguments, then given a state once */
	PICKLE_CALL, /* called with any arguments */
	PICKLE_ENUM, /* called with a number */
	PICKLE_GETATTR, /* called with an enum and the name of a member */
	PICKLE_MAKES_DICT, /* whatever it is called with, an empty dict */
	/* Without module and name; at most one of each: */
	PICKLE_OTHER, /* every class that is not listed */
	PICKLE_PERSISTENT, /* a persistent id is a call of it, with the id */
};

struct pickle_class {
	const char *module;
	const char *name;
	enum pickle_role role;
	uint32_t id; /* the caller's */
};

enum pickle_kind {
	PICKLE_NONE,
	PICKLE_BOOL,
	PICKLE_INT,
	PICKLE_FLOAT, /* its value is not kept */
	PICKLE_TEXT,
	PICKLE_BYTES,
	PICKLE_TUPLE,
	PICKLE_LIST,
	PICKLE_DICT,
	PICKLE_IS_CLASS, /* the class itself */
	PICKLE_CALLED, /* the result of calling a class */
	PICKLE_IS_OBJECT,
};

typedef uint64_t pickle_value; /* to be looked at with the functions below */

struct pickle {
	const uint8_t *data; /* borrowed: texts point into it */
	const struct pickle_class *classes; /* borrowed */
	uint64_t *words; /* owned */
	size_t word_count, word_capacity;
	pickle_value root;
	size_t end; /* behind the last opcode; what follows was not read */
};

struct pickle_error {
	size_t offset; /* of the opcode */
	char what[224]; /* "STACK_GLOBAL: class 'os.system' is not ..." */
};

/*
 * Read a pickle. *ret borrows data and classes; pickle_release() it.
 * -EBADMSG: refused; ret_error says where and why. -EFBIG: likewise, because
 * of memory_bytes_max. -EOPNOTSUPP: likewise, because of a class that is not in
 * `classes`, or, where others are passed over, of an opcode that is not read or
 * too many marks; nothing may be wrong with it. -ENOMEM.
 */
int pickle_load(const void *data, size_t len,
		const struct pickle_class *classes, size_t class_count,
		size_t memory_bytes_max, struct pickle *ret,
		struct pickle_error *ret_error);
void pickle_release(struct pickle *p);

enum pickle_kind pickle_kind(pickle_value v);
/* Of a text or bytes, not terminated; NULL: it is neither. */
const char *pickle_text(const struct pickle *p, pickle_value v,
			size_t *ret_len);
bool pickle_is_text(const struct pickle *p, pickle_value v, const char *text);
/* False: not a number. */
bool pickle_int(const struct pickle *p, pickle_value v, int64_t *ret);
/* False: not a number from 0 to 2^63 - 1. */
bool pickle_natural(const struct pickle *p, pickle_value v, uint64_t *ret);
/* Of a class, a call or an object; NULL: it is neither. */
const struct pickle_class *pickle_class(const struct pickle *p, pickle_value v);
/* The arguments of a call, a tuple; of others None. */
pickle_value pickle_arguments(pickle_value v);
/* The state of an object; of others, and before it has one, None. */
pickle_value pickle_state(const struct pickle *p, pickle_value v);

/* Through a tuple, a list or a dict (a key, then its value); else nothing. */
struct pickle_walk {
	const struct pickle *p;
	uint32_t at, left; /* values in this segment */
	uint32_t next; /* segment */
	size_t count; /* of all its values */
};

struct pickle_walk pickle_walk(const struct pickle *p, pickle_value v);
bool pickle_next(struct pickle_walk *w, pickle_value *ret);

/*
 * The naturals of a tuple or a list, or of what is the only argument of a call
 * of class size_id (torch.Size): *ret_count in ret, which has room for max.
 */
bool pickle_naturals(const struct pickle *p, pickle_value v, uint32_t size_id,
		     uint64_t *ret, size_t max, unsigned *ret_count);

#endif
