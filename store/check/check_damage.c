/*
 * check_damage.c - the last part of the check: which files contain the chunks
 * that cannot be read back as they were stored. Chunks do not know their
 * files, so all contents are gone through once, and only when there is damage.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/check/check_work.h"

/* More pairs of damage and file are counted, but not named. */
#define HITS_MAX (1u << 20)
#define PATHS_BYTES ((size_t)2 * PATH_MAX)

struct hit {
	size_t damage_index;
	uint64_t ino;
};

/* The contents that are gone through, and what was found. */
struct search {
	struct check *c;
	struct hit *hits; /* in the order of inodes, later of damage */
	size_t hit_count, hit_capacity;
	uint64_t hits_dropped;
};

static int damage_order(const void *a, const void *b)
{
	const struct check_damage *x = a, *y = b;

	return (x->first > y->first) - (x->first < y->first);
}

static int hit_order(const void *a, const void *b)
{
	const struct hit *x = a, *y = b;

	if (x->damage_index != y->damage_index)
		return x->damage_index < y->damage_index ? -1 : 1;
	return (x->ino > y->ino) - (x->ino < y->ino);
}

static int search_add(struct search *s, size_t damage_index, uint64_t ino)
{
	int rc;

	/* A file may cover the same chunk several times in a row. */
	if (s->hit_count > 0 && s->hits[s->hit_count - 1].ino == ino &&
	    s->hits[s->hit_count - 1].damage_index == damage_index)
		return 0;
	if (s->hit_count == HITS_MAX) {
		s->hits_dropped++;
		return 0;
	}
	rc = vec_grow(&s->hits, s->hit_count, &s->hit_capacity,
		      sizeof(*s->hits));
	if (rc < 0)
		return rc;
	s->hits[s->hit_count++] = (struct hit){ damage_index, ino };
	return 0;
}

