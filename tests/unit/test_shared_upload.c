/*
 * The uploader's threads are stopped in the moment in which a file's bytes are
 * in the shared directory and it is not complete yet, and go on when the test
 * says so.
 */
#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "store/file/file.h"
#include "tests/unit/live_bytes.h"
#include "tests/unit/shared_fixture.h"
#include "tests/unit/test_clock.h"

#define FILES_MAX (UPLOAD_THREADS + 1)

static struct inode *in_of[FILES_MAX];

/* Who is stopped, and may go on. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static bool stops; /* whoever comes */
static unsigned stopped, let_go;
static unsigned failing; /* so many calls */
static ino_t failing_ino; /* each call for this file; 0: none */
static unsigned failed; /* of those */
static ino_t sound_ino; /* each call for all others fails; 0: none */
static bool records_stop; /* whoever writes one */
static bool records_fail;

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
	struct stat sb;
	bool fails;

	assert_int_equal(fstat(fd, &sb), 0);
	pthread_mutex_lock(&gate);
	fails = failing > 0;
	failing -= fails;
	fails = fails || (sound_ino != 0 && sb.st_ino != sound_ino);
	if (failing_ino != 0 && sb.st_ino == failing_ino) {
		fails = true;
		failed++;
	}
	if (stops) {
		stopped++;
		pthread_cond_broadcast(&moved);
		while (let_go == 0)
			pthread_cond_wait(&moved, &gate);
		let_go--;
		stopped--;
		pthread_cond_broadcast(&moved);
	}
	pthread_mutex_unlock(&gate);
	if (fails) {
		errno = EIO;
		return -1;
	}
	return __real_fsync(fd);
}

int __real_kv_write(struct kv *kv, struct kv_batch *b);
int __wrap_kv_write(struct kv *kv, struct kv_batch *b);

int __wrap_kv_write(struct kv *kv, struct kv_batch *b)
{
	bool fails;

	pthread_mutex_lock(&gate);
	while (records_stop)
		pthread_cond_wait(&moved, &gate);
	fails = records_fail;
	pthread_mutex_unlock(&gate);
	return fails ? -EIO : __real_kv_write(kv, b);
}

/* Who sets the times of this file stops; 0: nobody. */
static ino_t times_stop;

int __real_futimens(int fd, const struct timespec times[2]);
int __wrap_futimens(int fd, const struct timespec times[2]);

int __wrap_futimens(int fd, const struct timespec times[2])
{
	struct stat sb;

	assert_int_equal(fstat(fd, &sb), 0);
	pthread_mutex_lock(&gate);
	while (times_stop == sb.st_ino)
		pthread_cond_wait(&moved, &gate);
	pthread_mutex_unlock(&gate);
	return __real_futimens(fd, times);
}

static void let_records_stop(bool stop)
{
	pthread_mutex_lock(&gate);
	records_stop = stop;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&gate);
}

static void await_stopped(unsigned count)
{
	pthread_mutex_lock(&gate);
	while (stopped != count || let_go > 0)
		pthread_cond_wait(&moved, &gate);
	pthread_mutex_unlock(&gate);
}

static void let(unsigned count, bool stop_others)
{
	pthread_mutex_lock(&gate);
	let_go = count;
	stops = stop_others;
	pthread_cond_broadcast(&moved);
	while (let_go > 0)
		pthread_cond_wait(&moved, &gate);
	pthread_mutex_unlock(&gate);
}

static void end(struct mounted *m)
{
	for (unsigned i = 0; i < FILES_MAX; i++) {
		inode_forget(m->live.st->inodes, in_of[i], 1);
		inode_put(m->live.st->inodes, in_of[i], 2);
	}
	mounted_free(m);
}

static const char *name_of(unsigned i)
{
	static char names[FILES_MAX][16];

	(void)snprintf(names[i], sizeof(names[i]), "f%u", i);
	return names[i];
}

/* The i-th file is made and closed, and so has its place. */
static void make_closed(struct mounted *m, unsigned i)
{
	struct shared_entry e;

	assert_int_equal(shared_create(m->s, &caller, ROOT_INO, name_of(i),
				       &as_file, &e, &in_of[i]),
			 0);
	assert_int_equal(drain_closed(m->live.st->drain, in_of[i]), 0);
	shared_change_end(m->s, in_of[i]->ino);
}

