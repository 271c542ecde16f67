/*
 * A chunk whose bytes are damaged, or in a sector that cannot be read, gets
 * them back from another copy: by a scrub, by verify=open, and after a read
 * that failed. What shares a block with it is not harmed, and where no copy is
 * whole nothing is written.
 *
 * The disk is the machine's own, but one file of it has a bad block: reads of
 * it fail, and so do writes of a part of it, as those read it first; a write of
 * all of it, or that it is zeroed or punched, makes it good.
 */
#include <fcntl.h>

#include "store/file/file_private.h"
#include "store/space/mend.h"
#include "store/space/stage_table.h"
#include "tests/unit/live_store.h"

#define BLOCK UINT64_C(4096)
#define FILE_BYTES (3 * MIB + 1234)

/* --- the bad disk --- */

static struct {
	ino_t ino; /* 0: none is bad */
	uint64_t block;
	int error; /* of it; 0: EIO */
	unsigned given_up; /* blocks that were zeroed or punched */
	unsigned reads_fail; /* so many more do, whatever they read */
	ino_t watched;
	unsigned writes; /* of the watched file */
	bool lies; /* it takes those, and has the old bytes all the same */
	struct lock *deciding; /* who writes the watched file must have it */
	/* Reads of it, of the disk or of memory, are wrong until a write. */
	ino_t wrong_ino;
	bool wrong_direct;
} disk;

ssize_t __real_pread64(int fd, void *buf, size_t len, off64_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off64_t off);
ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off64_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off64_t off);
int __real_fallocate64(int fd, int mode, off64_t off, off64_t len);
int __wrap_fallocate64(int fd, int mode, off64_t off, off64_t len);

static ino_t ino_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? 0 : st.st_ino;
}

static bool touches_bad(int fd, size_t len, off64_t off)
{
	uint64_t from = disk.block * BLOCK;

	return disk.ino != 0 && ino_of(fd) == disk.ino &&
	       (uint64_t)off < from + BLOCK && (uint64_t)off + len > from;
}

static bool covers_bad(size_t len, off64_t off)
{
	uint64_t from = disk.block * BLOCK;

	return (uint64_t)off <= from && (uint64_t)off + len >= from + BLOCK;
}

ssize_t __wrap_pread64(int fd, void *buf, size_t len, off64_t off)
{
	ssize_t n;

	if (disk.reads_fail > 0 && ino_of(fd) == disk.watched) {
		disk.reads_fail--;
		errno = EIO;
		return -1;
	}
	if (touches_bad(fd, len, off)) {
		errno = disk.error ? disk.error : EIO;
		return -1;
	}
	n = __real_pread64(fd, buf, len, off);
	if (n > 0 && disk.wrong_ino != 0 && ino_of(fd) == disk.wrong_ino &&
	    !(fcntl(fd, F_GETFL) & O_DIRECT) == !disk.wrong_direct)
		*(uint8_t *)buf ^= 1;
	return n;
}

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off64_t off)
{
	if (disk.watched != 0 && ino_of(fd) == disk.watched) {
		disk.writes++;
		if (disk.deciding)
			assert_false(lock_try(disk.deciding));
		if (disk.lies)
			return (ssize_t)len;
		disk.wrong_ino = 0;
	}
	if (touches_bad(fd, len, off)) {
		if (!covers_bad(len, off)) {
			errno = disk.error ? disk.error : EIO;
			return -1;
		}
		disk.ino = 0;
	}
	return __real_pwrite64(fd, buf, len, off);
}

int __wrap_fallocate64(int fd, int mode, off64_t off, off64_t len)
{
	bool gives_up = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);

	if (disk.watched != 0 && ino_of(fd) == disk.watched && gives_up) {
		disk.given_up++;
		if (disk.deciding)
			assert_false(lock_try(disk.deciding));
	}
	if (gives_up && touches_bad(fd, (size_t)len, off) &&
	    covers_bad((size_t)len, off))
		disk.ino = 0;
	return __real_fallocate64(fd, mode, off, len);
}

