/* Of the works in flight that have a chunk, the oldest one stores it. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "store/base/scope.h"
#include "store/drain/inflight.h"
#include "store/drain/work.h"

/* A work is its age and its references here. */
static struct work work(uint64_t serial)
{
	struct work w = { .serial = serial };

	atomic_init(&w.refs, 1);
	return w;
}

static void name(uint8_t hash[HASH_BYTES], uint32_t n)
{
	memset(hash, 0, HASH_BYTES);
	/* Those of one bucket differ in their last bytes only. */
	memcpy(hash + HASH_BYTES - sizeof(n), &n, sizeof(n));
}

/* One claim: what it says, and with whom it was told to be. */
struct claim {
	struct inflight *t;
	uint8_t hash[HASH_BYTES];
	unsigned copies;
	struct work *other;
	uint32_t chunk;
};

static struct claim claims(struct inflight *t, uint32_t n, unsigned copies)
{
	struct claim c = { .t = t, .copies = copies };

	name(c.hash, n);
	return c;
}

static enum inflight_claim claim(struct claim *c, struct work *w,
				 uint32_t chunk)
{
	struct inflight_ask a = { .hash = c->hash,
				  .chunk = chunk,
				  .copies = c->copies,
				  .same = UINT32_MAX };

	assert_int_equal(inflight_claim(c->t, w, &a, 1), 1);
	c->other = a.other;
	c->chunk = a.same;
	return a.claim;
}

static void drop(struct claim *c, struct work *w, uint32_t chunk)
{
	inflight_drop(c->t, c->hash, w, chunk);
}

static void an_older_one_that_has_it_is_named(void **state)
{
	struct inflight *t = inflight_new();
	struct work a = work(1), b = work(2);
	struct claim c = claims(t, 1, 1);

	(void)state;
	assert_int_equal(claim(&c, &a, 7), INFLIGHT_MINE);
	assert_null(c.other);
	assert_int_equal(claim(&c, &b, 3), INFLIGHT_OLDER);
	assert_ptr_equal(c.other, &a);
	assert_int_equal(atomic_load(&a.refs), 2);
	assert_int_equal(atomic_load(&b.refs), 1);
	/* It is stored once by each of them at the most. */
	assert_int_equal(claim(&c, &b, 4), INFLIGHT_REPEATED);
	assert_int_equal(c.chunk, 3);
	drop(&c, &b, 3);
	drop(&c, &a, 7);
	inflight_free(t);
}

static void an_older_one_takes_it_over_and_is_told_from_whom(void **state)
{
	struct inflight *t = inflight_new();
	struct work old = work(1), young = work(2);
	struct claim c = claims(t, 1, 1);

	(void)state;
	assert_int_equal(claim(&c, &young, 3), INFLIGHT_MINE);
	assert_int_equal(claim(&c, &old, 9), INFLIGHT_MINE);
	assert_ptr_equal(c.other, &young);
	assert_int_equal(atomic_load(&young.refs), 2);
	assert_int_equal(claim(&c, &young, 3), INFLIGHT_OLDER);
	assert_ptr_equal(c.other, &old);
	drop(&c, &old, 9);
	/* That one is over, and was not committed. */
	assert_int_equal(claim(&c, &young, 3), INFLIGHT_MINE);
	assert_null(c.other);
	drop(&c, &young, 3);
	inflight_free(t);
}

static void
the_second_of_two_equal_chunks_of_a_work_repeats_the_first(void **state)
{
	struct inflight *t = inflight_new();
	struct work a = work(1);
	struct claim c = claims(t, 1, 1);

	(void)state;
	assert_int_equal(claim(&c, &a, 0), INFLIGHT_MINE);
	assert_int_equal(claim(&c, &a, 1), INFLIGHT_REPEATED);
	assert_null(c.other);
	assert_int_equal(c.chunk, 0);
	assert_int_equal(atomic_load(&a.refs), 1);
	drop(&c, &a, 1); /* it does not have it */
	assert_int_equal(claim(&c, &a, 2), INFLIGHT_REPEATED);
	drop(&c, &a, 0);
	assert_int_equal(claim(&c, &a, 2), INFLIGHT_MINE);
	drop(&c, &a, 2);
	inflight_free(t);
}

