/*
 * Replicas are stored once, whichever of two drains comes first to ask who has
 * their chunks, and whatever happens just before it asks.
 */
#include <pthread.h>

#include "store/drain/drain_private.h"
#include "store/drain/inflight.h"
#include "store/drain/work.h"
#include "tests/unit/await.h"
#include "tests/unit/live_flight.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)

/* What a file's drain waits for before it first claims a chunk. */
struct stop {
	struct inode *in; /* a reference; NULL: this one is not used */
	bool (*is_over)(struct live *l);
	atomic_bool come;
};
static struct stop stops[3];
static struct live *stopped;

unsigned __real_inflight_claim(struct inflight *t, struct work *work,
			       struct inflight_ask *asks, unsigned count);
unsigned __wrap_inflight_claim(struct inflight *t, struct work *work,
			       struct inflight_ask *asks, unsigned count);

unsigned __wrap_inflight_claim(struct inflight *t, struct work *work,
			       struct inflight_ask *asks, unsigned count)
{
	for (unsigned i = 0; i < 3; i++)
		if (stops[i].in == work->in &&
		    !atomic_exchange(&stops[i].come, true))
			AWAIT(stops[i].is_over(stopped));
	return __real_inflight_claim(t, work, asks, count);
}

/* The committer has written a version, and waits to sync it. */
static struct {
	atomic_bool armed, come;
	bool (*is_over)(struct live *l);
} sync_stop;

int __real_kv_sync(struct kv *kv);
int __wrap_kv_sync(struct kv *kv);

int __wrap_kv_sync(struct kv *kv)
{
	if (atomic_load(&sync_stop.armed) &&
	    pthread_equal(pthread_self(), stopped->st->drain->committer.id)) {
		atomic_store(&sync_stop.armed, false);
		atomic_store(&sync_stop.come, true);
		await_note(); /* rank_1 waits for that */
		AWAIT(sync_stop.is_over(stopped));
	}
	return __real_kv_sync(kv);
}

/* Nothing is drained before drain_go_on(). */
static struct live live_waiting(unsigned kind, unsigned copies)
{
	struct live l = live_closed(NULL);

	l.options.drain_threads = 2;
	l.options.hold_drain = true;
	l.options.dedup_copies = copies;
	live_open_kind(&l, kind);
	return l;
}

static void stop_at(struct live *l, unsigned i, const char *path,
		    bool (*is_over)(struct live *l))
{
	stopped = l;
	stops[i].is_over = is_over;
	atomic_store(&stops[i].come, false);
	assert_int_equal(live_lookup(l, path, &stops[i].in), 0);
}

static void stops_end(struct live *l)
{
	for (unsigned i = 0; i < 3; i++) {
		inode_put(l->st->inodes, stops[i].in, 1);
		stops[i].in = NULL;
	}
}

static bool second_has_come(struct live *l)
{
	(void)l;
	return atomic_load(&stops[1].come);
}

static bool is_over(struct inode *in)
{
	HOLD(&in->lock);
	return TAILQ_EMPTY(&in->file->versions.list);
}

static bool first_is_over(struct live *l)
{
	(void)l;
	return is_over(stops[0].in);
}

