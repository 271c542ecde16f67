/*
 * lossy_names.h - the names in all directories, twice: as they are looked up
 * now, and as they would be after a power cut.
 *
 * A call that changes names is one change, of one name or of two (a rename),
 * and survives a power cut as a whole or not at all. A sync of a directory
 * makes every change in it survive. Of the changes since, each survives by a
 * coin, together with those earlier ones of the same names that it builds on;
 * changes of different names may survive in any order.
 *
 * Errors: 0 or a negative errno. Threads: one. Locks: none.
 */
#ifndef TESTS_CRASH_LOSSY_NAMES_H
#define TESTS_CRASH_LOSSY_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/crash/lossy_coin.h"

#define LOSSY_NAME_BYTES_MAX 255u

struct lossy_name {
	struct lossy_name *next;
	uint64_t cookie; /* grows along the list; where a listing goes on */
	uint64_t node;
	char text[];
};

struct lossy_table {
	struct lossy_name *first;
	uint64_t cookie_last;
};

/* Both states of one directory. */
struct lossy_dir {
	struct lossy_table now, safe;
};

struct lossy_set {
	uint64_t dir;
	uint64_t node; /* 0: the name goes */
	const char *name; /* owned by the change, once it is added */
};

struct lossy_change {
	struct lossy_change *prev, *next; /* older, newer */
	bool birth; /* the first name of what was just made */
	unsigned count;
	struct lossy_set set[2];
};

/* The changes that no sync has covered, oldest first. */
struct lossy_names {
	struct lossy_change *first, *last;
	/* Finds the directory that a change names; never NULL. */
	struct lossy_dir *(*dir)(void *self, uint64_t node);
	void *self;
};

void lossy_dir_release(struct lossy_dir *dir);
/* What the name stands for, or 0. */
uint64_t lossy_table_find(const struct lossy_table *t, const char *name);

/* Change the present names, in one step. */
int lossy_names_add(struct lossy_names *names, unsigned count,
		    const struct lossy_set *set, bool birth);
/* Make one change survive, and those that it builds on. */
void lossy_names_keep(struct lossy_names *names, struct lossy_change *change);
void lossy_names_sync(struct lossy_names *names, uint64_t dir);
/* The change that gave the node its first name, or NULL: settled already. */
struct lossy_change *lossy_names_birth(struct lossy_names *names,
				       uint64_t node);
/*
 * The power was cut: settle every change. The directories' present names
 * stay as they are until lossy_dir_settle().
 */
void lossy_names_draw(struct lossy_names *names, struct lossy_coin *coin,
		      unsigned quarters);
/* What survived becomes what is looked up. */
int lossy_dir_settle(struct lossy_dir *dir);
/* Forget the changes without settling them. */
void lossy_names_release(struct lossy_names *names);

#endif
