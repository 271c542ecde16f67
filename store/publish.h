/*
 * publish.h - what a rename waits for, and what it may leave to the order.
 *
 * A rename that publishes returns when all that it names is durable, and the
 * name itself. Any other one of a file returns at once where the order of
 * closes makes it safe: the name is in the log before whatever is closed later,
 * and what it replaces is kept, as the file's committed content, until the file
 * is durable itself. Where that cannot be had it waits for the bytes all the
 * same: a file that is open and was not closed yet, that had been durable
 * before it was changed, has an older version on its way, or whose drain
 * failed; one with several names or another owner or mode than what it
 * replaces; and where what is replaced was closed, and is not durable yet, or
 * is very large.
 */
#ifndef STORE_PUBLISH_H
#define STORE_PUBLISH_H

#include "store/store.h"

/* Make a file, or all below a directory, durable; nothing for other kinds. */
int publish(struct store *st, struct inode *in);

struct publish_rename {
	uint64_t parent, new_parent;
	const char *name, *new_name;
	unsigned flags; /* RENAME_NOREPLACE, RENAME_EXCHANGE */
	/* What the two below have found: */
	bool waits; /* until the name is durable */
	bool keeps; /* what is replaced: see names_rename() */
};

/* Wait for what has to be durable before anybody sees the new name. */
int publish_before(struct store *st, struct publish_rename *r);
/* Rename. *ret_replaced as names_rename() has it. */
int publish_name(struct store *st, struct publish_rename *r,
		 struct inode **ret_replaced);
/* Make the new name durable, if somebody counts on it. */
int publish_after(struct store *st, const struct publish_rename *r);

#endif
