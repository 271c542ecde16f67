/*
 * mount.h - a mount as this process reaches it: found by a directory in it,
 * connected once, and asked for segments (store/base/segment_wire.h).
 *
 * A connection lives as long as the daemon at its other end. When that ends,
 * every segment is stale: those that nobody fills are unmapped by the listener,
 * the others when who fills them is done. The next request connects anew.
 *
 * Locks, in order: mount.turn (one request at a time; held over the exchange),
 * mount.lock (a leaf).
 */
#ifndef GPU_MOUNT_H
#define GPU_MOUNT_H

#include <sys/queue.h>

#include "gpu/handle.h"
#include "store/base/ckptfs_ioctl.h"

/*
 * Somebody who fills a segment of this structure, or is about to ask for one.
 * There are never more of them than segments: the others wait here, not at the
 * mount, which could only send them away.
 */
struct claim {
	LIST_ENTRY(claim) entry; /* in mount.claims; mount.lock */
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
};

struct segment {
	LIST_ENTRY(segment) entry; /* in mount.segments; mount.lock */
	struct ckpt_mount *mount;
	/* Immutable: */
	uint64_t id;
	unsigned connection; /* of which it is */
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
	uint8_t *memory; /* mapped, size_bytes */
	uint64_t size_bytes;
	bool pinned;
	bool fresh; /* its first save is not over; who fills it alone */

	/* mount.lock: */
	bool filling; /* somebody's, until it is committed or returned */
	bool asked; /* the mount wants it back, as soon as it is not used */
	unsigned readers; /* copy from it: it cannot be filled before */
	/* The file it was made into, when not filling; ino 0: none. */
	uint64_t ino;
	int64_t mtime_ns;

	/* Who fills it alone: */
	struct claim *claim; /* owned */
	uint64_t generation;
	/*
	 * What the tensors in it hash to, chunk by chunk; valid: the bytes are
	 * those. See unchanged.h.
	 */
	uint8_t (*digests)[16];
	size_t digest_count;
	bool digests_valid;
};

struct ckpt_mount {
	struct ckpt_mount *next; /* ckpt.lock; set once */
	struct ckpt *c;
	uint8_t address[110]; /* its key; immutable */
	uint16_t address_len;

	pthread_mutex_t turn;

	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t changed;
	uint8_t token[SEGMENT_TOKEN_BYTES];
	unsigned connection; /* counts them */
	int fd; /* -1: not connected */
	bool listening; /* the thread is to be joined */
	pthread_t listener;
	bool have_reply; /* for the request in progress */
	struct segment_reply reply;
	int reply_fd;
	LIST_HEAD(, segment) segments;
	LIST_HEAD(, claim) claims;
	unsigned twins; /* threads that prepare one */
	bool closing; /* they are to hurry */
};

/*
 * The mount of an open directory. -ENOTTY: it is not in one. -EOPNOTSUPP,
 * -EROFS: it gives no segments. No sentence is set.
 */
int mount_find(struct ckpt *c, int dirfd, struct ckpt_mount **ret_mount);
/*
 * One request and its reply; connects when needed. *ret_fd (may be NULL) is the
 * descriptor that came along, or -1; *ret_connection (may be NULL) the one that
 * answered, which may have ended since. -ESTALE: the connection ended.
 * -EOPNOTSUPP: this process cannot see the socket, or may not use it.
 */
int mount_request(struct ckpt_mount *m, struct segment_request *q,
		  struct segment_reply *ret, int *ret_fd,
		  unsigned *ret_connection);
/* Say DROP; nobody waits for the answer. */
void mount_drop(struct ckpt_mount *m, uint64_t id, unsigned connection);
/* Give every segment and connection back. For ckpt_close(). */
void mounts_close(struct ckpt *c);

#endif
