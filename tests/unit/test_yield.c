/*
 * What the drain writes waits for what others read, unless somebody waits for
 * it, and not for ever. What the kernel has of a thread is looked at where the
 * thread writes to the disk.
 */
#include <limits.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/drain/drain_private.h"
#include "tests/unit/await.h"
#include "tests/unit/live_store.h"
#include "tests/unit/test_clock.h"

#define LARGE_BYTES (3 * DRAIN_SPAN_BYTES + 12345)
#define SMALL_BYTES (MIB + 12345)
#define CLASS_IDLE 3

/* Spans and syncs of files of LARGE_BYTES, and of others. A thread is as it was
 * when it did the last I/O of them. */
static struct seen {
	atomic_uint yielding, urgent;
} large, others;

/* Workers stand before a span, and the sync, of a file of LARGE_BYTES, as long
 * as there are more than `pass` of these. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	unsigned pass, standing;
} gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, UINT_MAX, 0 };

static void let_pass(unsigned pass)
{
	(void)pthread_mutex_lock(&gate.lock);
	gate.pass = pass;
	(void)pthread_cond_broadcast(&gate.moved);
	(void)pthread_mutex_unlock(&gate.lock);
}

static unsigned standing(void)
{
	unsigned n;

	(void)pthread_mutex_lock(&gate.lock);
	n = gate.standing;
	(void)pthread_mutex_unlock(&gate.lock);
	return n;
}

static void pass_gate(void)
{
	(void)pthread_mutex_lock(&gate.lock);
	gate.standing++;
	while (gate.pass == 0)
		(void)pthread_cond_wait(&gate.moved, &gate.lock);
	gate.pass -= gate.pass != UINT_MAX;
	gate.standing--;
	(void)pthread_mutex_unlock(&gate.lock);
}

static void look(const struct work *w)
{
	struct seen *seen = w->size_bytes == LARGE_BYTES ? &large : &others;
	long priority = syscall(SYS_ioprio_get, 1, 0);

	assert_true(priority >= 0);
	if (priority >> 13 == CLASS_IDLE)
		atomic_fetch_add(&seen->yielding, 1);
	else
		atomic_fetch_add(&seen->urgent, 1);
}

void __real_work_span(struct drain *d, struct work *w, const struct span *s);
void __wrap_work_span(struct drain *d, struct work *w, const struct span *s);
int __real_work_sync(struct drain *d, struct work *w);
int __wrap_work_sync(struct drain *d, struct work *w);

void __wrap_work_span(struct drain *d, struct work *w, const struct span *s)
{
	if (w->size_bytes == LARGE_BYTES)
		pass_gate();
	__real_work_span(d, w, s);
	look(w);
}

int __wrap_work_sync(struct drain *d, struct work *w)
{
	int rc;

	if (w->size_bytes == LARGE_BYTES)
		pass_gate();
	rc = __real_work_sync(d, w);
	look(w);
	return rc;
}

static void forget(void)
{
	struct seen *const all[] = { &large, &others };

	for (size_t i = 0; i < 2; i++) {
		atomic_store(&all[i]->yielding, 0);
		atomic_store(&all[i]->urgent, 0);
	}
}

static void assert_yields(struct seen *seen, bool yes)
{
	assert_true(atomic_load(yes ? &seen->yielding : &seen->urgent) > 1);
	assert_int_equal(atomic_load(yes ? &seen->urgent : &seen->yielding), 0);
}

static bool is_durable(struct live *l, const char *name)
{
	HOLD(reclaim_deciding(l->st->reclaim));
	return committed(l, live_ino(l, name));
}

static void go_on(struct live *l, const char *name)
{
	drain_go_on(l->st->drain);
	AWAIT(is_durable(l, name));
}

static void what_nobody_waits_for_yields(void **state)
{
	uint8_t *data = filled(LARGE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);

		forget();
		live_write(&l, "large", data, LARGE_BYTES);
		live_write(&l, "small", data + 1, SMALL_BYTES);
		go_on(&l, "small");
		assert_yields(&large, true);
		assert_yields(&others, true);
		live_free(&l);
	}
	free(data);
}

/* One worker, in a store in which nothing is drained that nobody asks for. */
static struct live live_alone(unsigned kind)
{
	struct live l = live_closed(NULL);