/* The first damage that ends after this chunk. */
static size_t damage_after(const struct check *c, size_t chunk)
{
	size_t low = 0, high = c->damage_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (c->damage[mid].first + c->damage[mid].count <= chunk)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int search_extent(struct search *s, uint64_t ino, const struct extent *e)
{
	const struct check_image *i = check_find_image(s->c, e->image);
	size_t first, end, n;
	int rc = 0;

	if (!i)
		return 0;
	first = check_find_chunk(s->c, i, e->image_offset);
	end = check_find_chunk(s->c, i, e->image_offset + e->len);
	for (n = damage_after(s->c, first);
	     rc == 0 && n < s->c->damage_count && s->c->damage[n].first < end;
	     n++)
		rc = search_add(s, n, ino);
	return rc;
}

static int search_file(void *arg, struct kv_slice key, struct kv_slice value)
{
	SCOPED(content_release) struct content f = { 0 };
	struct search *s = arg;
	int rc;

	/* What does not decode was reported before. */
	if (key.len != 9)
		return 0;
	rc = content_decode(value.data, value.len, &f);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	for (size_t n = 0; n < f.extent_count && rc == 0; n++)
		rc = search_extent(s, get_be64((const uint8_t *)key.data + 1),
				   &f.extents[n]);
	return rc;
}

static const char *damage_reason(const struct check_damage *d)
{
	if (d->zeros_to > 0)
		return d->rc == -EIO ? "are not the zeros that they are to be"
				     : strerror(-d->rc);
	switch (d->rc) {
	case 0:
		return "are not what was stored (their hash differs)";
	case -ENOENT:
		return "are gone with its file";
	case -ENODATA:
		return "lie past the end of its file";
	case -EIO:
		return "cannot be read (Input/output error)";
	default:
		return strerror(-d->rc);
	}
}

/* In the order of damage; and each pair once. */
static void search_sort(struct search *s)
{
	size_t kept = 0;

	if (s->hit_count == 0)
		return;
	qsort(s->hits, s->hit_count, sizeof(*s->hits), hit_order);
	for (size_t n = 1; n < s->hit_count; n++)
		if (hit_order(&s->hits[kept], &s->hits[n]) != 0)
			s->hits[++kept] = s->hits[n];
	s->hit_count = kept + 1;
}

/* The paths of up to CHECK_FILES_MAX files; the caller frees each. */
static size_t hit_paths(struct check *c, const struct hit *hits, size_t count,
			char *ret[CHECK_FILES_MAX])
{
	size_t n, paths = 0;

	for (n = 0; n < count && paths < CHECK_FILES_MAX; n++) {
		ret[paths] = strdup(check_path(c, hits[n].ino));
		if (ret[paths])
			paths++;
	}
	return paths;
}

static void list_paths(char *const paths[], size_t count, size_t more,
		       char ret[PATHS_BYTES])
{
	size_t at = 0;
	size_t n;

	ret[0] = 0;
	for (n = 0; n < count && at < PATHS_BYTES / 2 - 64; n++)
		at += (size_t)snprintf(ret + at, PATHS_BYTES - at, "%s%s",
				       n > 0 ? ", " : "", paths[n]);
	more += count - n;
	if (more > 0)
		(void)snprintf(ret + at, PATHS_BYTES - at, " and %zu more",
			       more);
}

/* What is wrong with the bytes, and what was or is to be done. */
static void damage_tell(const struct check_damage *d, const char *image,
			const char *list, char *ret, size_t len)
{
	char why[160] = "";

	if (d->mend_rc == -EBUSY)
		(void)snprintf(why, sizeof(why),
			       "; they can be mended from another copy once "
			       "the store was mounted and all is durable");
	else if (d->mend_rc < 0 && d->mend_rc != -ENOENT)
		(void)snprintf(why, sizeof(why),
			       "; mending them from another copy failed: %s",
			       strerror(-d->mend_rc));
	if (d->mended)
		(void)snprintf(ret, len, "of %s were %s, and are mended%s%s%s",
			       image, d->rc == 0 ? "wrong" : "unreadable",
			       d->zeros_to > 0 ? "" : " from another copy",
			       *list ? "; files: " : "", list);
	else if (*list)
		(void)snprintf(ret, len,
			       "of %s %s%s; restore from another copy, or "
			       "delete: %s",
			       image, damage_reason(d), why, list);
	else
		(void)snprintf(ret, len, "%s%s; no file uses them",
			       damage_reason(d), why);
}

static void report_damage(struct search *s, const struct check_damage *d,
			  const struct hit *hits, size_t count)
{
	struct check *c = s->c;
	const struct check_chunk *first = &c->chunks[d->first];
	const struct check_chunk *last = first + d->count - 1;
	const char *image =
		check_image_name(c, c->images[first->image_index].id);
	char text[PATHS_BYTES + PATH_MAX + 512], list[PATHS_BYTES];
	char *paths[CHECK_FILES_MAX];
	size_t path_count = hit_paths(c, hits, count, paths);
	struct check_problem p = { .note = d->mended,
				   .code = d->mended ? "mended" : "damaged",
				   .object = path_count > 0 ? paths[0] : image,
				   .text = text,
				   .files = (const char *const *)paths,
				   .file_count = path_count };
	bool zeros = d->zeros_to > 0;
	uint64_t from = zeros ? d->zeros_from : first->offset;
	uint64_t to = zeros ? d->zeros_to : last->offset + last->len;
	int at = snprintf(text, sizeof(text), "%s: %s: bytes %llu to %llu ",
			  p.object, p.code, (unsigned long long)from,
			  (unsigned long long)to);

	list_paths(paths, path_count, count - path_count, list);
	damage_tell(d, image, list, text + at, sizeof(text) - (size_t)at);
	if (d->mended)
		c->result->mended_chunks += d->count;
	else
		c->result->damaged_chunks += d->count;
	check_tell(c, &p);
	for (size_t n = 0; n < path_count; n++)
		free(paths[n]);
}

int check_name_damage(struct check *c)
{
	struct search s = { .c = c };
	size_t at = 0;
	int rc;

	if (c->damage_count == 0)
		return 0;
	qsort(c->damage, c->damage_count, sizeof(*c->damage), damage_order);
	rc = records_each(c->kv, key_kind('F'), search_file, &s);
	if (rc < 0)
		rc = check_database_failed(c, rc);
	search_sort(&s);
	for (size_t n = 0; rc == 0 && n < c->damage_count; n++) {
		size_t first = at;

		while (at < s.hit_count && s.hits[at].damage_index == n)
			at++;
		report_damage(&s, &c->damage[n], &s.hits[first], at - first);
	}
	if (s.hits_dropped > 0)
		check_remark(c, "many-damaged", "files",
			     "so many files contain damaged bytes that not "
			     "all are named");
	free(s.hits);
	return rc;
}
