/*
 * guard_private.h - between the guard*.c files: see guard.h.
 *
 * No state is kept of earlier steps: the step before is found by its name each
 * time, so a restart, a deleted step or one that was written again cannot make
 * a comparison stale. Who looks at a step has its turn (visit_turn()).
 *
 * A visit is one call of the guard: what it has found by a name it holds until
 * its end, so a number is good for as long as the visit is.
 *
 * Threads: any. Everything blocks on I/O: hold no other lock.
 */
#ifndef STORE_GUARD_PRIVATE_H
#define STORE_GUARD_PRIVATE_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "store/base/scope.h"
#include "store/db/records.h"
#include "store/guard/guard.h"
#include "store/guard/guard_table.h"
#include "store/step/structure.h"
#include "store/step/tracker.h"

TAILQ_HEAD(guard_waiting_list, guard_waiting);

/* One looks, and one more for each that hangs. */
#define GUARD_THREADS 4u

struct guard {
	struct guard_uses use; /* immutable */
	struct guard_table table; /* immutable once it is started */
	struct memory_budget memory; /* of all that is read; atomic */
	struct lock lock; /* guards what follows; a leaf */
	struct cond work, idle, turn;
	LIST_HEAD(, guard_visit) looks; /* who have their turn: guard_visit.c */
	struct thread threads[GUARD_THREADS];
	unsigned thread_count;
	bool started, stop;
	unsigned asked; /* who look for people, or wait to */
	struct guard_waiting_list waiting;
	uint64_t queued, done; /* what was put into it, and was looked at */
	struct guard_figures figures;
	uint64_t last_dir; /* of which figures.last speaks */
	/* The last one first. */
	struct guard_refusal refusals[GUARD_REFUSALS_KEPT];
};

struct guard_step {
	uint64_t dir;
	/* The name it has, or is to have. */
	uint64_t parent;
	char name[STORE_NAME_MAX + 1];
	uint64_t metadata; /* what is about to be its .metadata; 0: what is */
	/*
	 * Only what .metadata names is compared: other files may still come.
	 * Set with metadata, too.
	 */
	bool dcp_only;
	bool tracked; /* a tracker names it: it is a step */
	bool looked_at; /* but for its bytes */
	bool file; /* it is one file, whose number `dir` is */
	bool in_place; /* and is closed under its name: there it stays */
	uint64_t asked; /* whose name is given or what is closed; 0: nobody's */
};

/* --- guard_visit.c */

struct guard_visit {
	struct guard *g;
	uint64_t *got; /* from the table, to be put; owned */
	size_t got_count, got_capacity;
	LIST_ENTRY(guard_visit) next; /* with `looks`; g->lock */
	bool looks;
	unsigned calls; /* within each other */
	_Atomic int64_t calling_ns; /* since when it is in a call; 0: in none */
	bool elsewhere; /* it met a file whose bytes are not here yet */
	/* Files it has read that the kernel may have more of; owned. */
	uint64_t *cached;
	size_t cached_count, cached_capacity;
};

void visit_begin(struct guard_visit *v, struct guard *g);
/* For SCOPED(). What was found is held no more. */
void visit_end(struct guard_visit *v);
/* Wait until nobody else looks. -EINTR: whoever called is to end. */
int visit_turn(struct guard_visit *v);
void visit_turn_end(struct guard_visit *v);

/*
 * Ask the kernel for what it has of the files that were read so far. Has no
 * turn: who answers it may be one of those that wait for theirs.
 */
void visit_write_back(struct guard_visit *v);

/* The calls of the table. What find() and hold() give is the visit's. */
typedef int (*guard_list_fn)(void *arg, const char *name, uint32_t type,
			     uint64_t number);
int visit_find(struct guard_visit *v, uint64_t parent, const char *name,
	       uint64_t *ret_id);
int visit_hold(struct guard_visit *v, uint64_t id);
int visit_attr(struct guard_visit *v, uint64_t id, struct guard_attr *ret);
int visit_list(struct guard_visit *v, uint64_t dir, guard_list_fn fn,
	       void *arg);
int visit_target(struct guard_visit *v, uint64_t id, struct bytes *out);
bool visit_digest(struct guard_visit *v, uint64_t id, uint64_t *ret_bytes,
		  uint8_t ret[HASH_BYTES]);