/* --- a store with two copies of a file --- */

struct two {
	struct live l;
	uint8_t *data;
	char image[2][4352]; /* paths of both copies, of "a" and of "b" */
	uint64_t edge; /* where a chunk ends, in the middle of a block */
	uint64_t first; /* where that chunk begins */
	struct check_result result;
	unsigned mended, damaged;
	struct stage_table staged; /* what a killed daemon left */
	bool only_damage; /* what else a check says does not matter */
};

/* The one image of a native file. */
static uint64_t image_of(struct live *l, const char *name)
{
	struct content c = live_content(l, name);
	uint64_t image = c.extents[0].image;

	content_release(&c);
	return image;
}

static void image_path(struct live *l, const char *name, char ret[4352])
{
	char image[LAYOUT_IMAGE_NAME_BYTES];

	layout_image_name(image_of(l, name), image);
	(void)snprintf(ret, 4352, "%s/" LAYOUT_IMAGE_DIR "/%s", l->path, image);
}

/* The first end of a chunk of "a" that is in the middle of a block. */
static uint64_t find_edge(struct live *l, uint64_t *ret_first)
{
	uint64_t image = image_of(l, "a"), off = 0;
	struct chunk_rec k;

	do {
		struct key key = key_chunk(image, off);

		assert_int_equal(chunk_load(l->st->kv, key, &k), 0);
		*ret_first = off;
		off += k.len;
	} while (off % BLOCK == 0);
	assert_true(off < FILE_BYTES);
	return off;
}

#define HOLE (MIB + 100) /* of a file that has one: where it begins */
#define HOLE_END (HOLE + 100 * KIB)

/* Closed. */
/* hole_end: of zeros from HOLE on; 0: none. */
static struct two two_of(unsigned copies, uint64_t hole_end)
{
	struct two t = { .l = live_closed(NULL) };

	t.data = filled(FILE_BYTES, 1);
	if (hole_end > 0)
		memset(t.data + HOLE, 0, hole_end - HOLE);
	t.l.options.dedup_copies = copies;
	live_open_kind(&t.l, 1);
	live_write(&t.l, "a", t.data, FILE_BYTES);
	live_sync_all(&t.l);
	live_write(&t.l, "b", t.data, FILE_BYTES);
	live_sync_all(&t.l);
	image_path(&t.l, "a", t.image[0]);
	image_path(&t.l, "b", t.image[1]);
	t.edge = find_edge(&t.l, &t.first);
	live_close(&t.l);
	return t;
}

static struct two two_new(unsigned copies)
{
	return two_of(copies, 0);
}

static void two_free(struct two *t)
{
	memset(&disk, 0, sizeof(disk));
	live_remove(&t->l);
	free(t->data);
}

