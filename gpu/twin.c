/* twin.c - the thread that prepares a mapping. See twin.h. */
#include "gpu/twin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/acquire.h"
#include "gpu/thread.h"
#include "store/base/scope.h"

struct twin {
	struct ckpt_mount *mount;
	int dirfd; /* owned */
	uint8_t signature[SEGMENT_SIGNATURE_BYTES];
	uint64_t size_bytes;
	int node; /* where it is to lie, or -1 */
	bool pinned; /* so is the other one */
};

static void *twin_main(void *arg)
{
	struct twin *t = arg;
	struct ckpt_mount *m = t->mount;
	struct mapping *p;

	if (acquire_mapping(m, t->dirfd, "(the next save)", t->signature,
			    t->size_bytes, t->node, &p) == 0) {
		/*
		 * Nobody waits for it: by this thread alone. Where there is no
		 * room for a second one, it is the first.
		 */
		if (p->fresh && t->pinned)
			mapping_pin(p, 1);
		else if (p->fresh)
			mapping_populate(p, 1);
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

void twin_prepare(const struct mapping *p, int dirfd, int node)
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
	t->node = node;
	t->pinned = p->pinned;
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
