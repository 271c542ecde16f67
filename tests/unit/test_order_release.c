/*
 * A closed file keeps its place in the order when it is opened again, and one
 * whose release comes late, or never, holds nobody up.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "store/base/sync.h"
#include "store/drain/drain_private.h"
#include "store/file/state.h"
#include "tests/unit/await.h"
#include "tests/unit/live_store.h"
#include "tests/unit/test_clock.h"

struct opener {
	struct live *l;
	pthread_t thread;
	struct handle h;
	atomic_bool opened;
};

static void *open_anew(void *arg)
{
	struct opener *o = arg;

	o->h = handle_open(o->l, "a", O_WRONLY | O_TRUNC);
	atomic_store(&o->opened, true);
	return NULL;
}

static unsigned awaiting_release(struct live *l)
{
	HOLD(&l->st->drain->lock);
	return l->st->drain->awaiting_release;
}

/* A thread opens it, and waits: so it has not opened anything. */
static void open_waits(struct opener *o)
{
	assert_int_equal(pthread_create(&o->thread, NULL, open_anew, o), 0);
	AWAIT(awaiting_release(o->l) > 0);
	assert_false(atomic_load(&o->opened));
}

/* The kernel sends the release of a handle after its close has returned. */
static void
a_release_that_comes_after_the_next_open_changes_no_order(void **state)
{
	uint8_t *data = filled(2 * MIB + 8, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct opener o = { .l = &l };
		struct handle h;

		time_stands(); /* however late the release is */
		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&h, data, 2 * MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		live_write(&l, "t", data, 3);
		open_waits(&o);
		handle_release(&h);
		pthread_join(o.thread, NULL);
		time_goes_on();
		handle_write(&o.h, data + 2, 1000, 0);

		drain_go_on(l.st->drain);
		AWAIT(committed(&l, live_ino(&l, "t")));
		assert_int_equal(committed_size(&l, "a"), 2 * MIB);
		assert_file(&l, "a", data + 2, 1000);
		handle_close(&o.h);
		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "a"), 1000);
		live_free(&l);
	}
	free(data);
}

/* So it is when what was closed is durable by then. */
static void a_late_release_of_what_is_durable_is_waited_for(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct opener o = { .l = &l };
		struct handle h;

		time_stands();
		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&h, data, 2 * MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		assert_int_equal(drain_sync(l.st->drain, h.in), 0);
		open_waits(&o);
		handle_release(&h);
		pthread_join(o.thread, NULL);
		/* Nobody has closed it since: the next waits for nothing. */
		h = handle_open(&l, "a", O_WRONLY | O_TRUNC);
		time_goes_on();
		handle_close(&o.h);
		handle_close(&h);
		live_free(&l);
	}
	free(data);
}

/*
 * The thread of a late release, or of a close that saw no writer left, goes on
 * when the next writer has truncated the file and is in the middle of it.
 */
static void a_late_release_queues_no_half_of_the_next_writer(void **state)
{
	static const enum close_kind late[] = { CLOSE_LEFT, CLOSE_FLUSHED };
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned n = 0; n < 2 * LIVE_KINDS; n++) {
		struct live l = live_kind_held(n / 2);
		struct drain_job *j;
		struct handle h;
		int rc;

		live_write(&l, "a", data, 2 * MIB);
		live_sync_all(&l);
		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		handle_release(&h);
		h = handle_open(&l, "a", O_WRONLY | O_TRUNC);
		handle_write(&h, data + MIB, MIB / 2, 0);

		drain_released(l.st->drain, h.in);
		j = job_for(l.st->drain, h.in, late[n % 2], &rc);
		{
			HOLD(&h.in->lock);
			HOLD(&l.st->drain->lock);
			struct version *v =
				versions_next(&h.in->file->versions);

			/* Nobody has to drain it, or it waits for him. */
			assert_true(late[n % 2] == CLOSE_FLUSHED ? j && v : !v);
			assert_true(!v || v->state == VERSION_CLOSED);
		}
		drain_job_put(l.st->drain, j);
		assert_int_equal(committed_size(&l, "a"), 2 * MIB);
		handle_write(&h, data + MIB + MIB / 2, MIB / 2, MIB / 2);
		handle_close(&h);
		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "a"), MIB);
		assert_file(&l, "a", data + MIB, MIB);
		live_free(&l);
	}
	free(data);
}

/* Somebody has a dup(2) of it: that is no reason to wait for ever. */
static void a_handle_that_stays_open_is_truncated_with_the_file(void **state)
{
	uint8_t *data = filled(MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct opener o = { .l = &l };
		struct handle kept;

		time_stands();
		kept = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&kept, data, MIB, 0);
		assert_int_equal(file_flush(&l.st->files, kept.in, kept.flags),
				 0);
		open_waits(&o);
		time_passes(SECOND_NS);
		pthread_join(o.thread, NULL);
		time_goes_on();
		handle_write(&o.h, data, 10, 0);
		handle_write(&kept, data + 10, 10, 10);
		handle_close(&o.h);
		handle_close(&kept);
		assert_file(&l, "a", data, 20);
		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "a"), 20);
		live_free(&l);
	}
	free(data);
}

/*
 * Somebody opens a closed file to read just when its drain begins, so it has to
 * be drained once more. Its bytes have their place, for the next daemon as
 * well.
 */
