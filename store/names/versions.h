/*
 * versions.h - of one file: what was closed, or is asked for as it stands, and
 * is not durable yet. It lies in struct file; what happens with it is decided
 * by drain/order.h.
 *
 * Changed under inode.lock and drain.lock, so that one is enough to read it.
 */
#ifndef STORE_VERSIONS_H
#define STORE_VERSIONS_H

#include <stddef.h>
#include <sys/queue.h>

struct version;

struct versions {
	TAILQ_HEAD(version_list, version) list; /* oldest first */
	struct version *in_flight; /* the one that is drained or committed */
	/* How many were replaced since, each by one with a stage of its own. */
	unsigned replaced;
};

static inline void versions_init(struct versions *f)
{
	*f = (struct versions){ 0 };
	TAILQ_INIT(&f->list);
}

#endif
