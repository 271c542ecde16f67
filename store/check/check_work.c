/*
 * check_work.c - what all parts of the check need: saying what is wrong, once
 * for the database itself; finding things in the tables; and going through the
 * records of a kind.
 */
#include "store/check/check_work.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/vec.h"

#define TEXT_BYTES (2 * PATH_MAX)
#define PROGRESS_STEP 4096
#define PATH_DEPTH_MAX 2048

void check_report(struct check *c, const char *code, const char *object,
		  const char *format, ...)
{
	struct check_problem p = { .code = code, .object = object };
	char text[TEXT_BYTES];
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	p.text = text;
	c->result->problems++;
	c->options->problem(c->options->self, &p);
}

void check_remark(struct check *c, const char *code, const char *object,
		  const char *format, ...)
{
	struct check_problem p = { .code = code, .object = object };
	char text[TEXT_BYTES];
	va_list ap;

	c->result->notes++;
	if (!c->options->note)
		return;
	va_start(ap, format);
	(void)vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	p.text = text;
	c->options->note(c->options->self, &p);
}

int check_database_failed(struct check *c, int rc)
{
	CHECK(rc < 0);
	if (rc == -ENOMEM || c->database_failed)
		return rc;
	c->database_failed = true;
	check_report(c, "database", "database",
		     "the database cannot be read to its end (%s), so nothing "
		     "more can be checked; images that belong to one file "
		     "alone can still be copied out of 'images' as they are",
		     strerror(-rc));
	return rc;
}

void check_progress(struct check *c, const char *phase, uint64_t done,
		    uint64_t total)
{
	if (c->options->progress)
		c->options->progress(c->options->self, phase, done, total);
}

void check_report_record(struct check *c, char kind,
			 const struct check_record *r)
{
	char object[64] = "record ";
	size_t at = strlen(object);

	object[at++] = kind;
	for (size_t i = 1; i < r->key_len && at < sizeof(object) - 4; i++)
		at += (size_t)snprintf(object + at, 3, "%02x", r->key[i]);
	object[at] = 0;
	check_report(c, "record", object,
		     "%s: this record in the database is not understood (%zu "
		     "bytes); it is damaged or from another version of ckptfs",
		     object, r->value_len);
}

/* Prepend `/name` to the text that starts at `at`; NULL: no room. */
static char *path_prepend(const char *begin, char *at, const char *name)
{
	size_t len = strlen(name);

	if ((size_t)(at - begin) < len + 1)
		return NULL;
	at -= len;
	memcpy(at, name, len);
	*--at = '/';
	return at;
}

const char *check_path(struct check *c, uint64_t ino,
		       char ret[CHECK_OBJECT_BYTES])
{
	char *at = ret + CHECK_OBJECT_BYTES - 1;
	uint64_t i = ino;

	*at = 0;
	for (unsigned depth = 0; i != ROOT_INO; depth++) {
		SCOPED(scope_free) void *value = NULL;
		struct key k = key_ino('A', i);
		struct attr a;
		size_t len;

		if (!at || depth == PATH_DEPTH_MAX ||
		    kv_get(c->kv, k.data, k.len, &value, &len) < 0 ||
		    attr_decode(value, len, &a) < 0)
			goto no_path;
		attr_release(&a);
		if (a.parent == 0 || a.name[0] == 0)
			goto no_path;
		at = path_prepend(ret, at, a.name);
		i = a.parent;
	}
	if (!at)
		goto no_path;
	if (*at == 0)
		*--at = '/';
	memmove(ret, at, strlen(at) + 1);
	return ret;
no_path:
	(void)snprintf(ret, CHECK_OBJECT_BYTES, "inode %llu",
		       (unsigned long long)ino);
	return ret;
}

const char *check_image_name(uint64_t id, char ret[CHECK_IMAGE_BYTES])
{
	(void)snprintf(ret, CHECK_IMAGE_BYTES, "image %016llx",
		       (unsigned long long)id);
	return ret;
}

struct check_inode *check_find_inode(struct check *c, uint64_t ino)
{
	size_t low = 0, high = c->inode_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (c->inodes[mid].ino < ino)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == c->inode_count || c->inodes[low].ino != ino)
		return NULL;
	return &c->inodes[low];
}

struct check_image *check_find_image(struct check *c, uint64_t id)
{
	size_t low = 0, high = c->image_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (c->images[mid].id < id)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == c->image_count || c->images[low].id != id)
		return NULL;
	return &c->images[low];
}

size_t check_find_chunk(const struct check *c, const struct check_image *i,
			uint64_t offset)
{
	size_t low = i->first_chunk, high = low + i->chunk_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (c->chunks[mid].offset < offset)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

uint32_t check_hash_tag(const uint8_t hash[HASH_BYTES], uint64_t domain)
{
	uint64_t a, b;

	memcpy(&a, hash, 8);
	memcpy(&b, hash + 8, 8);
	b = (b ^ domain) * UINT64_C(0x9e3779b97f4a7c15);
	a = (a ^ b) * UINT64_C(0xd6e8feb86659fd93);
	return (uint32_t)(a >> 32);
}

int check_add_damage(struct check *c, size_t first, size_t count, int rc)
{
	int grown = vec_grow(&c->damage, c->damage_count, &c->damage_capacity,
			     sizeof(*c->damage));

	if (grown < 0)
		return grown;
	c->damage[c->damage_count++] = (struct check_damage){
		.first = first,
		.count = count,
		.rc = rc,
	};
	return 0;
}

int check_each(struct check *c, char kind, const char *phase,
	       int (*fn)(struct check *c, const struct check_record *r))
{
	struct kv_slice key, value;
	struct kv_iter *it;
	uint64_t done = 0;
	int rc;

	rc = kv_iter_new(c->kv, &kind, 1, NULL, 0, &it);
	if (rc < 0)
		return check_database_failed(c, rc);
	for (;;) {
		struct check_record r;

		rc = kv_iter_next(it, &key, &value);
		if (rc < 0)
			rc = check_database_failed(c, rc);
		if (rc <= 0)
			break;
		r = (struct check_record){ .key = key.data,
					   .key_len = key.len,
					   .value = value.data,
					   .value_len = value.len };
		rc = fn(c, &r);
		if (rc < 0)
			break;
		if (++done % PROGRESS_STEP == 0)
			check_progress(c, phase, done, 0);
	}
	kv_iter_free(it);
	return rc;
}
