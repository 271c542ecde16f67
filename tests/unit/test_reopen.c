/*
 * A file that was closed is opened to write while it is made durable: its bytes
 * are not changed under who counts on what was closed. Only for the committer
 * does anybody wait.
 */
#include <pthread.h>

#include "store/base/interrupt.h"
#include "store/file/state.h"
#include "tests/unit/await.h"
#include "tests/unit/live_flight.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (3 * MIB + 12345)
#define CHANGED_AT (MIB + 7)

/* The file, written and closed; with a reference, when its drain is there. */
static struct inode *write_until(struct live *l, const char *path,
				 const uint8_t *data, size_t len,
				 enum version_state state)
{
	struct inode *in = NULL;

	live_write(l, path, data, len);
	assert_int_equal(live_lookup(l, path, &in), 0);
	AWAIT(live_flight(l, in) == state);
	return in;
}

static enum file_bytes bytes_of(struct inode *in)
{
	HOLD(&in->lock);
	return in->file->state.bytes;
}

/* How the file is changed: each of these begins a change of its own. */
enum change {
	BY_OPEN,
	BY_TRUNCATE,
	BY_EMPTYING,
	CHANGES,
};

struct changer {
	struct live *l;
	struct inode *in;
	enum change by;
	pthread_t thread;
	atomic_bool begun; /* nothing is in its way any more */
};

static void *change(void *arg)
{
	struct changer *c = arg;
	struct handle h;

	if (c->by == BY_TRUNCATE) {
		assert_int_equal(file_truncate_path(&c->l->st->files, c->in,
						    CHANGED_AT, FILE_BY_ANY),
				 0);
		atomic_store(&c->begun, true);
		return NULL;
	}
	h = handle_open(c->l, "f",
			O_RDWR | (c->by == BY_EMPTYING ? O_TRUNC : 0));
	atomic_store(&c->begun, true);
	handle_write(&h, "changed", 7, CHANGED_AT);
	handle_close(&h);
	return NULL;
}

static void change_begin(struct changer *c, struct live *l, struct inode *in,
			 enum change by)
{
	*c = (struct changer){ .l = l, .in = in, .by = by };
	assert_int_equal(pthread_create(&c->thread, NULL, change, c), 0);
}

/* Somebody waits for what the drain has, and may be seen to. */
static bool is_waiting(const struct live *l)
{
	return atomic_load(&l->st->drain->hurried) > 0;
}

/* What the file holds in the end; the caller frees it. */
static uint8_t *changed(enum change by, size_t *ret_len)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	*ret_len = by == BY_TRUNCATE   ? CHANGED_AT
		   : by == BY_EMPTYING ? CHANGED_AT + 7
				       : FILE_BYTES;
	if (by == BY_EMPTYING)
		memset(data, 0, FILE_BYTES);
	if (by != BY_TRUNCATE)
		memcpy(data + CHANGED_AT, "changed", 7);
	return data;
}

static void assert_changed(struct live *l, enum change by)
{
	size_t len;
	uint8_t *data = changed(by, &len);

	assert_file(l, "f", data, len);
	live_sync_all(l);
	assert_file(l, "f", data, len);
	live_reopen(l);
	assert_file(l, "f", data, len);
	free(data);
}

/* The committer has f; `before` is what it stands at, and f waits behind it. */
static void change_what_is_taken(unsigned kind, enum change by)
{
	uint8_t *data = filled(FILE_BYTES, 1);
	struct live l = live_kind(kind);
	struct commits_paused paused;
	struct changer c;
	struct inode *in;

	commits_pause(&paused, &l);
	in = write_until(&l, "f", data, FILE_BYTES, VERSION_TAKEN);
	change_begin(&c, &l, in, by);
	AWAIT(is_waiting(&l) || atomic_load(&c.begun));
	assert_false(atomic_load(&c.begun));
	assert_true(live_flight(&l, in) == VERSION_TAKEN);
	assert_int_equal(committed_size(&l, "f"), 0);
	commits_go_on(&paused);
	pthread_join(c.thread, NULL);
	/* What was closed is durable: it was not given up. */
	assert_true(committed_size(&l, "f") > 0);
	inode_put(l.st->inodes, in, 1);
	assert_changed(&l, by);
	live_free(&l);
	free(data);
}

