/*
 * Names on a disk that is full to its last byte: what is refused has not
 * happened, neither in the database nor for those who have the inodes, and
 * nothing is deleted for it later.
 */
#include <linux/fs.h>

#include "store/drain/drain_private.h"
#include "tests/unit/await.h"
#include "tests/unit/live_store.h"
#include "tests/unit/small_disk.h"
#include "tests/unit/test_clock.h"

#define DATA_BYTES 100000u
#define TRIES_MAX 1000000

static struct live live_on(const char *disk)
{
	struct live l = live_closed(NULL);

	remove_tree(l.path);
	free(l.path);
	assert_true(asprintf(&l.path, "%s/store", disk) > 0);
	assert_int_equal(mkdir(l.path, 0700), 0);
	live_open(&l);
	return l;
}

static int change_mode(struct live *l, const char *path, uint32_t mode)
{
	const struct attr to = { .mode = mode };
	struct inode *in = NULL;
	int rc;

	assert_int_equal(live_lookup(l, path, &in), 0);
	rc = names_setattr(l->st->names, in, SET_MODE, &to);
	inode_put(l->st->inodes, in, 1);
	return rc;
}

/* A file that changes its name all the time; the records are long. */
struct busy {
	char name[2][STORE_NAME_MAX + 1];
	unsigned at;
};

static struct busy make_busy(struct live *l)
{
	struct busy b = { .at = 0 };

	memset(b.name[0], 'p', STORE_NAME_MAX);
	memset(b.name[1], 'q', STORE_NAME_MAX);
	live_write(l, b.name[0], "x", 1);
	return b;
}

static int rename_busy(struct live *l, struct busy *b)
{
	int rc = live_rename(l, b->name[b->at], b->name[!b->at], 0);

	if (rc == 0)
		b->at = !b->at;
	return rc;
}

/* Until what RocksDB took for its log beforehand is full as well. */
static void write_until_refused(struct live *l, const char *disk,
				struct busy *b)
{
	int rc = 0;

	disk_fill(disk, 0);
	for (unsigned i = 0; i < TRIES_MAX && rc == 0; i++)
		rc = rename_busy(l, b);
	assert_int_equal(rc, -ENOSPC);
	disk_fill(disk, 0); /* what came free by that */
}

/* The database is opened again some time after there is room. */
static void write_until_taken(struct live *l, struct busy *b)
{
	int rc;

	while ((rc = rename_busy(l, b)) == -ENOSPC)
		time_passes(SECOND_NS);
	assert_int_equal(rc, 0);
}

static struct stat stat_of(struct live *l, const char *path)
{
	struct inode *in = NULL;
	struct stat sb;

	assert_int_equal(live_lookup(l, path, &in), 0);
	assert_int_equal(inode_stat(l->st->inodes, in, &sb), 0);
	inode_put(l->st->inodes, in, 1);
	return sb;
}

static const char *const NAMES[] = { "new",    "latest", "first",
				     "second", "d",      "d/inside",
				     "d/sub",  "e",      "d/file" };
#define NAME_COUNT (sizeof(NAMES) / sizeof(NAMES[0]))

static void stat_all(struct live *l, struct stat to[NAME_COUNT])
{
	for (unsigned i = 0; i < NAME_COUNT; i++)
		to[i] = stat_of(l, NAMES[i]);
}

/* As the kernel has them: what is in memory counts, not what is on disk. */
static void hold_all(struct live *l, struct inode *held[NAME_COUNT])
{
	for (unsigned i = 0; i < NAME_COUNT; i++) {
		assert_int_equal(live_lookup(l, NAMES[i], &held[i]), 0);
		inode_remember(l->st->inodes, held[i]);
	}
}

static void forget_all(struct live *l, struct inode *held[NAME_COUNT])
{
	for (unsigned i = 0; i < NAME_COUNT; i++) {
		inode_forget(l->st->inodes, held[i], 1);
		file_forgotten(&l->st->files, held[i]);
		inode_put(l->st->inodes, held[i], 1);
	}
}

