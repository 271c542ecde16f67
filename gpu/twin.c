/* twin.c - the thread that prepares a mapping. See twin.h. */
#include "gpu/twin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/acquire.h"
#include "gpu/thread.h"
#include "store/base/scope.h"

/* Held over each: the lock that mmap(2) needs too. */
#define POPULATE_BYTES (UINT64_C(2) << 20)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

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
	struct mapping *p;

	if (acquire_mapping(m, t->dirfd, "(the next save)", t->signature,
			    t->size_bytes, &p) == 0) {
		/* Kernels without it let the copy do the first touch. */
		for (uint64_t at = 0; at < p->size_bytes && !is_closing(m);
		     at += POPULATE_BYTES) {
			uint64_t n = p->size_bytes - at;

			(void)madvise(p->memory + at,
				      n < POPULATE_BYTES ? n : POPULATE_BYTES,
				      MADV_POPULATE_WRITE);
		}
		p->fresh = false; /* it has its twin */
		acquire_return(p);
	}
	close(t->dirfd);
	free(t);
	HOLD(&m->lock);
	m->twins--;
	pthread_cond_broadcast(&m->changed);
	return NULL;
}

void twin_prepare(const struct mapping *p, int dirfd)
{
	struct ckpt_mount *m = p->mount;
	struct twin *t = calloc(1, sizeof(*t));
	pthread_attr_t detached;
	pthread_t thread;
	int rc;

	if (!t)
		return;
	t->mount = m;
	t->size_bytes = p->size_bytes;
	memcpy(t->signature, p->signature, sizeof(t->signature));
	t->dirfd = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
	{
		HOLD(&m->lock);
		m->twins++;
	}
	CHECK(pthread_attr_init(&detached) == 0);
	CHECK(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED) ==
	      0);
	rc = t->dirfd < 0 ? -errno
			  : thread_start(&thread, &detached, twin_main, t);
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

void twins_wait(struct ckpt *c)
{
	for (struct ckpt_mount *m = c->mounts; m; m = m->next) {
		HOLD(&m->lock);
		m->closing = true;
		while (m->twins > 0)
			pthread_cond_wait(&m->changed, &m->lock);
	}
}
