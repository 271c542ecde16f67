/*
 * safetensors.c - eight bytes of length, a JSON object, then the tensors.
 *
 *   {"__metadata__": {"k": "v"},
 *    "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
 *
 * Offsets count from the end of the header. They need not be in order, so
 * they are collected and sorted; where they overlap or leave holes, each end
 * is still just a place where a piece starts, and no check is needed.
 *
 * The scanner knows the JSON that it needs to find its way: strings with
 * their escapes, nesting, and numbers where offsets are expected. It is no
 * validator. At the first thing it cannot follow it stops, and what it has
 * found so far is used.
 */
#include "store/formats/safetensors.h"

#include <endian.h>

#include "store/base/scope.h"
#include "store/base/vec.h"

#define SAFETENSORS_PREFIX_BYTES 8
/* Both ends of 2^20 tensors; later ones are not looked at. */
#define SAFETENSORS_MARKS_MAX (UINT32_C(2) << 20)
#define SCAN_END (-1)

struct scan {
	struct walk *w;
	const uint8_t *at; /* [at, end): read ahead, in the walk's window */
	const uint8_t *end;
	uint64_t off; /* in the file, of `end` */
	uint64_t header_end;
	int rc; /* the first error, after which there are no more bytes */

	uint64_t *marks; /* owned; file offsets, not in order */
	size_t count;
	size_t capacity;
};

static bool scan_fill(struct scan *s)
{
	uint64_t left = s->header_end - s->off;
	size_t len = WALK_WINDOW_BYTES;

	if (left < len)
		len = (size_t)left;
	if (len == 0 || s->rc < 0)
		return false;
	s->rc = walk_peek(s->w, s->off, len, s->off, s->off + len, &s->at);
	if (s->rc < 0)
		return false;
	s->end = s->at + len;
	s->off += len;
	return true;
}

/* The next byte, which stays; or SCAN_END. */
static inline int scan_look(struct scan *s)
{
	if (s->at == s->end && !scan_fill(s))
		return SCAN_END;
	return *s->at;
}

/* The next byte, taken; or SCAN_END. */
static inline int scan_next(struct scan *s)
{
	int c = scan_look(s);

	if (c != SCAN_END)
		s->at++;
	return c;
}

/* The next byte that is not white space; it stays. */
static int scan_look_token(struct scan *s)
{
	for (;;) {
		int c = scan_look(s);

		if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
			return c;
		s->at++;
	}
}

/* Take the token c, or leave what is there instead. */
static bool scan_take(struct scan *s, int c)
{
	if (scan_look_token(s) != c)
		return false;
	s->at++;
	return true;
}

/*
 * Pass a string whose opening quote was taken. *ret_same tells whether it is
 * `word`, spelt without escapes. False: the header ended inside it.
 */
static bool scan_string(struct scan *s, const char *word, bool *ret_same)
{
	bool same = true;
	int c;

	while ((c = scan_next(s)) != '"') {
		if (c == SCAN_END)
			return false;
		if (c == '\\') {
			same = false;
			if (scan_next(s) == SCAN_END)
				return false;
		}
		if (same && *word == c && c != '\0')
			word++;
		else
			same = false;
	}
	*ret_same = same && *word == '\0';
	return true;
}

/* Pass one value of any kind, however deeply nested, without recursion. */
static bool scan_skip(struct scan *s)
{
	uint32_t depth = 0;
	bool same;

	for (;;) {
		int c = scan_look_token(s);

		if (c == SCAN_END)
			return false;
		if (depth == 0 && (c == ',' || c == '}' || c == ']'))
			return true; /* belongs to whoever holds the value */
		s->at++;
		if (c == '{' || c == '[')
			depth++;
		else if (c == '}' || c == ']')
			depth--;
		else if (c == '"' && !scan_string(s, "", &same))
			return false;
	}
}

static bool scan_number(struct scan *s, uint64_t *ret)
{
	uint64_t v = 0;
	int c = scan_look_token(s);

	if (c < '0' || c > '9')
		return false;
	for (; c >= '0' && c <= '9'; c = scan_look(s)) {
		if (__builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(c - '0'), &v))
			return false;
		s->at++;
	}
	*ret = v;
	return true;
}

