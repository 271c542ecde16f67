/*
 * guard.h - looks at a step when it is published, before anybody trusts it.
 *
 * A step is published by the rename of its folder, by the rename of its
 * .metadata to that name, or by a tracker that names it: a small file called
 * latest*, or a symbolic link, beside the step. (A hard link counts as a
 * rename.) What is moved out of the way, or is a run of several steps, is not.
 * A file that is a step by itself (step_100.pt, last.ckpt) is published by its
 * rename, or by the close of who wrote it under its name, once there is
 * something in it and nobody else writes it: while somebody writes it, or has
 * changed it since it was read, nothing is said of it, and his close counts. A
 * step is then compared with the step before it: the folder (or file) beside it
 * that is called like a step of the same run (step_name.h), by the next smaller
 * number; a folder in a step with the one of that name there. A name that is
 * perhaps a step's is taken for one when a tracker names one of the run, or the
 * two before it lie in one row with it. What is found:
 *
 *   broken     a file is torn, by what its format says, or .metadata does not
 *              fit the files
 *   missing    a file that .metadata or an index names is not there, or a
 *              tensor that was declared (user.ckptfs.expect, one name in a
 *              line, on the step or a folder above it), or, with refuse, the
 *              step that a tracker names which named one before; what a new
 *              tracker names may come later, as in a restore
 *   gone       tensors that the step before had are not there; what is no such
 *              loss says compare.h. What the step before alone had, and neither
 *              the one before that nor this one, is not gone but left out. A
 *              step that has none at all has lost them if it is empty, or if a
 *              file that had some is of a format for tensors and has none; else
 *              they may be in a format that nobody here knows
 *   different  any of that, and what is only reported: tensors that are new,
 *              left out, retyped, reshaped or in another file; files that could
 *              not be read, or that .metadata does not name
 *   identical  every file with tensors has the bytes it had in the step before:
 *              stale weights may have been saved
 *
 * What differs on purpose from step to step is named by patterns, one in a
 * line, with * and ? (user.ckptfs.structure_ignore, on the step or a folder
 * above it; the nearest counts): such tensors are not compared.
 *
 * Policy: off, warn (one line in the log; a thread looks, nobody waits) or
 * refuse: for broken, missing and gone, and nothing else, the call that would
 * publish fails with -EUCLEAN, and nothing was published; a tracker keeps, or
 * gets back, the content that is durable. user.ckptfs.refused on the step, and
 * on what was to publish it, then says why, until the step changes or is
 * published. `identical` is found out when all is durable.
 * user.ckptfs.structure_policy on a folder counts for what is below it.
 *
 * What a writer left who was there when the daemon was killed is looked at when
 * the next one takes it over, a tracker before it becomes durable. Before a
 * call is refused the kernel is asked for what it alone has of the files
 * (mappings, without passthrough).
 *
 * Names and files are those of a table (guard_table.h): the store's own, or of
 * a directory that nodes share. There a step may have parts whose bytes another
 * node has still: they are there, of the size that is known, and what they have
 * is not looked at. What the others say is checked as ever; nothing is then
 * gone that may be in such a part, and the thread looks again until all of it
 * can be read, when it can only be warned of.
 *
 * Threads: any; one step is looked at at a time, and memory is bounded, see
 * below. Blocks on I/O: hold no lock. -EINTR: see guard_name().
 */
#ifndef STORE_GUARD_H
#define STORE_GUARD_H

#include <stdint.h>

#include "store/base/bytes.h"
#include "store/names/inode.h"

#define GUARD_EXPECT_XATTR "user.ckptfs.expect"
#define GUARD_IGNORE_XATTR "user.ckptfs.structure_ignore"
#define GUARD_POLICY_XATTR "user.ckptfs.structure_policy"
#define GUARD_REFUSED_XATTR "user.ckptfs.refused" /* is read only */
#define GUARD_IGNORE_MAX 64u /* patterns */
/*
 * No larger .metadata is looked into (100 GB in 300,000 chunks have 45 MB), and
 * no step whose tensors take more memory, nor a file that takes as much besides
 * while it is read: of safetensors a header of about 15 MiB. Reading a
 * .metadata takes five times its size. Two steps are looked at at once, and
 * when something is gone the one before these as well: together, with what
 * reading takes, they have one budget (GUARD_MEMORY_OF_ALL_MAX), however many
 * publish at the same time, as one look is taken after the other. What was too
 * large is said, and never refused; then nothing that is gone or missing is,
 * either, as it may be there. All of it is given back to the system.
 */
#define GUARD_METADATA_BYTES_MAX (UINT64_C(96) << 20)
#define GUARD_MEMORY_BYTES_MAX ((size_t)256 << 20)
#define GUARD_MEMORY_OF_ALL_MAX ((size_t)768 << 20)
#define GUARD_TEXT_BYTES 1024
#define GUARD_PATH_BYTES 4096
#define GUARD_REFUSALS_KEPT 10

enum guard_policy {
	GUARD_OFF,
	GUARD_WARN,
	GUARD_REFUSE,
};

