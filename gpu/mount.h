/*
 * mount.h - a mount as this process reaches it: found by a directory in it,
 * connected once, and asked for segments (store/base/segment_wire.h).
 *
 * A connection lives as long as the daemon at its other end. Its listener, a
 * thread, hands each reply to the request that waits for it, and tells
 * mount_user of what comes unasked. When the daemon ends, so does the
 * connection, and every segment that it gave is stale; the next request
 * connects anew.
 */
#ifndef GPU_MOUNT_H
#define GPU_MOUNT_H

#include <sys/queue.h>

#include "gpu/handle.h"
#include "store/base/ckptfs_ioctl.h"

struct mapping; /* mapping.h */
struct claim; /* acquire.c */

/* What a mount says unasked. Its listener calls; no lock is held. */
struct mount_user {
	/* It wants the memory of segment `id` back. */
	void (*released)(struct ckpt_mount *m, uint64_t id);
	/* The connection has ended, and all that was got from it is stale. */
	void (*ended)(struct ckpt_mount *m, unsigned connection);
};

struct ckpt_mount {
	struct ckpt_mount *next; /* ckpt.lock; set once */
	struct ckpt *c;
	const struct mount_user *user; /* immutable */
	uint8_t address[110]; /* its key; immutable */
	uint16_t address_len;

	pthread_mutex_t
		request_lock; /* one request, until its reply is there */

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
	LIST_HEAD(, mapping) mappings;
	LIST_HEAD(, claim) claims;
	unsigned twins; /* twin.c's threads */
	bool closing; /* they are to hurry */
};

/*
 * The mount of an open directory, which tells `user`. -ENOTTY: the directory
 * is not in one. -EOPNOTSUPP, -EROFS: it gives no segments. No sentence is set.
 */
int mount_find(struct ckpt *c, int dirfd, const struct mount_user *user,
	       struct ckpt_mount **ret_mount);
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
/* End every connection. For ckpt_close(); nobody asks any more. */
void mounts_close(struct ckpt *c);

#endif
