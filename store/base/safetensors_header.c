/*
 * safetensors_header.c - parse and check the header of a safetensors file.
 *
 * The text becomes a tree (json_text.h), and the tree is copied into flat
 * arrays: one of tensors, one of all their shapes, one of all strings. Counts
 * are taken first, so each array is allocated once. Each tensor is checked as
 * it is copied, and last, in the order of the offsets, that the tensors cover
 * the data.
 */
#include "store/base/safetensors_header.h"

#include <cjson/cJSON.h>
#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/json_text.h"
#include "store/base/scope.h"
#include "store/base/text.h"

#define NUMBER_END 9007199254740992.0 /* 2^53: doubles are exact below it */
#define METADATA_KEY "__metadata__"
/* Of a name in a message: the rest of the sentence is to fit as well. */
#define NAME_SHOWN 256

/* Those of safetensors/src/tensor.rs. */
static const struct {
	const char *name;
	unsigned bits;
} dtypes[] = {
	{ "BOOL", 8 },        { "F4", 4 },      { "F6_E2M3", 6 },
	{ "F6_E3M2", 6 },     { "U8", 8 },      { "I8", 8 },
	{ "F8_E5M2", 8 },     { "F8_E4M3", 8 }, { "F8_E8M0", 8 },
	{ "I16", 16 },        { "U16", 16 },    { "F16", 16 },
	{ "BF16", 16 },       { "I32", 32 },    { "U32", 32 },
	{ "F32", 32 },        { "C64", 64 },    { "F64", 64 },
	{ "I64", 64 },        { "U64", 64 },    { "F8_E4M3FNUZ", 8 },
	{ "F8_E5M2FNUZ", 8 },
};

static int dtype_index(const char *dtype)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (strcmp(dtypes[i].name, dtype) == 0)
			return (int)i;
	return -1;
}

unsigned safetensors_dtype_bits(const char *dtype)
{
	int i = dtype_index(dtype);

	return i < 0 ? 0 : dtypes[i].bits;
}

const char *safetensors_dtype_name(const char *dtype)
{
	int i = dtype_index(dtype);

	return i < 0 ? NULL : dtypes[i].name;
}

#define refuse(e, ...) text_refuse((e)->what, sizeof((e)->what), __VA_ARGS__)

int safetensors_header_length(const void *prefix, uint64_t file_bytes,
			      size_t *ret_len,
			      struct safetensors_error *ret_error)
{
	uint64_t len;

	if (file_bytes < SAFETENSORS_PREFIX_BYTES)
		return refuse(ret_error,
			      "not a safetensors file: it has %llu "
			      "bytes, fewer than its header's length takes",
			      (unsigned long long)file_bytes);
	memcpy(&len, prefix, sizeof(len));
	len = le64toh(len);
	if (len > SAFETENSORS_HEADER_BYTES_MAX)
		return refuse(ret_error,
			      "not a safetensors file: a header of %llu "
			      "bytes; there can be %llu",
			      (unsigned long long)len,
			      (unsigned long long)SAFETENSORS_HEADER_BYTES_MAX);
	if (len > file_bytes - SAFETENSORS_PREFIX_BYTES)
		return refuse(ret_error,
			      "a header of %llu bytes, but the file ends "
			      "after %llu: it was cut off, or is no "
			      "safetensors file",
			      (unsigned long long)len,
			      (unsigned long long)file_bytes);
	*ret_len = (size_t)len;
	return 0;
}

/* --- the values --- */

struct parse {
	struct safetensors_error *error;
	uint64_t data_start; /* in the file */
	uint64_t data_bytes;
	struct safetensors_header *h;
	uint64_t *shape_next; /* into h->shapes */
	char *string_next; /* into h->strings */
};

