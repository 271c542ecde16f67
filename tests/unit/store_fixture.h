/*
 * store_fixture.h - a directory of one's own for a test, and a small store in
 * it, written record by record: what the check must find fine, and what the
 * tests then break.
 *
 *   /             inode 1
 *   /d            inode 2, a directory
 *   /d/big        inode 3, image 1: two chunks, native; its writer is known
 *   /d/copy       inode 4, the same two chunks, native
 *   /d/sub        inode 10, a directory
 *   /part         inode 5, the first chunk of image 1, then one of image 2
 *   /small        inode 6, 100 bytes in the database; also named /d/again
 *   /new          inode 7, never committed
 *   /sym          inode 8, a symbolic link
 *   (unlinked)    inode 9, the chunk of image 2, still open
 */
#ifndef TESTS_UNIT_STORE_FIXTURE_H
#define TESTS_UNIT_STORE_FIXTURE_H

#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "store/db/hash.h"
#include "store/db/kv.h"
#include "store/db/layout.h"
#include "store/db/records.h"

#define CHUNK_A 65536u /* image 1 at 0 */
#define CHUNK_B 20000u /* image 1 at CHUNK_A */
#define CHUNK_C 5000u /* image 2 at CHUNK_A */
#define SMALL_LEN 100u
#define FIXTURE_NEXT_INO 100
#define FIXTURE_NEXT_IMAGE 10