static bool scan_push(struct scan *s, uint64_t off)
{
	s->rc = vec_grow(&s->marks, s->count, &s->capacity, sizeof(off));
	if (s->rc < 0)
		return false;
	s->marks[s->count++] = off;
	return true;
}

/*
 * The value of "data_offsets". An end past the file's is left out, its start
 * is not: a file that is still growing is cut like the complete one.
 */
static bool scan_offsets(struct scan *s)
{
	uint64_t data_bytes = walk_size(s->w) - s->header_end;
	uint64_t begin;
	uint64_t end;

	if (!scan_take(s, '['))
		return scan_skip(s);
	if (!scan_number(s, &begin) || !scan_take(s, ',') ||
	    !scan_number(s, &end) || !scan_take(s, ']'))
		return false;
	if (begin >= end || s->count >= SAFETENSORS_MARKS_MAX)
		return true;
	if (begin < data_bytes && !scan_push(s, s->header_end + begin))
		return false;
	if (end < data_bytes && !scan_push(s, s->header_end + end))
		return false;
	return true;
}

/* Go on to the next member of an object; its key is, or is not, `word`. */
static bool scan_key(struct scan *s, const char *word, bool *ret_same)
{
	return scan_take(s, '"') && scan_string(s, word, ret_same) &&
	       scan_take(s, ':');
}

/* One tensor: an object whose brace was not taken yet. */
static bool scan_tensor(struct scan *s)
{
	bool same;

	if (!scan_take(s, '{'))
		return scan_skip(s);
	if (scan_take(s, '}'))
		return true;
	do {
		if (!scan_key(s, "data_offsets", &same))
			return false;
		if (!(same ? scan_offsets(s) : scan_skip(s)))
			return false;
	} while (scan_take(s, ','));
	return scan_take(s, '}');
}

/* All tensors. How well it went does not matter: what was found is found. */
static void scan_header(struct scan *s)
{
	bool same;

	if (!scan_take(s, '{'))
		return;
	do {
		if (!scan_key(s, "__metadata__", &same))
			return;
		if (!(same ? scan_skip(s) : scan_tensor(s)))
			return;
	} while (scan_take(s, ','));
}

static int compare_u64(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static int safetensors_mark(struct walk *w, const struct scan *s)
{
	int rc = walk_mark(w, s->header_end);

	for (size_t i = 0; rc == 0 && i < s->count; i++)
		rc = walk_mark(w, s->marks[i]);
	return rc < 0 ? rc : 1;
}

/* Where the header ends, or 0 if there is none. */
static int safetensors_header_end(struct walk *w, uint64_t *ret)
{
	uint8_t prefix[SAFETENSORS_PREFIX_BYTES + 1];
	uint64_t n;
	int rc;

	*ret = 0;
	if (walk_size(w) < sizeof(prefix))
		return 0;
	rc = walk_read(w, prefix, sizeof(prefix), 0);
	if (rc < 0)
		return rc;
	memcpy(&n, prefix, sizeof(n));
	n = le64toh(n);
	if (prefix[SAFETENSORS_PREFIX_BYTES] != '{' || n < 2 ||
	    n > CUT_HEADER_BYTES_MAX ||
	    n > walk_size(w) - SAFETENSORS_PREFIX_BYTES)
		return 0;
	*ret = SAFETENSORS_PREFIX_BYTES + n;
	return 0;
}

int safetensors_walk(struct walk *w)
{
	struct scan s = { .w = w, .off = SAFETENSORS_PREFIX_BYTES };
	int rc;

	rc = safetensors_header_end(w, &s.header_end);
	if (rc < 0 || s.header_end == 0)
		return rc;

	scan_header(&s);
	rc = s.rc;
	if (rc == 0) {
		if (s.count > 0)
			qsort(s.marks, s.count, sizeof(*s.marks), compare_u64);
		rc = safetensors_mark(w, &s);
	}
	free(s.marks);
	return rc;
}
