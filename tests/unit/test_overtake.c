/*
 * Who may overtake whom: a sync makes its own file durable out of its turn, and
 * nothing else comes along, or falls behind, because of that.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "store/drain/drain_private.h"
#include "tests/unit/await.h"
#include "tests/unit/between.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)

/* A store with the kind's stage in which nothing is drained before it is asked
 * for. */
static struct live live_held(unsigned kind)
{
	struct live l = live_kind(kind);

	live_close(&l);
	l.options.hold_drain = true;
	live_open(&l);
	return l;
}

struct syncer {
	struct live *l;
	const char *path;
	pthread_t thread;
};

static void *sync_path(void *arg)
{
	struct syncer *s = arg;

	assert_int_equal(live_sync(s->l, s->path), 0);
	return NULL;
}

static void sync_begin(struct syncer *s, struct live *l, const char *path)
{
	*s = (struct syncer){ .l = l, .path = path };
	assert_int_equal(pthread_create(&s->thread, NULL, sync_path, s), 0);
}

enum seen {
	SEEN_READY,
	SEEN_WANTED, /* ready, and somebody waits for it */
	SEEN_TAKEN, /* by the committer */
};

static bool job_seen(struct live *l, struct inode *in, enum seen what)
{
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	const struct version *v = in->file->versions.in_flight;

	if (!v)
		return false;
	if (what == SEEN_TAKEN)
		return v->state == VERSION_TAKEN;
	return v->state == VERSION_READY &&
	       (what == SEEN_READY || v->want == WANT_ALONE);
}

static void wait_job(struct live *l, const char *path, enum seen what)
{
	struct inode *in;

	assert_int_equal(live_lookup(l, path, &in), 0);
	AWAIT(job_seen(l, in, what));
	inode_put(l->st->inodes, in, 1);
}

/* Asked between two groups of commits; rank_1 is not later than it. */
static bool is_latest_durable(struct live *l)
{
	HOLD(reclaim_deciding(l->st->reclaim));
	bool latest = committed(l, live_ino(l, "latest"));

	if (latest)
		assert_true(committed(l, live_ino(l, "rank_1")));
	return latest;
}

/*
 * The replica is taken out of its turn and given back, because the bytes that
 * it shares were deleted meanwhile. It keeps its place.
 */
static void
who_fails_out_of_turn_is_not_overtaken_by_who_closed_later(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1), *other = filled(FILE_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_held(kind);
		struct syncer gate, rank_1;
		struct commits_paused paused;

		live_write(&l, "old", data, FILE_BYTES);
		assert_int_equal(live_sync(&l, "old"), 0);
		live_write(&l, "gate", data + 1, 100);
		live_write(&l, "rank_0", other, FILE_BYTES);
		live_write(&l, "rank_1", data, FILE_BYTES);
		live_write(&l, "latest", data, 3);
		/* The committer stands until all of them can be committed. */
		commits_pause(&paused, &l);
		sync_begin(&gate, &l, "gate");
		wait_job(&l, "gate", SEEN_TAKEN);
		drain_go_on(l.st->drain);
		wait_job(&l, "rank_0", SEEN_READY);
		wait_job(&l, "rank_1", SEEN_READY);
		wait_job(&l, "latest", SEEN_READY);
		sync_begin(&rank_1, &l, "rank_1");
		wait_job(&l, "rank_1", SEEN_WANTED);
		/* The committer does that before he takes the next one. */
		assert_int_equal(live_unlink(&l, "old"), 0);
		commits_go_on(&paused);
		AWAIT(is_latest_durable(&l));
		pthread_join(gate.thread, NULL);
		pthread_join(rank_1.thread, NULL);
		assert_file(&l, "rank_1", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
	free(other);
}

/* It may be drained now, without anybody waiting for it. */
static void ask(struct live *l, const char *path)
{
	struct inode *in;

	assert_int_equal(live_lookup(l, path, &in), 0);
	{
		HOLD(&in->lock);
		HOLD(&l->st->drain->lock);
		order_want_soon(versions_next(&in->file->versions));
		cond_broadcast(&l->st->drain->work);
	}
	inode_put(l->st->inodes, in, 1);
}

#define OLD_BYTES (2 * MIB)
#define NEW_BYTES (3 * MIB)

/* Asked between two groups of commits; the old one never is. */
static bool is_new_durable(struct live *l)
{
	HOLD(reclaim_deciding(l->st->reclaim));
	uint64_t size = committed_size(l, "a");

	assert_int_not_equal(size, OLD_BYTES);
	return size > 0;
}

/*
 * A file is replaced and synced. What it was before is not, and neither is
 * what was closed before that: the one must not be durable without the other.
 * `ready`: the old version stands in its place already when the sync comes.
 */
static void sync_replaced(unsigned kind, bool ready)
{
	uint8_t *data = filled(NEW_BYTES + 2, 1);
	struct live l = live_held(kind);
	struct syncer s;

	live_write(&l, "before", data, 100);
	live_write(&l, "a", data + 1, OLD_BYTES);
	if (ready) {
		ask(&l, "a");
		wait_job(&l, "a", SEEN_READY);
	}
	live_write(&l, "a", data + 2, NEW_BYTES);
	sync_begin(&s, &l, "a");
	AWAIT(is_new_durable(&l));
	pthread_join(s.thread, NULL);
	assert_int_equal(committed_size(&l, "a"), NEW_BYTES);
	assert_int_equal(committed_size(&l, "before"), 0);
	/* The old version does not come back. */
	drain_go_on(l.st->drain);
	live_sync_all(&l);
	assert_int_equal(committed_size(&l, "before"), 100);
	assert_int_equal(committed_size(&l, "a"), NEW_BYTES);
	live_reopen(&l);
	assert_file(&l, "a", data + 2, NEW_BYTES);
	live_free(&l);
	free(data);
}

static void a_sync_takes_no_older_version_of_its_file_along(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		sync_replaced(kind, false);
		sync_replaced(kind, true);
	}
}

