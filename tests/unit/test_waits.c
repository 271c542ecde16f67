/*
 * Who waits for whom: nobody for the drain of a large file that stands in the
 * middle, unless it is just that file that he wants to be durable. And what
 * becomes durable of one that is cut and written anew just then.
 */
#include <pthread.h>

#include "store/drain/drain_private.h"
#include "store/drain/work.h"
#include "tests/unit/live_store.h"

#define LARGE_BYTES (5 * DRAIN_SPAN_BYTES + 12345)
#define SMALL_BYTES (MIB + 12345)

/* Workers stand after a span of a file of LARGE_BYTES, as long as `stand`. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool stand;
	unsigned standing;
} gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0 };

void __real_work_span(struct drain *d, struct work *w, const struct span *s);
void __wrap_work_span(struct drain *d, struct work *w, const struct span *s);

void __wrap_work_span(struct drain *d, struct work *w, const struct span *s)
{
	__real_work_span(d, w, s);
	if (w->size_bytes != LARGE_BYTES)
		return;
	(void)pthread_mutex_lock(&gate.lock);
	gate.standing++;
	(void)pthread_cond_broadcast(&gate.moved);
	while (gate.stand)
		(void)pthread_cond_wait(&gate.moved, &gate.lock);
	gate.standing--;
	(void)pthread_mutex_unlock(&gate.lock);
}

static void let_stand(bool stand)
{
	(void)pthread_mutex_lock(&gate.lock);
	gate.stand = stand;
	(void)pthread_cond_broadcast(&gate.moved);
	(void)pthread_mutex_unlock(&gate.lock);
}

static void wait_standing(unsigned count)
{
	(void)pthread_mutex_lock(&gate.lock);
	while (gate.standing < count)
		(void)pthread_cond_wait(&gate.moved, &gate.lock);
	(void)pthread_mutex_unlock(&gate.lock);
}

/* All of its workers, two, stand in the middle of `large`. */
static struct live live_standing(unsigned kind, const uint8_t *data)
{
	struct live l = live_closed(NULL);

	l.options.drain_threads = 2;
	live_open_kind(&l, kind);
	let_stand(true);
	live_write(&l, "large", data, LARGE_BYTES);
	wait_standing(2);
	return l;
}

static void a_sync_of_a_small_file_waits_for_no_large_one(void **state)
{
	uint8_t *data = filled(LARGE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_standing(kind, data);

		live_write(&l, "tiny", data + 1, 100);
		live_write(&l, "own", data + 1, SMALL_BYTES);
		live_write(&l, "shared", data, SMALL_BYTES);
		assert_int_equal(live_sync(&l, "tiny"), 0);
		assert_int_equal(live_sync(&l, "own"), 0);
		assert_int_equal(live_sync(&l, "shared"), 0);
		let_stand(false);
		live_sync_all(&l);
		assert_file(&l, "large", data, LARGE_BYTES);
		assert_file(&l, "shared", data, SMALL_BYTES);
		live_free(&l);
	}
	free(data);
}

static void who_opens_a_file_to_write_waits_for_no_drain_of_it(void **state)
{
	uint8_t *data = filled(LARGE_BYTES, 1);
	uint8_t *written = filled(LARGE_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_standing(kind, data);
		struct handle h = handle_open(&l, "large", O_RDWR);

		handle_write(&h, "!", 1, 7);
		let_stand(false);
		handle_close(&h);
		live_sync_all(&l);
		live_reopen(&l);
		written[7] = '!';
		assert_file(&l, "large", written, LARGE_BYTES);
		live_free(&l);
	}
	free(written);
	free(data);
}

static void *sync_large(void *l)
{
	assert_int_equal(live_sync(l, "large"), 0);
	return NULL;
}

static void assert_same_content(struct live *l, const char *a, const char *b)
{
	struct content of_a = live_content(l, a), of_b = live_content(l, b);

	assert_int_equal(of_a.size_bytes, of_b.size_bytes);
	assert_memory_equal(of_a.digest, of_b.digest, sizeof(of_a.digest));
	content_release(&of_a);
	content_release(&of_b);
}

/*
 * The drain of an open file, which an fsync asked for, has read some of it when
 * the file is emptied, and the rest after it was written anew. What becomes
 * durable has no byte of before: a power cut would leave a mixture.
 */
static void
a_file_that_is_cut_while_it_is_synced_is_not_durable_as_a_mixture(void **state)
{
	uint8_t *old = filled(LARGE_BYTES, 1), *new = filled(LARGE_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_closed(NULL);
		pthread_t syncing;
		struct handle h;

		l.options.drain_threads = 1;
		l.options.hold_drain = true;
		live_open_kind(&l, kind);
		let_stand(false);
		live_write(&l, "anew", new, LARGE_BYTES);
		assert_int_equal(live_sync(&l, "anew"), 0);
		h = handle_open(&l, "large", O_WRONLY | O_CREAT);
		handle_write(&h, old, LARGE_BYTES, 0);
		let_stand(true);
		assert_int_equal(pthread_create(&syncing, NULL, sync_large, &l),
				 0);
		wait_standing(1);
		assert_int_equal(file_truncate(&l.st->files, h.in, 0), 0);
		handle_write(&h, new, LARGE_BYTES, 0);
		let_stand(false);
		assert_int_equal(pthread_join(syncing, NULL), 0);
		assert_same_content(&l, "large", "anew");
		handle_close(&h);
		live_free(&l);
	}
	free(old);
	free(new);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sync_of_a_small_file_waits_for_no_large_one),
		cmocka_unit_test(
			who_opens_a_file_to_write_waits_for_no_drain_of_it),
		cmocka_unit_test(
			a_file_that_is_cut_while_it_is_synced_is_not_durable_as_a_mixture),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