static void who_changes_a_file_waits_for_the_committer(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		change_what_is_taken(kind, BY_OPEN);
		change_what_is_taken(kind, BY_TRUNCATE);
	}
}

static bool ends_now(const struct interrupt *i)
{
	(void)i;
	return true;
}

/* He has changed nothing, and what was closed goes on. */
static void who_is_to_end_does_not_wait_for_the_committer(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct interrupt i = { .signalled = true, .ends = ends_now };
		struct commits_paused paused;
		struct file_opened opened;
		struct interrupt *before;
		struct inode *in;

		commits_pause(&paused, &l);
		in = write_until(&l, "f", data, FILE_BYTES, VERSION_TAKEN);
		before = interrupt_set(&i);
		assert_int_equal(file_open(&l.st->files, in, O_RDWR, &opened),
				 -EINTR);
		(void)interrupt_set(before);
		assert_int_equal(in->file->state.changing, 0);
		commits_go_on(&paused);
		live_sync_all(&l);
		assert_int_not_equal(bytes_of(in), BYTES_DIRTY);
		inode_put(l.st->inodes, in, 1);
		assert_file(&l, "f", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

static atomic_bool condemned;

enum kv_health __real_kv_health(const struct kv *kv);
enum kv_health __wrap_kv_health(const struct kv *kv);

enum kv_health __wrap_kv_health(const struct kv *kv)
{
	return atomic_load(&condemned) ? KV_CONDEMNED : __real_kv_health(kv);
}

/* A power cut could show that it is the image: nobody writes to it. */
static void a_stage_that_is_in_doubt_is_not_changed(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) { /* on disk */
		struct live l = live_kind(kind);
		struct commits_paused paused;
		struct file_opened opened;
		struct inode *first, *in;

		commits_pause(&paused, &l);
		first = write_until(&l, "first", data + 1, 100, VERSION_TAKEN);
		in = write_until(&l, "f", data, FILE_BYTES, VERSION_READY);
		assert_int_equal(bytes_of(in), BYTES_FROZEN);
		atomic_store(&condemned, true);
		assert_int_equal(file_open(&l.st->files, in, O_RDWR, &opened),
				 -EIO);
		atomic_store(&condemned, false);
		assert_int_equal(bytes_of(in), BYTES_FROZEN);
		assert_int_equal(in->file->state.changing, 0);
		commits_go_on(&paused);
		live_sync_all(&l);
		inode_put(l.st->inodes, first, 1);
		inode_put(l.st->inodes, in, 1);
		assert_file(&l, "f", data, FILE_BYTES);
		live_free(&l);
	}
	free(data);
}

/* f can be committed, but what was closed before stands at the committer. */
static void change_what_is_ready(unsigned kind, enum change by)
{
	uint8_t *data = filled(FILE_BYTES, 1);
	struct live l = live_kind(kind);
	struct commits_paused paused;
	struct inode *first, *in;
	struct changer c;

	commits_pause(&paused, &l);
	first = write_until(&l, "first", data + 1, 100, VERSION_TAKEN);
	in = write_until(&l, "f", data, FILE_BYTES, VERSION_READY);
	change_begin(&c, &l, in, by);
	pthread_join(c.thread, NULL); /* the committer still stands */
	if (by != BY_EMPTYING) { /* else it has another stage */
		assert_true(live_flight(&l, in) == VERSION_VOID);
		assert_int_equal(bytes_of(in), BYTES_DIRTY);
	}
	commits_go_on(&paused);
	inode_put(l.st->inodes, first, 1);
	inode_put(l.st->inodes, in, 1);
	assert_changed(&l, by);
	live_free(&l);
	free(data);
}

static void who_changes_a_file_does_not_wait_for_its_turn(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++)
		for (enum change by = 0; by < CHANGES; by++)
			change_what_is_ready(kind, by);
}

