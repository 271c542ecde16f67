/*
 * check.h - is a store what it should be? Reads everything, and changes nothing
 * but, with `mend`, chunks whose bytes are damaged and that have another copy.
 *
 * Every record must decode, names and inodes must agree, every byte of a file
 * must lie in a chunk of an image, reference counts and counters must equal a
 * recount. With `scrub` every chunk is read and hashed again, and the digests
 * of files must follow from their chunks.
 *
 * The store must not be in use: take its lock first (layout_open()).
 *
 * Memory: some 24 bytes for each chunk and 64 for each inode and image.
 * Threads: callbacks come from the thread that called check_store().
 */
#ifndef STORE_CHECK_H
#define STORE_CHECK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv;
struct stage_table;

#define CHECK_FILES_MAX 100

/* Valid during the callback only. */
struct check_problem {
	bool note; /* worth knowing, but nothing to repair */
	const char *code; /* one word that stays: what is wrong */
	const char *object; /* a path, or what it is when it has none */
	const char *text; /* a sentence: what is wrong, what to do */
	/* Of damaged bytes: the files that contain them, by path. */
	const char *const *files;
	size_t file_count; /* at most CHECK_FILES_MAX; the text says more */
};

/* Any of the functions may be NULL. */
struct check_options {
	bool scrub;
	bool mend; /* what scrub finds: see store/space/mend.h */
	/* What the last daemon left staged; NULL: not known. */
	const struct stage_table *staged;
	unsigned threads; /* for scrub; 0: one for each processor */
	void (*problem)(void *self, const struct check_problem *p);
	/*
	 * So many steps (of "scrub": bytes) of this phase are done. total is 0
	 * when it is not known.
	 */
	void (*progress)(void *self, const char *phase, uint64_t done,
			 uint64_t total);
	void *self;
};

/* What was counted; complete only when the check could be finished. */
struct check_result {
	uint64_t problems, notes;
	uint64_t inodes, files, directories;
	uint64_t chunks, images;
	uint64_t logical_bytes, physical_bytes, shared_bytes;
	uint64_t scrubbed_bytes;
	uint64_t damaged_chunks, mended_chunks; /* still, and no longer */
	/* Of versions, and of times set by hand, up to GENERATION_MAX. */
	uint64_t greatest_number;
};

/*
 * kv: the store's database, images_dirfd: its directory of images.
 *
 * Returns 0 when all is well, 1 when a problem was reported (a database that
 * cannot be read to its end is one), or -errno when the check could not be
 * finished: -ENOMEM, or the directory of images cannot be read.
 * *ret is filled whatever is returned. Blocks on the disk until done.
 */
int check_store(struct kv *kv, int images_dirfd,
		const struct check_options *options, struct check_result *ret);

/*
 * The path of an inode of this database, somewhere in buf, or "inode N" when no
 * names lead to it.
 */
const char *check_path_in(struct kv *kv, uint64_t ino, char buf[PATH_MAX]);

#endif
