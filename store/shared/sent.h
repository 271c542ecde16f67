/*
 * sent.h - who was told ESTALE, and is to open what the name that he came by
 * means now.
 *
 * An open cannot be answered with another file than it is of. Told ESTALE, the
 * kernel walks the path once more, with look-ups, and opens what they lead to
 * in the same thread, once (fs/namei.c, do_open(); fuse/again.h goes by the
 * same). A note says which thread was sent to which name, and which local file
 * he was led to: that one is neither completed nor overtaken until he has it
 * open.
 *
 * A thread has one note. It goes with its next open of a file, with two
 * look-ups of it that fail, and after SENT_NS: then it was killed.
 */
#ifndef STORE_SHARED_SENT_H
#define STORE_SHARED_SENT_H

#include "store/shared/shared_private.h"

#define SENT_NS (INT64_C(5) * 1000000000)

struct sent {
	LIST_ENTRY(sent) link;
	pid_t tid; /* 0: not known */
	struct node *parent; /* a reference; NULL: its file is there already */
	char name[STORE_NAME_MAX + 1];
	struct names_new new;
	int64_t until_ns;
	uint64_t node; /* that he is to open; 0: he did not look yet */
	bool is_busy; /* he is being led there: sent_begin() */
	bool missed; /* a look-up has failed */
	bool looked; /* he comes by the name, and not by a descriptor */
};

/*
 * It is told ESTALE. tid 0: nobody knows which look-up is its own, so the
 * caller leads it there before that: sent_begin_now(). NULL: no memory.
 */
struct sent *sent_note(struct shared *s, struct node *parent, const char *name,
		       const struct names_new *n);
/*
 * The thread was sent to that name, and comes again without a look-up: by a
 * descriptor in /proc, or a mount of the file alone. Its note ends.
 */
bool sent_comes_by_handle(struct shared *s, pid_t tid,
			  const struct node *parent, const char *name);
/* The thread looks that name up. NULL: it was not sent there. */
struct sent *sent_begin(struct shared *s, const struct at *a, pid_t tid);
void sent_begin_now(struct shared *s, struct sent *e);
/* Others who were sent to the name go on; rc < 0: he is told that instead. */
void sent_end(struct shared *s, struct sent *e, int rc);
/* Is n what others of the name are to open? Then he is, too. */
bool sent_joins(struct shared *s, struct sent *e, const struct node *n);

#endif