/* The look of who opens it again, and changes nothing, costs no place. */
static void
who_opens_a_file_and_changes_nothing_leaves_what_was_closed(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct commits_paused paused;
		struct inode *first, *in;
		struct handle h;

		commits_pause(&paused, &l);
		first = write_until(&l, "first", data + 1, 100, VERSION_TAKEN);
		in = write_until(&l, "f", data, FILE_BYTES, VERSION_READY);
		h = handle_open(&l, "f", O_RDWR);
		commits_go_on(&paused);
		/* Still open, it is durable in its place, as it stands. */
		AWAIT(committed_size(&l, "f") == FILE_BYTES);
		handle_close(&h);
		live_sync_all(&l);
		assert_file(&l, "f", data, FILE_BYTES);
		inode_put(l.st->inodes, first, 1);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

/* Who comes there stands, once, until he may go on. */
struct gate {
	atomic_bool armed;
	sem_t stands, over;
};
static struct gate opening, published;

static void gate_arm(struct gate *g)
{
	assert_int_equal(sem_init(&g->stands, 0, 0), 0);
	assert_int_equal(sem_init(&g->over, 0, 0), 0);
	atomic_store(&g->armed, true);
}

static void sem_take(sem_t *sem)
{
	while (sem_wait(sem) != 0)
		;
}

static void gate_pass(struct gate *g)
{
	if (!atomic_exchange(&g->armed, false))
		return;
	CHECK(sem_post(&g->stands) == 0);
	sem_take(&g->over);
}

int __real_file_check_content(struct files *fs, struct inode *in);
int __wrap_file_check_content(struct files *fs, struct inode *in);
void __real_drain_done(struct drain *d, struct drain_job *j, bool stored);
void __wrap_drain_done(struct drain *d, struct drain_job *j, bool stored);

/* An open has begun. */
int __wrap_file_check_content(struct files *fs, struct inode *in)
{
	gate_pass(&opening);
	return __real_file_check_content(fs, in);
}

/* Everybody sees what was committed, and its job is not over yet. */
void __wrap_drain_done(struct drain *d, struct drain_job *j, bool stored)
{
	gate_pass(&published);
	__real_drain_done(d, j, stored);
}

static void *open_to_read(void *l)
{
	struct handle h = handle_open(l, "f", O_RDONLY);

	handle_close(&h);
	return NULL;
}

/* Its stage cannot become a cache just then; it does at the next drain. */
static void
a_file_that_is_opened_while_it_is_published_becomes_clean(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 1; kind < LIVE_KINDS; kind += 2) { /* in memory */
		struct live l = live_kind(kind);
		struct commits_paused paused;
		pthread_t reading;
		struct inode *in;

		commits_pause(&paused, &l);
		in = write_until(&l, "f", data, FILE_BYTES, VERSION_TAKEN);
		gate_arm(&opening);
		assert_int_equal(
			pthread_create(&reading, NULL, open_to_read, &l), 0);
		sem_take(&opening.stands);
		gate_arm(&published);
		commits_go_on(&paused);
		sem_take(&published.stands);
		assert_true(live_flight(&l, in) == VERSION_SEEN);
		assert_int_equal(sem_post(&opening.over), 0);
		pthread_join(reading, NULL);
		assert_int_equal(sem_post(&published.over), 0);
		AWAIT(live_flight(&l, in) == VERSION_GONE);
		assert_int_equal(drain_wait_drained(l.st->drain), 0);
		live_quiet(&l);
		assert_int_equal(bytes_of(in), BYTES_CLEAN);
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
	free(data);
}

/* Of its oldest version. */
static struct stage *replaced_stage(struct inode *in)
{
	const struct drain_job *j;

	HOLD(&in->lock);
	j = job_of(TAILQ_FIRST(&in->file->versions.list));
	return j && j->v.replaced && j->v.place ? j->stage : NULL;
}

/* A file of which the kernel has closed the last handle, but not the mapping.
 */
struct mapped {
	struct inode *in;
	int fd;
};

static struct mapped mapped_file(struct live *l, const uint8_t *data)
{
	struct handle h = handle_open(l, "f", O_RDWR | O_CREAT);
	struct mapped m = { .in = h.in, .fd = dup(h.fd) };

	assert_true(m.fd >= 0);
	handle_write(&h, data, FILE_BYTES, 0);
	assert_int_equal(file_flush(&l->st->files, h.in, O_RDWR), 0);
	file_release(&l->st->files, h.in, O_RDWR);
	return m;
}

static void mapped_end(struct live *l, struct mapped *m)
{
	close(m->fd);
	inode_forget(l->st->inodes, m->in, 1);
	file_forgotten(&l->st->files, m->in);
	inode_put(l->st->inodes, m->in, 1);
}

/*
 * A mapping of it is left: its bytes are never taken for closed ones, and they
 * keep their place although they change.
 */
static void what_was_replaced_may_still_be_written_to(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 2; kind < LIVE_KINDS; kind++) { /* passthrough */
		struct live l = live_closed(NULL);
		struct stage *replaced;
		struct mapped m;
		struct handle h;

		l.options.hold_drain = true;
		live_open_kind(&l, kind);
		m = mapped_file(&l, data);
		h = handle_open(&l, "f", O_WRONLY | O_TRUNC);
		replaced = replaced_stage(m.in);
		assert_non_null(replaced);
		assert_true(replaced->unseen_writer);
		assert_int_equal(pwrite(m.fd, "late", 4, 0), 4);
		handle_write(&h, "new", 3, 0);
		drain_go_on(l.st->drain);
		AWAIT(!replaced_stage(m.in));
		assert_int_equal(committed_size(&l, "f"), FILE_BYTES);
		handle_close(&h);
		mapped_end(&l, &m);
		live_sync_all(&l);
		assert_file(&l, "f", "new", 3);
		live_free(&l);
	}
	free(data);
}

