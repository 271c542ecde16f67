/*
 * A file that moves to the disk because memory is full, while somebody waits
 * for it: fsync answers for the bytes, wherever they are.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/live_store.h"

/* The drain's own sync is where somebody else writes; once. */
static struct handle *_Atomic writer;
static _Atomic ino_t full; /* this file, a stage, is full */
static dev_t full_dev;
static uint8_t *more;

static void *write_more(void *arg)
{
	struct handle *h = arg;
	struct stat sb;

	CHECK(stage_stat(&h->l->st->stages, h->in->file->stage, &sb) == 0);
	full_dev = sb.st_dev;
	atomic_store(&full, sb.st_ino);
	CHECK(file_write(&h->l->st->files, h->in, more, 4096, MIB) == 0);
	atomic_store(&full, 0);
	return NULL;
}

/* Another thread: whoever syncs holds locks of the store. */
static void write_meanwhile(struct handle *h)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, write_more, h) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

int fdatasync(int fd)
{
	struct handle *h = atomic_exchange(&writer, NULL);

	if (h)
		write_meanwhile(h);
	return (int)syscall(SYS_fdatasync, fd);
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t off)
{
	struct stat sb;

	if (atomic_load(&full) != 0 && fstat(fd, &sb) == 0 &&
	    sb.st_ino == atomic_load(&full) && sb.st_dev == full_dev) {
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, buf, len, off);
}

static void fsync_waits_for_the_bytes_where_they_are(void **state)
{
	struct store_options o = live_options();
	uint8_t *data = filled(MIB, 1);
	struct handle h;
	struct live l;

	(void)state;
	o.stage_all_in_memory = true;
	l = live_new(&o);
	more = filled(4096, 2);
	/* The first image's number is taken with a sync of the database. */
	live_write(&l, "first", data, MIB);
	assert_int_equal(live_sync(&l, "first"), 0);
	data[0]++;
	h = handle_open(&l, "a", O_RDWR | O_CREAT);
	handle_write(&h, data, MIB, 0);
	atomic_store(&writer, &h);
	assert_int_equal(drain_sync(l.st->drain, h.in), 0);
	assert_null(atomic_load(&writer));
	assert_int_equal(h.in->file->stage->kind, STAGE_DISK);
	assert_true(committed(&l, h.in->ino));
	handle_close(&h);
	live_free(&l);
	free(data);
	free(more);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fsync_waits_for_the_bytes_where_they_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