/* The format is what is wrong with the tensor. Yields -EBADMSG. */
#define BAD(p, name, format, ...)                                      \
	refuse((p)->error, "tensor '%.*s': " format, NAME_SHOWN, name, \
	       ##__VA_ARGS__)

static char *keep_string(struct parse *p, const char *s)
{
	size_t bytes = strlen(s) + 1;
	char *kept = p->string_next;

	memcpy(kept, s, bytes);
	p->string_next += bytes;
	return kept;
}

static bool take_number(const cJSON *j, uint64_t *ret)
{
	double v = j->valuedouble;

	/* In this order: a NaN fails the first. */
	if (!cJSON_IsNumber(j) || !(v >= 0) || v >= NUMBER_END)
		return false;
	*ret = (uint64_t)v;
	return (double)*ret == v;
}

static int parse_shape(struct parse *p, const char *name, const cJSON *shape,
		       struct safetensors_tensor *e)
{
	const cJSON *j;

	if (!cJSON_IsArray(shape))
		return BAD(p, name, "its shape is not a list");
	e->shape = p->shape_next;
	e->rank = 0;
	cJSON_ArrayForEach(j, shape) {
		if (e->rank == SAFETENSORS_RANK_MAX)
			return BAD(p, name, "more than %u dimensions",
				   SAFETENSORS_RANK_MAX);
		if (!take_number(j, p->shape_next))
			return BAD(p, name,
				   "dimension %u of its shape is not a number "
				   "from 0 to 2^53 - 1",
				   e->rank);
		p->shape_next++;
		e->rank++;
	}
	return 0;
}

static int parse_offsets(struct parse *p, const char *name,
			 const cJSON *offsets, struct safetensors_tensor *e)
{
	const cJSON *j;
	uint64_t at[2];
	size_t count = 0;

	if (!cJSON_IsArray(offsets))
		return BAD(p, name, "its data_offsets are not a list");
	cJSON_ArrayForEach(j, offsets) {
		if (count == 2 || !take_number(j, &at[count]))
			return BAD(p, name,
				   "its data_offsets are not two "
				   "numbers from 0 to 2^53 - 1");
		count++;
	}
	if (count < 2)
		return BAD(p, name, "its data_offsets are not two numbers");
	if (at[0] > at[1] || at[1] > p->data_bytes)
		return BAD(p, name,
			   "its data_offsets are %llu to %llu, and the file "
			   "has %llu bytes of data",
			   (unsigned long long)at[0], (unsigned long long)at[1],
			   (unsigned long long)p->data_bytes);
	e->offset = p->data_start + at[0];
	e->bytes = at[1] - at[0];
	return 0;
}

/* Does the shape make the bytes? Types of less than a byte are packed. */
static int check_bytes(const struct parse *p,
		       const struct safetensors_tensor *e)
{
	unsigned element_bits = safetensors_dtype_bits(e->dtype);
	uint64_t bits = 1;
	bool over = false;

	if (element_bits == 0) {
		p->error->newer = true;
		return BAD(p, e->name, "unknown dtype '%.*s'", NAME_SHOWN,
			   e->dtype);
	}
	/* In order, whatever 0 comes later: as safetensors does it. */
	for (unsigned i = 0; i < e->rank; i++)
		over |= __builtin_mul_overflow(bits, e->shape[i], &bits);
	over |= __builtin_mul_overflow(bits, element_bits, &bits);
	if (over)
		return BAD(p, e->name,
			   "its shape has more elements than can be counted");
	if (bits % 8 != 0)
		return BAD(p, e->name,
			   "its elements are no whole number of bytes");
	if (bits / 8 != e->bytes)
		return BAD(p, e->name,
			   "its shape and dtype make %llu bytes, its "
			   "data_offsets %llu",
			   (unsigned long long)(bits / 8),
			   (unsigned long long)e->bytes);
	return 0;
}

static int parse_entry(struct parse *p, const cJSON *j)
{
	struct safetensors_tensor *e = &p->h->entries[p->h->count];
	const cJSON *found[3] = { NULL, NULL, NULL };
	static const char *const keys[3] = { "dtype", "shape", "data_offsets" };
	const cJSON *member;
	int rc;

	if (!cJSON_IsObject(j))
		return BAD(p, j->string, "not an object");
	cJSON_ArrayForEach(member, j) {
		for (size_t i = 0; i < 3; i++) {
			if (strcmp(member->string, keys[i]) != 0)
				continue;
			if (found[i])
				return BAD(p, j->string, "%s is there twice",
					   keys[i]);
			found[i] = member;
		}
	}
	for (size_t i = 0; i < 3; i++)
		if (!found[i])
			return BAD(p, j->string, "%s is missing", keys[i]);
	if (!cJSON_IsString(found[0]))
		return BAD(p, j->string, "its dtype is not a string");
	e->name = keep_string(p, j->string);
	e->dtype = keep_string(p, found[0]->valuestring);
	rc = parse_shape(p, j->string, found[1], e);
	if (rc == 0)
		rc = parse_offsets(p, j->string, found[2], e);
	if (rc == 0)
		rc = check_bytes(p, e);
	if (rc == 0)
		p->h->count++;
	return rc;
}

static int compare_pairs(const void *a, const void *b)
{
	const struct safetensors_pair *const *x = a, *const *y = b;

	return strcmp((*x)->key, (*y)->key);
}

static int check_metadata_keys(const struct parse *p)
{
	const struct safetensors_header *h = p->h;
	SCOPED(scope_free)
	const struct safetensors_pair **sorted =
		calloc(h->metadata_count + 1, sizeof(*sorted));

	if (!sorted)
		return -ENOMEM;
	for (size_t i = 0; i < h->metadata_count; i++)
		sorted[i] = &h->metadata[i];
	qsort(sorted, h->metadata_count, sizeof(*sorted), compare_pairs);
	for (size_t i = 1; i < h->metadata_count; i++)
		if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
			return refuse(p->error,
				      METADATA_KEY ": the key '%.*s' "
						   "is there twice",
				      NAME_SHOWN, sorted[i]->key);
	return 0;
}

static int parse_metadata(struct parse *p, const cJSON *j)
{
	const cJSON *member;

	if (p->h->metadata)
		return refuse(p->error, METADATA_KEY " is there twice");
	/* safetensors takes a null for none. */
	if (!cJSON_IsObject(j) && !cJSON_IsNull(j))
		return refuse(p->error, METADATA_KEY " is not an object");
	p->h->metadata = calloc((size_t)cJSON_GetArraySize(j) + 1,
				sizeof(*p->h->metadata));
	if (!p->h->metadata)
		return -ENOMEM;
	cJSON_ArrayForEach(member, j) {
		if (!cJSON_IsString(member))
			return refuse(p->error,
				      METADATA_KEY ": the value of "
						   "'%.*s' is not a string",
				      NAME_SHOWN, member->string);
		p->h->metadata[p->h->metadata_count++] =
			(struct safetensors_pair){
				.key = keep_string(p, member->string),
				.value = keep_string(p, member->valuestring),
			};
	}
	return check_metadata_keys(p);
}

/* --- all of them --- */

/* Empty ones before that which starts there; else as they were. */
static int compare_offsets(const void *a, const void *b)
{
	const struct safetensors_tensor *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
	const struct safetensors_tensor *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static int check_cover(const struct parse *p)
{
	uint64_t end = p->data_start;

	for (size_t i = 0; i < p->h->count; i++) {
		const struct safetensors_tensor *e = &p->h->entries[i];

		if (e->offset != end)
			return BAD(
				p, e->name,
				"%s: it starts at byte %llu of the data "
				"instead of %llu",
				e->offset < end ? "overlaps another"
						: "a gap before it",
				(unsigned long long)(e->offset - p->data_start),
				(unsigned long long)(end - p->data_start));
		end += e->bytes;
	}
	if (end - p->data_start != p->data_bytes)
		return refuse(p->error,
			      "the tensors have %llu bytes, the file "
			      "has %llu for them",
			      (unsigned long long)(end - p->data_start),
			      (unsigned long long)p->data_bytes);
	return 0;
}

static int sort_names(const struct parse *p)
{
	struct safetensors_header *h = p->h;

	for (size_t i = 0; i < h->count; i++)
		h->by_name[i] = &h->entries[i];
	qsort(h->by_name, h->count, sizeof(*h->by_name), compare_names);
	for (size_t i = 1; i < h->count; i++)
		if (strcmp(h->by_name[i - 1]->name, h->by_name[i]->name) == 0)
			return BAD(p, h->by_name[i]->name,
				   "there are two of that name");
	return 0;
}

/* How many numbers the shapes of all tensors have. */
static size_t count_dimensions(const cJSON *root)
{
	const cJSON *j;
	size_t count = 0;

	/* Entries with two shapes are refused before the second. */
	cJSON_ArrayForEach(j, root)
		count += (size_t)cJSON_GetArraySize(
			cJSON_GetObjectItemCaseSensitive(j, "shape"));
	return count;
}

static int parse_root(struct parse *p, const cJSON *root, size_t len)
{
	struct safetensors_header *h = p->h;
	size_t members = (size_t)cJSON_GetArraySize(root);
	const cJSON *j;
	int rc = 0;

	/* One more each: calloc(0) may give NULL. */
	h->entries = calloc(members + 1, sizeof(*h->entries));
	h->by_name = calloc(members + 1, sizeof(*h->by_name));
	h->shapes = calloc(count_dimensions(root) + 1, sizeof(*h->shapes));
	/* A string with its NUL is no longer than with its quotes. */
	h->strings = malloc(len);
	if (!h->entries || !h->by_name || !h->shapes || !h->strings)
		return -ENOMEM;
	p->shape_next = h->shapes;
	p->string_next = h->strings;
	cJSON_ArrayForEach(j, root) {
		if (strcmp(j->string, METADATA_KEY) == 0)
			rc = parse_metadata(p, j);
		else
			rc = parse_entry(p, j);
		if (rc < 0)
			return rc;
	}
	qsort(h->entries, h->count, sizeof(*h->entries), compare_offsets);
	rc = sort_names(p);
	return rc < 0 ? rc : check_cover(p);
}

static void scope_json(cJSON **j)
{
	cJSON_Delete(*j);
}

int safetensors_header_parse(const char *json, size_t len, uint64_t file_bytes,
			     struct safetensors_header *ret,
			     struct safetensors_error *ret_error)
{
	struct safetensors_header h = { .entries = NULL };
	struct parse p = {
		.error = ret_error,
		.data_start = SAFETENSORS_PREFIX_BYTES + len,
		.data_bytes = file_bytes - SAFETENSORS_PREFIX_BYTES - len,
		.h = &h,
	};
	SCOPED(scope_json) cJSON *root = NULL;
	const char *wrong;
	size_t at;
	int rc;

	CHECK(file_bytes >= SAFETENSORS_PREFIX_BYTES + len);
	if (len == 0 || json[0] != '{')
		return refuse(ret_error,
			      "not a safetensors file: no '{' after the "
			      "header's length");
	wrong = json_text_parse(json, len, &root, &at);
	if (wrong)
		return refuse(ret_error, "byte %zu of its header: %s", at,
			      wrong);
	rc = parse_root(&p, root, len);
	if (rc < 0)
		safetensors_header_release(&h);
	else
		*ret = h;
	return rc;
}

void safetensors_header_release(struct safetensors_header *h)
{
	free(h->entries);
	free(h->by_name);
	free(h->metadata);
	free(h->shapes);
	free(h->strings);
	memset(h, 0, sizeof(*h));
}

const struct safetensors_tensor *
safetensors_header_find(const struct safetensors_header *h, const char *name)
{
	struct safetensors_tensor key = { .name = name };
	struct safetensors_tensor *at = &key;
	struct safetensors_tensor **found = bsearch(
		&at, h->by_name, h->count, sizeof(*h->by_name), compare_names);

	return found ? *found : NULL;
}