uint32_t visit_world(struct guard_visit *v, uint64_t id);
int visit_getxattr(struct guard_visit *v, uint64_t id, const char *name,
		   void **ret_value, size_t *ret_len);
int visit_setxattr(struct guard_visit *v, uint64_t id, const char *name,
		   const void *value, size_t len);
int visit_removexattr(struct guard_visit *v, uint64_t id, const char *name);
int visit_replaced(struct guard_visit *v, uint64_t id, void *buf, size_t size,
		   size_t *ret_len);
int visit_open(struct guard_visit *v, uint64_t id, struct cut_source *ret);
void visit_close(struct guard_visit *v, struct cut_source *source);
/* The first len bytes, exactly. -ESTALE: it ends before. */
int visit_read(struct guard_visit *v, uint64_t id, void *buf, size_t len);

/* --- guard_closed.c: a file that is closed under its name, as it is read */

struct guard_closed {
	struct guard *g;
	struct inode *in; /* a reference; NULL: none */
	uint64_t changes; /* of the file, at guard_closed_begin() */
};

/*
 * Before it is looked at. False: more than `writers` have it open to write, or
 * it is gone. Waits until a change that has begun is over: holds no lock, and
 * has no turn to look. guard_closed_end() *ret in any case.
 */
bool guard_closed_begin(struct guard *g, uint64_t id, unsigned writers,
			struct guard_closed *ret);
/* After that: it was not changed, nor opened to write, nor deleted since. */
bool guard_closed_still(const struct guard_closed *c);
/*
 * No byte was written yet: it was made, perhaps with its size, for somebody who
 * will write it: a child that has the descriptor, a mapping, who opens it next.
 */
bool guard_closed_untouched(const struct guard_closed *c);
/* For SCOPED(). */
void guard_closed_end(struct guard_closed *c);

/* --- guard.c: who looks, and when */

/* 0, or -EUCLEAN: it is not in order, and that is to be refused; or -EINTR. */
int guard_look(struct guard_visit *v, const struct guard_step *step,
	       bool refuse);
/* The thread looks at it, if it does not wait for that already. */
void guard_look_later(struct guard *g, const struct guard_step *step);
/*
 * Would it be refused, as a file that is being closed? Only the attribute says
 * why. 0 also when somebody writes it meanwhile. As guard_look().
 */
int guard_peek(struct guard_visit *v, const struct guard_step *step,
	       const struct guard_closed *c);
/* step->asked is refused, and names no step. -EUCLEAN. */
int guard_refuse(struct guard_visit *v, const struct guard_step *step,
		 const char *why);

/* --- guard_step.c: one step against the step before it */

struct guard_verdict {
	bool broken, missing, gone; /* to be refused */
	bool different; /* in any way */
	char text[GUARD_TEXT_BYTES]; /* one line; empty: nothing to say */
};

/* -ENOENT: the step is gone. */
int guard_step_check(struct guard_visit *v, const struct guard_step *step,
		     struct guard_verdict *ret);
/*
 * Do all files with tensors have the bytes they have in the step before? 1:
 * text says so; 0: no, or not all of them are durable.
 */
int guard_step_identical(struct guard_visit *v, const struct guard_step *step,
			 char text[GUARD_TEXT_BYTES]);
/* A line for each difference. -ENODATA: there is no step before. */
int guard_step_difference(struct guard_visit *v, const struct guard_step *step,
			  const uid_t *uid, struct bytes *out);

/*
 * --- guard_refused.c: what was refused last, and the attribute that says so
 *
 * The attribute is kept in the store, with a print of the step as it was: when
 * the step has changed it says nothing any more.
 */

/*
 * A step is refused now, and why. Without a step (dir 0) what was to publish
 * one says it until guard_refused_forget(). attribute_only: see guard_peek().
 */
void guard_refused_note(struct guard_visit *v, const struct guard_step *step,
			const char *why, bool attribute_only);
/* What has this number is published: it says nothing any more. */
void guard_refused_forget(struct guard_visit *v, uint64_t id);

/* --- guard_tracker.c: what names a step */

/* Its word; empty: none, or too long. */
void guard_tracker_word(struct guard_visit *v, uint64_t id,
			char ret[TRACKER_WORD_BYTES]);
/*
 * `id` is to be the tracker `name`, and guard_tracked() found no step. Does it
 * lead nowhere, and did what it said before (was) name a step? A path to
 * elsewhere is nobody's business, and whoever empties one means it, but for
 * those that hold a number.
 */
