/*
 * backup.c - see backup.h. The thread sleeps until a backup is wanted and due;
 * when the last one was made is asked of what lies in STORE/backup, so that
 * many short mounts do not make many backups.
 */
#include "store/backup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/store.h"

#define NS_PER_S INT64_C(1000000000)

struct backup {
	struct thread thread;
	char path[4096 + 16];
	struct lock lock; /* guards everything below */
	struct cond work;
	bool wanted, stop;
	int64_t due_ns; /* monotonic: not before */
	struct backup_figures figures;
};

/* What is on the disk already; when the next one may be made. */
static void look_at_last(struct backup *b, unsigned interval_s)
{
	struct kv_backup_info last;
	int64_t age_ns;

	if (kv_backup_look(b->path, &last) < 0)
		return;
	HOLD(&b->lock);
	b->figures.at_ns = last.at_ns;
	b->figures.bytes = last.bytes;
	age_ns = wall_ns() - last.at_ns;
	if (age_ns >= 0 && age_ns < interval_s * NS_PER_S)
		b->due_ns = mono_ns() + interval_s * NS_PER_S - age_ns;
}

static void make_one(struct store *st)
{
	struct backup *b = st->backup;
	struct kv_backup_info made;
	int64_t begin = mono_ns();
	int rc = kv_backup(st->kv, b->path, &made);
	int64_t now = mono_ns();

	if (rc < 0) /* it is tried again after the next publish */
		log_error("%s: the database is not backed up: %s", b->path,
			  strerror(-rc));
	HOLD(&b->lock);
	b->due_ns = now + st->options.backup_interval_s * NS_PER_S;
	if (rc < 0) {
		b->figures.failed++;
		return;
	}
	b->figures.made++;
	b->figures.bytes = made.bytes;
	b->figures.at_ns = made.at_ns;
	b->figures.took_ns = now - begin;
}

/* Wait until one is wanted and due; false: the store is closed. */
static bool wait_for_work(struct backup *b)
{
	HOLD(&b->lock);
	while (!b->stop) {
		if (!b->wanted)
			cond_wait(&b->work, &b->lock);
		else if (mono_ns() < b->due_ns)
			(void)cond_wait_until(&b->work, &b->lock, b->due_ns);
		else
			break;
	}
	b->wanted = false;
	return !b->stop;
}

static void *backup_main(void *arg)
{
	struct store *st = arg;

	look_at_last(st->backup, st->options.backup_interval_s);
	while (wait_for_work(st->backup))
		make_one(st);
	return NULL;
}

int backup_start(struct store *st)
{
	struct backup *b;
	int rc;

	if (st->options.backup_interval_s == 0)
		return 0;
	b = calloc(1, sizeof(*b));
	if (!b)
		return -ENOMEM;
	(void)snprintf(b->path, sizeof(b->path), "%s/" LAYOUT_BACKUP_DIR,
		       st->path);
	lock_init(&b->lock, LOCK_BACKUP);
	cond_init(&b->work);
	st->backup = b;
	rc = thread_create(&b->thread, backup_main, st);
	if (rc < 0) {
		lock_destroy(&b->lock);
		cond_destroy(&b->work);
		free(TAKE(st->backup));
	}
	return rc;
}

void backup_stop(struct store *st)
{
	struct backup *b = st->backup;

	if (!b)
		return;
	{
		HOLD(&b->lock);
		b->stop = true;
		cond_signal(&b->work);
	}
	thread_join(&b->thread);
	lock_destroy(&b->lock);
	cond_destroy(&b->work);
	free(TAKE(st->backup));
}

void backup_wanted(struct store *st)
{
	struct backup *b = st->backup;

	if (!b)
		return;
	HOLD(&b->lock);
	b->wanted = true;
	cond_signal(&b->work);
}

void backup_figures(struct store *st, struct backup_figures *ret)
{
	struct backup *b = st->backup;

	memset(ret, 0, sizeof(*ret));
	if (!b)
		return;
	HOLD(&b->lock);
	*ret = b->figures;
}
