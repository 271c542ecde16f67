/*
 * records.h - every key and value in the database: the store's format, version
 * STORE_FORMAT. fsck and the daemon share it; nothing else knows the layout.
 *
 * Keys (one letter, then big-endian numbers, so that they sort):
 *   A ino                  attributes of an inode            struct attr
 *   E parent hash name     a name in a directory             struct dirent_rec
 *   F ino                  committed content of a file       struct content
 *   D ino                  bytes of a small file (<= SMALL_BYTES_MAX)
 *   X ino name             an extended attribute
 *   W ino                  who wrote a file                  struct writer
 *   L ino parent name      a further name of a file (hard link), empty value
 *   O ino                  unlinked while open: delete at the next start
 *   U ino                  created, never committed: absent after a power cut
 *   K image offset         a chunk that lies in an image     struct chunk_rec
 *   H hash domain          where the copies of a chunk lie   struct chunk_locs
 *   I image                an image that holds committed bytes, u64 size
 *   P image offset         bytes to be punched, u64 length (see reclaim.h)
 *   S key                  what the last file of a series was struct series_rec
 *   M name                 counters and settings (see META_*)
 *
 * Who writes what: A, E, L, O, W, X and U-on-create are written by the
 * operation on the mount (the kernel serialises these per inode); F, D, K, H,
 * I, P, S and U-removal by the committer thread alone. So no record has two
 * writers.
 *
 * Values are little-endian. A decoder checks every length and returns -EIO for
 * a value that it does not understand: it is damage, not a mistake of ours.
 */
#ifndef STORE_RECORDS_H
#define STORE_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/bytes.h"
#include "store/db/kv.h"
#include "store/db/writer.h"

/*
 * 1: no chunk has a domain, and what is unfinished is not recorded. 2: an H
 * has one place. Both are read as they are, and made 3 when they are mounted,
 * for a ckptfs of that time would take a chunk with a domain, or an H of
 * several places, for damage, and an image that it does not know for a
 * leftover.
 */
#define STORE_FORMAT 3
#define STORE_FORMAT_OLD 1
#define SMALL_BYTES_MAX (32u << 10)
#define STORE_NAME_MAX 255
#define ROOT_INO 1

#define META_NEXT_INO "next_ino" /* u64: first number not handed out */
#define META_NEXT_IMAGE "next_image" /* u64, likewise */
/*
 * u64: first place in the order of closes, and number of a version, that no
 * mount has for itself. A ckptfs that did not write this setting counted from 1
 * in each mount: its places, and its generations, are below PLACES_OF_A_MOUNT.
 */
#define META_NEXT_PLACE "next_place"
/* Two drawn for each of a thousand closes a second: this many in 17 years. */
#define PLACES_OF_A_MOUNT (UINT64_C(1) << 40)
#define PLACE_MAX (UINT64_C(1) << 62) /* what is greater is damaged */
#define GENERATION_MAX (PLACE_MAX / 2) /* the same of what records say */
/*
 * u64: images without an I record, of this number or a later one below
 * META_NEXT_IMAGE, are what a daemon had not finished. Any other without one is
 * not known to be nothing.
 */
#define META_UNFINISHED "unfinished_image"
#define META_SECRET "secret" /* HASH_SECRET_BYTES random bytes */
/* Counters, changed with kv_add() in the batch that changes the thing. */
#define META_FILES "files" /* regular files that have a name */
#define META_LOGICAL "logical_bytes" /* sum of committed sizes */
#define META_PHYSICAL "physical_bytes" /* chunk bytes + small files' bytes */
#define META_CHUNKS "chunks" /* K records */
#define META_SHARED "shared_bytes" /* sum over chunks of (refs - 1) * len */
#define META_IMAGES "images" /* I records */
/* What follows is store/shared/'s own: which files of DIR are here. */
#define META_OF_SHARED "shared."
#define META_SHARED_REBUILT "shared.rebuilt" /* its records may be missing */

#define KEY_BYTES_MAX (1 + 8 + 8 + STORE_NAME_MAX)
struct key {
	uint8_t data[KEY_BYTES_MAX];
	size_t len;
};

