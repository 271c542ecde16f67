/*
 * check_work.c - what all parts of the check need: saying what is wrong, once
 * for the database itself; finding things in the tables; and going through the
 * records of a kind.
 */
#include "store/check/check_work.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/base/vec.h"

#define TEXT_BYTES (2 * PATH_MAX)
#define PROGRESS_STEP 4096
#define PATH_DEPTH_MAX 2048

/* head: stands before the sentence, or NULL. */
__attribute__((format(printf, 6, 0))) static void
tell(struct check *c, bool note, const char *code, const char *object,
     const char *head, const char *format, va_list ap)
{
	struct check_problem p = { note, .code = code, .object = object };
	char text[TEXT_BYTES];
	size_t at = 0;

	if (head) /* a path at the most: it fits */
		at = (size_t)snprintf(text, sizeof(text), "%s: ", head);
	(void)vsnprintf(text + at, sizeof(text) - at, format, ap);
	p.text = text;
	check_tell(c, &p);
}

void check_tell(struct check *c, const struct check_problem *p)
{
	if (p->note)
		c->result->notes++;
	else
		c->result->problems++;
	if (c->options->problem)
		c->options->problem(c->options->self, p);
}

void check_report(struct check *c, const char *code, const char *object,
		  const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	tell(c, false, code, object, object, format, ap);
	va_end(ap);
}

void check_report_text(struct check *c, const char *code, const char *object,
		       const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	tell(c, false, code, object, NULL, format, ap);
	va_end(ap);
}

void check_remark(struct check *c, const char *code, const char *object,
		  const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	tell(c, true, code, object, NULL, format, ap);
	va_end(ap);
}

int check_database_failed(struct check *c, int rc)
{
	CHECK(rc < 0);
	if (rc == -ENOMEM || c->database_failed)
		return rc;
	c->database_failed = true;
	check_report_text(c, "database", "database",
			  "the database cannot be read to its end (%s), so "
			  "nothing more can be checked; images that belong to "
			  "one file alone can still be copied out of 'images' "
			  "as they are",
			  strerror(-rc));
	return rc;
}

void check_progress(struct check *c, const char *phase, uint64_t done,
		    uint64_t total)
{
	if (c->options->progress)
		c->options->progress(c->options->self, phase, done, total);
}

int check_report_record(struct check *c, const struct check_record *r)
{
	char object[64] = "record ";
	size_t at = strlen(object);

	object[at++] = (char)r->key[0];
	for (size_t i = 1; i < r->key_len && at < sizeof(object) - 4; i++)
		at += (size_t)snprintf(object + at, 3, "%02x", r->key[i]);
	object[at] = 0;
	check_report(c, "record", object,
		     "this record in the database is not understood (%zu "
		     "bytes); it is damaged or from another version of ckptfs",
		     r->value_len);
	return 0;
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

/* The path, somewhere in buf; NULL: no names lead to the inode. */
static const char *path_of(struct kv *kv, uint64_t ino, char buf[PATH_MAX])
{
	char *at = buf + PATH_MAX - 1;

	*at = 0;
	for (unsigned depth = 0; ino != ROOT_INO; depth++) {
		struct attr a;

		if (!at || depth == PATH_DEPTH_MAX ||
		    attr_load(kv, key_ino('A', ino), &a) < 0)
			return NULL;
		attr_release(&a);
		if (a.parent == 0 || a.name[0] == 0)
			return NULL;
		at = path_prepend(buf, at, a.name);
		ino = a.parent;
	}
	return at && !*at ? "/" : at;
}

static const char *inode_name(uint64_t ino, char buf[PATH_MAX])
{
	(void)snprintf(buf, PATH_MAX, "inode %llu", (unsigned long long)ino);
	return buf;
}

const char *check_path_in(struct kv *kv, uint64_t ino, char buf[PATH_MAX])
{
	const char *path = path_of(kv, ino, buf);

	return path ? path : inode_name(ino, buf);
}

bool check_number(struct check *c, uint64_t number)
{
	if (number > GENERATION_MAX)
		return false;
	if (number > c->result->greatest_number)
		c->result->greatest_number = number;
	return true;
}

const char *check_path(struct check *c, uint64_t ino)
{
	return check_path_in(c->kv, ino, c->path);
}

const char *check_inode_name(struct check *c, uint64_t ino)
{
	return inode_name(ino, c->path);
}

const char *check_image_name(struct check *c, uint64_t id)
{
	(void)snprintf(c->image, sizeof(c->image), "image %016llx",
		       (unsigned long long)id);
	return c->image;
}

/*
 * The first of `count` items that is not less than `number`, by their first
 * member, a uint64_t by which they are sorted; or count.
 */
static size_t first_from(const void *items, size_t count, size_t item_bytes,
			 uint64_t number)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		uint64_t at;

		memcpy(&at, (const uint8_t *)items + mid * item_bytes,
		       sizeof(at));
		if (at < number)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct check_inode *check_find_inode(struct check *c, uint64_t ino)
{
	size_t n =
		first_from(c->inodes, c->inode_count, sizeof(*c->inodes), ino);

	return n < c->inode_count && c->inodes[n].ino == ino ? &c->inodes[n]
							     : NULL;
}

struct check_inode *check_inode_of(struct check *c,
				   const struct check_record *r, bool regular)
{
	uint64_t ino = get_be64(r->key + 1);
	struct check_inode *i = check_find_inode(c, ino);

	if (i && (!regular || S_ISREG(i->mode)))
		return i;
	check_report(c, "no-inode", check_inode_name(c, ino),
		     "there is a record %c of it, but %s; nothing can be "
		     "reached through it",
		     r->key[0], regular ? "no regular file" : "not the inode");
	return NULL;
}

struct check_image *check_find_image(struct check *c, uint64_t id)
{
	size_t n =
		first_from(c->images, c->image_count, sizeof(*c->images), id);

	return n < c->image_count && c->images[n].id == id ? &c->images[n]
							   : NULL;
}

size_t check_find_chunk(const struct check *c, const struct check_image *i,
			uint64_t offset)
{
	return i->first_chunk + first_from(&c->chunks[i->first_chunk],
					   i->chunk_count, sizeof(*c->chunks),
					   offset);
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

struct each {
	struct check *c;
	const char *phase;
	int (*fn)(struct check *c, const struct check_record *r);
	uint64_t done;
};

static int each_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	const struct check_record r = { .key = key.data,
					.key_len = key.len,
					.value = value.data,
					.value_len = value.len };
	struct each *e = arg;
	int rc = e->fn(e->c, &r);

	if (rc == 0 && ++e->done % PROGRESS_STEP == 0)
		check_progress(e->c, e->phase, e->done, 0);
	return rc;
}

int check_each(struct check *c, char kind, const char *phase,
	       int (*fn)(struct check *c, const struct check_record *r))
{
	struct each e = { .c = c, .phase = phase, .fn = fn };
	int rc = records_each(c->kv, key_kind(kind), each_one, &e);

	return rc < 0 ? check_database_failed(c, rc) : 0;
}