struct guard;
struct names;
struct drain;
struct files;

struct guard_figures {
	uint64_t checked, different, broken, missing, gone, identical, refused;
	uint64_t waiting; /* that a thread has still to look at */
	uint64_t overlooked; /* too many waited */
	size_t memory_bytes, memory_peak; /* of steps: kept; ever had */
	char last[GUARD_TEXT_BYTES]; /* what was reported last; or empty */
};

struct guard_refusal {
	int64_t at_ns; /* 0: there is none */
	uid_t uid; /* whose step it is */
	char path[GUARD_PATH_BYTES]; /* of the step, as it was called then */
	char why[GUARD_TEXT_BYTES];
};

/* What the guard works with; all borrowed. */
struct guard_uses {
	struct kv *kv;
	struct inode_table *inodes;
	struct names *names;
	struct drain *drain;
	struct files *files;
	enum guard_policy policy; /* where no folder has its own */
};

int guard_new(const struct guard_uses *use, struct guard **ret_guard);
/* Names and files are these, instead of the store's. Before guard_start(). */
struct guard_table;
void guard_set_table(struct guard *g, const struct guard_table *t);
const struct guard_table *guard_table(const struct guard *g);
int guard_start(struct guard *g);
/* Looks at all that waits, first. */
void guard_stop(struct guard *g);
/* Stopped before. NULL: nothing. */
void guard_free(struct guard *g);

/* Words of the policy: "off", "warn", "refuse". -EINVAL. */
int guard_policy_of(const char *word, size_t len, enum guard_policy *ret);
/* Patterns that are not too many, and have no NUL: 0, or -E2BIG, -EINVAL. */
int guard_ignore_check(const char *text, size_t len);
const char *guard_policy_word(enum guard_policy policy);

/*
 * A name is about to be given, by a rename, a hard link or a symbolic one: 0,
 * -EUCLEAN, or -EINTR where the table may hang and whoever calls is to end.
 * *ret_looked: what it publishes was looked at. When it has happened call
 * guard_named(), which may have the thread look.
 */
int guard_name(struct guard *g, uint64_t id, uint64_t parent, const char *name,
	       bool *ret_looked);
int guard_symlink(struct guard *g, const char *target, uint64_t parent,
		  const char *name, bool *ret_looked);
int guard_rename(struct guard *g, uint64_t parent, const char *name,
		 uint64_t new_parent, const char *new_name, bool *ret_looked);
void guard_named(struct guard *g, uint64_t parent, const char *name,
		 bool looked);
/*
 * Does whoever closes a descriptor have the file open to write by another one,
 * so that this close ends nothing? number: as the table has it.
 */
struct guard_closer {
	bool (*goes_on)(void *arg, uint64_t number);
	void *arg;
};
/*
 * A file that was written is about to be closed, or to be synced (by NULL): 0,
 * or -EUCLEAN, when it is a tracker, which then has its durable content again,
 * or, closed, a step by itself, which stays as it is. 1: a tracker that would
 * be refused if need be, and whose closer goes on: it is not closed yet. A
 * child that a half written file was left to may close it as well, so of that
 * nothing is said before guard_released(): a writer is gone, of all handles. It
 * follows on each file_release() of a handle that was opened to write, also of
 * one that nobody was told of: the thread passes over what is being written
 * then, and waits for that call. -EINTR as above.
 */
int guard_close(struct guard *g, struct inode *in,
		const struct guard_closer *by);
void guard_released(struct guard *g, struct inode *in);
/* A segment became the file: the two at once, as of one who has closed it. */
int guard_committed(struct guard *g, struct inode *in);
/*
 * A file was open to write when the last daemon ended: its writer is gone with
 * all that he would have been told. What was a tracker gets its durable content
 * back if it is refused, or was just emptied; what is a step by itself the
 * thread looks at. After guard_start(), before the file is closed for the
 * drain. Not of the table that nodes share.
 */
void guard_was_open(struct guard *g, struct inode *in);

/* Wait until the thread has looked at all that was published before. */
void guard_wait_idle(struct guard *g);

void guard_figures(struct guard *g, struct guard_figures *ret);
/* The n-th refusal from the last one on. False: there were not so many. */
bool guard_refusal(struct guard *g, unsigned n, struct guard_refusal *ret);
/* Why a step was refused, or what was to publish it. -ENODATA: it was not. */
int guard_refused(struct guard *g, uint64_t id, struct bytes *out);

/*
 * For people: the signature of a file or a folder, and how a folder differs
 * from the step before it, a line for each, as many as an attribute takes; uid:
 * who asks, if that matters, for -EACCES where the step before is another
 * user's, or something in the folder is not for him to read. -ENODATA: there is
 * none. -EBUSY: somebody else asks. -EAGAIN: another node has parts of it.
 */
int guard_signature(struct guard *g, uint64_t id, const uid_t *uid,
		    struct bytes *out);
int guard_difference(struct guard *g, uint64_t id, const uid_t *uid,
		     struct bytes *out);

#endif
