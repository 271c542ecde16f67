/*
 * npy_array.c - "\x93NUMPY", a version, the header's length, and the header:
 *
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 *
 * Its members come in any order. What is not written so (a record of several
 * types, say) is an array of bytes here, never an error.
 */
#include "store/formats/npy_array.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "store/base/bytes.h"
#include "store/base/scope.h"
#include "store/formats/dtype.h"

#define PREFIX_BYTES 12
#define HEADER_BYTES_MAX (1u << 20)
#define WORD_BYTES 16

struct array {
	char descr[WORD_BYTES];
	bool fortran;
	unsigned rank;
	uint64_t shape[TENSOR_RANK_MAX], strides[TENSOR_RANK_MAX];
};

static void skip_spaces(const char **at)
{
	while (**at == ' ' || **at == '\n' || **at == '\t')
		(*at)++;
}

/* Take this token, with spaces before it. */
static bool take(const char **at, const char *token)
{
	size_t n = strlen(token);

	skip_spaces(at);
	if (strncmp(*at, token, n) != 0)
		return false;
	*at += n;
	return true;
}

/* 'text', printable and without escapes. */
static bool take_text(const char **at, char *ret, size_t size)
{
	size_t n;

	if (!take(at, "'"))
		return false;
	n = strcspn(*at, "'\\");
	if ((*at)[n] != '\'' || n >= size)
		return false;
	for (size_t i = 0; i < n; i++)
		if ((*at)[i] <= ' ' || (*at)[i] > '~')
			return false;
	memcpy(ret, *at, n);
	ret[n] = 0;
	*at += n + 1;
	return true;
}

/* (), (3,), (3, 4) */
static bool take_shape(const char **at, struct array *a)
{
	if (!take(at, "("))
		return false;
	for (a->rank = 0; !take(at, ")"); a->rank++) {
		char *end;

		skip_spaces(at);
		if (a->rank == TENSOR_RANK_MAX || **at < '0' || **at > '9')
			return false;
		errno = 0;
		a->shape[a->rank] = strtoull(*at, &end, 10);
		if (errno != 0)
			return false;
		*at = *end == 'L' ? end + 1 : end; /* Python 2's */
		if (!take(at, ",")) {
			a->rank++;
			return take(at, ")");
		}
	}
	return true;
}

static bool take_order(const char **at, struct array *a)
{
	a->fortran = take(at, "True");
	return a->fortran || take(at, "False");
}

static bool parse(const char *at, struct array *a)
{
	char key[WORD_BYTES];
	unsigned seen = 0;

	if (!take(&at, "{"))
		return false;
	while (!take(&at, "}")) {
		bool good = take_text(&at, key, sizeof(key)) && take(&at, ":");

		if (good && strcmp(key, "descr") == 0)
			good = take_text(&at, a->descr, sizeof(a->descr));
		else if (good && strcmp(key, "fortran_order") == 0)
			good = take_order(&at, a);
		else if (good && strcmp(key, "shape") == 0)
			good = take_shape(&at, a);
		else
			good = false;
		if (!good)
			return false;
		seen++;
		if (!take(&at, ",") && *at != '}')
			return false;
	}
	return seen == 3;
}

/* 1: *ret_bytes; 0: they are more than there can be. */
static bool bytes_of(const struct array *a, size_t item, uint64_t *ret_bytes)
{
	uint64_t bytes = item;

	for (unsigned i = 0; i < a->rank; i++)
		if (a->shape[i] == 0) {
			*ret_bytes = 0;
			return true;
		}
	for (unsigned i = 0; i < a->rank; i++)
		if (__builtin_mul_overflow(bytes, a->shape[i], &bytes))
			return false;
	*ret_bytes = bytes;
	return true;
}

/* As in Fortran: the first index is the one that counts up fastest. */
static const uint64_t *strides_of(struct array *a)
{
	uint64_t stride = 1;

	if (!a->fortran || a->rank < 2)
		return NULL;
	for (unsigned i = 0; i < a->rank; i++) {
		a->strides[i] = stride;
		stride *= a->shape[i];
	}
	return a->strides;
}

/* Where the array begins, from `at` on; 0: no header that is understood. */
static int read_header(const struct cut_source *source, uint64_t at,
		       uint64_t len, struct array *a, uint64_t *ret_begin)
{
	uint8_t prefix[PREFIX_BYTES];
	SCOPED(scope_free) char *text = NULL;
	struct bytes_reader r;
	uint64_t text_at;
	uint32_t text_len;
	uint8_t major;
	int rc;

	*ret_begin = 0;
	if (len < sizeof(prefix))
		return 0;
	rc = source->read(source->self, prefix, sizeof(prefix), at);
	if (rc < 0)
		return rc;
	r = bytes_reader_of(prefix, sizeof(prefix));
	if (memcmp(bytes_take(&r, 6), "\x93NUMPY", 6) != 0)
		return 0;
	major = bytes_take_u8(&r);
	(void)bytes_take_u8(&r); /* minor */
	text_at = major == 1 ? 10 : 12;
	text_len = major == 1 ? bytes_take_u16(&r) : bytes_take_u32(&r);
	if (major < 1 || major > 3 || text_len > HEADER_BYTES_MAX ||
	    text_len > len - text_at)
		return 0;
	text = malloc(text_len + 1);
	if (!text)
		return -ENOMEM;
	rc = source->read(source->self, text, text_len, at + text_at);
	if (rc < 0)
		return rc;
	text[text_len] = 0;
	if (parse(text, a))
		*ret_begin = text_at + text_len;
	return 0;
}

static int add_bytes(struct tensors *l, uint64_t at, uint64_t len,
		     const char *name, const char *file)
{
	return tensors_add(l, &(struct tensor){ .name = name,
						.file = file,
						.offset = at,
						.bytes = len });
}

int npy_array_add(struct tensors *l, const struct cut_source *source,
		  uint64_t at, uint64_t len, const char *name, const char *file)
{
	struct array a = { .rank = 0 };
	struct tensor t = { .name = name, .file = file };
	uint64_t begin;
	size_t item;
	int rc = read_header(source, at, len, &a, &begin);

	if (rc < 0)
		return rc;
	t.dtype = dtype_of_numpy(a.descr, &item);
	if (begin == 0 || item == 0)
		return add_bytes(l, at, len, name, file);
	t.rank = a.rank;
	t.shape = a.shape;
	t.offset = at + begin;
	if (!bytes_of(&a, item, &t.bytes) || t.bytes > len - begin)
		return tensors_refuse(
			l,
			"array '%.200s' is longer than the %" PRIu64
			" bytes that are there: it was cut off",
			name, len - begin);
	t.strides = t.bytes > 0 ? strides_of(&a) : NULL;
	rc = tensors_add(l, &t);
	if (rc == 0 && t.bytes < len - begin)
		rc = add_bytes(l, t.offset + t.bytes, len - begin - t.bytes,
			       "(what follows)", file);
	return rc;
}
