/*
 * How often locks are taken for a file of 3 MiB that is saved again: what is
 * taken for each chunk, or once more for each small question, is seen here. Who
 * makes it less lowers the bounds.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "store/drain/drain_private.h"
#include "tests/unit/live_bytes.h"
#include "tests/unit/live_store.h"
#include "tests/unit/test_clock.h"

#define FILE_BYTES (3 * MIB)
#define OWN_MOST 41u /* of who saves: open, write, close, release */
#define DRAIN_MOST 48u /* of the drain, until it is durable; mostly 38 */

static _Thread_local bool is_own; /* the test's thread */
static struct drain *_Atomic counted; /* NULL: nothing is */
static atomic_uint own, of_drain;

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_trylock(pthread_mutex_t *m);
int __real_pthread_rwlock_rdlock(pthread_rwlock_t *rw);
int __real_pthread_rwlock_wrlock(pthread_rwlock_t *rw);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *rw);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *rw);

static int note(int rc)
{
	struct drain *d = atomic_load(&counted);

	if (rc != 0 || !d)
		return rc;
	if (is_own)
		atomic_fetch_add(&own, 1);
	else if (pthread_equal(pthread_self(), d->thread[0].id) ||
		 pthread_equal(pthread_self(), d->standby.id) ||
		 pthread_equal(pthread_self(), d->committer.id))
		atomic_fetch_add(&of_drain, 1);
	return rc;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	return note(__real_pthread_mutex_lock(m));
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
	return note(__real_pthread_mutex_trylock(m));
}

int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *rw)
{
	return note(__real_pthread_rwlock_rdlock(rw));
}

int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *rw)
{
	return note(__real_pthread_rwlock_wrlock(rw));
}

/* Its bytes are new, so that each chunk is stored, and each old one goes. */
static void a_file_is_saved_again_with_few_locks(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1), *fresh = filled(FILE_BYTES, 2);
	struct live l = live_closed(NULL);
	struct inode *in; /* so that who saves never has the last reference */
	unsigned by_own;

	(void)state;
	is_own = true;
	l.options.drain_threads = 1;
	live_open(&l);
	live_write(&l, "f", data, FILE_BYTES);
	live_sync_all(&l);
	live_settle(&l);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	time_stands(); /* nothing that comes by time is counted */
	atomic_store(&counted, l.st->drain);
	live_write(&l, "f", fresh, FILE_BYTES);
	by_own = atomic_load(&own);
	assert_int_equal(drain_sync_closed(l.st->drain), 0);
	atomic_store(&counted, NULL);
	print_message("%u by who saves, %u by the drain\n", by_own,
		      atomic_load(&of_drain));
	assert_true(by_own <= OWN_MOST);
	assert_true(atomic_load(&of_drain) <= DRAIN_MOST);
	time_goes_on();
	inode_put(l.st->inodes, in, 1);
	assert_file(&l, "f", fresh, FILE_BYTES);
	live_free(&l);
	free(data);
	free(fresh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_is_saved_again_with_few_locks),
	};

	return cmocka_run_group_tests_name("lock_count", tests, NULL, NULL);
}