/* Two copies: so the two oldest have it, and each of them once. */
static void as_many_works_have_it_as_copies_are_to_be_made(void **state)
{
	struct inflight *t = inflight_new();
	struct claim c = claims(t, 1, 2);
	struct work w[5];

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		w[i] = work(i);
	assert_int_equal(claim(&c, &w[2], 2), INFLIGHT_MINE);
	assert_int_equal(claim(&c, &w[2], 9), INFLIGHT_REPEATED);
	assert_int_equal(claim(&c, &w[3], 3), INFLIGHT_MINE);
	assert_null(c.other);
	/* The youngest of those that keep it: it is committed last. */
	assert_int_equal(claim(&c, &w[4], 4), INFLIGHT_OLDER);
	assert_ptr_equal(c.other, &w[3]);
	/* It loses it to an older one; the youngest has lost it already. */
	assert_int_equal(claim(&c, &w[1], 1), INFLIGHT_MINE);
	assert_ptr_equal(c.other, &w[3]);
	assert_int_equal(claim(&c, &w[3], 3), INFLIGHT_OLDER);
	assert_ptr_equal(c.other, &w[2]);
	/* One of two is over, and was not committed. */
	drop(&c, &w[1], 1);
	assert_int_equal(claim(&c, &w[4], 4), INFLIGHT_OLDER);
	assert_ptr_equal(c.other, &w[3]);
	for (uint32_t i = 2; i < 5; i++)
		drop(&c, &w[i], i);
	inflight_free(t);
}

/* A copy was committed since: of those that have it only some make others. */
static void when_fewer_copies_will_do_the_youngest_lose_it(void **state)
{
	struct inflight *t = inflight_new();
	struct claim c = claims(t, 1, 3);
	struct work w[3] = { work(0), work(1), work(2) };

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(claim(&c, &w[i], i), INFLIGHT_MINE);
	c.copies = 1;
	assert_int_equal(claim(&c, &w[1], 1), INFLIGHT_OLDER);
	assert_ptr_equal(c.other, &w[0]);
	c.copies = 2;
	assert_int_equal(claim(&c, &w[0], 0), INFLIGHT_MINE);
	assert_ptr_equal(c.other, &w[2]);
	for (uint32_t i = 0; i < 3; i++)
		drop(&c, &w[i], i);
	inflight_free(t);
}

/* What comes behind it is claimed when that one has been told. */
static void claims_end_behind_the_first_that_another_work_has(void **state)
{
	struct inflight *t = inflight_new();
	struct work old = work(1), young = work(2);
	struct claim c = claims(t, 2, 1);
	struct inflight_ask asks[4];
	uint8_t hash[4][HASH_BYTES];

	(void)state;
	assert_int_equal(claim(&c, &old, 7), INFLIGHT_MINE);
	for (uint32_t i = 0; i < 4; i++) {
		name(hash[i], i == 1 ? 0 : i);
		asks[i] = (struct inflight_ask){ .hash = hash[i],
						 .chunk = i,
						 .copies = 1 };
	}
	assert_int_equal(inflight_claim(t, &young, asks, 4), 3);
	assert_int_equal(asks[0].claim, INFLIGHT_MINE);
	assert_int_equal(asks[1].claim, INFLIGHT_REPEATED);
	assert_int_equal(asks[1].same, 0);
	assert_int_equal(asks[2].claim, INFLIGHT_OLDER);
	assert_ptr_equal(asks[2].other, &old);
	assert_int_equal(inflight_claim(t, &young, &asks[3], 1), 1);
	assert_int_equal(asks[3].claim, INFLIGHT_MINE);
	drop(&c, &old, 7);
	for (uint32_t i = 0; i < 4; i++)
		inflight_drop(t, hash[i], &young, i);
	inflight_free(t);
}

