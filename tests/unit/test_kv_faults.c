/*
 * The disk under the database fails at each call in turn: its log, its tables,
 * its lists. The process goes on whatever fails, what was acknowledged is
 * there, and once the disk works again the database does.
 */
#include <limits.h>
#include <pthread.h>
#include <sys/wait.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "tests/fault/faults.h"
#include "tests/unit/kv_fixture.h"

#define VALUE_BYTES (100u << 10)
#define WRITERS 3
#define WRITES 4 /* of each */

static int put_try(struct kv *kv, const char *key)
{
	static const uint8_t value[VALUE_BYTES];
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

	kv_put(b, key, strlen(key), value, sizeof(value));
	return kv_write(kv, b);
}

/* In the child: what is wrong, and what the parent sees then. */
#define WRONG 99
#define MUST(c)                                                               \
	do {                                                                  \
		if (!(c)) {                                                   \
			(void)fprintf(stderr, "line %d: %s\n", __LINE__, #c); \
			_exit(WRONG);                                         \
		}                                                             \
	} while (0)

/* What is tried in one process. */
struct fault {
	unsigned what;
	int error;
	unsigned after, count;
};

static void plan(const struct fault *f)
{
	struct fault_plan *p = faults_plan();

	atomic_store(&p->error, (unsigned)f->error);
	atomic_store(&p->after, f->after);
	atomic_store(&p->count, f->count);
	atomic_store(&p->torn, f->after % 2);
	atomic_store(&p->what, f->what);
}

struct load {
	struct kv *kv;
	unsigned id;
	bool written[WRITES];
	pthread_t thread;
};

static void *write_some(void *arg)
{
	struct load *w = arg;
	char key[16];

	for (unsigned i = 0; i < WRITES; i++) {
		(void)snprintf(key, sizeof(key), "w%u-%u", w->id, i);
		w->written[i] = put_try(w->kv, key) == 0;
		(void)kv_sync(w->kv);
	}
	return NULL;
}

/* Just what was acknowledged is there; while the disk fails, or it says so. */
static void look_written(struct kv *kv, const struct load *loads, bool fails)
{
	char key[16];

	for (unsigned n = 0; n < WRITERS * WRITES; n++) {
		const struct load *w = &loads[n / WRITES];
		void *value = NULL;
		size_t len;
		int rc;

		(void)snprintf(key, sizeof(key), "w%u-%u", w->id, n % WRITES);
		rc = kv_get(kv, key, strlen(key), &value, &len);
		free(value);
		if (fails && rc == -EIO)
			continue;
		MUST(rc == (w->written[n % WRITES] ? 0 : -ENOENT));
	}
}

/* In a process of its own, which ends with FAILED when anything has failed. */
#define FAILED 3
static void live_through(const char *path, const struct fault *f)
{
	struct fault_plan *p = faults_plan();
	struct load loads[WRITERS] = { 0 };
	struct kv *kv;
	uint64_t sequence;

	(void)alarm(1800); /* it hangs */
	log_set_level(LOG_CRIT);
	MUST(kv_open(path, true, &kv) == 0);
	plan(f);
	for (unsigned i = 0; i < WRITERS; i++) {
		loads[i].kv = kv;
		loads[i].id = i;
		MUST(pthread_create(&loads[i].thread, NULL, write_some,
				    &loads[i]) == 0);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(loads[i].thread, NULL);
	look_written(kv, loads, true);
	(void)kv_finish(kv, &sequence);
	(void)kv_mend(kv);
	look_written(kv, loads, true);
	kv_close(kv);
	if (kv_open(path, false, &kv) == 0) {
		look_written(kv, loads, true);
		kv_close(kv);
	}
	atomic_store(&p->what, 0);
	MUST(kv_open(path, false, &kv) == 0);
	look_written(kv, loads, false);
	MUST(put_try(kv, "after") == 0 && kv_sync(kv) == 0);
	kv_close(kv);
	_exit(atomic_load(&p->failed) > 0 ? FAILED : 0);
}

/* Returns whether anything has failed. */
static bool try_fault(const struct fault *f)
{
	char *dir = make_tmp(), *path = NULL;
	int status;
	pid_t pid;

	assert_true(asprintf(&path, "%s/db", dir) > 0);
	pid = fork();
	if (pid == 0)
		live_through(path, f);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) ||
	    (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != FAILED))
		fail_msg("what %u, %s, after %u, count %u: %s %d", f->what,
			 strerror(f->error), f->after, f->count,
			 WIFEXITED(status) ? "exit" : "signal",
			 WIFEXITED(status) ? WEXITSTATUS(status)
					   : WTERMSIG(status));
	remove_tree(dir);
	free(path);
	free(dir);
	return WEXITSTATUS(status) == FAILED;
}

/* The 1st, 2nd, 3rd, 5th, 8th, ... such call, until none has failed. */
static void try_each(unsigned what, int error, unsigned count)
{
	unsigned before = 1, after = 0;
	struct fault f = { .what = what, .error = error, .count = count };

	for (;;) {
		unsigned next = after + before;

		f.after = after;
		if (!try_fault(&f))
			break;
		before = after > 0 ? after : 1;
		after = next;
	}
	assert_true(after > 0);
}

static void each_write_may_fail(void **state)
{
	(void)state;
	try_each(FAULT_FILES | FAULT_WRITE, EIO, 1);
	try_each(FAULT_LOG | FAULT_WRITE, EIO, 1);
}

static void two_errors_in_a_row_are_no_end(void **state)
{
	(void)state;
	try_each(FAULT_FILES | FAULT_WRITE, EIO, 2);
	try_each(FAULT_LOG | FAULT_WRITE, EIO, 2);
	try_each(FAULT_FILES | FAULT_WRITE, EDQUOT, 2);
	try_each(FAULT_FILES | FAULT_WRITE, ENOSPC, 2);
}

static void nothing_can_be_written_from_some_call_on(void **state)
{
	(void)state;
	try_each(FAULT_FILES | FAULT_CALLS, EIO, UINT_MAX);
	try_each(FAULT_FILES | FAULT_CALLS, EDQUOT, UINT_MAX);
	try_each(FAULT_FILES | FAULT_CALLS, ENOSPC, UINT_MAX);
}

static void each_sync_may_fail(void **state)
{
	(void)state;
	try_each(FAULT_FILES | FAULT_SYNC, EIO, 1);
	try_each(FAULT_FILES | FAULT_SYNC, EIO, 2);
}

static void each_file_may_not_be_made(void **state)
{
	(void)state;
	try_each(FAULT_FILES | FAULT_MAKE, EIO, 1);
	try_each(FAULT_FILES | FAULT_MAKE, ENOSPC, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_write_may_fail),
		cmocka_unit_test(two_errors_in_a_row_are_no_end),
		cmocka_unit_test(nothing_can_be_written_from_some_call_on),
		cmocka_unit_test(each_sync_may_fail),
		cmocka_unit_test(each_file_may_not_be_made),
	};

	return cmocka_run_group_tests_name("kv_faults", tests, NULL, NULL);
}