static void make_names(struct live *l, const uint8_t *data)
{
	live_mkdir(l, "d");
	live_mkdir(l, "d/sub");
	live_mkdir(l, "d/inside");
	live_mkdir(l, "e");
	live_write(l, "new", data, DATA_BYTES);
	live_write(l, "latest", data, 1000);
	live_write(l, "first", data, DATA_BYTES / 2);
	live_write(l, "d/file", data, 10);
	assert_int_equal(live_link(l, "first", "second"), 0);
	live_sync_all(l);
}

static void assert_contents(struct live *l, const uint8_t *data)
{
	assert_file(l, "new", data, DATA_BYTES);
	assert_file(l, "latest", data, 1000);
	assert_file(l, "first", data, DATA_BYTES / 2);
	assert_file(l, "second", data, DATA_BYTES / 2);
	assert_file(l, "d/file", data, 10);
}

static int rmdir_of(struct live *l, uint64_t dir, const char *name)
{
	struct inode *in;

	return names_rmdir(l->st->names, dir, name, &in);
}

static void refused(struct live *l)
{
	uint64_t d = live_ino(l, "d");
	struct inode *in = NULL;

	assert_int_equal(live_rename(l, "new", "latest", 0), -ENOSPC);
	assert_int_equal(live_rename(l, "d/sub", "e", 0), -ENOSPC);
	assert_int_equal(live_rename(l, "d/inside", "moved", 0), -ENOSPC);
	assert_int_equal(live_rename(l, "latest", "d/file", RENAME_EXCHANGE),
			 -ENOSPC);
	assert_int_equal(live_rename(l, "second", "third", 0), -ENOSPC);
	assert_int_equal(live_rename(l, "first", "third", 0), -ENOSPC);
	assert_int_equal(live_unlink(l, "latest"), -ENOSPC);
	assert_int_equal(live_unlink(l, "first"), -ENOSPC);
	assert_int_equal(rmdir_of(l, d, "sub"), -ENOSPC);
	assert_int_equal(live_link(l, "new", "more"), -ENOSPC);
	assert_int_equal(live_make(l, "made", S_IFDIR | 0755, &in), -ENOSPC);
	assert_int_equal(change_mode(l, "new", 0777), -ENOSPC);
	assert_int_equal(live_lookup(l, "new", &in), 0);
	assert_int_equal(names_setxattr(l->st->names, in, "user.a", "b", 1, 0),
			 -ENOSPC);
	inode_put(l->st->inodes, in, 1);
}

/* A store on a disk of its own, and what fills it. */
struct full {
	char *disk;
	struct live l;
	struct busy b;
	uint8_t *data; /* DATA_BYTES */
};

static struct full full_new(void)
{
	struct full f = { .disk = disk_mount() };

	if (!f.disk)
		skip();
	f.l = live_on(f.disk);
	time_stands(); /* nothing is tried again by itself */
	f.b = make_busy(&f.l);
	f.data = filled(DATA_BYTES, 1);
	return f;
}

static void full_free(struct full *f)
{
	time_goes_on();
	live_free(&f->l);
	disk_free(f->disk);
	free(f->data);
}

static void what_a_full_disk_refuses_has_not_happened(void **state)
{
	struct stat before[NAME_COUNT], now[NAME_COUNT];
	struct inode *held[NAME_COUNT];
	struct full f = full_new();
	struct live *l = &f.l;

	(void)state;
	make_names(l, f.data);
	stat_all(l, before);
	hold_all(l, held);
	write_until_refused(l, f.disk, &f.b);
	refused(l);
	stat_all(l, now);
	assert_memory_equal(now, before, sizeof(now));
	assert_contents(l, f.data);
	disk_relieve(f.disk);
	write_until_taken(l, &f.b);
	forget_all(l, held);
	live_settle(l);
	stat_all(l, now);
	assert_memory_equal(now, before, sizeof(now));
	live_reopen(l);
	stat_all(l, now);
	assert_memory_equal(now, before, sizeof(now));
	assert_contents(l, f.data);
	assert_absent(l, "third");
	assert_absent(l, "moved");
	assert_int_equal(live_rename(l, "new", "latest", 0), 0);
	assert_file(l, "latest", f.data, DATA_BYTES);
	full_free(&f);
}

static void a_second_passes(void)
{
	AWAIT_ANY_AFTER(time_passes(SECOND_NS));
}

