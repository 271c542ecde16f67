/* again.c - see again.h. */
#include "fuse/again.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "store/base/scope.h"

struct note {
	pid_t tid; /* 0: none */
	uint64_t ino;
	bool empties, looked_up;
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

enum file_way again_way(struct again *a, pid_t tid, uint64_t ino)
{
	enum file_way way = FILE_BY_ANY;
	struct note *n;

	if (tid <= 0)
		return FILE_BY_NAME;
	if (atomic_load(&a->count) == 0)
		return way;
	HOLD(&a->lock);
	n = find_locked(a, tid);
	if (!n)
		return way;
	if (n->looked_up || n->ino == ino)
		way = FILE_BY_HANDLE;
	drop_locked(a, n);
	return way;
}

void again_told(struct again *a, pid_t tid, uint64_t ino, bool empties)
{
	struct note *n;

	if (tid <= 0)
		return;
	HOLD(&a->lock);
	n = find_locked(a, tid);
	if (!n)
		n = &a->notes[a->next++ % AGAIN_MAX];
	if (n->tid == 0)
		atomic_fetch_add(&a->count, 1);
	*n = (struct note){ tid, ino, empties, false };
}

bool again_looks_up(struct again *a, pid_t tid, bool *ret_empties)
{
	struct note *n;

	if (tid <= 0 || atomic_load(&a->count) == 0)
		return false;
	HOLD(&a->lock);
	n = find_locked(a, tid);
	if (!n || n->looked_up)
		return false;
	n->looked_up = true;
	*ret_empties = n->empties;
	return true;
}

bool again_is_told(struct again *a, pid_t tid)
{
	if (tid <= 0 || atomic_load(&a->count) == 0)
		return false;
	HOLD(&a->lock);
	return find_locked(a, tid) != NULL;
}

void again_is_over(struct again *a, pid_t tid)
{
	struct note *n;

	if (tid <= 0 || atomic_load(&a->count) == 0)
		return;
	HOLD(&a->lock);
	n = find_locked(a, tid);
	if (n)
		drop_locked(a, n);
}
