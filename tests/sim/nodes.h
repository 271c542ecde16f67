/*
 * nodes.h - what a seed does with several nodes: drawn, done, and watched.
 *
 * A job saves steps: a rank on each node writes its files, and when all are
 * closed one of them writes the trackers. Beside it each node has somebody who
 * writes, replaces, renames, links and removes files of his own, and others
 * that all nodes are at. Nodes die, with or without what they had not synced,
 * and come back, or are forgotten.
 */
#ifndef TESTS_SIM_NODES_H
#define TESTS_SIM_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/store.h"
#include "tests/sim/engine.h"
#include "tests/sim/mount.h"

#define NODES_MAX 3
#define DEATHS_MAX 3
#define STEPS_MAX 4
#define FILE_BYTES_MAX (64u << 10)

struct death {
	unsigned node; /* 1, 2, ... */
	uint64_t calls; /* of this node, counted from its start */
	bool cut; /* the power; else the daemon and its clients alone */
	bool for_good; /* it is forgotten */
	int64_t away_ns;
};

struct nodes_plan {
	uint64_t seed;
	unsigned nodes, steps, files; /* files: of a rank in a step */
	unsigned sizes;
	bool folders; /* a step gets its name when it is whole */
	bool metadata; /* a step has a tracker in it */
	unsigned latest; /* how it is written: enum latest_way */
	bool syncs; /* ranks fsync what they save */
	unsigned churn; /* calls of who is beside the job */
	unsigned common; /* one in so many of them at files of all; 0: none */
	uint64_t errors;
	unsigned wait_s; /* pending_wait */
	struct engine_kind kind;
	struct death death[DEATHS_MAX];
	unsigned deaths;
	struct store_options options;
};

enum latest_way {
	LATEST_REPLACED, /* O_TRUNC */
	LATEST_RENAMED, /* written elsewhere, renamed over */
	LATEST_WAYS,
};

/* --- nodes.c: what a node is while it runs */

struct node_run {
	unsigned number; /* its group */
	char name[8];
	char store[200], stage[200];
	struct store *st;
	struct shared *shared;
	struct mount *mount;
	bool up; /* mounted, and its clients run */
	bool forgotten;
	unsigned starts;
	uint64_t calls_at_start;
	unsigned clients; /* threads that are not at their end */
	unsigned askers; /* bits of nodes that call forget-node for it now */
};
extern struct nodes_plan nodes_plan;
struct node_run *node_of(unsigned number);
/* forget-node, as a command on the node of the caller; its exit code. */
int nodes_forget(unsigned number);

/* --- nodes_work.c */

/* The node's rank and who else works there; each ends by itself. */
void nodes_work_start(struct node_run *n);
/* The node is dead: who worked there is no more. */
void nodes_work_dead(unsigned number);
/* All steps: waits for ranks, in no group. */
void nodes_work_job(void);
void nodes_work_end(void);

/* --- nodes_model.c: what was promised, and what there is */

enum file_kind {
	FILE_PLAIN,
	FILE_LATEST, /* names a step */
	FILE_META, /* lies in a step, and says that it is whole */
};

void nodes_model_init(void);
/* A version of a file is about to be written; its number. */
unsigned model_version(unsigned node, const char *path, enum file_kind kind,
		       unsigned step, size_t size);
size_t model_size(unsigned version);
/* Its bytes [off, off + len). */
void model_bytes(unsigned version, void *buf, size_t len, uint64_t off);
/* A write of it ends here: it may be as long when its node dies. */
void model_written(unsigned version, size_t size);
/* What is there is changed in place: not whole until it is closed. */
void model_changes(unsigned version);
/* A file of all nodes is opened to write: in place, if it has several names. */
void model_common_open(bool begins);
/* It is written to the directory's file, which others see meanwhile. */
void model_in_place(unsigned version, struct einode *in);
void model_synced(unsigned version);
void model_closing(unsigned version);
void model_closed(unsigned version, int rc);
/* Its RELEASE was answered. */
void model_released(unsigned version);
/* Nobody relies on it: it was not written after all. */
void model_void(unsigned version);
/* What was read has to be a version of a whole file; its number, 0: empty. */
unsigned model_read(const char *path, const uint8_t *bytes, size_t len);

/* Files of one client: what may be there. */
void model_own_open(const char *path, unsigned version, bool cuts);
void model_own_closed(const char *path, unsigned version, int rc);
void model_own_unlink(const char *path, bool begins, int rc);
void model_own_rename(const char *from, const char *to, bool begins, int rc);
/* At least this one is seen by who reads it on the same node; 0: any, or none */
unsigned model_own_least(const char *path);

/*
 * A call that changes which file a name of all nodes means: its number. id: what
 * it writes there; 0: it moves something there, or away, or removes it.
 */
enum common_call {
	COMMON_WRITES,
	COMMON_MOVES_HERE,
	COMMON_TAKES_AWAY,
};
unsigned model_common_begin(const char *path, enum common_call what,
			    unsigned id);
void model_common_end(unsigned call, int rc);
/* One of them gets a second name: what is where is not followed from here on. */
void model_common_linked(void);

void model_node_died(unsigned node, bool cut);
void model_node_forgotten(unsigned node);
/* A step's folder gets its name: what was closed in it is whole then. */
void model_folder_named(unsigned step);
/* Who reads a step that `latest` names: how many files of it has he to find? */
bool model_step_file(unsigned step, unsigned index, char *path, size_t size,
		     unsigned *ret_version);
/* The last one to be said at a failure. */
void nodes_model_say(void);
/* All nodes live, and nothing is done: is all there, and whole? */
bool nodes_model_is_quiet(void);
/* Is it pending, and says no node? */
bool model_is_bare(const char *path);
/*
 * Pending files that say no node, as after a power cut, and those that are lost
 * with one that was forgotten: how many there were.
 */
unsigned nodes_model_remove_bare(void);
void nodes_model_check_end(void);

#endif