static void flip(const char *image, uint64_t at)
{
	int fd = open(image, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

static ino_t ino_of_path(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_ino;
}

/* The block with this byte cannot be read any more, and holds nothing. */
static void make_bad(const char *image, uint64_t at)
{
	int fd = open(image, O_RDWR | O_CLOEXEC);
	uint8_t rubbish[BLOCK];
	uint64_t from = at & ~(BLOCK - 1);
	uint64_t len = FILE_BYTES - from < BLOCK ? FILE_BYTES - from : BLOCK;

	assert_true(fd >= 0);
	memset(rubbish, 0xee, sizeof(rubbish));
	assert_int_equal(pwrite(fd, rubbish, len, (off_t)from), len);
	close(fd);
	disk.ino = ino_of_path(image);
	disk.block = from / BLOCK;
}

static bool is_whole(const struct two *t, unsigned copy)
{
	uint8_t *bytes = malloc(FILE_BYTES + 1);
	int fd = open(t->image[copy], O_RDONLY | O_CLOEXEC);
	bool whole;

	assert_non_null(bytes);
	assert_true(fd >= 0);
	whole = pread(fd, bytes, FILE_BYTES + 1, 0) == FILE_BYTES &&
		memcmp(bytes, t->data, FILE_BYTES) == 0;
	close(fd);
	free(bytes);
	return whole;
}

static void on_problem(void *self, const struct check_problem *p)
{
	struct two *t = self;

	if (strcmp(p->code, "mended") == 0) {
		assert_true(p->note);
		assert_true(p->file_count > 0);
		t->mended++;
	} else if (strcmp(p->code, "damaged") == 0) {
		assert_false(p->note);
		t->damaged++;
	} else if (!t->only_damage) {
		fail_msg("%s: %s", p->code, p->text);
	}
}

/* A scrub of the closed store; as check_store(). */
static int scrub(struct two *t, bool mend)
{
	struct check_options options = { .scrub = true,
					 .mend = mend,
					 .staged = &t->staged,
					 .threads = 2,
					 .problem = on_problem,
					 .self = t };
	char db[4352], images[4352];
	struct kv *kv;
	int fd, rc;

	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, t->l.path);
	(void)snprintf(images, sizeof(images), "%s/" LAYOUT_IMAGE_DIR,
		       t->l.path);
	assert_int_equal(kv_open_readonly(db, &kv), 0);
	fd = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	t->mended = t->damaged = 0;
	rc = check_store(kv, fd, &options, &t->result);
	assert_int_equal(t->result.mended_chunks, t->mended);
	assert_int_equal(t->result.damaged_chunks, t->damaged);
	close(fd);
	kv_close(kv);
	return rc;
}

/* --- a scrub --- */

static void a_scrub_mends_a_flipped_byte_from_the_other_copy(void **state)
{
	static const uint64_t places[] = { 0, MIB, FILE_BYTES - 1 };

	(void)state;
	for (unsigned copy = 0; copy < 2; copy++) {
		struct two t = two_new(2);

		for (size_t i = 0; i < 3; i++)
			flip(t.image[copy], places[i]);
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 3);
		assert_int_equal(t.damaged, 0);
		assert_true(is_whole(&t, 0) && is_whole(&t, 1));
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 0);
		two_free(&t);
	}
}

static void a_scrub_that_is_not_to_mend_changes_nothing(void **state)
{
	struct two t = two_new(2);

	(void)state;
	flip(t.image[0], MIB);
	disk.watched = ino_of_path(t.image[0]);
	assert_int_equal(scrub(&t, false), 1);
	assert_int_equal(t.damaged, 1);
	assert_int_equal(disk.writes, 0);
	assert_false(is_whole(&t, 0));
	two_free(&t);
}

static void without_another_copy_nothing_is_written(void **state)
{
	struct two t = two_new(1);

	(void)state;
	flip(t.image[0], MIB);
	disk.watched = ino_of_path(t.image[0]);
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.damaged, 1);
	assert_int_equal(disk.writes, 0);
	two_free(&t);
}

/* Neither is taken for the other, but each has what the other one lacks. */
static void copies_that_are_damaged_apart_mend_each_other(void **state)
{
	struct two t = two_new(2);

	(void)state;
	flip(t.image[0], 0);
	flip(t.image[1], 0);
	flip(t.image[0], t.edge + 10);
	flip(t.image[1], FILE_BYTES - 1);
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.mended, 2);
	assert_int_equal(t.damaged, 2);
	flip(t.image[1], 0); /* it is right again */
	assert_int_equal(scrub(&t, true), 0);
	assert_int_equal(t.mended, 1);
	assert_true(is_whole(&t, 0) && is_whole(&t, 1));
	two_free(&t);
}