	l.options.hold_drain = true;
	l.options.drain_threads = 1;
	live_open_kind(&l, kind);
	return l;
}

static void hold_again(struct live *l)
{
	HOLD(&l->st->drain->lock);
	l->st->drain->order.on_demand = true;
}

static void what_somebody_waits_for_does_not(void **state)
{
	uint8_t *data = filled(LARGE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_alone(kind);

		/* The same thread has yielded before. */
		forget();
		live_write(&l, "before", data + 1, LARGE_BYTES - 1);
		go_on(&l, "before");
		assert_yields(&others, true);
		hold_again(&l);
		forget();
		live_write(&l, "large", data, LARGE_BYTES);
		live_write(&l, "small", data + 1, SMALL_BYTES);
		assert_int_equal(live_sync(&l, "small"), 0);
		assert_int_equal(live_sync(&l, "large"), 0);
		assert_yields(&large, false);
		assert_yields(&others, false);
		live_free(&l);
	}
	free(data);
}

static void *sync_large(void *l)
{
	assert_int_equal(live_sync(l, "large"), 0);
	return NULL;
}

/*
 * Somebody comes to wait when so much of it is done, for this file, or (as in a
 * flush of the mount) for what comes after it: what is left does not yield.
 */
static void hurries_after(unsigned done, bool for_this, const uint8_t *data)
{
	struct live l = live_alone(0);
	pthread_t thread;

	forget();
	let_pass(done);
	live_write(&l, "large", data, LARGE_BYTES);
	drain_go_on(l.st->drain);
	AWAIT(standing() > 0 && atomic_load(&large.yielding) == done);
	if (for_this)
		assert_int_equal(pthread_create(&thread, NULL, sync_large, &l),
				 0);
	else
		drain_hurry_begin(l.st->drain);
	AWAIT(atomic_load(&l.st->drain->hurried) > 0);
	let_pass(UINT_MAX);
	if (for_this)
		pthread_join(thread, NULL);
	AWAIT(is_durable(&l, "large"));
	assert_int_equal(atomic_load(&large.yielding), done);
	assert_true(atomic_load(&large.urgent) > 0);
	if (!for_this)
		drain_hurry_end(l.st->drain);
	live_free(&l);
}

static void it_hurries_from_when_somebody_waits(void **state)
{
	uint8_t *data = filled(LARGE_BYTES, 1);

	(void)state;
	/* Of three spans and the sync. */
	for (unsigned done = 0; done < 4; done++) {
		hurries_after(done, true, data);
		hurries_after(done, false, data);
	}
	free(data);
}

/* Who unmounts waits for all of it. */
static void an_umount_does_not(void **state)
{
	uint8_t *data = filled(LARGE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_alone(kind);

		forget();
		live_write(&l, "large", data, LARGE_BYTES);
		live_close(&l);
		assert_yields(&large, false);
		live_open_kind(&l, kind);
		live_free(&l);
	}
	free(data);
}

/* A disk that others keep busy may not let those that yield go on at all. */
static void nothing_yields_for_long(void **state)
{
	uint8_t *data = filled(LARGE_BYTES, 1);
	struct live l = live_kind_held(0);

	(void)state;
	time_stands();
	forget();
	live_write(&l, "large", data, LARGE_BYTES);
	time_passes(30 * SECOND_NS);
	live_write(&l, "small", data + 1, SMALL_BYTES);
	drain_go_on(l.st->drain);
	AWAIT(is_durable(&l, "large"));
	AWAIT(is_durable(&l, "small"));
	assert_yields(&large, false);
	assert_yields(&others, true);
	time_goes_on();
	live_free(&l);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_nobody_waits_for_yields),
		cmocka_unit_test(what_somebody_waits_for_does_not),
		cmocka_unit_test(it_hurries_from_when_somebody_waits),
		cmocka_unit_test(an_umount_does_not),
		cmocka_unit_test(nothing_yields_for_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
