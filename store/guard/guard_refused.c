/*
 * guard_refused.c - what was refused: the last ones in memory, for status; and
 * of each step, in the store, why, where its user looks: in an attribute of the
 * step and of what was to publish it (.metadata.tmp, latest). A value begins
 * with the number of the step's folder and a print of all names, sizes and
 * times in it, and says nothing when they have changed.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "store/guard/guard_private.h"

struct value_head {
	uint64_t dir_le;
	uint64_t print_le;
};

/* --- prints --- */

struct printing {
	struct guard_visit *v;
	uint64_t dir; /* that is listed */
	unsigned depth;
	size_t left; /* files that may still be looked at */
	uint64_t sum;
};

static int print_folder(struct printing *p, uint64_t dir);

static int print_file(struct printing *p, uint64_t id, const char *name)
{
	struct guard_attr a;
	uint64_t seen[3];
	int rc = visit_attr(p->v, id, &a);

	if (rc < 0)
		return rc == -ENOENT || rc == -ESTALE ? 0 : rc;
	seen[0] = a.number;
	seen[1] = a.size_bytes;
	seen[2] = (uint64_t)a.mtime_ns;
	p->sum += XXH3_64bits_withSeed(name, strlen(name),
				       XXH3_64bits(seen, sizeof(seen)));
	return 0;
}

/* Sums, as a folder is listed in any order. */
static int print_one(void *arg, const char *name, uint32_t type,
		     uint64_t number)
{
	struct printing *p = arg;
	uint64_t seen[3] = { number }, id;
	int rc;

	if (p->left == 0)
		return -E2BIG;
	p->left--;
	if ((S_ISREG(type) || S_ISDIR(type)) &&
	    visit_find(p->v, p->dir, name, &id) < 0)
		return 0; /* it went in this moment */
	if (S_ISREG(type))
		return print_file(p, id, name);
	if (S_ISDIR(type) && p->depth < STRUCTURE_DEPTH_MAX) {
		rc = print_folder(p, id);
		if (rc < 0)
			return rc;
	}
	p->sum += XXH3_64bits_withSeed(name, strlen(name),
				       XXH3_64bits(seen, sizeof(seen)));
	return 0;
}

static int print_folder(struct printing *p, uint64_t dir)
{
	uint64_t above = p->dir;
	int rc;

	p->depth++;
	p->dir = dir;
	rc = visit_list(p->v, dir, print_one, p);
	p->dir = above;
	p->depth--;
	return rc;
}

/* How a step looks now. -ESTALE: it is gone. */
static int print_of(struct guard_visit *v, uint64_t dir, uint64_t *ret)
{
	struct printing p = { .v = v, .left = STRUCTURE_FILES_MAX };
	struct guard_attr a;
	int rc;

	*ret = 0;
	if (dir == 0)
		return 0; /* no step, which cannot change */
	rc = visit_attr(v, dir, &a);
	if (rc == 0 && a.nlink == 0)
		rc = -ESTALE;
	if (rc == 0)
		rc = S_ISDIR(a.mode) ? print_folder(&p, dir)
				     : print_file(&p, dir, a.name);
	*ret = p.sum;
	return rc;
}

/* --- the attribute --- */

static void keep(struct guard *g, const struct guard_refusal *r)
{
	HOLD(&g->lock);
	memmove(&g->refusals[1], &g->refusals[0],
		sizeof(g->refusals) - sizeof(g->refusals[0]));
	g->refusals[0] = *r;
}

void guard_refused_note(struct guard_visit *v, const struct guard_step *step,
			const char *why, bool attribute_only)
{
	SCOPED(scope_free) struct guard_refusal *r = calloc(1, sizeof(*r));
	uint8_t value[sizeof(struct value_head) + GUARD_TEXT_BYTES];
	struct value_head head = { 0 };
	size_t len = strlen(why);
	uint64_t print, of = step->dir ? step->dir : step->asked;
	struct guard *g = v->g;
	struct guard_attr a;

	if (!r || visit_attr(v, of, &a) < 0)
		return;
	r->at_ns = wall_ns();
	r->uid = a.uid;
	g->table.path(g->table.self, of, r->path, sizeof(r->path));
	strcpy(r->why, why);
	if (!attribute_only)
		keep(g, r);
	if (print_of(v, step->dir, &print) < 0)
		return;
	head.dir_le = htole64(step->dir ? a.number : 0);
	head.print_le = htole64(print);
	memcpy(value, &head, sizeof(head));
	memcpy(value + sizeof(head), why, len);
	/* The log says it as well: a full disk changes no answer. */
	if (step->dir != 0)
		(void)visit_setxattr(v, step->dir, GUARD_REFUSED_XATTR, value,
				     sizeof(head) + len);
	if (step->asked != 0 && step->asked != step->dir)
		(void)visit_setxattr(v, step->asked, GUARD_REFUSED_XATTR, value,
				     sizeof(head) + len);
}

void guard_refused_forget(struct guard_visit *v, uint64_t id)
{
	SCOPED(scope_free) void *value = NULL;
	size_t len;

	if (visit_getxattr(v, id, GUARD_REFUSED_XATTR, &value, &len) == 0)
		(void)visit_removexattr(v, id, GUARD_REFUSED_XATTR);
}

struct numbered {
	uint64_t number;
	char name[STORE_NAME_MAX + 1];
};

static int numbered_one(void *arg, const char *name, uint32_t type,
			uint64_t number)
{
	struct numbered *n = arg;

	(void)type;
	if (number != n->number)
		return 0;
	strcpy(n->name, name);
	return 1;
}

/* What has this number: the file, the folder that it is in, or one beside it.
 */
static int find_numbered(struct guard_visit *v, uint64_t id, uint64_t number,
			 uint64_t *ret_id)
{
	struct numbered n = { .number = number };
	struct guard_attr a, parent;
	int rc = visit_attr(v, id, &a);

	*ret_id = number;
	if (!v->g->table.put || number == 0) /* as it stands */
		return 0;
	*ret_id = id;
	if (rc < 0 || a.number == number)
		return rc;
	*ret_id = a.parent;
	rc = visit_attr(v, a.parent, &parent);
	if (rc < 0 || parent.number == number)
		return rc;
	rc = visit_list(v, a.parent, numbered_one, &n);
	return rc == 1 ? visit_find(v, a.parent, n.name, ret_id) : -ENODATA;
}

int guard_refused(struct guard *g, uint64_t id, struct bytes *out)
{
	SCOPED(scope_free) void *value = NULL;
	SCOPED(visit_end) struct guard_visit v;
	struct value_head head;
	uint64_t print, step;
	size_t len;
	int rc;

	visit_begin(&v, g);
	rc = visit_getxattr(&v, id, GUARD_REFUSED_XATTR, &value, &len);
	if (rc < 0)
		return rc;
	if (len <= sizeof(head))
		return -ENODATA;
	memcpy(&head, value, sizeof(head));
	if (find_numbered(&v, id, le64toh(head.dir_le), &step) < 0 ||
	    print_of(&v, step, &print) < 0 || print != le64toh(head.print_le))
		return -ENODATA;
	bytes_put(out, (const uint8_t *)value + sizeof(head),
		  len - sizeof(head));
	return out->failed ? -ENOMEM : 0;
}

bool guard_refusal(struct guard *g, unsigned n, struct guard_refusal *ret)
{
	HOLD(&g->lock);
	if (n >= GUARD_REFUSALS_KEPT || g->refusals[n].at_ns == 0)
		return false;
	*ret = g->refusals[n];
	return true;
}
