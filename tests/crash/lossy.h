/*
 * lossy.h - a file system in memory that loses at a power cut what was not
 * synced, as an unkind disk would.
 *
 * Keeps true: what fsync or fdatasync covered of a file survives, and what
 * fsync of a directory covered of its names; everything else survives by
 * seeded coins, each block, size and name on its own (lossy_data.h,
 * lossy_names.h). A newly made file's or directory's own name, and those of
 * the new directories on the way to it, survive a sync of itself as on ext4,
 * xfs and btrfs, unless `strict_names` asks for no more than POSIX says.
 * Owners and modes survive at once, times never.
 *
 * Every call that changes or syncs something is one struct lossy_op; it is
 * counted when it succeeds. The same operations on an empty file system give
 * the same state and the same node numbers: a history can be played again up
 * to any point (lossy_log.h).
 *
 * Errors: 0 or a negative errno; ret_* are written on success only.
 * Threads: one. Locks: none.
 */
#ifndef TESTS_CRASH_LOSSY_H
#define TESTS_CRASH_LOSSY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define LOSSY_ROOT 1u
#define LOSSY_NODES_MAX (1u << 20)

struct lossy_options {
	bool strict_names; /* a name needs a sync of its directory */
	uint64_t bytes_max;
};

enum lossy_kind {
	LOSSY_CREATE = 1, /* name in node; mode, rdev; data: symlink's text */
	LOSSY_LINK, /* other becomes name in node */
	LOSSY_UNLINK, /* name in node */
	LOSSY_RMDIR,
	LOSSY_RENAME, /* name in node becomes name2 in other; flags */
	LOSSY_WRITE, /* data at off; flags: LOSSY_SYNCED, a sync of this too */
	LOSSY_TRUNCATE, /* to off */
	LOSSY_FALLOCATE, /* off, size; flags as in fallocate(2) */
	LOSSY_ATTR, /* mode, uid, gid */
	LOSSY_SYNC, /* flags: LOSSY_LIE, answer 0 and do nothing */
	LOSSY_KIND_COUNT,
};

#define LOSSY_SYNCED 1u
#define LOSSY_LIE 2u

struct lossy_op {
	enum lossy_kind kind;
	uint32_t flags, mode, uid, gid;
	uint64_t node, other;
	uint64_t off, size, rdev;
	const char *name, *name2; /* NULL when the kind has none */
	const void *data;
	size_t data_len;
};

struct lossy_name;
struct lossy_fs;

int lossy_new(const struct lossy_options *options, struct lossy_fs **ret_fs);
void lossy_free(struct lossy_fs *fs);
/* Back to one empty root directory, power on, nothing counted. */
void lossy_erase(struct lossy_fs *fs);

/*
 * Do it and count it. -EIO: the power is cut, or is cut by this very call,
 * which then does nothing. *ret_node (may be NULL): what LOSSY_CREATE made.
 */
int lossy_do(struct lossy_fs *fs, const struct lossy_op *op,
	     uint64_t *ret_node);

/* These answer from the present state and do not ask whether there is power. */
int lossy_lookup(struct lossy_fs *fs, uint64_t dir, const char *name,
		 uint64_t *ret_node);
int lossy_stat(struct lossy_fs *fs, uint64_t node, struct stat *ret_st);
int lossy_times(struct lossy_fs *fs, uint64_t node,
		const struct timespec *atime, const struct timespec *mtime);
int lossy_read(struct lossy_fs *fs, uint64_t node, void *buf, size_t len,
	       uint64_t off, size_t *ret_len);
int lossy_readlink(struct lossy_fs *fs, uint64_t node, const char **ret_text);
int lossy_seek(struct lossy_fs *fs, uint64_t node, uint64_t off, bool hole,
	       uint64_t *ret_off);
/* The first name of a directory after the cookie; *ret_name NULL: the end. */
int lossy_next(struct lossy_fs *fs, uint64_t dir, uint64_t cookie,
	       const struct lossy_name **ret_name);
void lossy_room(const struct lossy_fs *fs, uint64_t *ret_blocks,
		uint64_t *ret_blocks_max);

uint64_t lossy_count(const struct lossy_fs *fs);
bool lossy_is_cut(const struct lossy_fs *fs);
/* Cut the power now (0), or at the n-th operation from now. */
void lossy_cut(struct lossy_fs *fs, uint64_t n);
/*
 * Power on again with what survived. Seed 0: nothing that was not synced;
 * seed 1: all of it; any other: coins whose bias differs from seed to seed.
 */
void lossy_reboot(struct lossy_fs *fs, uint64_t seed);

#endif