/* The same, and it is durable here. */
static void make(struct mounted *m, unsigned i)
{
	make_closed(m, i);
	assert_int_equal(drain_sync_closed(m->live.st->drain), 0);
}

static bool is_plain(struct mounted *m, unsigned i)
{
	struct stat sb;

	return stat(at(m->dir, name_of(i)), &sb) == 0 && !pending_is(m->s, &sb);
}

/* Deleted while their bytes were copied: they wait for nobody's turn. */
static void files_that_are_gone_hold_no_thread(void **state)
{
	struct mounted m = mounted_new();

	(void)state;
	stops = true;
	for (unsigned i = 0; i < UPLOAD_THREADS; i++)
		make(&m, i);
	await_stopped(UPLOAD_THREADS);
	for (unsigned i = 0; i < UPLOAD_THREADS; i++)
		assert_int_equal(shared_unlink(m.s, &caller, ROOT_INO,
					       name_of(i), false),
				 0);
	make(&m, UPLOAD_THREADS);
	let(UPLOAD_THREADS, false);
	assert_int_equal(shared_flush(m.s), 0);
	assert_true(is_plain(&m, UPLOAD_THREADS));
	end(&m);
}

static void await_state(struct mounted *m, struct node *n,
			enum node_state state)
{
	HOLD(&m->s->lock);
	while (n->state != state)
		cond_wait(&m->s->moved, &m->s->lock);
}

/* A file that is open is put back, and somebody waits for it by then. */
static void a_file_before_all_that_are_copied_gets_a_thread(void **state)
{
	struct mounted m = mounted_new();
	struct files *files = &m.live.st->files;
	struct file_opened opened;
	struct node *n[FILES_MAX];

	(void)state;
	stops = true;
	make(&m, 0);
	await_stopped(1);
	n[0] = node_get(m.s, in_of[0]->ino);
	assert_int_equal(shared_change_begin(m.s, n[0]->id, O_WRONLY, NULL), 0);
	assert_int_equal(file_open(files, in_of[0], O_WRONLY, &opened), 0);
	let(1, true);
	{
		HOLD(&m.s->lock);
		while (n[0]->is_taken)
			cond_wait(&m.s->moved, &m.s->lock);
		n[0]->due_ns = INT64_MAX; /* until it is that */
	}
	for (unsigned i = 1; i < FILES_MAX; i++) {
		make(&m, i);
		n[i] = node_get(m.s, in_of[i]->ino);
	}
	await_stopped(UPLOAD_THREADS);
	{
		HOLD(&m.s->lock);
		n[0]->due_ns = 0;
		n[0]->is_passed = false;
	}
	let(UPLOAD_THREADS, false);
	for (unsigned i = 1; i < FILES_MAX; i++) {
		await_state(&m, n[i], NODE_KEPT);
		assert_true(is_plain(&m, i));
	}
	file_release(files, in_of[0], O_WRONLY);
	shared_change_end(m.s, n[0]->id);
	assert_int_equal(shared_flush(m.s), 0);
	assert_true(is_plain(&m, 0));
	for (unsigned i = 0; i < FILES_MAX; i++)
		node_put(m.s, n[i]);
	end(&m);
}

/* Those that are copied, and wait for their turn; or are past it. */
static bool waits_or_is_whole(struct shared *s, struct node *n)
{
	HOLD(&s->lock);
	if (s->waiting == 0 && n->state != NODE_KEPT)
		(void)cond_wait_until(&s->moved, &s->lock,
				      mono_ns() + 10000000);
	return s->waiting > 0 || n->state == NODE_KEPT;
}

/* Its fsync overtakes here, and not in DIR. */
static void what_is_synced_is_shown_after_what_was_closed_before(void **state)
{
	struct mounted m = mounted_new();
	struct drain *d = m.live.st->drain;
	struct node *n;

	(void)state;
	{
		HOLD(&d->lock);
		d->order.on_demand = true;
	}
	for (unsigned i = 0; i < FILES_MAX; i++)
		make_closed(&m, i);
	assert_int_equal(drain_sync(d, in_of[1]), 0);
	n = node_get(m.s, in_of[1]->ino);
	while (!waits_or_is_whole(m.s, n))
		;
	assert_false(is_plain(&m, 1));
	drain_go_on(d);
	assert_int_equal(shared_flush(m.s), 0);
	assert_true(is_plain(&m, 0));
	assert_true(is_plain(&m, 1));
	node_put(m.s, n);
	end(&m);
}

