/*
 * order.h - the one order of what was closed: which version is drained next,
 * and which may be committed next.
 *
 * A version is what a file was at one of its closes (it has a place then), or
 * what somebody asks for as it stands (it has none). It keeps its place until
 * it ends, however often it is tried. Its number is what its content is known
 * by, in the file's record and to a time that is set by hand: of two versions
 * of a file the newer one has the greater number, and none has one that any
 * other version of the store ever had. What is durable of a file goes with its
 * number to the inode that takes the file's names (commit_clone()). A version
 * gets a number with its place, and another whenever its drain begins, as long
 * as it is what the file is now; what was replaced, or closed anew, keeps the
 * one that it had.
 *
 *   NEW --> CLOSED --> QUEUED --> RUNNING --> READY --> TAKEN --> SEEN
 *                       ^ ^ |        |          |         |         |
 *            FAILED <---|-|-|--------+----------|---------+         v
 *              +--------+ | |        |          v         |       DONE
 *                         | v        v         VOID       v
 *                         | GONE <---+----------+---------+
 *                         +----------+----------+---------+
 *
 * What order_take() gives to the committer keeps this: a version with a place
 * follows all that have smaller ones and are there when it is taken. Each of
 * these is committed, or given to him before, or it ended (deleted, or written
 * over by something newer); one that fails, or is drained again, stops all that
 * are younger at once. Only what somebody waits for (order_want()) overtakes,
 * alone: older versions of its file do not come along, and end when it is
 * durable. Who goes before that (order_leave()) leaves it its turn, if it has
 * one.
 *
 * Of each file one version is in flight at a time, the oldest, or the oldest
 * that somebody waits for. Committed is therefore never an older one over a
 * newer one.
 *
 * Of two that have bytes in common the one that is committed later starts, or
 * starts again, when the attempt at the other is over (order_again()), and
 * shares with what is committed then. It is behind nothing that may have to
 * wait for it: see order_may_follow().
 *
 * Pure: no thread, no I/O, no clock, no memory of its own. The caller holds one
 * lock (drain.lock) around each call. What is not in the table of transitions
 * stops the process.
 */
#ifndef STORE_ORDER_H
#define STORE_ORDER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "store/names/versions.h"

enum version_state {
	VERSION_NEW, /* not in the order yet */
	VERSION_CLOSED, /* waits a while until its writer has let go of it */
	VERSION_FAILED, /* is tried again later, in its place */
	VERSION_QUEUED,
	VERSION_RUNNING, /* a worker has it */
	VERSION_READY, /* may be committed */
	VERSION_VOID, /* READY once: the committer has to give it back */
	VERSION_TAKEN, /* the committer has it */
	VERSION_SEEN, /* durable, and everybody sees it */
	VERSION_DONE, /* durable, and over */
	VERSION_GONE, /* over, and was not made durable */
	VERSION_STATE_COUNT,
};

enum version_want {
	WANT_NOT,
	WANT_SOON, /* may start although the order is held; keeps its place */
	WANT_ALONE, /* somebody waits for it: it overtakes */
};

TAILQ_HEAD(version_queue, version);
struct version {
	enum version_state state;
	enum version_want want;
	unsigned waiting; /* who wanted it and have not left */
	bool replaced; /* its file has another stage since (O_TRUNC) */
	uint64_t place; /* among the closes; 0: none, is committed when ready */
	uint64_t number; /* 0: not yet, and then it is in nobody's hands */
	struct versions *file;
	/* QUEUED: it does not start before the attempt at this one is over. */
	struct version *behind;
	struct version_queue followers; /* those that are behind it */
	TAILQ_ENTRY(version) by_file, by_place, by_state;
};

struct order {
	struct version_queue placed; /* all with a place, by it */
	struct version_queue idle; /* CLOSED, FAILED */
	/* QUEUED, and behind none; wanted ones first. */
	struct version_queue queue;
	/* READY, and need no turn: they have no place, or are wanted. */
	struct version_queue loose;
	struct version_queue voided; /* VOID */
	uint64_t next_place;
	uint64_t unfinished;
	bool on_demand; /* nothing starts that nobody asked for */
};

