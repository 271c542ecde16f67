/* Of the running jobs that have a chunk, the older one stores it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "store/drain/work.h"
#include "store/drain/inflight.h"

/* A work is its age and its references here. */
static struct work work(uint64_t serial)
{
	struct work w = { .serial = serial, .turn = serial };

	atomic_init(&w.refs, 1);
	return w;
}

static void name(uint8_t hash[HASH_BYTES], uint32_t n)
{
	memset(hash, 0, HASH_BYTES);
	/* Those of one bucket differ in their last bytes only. */
	memcpy(hash + HASH_BYTES - sizeof(n), &n, sizeof(n));
}

static void the_first_to_come_owns_it_against_younger_ones(void **state)
{
	struct inflight *t = inflight_new(1);
	struct work a = work(1), b = work(2), *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	name(hash, 1);
	assert_true(inflight_claim(t, hash, &a, 7, &owner, &chunk));
	assert_null(owner);
	assert_false(inflight_claim(t, hash, &b, 3, &owner, &chunk));
	assert_ptr_equal(owner, &a);
	assert_int_equal(chunk, 7);
	assert_int_equal(atomic_load(&a.refs), 2);
	assert_int_equal(atomic_load(&b.refs), 1);
	inflight_drop(t, hash, &a, 7);
	inflight_free(t);
}

static void an_older_job_takes_it_over(void **state)
{
	struct inflight *t = inflight_new(1);
	struct work old = work(1), young = work(2), *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	name(hash, 1);
	assert_true(inflight_claim(t, hash, &young, 3, &owner, &chunk));
	assert_true(inflight_claim(t, hash, &old, 9, &owner, &chunk));
	assert_null(owner);
	/* The younger one finds out before it is settled. */
	assert_int_equal(inflight_check(t, hash, &young, 3, &owner, &chunk),
			 INFLIGHT_OTHER);
	assert_ptr_equal(owner, &old);
	assert_int_equal(chunk, 9);
	assert_int_equal(atomic_load(&old.refs), 2);
	assert_int_equal(inflight_check(t, hash, &old, 9, &owner, &chunk),
			 INFLIGHT_MINE);
	inflight_drop(t, hash, &young, 3); /* it has nothing to give up */
	assert_int_equal(inflight_check(t, hash, &old, 9, &owner, &chunk),
			 INFLIGHT_MINE);
	inflight_drop(t, hash, &old, 9);
	inflight_free(t);
}

/* Two works that wait for each other would wait for ever. */
static void an_older_job_waits_for_no_younger_one_that_came_later(void **state)
{
	struct inflight *t = inflight_new(1);
	struct work first = work(1), old = work(2), young = work(3);
	struct work *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	name(hash, 1);
	assert_true(inflight_claim(t, hash, &old, 9, &owner, &chunk));
	assert_true(inflight_claim(t, hash, &first, 5, &owner, &chunk));
	inflight_drop(t, hash, &first, 5); /* it is over */
	assert_true(inflight_claim(t, hash, &young, 3, &owner, &chunk));
	assert_int_equal(inflight_check(t, hash, &old, 9, &owner, &chunk),
			 INFLIGHT_MINE);
	assert_null(owner);
	assert_int_equal(inflight_check(t, hash, &young, 3, &owner, &chunk),
			 INFLIGHT_OTHER);
	assert_ptr_equal(owner, &old);
	assert_int_equal(chunk, 9);
	inflight_drop(t, hash, &old, 9);
	inflight_free(t);
}

static void the_second_of_two_equal_chunks_of_a_job_refers_to_the_first(
	void **state)
{
	struct inflight *t = inflight_new(1);
	struct work a = work(1), *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	name(hash, 1);
	assert_true(inflight_claim(t, hash, &a, 0, &owner, &chunk));
	assert_false(inflight_claim(t, hash, &a, 1, &owner, &chunk));
	assert_ptr_equal(owner, &a);
	assert_int_equal(chunk, 0);
	inflight_drop(t, hash, &a, 1); /* not the owner of it */
	assert_int_equal(inflight_check(t, hash, &a, 0, &owner, &chunk),
			 INFLIGHT_MINE);
	inflight_drop(t, hash, &a, 0);
	inflight_free(t);
}

/* Two copies: so the two oldest have it, and one of them once. */
static void as_many_jobs_own_it_as_copies_are_kept(void **state)
{
	struct inflight *t = inflight_new(2);
	struct work w[5], *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		w[i] = work(i);
	name(hash, 1);
	assert_true(inflight_claim(t, hash, &w[2], 2, &owner, &chunk));
	assert_false(inflight_claim(t, hash, &w[2], 9, &owner, &chunk));
	assert_ptr_equal(owner, &w[2]);
	assert_int_equal(chunk, 2);
	assert_true(inflight_claim(t, hash, &w[3], 3, &owner, &chunk));
	/* Who comes later refers to one of them, by his own number. */
	assert_false(inflight_claim(t, hash, &w[4], 4, &owner, &chunk));
	assert_ptr_equal(owner, &w[3]);
	assert_int_equal(chunk, 3);
	w[4].serial = 5;
	w[4].turn = 5;
	assert_false(inflight_claim(t, hash, &w[4], 4, &owner, &chunk));
	assert_ptr_equal(owner, &w[2]);
	/* An older one takes the place of the youngest. */
	assert_true(inflight_claim(t, hash, &w[1], 1, &owner, &chunk));
	assert_int_equal(inflight_check(t, hash, &w[2], 2, &owner, &chunk),
			 INFLIGHT_MINE);
	assert_int_equal(inflight_check(t, hash, &w[3], 3, &owner, &chunk),
			 INFLIGHT_OTHER);
	assert_ptr_equal(owner, &w[1]);
	/* One of two is over: there may be room for another one. */
	inflight_drop(t, hash, &w[1], 1);
	assert_int_equal(inflight_check(t, hash, &w[3], 3, &owner, &chunk),
			 INFLIGHT_NOBODY);
	assert_true(inflight_claim(t, hash, &w[3], 3, &owner, &chunk));
	inflight_drop(t, hash, &w[2], 2);
	inflight_drop(t, hash, &w[3], 3);
	inflight_free(t);
}