static bool is_all_over(struct live *l, struct inode *in)
{
	HOLD(&in->lock);
	HOLD(&l->st->drain->lock);
	return TAILQ_EMPTY(&in->file->versions.list);
}

/* Nobody closes it any more: it does not wait for that, being empty. */
static void
a_file_that_is_emptied_while_it_is_mapped_becomes_durable(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);

	(void)state;
	for (unsigned kind = 2; kind < LIVE_KINDS; kind++) { /* passthrough */
		struct live l = live_kind(kind);
		struct mapped m = mapped_file(&l, data);

		live_sync_all(&l);
		assert_int_equal(committed_size(&l, "f"), FILE_BYTES);
		assert_int_equal(
			file_truncate_path(&l.st->files, m.in, 0, FILE_BY_ANY),
			0);
		AWAIT(is_all_over(&l, m.in));
		assert_int_equal(committed_size(&l, "f"), 0);
		mapped_end(&l, &m);
		live_free(&l);
	}
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_changes_a_file_waits_for_the_committer),
		cmocka_unit_test(who_is_to_end_does_not_wait_for_the_committer),
		cmocka_unit_test(a_stage_that_is_in_doubt_is_not_changed),
		cmocka_unit_test(who_changes_a_file_does_not_wait_for_its_turn),
		cmocka_unit_test(
			who_opens_a_file_and_changes_nothing_leaves_what_was_closed),
		cmocka_unit_test(
			a_file_that_is_opened_while_it_is_published_becomes_clean),
		cmocka_unit_test(what_was_replaced_may_still_be_written_to),
		cmocka_unit_test(
			a_file_that_is_emptied_while_it_is_mapped_becomes_durable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