/* It had failed when it was closed, and is durable later. */
static void what_failed_before_its_close_comes_all_the_same(void **state)
{
	struct mounted m = mounted_new();
	struct files *files = &m.live.st->files;
	uint8_t *data = filled(2 * MIB, 1);
	struct file_opened opened;
	struct shared_entry e;
	struct inode *in;

	(void)state;
	assert_int_equal(shared_create(m.s, &caller, ROOT_INO, name_of(0),
				       &as_file, &e, &in),
			 0);
	assert_int_equal(file_open(files, in, O_WRONLY, &opened), 0);
	assert_int_equal(file_write(files, in, data, 2 * MIB, 0), 0);
	failing = 1;
	assert_int_equal(file_sync(files, in), -EIO);
	assert_int_equal(failing, 0);
	assert_int_equal(file_flush(files, in, O_WRONLY), 0);
	file_release(files, in, O_WRONLY);
	shared_change_end(m.s, in->ino);
	assert_int_equal(shared_flush(m.s), 0);
	assert_true(is_plain(&m, 0));
	inode_forget(m.live.st->inodes, in, 1);
	inode_put(m.live.st->inodes, in, 2);
	free(data);
	mounted_free(&m);
}

/* Of DIR's file i each fsync fails; 0: no more. */
static void let_fail(ino_t ino)
{
	pthread_mutex_lock(&gate);
	failing_ino = ino;
	pthread_mutex_unlock(&gate);
}

static unsigned get_failed(void)
{
	unsigned ret;

	pthread_mutex_lock(&gate);
	ret = failed;
	pthread_mutex_unlock(&gate);
	return ret;
}

/* Whatever it waits for, if it waits for a time. */
static void pass_time_until_kept(struct mounted *m, struct node *n)
{
	while (node_state(m->s, n) != NODE_KEPT) {
		time_passes(SECOND_NS);
		(void)sched_yield();
	}
}

struct failing_first {
	struct mounted m;
	struct node *n[2];
};

/* f0, of which DIR's fsync fails, was closed before f1. The clock stands. */
static struct failing_first failing_first_new(void)
{
	struct failing_first t = { .m = mounted_new() };
	struct drain *d = t.m.live.st->drain;
	struct stat sb;

	time_stands();
	{
		HOLD(&d->lock);
		d->order.on_demand = true;
	}
	for (unsigned i = 0; i < 2; i++) {
		make_closed(&t.m, i);
		t.n[i] = node_get(t.m.s, in_of[i]->ino);
	}
	assert_int_equal(stat(at(t.m.dir, name_of(0)), &sb), 0);
	failed = 0;
	let_fail(sb.st_ino);
	drain_go_on(d);
	assert_int_equal(drain_sync_closed(d), 0);
	return t;
}

static void failing_first_end(struct failing_first *t)
{
	let_fail(0);
	pass_time_until_kept(&t->m, t->n[0]);
	time_goes_on();
	assert_int_equal(shared_flush(t->m.s), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(is_plain(&t->m, i));
		node_put(t->m.s, t->n[i]);
		inode_forget(t->m.live.st->inodes, in_of[i], 1);
		inode_put(t->m.live.st->inodes, in_of[i], 2);
	}
	mounted_free(&t->m);
}

/* f0 has failed, and f1 waits for its turn, or is past it. Nobody tells. */
static bool is_decided(struct failing_first *t)
{
	struct shared *s = t->m.s;

	HOLD(&s->lock);
	return t->n[0]->failures > 0 &&
	       (s->waiting > 0 || t->n[1]->state == NODE_KEPT);
}

/* One call of DIR fails: what was closed later is not whole earlier. */
static void what_failed_once_is_shown_in_its_turn(void **state)
{
	struct failing_first t = failing_first_new();

	(void)state;
	while (!is_decided(&t))
		(void)sched_yield();
	assert_false(is_plain(&t.m, 1));
	let_fail(0);
	pass_time_until_kept(&t.m, t.n[1]);
	assert_true(is_plain(&t.m, 0));
	assert_int_equal(get_failed(), 1);
	failing_first_end(&t);
}

static void what_fails_again_and_again_holds_back_nothing(void **state)
{
	struct failing_first t = failing_first_new();

	(void)state;
	pass_time_until_kept(&t.m, t.n[1]);
	assert_false(is_plain(&t.m, 0));
	assert_true(get_failed() >= 2);
	failing_first_end(&t);
}

