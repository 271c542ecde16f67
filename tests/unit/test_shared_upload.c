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

#define FILES_MAX (UPLOAD_THREADS + 1)

static struct inode *in_of[FILES_MAX];

/* Who is stopped, and may go on. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static bool stops; /* whoever comes */
static unsigned stopped, let_go;
static unsigned failing; /* so many calls */

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
	bool fails;

	pthread_mutex_lock(&gate);
	fails = failing > 0;
	failing -= fails;
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
	assert_int_equal(drain_closed(m->live.st->drain, in_of[i], true), 0);
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
		d->order.held = true;
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
	};

	return cmocka_run_group_tests_name("shared_upload", tests, NULL, NULL);
}
