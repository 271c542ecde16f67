/*
 * ticket.h - who replaces a name of the shared directory: a call that began
 * when another one had returned is never undone by that one. What is to replace
 * a name is a ticket; its folder is of the number that DIR's folder has:
 *
 *   DIR/.ckptfs/next/FOLDER/NAME/G.NODE.N    a pending file, to be completed
 *                                G.NODE.N!   taken: a file that is whole, or is
 *                                            in its last calls, and has its
 *                                            place soon
 *                                G.NODE.N-   taken from the first: a removal
 *                                G.NODE.N=   what that has removed already
 *
 * G is one more than the highest that a call finds, N is used once by a node:
 * so a later call's ticket is the higher one. Who has taken one removes those
 * that are lower, and waits for those that are taken. Nobody else renames what
 * is taken, so no rename over NAME fails since another node was quicker, after
 * which each look-up of NAME by a ceph-fuse 16.2.15 hangs.
 * tests/shared/replace_model.py walks all orders of these steps, with the
 * reasons.
 *
 * A ticket is named by its path in next/, without '!', '-' or '='.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only. It blocks on
 * the file system. Threads: any, but one at a time for what one has taken.
 */
#ifndef STORE_SHARED_TICKET_H
#define STORE_SHARED_TICKET_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "store/shared/look.h"

#define TICKET_PATH_BYTES (17 + NAME_MAX + 1 + 17 + SHARED_NODE_MAX + 17 + 2)

enum ticket_kind {
	TICKET_OPEN = 0,
	TICKET_TAKEN = '!',
	TICKET_REMOVES = '-',
	TICKET_REMOVED = '=',
};

/* G and N, as text. */
#define TICKET_DIGITS 16
bool ticket_is_number(const char *text);
/* G.NODE.N without its kind: how long that is; 0: it is no ticket. */
size_t ticket_base(const char *name, enum ticket_kind *ret_kind);

/* Who has made it. */
void ticket_node(const char *name, char ret[SHARED_NODE_MAX + 1]);
/* Where it lies in next/ while it is of that kind. */
void ticket_path(const char *ticket, enum ticket_kind kind,
		 char ret[TICKET_PATH_BYTES]);

/* Has the name any, besides `but` (NULL: none)? 1, or 0. */
int ticket_any(int nextfd, ino_t folder, const char *name, const char *but);
/*
 * One of them that is taken: its name, without its folder. 1, or 0: there is
 * none.
 */
#define TICKET_NAME_BYTES (17 + SHARED_NODE_MAX + 17 + 2)
int ticket_find_taken(int nextfd, ino_t folder, const char *name,
		      char ret[TICKET_NAME_BYTES]);
/* The same as a ticket that somebody has left. -ENOENT: it has gone. */
struct ticket_left;
int ticket_look(int nextfd, ino_t folder, const char *name, const char *taken,
		struct ticket_left *ret);
/* Is it there, of whatever kind, and is no higher one? 1, or 0. */
int ticket_stands(int nextfd, const char *ticket);
/*
 * Has any name of the folder one, of those that counts() takes? 1, and whose,
 * or 0.
 */
int ticket_any_in(int nextfd, ino_t folder, bool (*counts)(const char *name),
		  char ret_node[SHARED_NODE_MAX + 1]);
/* What the next one is called. It is not made. */
int ticket_next(int nextfd, ino_t folder, const char *name, const char *node,
		uint64_t n, char ret[TICKET_PATH_BYTES]);
/* A new file; its descriptor, the caller's. */
int ticket_make(int nextfd, const char *ticket, enum ticket_kind kind,
		mode_t mode);
/* What has that name becomes the ticket. */
int ticket_move(int nextfd, const char *ticket, enum ticket_kind kind,
		int fromfd, const char *from);
/* Of a ticket that is open, or was taken. -ENODATA: it was overtaken. */
int ticket_take(int nextfd, const char *ticket);
/* It is open again, since ticket_settle() was given up: no other one went. */
int ticket_untake(int nextfd, const char *ticket);
/*
 * Until no lower one is left. pause() is asked before each new look, with the
 * name of one that is taken; what it returns ends this, if that is not 0, and
 * then no other one went, unless that was just being taken. held
 * (NULL: none) may be taken, and goes last, as the caller knows that nobody
 * places it. -ENODATA: the ticket itself is not there.
 */
struct ticket_wait {
	int (*pause)(void *arg, const char *taken);
	void *arg;
};
int ticket_settle(int nextfd, const char *ticket, const char *held,
		  const struct ticket_wait *w);
/* What is taken gets its name, in this directory. */
int ticket_place(int nextfd, const char *ticket, int dirfd, const char *name);
/*
 * What has the name goes, and the removal. -ENOENT: nothing had it. -EISDIR: it
 * is a folder, and stays.
 */
int ticket_remove(int nextfd, const char *ticket, int dirfd, const char *name);
/* It is nobody's any more, of whatever kind; a removal has not begun. */
int ticket_drop(int nextfd, const char *ticket);

/* One that somebody has left. */
struct ticket_left {
	ino_t folder;
	const char *name; /* that it is to replace */
	char node[SHARED_NODE_MAX + 1]; /* who has made it */
	char path[TICKET_PATH_BYTES];
	enum ticket_kind kind;
	struct stat st;
};
/* All tickets, until fn returns other than 0, which is returned. */
int tickets_each(int nextfd, int (*fn)(void *arg, const struct ticket_left *t),
		 void *arg);
/*
 * What its node had taken is done, in this directory, as that node would have
 * gone on. Nobody else does the same. What has a folder at its name goes.
 */
int ticket_finish(int nextfd, const struct ticket_left *t, int dirfd,
		  const struct ticket_wait *w);
/*
 * Is it whole, or a removal, and nobody's who will ever complete it: is it to
 * be finished? What is pending is to go instead.
 */
bool ticket_is_to_finish(const struct ticket_left *t);
/*
 * The same for all that are picked, below DIR. In a folder that is not found
 * nothing is to be removed, and what is whole stays where it is. An error: not
 * all of them could be finished, or looked for.
 */
struct ticket_pick {
	bool (*fn)(void *arg, const struct ticket_left *t);
	void *arg;
};
int tickets_finish(int dirfd, int nextfd, const struct ticket_pick *pick,
		   const struct ticket_wait *wait);

#endif