static time_t time_of(struct live *l, const char *path)
{
	struct inode *in;
	struct stat sb;

	assert_int_equal(live_lookup(l, path, &in), 0);
	assert_int_equal(inode_stat(l->st->inodes, in, &sb), 0);
	inode_put(l->st->inodes, in, 1);
	return sb.st_mtim.tv_sec;
}

/* Up to which change of the database all is durable. */
static uint64_t synced_to(struct live *l)
{
	HOLD(&l->st->marker.lock);
	return l->st->marker.sequence;
}

/*
 * The file loses its name to another one while its sync waits, and is not made
 * durable any more: a power cut must not bring it back as it was before.
 */
static void a_sync_of_what_is_deleted_meanwhile_makes_that_durable(void **state)
{
	uint8_t *data = filled(OLD_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_held(kind);
		struct commits_paused paused;
		struct handle reader;
		struct syncer s;
		uint64_t before;

		live_write(&l, "new", data, 100);
		live_write(&l, "a", data, 200);
		live_sync_all(&l);
		/* A worker may have left an image for the committer to take. */
		live_settle(&l);
		live_write(&l, "a", data, OLD_BYTES);
		reader = handle_open(&l, "a", O_RDONLY);
		commits_pause(&paused, &l);
		sync_begin(&s, &l, "a");
		wait_job(&l, "a", SEEN_TAKEN);
		before = synced_to(&l);
		assert_int_equal(live_rename(&l, "new", "a", 0), 0);
		commits_go_on(&paused);
		pthread_join(s.thread, NULL);
		assert_true(synced_to(&l) > before);
		assert_int_equal(committed_size(&l, "a"), 100);
		handle_close(&reader);
		live_free(&l);
	}
	free(data);
}

/* A time set by hand is that of the version that it was set for. */
static void a_time_set_by_hand_counts_for_what_was_synced_alone(void **state)
{
	struct attr to = { .mtime_ns = 1000000000 };
	uint8_t *data = filled(NEW_BYTES, 1);
	struct inode *in;

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_held(kind);

		live_write(&l, "a", data, 100);
		live_write(&l, "a", data, OLD_BYTES);
		live_write(&l, "a", data, NEW_BYTES);
		assert_int_equal(live_lookup(&l, "a", &in), 0);
		file_set_times(&l.st->files, in, SET_MTIME, &to);
		assert_int_equal(names_setattr(l.st->names, in, SET_MTIME, &to),
				 0);
		inode_put(l.st->inodes, in, 1);
		assert_int_equal(live_sync(&l, "a"), 0);
		assert_int_equal(time_of(&l, "a"), 1);
		live_reopen(&l);
		assert_int_equal(time_of(&l, "a"), 1);
		live_write(&l, "a", data, 10);
		live_sync_all(&l);
		assert_int_not_equal(time_of(&l, "a"), 1);
		live_free(&l);
	}
	free(data);
}