static inline int remove_one(const char *path, const struct stat *st, int type,
			     struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static inline void remove_tree(const char *path)
{
	(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A new directory; remove_tree() and free() it. */
static inline char *make_tmp(void)
{
	const char *base = getenv("TMPDIR");
	char *path = NULL;

	if (asprintf(&path, "%s/ckptfs-unit-XXXXXX", base ? base : "/tmp") < 0)
		abort();
	if (!mkdtemp(path))
		abort();
	return path;
}

static inline void write_file(int dirfd, const char *name, const void *data,
			      size_t len)
{
	int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0 || write(fd, data, len) != (ssize_t)len || close(fd) < 0)
		abort();
}

struct fixture {
	char *path;
	char *db_path;
	int dirfd, images_dirfd;
	struct kv *kv; /* open for writing, until fixture_reopen() */
	uint8_t secret[HASH_SECRET_BYTES];
	uint8_t bytes[CHUNK_A + CHUNK_B]; /* of image 1; C is its beginning */
};

static inline void fixture_put(struct fixture *f, struct key k,
			       const void *value, size_t len)
{
	struct kv_batch *b = kv_batch_new();

	kv_put(b, k.data, k.len, value, len);
	if (kv_write(f->kv, b) < 0)
		abort();
	kv_batch_free(b);
}

static inline void fixture_delete(struct fixture *f, struct key k)
{
	struct kv_batch *b = kv_batch_new();

	kv_delete(b, k.data, k.len);
	if (kv_write(f->kv, b) < 0)
		abort();
	kv_batch_free(b);
}

static inline void fixture_put_bytes(struct fixture *f, struct key k,
				     struct bytes *value)
{
	if (value->failed)
		abort();
	fixture_put(f, k, value->data, value->len);
	bytes_release(value);
}

static inline void fixture_u64(struct fixture *f, struct key k, uint64_t v)
{
	struct bytes value = { 0 };

	bytes_put_u64(&value, v);
	fixture_put_bytes(f, k, &value);
}

static inline void fixture_attr(struct fixture *f, uint64_t ino,
				const struct attr *a)
{
	struct bytes value = { 0 };

	attr_encode(a, &value);
	fixture_put_bytes(f, key_ino('A', ino), &value);
}

static inline void fixture_inode(struct fixture *f, uint64_t ino,
				 uint32_t mode, uint32_t nlink, uint64_t parent,
				 const char *name)
{
	char target[] = "d/big";
	struct attr a = { .mode = mode, .nlink = nlink, .parent = parent };

	strcpy(a.name, name);
	a.target = S_ISLNK(mode) ? target : NULL;
	fixture_attr(f, ino, &a);
}

static inline void fixture_name(struct fixture *f, uint64_t parent,
				const char *name, uint64_t ino, uint32_t type)
{
	struct dirent_rec d = { .ino = ino, .type = type };
	struct bytes value = { 0 };

	dirent_encode(&d, &value);
	fixture_put_bytes(f, key_dirent(parent, name_hash(name), name), &value);
}

static inline void fixture_content(struct fixture *f, uint64_t ino,
				   const struct content *c)
{
	struct bytes value = { 0 };

	content_encode(c, &value);
	fixture_put_bytes(f, key_ino('F', ino), &value);
}

static inline void fixture_chunk(struct fixture *f, uint64_t image,
				 uint64_t offset, const struct chunk_rec *k)
{
	struct bytes value = { 0 };

	chunk_encode(k, &value);
	fixture_put_bytes(f, key_chunk(image, offset), &value);
}

static inline void fixture_loc(struct fixture *f, const uint8_t hash[16],
			       const struct chunk_loc *one)
{
	struct chunk_locs l = { .count = 0 };
	struct bytes value = { 0 };

	locs_add(&l, one);
	locs_encode(&l, &value);
	fixture_put_bytes(f, key_hash(hash, DOMAIN_ALL), &value);
}

static inline struct chunk_rec fixture_chunk_of(struct fixture *f, size_t at,
						uint32_t len, uint32_t refs)
{
	struct chunk_rec k = { .len = len,
			       .refs = refs,
			       .domain = DOMAIN_ALL };

	chunk_hash(f->secret, f->bytes + at, len, k.hash);
	return k;
}

/* As the drain makes it: over the hashes and lengths of the chunks. */
static inline void fixture_digest(const struct chunk_rec *k, size_t count,
				  uint8_t ret[HASH_BYTES])
{
	struct bytes all = { 0 };
	XXH128_canonical_t canon;

	for (size_t i = 0; i < count; i++) {
		bytes_put(&all, k[i].hash, HASH_BYTES);
		bytes_put_u32(&all, k[i].len);
	}
	XXH128_canonicalFromHash(&canon, XXH3_128bits(all.data, all.len));
	memcpy(ret, canon.digest, HASH_BYTES);
	bytes_release(&all);
}

static inline void fixture_names(struct fixture *f)
{
	struct writer w = { .source = WRITER_ENVIRONMENT, .host = "node" };
	struct bytes value = { 0 };

	fixture_inode(f, 1, S_IFDIR | 0755, 3, 0, "");
	fixture_inode(f, 2, S_IFDIR | 0755, 3, 1, "d");
	fixture_inode(f, 3, S_IFREG | 0644, 1, 2, "big");
	fixture_inode(f, 4, S_IFREG | 0644, 1, 2, "copy");
	fixture_inode(f, 5, S_IFREG | 0644, 1, 1, "part");
	fixture_inode(f, 6, S_IFREG | 0644, 2, 1, "small");
	fixture_inode(f, 7, S_IFREG | 0644, 1, 1, "new");
	fixture_inode(f, 8, S_IFLNK | 0777, 1, 1, "sym");
	fixture_inode(f, 9, S_IFREG | 0644, 0, 0, "");
	fixture_inode(f, 10, S_IFDIR | 0755, 2, 2, "sub");
	fixture_name(f, 1, "d", 2, S_IFDIR);
	fixture_name(f, 2, "big", 3, S_IFREG);
	fixture_name(f, 2, "copy", 4, S_IFREG);
	fixture_name(f, 1, "part", 5, S_IFREG);
	fixture_name(f, 1, "small", 6, S_IFREG);
	fixture_name(f, 2, "again", 6, S_IFREG);
	fixture_name(f, 1, "new", 7, S_IFREG);
	fixture_name(f, 1, "sym", 8, S_IFLNK);
	fixture_name(f, 2, "sub", 10, S_IFDIR);
	fixture_put(f, key_link(6, 2, "again"), "", 0);
	fixture_put(f, key_ino('U', 7), "", 0);
	fixture_put(f, key_ino('O', 9), "", 0);
	fixture_put(f, key_xattr(3, "user.who"), "me", 2);
	writer_encode(&w, &value);
	fixture_put_bytes(f, key_ino('W', 3), &value);
}

static inline void fixture_images(struct fixture *f)
{
	struct chunk_rec a = fixture_chunk_of(f, 0, CHUNK_A, 3);
	struct chunk_rec b = fixture_chunk_of(f, CHUNK_A, CHUNK_B, 2);
	struct chunk_rec c = fixture_chunk_of(f, 0, CHUNK_C, 2);
	struct chunk_loc at_a = { 1, 0, CHUNK_A };
	struct chunk_loc at_b = { 1, CHUNK_A, CHUNK_B };
	int dir1, dir2;

	fixture_chunk(f, 1, 0, &a);
	fixture_chunk(f, 1, CHUNK_A, &b);
	fixture_chunk(f, 2, CHUNK_A, &c); /* and no H of it */
	fixture_loc(f, a.hash, &at_a);
	fixture_loc(f, b.hash, &at_b);
	fixture_u64(f, key_ino('I', 1), CHUNK_A + CHUNK_B);
	fixture_u64(f, key_ino('I', 2), CHUNK_A + CHUNK_C);

	if (mkdirat(f->dirfd, LAYOUT_IMAGE_DIR, 0700) < 0)
		abort();
	f->images_dirfd = openat(f->dirfd, LAYOUT_IMAGE_DIR,
				 O_RDONLY | O_DIRECTORY);
	if (mkdirat(f->images_dirfd, "01", 0700) < 0 ||
	    mkdirat(f->images_dirfd, "02", 0700) < 0)
		abort();
	dir1 = openat(f->images_dirfd, "01", O_RDONLY | O_DIRECTORY);
	dir2 = openat(f->images_dirfd, "02", O_RDONLY | O_DIRECTORY);
	write_file(dir1, "0000000000000001", f->bytes, CHUNK_A + CHUNK_B);
	write_file(dir2, "0000000000000002", f->bytes, 0);
	close(dir1);
	close(dir2);
	dir2 = openat(f->images_dirfd, "02/0000000000000002", O_WRONLY);
	if (pwrite(dir2, f->bytes, CHUNK_C, CHUNK_A) != CHUNK_C)
		abort();
	close(dir2);
}

static inline struct content fixture_big(struct fixture *f,
					 struct extent *e)
{
	struct chunk_rec k[] = { fixture_chunk_of(f, 0, CHUNK_A, 1),
				 fixture_chunk_of(f, CHUNK_A, CHUNK_B, 1) };
	struct content c;

	*e = (struct extent){ 0, CHUNK_A + CHUNK_B, 1, 0 };
	c = (struct content){ .generation = 1,
			      .size_bytes = CHUNK_A + CHUNK_B,
			      .data_bytes = CHUNK_A + CHUNK_B,
			      .kind = CONTENT_EXTENTS,
			      .native = true,
			      .extent_count = 1,
			      .extents = e };
	fixture_digest(k, 2, c.digest);
	return c;
}

static inline struct content fixture_part(struct fixture *f,
					  struct extent e[2])
{
	(void)f; /* it has a hole: its digest is not looked at */
	e[0] = (struct extent){ 0, CHUNK_A, 1, 0 };
	e[1] = (struct extent){ CHUNK_A + 100, CHUNK_C, 2, CHUNK_A };
	return (struct content){ .generation = 2,
				 .size_bytes = 200000,
				 .data_bytes = CHUNK_A + CHUNK_C,
				 .kind = CONTENT_EXTENTS,
				 .extent_count = 2,
				 .extents = e };
}

static inline struct content fixture_small(struct fixture *f)
{
	struct content c = { .generation = 1,
			     .size_bytes = SMALL_LEN,
			     .data_bytes = SMALL_LEN,
			     .kind = CONTENT_SMALL };

	chunk_hash(f->secret, f->bytes, SMALL_LEN, c.digest);
	return c;
}

static inline struct content fixture_gone(struct fixture *f,
					  struct extent *e)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_C, 1);
	struct content c;

	*e = (struct extent){ 0, CHUNK_C, 2, CHUNK_A };
	c = (struct content){ .generation = 1,
			      .size_bytes = CHUNK_C,
			      .data_bytes = CHUNK_C,
			      .kind = CONTENT_EXTENTS,
			      .extent_count = 1,
			      .extents = e };
	fixture_digest(&k, 1, c.digest);
	return c;
}