/* It has looked for the chunk before the other one was committed. */
static void who_is_committed_just_before_a_claim_is_found(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_waiting(kind, 1);

		live_write(&l, "rank_0", data, FILE_BYTES);
		live_write(&l, "rank_1", data, FILE_BYTES);
		stop_at(&l, 0, "rank_0", second_has_come);
		stop_at(&l, 1, "rank_1", first_is_over);
		drain_go_on(l.st->drain);
		live_sync_all(&l);
		assert_true(second_has_come(&l));
		stops_end(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL), FILE_BYTES);
		assert_true(live_native(&l, "rank_1"));
		assert_file(&l, "rank_1", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

static atomic_bool synced;

static bool is_synced(struct live *l)
{
	(void)l;
	return atomic_load(&synced);
}

/* rank_0 and rank_1 have their turns after `first`, which waits for us. */
static void begin_behind_first(struct live *l, const uint8_t *data,
			       const uint8_t *other,
			       bool (*rank_1_goes_on)(struct live *l))
{
	atomic_store(&synced, false);
	live_write(l, "first", other, FILE_BYTES);
	live_write(l, "rank_0", data, FILE_BYTES);
	live_write(l, "rank_1", data, FILE_BYTES);
	stop_at(l, 0, "first", is_synced);
	stop_at(l, 1, "rank_1", rank_1_goes_on);
	assert_int_equal(live_lookup(l, "rank_0", &stops[2].in), 0);
	atomic_store(&stops[2].come, true); /* it does not stop */
	drain_go_on(l->st->drain);
}

/* rank_0 waits for its turn, and somebody for rank_1. */
static bool is_wanted(struct live *l)
{
	struct inode *in = stops[1].in;

	if (live_flight(l, stops[2].in) != VERSION_READY)
		return false;
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	return in->file->versions.in_flight->want == WANT_ALONE;
}

/*
 * Somebody waits for rank_1 since its drain has begun, so that it is committed
 * before rank_0: that begins again, and shares with it.
 */
static void who_is_waited_for_late_makes_the_older_one_wait(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1), *other = filled(FILE_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_waiting(kind, 1);
		struct drain_figures figures;

		begin_behind_first(&l, data, other, is_wanted);
		AWAIT(second_has_come(&l));
		assert_int_equal(live_sync(&l, "rank_1"), 0);
		assert_int_equal(live_counter(&l, META_PHYSICAL), FILE_BYTES);
		atomic_store(&synced, true);
		live_sync_all(&l);
		stops_end(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL),
				 2 * FILE_BYTES);
		assert_true(live_native(&l, "rank_0"));
		/* rank_1 has lost nothing by it. */
		drain_figures(l.st->drain, &figures);
		assert_int_equal(figures.left_native, 0);
		assert_file(&l, "rank_0", data, FILE_BYTES);
		assert_file(&l, "rank_1", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
	free(other);
}

/* rank_0 waits for its turn, and rank_1 has given way often enough. */
static bool has_begun_often(struct live *l)
{
	struct inode *in = stops[1].in;
	struct drain_job *j;

	if (live_flight(l, stops[2].in) != VERSION_READY)
		return false;
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	j = job_of(in->file->versions.in_flight);
	CHECK(j);
	j->attempts = 8;
	return true;
}

/* So nobody gives way for ever, whatever others do. */
static void who_has_begun_often_enough_stores_it_once_more(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1), *other = filled(FILE_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_waiting(kind, 1);
		struct inode *rank_1;

		begin_behind_first(&l, data, other, has_begun_often);
		rank_1 = stops[1].in;
		AWAIT(live_flight(&l, rank_1) == VERSION_READY);
		atomic_store(&synced, true);
		live_sync_all(&l);
		stops_end(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL),
				 3 * FILE_BYTES);
		assert_file(&l, "rank_1", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
	free(other);
}

static bool is_written(struct live *l)
{
	(void)l;
	return atomic_load(&sync_stop.come);
}

static atomic_int second_is;

/* rank_1 has claimed its chunks, and is done or given back. */
static bool second_has_claimed(struct live *l)
{
	int is = live_flight(l, stops[1].in);

	atomic_store(&second_is, is);
	return is != VERSION_RUNNING;
}

/* Its record is found, and not its work as well. */
static void a_copy_that_is_written_counts_once(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_waiting(kind, 2);

		live_write(&l, "rank_0", data, FILE_BYTES);
		live_write(&l, "rank_1", data, FILE_BYTES);
		stop_at(&l, 0, "rank_0", second_has_come);
		stop_at(&l, 1, "rank_1", is_written);
		sync_stop.is_over = second_has_claimed;
		atomic_store(&sync_stop.come, false);
		atomic_store(&sync_stop.armed, true);
		drain_go_on(l.st->drain);
		live_sync_all(&l);
		assert_true(is_written(&l));
		assert_int_equal(atomic_load(&second_is), VERSION_READY);
		stops_end(&l);
		assert_int_equal(live_counter(&l, META_PHYSICAL),
				 2 * FILE_BYTES);
		assert_file(&l, "rank_1", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_is_committed_just_before_a_claim_is_found),
		cmocka_unit_test(
			who_is_waited_for_late_makes_the_older_one_wait),
		cmocka_unit_test(
			who_has_begun_often_enough_stores_it_once_more),
		cmocka_unit_test(a_copy_that_is_written_counts_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