/* A rename to a tracker's name may make it pending again at once. */
static void what_is_whole_is_in_no_threads_hands(void **state)
{
	struct mounted m = mounted_new();
	struct node *n;
	bool is_taken;

	(void)state;
	stops = true;
	make(&m, 0);
	n = node_get(m.s, in_of[0]->ino);
	await_stopped(1);
	let(1, true);
	await_state(&m, n, NODE_COMPLETING);
	await_stopped(1); /* its mode is not synced */
	let_records_stop(true);
	let(1, false);
	await_state(&m, n, NODE_KEPT); /* which is not written yet */
	{
		HOLD(&m.s->lock);
		is_taken = n->is_taken;
	}
	assert_false(is_taken);
	records_fail = true; /* it is whole, all the same */
	let_records_stop(false);
	{
		HOLD(&m.s->lock);
		while (n->saving)
			cond_wait(&m.s->moved, &m.s->lock);
	}
	records_fail = false;
	assert_int_equal(node_state(m.s, n), NODE_KEPT);
	assert_true(is_plain(&m, 0));
	assert_int_equal(shared_flush(m.s), 0);
	node_put(m.s, n);
	inode_forget(m.live.st->inodes, in_of[0], 1);
	inode_put(m.live.st->inodes, in_of[0], 2);
	mounted_free(&m);
}

/* A file that is to replace f: written, closed, and linked to as g. */
static struct inode *replace_and_link(struct mounted *m)
{
	struct files *files = &m->live.st->files;
	struct file_opened opened;
	struct shared_entry e;
	struct inode *in;
	int fd, backing;

	put_file(m->dir, "f", "old");
	assert_int_equal(shared_lookup(m->s, ROOT_INO, "f", 0, &e), 0);
	assert_int_equal(shared_open_file(m->s, &caller, e.id,
					  O_WRONLY | O_TRUNC, &as_file, &fd,
					  &backing),
			 -ESTALE);
	shared_forget(m->s, e.id, 1);
	assert_int_equal(shared_lookup(m->s, ROOT_INO, "f", 0, &e), 0);
	assert_int_equal(shared_change_begin(m->s, e.id, O_WRONLY, &as_file),
			 0);
	assert_int_equal(inode_get(m->live.st->inodes, e.id, &in), 0);
	assert_int_equal(file_open(files, in, O_WRONLY, &opened), 0);
	assert_int_equal(file_write(files, in, "new", 3, 0), 0);
	assert_int_equal(file_flush(files, in, O_WRONLY), 0);
	file_release(files, in, O_WRONLY);
	shared_change_end(m->s, e.id);
	assert_int_equal(shared_link(m->s, &caller, e.id, ROOT_INO, "g", &e),
			 0);
	return in;
}

/* All that its thread does before its turn is done. */
static bool waits_to_be_shown(struct mounted *m, struct node *n)
{
	unsigned calling = 0;

	HOLD(&m->s->lock);
	for (unsigned i = 0; i < UPLOAD_THREADS; i++)
		calling += m->s->calling_ns[i] != 0;
	return n->state == NODE_KEPT ||
	       (n->state == NODE_COMPLETING && calling == 1);
}

/* As a ticket nobody sees it; by its other name everybody does. */
static void what_is_linked_is_shown_in_its_turn(void **state)
{
	struct mounted m = mounted_open();
	struct inode *in;
	struct node *n;
	struct stat sb;
	ino_t linked;

	(void)state;
	make_closed(&m, 0);
	in = replace_and_link(&m);
	n = node_get(m.s, in->ino);
	assert_int_equal(stat(at(m.dir, name_of(0)), &sb), 0);
	times_stop = sb.st_ino;
	assert_int_equal(stat(at(m.dir, "g"), &sb), 0);
	linked = sb.st_ino;
	assert_int_equal(drain_sync_closed(m.live.st->drain), 0);
	mounted_start(&m);
	while (!waits_to_be_shown(&m, n))
		(void)sched_yield();
	assert_int_equal(stat(at(m.dir, "g"), &sb), 0);
	assert_true(pending_is(m.s, &sb));
	pthread_mutex_lock(&gate);
	times_stop = 0;
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&gate);
	assert_int_equal(shared_flush(m.s), 0);
	assert_int_equal(stat(at(m.dir, "f"), &sb), 0);
	assert_int_equal(sb.st_size, 3);
	assert_int_equal(sb.st_ino, linked);
	assert_false(pending_is(m.s, &sb));
	node_put(m.s, n);
	inode_forget(m.live.st->inodes, in, 2);
	inode_put(m.live.st->inodes, in, 3);
	inode_forget(m.live.st->inodes, in_of[0], 1);
	inode_put(m.live.st->inodes, in_of[0], 2);
	mounted_free(&m);
}