struct key key_kind(char kind); /* what all keys of a kind begin with */
/* A F D O U W, and I image; and what keys of E X L, and K P, begin with. */
struct key key_ino(char kind, uint64_t ino);
struct key key_dirent(uint64_t parent, uint64_t hash, const char *name);
/* The place of `hash` in a directory. */
struct key key_dir_at(uint64_t parent, uint64_t hash);
struct key key_xattr(uint64_t ino, const char *name);
struct key key_link(uint64_t ino, uint64_t parent, const char *name);
struct key key_chunk(uint64_t image, uint64_t offset);
struct key key_punch(uint64_t image, uint64_t offset);
struct key key_hash(const uint8_t hash[16], uint64_t domain);
struct key key_series(uint64_t series);
struct key key_meta(const char *name);

/* 62 bits of XXH3-64: a directory's order and readdir's cookie (>= 4). */
uint64_t name_hash(const char *name);

struct attr {
	uint32_t mode; /* type and permission bits */
	uint32_t uid, gid;
	uint32_t nlink;
	uint64_t rdev;
	int64_t atime_ns, mtime_ns, ctime_ns;
	/*
	 * A file's mtime is its content's, unless mtime_gen is at least the
	 * content's generation: then it was set by hand since (0: never). It is
	 * a number of the same row, which no version has. (Before ckptfs drew
	 * one it was a generation, perhaps the one that was to come.)
	 */
	uint64_t mtime_gen;
	uint64_t parent; /* of the first name; 0 when it has none */
	char name[STORE_NAME_MAX + 1]; /* the first name, or a link's target */
	char *target; /* a symbolic link's target, owned; else NULL */
};
void attr_encode(const struct attr *a, struct bytes *out);
int attr_decode(const void *p, size_t len, struct attr *ret_attr);
void attr_release(struct attr *a);

struct dirent_rec {
	uint64_t ino;
	uint32_t type; /* S_IFMT bits */
};
void dirent_encode(const struct dirent_rec *d, struct bytes *out);
int dirent_decode(const void *p, size_t len, struct dirent_rec *ret);

/* [offset, offset + len) of a file lies at image_offset of image. */
struct extent {
	uint64_t offset, len;
	uint64_t image, image_offset;
};

/*
 * Append e to at[*count], for which there is room; what continues the last one
 * makes that longer.
 */
void extent_append(struct extent *at, size_t *count, const struct extent *e);

enum content_kind {
	CONTENT_SMALL = 1, /* the bytes are in D */
	CONTENT_EXTENTS = 2, /* what no extent covers is zero */
};

struct content {
	/*
	 * The number of the version that this is (drain/order.h), greater than
	 * those of all that the file was before. (Before versions had numbers
	 * it counted the commits of the inode, from 1.) 0: what the file has
	 * taken the place of, kept until its own first one is there.
	 */
	uint64_t generation;
	uint64_t size_bytes;
	uint64_t data_bytes; /* without holes: what st_blocks tells */
	int64_t mtime_ns;
	enum content_kind kind;
	bool native; /* one image, identity, same size: see image.h */
	uint8_t digest[16];
	size_t extent_count;
	struct extent *extents; /* owned, sorted by offset, disjoint */
};
void content_encode(const struct content *c, struct bytes *out);
/* Checks that extents are sorted, disjoint and inside the file. */
int content_decode(const void *p, size_t len, struct content *ret);
void content_release(struct content *c);
/* Which extent ends after off, the first of them; or extent_count. */
size_t extent_find(const struct content *c, uint64_t off);

/*
 * A chunk is found, and so shared, only by files of the domain that it was
 * stored for: what a file takes up would else tell its owner of bytes in files
 * that he may not read. A domain is an owner; files that others may write to
 * are apart from his own, or they could have their guesses compared with
 * those. DOMAIN_ALL is everybody's; its H has no domain in the key, and its K
 * no field, as in stores that know of none.
 */
#define DOMAIN_ALL UINT64_MAX
uint64_t domain_of(const struct attr *a);

struct chunk_rec {
	uint32_t len;
	uint32_t refs; /* how many times files' extents cover it */
	uint8_t hash[16];
	uint64_t domain;
};
void chunk_encode(const struct chunk_rec *k, struct bytes *out);
int chunk_decode(const void *p, size_t len, struct chunk_rec *ret);

