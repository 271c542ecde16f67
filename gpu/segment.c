/* segment.c - see segment.h. */
#include "gpu/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/thread.h"
#include "store/base/io.h"
#include "store/base/scope.h"

/* After so many answers "ask again" something is wrong. */
#define ACQUIRE_TRIES_MAX 64
#define HUGE_BYTES (UINT64_C(2) << 20)
#define PAGE_BYTES 4096u
/* Held over each: the lock that mmap(2) needs too. */
#define POPULATE_BYTES HUGE_BYTES
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

void segment_free(struct segment *s)
{
	struct ckpt *c = s->mount->c;

	if (s->pinned) {
		gpu_unregister(c->gpu, s->memory);
		(void)atomic_fetch_sub(&c->counters.pinned_bytes,
				       s->size_bytes);
	}
	if (s->memory)
		(void)munmap(s->memory, s->size_bytes);
	free(s->digests);
	free(s);
}

/* In this order: what it is told of is to be the mount's again. */
static void give_back(struct segment *s)
{
	struct ckpt_mount *m = s->mount;
	unsigned connection = s->connection;
	uint64_t id = s->id;

	segment_free(s);
	mount_drop(m, id, connection);
}

void segments_released(struct ckpt_mount *m, uint64_t id)
{
	struct segment *s;

	{
		HOLD(&m->lock);
		LIST_FOREACH(s, &m->segments, entry)
			if (s->id == id && s->connection == m->connection)
				break;
		if (!s)
			return;
		if (s->filling || s->readers > 0) { /* when that has ended */
			s->asked = true;
			return;
		}
		LIST_REMOVE(s, entry);
	}
	CKPT_COUNT(m->c, released, 1);
	give_back(s);
}

void segments_disconnected(struct ckpt_mount *m, unsigned connection)
{
	for (;;) {
		struct segment *s;

		{
			HOLD(&m->lock);
			LIST_FOREACH(s, &m->segments, entry)
				if (s->connection == connection &&
				    !s->filling && s->readers == 0)
					break;
			if (!s)
				return;
			LIST_REMOVE(s, entry);
		}
		segment_free(s);
	}
}

/*
 * Map it where huge pages fit: an address that is not a multiple of theirs
 * costs a fault for each 4 KiB.
 */
