/*
 * segment.h - memory of the stage that clients have mapped for good: they fill
 * it, it becomes a file's stage, and when the file is durable they get it
 * back.
 *
 *                   segment_acquire()
 *        IDLE <--------------------------.
 *         | |                            |
 *         | `--> FILLED by its client ---' segment_return()
 *         |          | segment_commit()
 *         |          v
 *         `----- LENT to a file: its stage; comes back when the file is durable
 *                and nobody has it open or mapped
 *
 * Segments are found by (client, structure signature); there are two for each,
 * so that one save can be filled while the one before is made durable. When
 * readers keep a file's segment it stays that file's for good, and its client
 * gets another one. A generation number is random and new for each acquire:
 * nobody can commit what he did not get.
 *
 * Each user (uid) has a quota, counted in huge pages. When the stage is full,
 * idle segments that were not used for longest are asked back from their
 * clients.
 *
 * Threads: any thread. Locks: segments.lock comes before inode.lock and
 * stages.lock; nothing is allocated from the stage and nothing waits for a
 * file under it.
 */
#ifndef STORE_SEGMENT_H
#define STORE_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "store/base/segment_wire.h"
#include "store/base/sync.h"

struct files;
struct stage;
struct attr;
struct inode;
struct writer;

#define SEGMENTS_MAX 4096 /* of all clients */
#define SEGMENTS_OF_UID_MAX 2048 /* nobody takes those of the others */
/* How long memory that other clients were asked for is waited for. */
#define SEGMENT_RELEASE_WAIT_S 10u

TAILQ_HEAD(segment_list, segment);

struct segments {
	/* Immutable: */
	struct files *files; /* both are borrowed */
	struct stages *stages;
	uint64_t quota_bytes; /* for each uid; 0: no segments */
	unsigned release_wait_s; /* SEGMENT_RELEASE_WAIT_S, but in tests */

	struct lock lock; /* guards everything below */
	struct cond changed; /* one was dropped, or a commit ended */
	struct segment_list all; /* least recently used first */
	struct segment_list dropped; /* but their clients hold them */
	unsigned count;
	uint64_t next_id;
	uint64_t takes; /* how often one was acquired */
	uint64_t bytes;
	unsigned clients;
	unsigned leaving; /* out of the list, memory not given back yet */
	uint64_t given_back; /* how many, all in all */
};

/* One connection. The server owns it. */
struct segment_client {
	uid_t uid;
	/* Called under segments.lock when take_release() has something. */
	void (*wake)(struct segment_client *c);
	void *arg;
};

/* quota_bytes 0: no segments. From now on the stage may ask them back. */
void segments_init(struct segments *g, struct files *files,
		   uint64_t quota_bytes);
void segments_release(struct segments *g);

/* All idle ones of a user. */
void segments_ask_back(struct segments *g, uid_t uid);

void segment_client_add(struct segments *g, struct segment_client *c);
/* All its segments: what a file has stays the file's, the rest goes. */
void segment_client_remove(struct segments *g, struct segment_client *c);
/*
 * To be called now and then by the client's own thread, also when the client
 * is removed: take his segments back from durable files that nobody has mapped,
 * cut off what he wrote past the end of his segments, and give up what he has
 * dropped and holds no more. false: he has nothing. May wait for
 * the client.
 */
bool segment_client_trim(struct segments *g, struct segment_client *c);
/* For everybody who has dropped something; waits for nobody. */
void segments_let_go(struct segments *g);
/* At the end, whether he holds it or not: then c may be freed. */
void segment_client_forget(struct segments *g, struct segment_client *c);
/* The next segment that the client is asked to drop. false: none. */
bool segment_take_release(struct segments *g, struct segment_client *c,
			  uint64_t *ret_id);

/*
 * A segment to fill; fields of *ret as in segment_wire.h, its error too.
 * node: the NUMA node on which a new one is to lie if it can, or -1. *ret_fd is
 * a descriptor for the caller to close when ret->fresh, else -1. May
 * wait for other clients, for release_wait_s at most.
 */
int segment_acquire(struct segments *g, struct segment_client *c,
		    const uint8_t signature[SEGMENT_SIGNATURE_BYTES],
		    uint64_t size_bytes, int node, struct segment_reply *ret,
		    int *ret_fd);
/* All of these: -ESTALE when the client has no such segment. */
int segment_mapped(struct segments *g, struct segment_client *c, uint64_t id,
		   uint64_t generation);
int segment_return(struct segments *g, struct segment_client *c, uint64_t id,
		   uint64_t generation);
int segment_drop(struct segments *g, struct segment_client *c, uint64_t id);

/*
 * Make it the file `name` in `parent`, a directory: see CKPTFS_IOC_COMMIT. uid,
 * gid: of who asks; the segment must be of the same user. may() says whether he
 * has these rights (bits as of S_IRWXO) to a directory that gets a new name, or
 * to a file that is there.
 */
struct segment_commit {
	uint64_t id, generation, size_bytes;
	uint64_t parent;
	const char *name;
	uint32_t mode, uid, gid;
	bool (*may)(void *arg, const struct attr *a, uint32_t want);
	void *arg;
	const struct writer *writer; /* NULL: not known */
	/*
	 * Where names are not the store's: find the file, with a reference, or
	 * make it; *ret_made. No lock is held. -ESTALE: try again. ended()
	 * follows when it is 0, with what came of it.
	 */
	int (*find)(void *arg, struct inode **ret_inode, bool *ret_made);
	void (*ended)(void *arg, struct inode *in, int rc);
	void *find_arg;
};
struct segment_committed {
	uint64_t ino;
	int64_t mtime_ns;
	bool replaced; /* there was a file of that name */
};
int segment_commit(struct segments *g, const struct segment_commit *c,
		   struct segment_committed *ret);

struct segment_figures {
	uint64_t segments, bytes, idle_bytes, clients;
};
void segment_figures(struct segments *g, struct segment_figures *ret);

#endif
