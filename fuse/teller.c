/* teller.c - see teller.h. */
#include "fuse/teller.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "store/base/scope.h"

struct message {
	STAILQ_ENTRY(message) entry;
	fuse_req_t req;
	fuse_ino_t dir;
	bool replaced;
	struct ckptfs_commit commit;
};

struct teller {
	struct fuse_session *se;
	pthread_t thread;
	pthread_mutex_t lock; /* guards everything below */
	pthread_cond_t more;
	STAILQ_HEAD(, message) messages; /* at most one of each request */
	bool stop;
};

static void tell(struct teller *t, struct message *m)
{
	const struct ckptfs_commit *q = &m->commit;

	(void)fuse_lowlevel_notify_inval_entry(t->se, m->dir, q->name,
					       strlen(q->name));
	(void)fuse_lowlevel_notify_inval_inode(t->se, m->dir, -1, 0);
	if (m->replaced)
		(void)fuse_lowlevel_notify_inval_inode(t->se, q->ino, -1, 0);
	fuse_reply_ioctl(m->req, 0, q, sizeof(*q));
}

/* The next message; NULL: stop. */
static struct message *take(struct teller *t)
{
	struct message *m;

	HOLD(&t->lock);
	while (STAILQ_EMPTY(&t->messages)) {
		if (t->stop)
			return NULL;
		pthread_cond_wait(&t->more, &t->lock);
	}
	m = STAILQ_FIRST(&t->messages);
	STAILQ_REMOVE_HEAD(&t->messages, entry);
	return m;
}

static void *teller_main(void *arg)
{
	struct teller *t = arg;
	struct message *m;

	while ((m = take(t)) != NULL) {
		tell(t, m);
		free(m);
	}
	return NULL;
}

static void teller_free(struct teller *t)
{
	pthread_cond_destroy(&t->more);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

int teller_start(struct fs *fs, struct teller **ret_teller)
{
	struct teller *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return -ENOMEM;
	t->se = fs->se;
	STAILQ_INIT(&t->messages);
	CHECK(pthread_mutex_init(&t->lock, NULL) == 0);
	CHECK(pthread_cond_init(&t->more, NULL) == 0);
	rc = -pthread_create(&t->thread, NULL, teller_main, t);
	if (rc < 0)
		teller_free(t);
	else
		*ret_teller = t;
	return rc;
}

void teller_stop(struct teller *t)
{
	if (!t)
		return;
	{
		HOLD(&t->lock);
		t->stop = true;
		pthread_cond_signal(&t->more);
	}
	CHECK(pthread_join(t->thread, NULL) == 0);
	teller_free(t);
}

int teller_committed(struct teller *t, fuse_req_t req, fuse_ino_t dir,
		     const struct ckptfs_commit *q, bool replaced)
{
	struct message *m = malloc(sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->req = req;
	m->dir = dir;
	m->replaced = replaced;
	m->commit = *q;
	HOLD(&t->lock);
	STAILQ_INSERT_TAIL(&t->messages, m, entry);
	pthread_cond_signal(&t->more);
	return 0;
}