static void *map_aligned(int fd, uint64_t size_bytes)
{
	const size_t reserve = size_bytes + HUGE_BYTES;
	uint8_t *room = mmap(NULL, reserve, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			     0);
	uint8_t *at;
	void *memory;

	if (room == MAP_FAILED)
		return NULL;
	at = room + (HUGE_BYTES - (uintptr_t)room % HUGE_BYTES) % HUGE_BYTES;
	memory = mmap(at, size_bytes, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_FIXED, fd, 0);
	if (memory == MAP_FAILED) {
		(void)munmap(room, reserve);
		return NULL;
	}
	if (at > room)
		(void)munmap(room, (size_t)(at - room));
	at += (size_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	if (at < room + reserve)
		(void)munmap(at, (size_t)(room + reserve - at));
	return memory;
}

/* Pin it for the devices; without, copies take longer, and that is said. */
static void pin(struct ckpt *c, struct segment *s)
{
	if (!c->gpu)
		return;
	if (gpu_register(c->gpu, s->memory, s->size_bytes, false) < 0) {
		CKPT_COUNT(c, pin_failures, 1);
		return;
	}
	s->pinned = true;
	CKPT_COUNT(c, pinned_bytes, s->size_bytes);
}

/* Map a new segment. On an error it is dropped. */
static int map_new(struct ckpt_mount *m, const uint8_t *signature,
		   const struct segment_reply *r, int fd, unsigned connection,
		   struct segment **ret_segment)
{
	struct segment_request q = {
		.op = SEGMENT_MAPPED,
		.id = r->id,
		.generation = r->generation,
	};
	struct segment *s = calloc(1, sizeof(*s));
	struct segment_reply answer;
	void *memory;
	int rc;

	if (!s)
		return -ENOMEM;
	s->mount = m;
	s->id = r->id;
	s->generation = r->generation;
	s->connection = connection;
	s->filling = true;
	s->fresh = true;
	s->size_bytes = r->size_bytes;
	memcpy(s->signature, signature, sizeof(s->signature));
	memory = map_aligned(fd, s->size_bytes);
	if (!memory) {
		free(s);
		return -ENOMEM;
	}
	s->memory = memory;
	/* A child neither needs it nor may keep it from being used again. */
	(void)madvise(memory, s->size_bytes, MADV_DONTFORK);
	rc = mount_request(m, &q, &answer, NULL, NULL);
	if (rc == 0)
		rc = answer.error;
	if (rc < 0) {
		segment_free(s);
		return rc;
	}
	pin(m->c, s);
	{
		HOLD(&m->lock);
		LIST_INSERT_HEAD(&m->segments, s, entry);
	}
	CKPT_COUNT(m->c, segments_new, 1);
	*ret_segment = s;
	return 0;
}

/* Found by the mount's word; mount.lock is held. */
static struct segment *find_locked(struct ckpt_mount *m,
				   const struct segment_reply *r,
				   unsigned connection)
{
	struct segment *s;

	/* Another daemon counts its segments from one as well. */
	LIST_FOREACH(s, &m->segments, entry)
		if (s->id == r->id && s->connection == connection)
			break;
	return s && s->size_bytes == r->size_bytes ? s : NULL;
}

/* One that is mapped already. NULL: it is not (the connection was another). */
static struct segment *find_again(struct ckpt_mount *m,
				  const struct segment_reply *r,
				  unsigned connection)
{
	struct segment *s;

	HOLD(&m->lock);
	/*
	 * It is the mount's word that it may be filled, but who filled it
	 * before may not have heard yet that it is committed or returned. When
	 * he has, it may be gone.
	 */
	while ((s = find_locked(m, r, connection)) != NULL && s->filling)
		pthread_cond_wait(&m->changed, &m->lock);
	if (!s)
		return NULL;
	s->filling = true;
	s->ino = 0;
	s->generation = r->generation;
	while (s->readers > 0) /* a load of ours copies from it */
		pthread_cond_wait(&m->changed, &m->lock);
	return s;
}

/* Wait until fewer than SEGMENTS_PER_SET others fill one of the structure. */
static struct claim *claim_new(struct ckpt_mount *m, const uint8_t *signature)
{
	struct claim *claim = calloc(1, sizeof(*claim)), *other;
	unsigned count;

	if (!claim)
		return NULL;
	memcpy(claim->signature, signature, sizeof(claim->signature));
	HOLD(&m->lock);
	for (;;) {
		count = 0;
		LIST_FOREACH(other, &m->claims, entry)
			count += memcmp(other->signature, signature,
					sizeof(other->signature)) == 0;
		if (count < SEGMENTS_PER_SET)
			break;
		pthread_cond_wait(&m->changed, &m->lock);
	}
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
	struct segment *s;

	HOLD(&m->lock);
	do {
		LIST_FOREACH(s, &m->segments, entry)
		if (s->asked && s->readers > 0)
			break;
		if (s)
			pthread_cond_wait(&m->changed, &m->lock);
	} while (s);
}

/* One try. 1: ask again. */
static int acquire_once(struct ckpt_mount *m, int dirfd,
			struct segment_request *q, const char *path,
			struct segment **ret_segment)
{
	struct segment_reply r;
	unsigned connection;
	int fd, rc;

	rc = mount_request(m, q, &r, &fd, &connection);
	if (rc == -EOPNOTSUPP)
		return ckpt_say(rc, "%s: the mount's socket cannot be seen "
				    "from here: share its directory with this "
				    "container",
				path);
	if (rc < 0)
		return ckpt_say(rc, "%s: the mount's socket was closed", path);
	if (r.error == -EACCES) /* the token was the last daemon's */
		r.error = -ESTALE;
	if (r.error == -EPROTONOSUPPORT)
		r.error = -EOPNOTSUPP;
	if (r.error == 0 && r.fresh) {
		rc = fd == -EMFILE ? -EMFILE :
		     fd < 0	    ? -EPROTO :
			      map_new(m, q->signature, &r, fd, connection,
				      ret_segment);
		if (rc < 0 && rc != -ESTALE)
			mount_drop(m, r.id, connection);
		if (fd >= 0)
			close(fd);
		return rc < 0 ? ckpt_say(rc, "%s: a segment cannot be mapped: "
					     "%s",
					 path, strerror(-rc)) :
				0;
	}
	if (fd >= 0)
		close(fd);
	if (r.error == 0) {
		*ret_segment = find_again(m, &r, connection);
		if (*ret_segment) {
			CKPT_COUNT(m->c, segments_reused, 1);
			return 0;
		}
		mount_drop(m, r.id, connection);
		return 1;
	}
	if (r.error != -EAGAIN)
		return ckpt_say(r.error,
				"%s: no segment of %llu bytes: %s", path,
				(unsigned long long)q->size_bytes,
				strerror(-r.error));
	if (r.busy_ino == 0) { /* releases came before this */
		wait_for_loads(m);
		return 1;
	}
	rc = wait_for_file(dirfd, r.busy_ino);
	if (rc < 0)
		return ckpt_say(rc,
				"%s: an earlier save cannot become durable: "
				"%s: see ckptctl status",
				path, strerror(-rc));
	return 1;
}

int segment_acquire(struct ckpt_mount *m, int dirfd, const char *path,
		    const uint8_t signature[SEGMENT_SIGNATURE_BYTES],
		    uint64_t size_bytes, struct segment **ret_segment)
{
	struct segment_request q = {
		.op = SEGMENT_ACQUIRE,
		.size_bytes = size_bytes,
	};
	struct claim *claim = claim_new(m, signature);
	int rc = 1;

	if (!claim)
		return ckpt_say(-ENOMEM, "%s: no memory", path);
	memcpy(q.signature, signature, sizeof(q.signature));
	for (int i = 0; rc > 0 && i < ACQUIRE_TRIES_MAX; i++)
		rc = acquire_once(m, dirfd, &q, path, ret_segment);
	if (rc == 0) {
		(*ret_segment)->claim = claim;
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

/*
 * Somebody has done with it; mount.lock is held. true: it is stale, or was
 * asked back, and nobody uses it: the caller removes it from the mount.
 */
static bool is_over_locked(struct segment *s)
{
	struct ckpt_mount *m = s->mount;

	pthread_cond_broadcast(&m->changed);
	if (s->filling || s->readers > 0 ||
	    (s->connection == m->connection && !s->asked))
		return false;
	LIST_REMOVE(s, entry);
	return true;
}

static void remove_segment(struct segment *s)
{
	if (s->asked)
		CKPT_COUNT(s->mount->c, released, 1);
	give_back(s);
}

static void end_filling(struct segment *s, uint64_t ino, int64_t mtime_ns)
{
	bool over;

	{
		HOLD(&s->mount->lock);
		s->filling = false;
		s->ino = ino;
		s->mtime_ns = mtime_ns;
		if (s->claim)
			claim_free_locked(s->mount, TAKE(s->claim));
		over = is_over_locked(s);
	}
	if (over)
		remove_segment(s);
}

void segment_give_place(struct segment *s)
{
	HOLD(&s->mount->lock);
	if (s->claim)
		claim_free_locked(s->mount, TAKE(s->claim));
}

void segment_committed(struct segment *s, uint64_t ino, int64_t mtime_ns)
{
	end_filling(s, ino, mtime_ns);
}

void segment_return(struct segment *s)
{
	struct segment_request q = {
		.op = SEGMENT_RETURN,
		.id = s->id,
		.generation = s->generation,
	};
	struct ckpt_mount *m = s->mount;
	struct segment_reply r;
	bool current;

	{
		HOLD(&m->lock);
		current = s->connection == m->connection;
	}
	/* Said before it can be asked back: who is asked finds it unused. */
	if (current)
		(void)mount_request(m, &q, &r, NULL, NULL);
	end_filling(s, 0, 0);
}

/* --- the second one, before it is needed ---------------------------------- */

struct twin {
	struct ckpt_mount *mount;
	int dirfd; /* owned */
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
	uint64_t size_bytes;
};

static bool is_closing(struct ckpt_mount *m)
{
	HOLD(&m->lock);
	return m->closing;
}

static void *twin_main(void *arg)
{
	struct twin *t = arg;
	struct ckpt_mount *m = t->mount;
	struct segment *s;

	if (segment_acquire(m, t->dirfd, "(the next save)", t->signature,
			    t->size_bytes, &s) == 0) {
		/* A first touch costs more than the copy: not the trainer's.
		 * Kernels without it let the copy do it. */
		for (uint64_t at = 0; at < s->size_bytes && !is_closing(m);
		     at += POPULATE_BYTES) {
			uint64_t n = s->size_bytes - at;

			(void)madvise(s->memory + at,
				      n < POPULATE_BYTES ? n : POPULATE_BYTES,
				      MADV_POPULATE_WRITE);
		}
		s->fresh = false; /* it has its twin */
		segment_return(s);
	}
	close(t->dirfd);
	free(t);
	HOLD(&m->lock);
	m->twins--;
	pthread_cond_broadcast(&m->changed);
	return NULL;
}

void segment_prepare_twin(struct segment *s, int dirfd)
{
	struct ckpt_mount *m = s->mount;
	struct twin *t = calloc(1, sizeof(*t));
	pthread_attr_t detached;
	pthread_t thread;
	int rc;

	if (!t)
		return;
	t->mount = m;
	t->size_bytes = s->size_bytes;
	memcpy(t->signature, s->signature, sizeof(t->signature));
	t->dirfd = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
	{
		HOLD(&m->lock);
		m->twins++;
	}
	CHECK(pthread_attr_init(&detached) == 0);
	CHECK(pthread_attr_setdetachstate(&detached,
					  PTHREAD_CREATE_DETACHED) == 0);
	rc = t->dirfd < 0 ? -errno :
			    thread_start(&thread, &detached, twin_main, t);
	(void)pthread_attr_destroy(&detached);
	if (rc == 0)
		return;
	/* Then the next save makes it. */
	if (t->dirfd >= 0)
		close(t->dirfd);
	free(t);
	HOLD(&m->lock);
	m->twins--;
}

void segments_wait_for_twins(struct ckpt_mount *m)
{
	HOLD(&m->lock);
	m->closing = true;
	while (m->twins > 0)
		pthread_cond_wait(&m->changed, &m->lock);
}

struct segment *segment_read_begin(struct ckpt *c, const struct stat *sb)
{
	struct ckpt_mount *m;
	struct segment *s;

	{
		HOLD(&c->lock);
		m = c->mounts;
	}
	for (; m; m = m->next) {
		HOLD(&m->lock);
		LIST_FOREACH(s, &m->segments, entry)
			if (s->ino != 0 && s->ino == sb->st_ino &&
			    !s->filling && s->pinned &&
			    s->connection == m->connection &&
			    s->size_bytes == (uint64_t)sb->st_size &&
			    s->mtime_ns == io_ns(&sb->st_mtim))
				break;
		if (s) {
			s->readers++;
			return s;
		}
	}
	return NULL;
}

void segment_read_end(struct segment *s)
{
	bool over;

	{
		HOLD(&s->mount->lock);
		s->readers--;
		over = is_over_locked(s);
	}
	if (over)
		remove_segment(s);
}