/* A daemon has died between its mode and its name. */
static void what_was_whole_in_new_is_not_seen_half_written(void **state)
{
	struct mounted m = mounted_open();
	struct inode *in = replace_and_link(&m);
	struct stat sb;

	(void)state;
	assert_int_equal(drain_sync_closed(m.live.st->drain), 0);
	assert_int_equal(chmod(at(m.dir, "g"), 0644), 0);
	stops = true;
	mounted_start(&m);
	await_stopped(1); /* its bytes are copied */
	assert_int_equal(stat(at(m.dir, "g"), &sb), 0);
	assert_true(pending_is(m.s, &sb));
	let(1, false);
	assert_int_equal(shared_flush(m.s), 0);
	assert_int_equal(stat(at(m.dir, "f"), &sb), 0);
	assert_int_equal(sb.st_size, 3);
	assert_false(pending_is(m.s, &sb));
	inode_forget(m.live.st->inodes, in, 2);
	inode_put(m.live.st->inodes, in, 3);
	mounted_free(&m);
}

#define FAILING 9u /* one more than may keep their turn */

/* All have failed: how many of them are in no thread's hands; -1: not yet. */
static int left_of(struct mounted *m, struct node *const n[FAILING])
{
	int left = 0;

	HOLD(&m->s->lock);
	for (unsigned i = 0; i < FAILING; i++) {
		if (n[i]->failures == 0 || n[i]->state == NODE_COMPLETING)
			return -1;
		left += !n[i]->is_taken;
	}
	return m->s->pausing + (unsigned)left == FAILING ? left : -1;
}

static void not_all_threads_pause_for_files_that_fail(void **state)
{
	struct mounted m = mounted_open();
	struct node *n[FAILING];
	struct stat sb;

	(void)state;
	time_stands();
	for (unsigned i = 0; i <= FAILING; i++) {
		make_closed(&m, i);
		if (i < FAILING)
			n[i] = node_get(m.s, in_of[i]->ino);
	}
	assert_int_equal(drain_sync_closed(m.live.st->drain), 0);
	assert_int_equal(stat(at(m.dir, name_of(FAILING)), &sb), 0);
	sound_ino = sb.st_ino;
	mounted_start(&m);
	while (left_of(&m, n) < 0)
		(void)sched_yield();
	assert_int_equal(left_of(&m, n), 1);
	pthread_mutex_lock(&gate);
	sound_ino = 0;
	pthread_mutex_unlock(&gate);
	for (unsigned i = 0; i < FAILING; i++) {
		pass_time_until_kept(&m, n[i]);
		node_put(m.s, n[i]);
	}
	time_goes_on();
	assert_int_equal(shared_flush(m.s), 0);
	for (unsigned i = 0; i <= FAILING; i++) {
		assert_true(is_plain(&m, i));
		inode_forget(m.live.st->inodes, in_of[i], 1);
		inode_put(m.live.st->inodes, in_of[i], 2);
	}
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_that_are_gone_hold_no_thread),
		cmocka_unit_test(
			a_file_before_all_that_are_copied_gets_a_thread),
		cmocka_unit_test(
			what_is_synced_is_shown_after_what_was_closed_before),
		cmocka_unit_test(
			what_failed_before_its_close_comes_all_the_same),
		cmocka_unit_test(what_is_whole_is_in_no_threads_hands),
		cmocka_unit_test(what_is_linked_is_shown_in_its_turn),
		cmocka_unit_test(
			what_was_whole_in_new_is_not_seen_half_written),
		cmocka_unit_test(not_all_threads_pause_for_files_that_fail),
		cmocka_unit_test(what_failed_once_is_shown_in_its_turn),
		cmocka_unit_test(what_fails_again_and_again_holds_back_nothing),
	};

	return cmocka_run_group_tests_name("shared_upload", tests, NULL, NULL);
}
