/*
 * mend_fixture.h - a closed store with two copies of a file's bytes, on a disk
 * that may have a bad block, and a scrub of it.
 *
 * The disk is the machine's own, but one file of it has a bad block: reads of
 * it fail, and so do writes of a part of it, as those read it first; a write of
 * all of it, or that it is zeroed or punched, makes it good.
 *
 * Link with --wrap=pread64,--wrap=pwrite64,--wrap=fallocate64.
 */
#ifndef TESTS_UNIT_MEND_FIXTURE_H
#define TESTS_UNIT_MEND_FIXTURE_H

#include <fcntl.h>
#include <stdatomic.h>

#include "store/file/file_private.h"
#include "store/space/mend.h"
#include "store/space/stage_table.h"
#include "tests/unit/live_store.h"

#define BLOCK UINT64_C(4096)
#define FILE_BYTES (3 * MIB + 1234)

/* --- the bad disk --- */

/* Threads of the store read it while a test sets it. */
static struct {
	_Atomic ino_t ino; /* 0: none is bad */
	_Atomic uint64_t block;
	atomic_int error; /* of it; 0: EIO */
	atomic_uint given_up; /* blocks that were zeroed or punched */
	atomic_uint reads_fail; /* so many more do, whatever they read */
	_Atomic ino_t watched;
	atomic_uint writes; /* of the watched file */
	/* It takes those, and has the old bytes all the same. */
	atomic_bool lies;
	/* Who writes the watched file must have it. */
	struct lock *_Atomic deciding;
	/* Reads of it, of the disk or of memory, are wrong until a write. */
	_Atomic ino_t wrong_ino;
	atomic_bool wrong_direct;
} disk;

ssize_t __real_pread64(int fd, void *buf, size_t len, off64_t off);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off64_t off);
ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off64_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off64_t off);
int __real_fallocate64(int fd, int mode, off64_t off, off64_t len);
int __wrap_fallocate64(int fd, int mode, off64_t off, off64_t len);

static inline ino_t ino_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? 0 : st.st_ino;
}

static inline bool touches_bad(int fd, size_t len, off64_t off)
{
	uint64_t from = disk.block * BLOCK;

	return disk.ino != 0 && ino_of(fd) == disk.ino &&
	       (uint64_t)off < from + BLOCK && (uint64_t)off + len > from;
}

static inline bool covers_bad(size_t len, off64_t off)
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
static inline uint64_t image_of(struct live *l, const char *name)
{
	struct content c = live_content(l, name);
	uint64_t image = c.extents[0].image;

	content_release(&c);
	return image;
}

static inline void image_path(struct live *l, const char *name, char ret[4352])
{
	char image[LAYOUT_IMAGE_NAME_BYTES];

	layout_image_name(image_of(l, name), image);
	(void)snprintf(ret, 4352, "%s/" LAYOUT_IMAGE_DIR "/%s", l->path, image);
}

/* The first end of a chunk of "a" that is in the middle of a block. */
static inline uint64_t find_edge(struct live *l, uint64_t *ret_first)
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
static inline struct two two_of(unsigned copies, uint64_t hole_end)
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

static inline struct two two_new(unsigned copies)
{
	return two_of(copies, 0);
}

static inline void two_free(struct two *t)
{
	memset(&disk, 0, sizeof(disk));
	live_remove(&t->l);
	free(t->data);
}

static inline void flip(const char *image, uint64_t at)
{
	int fd = open(image, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);
}

static inline ino_t ino_of_path(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_ino;
}

/* The block with this byte cannot be read any more, and holds nothing. */
static inline void make_bad(const char *image, uint64_t at)
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

static inline bool is_whole(const struct two *t, unsigned copy)
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

static inline void on_problem(void *self, const struct check_problem *p)
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
static inline int scrub(struct two *t, bool mend)
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

static inline bool no(void *arg, uint64_t image)
{
	(void)arg;
	(void)image;
	return false;
}

static inline struct mend mend_of(struct live *l)
{
	return (struct mend){ .kv = l->st->kv,
			      .images_dirfd = l->st->files.images->dirfd,
			      .secret = l->st->files.secret,
			      .deciding =
				      reclaim_deciding(l->st->files.reclaim),
			      .is_written = no };
}

#endif