/* Writes that reach beyond `bytes` of a file fail with EFBIG; 0: none do. */
static void limit_files(uint64_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes ? bytes : limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The sync fails: the version before it is still the one that was closed. */
static void a_sync_that_fails_leaves_the_older_version_its_place(void **state)
{
	uint8_t *data = filled(NEW_BYTES, 1);

	(void)state;
	(void)signal(SIGXFSZ, SIG_IGN);
	for (unsigned kind = 1; kind < LIVE_KINDS; kind += 2) { /* in memory */
		struct live l = live_held(kind);

		live_write(&l, "before", data, 100);
		live_write(&l, "a", data, 40 * KIB);
		live_write(&l, "after", data, 200);
		ask(&l, "a");
		wait_job(&l, "a", SEEN_READY);
		live_write(&l, "a", data, NEW_BYTES);
		limit_files(MIB);
		assert_int_equal(live_sync(&l, "a"), -EFBIG);
		drain_go_on(l.st->drain);
		AWAIT(committed_size(&l, "after") > 0);
		assert_int_equal(committed_size(&l, "a"), 40 * KIB);
		assert_int_equal(committed_size(&l, "before"), 100);
		limit_files(0);
		assert_int_equal(live_sync(&l, "a"), 0);
		assert_file(&l, "a", data, NEW_BYTES);
		live_free(&l);
	}
	free(data);
}

/*
 * Somebody publishes another file while this one, closed before, is changed in
 * its place again. What would become durable is neither what it was nor what
 * it becomes.
 */
static void a_publish_makes_no_change_durable_that_is_under_way(void **state)
{
	uint8_t *data = filled(OLD_BYTES, 1);
	uint8_t *other = filled(OLD_BYTES, 2);
	struct inode *in;

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_held(kind);
		struct handle h;

		live_write(&l, "a", data, OLD_BYTES);
		live_write(&l, "b", data, 100);
		h = handle_open(&l, "a", O_WRONLY);
		handle_write(&h, other, MIB, 0);
		assert_int_equal(live_lookup(&l, "b", &in), 0);
		assert_int_equal(drain_publish(l.st->drain, in), 0);
		inode_put(l.st->inodes, in, 1);
		assert_int_equal(committed_size(&l, "b"), 100);
		assert_int_equal(committed_size(&l, "a"), 0);
		handle_write(&h, other + MIB, MIB, MIB);
		handle_close(&h);
		live_sync_all(&l);
		assert_file(&l, "a", other, OLD_BYTES);
		live_free(&l);
	}
	free(data);
	free(other);
}

/* Another file is closed, and then this one is changed in place. */
static void a_grows_after_b(void *arg)
{
	struct live *l = arg;
	struct handle h;

	live_write(l, "b", "b", 1);
	h = handle_open(l, "a", O_WRONLY);
	handle_write(&h, "more", 4, 100);
	handle_close(&h);
}

/*
 * `latest` is changed in place after rank_1 was closed. Its close before that
 * has an older place, and a worker was about to freeze it: what he finds is
 * the newer close's, and must not be committed in the older one's place.
 */
static void
a_change_in_place_does_not_take_the_place_of_the_close_before(void **state)
{
	uint8_t *data = filled(OLD_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_held(kind);

		live_write(&l, "a", data, 100);
		assert_int_equal(live_lookup(&l, "a", &between.in), 0);
		between.arg = &l;
		between.fn = a_grows_after_b;
		ask(&l, "a");
		wait_job(&l, "a", SEEN_READY);
		commit_wait(l.st->drain);
		assert_int_equal(committed_size(&l, "a"), 0);
		inode_put(l.st->inodes, between.in, 1);
		drain_go_on(l.st->drain);
		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "a"), 104);
		assert_int_equal(committed_size(&l, "b"), 1);
		live_free(&l);
	}
	free(data);
}