static void what_is_given_up_can_be_claimed_again(void **state)
{
	struct inflight *t = inflight_new();
	struct work a = work(1), b = work(2);
	struct claim c = claims(t, 1, 1);

	(void)state;
	assert_int_equal(claim(&c, &a, 0), INFLIGHT_MINE);
	drop(&c, &a, 0);
	drop(&c, &a, 0); /* twice is once */
	assert_int_equal(claim(&c, &b, 0), INFLIGHT_MINE);
	drop(&c, &b, 0);
	inflight_free(t);
}

static void hashes_of_one_bucket_do_not_disturb_each_other(void **state)
{
	struct inflight *t = inflight_new();
	struct work a = work(1), b = work(2);
	struct claim c;

	(void)state;
	for (uint32_t n = 0; n < 100; n++) {
		c = claims(t, n, 1);
		assert_int_equal(claim(&c, &a, n), INFLIGHT_MINE);
	}
	for (uint32_t n = 0; n < 100; n += 2) {
		c = claims(t, n, 1);
		drop(&c, &a, n);
	}
	for (uint32_t n = 0; n < 100; n++) {
		c = claims(t, n, 1);
		assert_int_equal(claim(&c, &b, n),
				 n % 2 ? INFLIGHT_OLDER : INFLIGHT_MINE);
		drop(&c, &a, n);
		drop(&c, &b, n);
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
		struct claim one = claims(c->t, n, 1);

		switch (claim(&one, &c->work, n)) {
		case INFLIGHT_OLDER:
			CHECK(one.other->serial < c->work.serial);
			break;
		case INFLIGHT_MINE:
			CHECK(!one.other || one.other->serial > c->work.serial);
			break;
		case INFLIGHT_REPEATED:
			CHECK(false);
		}
	}
	return NULL;
}

static void of_works_that_run_at_once_the_oldest_ends_up_with_all(void **state)
{
	struct claimer c[THREADS];
	struct inflight *t = inflight_new();

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
		struct claim one = claims(t, n, 1);

		assert_int_equal(claim(&one, &c[0].work, n), INFLIGHT_OLDER);
		assert_ptr_equal(one.other, &c[THREADS - 1].work);
		for (unsigned i = 0; i < THREADS; i++)
			drop(&one, &c[i].work, n);
	}
	inflight_free(t);
}

static void works_of_different_domains_have_chunks_of_their_own(void **state)
{
	struct inflight *t = inflight_new();
	struct work a = work(1), b = work(2);
	struct claim c = claims(t, 1, 1);

	(void)state;
	a.domain = 1000;
	b.domain = 1001;
	assert_int_equal(claim(&c, &a, 7), INFLIGHT_MINE);
	assert_int_equal(claim(&c, &b, 3), INFLIGHT_MINE);
	assert_null(c.other);
	drop(&c, &a, 7);
	assert_int_equal(claim(&c, &b, 4), INFLIGHT_REPEATED);
	drop(&c, &b, 3);
	inflight_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_older_one_that_has_it_is_named),
		cmocka_unit_test(
			an_older_one_takes_it_over_and_is_told_from_whom),
		cmocka_unit_test(
			the_second_of_two_equal_chunks_of_a_work_repeats_the_first),
		cmocka_unit_test(
			as_many_works_have_it_as_copies_are_to_be_made),
		cmocka_unit_test(
			when_fewer_copies_will_do_the_youngest_lose_it),
		cmocka_unit_test(
			claims_end_behind_the_first_that_another_work_has),
		cmocka_unit_test(what_is_given_up_can_be_claimed_again),
		cmocka_unit_test(
			hashes_of_one_bucket_do_not_disturb_each_other),
		cmocka_unit_test(
			of_works_that_run_at_once_the_oldest_ends_up_with_all),
		cmocka_unit_test(
			works_of_different_domains_have_chunks_of_their_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
