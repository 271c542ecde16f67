/*
 * A store whose database is gone or damaged is refused, at every try, with a
 * sentence, and neither a mount nor a check changes a byte of it. One that was
 * killed, or that lost what nobody was promised, opens as ever.
 */
#include <signal.h>
#include <sys/resource.h>
#include <xxhash.h>

#include "store/db/trust.h"
#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"

#define FILES 20

/* --- a sum over all of the store: names, lengths and bytes --- */

static XXH3_state_t *sum_state;

static int sum_one(const char *path, const struct stat *sb, int type,
		   struct FTW *at)
{
	uint8_t buffer[65536];
	ssize_t n;
	int fd;

	(void)at;
	XXH3_64bits_update(sum_state, path, strlen(path) + 1);
	if (type != FTW_F)
		return 0;
	XXH3_64bits_update(sum_state, &sb->st_size, sizeof(sb->st_size));
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	while ((n = read(fd, buffer, sizeof(buffer))) > 0)
		XXH3_64bits_update(sum_state, buffer, (size_t)n);
	close(fd);
	return 0;
}

/* Directories in the order of the disk: the same while nothing changes. */
static uint64_t sum_of(const char *path)
{
	uint64_t sum;

	sum_state = XXH3_createState();
	XXH3_64bits_reset(sum_state);
	assert_int_equal(nftw(path, sum_one, 16, FTW_PHYS), 0);
	sum = XXH3_64bits_digest(sum_state);
	XXH3_freeState(sum_state);
	return sum;
}

/* --- damages --- */

static void in_db(struct live *l, const char *name, char ret[4096])
{
	(void)snprintf(ret, 4096, "%s/" LAYOUT_DB_DIR "/%s", l->path, name);
}

/* The largest file of the database whose name ends (or begins) so. */
static bool find_in_db(struct live *l, const char *part, char ret[4096])
{
	char dir[4096];
	struct dirent *d;
	off_t largest = -1;
	struct stat sb;
	DIR *at;

	in_db(l, "", dir);
	at = opendir(dir);
	assert_non_null(at);
	while ((d = readdir(at)) != NULL)
		if (strstr(d->d_name, part) &&
		    fstatat(dirfd(at), d->d_name, &sb, 0) == 0 &&
		    sb.st_size > largest) {
			largest = sb.st_size;
			in_db(l, d->d_name, ret);
		}
	closedir(at);
	return largest >= 0;
}

static void flip(const char *path, double where)
{
	struct stat sb;
	uint8_t byte;
	int fd = open(path, O_RDWR);
	off_t at;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &sb), 0);
	at = (off_t)((double)sb.st_size * where);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static void db_is_removed(struct live *l)
{
	char path[4096];

	in_db(l, "", path);
	remove_tree(path);
}

static void db_is_emptied(struct live *l)
{
	char path[4096];

	db_is_removed(l);
	in_db(l, "", path);
	assert_int_equal(mkdir(path, 0700), 0);
}

static void current_is_removed(struct live *l)
{
	char path[4096];

	in_db(l, "CURRENT", path);
	assert_int_equal(unlink(path), 0);
}

static void current_is_cut(struct live *l)
{
	char path[4096];

	in_db(l, "CURRENT", path);
	assert_int_equal(truncate(path, 0), 0);
}

static void current_names_nothing(struct live *l)
{
	char path[4096];
	int fd;

	in_db(l, "CURRENT", path);
	fd = open(path, O_WRONLY | O_TRUNC);
	assert_int_equal(write(fd, "MANIFEST-999999\n", 16), 16);
	close(fd);
}

static void tables_list_is_cut(struct live *l)
{
	char path[4096];
	struct stat sb;

	assert_true(find_in_db(l, "MANIFEST-", path));
	assert_int_equal(stat(path, &sb), 0);
	assert_int_equal(truncate(path, sb.st_size / 2), 0);
}

static void tables_list_is_flipped(struct live *l)
{
	char path[4096];

	assert_true(find_in_db(l, "MANIFEST-", path));
	flip(path, 0.5);
}

static void a_table_is_removed(struct live *l)
{
	char path[4096];

	assert_true(find_in_db(l, ".sst", path));
	assert_int_equal(unlink(path), 0);
}

static void a_table_is_cut(struct live *l)
{
	char path[4096];

	assert_true(find_in_db(l, ".sst", path));
	assert_int_equal(truncate(path, 100), 0);
}

static void the_log_is_removed(struct live *l)
{
	char path[4096];

	assert_true(find_in_db(l, ".log", path));
	assert_int_equal(unlink(path), 0);
}

static void the_log_is_cut(struct live *l)
{
	char path[4096];
	struct stat sb;

	assert_true(find_in_db(l, ".log", path));
	assert_int_equal(stat(path, &sb), 0);
	assert_int_equal(truncate(path, sb.st_size / 2), 0);
}