static inline void fixture_contents(struct fixture *f)
{
	struct extent e[2];
	struct content big = fixture_big(f, &e[0]);
	struct content small = fixture_small(f);
	struct content part, gone;

	fixture_content(f, 3, &big);
	fixture_content(f, 4, &big);
	part = fixture_part(f, e);
	fixture_content(f, 5, &part);
	fixture_content(f, 6, &small);
	fixture_put(f, key_ino('D', 6), f->bytes, SMALL_LEN);
	gone = fixture_gone(f, &e[0]);
	fixture_content(f, 9, &gone);
}

static inline void fixture_settings(struct fixture *f)
{
	struct series_rec s = { .size_bytes = 5, .count = 1 };
	struct bytes value = { 0 };
	uint64_t big = CHUNK_A + CHUNK_B;

	fixture_put(f, key_meta(META_SECRET), f->secret, sizeof(f->secret));
	fixture_u64(f, key_meta(META_NEXT_INO), FIXTURE_NEXT_INO);
	fixture_u64(f, key_meta(META_NEXT_IMAGE), FIXTURE_NEXT_IMAGE);
	fixture_u64(f, key_meta(META_FILES), 5);
	fixture_u64(f, key_meta(META_LOGICAL),
		    2 * big + 200000 + SMALL_LEN + CHUNK_C);
	fixture_u64(f, key_meta(META_PHYSICAL), big + CHUNK_C + SMALL_LEN);
	fixture_u64(f, key_meta(META_CHUNKS), 3);
	fixture_u64(f, key_meta(META_SHARED), 2 * CHUNK_A + CHUNK_B + CHUNK_C);
	fixture_u64(f, key_meta(META_IMAGES), 2);
	series_encode(&s, &value);
	fixture_put_bytes(f, key_series(77), &value);
}

