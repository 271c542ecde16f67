/*
 * acquire.c - ask the mount for a segment until there is one. See acquire.h.
 *
 * The mount answers with a segment that is new, with one that this process has
 * mapped already, or with the file that must become durable first. Between the
 * question and the answer that file may have become durable, or the mapping be
 * gone: then the question is asked again.
 */
#include "gpu/acquire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "store/base/scope.h"

/* After so many answers "ask again" something is wrong. */
#define ACQUIRE_TRIES_MAX 64

/*
 * Somebody who fills a mapping of this structure, or is about to ask for one.
 * There are never more of them than segments: the others wait here, not at the
 * mount, which could only send them away.
 */
struct claim {
	LIST_ENTRY(claim) entry; /* in mount.claims; mount.lock */
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
};

/* Wait until fewer than `limit` have a claim to the structure. */
static void wait_for_claims_locked(struct ckpt_mount *m,
				   const uint8_t *signature, unsigned limit)
{
	struct claim *claim;
	unsigned count;

	for (;;) {
		count = 0;
		LIST_FOREACH(claim, &m->claims, entry)
		count += memcmp(claim->signature, signature,
				sizeof(claim->signature)) == 0;
		if (count < limit)
			return;
		pthread_cond_wait(&m->changed, &m->lock);
	}
}

static struct claim *claim_new(struct ckpt_mount *m, const uint8_t *signature)
{
	struct claim *claim = calloc(1, sizeof(*claim));

	if (!claim)
		return NULL;
	memcpy(claim->signature, signature, sizeof(claim->signature));
	HOLD(&m->lock);
	wait_for_claims_locked(m, signature, SEGMENTS_PER_SET);
	LIST_INSERT_HEAD(&m->claims, claim, entry);
	return claim;
}

static void claim_free_locked(struct ckpt_mount *m, struct claim *claim)
{
	LIST_REMOVE(claim, entry);
	free(claim);
	pthread_cond_broadcast(&m->changed);
}

static int wait_for_file(int dirfd, uint64_t ino)
{
	struct ckptfs_wait w = { .ino = ino };

	if (ioctl(dirfd, CKPTFS_IOC_WAIT, &w) == 0)
		return 0;
	return errno == ENOENT || errno == EINTR ? 0 : -errno;
}

/* The mount wants memory back that a load of ours copies from. */
static void wait_for_loads(struct ckpt_mount *m)
{
	struct mapping *p;

	HOLD(&m->lock);
	do {
		LIST_FOREACH(p, &m->mappings, entry)
		if (p->wanted_back && p->readers > 0)
			break;
		if (p)
			pthread_cond_wait(&m->changed, &m->lock);
	} while (p);
}

/* The answer is a new segment, and fd its descriptor. */
static int acquire_new(struct ckpt_mount *m, const struct segment_request *q,
		       const struct segment_reply *r, int fd,
		       unsigned connection, const char *path,
		       struct mapping **ret_mapping)
{
	int rc = fd == -EMFILE ? -EMFILE : fd < 0 ? -EPROTO : 0;

	if (rc == 0)
		rc = mapping_new(m, q->signature, r, fd, connection,
				 ret_mapping);
	if (rc == 0)
		return 0;
	if (rc != -ESTALE)
		mount_drop(m, r->id, connection);
	return ckpt_say(rc, "%s: a segment cannot be mapped: %s", path,
			strerror(-rc));
}

/* The answer is a segment that is mapped here. 1: not any more, ask again. */
static int acquire_again(struct ckpt_mount *m, const struct segment_reply *r,
			 unsigned connection, struct mapping **ret_mapping)
{
	*ret_mapping = mapping_find_again(m, r, connection);
	if (!*ret_mapping) {
		mount_drop(m, r->id, connection);
		return 1;
	}
	CKPT_COUNT(m->c, segments_reused, 1);
	return 0;
}

/* The answer is -EAGAIN: wait for what is in the way. 1: ask again. */
static int wait_for_room(struct ckpt_mount *m, int dirfd, uint64_t busy_ino,
			 const char *path)
{
	int rc;

	if (busy_ino == 0) { /* releases came before this */
		wait_for_loads(m);
		return 1;
	}
	rc = wait_for_file(dirfd, busy_ino);
	if (rc < 0)
		return ckpt_say(rc,
				"%s: an earlier save cannot become durable: "
				"%s: see ckptctl status",
				path, strerror(-rc));
	return 1;
}

