/*
 * structure_tree.h - the files and folders of a step, listed before any is
 * opened: what has too many is no step, and costs no more than the listing.
 */
#ifndef STORE_STEP_STRUCTURE_TREE_H
#define STORE_STEP_STRUCTURE_TREE_H

#include "store/step/structure.h"

struct tree_entry {
	char *path; /* owned; below the step, "" is the step itself */
	const char *name; /* the last part of the path */
	uint64_t size_bytes;
	uint32_t in; /* the number of its folder */
	unsigned depth;
	bool folder;
	bool dcp; /* a folder that has a .metadata, or one above it has */
	/* Its own .metadata is the structure's `nested` of this number, from 1;
	 * 0: it has none, or is the step itself. */
	size_t nested;
};

struct tree {
	struct tree_entry *all; /* owned; a folder before what is in it */
	size_t count, capacity;
	int rc; /* of a listing that is under way */
	uint32_t listing;
};

/*
 * Those that are to be looked into: nothing below a folder whose name begins
 * with a dot or is a staging one (step_7.tmp), nor below one of several that
 * are called like steps: what has them is a run. -E2BIG: STRUCTURE_FILES_MAX.
 * tree_release() it in any case.
 */
int tree_read(struct tree *t, const struct structure_source *in);
void tree_release(struct tree *t);

/* "a" in the folder "b": "b/a". NULL: no memory. */
char *tree_join(const char *folder, const char *name);

#endif