/* Deletions and space are tried again by themselves, within a second or so. */
static void wait_given_back(struct live *l)
{
	while (live_records(l, 'O') > 0 || live_images(l).count > 0)
		a_second_passes();
	assert_int_equal(live_counter(l, META_PHYSICAL), 1); /* the busy one */
}

/* The name is gone, and the disk full before the committer or the reclaimer
 * comes to the rest.
 */
static void what_is_deleted_goes_when_there_is_room_again(void **state)
{
	struct full f = full_new();

	(void)state;
	live_write(&f.l, "f", f.data, DATA_BYTES);
	live_sync_all(&f.l);
	{
		PAUSE_COMMITS(&f.l);

		assert_int_equal(live_unlink(&f.l, "f"), 0);
		write_until_refused(&f.l, f.disk, &f.b);
	}
	commit_wait(f.l.st->drain);
	assert_int_equal(live_records(&f.l, 'O'), 1);
	assert_int_equal(live_counter(&f.l, META_PHYSICAL), DATA_BYTES + 1);
	disk_relieve(f.disk);
	wait_given_back(&f.l);
	full_free(&f);
}

static void what_could_not_be_given_back_is_so_when_there_is_room(void **state)
{
	struct full f = full_new();
	struct reclaim_ticket reader;
	uint64_t freed;

	(void)state;
	live_write(&f.l, "f", f.data, DATA_BYTES);
	live_sync_all(&f.l);
	reclaim_enter(f.l.st->reclaim, &reader);
	assert_int_equal(live_unlink(&f.l, "f"), 0);
	commit_wait(f.l.st->drain);
	write_until_refused(&f.l, f.disk, &f.b);
	reclaim_leave(f.l.st->reclaim, &reader);
	reclaim_drain(f.l.st->reclaim, &freed);
	assert_int_equal(live_images(&f.l).count, 1); /* its record stays */
	disk_relieve(f.disk);
	wait_given_back(&f.l);
	full_free(&f);
}

/* Who asks for the file meanwhile has the same job, and no other. */
static void a_job_that_fails_keeps_its_place(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	char *disk = disk_mount();
	struct drain_job *j, *q;
	struct drain *d;
	struct inode *in;
	uint64_t place;
	struct live l;
	int rc;

	(void)state;
	if (!disk)
		skip();
	l = live_on(disk);
	time_stands(); /* nothing is tried again by itself */
	d = l.st->drain;
	{
		PAUSE_COMMITS(&l);

		live_write(&l, "f", data, DATA_BYTES);
		assert_int_equal(live_lookup(&l, "f", &in), 0);
		{
			HOLD(&d->lock);
			while (!(j = job_of(in->file->versions.in_flight)) ||
			       j->v.state == VERSION_RUNNING)
				cond_wait(&d->moved, &d->lock);
			job_ref(j);
			place = j->v.place;
		}
		q = job_for(l.st->drain, in, CLOSE_NOT, &rc);
		assert_ptr_equal(q, j);
		disk_fill(disk, 1 << 20);
	}
	{
		HOLD(&d->lock);
		while (j->failures == 0)
			cond_wait(&d->moved, &d->lock);
		assert_int_equal(j->result, -ENOSPC);
		assert_ptr_equal(order_first(&d->order), &j->v);
		assert_int_equal(j->v.place, place);
	}
	drain_job_put(l.st->drain, j);
	drain_job_put(l.st->drain, q);
	disk_relieve(disk);
	live_sync_all(&l);
	assert_true(committed(&l, in->ino));
	inode_put(l.st->inodes, in, 1);
	time_goes_on();
	live_free(&l);
	disk_free(disk);
	free(data);
}

/* What is durable already does not fail for want of room. */
static void a_close_that_changes_nothing_asks_for_no_room(void **state)
{
	static const size_t lens[] = { 100, DATA_BYTES };
	uint8_t *data = filled(DATA_BYTES + 1, 1);
	char *disk = disk_mount();
	struct live l;

	(void)state;
	if (!disk)
		skip();
	l = live_on(disk);
	time_stands(); /* nothing is tried again by itself */
	for (unsigned i = 0; i < 2; i++) {
		uint64_t number;

		live_write(&l, "f", data, lens[i]);
		live_sync_all(&l);
		number = live_generation(&l, "f");
		disk_fill(disk, 1 << 20);
		live_write(&l, "f", data, lens[i]);
		assert_int_equal(live_sync(&l, "f"), 0);
		assert_true(live_generation(&l, "f") > number);
		live_write(&l, "f", data + 1, lens[i]);
		assert_int_equal(live_sync(&l, "f"), -ENOSPC);
		disk_relieve(disk);
		live_sync_all(&l);
	}
	time_goes_on();
	live_free(&l);
	disk_free(disk);
	free(data);
}