static void who_only_reads_costs_a_closed_file_no_place(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct drain *d = l.st->drain;
		struct inode *in;

		live_write(&l, "a", data, 2 * MIB);
		assert_int_equal(live_lookup(&l, "a", &in), 0);
		{
			PAUSE_COMMITS(&l);
			uint64_t place;

			{
				HOLD(&in->lock);
				file_move(&in->file->state, FILE_BEGUN);
				HOLD(&d->lock);
				place = versions_next(&in->file->versions)
						->place;
				order_want_soon(
					versions_next(&in->file->versions));
				cond_broadcast(&d->work);
			}
			{
				HOLD(&d->lock);
				while (!in->file->versions.in_flight ||
				       in->file->versions.in_flight->state ==
					       VERSION_RUNNING)
					cond_wait(&d->moved, &d->lock);
			}
			{
				HOLD(&in->lock);
				file_move(&in->file->state, FILE_ENDED);
			}
			drain_released(l.st->drain, in);
			HOLD(&in->lock);
			assert_non_null(versions_next(&in->file->versions));
			assert_int_equal(
				SLOT_GET(in->file->stage->slot, close_order),
				place);
		}
		inode_put(l.st->inodes, in, 1);
		drain_go_on(l.st->drain);
		live_sync_all(&l);
		assert_file(&l, "a", data, 2 * MIB);
		live_free(&l);
	}
	free(data);
}

static void *sync_everything(void *arg)
{
	struct live *l = arg;

	assert_int_equal(drain_sync_tree(l->st->drain, ROOT_INO), 0);
	return NULL;
}

/* Until when what was closed waits for its release; 0: it does no longer. */
static int64_t waits_until(struct live *l, struct inode *in)
{
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	struct version *v = versions_next(&in->file->versions);

	return v && v->state == VERSION_CLOSED ? job_of(v)->due_ns : 0;
}

static bool is_asked_for(struct live *l, struct inode *in)
{
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	struct version *v = versions_next(&in->file->versions);

	return v && v->want != WANT_NOT;
}

/* What is drained while it may change is drained once more. */
static void a_publish_lets_a_file_be_released_first(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind_held(kind);
		struct handle h;
		pthread_t thread;
		int64_t due;

		time_stands();
		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&h, data, 2 * MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		due = waits_until(&l, h.in);
		assert_int_equal(
			pthread_create(&thread, NULL, sync_everything, &l), 0);
		assert_true(due > mono_ns());
		AWAIT(is_asked_for(&l, h.in));
		assert_int_equal(waits_until(&l, h.in), due);
		handle_release(&h);
		pthread_join(thread, NULL);
		time_goes_on();
		assert_int_equal(committed_size(&l, "a"), 2 * MIB);
		assert_file(&l, "a", data, 2 * MIB);
		live_free(&l);
	}
	free(data);
}

/* The mount goes while the kernel still has releases to send. */
static void a_release_that_never_comes_leaves_nothing_staged(void **state)
{
	uint8_t *data = filled(2 * MIB, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle h;
		char table[4096];

		h = handle_open(&l, "a", O_WRONLY | O_CREAT);
		handle_write(&h, data, 2 * MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		inode_put(l.st->inodes, h.in, 1);
		/* This one has no name, and lives as long as its handle. */
		h = handle_open(&l, "b", O_WRONLY | O_CREAT);
		handle_write(&h, data, MIB, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		assert_int_equal(live_unlink(&l, "b"), 0);
		(void)snprintf(table, sizeof(table), "%s/table", l.stage);
		assert_int_equal(access(table, F_OK), 0);
		live_close(&l);
		assert_int_equal(access(table, F_OK), -1); /* it was clean */
		live_open(&l);
		assert_file(&l, "a", data, 2 * MIB);
		assert_int_equal(live_counter(&l, META_LOGICAL), 2 * MIB);
		live_free(&l);
	}
	free(data);
}

static bool is_dirty(struct inode *in)
{
	HOLD(&in->lock);
	return file_is_dirty(in->file);
}

/* The timer would ask, too; time stands, so that a reader's release does. */
static void what_a_mapping_wrote_is_drained_whoever_finds_it_gone(void **state)
{
	uint8_t *data = filled(MIB, 1);

	(void)state;
	for (unsigned kind = 2; kind < LIVE_KINDS; kind++) { /* passthrough */
		struct live l = live_kind(kind);
		struct inode *in;
		struct handle h;
		uint8_t *map;

		time_stands();
		h = handle_open(&l, "f", O_RDWR | O_CREAT);
		handle_write(&h, data, MIB, 0);
		map = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, h.fd,
			   0);
		assert_ptr_not_equal(map, MAP_FAILED);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		inode_remember(l.st->inodes, in); /* as long as it is mapped */
		handle_close(&h);
		assert_int_equal(live_sync(&l, "f"), 0);
		memcpy(map, "late", 4);
		assert_int_equal(munmap(map, MIB), 0);
		assert_true(is_dirty(in));
		h = handle_open(&l, "f", O_RDONLY);
		handle_close(&h);
		AWAIT(!is_dirty(in));
		time_goes_on();
		memcpy(data, "late", 4);
		assert_file(&l, "f", data, MIB);
		inode_forget(l.st->inodes, in, 1);
		file_forgotten(&l.st->files, in);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_release_that_comes_after_the_next_open_changes_no_order),
		cmocka_unit_test(
			what_a_mapping_wrote_is_drained_whoever_finds_it_gone),
		cmocka_unit_test(
			a_late_release_of_what_is_durable_is_waited_for),
		cmocka_unit_test(
			a_late_release_queues_no_half_of_the_next_writer),
		cmocka_unit_test(
			a_handle_that_stays_open_is_truncated_with_the_file),
		cmocka_unit_test(who_only_reads_costs_a_closed_file_no_place),
		cmocka_unit_test(a_publish_lets_a_file_be_released_first),
		cmocka_unit_test(
			a_release_that_never_comes_leaves_nothing_staged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
