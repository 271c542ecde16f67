/*
 * image.h - images: plain sparse files that hold files' bytes at the offsets
 * that they have in the file, so that a store can be read with cp.
 *
 * Keeps true: an image number is never used twice; numbers are recorded,
 * durably, before they are used, so that an image that no I record names is
 * known to be unfinished, and only then removed at the next start; bytes that
 * a K record covers are never written again, only read or, when the record
 * is gone, punched; those that are damaged get back what they were (mend.h).
 *
 * No descriptor is kept: whoever wants to read or write opens the file by its
 * name and closes it again, so that what waits takes none. Who has a reference
 * can open it until he puts it, also when it was removed meanwhile: it has
 * another name then (LAYOUT_IMAGE_GONE) until the last reference is put, or,
 * after a kill, until the next start.
 *
 * image_file.c has what touches the files, image_map.c the mappings,
 * image_opened.c who has one open, image.c the rest.
 *
 * Threads: any thread may call anything. Locks: images.lock is a leaf.
 */
#ifndef STORE_IMAGE_H
#define STORE_IMAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "store/base/lease.h"
#include "store/base/sync.h"
#include "store/db/kv.h"
#include "store/db/layout.h"

struct stage;

struct image {
	uint64_t id;
	struct image *next; /* in its bucket; images.lock */
	unsigned refs; /* images.lock */
	bool dead; /* removed: nobody may get it by its number; lock */
	bool gone; /* and renamed: unlink it with the last reference; lock */
	bool spare; /* not in use: nobody may get it by its number; lock */
	bool building; /* a stage, or a job's that is not committed yet; lock */
	/*
	 * The inode that had it open in passthrough, or IMAGE_OPENED_BY_MANY,
	 * since a lease last said that nobody has it; 0: none. lock
	 */
	uint64_t opened_by;
	uint64_t lru; /* when it was put last; images.lock */
	struct stage *clean; /* a stage with the same bytes; images.lock */
	uint8_t *map; /* read-only, or NULL; images.lock; unmapped at free */
	size_t map_len;
	unsigned map_users; /* image_map() without its end; images.lock */
	uint64_t unmapped; /* how often it was; images.lock */
	bool unmapping; /* images.lock */
};

/* No number of ours is as large: a file of that name is somebody else's. */
#define IMAGE_ID_MAX (UINT64_C(1) << 62)
#define IMAGE_OPENED_BY_MANY UINT64_MAX

#define IMAGE_BUCKETS 4096
/*
 * Empty images that are kept for the next stages: most first files of a series
 * are small, go to the database, and leave their image as they found it.
 * Making and unlinking a file costs ten times what truncating one does.
 */
#define IMAGE_SPARE_MAX 256
/* Unused images that are remembered with what of them is mapped. */
#define IMAGE_IDLE_MAX 128

struct images {
	int dirfd; /* STORE/images */
	struct kv *kv;
	struct lock lock;
	struct image *bucket[IMAGE_BUCKETS];
	unsigned idle;
	struct image *spare[IMAGE_SPARE_MAX]; /* no references, in the table */
	unsigned spare_count;
	uint64_t tick;
	struct cond unused; /* a mapping that is to go is, or has gone */
	/* Held while a number is taken, and while the next are recorded. */
	struct lock numbering;
	uint64_t next_id, next_id_recorded; /* numbering */
	uint64_t next_id_at_start; /* immutable */
	/*
	 * What the last daemon had begun and not finished is among these, and
	 * nothing else is (META_UNFINISHED); immutable.
	 */
	uint64_t unfinished_from, unfinished_end;
	/* By directory: perhaps not durable yet. */
	atomic_bool unlinked[LAYOUT_IMAGE_DIRS];
	/*
	 * A bit for each number of an earlier start, but for absurd ones: it
	 * was asked for, and nobody has it. images.lock
	 */
	uint8_t *free_of_old;
	uint64_t free_of_old_end; /* immutable */
	bool ending; /* no kernel is behind the mount any more; lock */
	bool populates; /* a fault of ours reads 2 MiB, no more; immutable */
};

int images_init(struct images *im, int store_dirfd, struct kv *kv);
/*
 * A clean end, before images_release(): what is not finished is recorded, which
 * is nothing but the stages that are left for the next start.
 */
int images_finish(struct images *im);
void images_release(struct images *im);

