/*
 * Keys of records: they sort as their numbers and names do, and no two kinds or
 * domains share one.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "store/db/records.h"

static int key_compare(const struct key *a, const struct key *b)
{
	size_t len = a->len < b->len ? a->len : b->len;
	int rc = memcmp(a->data, b->data, len);

	return rc != 0 ? rc : (a->len > b->len) - (a->len < b->len);
}

static void keys_sort_as_their_numbers(void **state)
{
	static const uint64_t numbers[] = {
		0, 1, 2, 255, 256, 1u << 16, 1ull << 32, 1ull << 63, UINT64_MAX,
	};

	(void)state;
	for (size_t n = 1; n < sizeof(numbers) / sizeof(*numbers); n++) {
		uint64_t x = numbers[n - 1], y = numbers[n];
		struct key a = key_ino('A', x), b = key_ino('A', y);

		assert_true(key_compare(&a, &b) < 0);
		a = key_chunk(x, UINT64_MAX);
		b = key_chunk(y, 0);
		assert_true(key_compare(&a, &b) < 0);
		a = key_chunk(7, x);
		b = key_chunk(7, y);
		assert_true(key_compare(&a, &b) < 0);
		a = key_dir_at(3, x);
		b = key_dir_at(3, y);
		assert_true(key_compare(&a, &b) < 0);
	}
}

static void a_name_lies_between_its_place_and_the_next(void **state)
{
	char name[STORE_NAME_MAX + 1];

	(void)state;
	memset(name, 'x', STORE_NAME_MAX);
	for (size_t len = 1; len <= STORE_NAME_MAX; len++) {
		struct key at, next, full;
		uint64_t hash;

		name[STORE_NAME_MAX] = 0;
		hash = name_hash(name + STORE_NAME_MAX - len);
		assert_true(hash >= 4);
		assert_true(hash < UINT64_C(1) << 62);
		at = key_dir_at(5, hash);
		next = key_dir_at(5, hash + 1);
		full = key_dirent(5, hash, name + STORE_NAME_MAX - len);
		assert_int_equal(full.len, 17 + len);
		assert_true(key_compare(&at, &full) < 0);
		assert_true(key_compare(&full, &next) < 0);
	}
}

static void kinds_of_keys_do_not_meet(void **state)
{
	uint8_t hash[16] = { 0 };
	struct key keys[] = {
		key_ino('A', 1),     key_dirent(1, 4, "n"), key_xattr(1, "n"),
		key_link(1, 1, "n"), key_chunk(1, 1),       key_hash(hash, 7),
		key_series(1),       key_meta("n"),
	};
	static const char kinds[] = "AEXLKHSM";

	(void)state;
	for (size_t n = 0; n < sizeof(keys) / sizeof(*keys); n++) {
		assert_int_equal(keys[n].data[0], kinds[n]);
		assert_true(keys[n].len <= KEY_BYTES_MAX);
	}
}

static void set_writers(struct attr *a, uint32_t mode, uint32_t uid,
			uint32_t gid)
{
	*a = (struct attr){ .mode = S_IFREG | mode, .uid = uid, .gid = gid };
}

/* Who can write to a file must not have it compared with what he can not. */
static void a_domain_is_an_owner_and_who_may_write(void **state)
{
	static const struct {
		uint32_t mode, uid, gid;
	} apart[] = {
		{ 0600, 1000, 5 }, { 0600, 1001, 5 }, { 0660, 1000, 5 },
		{ 0660, 1000, 6 }, { 0666, 1000, 5 }, { 0600, 0, 5 },
		{ 0660, 0, 5 },    { 0666, 0, 5 },
	};
	struct attr a, b;

	(void)state;
	for (size_t i = 0; i < sizeof(apart) / sizeof(*apart); i++)
		for (size_t k = 0; k < sizeof(apart) / sizeof(*apart); k++) {
			set_writers(&a, apart[i].mode, apart[i].uid,
				    apart[i].gid);
			set_writers(&b, apart[k].mode, apart[k].uid,
				    apart[k].gid);
			assert_int_equal(domain_of(&a) == domain_of(&b),
					 i == k);
			assert_true(domain_of(&a) != DOMAIN_ALL);
		}
	/* Nobody can write to these but their owner. */
	set_writers(&a, 0644, 1000, 5);
	set_writers(&b, 0400, 1000, 6);
	assert_true(domain_of(&a) == domain_of(&b));
}

static void each_domain_has_a_key_of_its_own(void **state)
{
	uint8_t hash[16] = { 1, 2, 3 };
	struct key all = key_hash(hash, DOMAIN_ALL), one = key_hash(hash, 1),
		   other = key_hash(hash, 2);

	(void)state;
	assert_int_equal(all.len, 17);
	assert_true(key_compare(&all, &one) != 0);
	assert_true(key_compare(&one, &other) != 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_sort_as_their_numbers),
		cmocka_unit_test(a_name_lies_between_its_place_and_the_next),
		cmocka_unit_test(kinds_of_keys_do_not_meet),
		cmocka_unit_test(a_domain_is_an_owner_and_who_may_write),
		cmocka_unit_test(each_domain_has_a_key_of_its_own),
	};

	return cmocka_run_group_tests_name("records", tests, NULL, NULL);
}