static void a_scrub_mends_a_bad_sector(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 8; i++) {
		struct two t = two_new(2);
		const uint64_t at[] = { 0, t.edge - BLOCK, t.edge,
					FILE_BYTES - 1 };

		make_bad(t.image[0], at[i % 4]);
		disk.error = i < 4 ? EIO : ENODATA;
		disk.watched = ino_of_path(t.image[0]);
		assert_int_equal(scrub(&t, true), 0);
		/* That at the edge holds bytes of two chunks. */
		assert_int_equal(t.mended, i % 4 == 2 ? 2 : 1);
		assert_int_equal(disk.ino, 0);
		/* Only that at the end cannot be written as a whole. */
		assert_int_equal(disk.given_up > 0, i % 4 == 3);
		assert_true(is_whole(&t, 0) && is_whole(&t, 1));
		two_free(&t);
	}
}

/* The block that both are in can only be written as a whole. */
static void a_bad_sector_with_bytes_that_nobody_has_is_left(void **state)
{
	struct two t = two_new(2);

	(void)state;
	make_bad(t.image[0], t.edge);
	flip(t.image[1], t.edge + BLOCK);
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.mended, 0);
	assert_int_equal(t.damaged, 3);
	assert_true(disk.ino != 0);
	flip(t.image[1], t.edge + BLOCK); /* it is right again */
	assert_int_equal(scrub(&t, true), 0);
	assert_int_equal(t.mended, 2);
	assert_true(is_whole(&t, 0));
	two_free(&t);
}

/* It is read back before anybody says that it is mended. */
static void a_disk_that_does_not_take_it_is_told_of(void **state)
{
	struct two t = two_new(2);

	(void)state;
	flip(t.image[0], MIB);
	disk.watched = ino_of_path(t.image[0]);
	disk.lies = true;
	assert_int_equal(scrub(&t, true), 1);
	assert_true(disk.writes > 0);
	assert_int_equal(t.mended, 0);
	assert_int_equal(t.damaged, 1);
	two_free(&t);
}

/* What is not durable yet may lie beside it, and goes on after a mount. */
static void a_scrub_leaves_a_block_that_a_staged_file_may_have(void **state)
{
	struct two t = two_new(2);
	struct stage_slot slot = { .kind = STAGE_DISK };

	(void)state;
	live_open(&t.l);
	slot.number = image_of(&t.l, "a");
	live_close(&t.l);
	t.staged = (struct stage_table){ .slots = &slot, .count = 1 };
	make_bad(t.image[0], t.edge);
	t.only_damage = true;
	assert_int_equal(scrub(&t, true), 1);
	assert_int_equal(t.mended, 0);
	assert_int_equal(t.damaged, 2);
	assert_true(disk.ino != 0);
	t.staged.count = 0;
	assert_int_equal(scrub(&t, true), 0);
	assert_int_equal(t.mended, 2);
	two_free(&t);
}

/* --- what no chunk covers --- */

static bool yes(void *arg, uint64_t image)
{
	(void)arg;
	(void)image;
	return true;
}

static bool no(void *arg, uint64_t image)
{
	(void)arg;
	(void)image;
	return false;
}

static struct mend mend_of(struct live *l)
{
	return (struct mend){ .kv = l->st->kv,
			      .images_dirfd = l->st->files.images->dirfd,
			      .secret = l->st->files.secret,
			      .is_written = no };
}

/* In a block with a chunk's end, in one of its own, and at its other end. */
static const uint64_t in_hole[] = { HOLE, HOLE + 40000, HOLE_END - 1 };

static void a_scrub_mends_zeros_that_are_none(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		struct two t = two_of(2, HOLE_END);

		if (i < 3)
			flip(t.image[0], in_hole[i]);
		else
			make_bad(t.image[0], in_hole[i - 3]);
		assert_int_equal(scrub(&t, false), 1);
		assert_false(is_whole(&t, 0));
		assert_int_equal(scrub(&t, true), 0);
		assert_true(t.mended > 0);
		assert_int_equal(disk.ino, 0);
		assert_true(is_whole(&t, 0) && is_whole(&t, 1));
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 0);
		two_free(&t);
	}
}