/* A new, empty image with one reference, `building`. */
int image_create(struct images *im, struct image **ret_image);
/* What it holds is committed: it is not `building` any more. */
void image_built(struct images *im, struct image *i);
bool image_is_building(struct images *im, const struct image *i);
/* An existing one. -ENOENT: the file is missing, or was removed. */
int image_get(struct images *im, uint64_t id, struct image **ret_image);
void image_ref(struct images *im, struct image *i);
void image_put(struct images *im, struct image *i);
/*
 * An image that never held committed bytes is not wanted any more: it becomes
 * a spare one, or is removed. Takes over the reference.
 */
void image_recycle(struct images *im, struct image *i);
/*
 * Remove it; the caller's reference stays his, and he and those who hold it
 * too keep it. Blocks.
 */
int image_remove(struct images *im, struct image *i);
/*
 * A record tells of this image, and its file is gone: the last daemon may have
 * been killed before it synced that.
 */
void image_was_removed(struct images *im, uint64_t id);
/* What was removed so far, also by the last daemon, is so durably. */
int image_sync_removed(struct images *im);
/*
 * A descriptor of the caller's own: O_RDONLY or O_RDWR, also with O_DIRECT,
 * which a file system that has none goes without.
 */
int image_open_fd(struct images *im, const struct image *i, int flags);
/* fstat(2) without a descriptor. */
int image_stat(struct images *im, const struct image *i, struct stat *ret);
/*
 * May somebody have it open or mapped through a connection that is gone? Then
 * nothing of it may be punched or cut. The caller has the only reference, or is
 * told that it is so: ask again later.
 */
bool image_is_left(struct images *im, struct image *i);
/*
 * The same of who opened it in passthrough of this daemon. Where nobody can be
 * asked, without leases, whoever opened it has it still.
 */
bool image_is_had(struct images *im, struct image *i);
/* From now on that can be said of those that this daemon gave out, too. */
void images_end(struct images *im);
/* lease_ask() of its file. */
int image_ask(struct images *im, const struct image *i, enum lease what);
/* Make the name durable (its bytes: fdatasync(2)). */
int image_sync_name(struct images *im, uint64_t id);

/*
 * At least [0, end) of the image, mapped for reading, valid until
 * image_map_end(); NULL, without an end, when it cannot be mapped. A page that
 * cannot be read raises SIGBUS in user space: hand it to system calls only,
 * which answer EFAULT.
 */
const uint8_t *image_map(struct images *im, struct image *i, uint64_t end);
void image_map_end(struct images *im, struct image *i);
/* One use more, for who has one. */
void image_map_more(struct images *im, struct image *i);
/*
 * Its name means another inode now: the mapping goes, once nobody uses it any
 * more. The caller has a reference, and no use of his own.
 */
void image_unmap(struct images *im, struct image *i);

/* The same unless somebody uses it; false: it stays, or there is none. */
bool image_unmap_idle(struct images *im, struct image *i);

/* The inode has it open in passthrough. i may be NULL. */
void image_note_opened(struct images *im, struct image *i, uint64_t ino);
/* Had nobody but this inode it open? */
bool image_opened_by(struct images *im, struct image *i, uint64_t ino);
/* Who had `from` open has its inode, which is `to` now. */
void image_move_opened(struct images *im, struct image *from, struct image *to);
/* A lease said that nobody has it open or mapped. */
void image_note_free(struct images *im, struct image *i);

/*
 * The stage, a cache, has the same bytes at the same offsets as this image,
 * and is found by it (stage_of_image()) until image_clear_clean().
 */
void image_set_clean(struct images *im, uint64_t id, struct stage *s);
void image_clear_clean(struct images *im, struct stage *s);

/*
 * Call fn for each name "XX/NAME" in a directory of images, until it returns
 * other than 0, which is returned. id: the number that it begins with, and
 * suffix what follows; 0 when it is none. A directory XX that cannot be listed
 * is passed over, and its error returned in the end.
 */
typedef int (*image_file_fn)(void *arg, const char *path, uint64_t id,
			     const char *suffix);
int image_each_file(int dirfd, image_file_fn fn, void *arg);
/*
 * Call fn for every image file there is; stops at the first rc != 0. at_start:
 * what the last daemon removed while somebody had it goes.
 */
int image_scan(struct images *im, bool at_start,
	       int (*fn)(void *arg, uint64_t id), void *arg);

#endif
