/*
 * A file that cannot be made durable keeps its place in the order of closes.
 * What waits behind it must not keep anything else: deletions give their space
 * back, and what it shares with them is written once more.
 */
#include <signal.h>
#include <sys/resource.h>

#include "store/drain/drain_private.h"
#include "tests/unit/live_store.h"

#define LIMIT_BYTES (8 * MIB)
#define STUCK_BYTES (9 * MIB) /* more than may be written to one file */
#define FILE_BYTES (4 * MIB)

/* Writes that reach beyond `bytes` of a file fail with EFBIG; 0: none do. */
static void limit_files(uint64_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes ? bytes : limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static bool is_ready_locked(const struct inode *in)
{
	const struct version *v = in->file->versions.in_flight;

	return v && v->state == VERSION_READY;
}

static bool is_ready(struct live *l, const char *path)
{
	struct inode *in;
	bool ready;

	assert_int_equal(live_lookup(l, path, &in), 0);
	{
		HOLD(&l->st->drain->lock);
		ready = is_ready_locked(in);
	}
	inode_put(l->st->inodes, in, 1);
	return ready;
}

static unsigned failed(struct live *l)
{
	struct drain_figures figures;

	drain_figures(l->st->drain, &figures);
	return (unsigned)figures.failed;
}

/*
 * A store with a file that fails for as long as files are limited, and the
 * durable one `old`. Stages are in memory: those on disk need no writing.
 */
static struct live live_stuck(unsigned kind, const uint8_t *data)
{
	struct live l = live_kind(kind);
	uint8_t *stuck = filled(STUCK_BYTES, 99);

	(void)signal(SIGXFSZ, SIG_IGN);
	live_close(&l);
	l.options.hold_drain = true;
	live_open(&l);
	live_write(&l, "old", data, FILE_BYTES);
	live_sync_all(&l);
	live_write(&l, "stuck", stuck, STUCK_BYTES);
	limit_files(LIMIT_BYTES);
	free(stuck);
	return l;
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

static bool is_behind_locked(const struct inode *in)
{
	const struct version *v = versions_next(&in->file->versions);

	return v && v->behind;
}

static void wait_until(struct live *l, const char *path,
		       bool (*is_locked)(const struct inode *in))
{
	struct drain *d = l->st->drain;
	struct inode *in;

	assert_int_equal(live_lookup(l, path, &in), 0);
	{
		HOLD(&d->lock);
		while (!is_locked(in))
			cond_wait(&d->moved, &d->lock);
	}
	inode_put(l->st->inodes, in, 1);
}

static void wait_ready(struct live *l, const char *path)
{
	ask(l, path);
	wait_until(l, path, is_ready_locked);
}

static void wait_stuck(struct live *l)
{
	struct drain *d = l->st->drain;

	ask(l, "stuck");
	HOLD(&d->lock);
	while (d->failed == 0)
		cond_wait(&d->moved, &d->lock);
}

static void unstick(struct live *l)
{
	limit_files(0);
	live_sync_all(l);
	assert_int_equal(failed(l), 0);
}

static void deleting_frees_space_whatever_waits_for_its_turn(void **state)
{
	uint8_t *data = filled(FILE_BYTES + 1, 1);

	(void)state;
	for (unsigned kind = 1; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_stuck(kind, data);
		uint64_t before, freed;

		live_write(&l, "behind", data + 1, FILE_BYTES);
		wait_stuck(&l);
		wait_ready(&l, "behind");
		reclaim_freed(l.st->reclaim, &before);
		assert_int_equal(live_unlink(&l, "old"), 0);
		live_settle(&l);
		reclaim_freed(l.st->reclaim, &freed);
		assert_true(freed >= before + FILE_BYTES);
		assert_true(is_ready(&l, "behind"));
		unstick(&l);
		assert_file(&l, "behind", data + 1, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

/* It was ready, with bytes of a file that is deleted before its turn comes. */
static void what_waits_is_whole_though_what_it_shares_is_deleted(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 1; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_stuck(kind, data);

		live_write(&l, "behind", data, FILE_BYTES);
		wait_stuck(&l);
		wait_ready(&l, "behind");
		assert_int_equal(live_unlink(&l, "old"), 0);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 0);
		unstick(&l);
		assert_file(&l, "behind", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

/* The same with bytes of one that was drained at the same time. */
static void what_waits_is_whole_though_what_it_was_behind_is_deleted(
	void **state)
{
	uint8_t *data = filled(FILE_BYTES + 1, 1);

	(void)state;
	for (unsigned kind = 1; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_stuck(kind, data);

		live_write(&l, "rank_0", data + 1, FILE_BYTES);
		live_write(&l, "rank_1", data + 1, FILE_BYTES);
		wait_stuck(&l);
		wait_ready(&l, "rank_0");
		ask(&l, "rank_1");
		wait_until(&l, "rank_1", is_behind_locked);
		assert_int_equal(live_sync(&l, "rank_0"), 0);
		wait_until(&l, "rank_1", is_ready_locked);
		assert_int_equal(live_unlink(&l, "rank_0"), 0);
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 1); /* old's */
		unstick(&l);
		assert_file(&l, "rank_1", data + 1, FILE_BYTES);
		assert_file(&l, "old", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

/*
 * Who waits for a replica waits for no turn of another one: it is stored once
 * more. That one finds it committed.
 */
static void who_waits_for_a_replica_waits_for_no_turn_of_another(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1), *model = filled(FILE_BYTES, 2);

	(void)state;
	for (unsigned kind = 1; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_stuck(kind, data);

		live_write(&l, "rank_0", model, FILE_BYTES);
		live_write(&l, "rank_1", model, FILE_BYTES);
		wait_stuck(&l);
		wait_ready(&l, "rank_0");
		ask(&l, "rank_1");
		wait_until(&l, "rank_1", is_behind_locked);
		assert_int_equal(live_sync(&l, "rank_1"), 0);
		unstick(&l);
		assert_file(&l, "rank_0", model, FILE_BYTES);
		assert_file(&l, "rank_1", model, FILE_BYTES);
		assert_true(live_native(&l, "rank_0"));
		assert_true(live_native(&l, "rank_1"));
		assert_int_equal(live_counter(&l, META_SHARED), FILE_BYTES);
		live_free(&l);
	}
	free(data);
	free(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			deleting_frees_space_whatever_waits_for_its_turn),
		cmocka_unit_test(
			what_waits_is_whole_though_what_it_shares_is_deleted),
		cmocka_unit_test(
			what_waits_is_whole_though_what_it_was_behind_is_deleted),
		cmocka_unit_test(
			who_waits_for_a_replica_waits_for_no_turn_of_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
