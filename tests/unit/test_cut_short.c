/*
 * A file that is cut short just while it is drained: what is committed is what
 * it was or what it is, and not the one with the end of the other. (A page of 2
 * MiB is cleared from the new end on while it is read, and the read is whole.)
 */
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/live_store.h"

#define CUT_BYTES 50000u

static struct live *_Atomic live; /* what the hooks are armed for; once */
static struct inode *cut;
static pthread_t syncer;
static sem_t half, changed;
static atomic_bool reading;

static void *sync_it(void *arg)
{
	struct live *l = arg;

	CHECK(drain_sync(l->st->drain, cut) == 0);
	return NULL;
}

/* It is drained, for who asked, from the moment on when it may be cut. */
int ftruncate(int fd, off_t size)
{
	struct live *l = atomic_exchange(&live, NULL);

	if (l) {
		atomic_store(&reading, true);
		CHECK(pthread_create(&syncer, NULL, sync_it, l) == 0);
		CHECK(sem_wait(&half) == 0);
	}
	return (int)syscall(SYS_ftruncate, fd, size);
}

ssize_t pread(int fd, void *buf, size_t len, off_t off)
{
	ssize_t n = syscall(SYS_pread64, fd, buf, len, off);

	if (len < MIB || !atomic_exchange(&reading, false))
		return n;
	CHECK(sem_post(&half) == 0);
	CHECK(sem_wait(&changed) == 0);
	memset((uint8_t *)buf + len / 2, 0, len / 2);
	return n;
}

static void what_is_cut_while_it_is_drained_is_not_torn(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(MIB, 1);
	struct handle h;
	struct live l;

	(void)state;
	o.stage_all_in_memory = true;
	o.hold_drain = true;
	l = live_new(&o);
	CHECK(sem_init(&half, 0, 0) == 0);
	CHECK(sem_init(&changed, 0, 0) == 0);
	live_write(&l, "a", data, MIB);
	h = handle_open(&l, "a", O_RDONLY);
	cut = h.in;
	atomic_store(&live, &l);
	assert_int_equal(file_truncate(&l.st->files, cut, CUT_BYTES), 0);
	CHECK(sem_post(&changed) == 0);
	CHECK(pthread_join(syncer, NULL) == 0);
	assert_int_equal(committed_size(&l, "a"), CUT_BYTES);
	assert_handle_bytes(&h, data, CUT_BYTES);
	handle_close(&h);
	live_free(&l);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_cut_while_it_is_drained_is_not_torn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