static void zeros_to_the_end_of_a_file_are_looked_at(void **state)
{
	(void)state;
	for (unsigned bad = 0; bad < 2; bad++) {
		struct two t = two_of(1, FILE_BYTES);

		if (bad)
			make_bad(t.image[0], FILE_BYTES - 1);
		else
			flip(t.image[0], FILE_BYTES - 1);
		assert_int_equal(scrub(&t, true), 0);
		assert_int_equal(t.mended, 1);
		assert_int_equal(disk.ino, 0);
		assert_true(is_whole(&t, 0));
		two_free(&t);
	}
}

/* A chunk that is mended does not hide what is wrong beside it. */
static void a_sector_with_a_chunk_and_zeros_is_mended_as_a_whole(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct two t = two_of(2, HOLE_END);

		make_bad(t.image[0], HOLE); /* rubbish, ... */
		disk.ino = 0; /* ... which can be read */
		t.l.options.verify = VERIFY_OPEN;
		if (i == 0) {
			assert_int_equal(scrub(&t, true), 0);
		} else {
			live_open(&t.l);
			assert_file(&t.l, "a", t.data, FILE_BYTES);
			live_close(&t.l);
		}
		assert_true(is_whole(&t, 0));
		two_free(&t);
	}
}

static void verify_open_mends_zeros_that_are_none(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct two t = two_of(1, HOLE_END);

		flip(t.image[0], in_hole[i]);
		t.l.options.verify = VERIFY_OPEN;
		live_open(&t.l);
		disk.watched = ino_of_path(t.image[0]);
		disk.deciding = reclaim_deciding(t.l.st->files.reclaim);
		assert_file(&t.l, "a", t.data, FILE_BYTES);
		assert_true(disk.writes + disk.given_up > 0);
		assert_true(is_whole(&t, 0));
		live_close(&t.l);
		two_free(&t);
	}
}

/* It may be written, or somebody may read it yet. */
static void what_may_be_others_bytes_is_not_taken_for_zeros(void **state)
{
	struct two t = two_of(1, HOLE_END);
	struct stage_slot slot = { .kind = STAGE_DISK };
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct mend m;

	(void)state;
	live_open(&t.l);
	slot.number = image_of(&t.l, "a");
	m = mend_of(&t.l);
	u64_save(b, key_punch(slot.number, HOLE), HOLE_END - HOLE);
	assert_int_equal(kv_write(m.kv, b), 0);
	flip(t.image[0], in_hole[1]);
	assert_int_equal(mend_zeros(&m, slot.number, HOLE, HOLE_END, true), 0);
	assert_false(is_whole(&t, 0));
	live_close(&t.l);
	live_open(&t.l); /* which gives it back */
	live_settle(&t.l);
	live_close(&t.l);
	flip(t.image[0], in_hole[1]);
	t.staged = (struct stage_table){ .slots = &slot, .count = 1 };
	t.only_damage = true;
	assert_int_equal(scrub(&t, true), 0);
	assert_false(is_whole(&t, 0));
	two_free(&t);
}

/* What a file that shares parts has elsewhere is nothing in its own image. */
static void beside_the_chunks_of_a_file_that_shares_is_nothing(void **state)
{
	struct two t = two_of(1, 0);
	char path[4352];
	struct content c;

	(void)state;
	live_open(&t.l);
	fill(t.data, MIB / 2, 7);
	live_write(&t.l, "c", t.data, FILE_BYTES);
	live_sync_all(&t.l);
	assert_false(live_native(&t.l, "c"));
	image_path(&t.l, "c", path);
	c = live_content(&t.l, "c");
	assert_true(c.extent_count == 2);
	live_close(&t.l);
	assert_int_equal(truncate(path, FILE_BYTES), 0);
	flip(path, FILE_BYTES - 100);
	t.only_damage = true;
	(void)scrub(&t, true);
	assert_int_equal(t.mended + t.damaged, 0);
	content_release(&c);
	two_free(&t);
}

