/*
 * engine.h - the directory that all nodes share: a cluster file system of a run,
 * in memory, as each node's client shows it.
 *
 * The calls of the store that name it, or a descriptor of it, come to
 * engine_calls.c (--wrap). Each is a point before it is done and one after, so
 * that a node that dies in a call has done it or not, and may fail. What the
 * kinds of cluster file systems do otherwise is drawn for each run:
 *
 *   attributes and entries are remembered for a while, per node, as NFS does:
 *   an open, a change of one's own, and statx() that is to ask anew, see what
 *   is there now
 *   what was written and not synced is with the client that wrote it: others
 *   see it (CephFS), or when the file is closed or its attributes are set
 *   (NFS), and a power cut of the node takes it
 *   times are as coarse as a tick (of a server's kernel), or a second (MooseFS)
 *
 * Who calls is the group of the thread (sim_group()): 1, 2, ... are nodes, 0 is
 * the run itself, which is no client and sees what others would.
 */
#ifndef TESTS_SIM_ENGINE_H
#define TESTS_SIM_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/sim/sim.h"

#define ENGINE_NODES_MAX 5 /* with 0, which is none, and a machine besides */
#define ENGINE_PATH "/sim-dir"
#define ENGINE_NAME_MAX 255

struct engine_kind {
	bool buffers; /* what is written is not there before a sync */
	bool set_flushes; /* to set attributes brings it there, and a close */
	bool gone_is_stale; /* a file without a name is -ESTALE */
	int64_t files_ns, dirs_ns; /* attributes are remembered for so long */
	int64_t tick_ns; /* times are as coarse as that */
};

struct einode; /* a file or a directory */

void engine_init(uint64_t seed, const struct engine_kind *k);
/* One call in so many fails from now on; 0: none. */
void engine_errors(uint64_t one_in);
/* How many calls this node has made. */
uint64_t engine_calls(unsigned node);
/* Its descriptors are closed. cut: what it had not brought there is gone. */
void engine_dead(unsigned node, bool cut);
/* Descriptors of this node that are open; they are printed. */
unsigned engine_open(unsigned node);

/* --- what is there, for who checks it */

enum engine_change {
	ENGINE_BYTES, /* written or cut */
	ENGINE_MODE,
	ENGINE_NAMED, /* it got a name */
	ENGINE_UNNAMED, /* it lost one */
};
/* fn runs after each change, in the call that makes it. */
void engine_on_change(void (*fn)(struct einode *in, enum engine_change what));

/* A path from the directory; NULL: there is nothing. No link is followed. */
struct einode *engine_at(const char *path);
/* Where is it? A name of it; false: it has none. */
bool engine_path(const struct einode *in, char *buf, size_t size);
/* Each name below `path`, but .ckptfs; of a directory before what is in it. */
void engine_each(const char *path,
		 void (*fn)(void *arg, const char *path, struct einode *in),
		 void *arg);
/* Somebody removes it there, from outside. False: there is no such name. */
bool engine_remove(const char *path);
uint64_t einode_number(const struct einode *in);
mode_t einode_mode(const struct einode *in);
nlink_t einode_links(const struct einode *in);
/* As others read it. The buffer is good until the next call. */
const uint8_t *einode_bytes(const struct einode *in, size_t *ret_len);
/* The file that the descriptor is of. */
struct einode *engine_of_fd(int fd);
/* Somebody has it open to write in its place: see model. */
unsigned *einode_mark(struct einode *in);

#endif
