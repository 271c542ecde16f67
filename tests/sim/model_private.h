/*
 * model_private.h - the states of all paths, for model.c (what was done, and is
 * durable) and model_read.c (what is read, and found after a crash).
 */
#ifndef TESTS_SIM_MODEL_PRIVATE_H
#define TESTS_SIM_MODEL_PRIVATE_H

#include "store/db/kv.h"
#include "tests/sim/model.h"

struct version {
	uint8_t *bytes; /* NULL: absent */
	size_t size;
	uint64_t begun, ended; /* points; 0: not */
	uint64_t close_begun, closed;
	int64_t begun_ns;
	bool hurried; /* a sync may make it durable out of its turn */
	bool written; /* some first part of it may be there ... */
	bool partial; /* ... and durable, for a sync came meanwhile */
	bool failed;
	/*
	 * A part that was found after a kill: less of it may be what a sync
	 * made durable before that.
	 */
	bool less;
	bool anew; /* takes the place of a closed version, which keeps its turn
		    */
	bool opened, in_place; /* not so after all: see model_opened() */
	/*
	 * Made anew: who opens and closes it to read before the writer's own
	 * open has come makes it durable while it is empty.
	 */
	bool made;
	/*
	 * The file came here by name alone: what it was until this state of
	 * that path may be what is durable of it.
	 */
	const struct path *of;
	size_t of_state;
	/* The file came here by name, from that state of that path. */
	const struct path *came;
	size_t came_state;
};

struct path {
	char name[64];
	unsigned owner;
	struct version *at;
	size_t count, room;
	size_t floor; /* this state or a later one is durable */
	uint64_t durable_sum; /* of the record whose bytes were looked at */
	unsigned syncing;
	struct path *other; /* a hard link of the same file */
	/* The last state but one went to `moved_to`, as its state `moved`. */
	struct path *moved_to;
	size_t moved_from, moved;
	bool moved_durable;
	size_t found; /* after a crash: this state, or a part of it */
	size_t found_first; /* or any from this one on, which are the same */
	bool is_part;
	uint8_t *part;
	size_t part_size;
};

struct model {
	struct path path[PATHS_MAX];
	unsigned count;
	bool errors, parts;
	uint64_t empty_in_place_bytes;
};
extern struct model model;

/* --- model.c */

/* Can what is durable of this version be as long as that? */
bool version_has_size(const struct version *v, size_t size);

/* --- model_disk.c */

/* Of a path. The record is the database's, until the next change of it. */
struct durable {
	bool absent;
	uint64_t ino;
	size_t size;
	struct kv_slice record;
};

/* 0, or -ENOENT: a power cut now would leave no such path. */
int durable_find(const char *name, struct durable *ret);
/* Its bytes are on the disk, and one version's. */
void durable_check(struct path *p, const struct durable *d);

#endif