/* --- one chunk --- */

/* Somebody may have written there, or may be about to. */
static void beside_a_writer_a_block_is_never_replaced(void **state)
{
	struct two t = two_new(2);
	struct mend m;
	uint64_t image;

	(void)state;
	live_open(&t.l);
	m = mend_of(&t.l);
	m.is_written = yes;
	image = image_of(&t.l, "a");
	make_bad(t.image[0], t.edge);
	assert_int_equal(mend_chunk(&m, image, t.edge), -EBUSY);
	assert_true(disk.ino != 0);
	/* Where all of a block is the chunk's own it does not matter. */
	make_bad(t.image[0], t.edge + BLOCK);
	assert_int_equal(mend_chunk(&m, image, t.edge), 1);
	assert_int_equal(mend_chunk(&m, image, t.edge), 0);
	assert_int_equal(mend_chunk(&m, image, t.edge + 1), -EIO);
	live_close(&t.l);
	two_free(&t);
}

/* A file that is gone, and that somebody may read to its end. */
static void what_waits_to_be_given_back_is_not_replaced(void **state)
{
	struct two t = two_new(2);
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	SCOPED(scope_batch) struct kv_batch *back = kv_batch_new();
	struct key chunk, range;
	struct chunk_rec k;
	struct mend m;
	uint64_t image;

	(void)state;
	live_open(&t.l);
	m = mend_of(&t.l);
	image = image_of(&t.l, "a");
	chunk = key_chunk(image, t.edge);
	range = key_punch(image, t.edge);
	assert_int_equal(chunk_load(m.kv, chunk, &k), 0);
	record_delete(b, chunk);
	u64_save(b, range, k.len);
	assert_int_equal(kv_write(m.kv, b), 0);
	make_bad(t.image[0], t.edge);
	assert_int_equal(mend_chunk(&m, image, t.first), -EBUSY);
	assert_true(disk.ino != 0);
	record_delete(back, range); /* it was given back */
	assert_int_equal(kv_write(m.kv, back), 0);
	assert_int_equal(mend_chunk(&m, image, t.first), 1);
	assert_int_equal(disk.ino, 0);
	live_close(&t.l);
	two_free(&t);
}

/* Where one of the two is wrong nobody knows whose bytes those are. */
static void a_chunk_that_another_one_reaches_into_is_left(void **state)
{
	struct two t = two_new(2);
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct chunk_rec k = { .len = 100, .refs = 1, .domain = DOMAIN_ALL };
	struct mend m;
	uint64_t image;

	(void)state;
	live_open(&t.l);
	m = mend_of(&t.l);
	image = image_of(&t.l, "a");
	chunk_save(b, key_chunk(image, t.edge - 50), &k);
	assert_int_equal(kv_write(m.kv, b), 0);
	flip(t.image[0], t.edge + BLOCK);
	disk.watched = ino_of_path(t.image[0]);
	assert_int_equal(mend_chunk(&m, image, t.edge), -EUCLEAN);
	assert_int_equal(disk.writes, 0);
	live_close(&t.l);
	two_free(&t);
}

/* What is in memory may be right where the disk is not, and the other way. */
static void both_the_disk_and_the_memory_must_be_right(void **state)
{
	(void)state;
	for (unsigned direct = 0; direct < 2; direct++) {
		struct two t = two_new(2);
		int fd = open(t.image[0], O_RDONLY | O_CLOEXEC | O_DIRECT);
		struct mend m;

		if (fd >= 0)
			close(fd);
		else if (direct) /* there is no past the memory here */
			skip();
		live_open(&t.l);
		m = mend_of(&t.l);
		disk.wrong_ino = ino_of_path(t.image[0]);
		disk.wrong_direct = direct;
		disk.watched = disk.wrong_ino;
		assert_int_equal(mend_chunk(&m, image_of(&t.l, "a"), 0), 1);
		assert_true(disk.writes > 0);
		live_close(&t.l);
		two_free(&t);
	}
}