void order_init(struct order *o);
/* What the mover asks. */
bool order_allows(enum version_state from, enum version_state to);

/* In no worker's hands and not the committer's: it can start, or end. */
bool version_pending(const struct version *v);
bool version_over(const struct version *v);
/*
 * Its place; or, of what is drained as it stands, when that began: what was
 * closed before has a smaller one, and what is closed later a greater. It is in
 * somebody's hands.
 */
uint64_t version_rank(const struct version *v);
/* The pending version of what the file is now; NULL: none. */
struct version *versions_next(const struct versions *f);

/* --- closes */

/* v is the file's newest: CLOSED or QUEUED. */
void order_add(struct order *o, struct version *v, struct versions *f,
	       enum version_state state);
/* The file was closed: v, which is pending, has the last place there is. */
void order_place(struct order *o, struct version *v);
/* v, which is pending, holds up nobody: it is never to be durable as it is. */
void order_unplace(struct order *o, struct version *v);
/*
 * Places and numbers are drawn from one row, and the next is `first`: nobody
 * has given it, or one above it, before.
 */
void order_begin(struct order *o, uint64_t first);
/*
 * v, which is pending and has no place, has one that was given before: by
 * another daemon, or to what was closed of its file.
 */
void order_resume(struct order *o, struct version *v, uint64_t place);
/* A place, or a number, after all that were given, which no version has. */
uint64_t order_draw(struct order *o);
/* A v that is idle waits for no event any more. */
void order_wake(struct order *o, struct version *v);
/*
 * The file has another stage now; v, of the one before, keeps its place, and
 * comes before what is newer. It is pending, or RUNNING, READY, VOID or
 * TAKEN.
 */
void order_replace(struct order *o, struct version *v);

/* --- workers */

/* The next one to be drained is RUNNING now; NULL: none may start. */
struct version *order_start(struct order *o);
/* The same of those that somebody waits for; is there one that may start? */
struct version *order_start_wanted(struct order *o);
bool order_has_wanted(const struct order *o);
/* Drained: READY, or VOID when it has to make way. */
void order_ready(struct order *o, struct version *v);
/* READY: it has to make way now. False: it is in other hands. */
bool order_give_back(struct order *o, struct version *v);
/*
 * It must be drained again, in the same place: at once, or, behind another one
 * that has bytes of it, when the attempt at that one is over. Whose turn comes
 * before that one's waits for none of it: see order_may_follow().
 */
void order_again(struct order *o, struct version *v, struct version *behind);
/*
 * Is u in flight, and committed before v if it is committed? That changes with
 * who is waited for; who may not follow any more starts at once.
 */
bool order_may_follow(const struct version *v, const struct version *u);
/* It is tried again later, in the same place. Nobody waits for it any more. */
void order_fail(struct order *o, struct version *v);

/* --- the committer */

/* The next one to be committed is TAKEN now; NULL: none may be. */
struct version *order_take(struct order *o);
/* One that is VOID, for order_again() or order_end(); NULL: none is. */
struct version *order_void(const struct order *o);
void order_seen(struct order *o, struct version *v);
/* DONE or GONE: v is in no list any more. */
void order_end(struct order *o, struct version *v, enum version_state to);

/* --- who waits */

/*
 * Somebody waits for v alone, so it goes to the front, and with it what is in
 * flight of the same bytes. An older version that nobody waits for makes way:
 * it would have to be committed before v, and would overtake what was closed
 * before it. It keeps its place. Returned is one that is RUNNING for nothing
 * now, or NULL.
 */
struct version *order_want(struct order *o, struct version *v);
/*
 * Who wanted v does not wait for it any more, for whatever reason. When nobody
 * waits for any version of its file, none overtakes: it may be closed anew,
 * with other bytes, which nobody has asked for. True: one did until now. What
 * is older of its file may have its turn before it then.
 */
bool order_leave(struct order *o, struct version *v);
/* It may start, but keeps its place. */
void order_want_soon(struct version *v);
/* The oldest with a place; NULL: nothing that was closed is unfinished. */
struct version *order_first(const struct order *o);

#endif
