/*
 * live_records.h - what the database and the images of a store hold.
 */
#ifndef TESTS_UNIT_LIVE_RECORDS_H
#define TESTS_UNIT_LIVE_RECORDS_H

#include "tests/unit/live_files.h"

static inline bool live_has(struct live *l, struct key k)
{
	void *value;
	size_t len;
	int rc = kv_get(l->st->kv, k.data, k.len, &value, &len);

	if (rc == 0)
		free(value);
	else
		assert_int_equal(rc, -ENOENT);
	return rc == 0;
}

static inline bool committed(struct live *l, uint64_t ino)
{
	return live_has(l, key_ino('F', ino));
}

/* The committed content of an inode: content_release() it. */
static inline struct content live_content_ino(struct live *l, uint64_t ino)
{
	struct key k = key_ino('F', ino);
	struct content c = { 0 };
	void *value = NULL;
	size_t len;

	assert_int_equal(kv_get(l->st->kv, k.data, k.len, &value, &len), 0);
	assert_int_equal(content_decode(value, len, &c), 0);
	free(value);
	return c;
}

/* What a power cut now would leave of the file; 0: nothing. */
static inline size_t committed_size(struct live *l, const char *path)
{
	uint64_t ino = live_ino(l, path);
	struct content c;
	size_t len;

	if (!committed(l, ino))
		return 0;
	c = live_content_ino(l, ino);
	len = (size_t)c.size_bytes;
	content_release(&c);
	return len;
}

static inline struct content live_content(struct live *l, const char *path)
{
	return live_content_ino(l, live_ino(l, path));
}

static inline bool live_native(struct live *l, const char *path)
{
	struct content c = live_content(l, path);
	bool native = c.native;

	content_release(&c);
	return native;
}

static inline uint64_t live_generation(struct live *l, const char *path)
{
	struct content c = live_content(l, path);
	uint64_t generation = c.generation;

	content_release(&c);
	return generation;
}

static inline uint64_t live_counter(struct live *l, const char *name)
{
	return store_counter(l->st, name);
}

/* Records of this kind. */
static inline unsigned live_records(struct live *l, char kind)
{
	struct kv_slice key, value;
	struct kv_iter *it;
	unsigned n = 0;
	int rc;

	assert_int_equal(kv_iter_new(l->st->kv, &kind, 1, NULL, 0, &it), 0);
	while ((rc = kv_iter_next(it, &key, &value)) == 1)
		n++;
	kv_iter_free(it);
	assert_int_equal(rc, 0);
	return n;
}

/* Image files that hold something, and the bytes that they take of the disk. */
struct live_images {
	unsigned count;
	uint64_t bytes;
};

static inline struct live_images live_images(struct live *l)
{
	struct live_images sum = { 0 };

	for (unsigned x = 0; x < 256; x++) {
		char path[4096];
		struct dirent *d;
		struct stat sb;
		DIR *dir;

		(void)snprintf(path, sizeof(path),
			       "%s/" LAYOUT_IMAGE_DIR "/%02x", l->path, x);
		dir = opendir(path);
		assert_non_null(dir);
		while ((d = readdir(dir)) != NULL) {
			if (d->d_name[0] == '.')
				continue;
			/*
			 * Another thread may just have removed it; empty ones
			 * are kept to be used again.
			 */
			if (fstatat(dirfd(dir), d->d_name, &sb, 0) < 0 ||
			    sb.st_size == 0)
				continue;
			sum.count++;
			sum.bytes += (uint64_t)sb.st_blocks * 512;
		}
		closedir(dir);
	}
	return sum;
}

#endif