static void what_is_given_up_is_nobodys_and_can_be_claimed_again(void **state)
{
	struct inflight *t = inflight_new(1);
	struct work a = work(1), b = work(2), *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	name(hash, 1);
	assert_int_equal(inflight_check(t, hash, &b, 0, &owner, &chunk),
			 INFLIGHT_NOBODY);
	assert_true(inflight_claim(t, hash, &a, 0, &owner, &chunk));
	inflight_drop(t, hash, &a, 0);
	inflight_drop(t, hash, &a, 0); /* twice is once */
	assert_int_equal(inflight_check(t, hash, &b, 0, &owner, &chunk),
			 INFLIGHT_NOBODY);
	assert_true(inflight_claim(t, hash, &b, 0, &owner, &chunk));
	inflight_drop(t, hash, &b, 0);
	inflight_free(t);
}

static void hashes_of_one_bucket_do_not_disturb_each_other(void **state)
{
	struct inflight *t = inflight_new(1);
	struct work a = work(1), b = work(2), *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	for (uint32_t n = 0; n < 100; n++) {
		name(hash, n);
		assert_true(inflight_claim(t, hash, &a, n, &owner, &chunk));
	}
	for (uint32_t n = 0; n < 100; n += 2) {
		name(hash, n);
		inflight_drop(t, hash, &a, n);
	}
	for (uint32_t n = 0; n < 100; n++) {
		bool free_again = n % 2 == 0;

		name(hash, n);
		assert_int_equal(inflight_claim(t, hash, &b, n, &owner, &chunk),
				 free_again);
		if (!free_again)
			assert_int_equal(chunk, n);
		inflight_drop(t, hash, &a, n);
		inflight_drop(t, hash, &b, n);
	}
	inflight_free(t); /* which checks that nothing is left */
}

#define THREADS 4
#define CHUNKS 2000

struct claimer {
	struct inflight *t;
	struct work work;
	pthread_t thread;
};

static void *claim_all(void *arg)
{
	struct claimer *c = arg;

	for (uint32_t n = 0; n < CHUNKS; n++) {
		struct work *owner = NULL;
		uint8_t hash[HASH_BYTES];
		uint32_t chunk = 0;

		name(hash, n);
		/* Whoever refuses is not younger than the one who asks. */
		if (!inflight_claim(c->t, hash, &c->work, n, &owner, &chunk))
			CHECK(owner->serial < c->work.serial && chunk == n);
	}
	return NULL;
}

static void of_jobs_that_run_at_once_the_oldest_ends_up_with_all(void **state)
{
	struct claimer c[THREADS];
	struct inflight *t = inflight_new(1);

	(void)state;
	for (unsigned i = 0; i < THREADS; i++) {
		c[i].t = t;
		c[i].work = work(THREADS - i);
		CHECK(pthread_create(&c[i].thread, NULL, claim_all, &c[i]) ==
		      0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(c[i].thread, NULL);
	for (uint32_t n = 0; n < CHUNKS; n++) {
		struct work *owner = NULL;
		uint8_t hash[HASH_BYTES];
		uint32_t chunk = 0;

		name(hash, n);
		assert_int_equal(inflight_check(t, hash, &c[THREADS - 1].work,
						n, &owner, &chunk),
				 INFLIGHT_MINE);
		inflight_drop(t, hash, &c[THREADS - 1].work, n);
	}
	inflight_free(t);
}

static void jobs_of_different_domains_have_chunks_of_their_own(void **state)
{
	struct inflight *t = inflight_new(1);
	struct work a = work(1), b = work(2), *owner = NULL;
	uint8_t hash[HASH_BYTES];
	uint32_t chunk = 0;

	(void)state;
	a.domain = 1000;
	b.domain = 1001;
	name(hash, 1);
	assert_true(inflight_claim(t, hash, &a, 7, &owner, &chunk));
	assert_true(inflight_claim(t, hash, &b, 3, &owner, &chunk));
	assert_null(owner);
	assert_int_equal(inflight_check(t, hash, &b, 3, &owner, &chunk),
			 INFLIGHT_MINE);
	inflight_drop(t, hash, &a, 7);
	assert_int_equal(inflight_check(t, hash, &b, 3, &owner, &chunk),
			 INFLIGHT_MINE);
	inflight_drop(t, hash, &b, 3);
	inflight_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_to_come_owns_it_against_younger_ones),
		cmocka_unit_test(an_older_job_takes_it_over),
		cmocka_unit_test(
			an_older_job_waits_for_no_younger_one_that_came_later),
		cmocka_unit_test(
			the_second_of_two_equal_chunks_of_a_job_refers_to_the_first),
		cmocka_unit_test(as_many_jobs_own_it_as_copies_are_kept),
		cmocka_unit_test(
			what_is_given_up_is_nobodys_and_can_be_claimed_again),
		cmocka_unit_test(hashes_of_one_bucket_do_not_disturb_each_other),
		cmocka_unit_test(
			of_jobs_that_run_at_once_the_oldest_ends_up_with_all),
		cmocka_unit_test(
			jobs_of_different_domains_have_chunks_of_their_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