/* --- while it is in use --- */

static void verify_open_mends_before_the_open_returns(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct two t = two_new(2);

		if (i < 2)
			make_bad(t.image[0], i == 0 ? t.edge : 2 * MIB);
		else
			flip(t.image[0], FILE_BYTES - 1);
		t.l.options.verify = VERIFY_OPEN;
		live_open(&t.l);
		disk.watched = ino_of_path(t.image[0]);
		disk.deciding = reclaim_deciding(t.l.st->files.reclaim);
		assert_file(&t.l, "a", t.data, FILE_BYTES);
		assert_true(disk.writes > 0);
		assert_int_equal(disk.ino, 0);
		assert_true(is_whole(&t, 0));
		live_close(&t.l);
		assert_int_equal(scrub(&t, false), 0);
		two_free(&t);
	}
}

/* As long as its image is a stage. */
static void verify_open_leaves_a_block_that_may_be_written(void **state)
{
	struct two t = two_new(2);
	struct inode *in = NULL;
	struct file_opened opened;
	struct images *images;
	struct image *i;

	(void)state;
	t.l.options.verify = VERIFY_OPEN;
	live_open(&t.l);
	images = t.l.st->files.images;
	make_bad(t.image[0], t.edge);
	assert_int_equal(image_get(images, image_of(&t.l, "a"), &i), 0);
	{
		HOLD(&images->lock);
		i->building = true;
	}
	assert_int_equal(live_lookup(&t.l, "a", &in), 0);
	assert_int_equal(file_open(&t.l.st->files, in, O_RDONLY, &opened),
			 -EIO);
	inode_put(t.l.st->inodes, in, 1);
	assert_true(disk.ino != 0);
	image_built(images, i);
	image_put(images, i);
	assert_file(&t.l, "a", t.data, FILE_BYTES);
	live_close(&t.l);
	two_free(&t);
}

static void an_open_of_what_has_no_whole_copy_fails(void **state)
{
	struct two t = two_new(2);
	struct inode *in = NULL;
	struct file_opened opened;

	(void)state;
	flip(t.image[0], MIB);
	flip(t.image[1], MIB);
	t.l.options.verify = VERIFY_OPEN;
	live_open(&t.l);
	assert_int_equal(live_lookup(&t.l, "a", &in), 0);
	assert_int_equal(file_open(&t.l.st->files, in, O_RDONLY, &opened),
			 -EIO);
	inode_put(t.l.st->inodes, in, 1);
	live_close(&t.l);
	two_free(&t);
}

/* A cable, not the disk: what was never wrong is not written. */
static void a_read_that_fails_once_changes_nothing(void **state)
{
	struct two t = two_new(2);

	(void)state;
	t.l.options.verify = VERIFY_OPEN;
	live_open(&t.l);
	disk.watched = ino_of_path(t.image[0]);
	disk.reads_fail = 1;
	assert_file(&t.l, "a", t.data, FILE_BYTES);
	assert_int_equal(disk.reads_fail, 0);
	assert_int_equal(disk.writes, 0);
	live_close(&t.l);
	two_free(&t);
}

/* As the kernel says it of a mapping that cannot be read. */
static void a_read_that_failed_mends_for_the_next_one(void **state)
{
	struct two t = two_new(2);
	struct inode *in = NULL;
	struct file_read r;

	(void)state;
	live_open(&t.l);
	make_bad(t.image[0], t.edge);
	assert_int_equal(live_lookup(&t.l, "a", &in), 0);
	assert_int_equal(file_read_begin(&t.l.st->files, in, 10, t.edge, &r),
			 0);
	assert_int_equal(file_read_failed(&t.l.st->files, in, &r, 10, t.edge),
			 -EIO);
	file_read_end(&t.l.st->files, &r);
	inode_put(t.l.st->inodes, in, 1);
	/* One of the two that the block has; it needed the other one's. */
	assert_int_equal(disk.ino, 0);
	assert_true(is_whole(&t, 0));
	live_close(&t.l);
	two_free(&t);
}

