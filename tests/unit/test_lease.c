/* Who has a file open: on a disk, and in memory where there is such a place. */
#include "tests/unit/live_store.h"

#include <signal.h>
#include <sys/mman.h>

#include "store/base/lease.h"

struct place {
	char *path;
	int dirfd;
};

static struct place places[2];

static int place_open(unsigned n, int flags)
{
	int fd = openat(places[n].dirfd, "f", flags | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static int ask(unsigned n, enum lease what)
{
	return lease_ask(places[n].dirfd, "f", what);
}

static int make_places(void **state)
{
	(void)state;
	places[0].path = make_tmp();
	places[1].path = live_stage_dir();
	for (unsigned n = 0; n < 2; n++) {
		places[n].dirfd = open(places[n].path, O_RDONLY | O_DIRECTORY);
		assert_true(places[n].dirfd >= 0);
		write_file(places[n].dirfd, "f", "0123456789abcdef", 16);
	}
	return 0;
}

static int remove_places(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 2; n++) {
		close(places[n].dirfd);
		remove_tree(places[n].path);
		free(places[n].path);
	}
	return 0;
}

static void a_file_that_nobody_has_is_granted_again_and_again(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 4; n++) {
		assert_int_equal(ask(n % 2, LEASE_NO_WRITER), 1);
		assert_int_equal(ask(n % 2, LEASE_NOBODY), 1);
	}
}

static void a_missing_file_is_an_error(void **state)
{
	(void)state;
	assert_int_equal(lease_ask(places[0].dirfd, "none", LEASE_NOBODY),
			 -ENOENT);
}

static void a_link_is_not_followed(void **state)
{
	(void)state;
	assert_int_equal(symlinkat("f", places[0].dirfd, "l"), 0);
	assert_int_equal(lease_ask(places[0].dirfd, "l", LEASE_NOBODY),
			 -ELOOP);
}

static void who_may_write_is_seen_until_he_closes(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 2; n++) {
		static const int modes[] = { O_RDWR, O_WRONLY };

		for (unsigned m = 0; m < 2; m++) {
			int fd = place_open(n, modes[m]);

			assert_int_equal(ask(n, LEASE_NO_WRITER), 0);
			assert_int_equal(ask(n, LEASE_NOBODY), 0);
			close(fd);
			assert_int_equal(ask(n, LEASE_NO_WRITER), 1);
		}
	}
}

static void who_only_reads_is_told_from_who_writes(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 2; n++) {
		int fd = place_open(n, O_RDONLY);

		assert_int_equal(ask(n, LEASE_NO_WRITER), 1);
		assert_int_equal(ask(n, LEASE_NOBODY), 0);
		close(fd);
		assert_int_equal(ask(n, LEASE_NOBODY), 1);
	}
}

/* The descriptor is closed: only the mapping is left. */
static void *map_of(unsigned n, int flags, int protection, int kind)
{
	int fd = place_open(n, flags);
	void *map = mmap(NULL, 4096, protection, kind, fd, 0);

	assert_ptr_not_equal(map, MAP_FAILED);
	close(fd);
	return map;
}

static void a_mapping_outlives_its_descriptor(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 2; n++) {
		void *map = map_of(n, O_RDWR, PROT_READ | PROT_WRITE,
				   MAP_SHARED);

		assert_int_equal(ask(n, LEASE_NO_WRITER), 0);
		munmap(map, 4096);
		assert_int_equal(ask(n, LEASE_NO_WRITER), 1);
		for (unsigned k = 0; k < 2; k++) {
			map = map_of(n, O_RDONLY, PROT_READ,
				     k == 0 ? MAP_SHARED : MAP_PRIVATE);
			assert_int_equal(ask(n, LEASE_NO_WRITER), 1);
			assert_int_equal(ask(n, LEASE_NOBODY), 0);
			munmap(map, 4096);
			assert_int_equal(ask(n, LEASE_NOBODY), 1);
		}
	}
}

/* A mapping that was writable may be made so again by who has it. */
static void a_mapping_of_a_writer_counts_also_while_it_is_read_only(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 2; n++) {
		void *map = map_of(n, O_RDWR, PROT_READ, MAP_SHARED);

		assert_int_equal(ask(n, LEASE_NO_WRITER), 0);
		munmap(map, 4096);
		assert_int_equal(ask(n, LEASE_NO_WRITER), 1);
	}
}

static atomic_bool racing;

static void *open_and_close(void *arg)
{
	const unsigned n = *(const unsigned *)arg;

	while (atomic_load(&racing))
		close(place_open(n, O_RDWR));
	return NULL;
}

/* Whoever breaks the lease does not wait for long, and nobody is killed. */
static void an_open_in_the_same_moment_hurts_nobody(void **state)
{
	unsigned n;

	(void)state;
	for (n = 0; n < 2; n++) {
		pthread_t thread;
		unsigned granted = 0, refused = 0;

		atomic_store(&racing, true);
		assert_int_equal(
			pthread_create(&thread, NULL, open_and_close, &n), 0);
		while (granted < 1000 || refused < 10) {
			int rc = ask(n, granted % 2 ? LEASE_NO_WRITER :
						      LEASE_NOBODY);

			assert_true(rc == 0 || rc == 1);
			granted += rc == 1;
			refused += rc == 0;
		}
		atomic_store(&racing, false);
		pthread_join(thread, NULL);
		assert_int_equal(ask(n, LEASE_NOBODY), 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_file_that_nobody_has_is_granted_again_and_again),
		cmocka_unit_test(a_missing_file_is_an_error),
		cmocka_unit_test(a_link_is_not_followed),
		cmocka_unit_test(who_may_write_is_seen_until_he_closes),
		cmocka_unit_test(who_only_reads_is_told_from_who_writes),
		cmocka_unit_test(a_mapping_outlives_its_descriptor),
		cmocka_unit_test(
			a_mapping_of_a_writer_counts_also_while_it_is_read_only),
		cmocka_unit_test(an_open_in_the_same_moment_hurts_nobody),
	};

	return cmocka_run_group_tests(tests, make_places, remove_places);
}
