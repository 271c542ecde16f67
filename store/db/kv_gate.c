/*
 * kv_gate.c - who uses the database while it may have to be opened again. Each
 * use is counted, without a lock; who wants to open it anew closes the gate,
 * waits until the count is 0, and opens the gate when it is done. A thread that
 * is inside already, because it iterates, passes a closed gate: it would wait
 * for itself.
 */
#include "store/db/kv_private.h"

#include <errno.h>

#include "store/base/scope.h"

/* Opening again waits that long for who looks something up just now. */
#define KV_USERS_WAIT_NS (INT64_C(1) * 1000000000)

/* This thread's uses that are not over: who iterates looks things up, too. */
static _Thread_local unsigned db_depth;

static void db_drop(struct kv *kv)
{
	if (atomic_fetch_sub(&kv->users, 1) == 1 && atomic_load(&kv->closing)) {
		HOLD(&kv->gate);
		cond_broadcast(&kv->passed);
	}
}

int kv_enter(struct kv *kv)
{
	for (;;) {
		atomic_fetch_add(&kv->users, 1);
		if (db_depth > 0 || !atomic_load(&kv->closing))
			break;
		db_drop(kv);
		HOLD(&kv->gate);
		while (atomic_load(&kv->closing))
			cond_wait(&kv->passed, &kv->gate);
	}
	if (!kv->db) {
		db_drop(kv);
		return -EIO;
	}
	db_depth++;
	return 0;
}

void kv_leave(struct kv *kv)
{
	db_depth--;
	db_drop(kv);
}

int kv_gate_close(struct kv *kv)
{
	int64_t until = mono_ns() + KV_USERS_WAIT_NS;
	bool in_time = true;

	if (db_depth > 0)
		return -EBUSY;
	HOLD(&kv->gate);
	atomic_store(&kv->closing, true);
	while (in_time && atomic_load(&kv->users) > 0)
		in_time = cond_wait_until(&kv->passed, &kv->gate, until);
	if (in_time)
		return 0;
	atomic_store(&kv->closing, false);
	cond_broadcast(&kv->passed);
	return -EBUSY;
}

void kv_gate_open(struct kv *kv)
{
	HOLD(&kv->gate);
	atomic_store(&kv->closing, false);
	cond_broadcast(&kv->passed);
}