static bool has_reserve(struct live *l)
{
	return faccessat(l->st->dirfd, LAYOUT_RESERVE_FILE, F_OK, 0) == 0;
}

/* A look at the disk comes once in a second. */
static void wait_reserve(struct live *l, bool wanted)
{
	while (has_reserve(l) != wanted)
		a_second_passes();
}

/* Nobody makes room: the reserve is there for that. */
static void a_full_disk_takes_deletions_again_by_itself(void **state)
{
	uint8_t *data = filled(40 * MIB, 1);
	char *disk = disk_mount_size("size=400m");
	struct busy busy;
	struct live l;
	int rc = 0;

	(void)state;
	if (!disk)
		skip();
	l = live_on(disk);
	time_stands();
	busy = make_busy(&l);
	live_write(&l, "old", data, 40 * MIB);
	live_sync_all(&l);
	wait_reserve(&l, true);
	disk_fill(disk, 0);
	for (unsigned i = 0; i < TRIES_MAX && rc == 0; i++)
		rc = rename_busy(&l, &busy);
	assert_int_equal(rc, -ENOSPC);
	wait_reserve(&l, false);
	while ((rc = live_unlink(&l, "old")) == -ENOSPC)
		a_second_passes();
	assert_int_equal(rc, 0);
	live_settle(&l);
	assert_true(disk_room(disk) >= 40 * MIB);
	disk_relieve(disk);
	wait_reserve(&l, true);
	time_goes_on();
	live_free(&l);
	disk_free(disk);
	free(data);
}

static void an_allocation_leaves_the_room_for_deletions(void **state)
{
	uint8_t *data = filled(8 * MIB, 1);
	char *disk = disk_mount();
	struct handle h;
	struct live l;
	uint64_t room;

	(void)state;
	if (!disk)
		skip();
	l = live_on(disk);
	h = handle_open(&l, "f", O_WRONLY | O_CREAT);
	room = disk_room(disk);
	for (int mode = 0; mode <= FALLOC_FL_KEEP_SIZE; mode++)
		assert_int_equal(file_fallocate(&l.st->files, h.in, mode, 0,
						room - 16 * MIB),
				 -ENOSPC);
	assert_int_equal(disk_room(disk), room);
	assert_int_equal(file_fallocate(&l.st->files, h.in, 0, 0, 4 * MIB), 0);
	handle_write(&h, data, 8 * MIB, 0);
	disk_fill(disk, 16 * MIB);
	/* What is there already takes no room; a hole gives some. */
	assert_int_equal(file_fallocate(&l.st->files, h.in, 0, 0, 8 * MIB), 0);
	assert_int_equal(file_fallocate(&l.st->files, h.in, 0, 0, 8 * MIB + 1),
			 -ENOSPC);
	assert_int_equal(
		file_fallocate(&l.st->files, h.in,
			       FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB,
			       MIB),
		0);
	disk_relieve(disk);
	handle_close(&h);
	live_sync_all(&l);
	memset(data + MIB, 0, MIB);
	assert_file(&l, "f", data, 8 * MIB);
	live_free(&l);
	disk_free(disk);
	free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_full_disk_refuses_has_not_happened),
		cmocka_unit_test(what_is_deleted_goes_when_there_is_room_again),
		cmocka_unit_test(
			what_could_not_be_given_back_is_so_when_there_is_room),
		cmocka_unit_test(a_job_that_fails_keeps_its_place),
		cmocka_unit_test(a_close_that_changes_nothing_asks_for_no_room),
		cmocka_unit_test(a_full_disk_takes_deletions_again_by_itself),
		cmocka_unit_test(an_allocation_leaves_the_room_for_deletions),
	};

	return cmocka_run_group_tests_name("names_full", tests, NULL, NULL);
}
