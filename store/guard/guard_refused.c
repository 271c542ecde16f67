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
#include "store/names/names.h"

struct value_head {
	uint64_t dir_le;
	uint64_t print_le;
};

/* --- prints --- */

struct printing {
	struct guard *g;
	unsigned depth;
	size_t left; /* files that may still be looked at */
	uint64_t sum;
};

static int print_folder(struct printing *p, uint64_t dir);

static int print_file(struct printing *p, uint64_t ino, const char *name)
{
	uint64_t seen[4] = { ino };
	struct inode *in;
	struct stat sb;
	int rc;

	if (inode_get(p->g->use.inodes, ino, &in) == 0) {
		rc = inode_stat(p->g->use.inodes, in, &sb);
		inode_put(p->g->use.inodes, in, 1);
		if (rc < 0)
			return rc;
		seen[1] = (uint64_t)sb.st_size;
		seen[2] = (uint64_t)sb.st_mtim.tv_sec;
		seen[3] = (uint64_t)sb.st_mtim.tv_nsec;
	}
	p->sum += XXH3_64bits_withSeed(name, strlen(name),
				       XXH3_64bits(seen, sizeof(seen)));
	return 0;
}

/* Sums, as a folder is listed in any order. */
static int print_one(void *arg, const char *name,
		     const struct dirent_rec *entry, uint64_t cookie)
{
	struct printing *p = arg;
	uint64_t seen[4] = { entry->ino };
	int rc;

	(void)cookie;
	if (p->left == 0)
		return -E2BIG;
	p->left--;
	if (S_ISREG(entry->type))
		return print_file(p, entry->ino, name);
	if (S_ISDIR(entry->type) && p->depth < STRUCTURE_DEPTH_MAX) {
		rc = print_folder(p, entry->ino);
		if (rc < 0)
			return rc;
	}
	p->sum += XXH3_64bits_withSeed(name, strlen(name),
				       XXH3_64bits(seen, sizeof(seen)));
	return 0;
}

static int print_folder(struct printing *p, uint64_t dir)
{
	int rc;

	p->depth++;
	rc = names_list(p->g->use.names, dir, 0, print_one, p);
	p->depth--;
	return rc;
}

/* How a step looks now. -ESTALE: it is gone. */
static int print_of(struct guard *g, uint64_t dir, uint64_t *ret)
{
	struct printing p = { .g = g, .left = STRUCTURE_FILES_MAX };
	struct attr a;
	int rc;

	*ret = 0;
	if (dir == 0)
		return 0; /* no step, which cannot change */
	rc = inode_attr_of(g->use.inodes, dir, &a);
	if (rc == 0 && a.nlink == 0)
		rc = -ESTALE;
	if (rc == 0)
		rc = S_ISDIR(a.mode) ? print_folder(&p, dir)
				     : print_file(&p, dir, a.name);
	*ret = p.sum;
	return rc;
}

/* --- the attribute --- */

static void put_attribute(struct guard *g, uint64_t ino, const void *value,
			  size_t len)
{
	struct inode *in;

	if (inode_get(g->use.inodes, ino, &in) < 0)
		return;
	/* The log says it as well: a full disk changes no answer. */
	(void)names_setxattr(g->use.names, in, GUARD_REFUSED_XATTR, value, len,
			     0);
	inode_put(g->use.inodes, in, 1);
}

static void keep(struct guard *g, const struct guard_refusal *r)
{
	HOLD(&g->lock);
	memmove(&g->refusals[1], &g->refusals[0],
		sizeof(g->refusals) - sizeof(g->refusals[0]));
	g->refusals[0] = *r;
}

void guard_refused_note(struct guard *g, const struct guard_step *step,
			const char *why, bool attribute_only)
{
	SCOPED(scope_free) struct guard_refusal *r = calloc(1, sizeof(*r));
	uint8_t value[sizeof(struct value_head) + GUARD_TEXT_BYTES];
	struct value_head head = { .dir_le = htole64(step->dir) };
	size_t len = strlen(why);
	uint64_t print;
	struct inode *in;

	if (!r || inode_get(g->use.inodes, step->dir ? step->dir : step->asked,
			    &in) < 0)
		return;
	r->at_ns = wall_ns();
	r->uid = inode_attr(in).uid;
	inode_path(g->use.inodes, in, r->path, sizeof(r->path));
	inode_put(g->use.inodes, in, 1);
	strcpy(r->why, why);
	if (!attribute_only)
		keep(g, r);
	if (print_of(g, step->dir, &print) < 0)
		return;
	head.print_le = htole64(print);
	memcpy(value, &head, sizeof(head));
	memcpy(value + sizeof(head), why, len);
	if (step->dir != 0)
		put_attribute(g, step->dir, value, sizeof(head) + len);
	if (step->asked != 0 && step->asked != step->dir)
		put_attribute(g, step->asked, value, sizeof(head) + len);
}

void guard_refused_forget(struct guard *g, uint64_t ino)
{
	SCOPED(scope_free) void *value = NULL;
	struct inode *in;
	size_t len;

	if (names_getxattr(g->use.names, ino, GUARD_REFUSED_XATTR, &value,
			   &len) < 0 ||
	    inode_get(g->use.inodes, ino, &in) < 0)
		return;
	(void)names_removexattr(g->use.names, in, GUARD_REFUSED_XATTR);
	inode_put(g->use.inodes, in, 1);
}

int guard_refused(struct guard *g, struct inode *in, struct bytes *out)
{
	SCOPED(scope_free) void *value = NULL;
	struct value_head head;
	uint64_t print;
	size_t len;
	int rc = names_getxattr(g->use.names, in->ino, GUARD_REFUSED_XATTR,
				&value, &len);

	if (rc < 0)
		return rc;
	if (len <= sizeof(head))
		return -ENODATA;
	memcpy(&head, value, sizeof(head));
	if (print_of(g, le64toh(head.dir_le), &print) < 0 ||
	    print != le64toh(head.print_le))
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