/* Where one copy of a chunk lies. */
struct chunk_loc {
	uint64_t image, offset;
	uint32_t len;
};
/*
 * All copies of a chunk that the index knows, the newest first: one at least,
 * all equally long, and each in another image, for a file's repeats of a chunk
 * are one copy. Each has a K of its own.
 */
#define CHUNK_COPIES_MAX 4
struct chunk_locs {
	size_t count;
	struct chunk_loc at[CHUNK_COPIES_MAX];
};
void locs_encode(const struct chunk_locs *l, struct bytes *out);
int locs_decode(const void *p, size_t len, struct chunk_locs *ret);
/*
 * As the newest one, in the stead of one in the same image, or, when there is
 * no room, of the oldest.
 */
void locs_add(struct chunk_locs *l, const struct chunk_loc *one);
/* Nothing, when that place is not in it. */
void locs_remove(struct chunk_locs *l, uint64_t image, uint64_t offset);

struct series_rec {
	uint64_t size_bytes; /* of its last file */
	uint64_t count;
};
void series_encode(const struct series_rec *s, struct bytes *out);
int series_decode(const void *p, size_t len, struct series_rec *ret);

void writer_encode(const struct writer *w, struct bytes *out);
/* Only what writer.h allows: nothing in it needs to be looked at again. */
int writer_decode(const void *p, size_t len, struct writer *ret);

int u64_decode(const void *p, size_t len, uint64_t *ret);

/*
 * In the database; records_kv.c. Who loads gets -ENOENT where there is none,
 * and -EIO where it is damaged; a value of record_load() is the caller's to
 * free. record_find() only asks whether it is there. What is saved, marked (a
 * record without a value), deleted and added becomes so with the batch.
 */
int record_load(struct kv *kv, struct key k, void **ret_value, size_t *ret_len);
int record_find(struct kv *kv, struct key k);
void record_save(struct kv_batch *b, struct key k, const void *value,
		 size_t len);
void record_mark(struct kv_batch *b, struct key k);
void record_delete(struct kv_batch *b, struct key k);
void meta_add(struct kv_batch *b, const char *name, int64_t delta);

int u64_load(struct kv *kv, struct key k, uint64_t *ret);
void u64_save(struct kv_batch *b, struct key k, uint64_t v);
int attr_load(struct kv *kv, struct key k, struct attr *ret);
void attr_save(struct kv_batch *b, struct key k, const struct attr *v);
int dirent_load(struct kv *kv, struct key k, struct dirent_rec *ret);
void dirent_save(struct kv_batch *b, struct key k, const struct dirent_rec *v);
int content_load(struct kv *kv, struct key k, struct content *ret);
void content_save(struct kv_batch *b, struct key k, const struct content *v);
int chunk_load(struct kv *kv, struct key k, struct chunk_rec *ret);
void chunk_save(struct kv_batch *b, struct key k, const struct chunk_rec *v);
int locs_load(struct kv *kv, struct key k, struct chunk_locs *ret);
void locs_save(struct kv_batch *b, struct key k, const struct chunk_locs *v);
int series_load(struct kv *kv, struct key k, struct series_rec *ret);
void series_save(struct kv_batch *b, struct key k, const struct series_rec *v);
int writer_load(struct kv *kv, struct key k, struct writer *ret);
void writer_save(struct kv_batch *b, struct key k, const struct writer *v);

/*
 * Call fn for each record whose key begins with prefix, all of them or from
 * start on, until it returns other than 0, which is returned.
 */
typedef int (*record_fn)(void *arg, struct kv_slice key, struct kv_slice value);
int records_each(struct kv *kv, struct key prefix, record_fn fn, void *arg);
int records_each_from(struct kv *kv, struct key prefix, struct key start,
		      record_fn fn, void *arg);
/* 1: there is a key that begins with prefix; 0: there is none. */
int records_any(struct kv *kv, struct key prefix);

/*
 * Call fn for each chunk that begins in the image's bytes under the extent, in
 * order, until it returns other than 0; a negative answer is returned. k is
 * NULL where the record is damaged.
 */
typedef int (*chunk_fn)(void *arg, uint64_t offset, const struct chunk_rec *k);
int extent_each_chunk(struct kv *kv, const struct extent *e, chunk_fn fn,
		      void *arg);

#endif