bool guard_strays(struct guard_visit *v, uint64_t id, uint64_t parent,
		  const char *name, const char *was,
		  char why[GUARD_TEXT_BYTES]);
/* Which step beside it a tracker names, a small file or a symbolic link. */
bool guard_tracked(struct guard_visit *v, uint64_t id, uint64_t parent,
		   struct guard_step *ret);
/* The same of a link that is to lead to target. */
bool guard_linked(struct guard_visit *v, uint64_t parent, const char *target,
		  struct guard_step *ret);

/* --- guard_text.c: the line that says it */

/* Names that are told of each kind; the rest is counted. */
#define GUARD_NAMES_TOLD 4

struct guard_text {
	char *at;
	size_t len, size;
};

/* What does not fit is left away; what cannot be shown is '?'. */
void guard_put(struct guard_text *t, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Something else follows: "; " unless this is the first. */
void guard_put_next(struct guard_text *t);
/* No control characters, and nothing but UTF-8: '?' instead. */
void guard_clean(char *text, size_t len);

enum guard_fault {
	GUARD_FAULT_BROKEN,
	GUARD_FAULT_MISSING,
	GUARD_FAULT_REPORTED,
};

/* What a step says of itself that is of this kind; false: nothing. */
bool guard_put_faults(struct guard_text *t, const struct guard_step *step,
		      const struct structure *s, enum guard_fault fault);

/* --- guard_before.c: which step is the one before */

struct guard_before {
	uint64_t dir; /* what is compared: the step, or a part of it */
	char name[STORE_NAME_MAX + 1]; /* of the step */
	/* What the step that is looked at is called, of which it may be a part.
	 */
	char now[STORE_NAME_MAX + 1];
};

/*
 * The step before, that there is something to compare with: what has no
 * tensors was no step, a damaged one is no measure, and one that is just being
 * deleted is neither. uid: see guard_difference(). Who publishes a step may
 * compare it with what he can read: that the call is refused would tell him of
 * the rest. -ENODATA: there is none. structure_release() *ret_what in any case.
 * All zero *ret: the first one; else the one before that.
 */
int guard_read_before(struct guard_visit *v, const struct guard_step *step,
		      const uid_t *uid, struct guard_before *ret,
		      struct structure *ret_what);

/*
 * --- guard_said.c: what people said of a step, or of all below a folder, with
 * the attributes that guard.h names: what counts for a step is its own word,
 * else that of the nearest folder above the place that it goes to.
 */

enum guard_policy guard_policy(struct guard_visit *v,
			       const struct guard_step *step);
/*
 * The attribute that counts for the step; *ret is the caller's to free.
 * own_only: the folders above do not count. -ENODATA: nobody said anything.
 */
int guard_said(struct guard_visit *v, const struct guard_step *step,
	       const char *attribute, bool own_only, char **ret);

struct guard_ignored {
	char *text; /* the caller's to free, also after an error */
	const char *pattern[GUARD_IGNORE_MAX];
	unsigned count;
};

/* Into what is all zero. */
int guard_ignored_read(struct guard_visit *v, const struct guard_step *step,
		       struct guard_ignored *ret);
bool guard_is_ignored(const struct guard_ignored *i, const char *name);

/* --- guard_read.c: what a step consists of, as it stands, without a handle */

/* "a/b" below a folder. -ENOENT, -ENOTDIR. */
int guard_find(struct guard_visit *v, uint64_t dir, const char *path,
	       uint64_t *ret_id);
/*
 * What a folder consists of. metadata: what is about to be its .metadata; 0:
 * what has that name. reader: -EACCES when he may not read all of it (his
 * groups' rights do not count); NULL: whoever. whole: as compare.h wants it.
 * structure_release() it in any case.
 */
int guard_read_dir(struct guard_visit *v, uint64_t dir, uint64_t metadata,
		   const uid_t *reader, bool whole, struct structure *ret);
/* What a step consists of, a folder or a file: the same. */
int guard_read_step(struct guard_visit *v, const struct guard_step *step,
		    uint64_t dir, const uid_t *reader, bool whole,
		    struct structure *ret);
/* The same of a file, which has this name, or is to have it. */
int guard_read_file(struct guard_visit *v, uint64_t id, const char *name,
		    struct structure *ret);

#endif
