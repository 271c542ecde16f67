/*
 * trust.h - may the database of this store be believed? Asked before anything
 * is opened for writing, and by whoever only looks; nothing is changed on the
 * disk. A store whose database is gone, or lacks changes that were durable, is
 * refused, because whoever believes it takes all images that it does not name
 * for leftovers.
 */
#ifndef STORE_TRUST_H
#define STORE_TRUST_H

#include <stddef.h>
#include <stdint.h>

struct trust {
	uint64_t sequence; /* of the last change in the database */
	/*
	 * Of the last one that is surely on the disk: the mark's, or 0. What a
	 * daemon that was killed wrote and did not sync can be read, too.
	 */
	uint64_t durable;
	int mark; /* what mark_read() said */
};

/*
 * 0, or -EUCLEAN: it may not, and `why` holds a sentence for the user that says
 * what is wrong and what to do. Other errors (-EMFILE, ...) say nothing of the
 * database; `why` has a sentence all the same. The store's lock is held.
 */
int trust_database(const char *path, int store_dirfd, struct trust *ret,
		   char *why, size_t why_size);

#endif