static void the_log_is_flipped_early(struct live *l)
{
	char path[4096];

	assert_true(find_in_db(l, ".log", path));
	flip(path, 0.01);
}

static void the_log_is_flipped_late(struct live *l)
{
	char path[4096];

	assert_true(find_in_db(l, ".log", path));
	flip(path, 0.9);
}

/* --- how it is found --- */

static void assert_refused_and_unchanged(struct live *l)
{
	uint64_t before = sum_of(l->path);
	char why[4096], fsck[4096];
	struct trust trust;
	int fd;

	for (unsigned n = 0; n < 3; n++) {
		char short_why[512] = "";

		assert_int_equal(live_try_open(l, short_why), -EUCLEAN);
		assert_non_null(strstr(short_why, "database"));
		assert_non_null(strstr(short_why, "ckptctl rebuild"));
		assert_null(strchr(short_why, '\n'));
		assert_true(sum_of(l->path) == before);
	}
	fd = open(l->path, O_RDONLY | O_DIRECTORY);
	for (unsigned n = 0; n < 2; n++)
		assert_int_equal(trust_database(l->path, fd, &trust,
						n == 0 ? why : fsck,
						sizeof(why)),
				 -EUCLEAN);
	close(fd);
	assert_string_equal(why, fsck);
	assert_true(sum_of(l->path) == before);
}

static void fill_store(struct live *l)
{
	uint8_t *data = filled(MIB, 1);
	char name[16];

	for (unsigned i = 0; i < FILES; i++) {
		(void)snprintf(name, sizeof(name), "f%u", i);
		data[0] = (uint8_t)i;
		live_write(l, name, data, i % 2 ? 100 : MIB);
	}
	live_sync_all(l);
	free(data);
}

static void assert_filled(struct live *l)
{
	uint8_t *data = filled(MIB, 1);
	char name[16];

	for (unsigned i = 0; i < FILES; i++) {
		(void)snprintf(name, sizeof(name), "f%u", i);
		data[0] = (uint8_t)i;
		assert_file(l, name, data, i % 2 ? 100 : MIB);
	}
	free(data);
}

static void child_fills_and_is_killed(struct live *l, const char *argument)
{
	(void)argument;
	live_open(l);
	fill_store(l);
}

typedef void damage_fn(struct live *l);

static void damage_is_refused(damage_fn *damage, bool killed)
{
	struct live l = live_new(NULL);

	if (!killed)
		fill_store(&l);
	live_close(&l);
	if (killed)
		live_child(&l, "fill", "");
	damage(&l);
	assert_refused_and_unchanged(&l);
	live_remove(&l);
}

static void after_a_clean_end_each_damage_is_refused(void **state)
{
	static damage_fn *const damages[] = {
		db_is_removed,  db_is_emptied,          current_is_removed,
		current_is_cut, current_names_nothing,  tables_list_is_cut,
		a_table_is_cut, tables_list_is_flipped, a_table_is_removed,
	};

	(void)state;
	for (size_t n = 0; n < sizeof(damages) / sizeof(*damages); n++)
		damage_is_refused(damages[n], false);
}

static void after_a_kill_each_damage_is_refused(void **state)
{
	static damage_fn *const damages[] = {
		db_is_removed,           db_is_emptied,
		current_is_removed,      the_log_is_removed,
		the_log_is_cut,          the_log_is_flipped_early,
		the_log_is_flipped_late,
	};

	(void)state;
	for (size_t n = 0; n < sizeof(damages) / sizeof(*damages); n++)
		damage_is_refused(damages[n], true);
}

/* Put back from a copy, but of the wrong store: `parts` of it. */
static void put_of(struct live *from, struct live *to, const char *const *parts)
{
	for (; *parts; parts++) {
		char a[4352], b[4352];

		(void)snprintf(a, sizeof(a), "%s/%s", from->path, *parts);
		(void)snprintf(b, sizeof(b), "%s/%s", to->path, *parts);
		remove_tree(b);
		assert_int_equal(rename(a, b), 0);
	}
}

static void a_database_of_another_store_is_refused(void **state)
{
	static const char *const parts[][4] = {
		{ LAYOUT_DB_DIR, LAYOUT_MARK_FILE },
		{ LAYOUT_DB_DIR, LAYOUT_MARK_FILE, LAYOUT_SECRET_FILE },
	};

	(void)state;
	for (size_t n = 0; n < 2; n++) {
		struct live l = live_new(NULL), other = live_new(NULL);
		uint8_t *data = filled(MIB, 1), *wrong = filled(MIB, 2);

		live_write(&l, "file", data, MIB);
		live_sync_all(&l);
		live_close(&l);
		live_write(&other, "file", wrong, MIB);
		live_sync_all(&other);
		live_close(&other);
		put_of(&other, &l, parts[n]);
		assert_refused_and_unchanged(&l);
		assert_int_equal(live_rebuild(&l).base, REBUILD_NOTHING);
		live_open(&l);
		assert_file(&l, "file", data, MIB);
		live_free(&l);
		live_remove(&other);
		free(wrong);
		free(data);
	}
}