/* Of so many pieces that they are read, not mapped: see read.c. */
static void a_read_of_many_pieces_takes_what_was_mended(void **state)
{
	struct payload p[80];
	struct live l = live_closed(NULL);
	size_t len, mixed_len;
	uint8_t *data, *mixed;
	char image[4352];

	(void)state;
	l.options.dedup_copies = 2;
	live_open_kind(&l, 1);
	for (unsigned i = 0; i < 80; i++)
		p[i] = (struct payload){ i + 1, 20000 };
	data = safetensors(p, 80, 0, &len);
	live_write(&l, "a", data, len);
	live_sync_all(&l);
	live_write(&l, "b", data, len);
	live_sync_all(&l);
	for (unsigned i = 0; i < 80; i += 2)
		p[i].seed += 1000;
	mixed = safetensors(p, 80, 0, &mixed_len);
	live_write(&l, "mixed", mixed, mixed_len);
	live_sync_all(&l);
	live_reopen(&l); /* nothing of it is in memory */
	assert_false(live_native(&l, "mixed"));
	for (unsigned i = 0; i < 2; i++) {
		image_path(&l, i ? "b" : "a", image);
		disk.ino = ino_of_path(image);
		disk.block = (len - 27 * 20000 + 8000) / BLOCK;
		assert_file(&l, "mixed", mixed, mixed_len);
		if (disk.ino == 0)
			break;
	}
	assert_int_equal(disk.ino, 0); /* it was the one that "mixed" has */
	live_free(&l);
	free(data);
	free(mixed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_scrub_mends_a_flipped_byte_from_the_other_copy),
		cmocka_unit_test(a_scrub_that_is_not_to_mend_changes_nothing),
		cmocka_unit_test(without_another_copy_nothing_is_written),
		cmocka_unit_test(copies_that_are_damaged_apart_mend_each_other),
		cmocka_unit_test(a_scrub_mends_a_bad_sector),
		cmocka_unit_test(
			a_bad_sector_with_bytes_that_nobody_has_is_left),
		cmocka_unit_test(a_disk_that_does_not_take_it_is_told_of),
		cmocka_unit_test(
			a_scrub_leaves_a_block_that_a_staged_file_may_have),
		cmocka_unit_test(a_scrub_mends_zeros_that_are_none),
		cmocka_unit_test(
			a_sector_with_a_chunk_and_zeros_is_mended_as_a_whole),
		cmocka_unit_test(zeros_to_the_end_of_a_file_are_looked_at),
		cmocka_unit_test(verify_open_mends_zeros_that_are_none),
		cmocka_unit_test(
			what_may_be_others_bytes_is_not_taken_for_zeros),
		cmocka_unit_test(
			beside_the_chunks_of_a_file_that_shares_is_nothing),
		cmocka_unit_test(beside_a_writer_a_block_is_never_replaced),
		cmocka_unit_test(what_waits_to_be_given_back_is_not_replaced),
		cmocka_unit_test(both_the_disk_and_the_memory_must_be_right),
		cmocka_unit_test(a_chunk_that_another_one_reaches_into_is_left),
		cmocka_unit_test(verify_open_mends_before_the_open_returns),
		cmocka_unit_test(
			verify_open_leaves_a_block_that_may_be_written),
		cmocka_unit_test(an_open_of_what_has_no_whole_copy_fails),
		cmocka_unit_test(a_read_that_fails_once_changes_nothing),
		cmocka_unit_test(a_read_that_failed_mends_for_the_next_one),
		cmocka_unit_test(a_read_of_many_pieces_takes_what_was_mended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
