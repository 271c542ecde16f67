/*
 * guard_before.c - which step is the one before: the folder beside it whose
 * name differs in its number only, by the next smaller one.
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "store/guard/guard_private.h"
#include "store/names/names.h"

/* Of folders that might be the step before, how many are looked into. */
#define BEFORE_TRIES 8

/* --- numbers in names --- */

/* "1", "20", ... of a name: shorter numbers are smaller, zeros do not count. */
static const char *next_number(const char *p, size_t *ret_len)
{
	while (*p && !isdigit((unsigned char)*p))
		p++;
	while (*p == '0' && isdigit((unsigned char)p[1]))
		p++;
	*ret_len = 0;
	while (isdigit((unsigned char)p[*ret_len]))
		(*ret_len)++;
	return p;
}

static int compare_numbers(const char *a, const char *b)
{
	for (;;) {
		size_t n, m;
		int c;

		a = next_number(a, &n);
		b = next_number(b, &m);
		if (n == 0 || m == 0)
			return (n > 0) - (m > 0);
		c = n != m ? (n > m) - (n < m) : memcmp(a, b, n);
		if (c)
			return c;
		a += n;
		b += m;
	}
}

/* Is this number one of the step's name? */
static bool is_number_of(const char *digits, size_t len, const char *step)
{
	size_t n;

	for (const char *at = next_number(step, &n); n > 0;
	     at = next_number(at + n, &n))
		if (n == len && memcmp(at, digits, n) == 0)
			return true;
	return false;
}

bool guard_same_place(const char *a, const char *step_a, const char *b,
		      const char *step_b)
{
	a = a ? a : "";
	b = b ? b : "";
	while (*a && *b) {
		size_t n, m;

		if (!isdigit((unsigned char)*a) ||
		    !isdigit((unsigned char)*b)) {
			if (*a++ != *b++)
				return false;
			continue;
		}
		a = next_number(a, &n);
		b = next_number(b, &m);
		if ((n != m || memcmp(a, b, n) != 0) &&
		    !(is_number_of(a, n, step_a) && is_number_of(b, m, step_b)))
			return false;
		a += n;
		b += m;
	}
	return *a == *b;
}

/* --- the step before --- */

/* Parts of one step are beside each other, too: they are no steps. */
static bool is_part(const char *name)
{
	static const char *const words[] = { "rank", "shard", "part", "worker",
					     "node" };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strstr(name, words[i]))
			return true;
	return false;
}

/* What to look for among the folders beside the step. */
struct search {
	const struct guard_step *step;
	const char *below; /* only names that are smaller */
	struct guard_before found; /* the greatest of these; dir 0: none */
};

static int search_one(void *arg, const char *name,
		      const struct dirent_rec *entry, uint64_t cookie)
{
	struct search *s = arg;

	(void)cookie;
	/* Of one series: any number of a name may differ. */
	if (!S_ISDIR(entry->type) || entry->ino == s->step->dir ||
	    !guard_same_place(name, name, s->step->name, s->step->name) ||
	    compare_numbers(name, s->below) >= 0 ||
	    (s->found.dir != 0 && compare_numbers(name, s->found.name) <= 0))
		return 0;
	s->found.dir = entry->ino;
	strcpy(s->found.name, name);
	return 0;
}

static bool has_metadata(struct guard *g, uint64_t dir)
{
	struct inode *in;

	if (names_lookup(g->use.names, dir, DCP_METADATA_NAME, &in) < 0)
		return false;
	inode_put(g->use.inodes, in, 1);
	return true;
}

/* The next one that is smaller than *b. -ENODATA: there is none. */
static int next_smaller(struct guard *g, const struct guard_step *step,
			struct guard_before *b)
{
	struct search s = { .step = step, .below = b->name };
	int rc = names_list(g->use.names, step->parent, 0, search_one, &s);

	if (rc == 0 && s.found.dir == 0)
		rc = -ENODATA;
	if (rc == 0)
		*b = s.found;
	return rc;
}

/* When it was changed last; -1: it is gone. */
static int64_t changed_at(struct guard *g, uint64_t dir, uid_t *ret_uid)
{
	struct attr a;

	if (inode_attr_of(g->use.inodes, dir, &a) < 0)
		return -1;
	*ret_uid = a.uid;
	return a.nlink > 0 ? a.mtime_ns : -1;
}

int guard_read_before(struct guard *g, const struct guard_step *step,
		      const uid_t *uid, struct guard_before *ret,
		      struct structure *ret_what)
{
	bool dcp = step->metadata != 0 || has_metadata(g, step->dir);
	uid_t publisher = 0;
	const uid_t *reader = uid ? uid : &publisher;

	if (step->parent == 0 || is_part(step->name))
		return -ENODATA;
	(void)changed_at(g, step->dir, &publisher);
	strcpy(ret->name, step->name);
	for (unsigned tries = 0; tries < BEFORE_TRIES; tries++) {
		uid_t owner = 0;
		int64_t when;
		int rc = next_smaller(g, step, ret);

		if (rc < 0)
			return rc;
		if (dcp && !has_metadata(g, ret->dir))
			continue; /* it was not finished */
		when = changed_at(g, ret->dir, &owner);
		if (uid && *uid != 0 && *uid != owner)
			return -EACCES;
		rc = guard_read_dir(g, ret->dir, 0, reader, ret_what);
		if (rc == 0 && ret_what->tensors.count > 0 &&
		    ret_what->error_count == 0 && when >= 0 &&
		    when == changed_at(g, ret->dir, &owner))
			return 0;
		structure_release(ret_what);
		if (rc < 0 && rc != -ENOENT && rc != -E2BIG &&
		    (uid || rc != -EACCES))
			return rc;
	}
	return -ENODATA;
}