static atomic_bool a_is_replaced;

static void a_grows_after_b_and_is_replaced(void *arg)
{
	a_grows_after_b(arg);
	live_write(arg, "a", "new", 3);
	atomic_store(&a_is_replaced, true);
}

static uint64_t unfinished(struct live *l)
{
	HOLD(&l->st->drain->lock);
	return l->st->drain->order.unfinished;
}

/*
 * The same, and the file is emptied by an O_TRUNC before he freezes it: both
 * closes have the stage that is replaced, and it has the younger one's bytes.
 */
static void
a_change_in_place_does_not_take_it_when_it_is_replaced_either(void **state)
{
	uint8_t *data = filled(OLD_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_held(kind);

		live_write(&l, "a", data, OLD_BYTES);
		assert_int_equal(live_lookup(&l, "a", &between.in), 0);
		between.arg = &l;
		between.fn = a_grows_after_b_and_is_replaced;
		atomic_store(&a_is_replaced, false);
		ask(&l, "a");
		/* The first close's job is over, the other three wait. */
		AWAIT(atomic_load(&a_is_replaced) && unfinished(&l) <= 3);
		commit_wait(l.st->drain);
		assert_int_equal(committed_size(&l, "a"), 0);
		inode_put(l.st->inodes, between.in, 1);
		drain_go_on(l.st->drain);
		live_sync_all(&l);
		assert_file(&l, "a", "new", 3);
		assert_file(&l, "b", "b", 1);
		live_free(&l);
	}
	free(data);
}

/* All that there was of it is durable, or has ended; else the next is asked
 * for.
 */
static bool is_over(struct live *l, struct inode *in)
{
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	struct version *v = versions_next(&in->file->versions);

	if (v && v->want == WANT_NOT) {
		order_want_soon(v);
		cond_broadcast(&l->st->drain->work);
	}
	return TAILQ_EMPTY(&in->file->versions.list);
}

static void wait_over(struct live *l, const char *path)
{
	struct inode *in;

	assert_int_equal(live_lookup(l, path, &in), 0);
	AWAIT(is_over(l, in));
	inode_put(l->st->inodes, in, 1);
}

/*
 * A file is drained while its handle is not released yet, and therefore once
 * more after that. Before it is, somebody empties the file in its place, and
 * has not written to it yet.
 */
static void what_is_drained_once_more_is_what_was_closed(void **state)
{
	uint8_t *data = filled(OLD_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_held(kind);
		struct commits_paused paused;
		struct handle h, reader;

		h = handle_open(&l, "a", O_WRONLY | O_CREAT | O_TRUNC);
		handle_write(&h, data, 100, 0);
		assert_int_equal(file_flush(&l.st->files, h.in, h.flags), 0);
		commits_pause(&paused, &l);
		ask(&l, "a");
		wait_job(&l, "a", SEEN_TAKEN);
		handle_release(&h);
		commits_go_on(&paused);
		AWAIT(committed_size(&l, "a") == 100);
		reader = handle_open(&l, "a", O_RDONLY);
		h = handle_open(&l, "a", O_WRONLY | O_TRUNC);
		wait_over(&l, "a");
		assert_int_equal(committed_size(&l, "a"), 100);
		handle_write(&h, "new", 3, 0);
		handle_close(&h);
		handle_release(&reader);
		live_sync_all(&l);
		assert_file(&l, "a", "new", 3);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_drained_once_more_is_what_was_closed),
		cmocka_unit_test(
			a_sync_takes_no_older_version_of_its_file_along),
		cmocka_unit_test(
			a_sync_of_what_is_deleted_meanwhile_makes_that_durable),
		cmocka_unit_test(
			a_time_set_by_hand_counts_for_what_was_synced_alone),
		cmocka_unit_test(
			a_sync_that_fails_leaves_the_older_version_its_place),
		cmocka_unit_test(
			a_change_in_place_does_not_take_the_place_of_the_close_before),
		cmocka_unit_test(
			a_change_in_place_does_not_take_it_when_it_is_replaced_either),
		cmocka_unit_test(
			a_publish_makes_no_change_durable_that_is_under_way),
		cmocka_unit_test(
			who_fails_out_of_turn_is_not_overtaken_by_who_closed_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