static inline struct fixture *fixture_new(void)
{
	struct fixture *f = calloc(1, sizeof(*f));
	uint32_t x = 1;

	if (!f)
		abort();
	for (size_t i = 0; i < sizeof(f->bytes); i++) {
		x = x * 1664525 + 1013904223;
		f->bytes[i] = (uint8_t)(x >> 24);
	}
	memcpy(f->secret, f->bytes + 1000, sizeof(f->secret));
	f->path = make_tmp();
	if (asprintf(&f->db_path, "%s/" LAYOUT_DB_DIR, f->path) < 0)
		abort();
	f->dirfd = open(f->path, O_RDONLY | O_DIRECTORY);
	if (f->dirfd < 0 || kv_open(f->db_path, true, &f->kv) < 0)
		abort();
	fixture_settings(f);
	fixture_names(f);
	fixture_images(f);
	fixture_contents(f);
	return f;
}

/* As the check opens it. */
static inline void fixture_reopen(struct fixture *f)
{
	kv_close(f->kv);
	if (kv_open_readonly(f->db_path, &f->kv) < 0)
		abort();
}

static inline void fixture_free(struct fixture *f)
{
	kv_close(f->kv);
	close(f->images_dirfd);
	close(f->dirfd);
	remove_tree(f->path);
	free(f->db_path);
	free(f->path);
	free(f);
}

#endif