/* One try. 1: ask again. */
static int acquire_once(struct ckpt_mount *m, int dirfd,
			struct segment_request *q, const char *path,
			struct mapping **ret_mapping)
{
	SCOPED(scope_close) int fd = -1;
	struct segment_reply r;
	unsigned connection;
	int rc;

	rc = mount_request(m, q, &r, &fd, &connection);
	if (rc == -EOPNOTSUPP)
		return ckpt_say(rc,
				"%s: the mount's socket cannot be seen "
				"from here: share its directory with this "
				"container",
				path);
	if (rc < 0)
		return ckpt_say(rc, "%s: the mount's socket was closed", path);
	if (r.error == 0 && r.fresh)
		return acquire_new(m, q, &r, fd, connection, path, ret_mapping);
	if (r.error == 0)
		return acquire_again(m, &r, connection, ret_mapping);
	if (r.error == -EAGAIN)
		return wait_for_room(m, dirfd, r.busy_ino, path);
	if (r.error == -EBUSY) { /* there is room for the other one alone */
		HOLD(&m->lock);
		wait_for_claims_locked(m, q->signature, 2);
		return 1;
	}
	rc = r.error;
	if (rc == -EACCES) /* the token was the last daemon's */
		rc = -ESTALE;
	/* Nothing that it says can be trusted, and slower saves go unseen. */
	if (rc == -EPROTONOSUPPORT)
		return ckpt_say(rc,
				"%s: the mount's daemon and this library "
				"(protocol %u) are of versions that do not "
				"understand each other: use the ckptfs package "
				"of the version that is mounted",
				path, SEGMENT_WIRE_VERSION);
	return ckpt_say(rc, "%s: no segment of %llu bytes: %s", path,
			(unsigned long long)q->size_bytes, strerror(-rc));
}

int acquire_mapping(struct ckpt_mount *m, int dirfd, const char *path,
		    const uint8_t signature[SEGMENT_SIGNATURE_BYTES],
		    uint64_t size_bytes, int node, struct mapping **ret_mapping)
{
	struct segment_request q = {
		.op = SEGMENT_ACQUIRE,
		.size_bytes = size_bytes,
		.generation = node < 0 ? 0 : 1 + (uint64_t)node,
	};
	struct claim *claim = claim_new(m, signature);
	int rc = 1;

	if (!claim)
		return ckpt_say(-ENOMEM, "%s: no memory", path);
	memcpy(q.signature, signature, sizeof(q.signature));
	for (int i = 0; rc > 0 && i < ACQUIRE_TRIES_MAX; i++)
		rc = acquire_once(m, dirfd, &q, path, ret_mapping);
	if (rc == 0) {
		(*ret_mapping)->claim = claim;
		return 0;
	}
	{
		HOLD(&m->lock);
		claim_free_locked(m, claim);
	}
	/* As if there were no room: a plain file will do. */
	return rc < 0 ? rc
		      : ckpt_say(-ENOSPC, "%s: no segment after %d tries", path,
				 ACQUIRE_TRIES_MAX);
}

static void end_filling(struct mapping *p, uint64_t ino, int64_t mtime_ns)
{
	bool over;

	{
		HOLD(&p->mount->lock);
		p->filling = false;
		p->ino = ino;
		p->mtime_ns = mtime_ns;
		if (p->claim)
			claim_free_locked(p->mount, TAKE(p->claim));
		over = mapping_is_over_locked(p);
	}
	if (over)
		mapping_remove(p);
}

void acquire_give_place(struct mapping *p)
{
	HOLD(&p->mount->lock);
	if (p->claim)
		claim_free_locked(p->mount, TAKE(p->claim));
}

void acquire_committed(struct mapping *p, uint64_t ino, int64_t mtime_ns)
{
	end_filling(p, ino, mtime_ns);
}

void acquire_return(struct mapping *p)
{
	struct segment_request q = {
		.op = SEGMENT_RETURN,
		.id = p->id,
		.generation = p->generation,
	};
	struct ckpt_mount *m = p->mount;
	struct segment_reply r;
	bool current;

	{
		HOLD(&m->lock);
		current = p->connection == m->connection;
	}
	/* Said before it can be asked back: who is asked finds it unused. */
	if (current)
		(void)mount_request(m, &q, &r, NULL, NULL);
	end_filling(p, 0, 0);
}