/* After a clean end nothing is in it that is not in a table. */
static void after_a_clean_end_the_log_is_not_needed(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	fill_store(&l);
	live_close(&l);
	the_log_is_removed(&l);
	live_open(&l);
	assert_filled(&l);
	live_free(&l);
}

static void after_a_kill_and_no_damage_it_opens(void **state)
{
	struct live l = live_new(NULL);

	(void)state;
	live_close(&l);
	for (unsigned n = 0; n < 3; n++) {
		live_child(&l, "fill", "");
		live_open(&l);
		assert_filled(&l);
		live_close(&l);
	}
	live_open(&l);
	live_free(&l);
}

static void child_writes_unsynced(struct live *l, const char *argument)
{
	struct key k = key_xattr(ROOT_INO, "user.later");
	struct kv_batch *b = kv_batch_new();

	(void)argument;
	live_open(l);
	fill_store(l);
	kv_put(b, k.data, k.len, "x", 1);
	assert_int_equal(kv_write(l->st->kv, b), 0);
}

/* Promised to nobody: as after a power cut. */
static void what_was_not_synced_may_be_lost(void **state)
{
	struct live l = live_new(NULL);
	char path[4096];
	struct stat sb;

	(void)state;
	live_close(&l);
	live_child(&l, "unsynced", "");
	assert_true(find_in_db(&l, ".log", path));
	assert_int_equal(stat(path, &sb), 0);
	assert_int_equal(truncate(path, sb.st_size - 1), 0);
	live_open(&l);
	assert_filled(&l);
	live_free(&l);
}

/* The database cannot be opened: no file may become longer than a mark. */
static void child_starts_in_vain(struct live *l, const char *argument)
{
	const struct rlimit small = { .rlim_cur = 64, .rlim_max = 64 };
	char why[512];

	(void)argument;
	assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	assert_true(live_try_open(l, why) < 0);
}

/*
 * What a killed daemon wrote and did not sync can be read by the next one. A
 * power cut before that one has synced anything may still take it.
 */
static void a_start_notes_nothing_that_was_not_synced(void **state)
{
	struct live l = live_new(NULL);
	struct mark before, after;
	int fd;

	(void)state;
	live_close(&l);
	live_child(&l, "unsynced", "");
	fd = open(l.path, O_RDONLY | O_DIRECTORY);
	assert_int_equal(mark_read(fd, &before), 0);
	live_child(&l, "vain", "");
	assert_int_equal(mark_read(fd, &after), 0);
	assert_int_equal(after.sequence, before.sequence);
	assert_false(after.clean);
	close(fd);
	live_open(&l);
	assert_filled(&l);
	live_free(&l);
}

/* A store that lost its mark is opened all the same, and gets a new one. */
static void without_a_mark_a_whole_database_opens(void **state)
{
	struct live l = live_new(NULL);
	struct mark mark;
	char path[4096];
	int fd;

	(void)state;
	fill_store(&l);
	live_close(&l);
	(void)snprintf(path, sizeof(path), "%s/" LAYOUT_MARK_FILE, l.path);
	fd = open(l.path, O_RDONLY | O_DIRECTORY);
	for (unsigned n = 0; n < 2; n++) {
		if (n == 0)
			assert_int_equal(unlink(path), 0);
		else
			flip(path, 0.4);
		assert_int_equal(mark_read(fd, &mark), n == 0 ? -ENOENT : -EIO);
		live_open(&l);
		assert_filled(&l);
		live_close(&l);
		assert_int_equal(mark_read(fd, &mark), 0);
		assert_true(mark.clean);
	}
	close(fd);
	live_open(&l);
	live_free(&l);
}

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "fill", child_fills_and_is_killed },
		{ "unsynced", child_writes_unsynced },
		{ "vain", child_starts_in_vain },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_a_clean_end_each_damage_is_refused),
		cmocka_unit_test(after_a_kill_each_damage_is_refused),
		cmocka_unit_test(a_database_of_another_store_is_refused),
		cmocka_unit_test(after_a_clean_end_the_log_is_not_needed),
		cmocka_unit_test(after_a_kill_and_no_damage_it_opens),
		cmocka_unit_test(what_was_not_synced_may_be_lost),
		cmocka_unit_test(a_start_notes_nothing_that_was_not_synced),
		cmocka_unit_test(without_a_mark_a_whole_database_opens),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
