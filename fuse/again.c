/* again.c - see again.h. */
#include "fuse/again.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "store/base/scope.h"

struct note {
	pid_t tid; /* 0: none */
	uint64_t ino;
	bool empties;
	int rc; /* of its look-up */
};

struct again {
	atomic_uint count; /* of notes: most look-ups need not look */
	pthread_mutex_t
		lock; /* guards everything below, and changes of count */
	unsigned next;
	struct note notes[AGAIN_MAX];
};

struct again *again_new(void)
{
	struct again *a = calloc(1, sizeof(*a));

	if (a)
		CHECK(pthread_mutex_init(&a->lock, NULL) == 0);
	return a;
}

void again_free(struct again *a)
{
	if (!a)
		return;
	(void)pthread_mutex_destroy(&a->lock);
	free(a);
}

static struct note *find_locked(struct again *a, pid_t tid)
{
	for (unsigned i = 0; i < AGAIN_MAX; i++)
		if (a->notes[i].tid == tid)
			return &a->notes[i];
	return NULL;
}

static void drop_locked(struct again *a, struct note *n)
{
	n->tid = 0;
	atomic_fetch_sub(&a->count, 1);
}

static void put_locked(struct again *a, const struct note *note)
{
	struct note *n = find_locked(a, note->tid);

	if (!n)
		n = find_locked(a, 0);
	if (!n)
		n = &a->notes[a->next++ % AGAIN_MAX];
	if (n->tid == 0)
		atomic_fetch_add(&a->count, 1);
	*n = *note;
}

/* Its note, which is gone; ino 0: it has none. */
static struct note take(struct again *a, pid_t tid)
{
	struct note note = { 0 }, *n;

	if (tid <= 0 || atomic_load(&a->count) == 0)
		return note;
	HOLD(&a->lock);
	n = find_locked(a, tid);
	if (n) {
		note = *n;
		drop_locked(a, n);
	}
	return note;
}

enum file_way again_way(struct again *a, pid_t tid, uint64_t ino, int *ret_rc)
{
	struct note n = take(a, tid);

	*ret_rc = n.ino == ino ? n.rc : 0;
	if (tid <= 0)
		return FILE_BY_NAME;
	return n.ino == ino ? FILE_BY_HANDLE : FILE_BY_ANY;
}

void again_told(struct again *a, pid_t tid, uint64_t ino, bool empties)
{
	const struct note n = { .tid = tid, .ino = ino, .empties = empties };

	if (tid <= 0)
		return;
	HOLD(&a->lock);
	put_locked(a, &n);
}

bool again_is_told(struct again *a, pid_t tid)
{
	if (tid <= 0 || atomic_load(&a->count) == 0)
		return false;
	HOLD(&a->lock);
	return find_locked(a, tid) != NULL;
}

void again_failed(struct again *a, pid_t tid, uint64_t ino, int rc)
{
	const struct note n = { .tid = tid, .ino = ino, .rc = rc };

	HOLD(&a->lock);
	put_locked(a, &n);
}

bool again_looks_up(struct again *a, pid_t tid, uint64_t ino, bool *ret_empties)
{
	struct note n = take(a, tid);

	*ret_empties = n.empties;
	if (n.ino == 0 || ino == 0)
		return false;
	if (n.ino != ino) { /* somebody was faster: this one it comes to next */
		again_told(a, tid, ino, n.empties);
		return false;
	}
	if (n.rc < 0) /* looked up once more: its request is still to come */
		again_failed(a, tid, ino, n.rc);
	return n.rc == 0;
}
