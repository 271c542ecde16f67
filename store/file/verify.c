/*
 * verify.c - re-hash a file's committed content, at the disk's or memory's
 * speed: passthrough reads do not pass the daemon, so verify=open does this at
 * a file's first open. The chunks are shared out among a few threads.
 *
 * A chunk that is not what was stored, or that cannot be read, is mended from
 * another copy of it, if there is one (mend.h), and looked at again.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/db/hash.h"
#include "store/file/file_private.h"
#include "store/formats/chunks.h"
#include "store/space/mend.h"

#define VERIFY_THREADS_MAX 8
/* A copy may take the place of an image that was mended just before. */
#define MEND_TRIES 3

struct verify_chunk {
	uint64_t image, offset;
	uint32_t len;
	uint8_t hash[HASH_BYTES];
};

struct verify {
	struct files *fs;
	struct verify_chunk *at;
	size_t count, capacity;
	atomic_size_t next;
	atomic_int rc;
	atomic_size_t mended;
};

struct tiling {
	struct verify *v;
	uint64_t image, at; /* where the next chunk must begin */
};

static int push_chunk(struct verify *v, uint64_t image, uint64_t offset,
		      const struct chunk_rec *k)
{
	struct verify_chunk *c;
	int rc = vec_grow(&v->at, v->count, &v->capacity, sizeof(*v->at));

	if (rc < 0)
		return rc;
	c = &v->at[v->count++];
	*c = (struct verify_chunk){ image, offset, .len = k->len };
	memcpy(c->hash, k->hash, HASH_BYTES);
	return 0;
}

static int add_chunk(void *arg, uint64_t offset, const struct chunk_rec *k)
{
	struct tiling *t = arg;

	if (!k || offset != t->at)
		return -EIO;
	t->at += k->len;
	return push_chunk(t->v, t->image, offset, k);
}

/* All chunks under one extent; they must tile it. */
static int verify_extent(struct verify *v, const struct extent *e)
{
	struct tiling t = { v, e->image, e->image_offset };
	int rc = extent_each_chunk(v->fs->kv, e, add_chunk, &t);

	if (rc < 0)
		return rc;
	return t.at == e->image_offset + e->len ? 0 : -EIO;
}

static bool may_be_written(void *arg, uint64_t image)
{
	struct files *fs = arg;
	struct image *i;
	bool building;

	if (image_get(fs->images, image, &i) < 0)
		return true;
	building = image_is_building(fs->images, i);
	image_put(fs->images, i);
	return building;
}

static struct mend mend_of(struct files *fs)
{
	return (struct mend){
		.kv = fs->kv,
		.images_dirfd = fs->images->dirfd,
		.secret = fs->secret,
		.deciding = reclaim_deciding(fs->reclaim),
		.is_written = may_be_written,
		.arg = fs,
	};
}

/* mend_chunk(), and what it could not do is logged. */
static int mend_one(struct files *fs, const struct verify_chunk *c)
{
	const struct mend m = mend_of(fs);
	int rc = mend_chunk(&m, c->image, c->offset);

	if (rc < 0 && rc != -ENOENT)
		log_warning("image %llu: the chunk at %llu is damaged, and "
			    "mending it from another copy failed: %s",
			    (unsigned long long)c->image,
			    (unsigned long long)c->offset, strerror(-rc));
	return rc;
}

static int look_at_one(struct verify *v, const struct verify_chunk *c,
		       uint8_t *buf)
{
	uint8_t hash[HASH_BYTES];
	int rc;

	if (c->len > CHUNK_BYTES_MAX)
		return -EIO;
	rc = file_read_image(v->fs, c->image, c->offset, buf, c->len);
	if (rc < 0)
		return rc;
	chunk_hash(v->fs->secret, buf, c->len, hash);
	return memcmp(hash, c->hash, HASH_BYTES) == 0 ? 0 : -EIO;
}

static int verify_one(struct verify *v, const struct verify_chunk *c,
		      uint8_t *buf)
{
	int rc = look_at_one(v, c, buf);

	for (unsigned n = 0; rc == -EIO && n < MEND_TRIES; n++) {
		int mended = mend_one(v->fs, c);

		if (mended < 0)
			break;
		atomic_fetch_add(&v->mended, (size_t)mended);
		rc = look_at_one(v, c, buf);
	}
	return rc;
}

static void *verify_main(void *arg)
{
	struct verify *v = arg;
	uint8_t *buf = malloc(CHUNK_BYTES_MAX);
	size_t i;

	if (!buf) {
		atomic_store(&v->rc, -ENOMEM);
		return NULL;
	}
	while ((i = atomic_fetch_add(&v->next, 1)) < v->count &&
	       atomic_load(&v->rc) == 0) {
		int rc = verify_one(v, &v->at[i], buf);

		if (rc < 0)
			atomic_store(&v->rc, rc);
	}
	free(buf);
	return NULL;
}

static int verify_small(struct files *fs, struct inode *in,
			const struct content *content)
{
	SCOPED(scope_free) void *value = NULL;
	uint8_t hash[HASH_BYTES];
	size_t len;
	int rc = record_load(fs->kv, key_ino('D', in->ino), &value, &len);

	if (rc < 0)
		return rc == -ENOENT ? -EIO : rc;
	chunk_hash(fs->secret, value, len, hash);
	return len == content->size_bytes &&
			       memcmp(hash, content->digest, HASH_BYTES) == 0
		       ? 0
		       : -EIO;
}

static int verify_chunks(struct verify *v)
{
	struct thread thread[VERIFY_THREADS_MAX];
	unsigned n = io_cpus(1, VERIFY_THREADS_MAX), started = 0;

	if (v->count < n)
		n = (unsigned)v->count;
	while (started + 1 < n &&
	       thread_create(&thread[started], verify_main, v) == 0)
		started++;
	(void)verify_main(v);
	while (started > 0)
		thread_join(&thread[--started]);
	return atomic_load(&v->rc);
}

static void say_mended(struct files *fs, struct inode *in, size_t count)
{
	char path[4096];

	if (count == 0)
		return;
	inode_path(fs->inodes, in, path, sizeof(path));
	log_warning("%s: %zu part%s of it %s damaged on the disk and %s "
		    "mended (from another copy, or as zeros); run ckptctl "
		    "scrub on the unmounted store",
		    path, count, count == 1 ? "" : "s",
		    count == 1 ? "was" : "were", count == 1 ? "is" : "are");
}

/* Who reads the image in place of the file must find zeros in its holes. */
static int verify_zeros(struct verify *v, const struct content *content)
{
	const struct mend m = mend_of(v->fs);
	uint64_t at = 0;
	int rc = 0;

	if (!content->native || content->extent_count == 0)
		return 0;
	for (size_t i = 0; rc >= 0 && i <= content->extent_count; i++) {
		const struct extent *e =
			i < content->extent_count ? &content->extents[i] : NULL;
		uint64_t end = e ? e->offset : content->size_bytes;

		if (at < end)
			rc = mend_zeros(&m, content->extents[0].image, at, end,
					true);
		if (rc > 0)
			atomic_fetch_add(&v->mended, 1);
		at = e ? e->offset + e->len : end;
	}
	return rc < 0 ? rc : 0;
}

/* -EIO: it differs from its hashes; the log names the file. */
static int verify_content(struct files *fs, struct inode *in,
			  const struct content *content)
{
	struct verify v = { .fs = fs };
	struct reclaim_ticket ticket;
	char path[4096];
	int rc = 0;

	reclaim_enter(fs->reclaim, &ticket);
	if (content->kind == CONTENT_SMALL)
		rc = verify_small(fs, in, content);
	for (size_t i = 0; rc == 0 && i < content->extent_count; i++)
		rc = verify_extent(&v, &content->extents[i]);
	if (rc == 0 && v.count > 0)
		rc = verify_chunks(&v);
	if (rc == 0)
		rc = verify_zeros(&v, content);
	reclaim_leave(fs->reclaim, &ticket);
	free(v.at);
	say_mended(fs, in, atomic_load(&v.mended));
	if (rc < 0) {
		inode_path(fs->inodes, in, path, sizeof(path));
		log_error("%s: its bytes on the disk are not those that were "
			  "written: %s; run ckptctl fsck --scrub on the "
			  "unmounted store",
			  path, strerror(-rc));
	}
	return rc;
}

/* What may hold bytes of [from, ...) of an image. */
struct part {
	struct verify *v;
	uint64_t image, from;
};

static int add_part(void *arg, uint64_t offset, const struct chunk_rec *k)
{
	const struct part *p = arg;

	if (!k)
		return -EIO;
	return offset + k->len > p->from ? push_chunk(p->v, p->image, offset, k)
					 : 0;
}

/* The chunks of one extent that have bytes of [off, end) of the file. */
static int verify_part(struct verify *v, const struct extent *e, uint64_t off,
		       uint64_t end)
{
	uint64_t skip = off > e->offset ? off - e->offset : 0;
	struct part p = { v, e->image, e->image_offset + skip };
	struct extent near = *e;

	if (end < e->offset + e->len)
		near.len = end - e->offset;
	if (skip > CHUNK_BYTES_MAX) { /* none that begins there gets so far */
		near.image_offset += skip - CHUNK_BYTES_MAX;
		near.len -= skip - CHUNK_BYTES_MAX;
	}
	return extent_each_chunk(v->fs->kv, &near, add_part, &p);
}

int file_mend(struct files *fs, struct inode *in, const struct content *c,
	      uint64_t off, size_t len)
{
	struct verify v = { .fs = fs };
	int rc = 0;

	for (size_t i = extent_find(c, off);
	     rc == 0 && i < c->extent_count && c->extents[i].offset < off + len;
	     i++)
		rc = verify_part(&v, &c->extents[i], off, off + len);
	if (rc == 0)
		rc = verify_chunks(&v);
	free(v.at);
	say_mended(fs, in, atomic_load(&v.mended));
	return rc;
}

static bool is_deleted(struct inode *in)
{
	HOLD(&in->lock);
	return in->deleted;
}

/* Every image is there and as long as the content says. */
static int check_images(struct files *fs, struct inode *in,
			const struct content *c)
{
	uint64_t checked = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < c->extent_count; i++) {
		const struct extent *e = &c->extents[i];
		struct image *im;
		struct stat sb;

		if (e->image == checked && i > 0 &&
		    e->image_offset + e->len <= c->extents[i - 1].image_offset)
			continue;
		rc = file_get_image(fs, e->image, &im);
		if (rc < 0)
			break;
		rc = image_stat(fs->images, im, &sb);
		if (rc < 0)
			rc = rc == -ENOENT ? -EIO : rc;
		else if ((uint64_t)sb.st_size < e->image_offset + e->len ||
			 (c->native && (uint64_t)sb.st_size != c->size_bytes))
			rc = -EIO;
		image_put(fs->images, im);
		checked = e->image;
	}
	if (rc < 0 && is_deleted(in))
		return -ESTALE; /* its images may be gone with it */
	if (rc < 0) {
		char path[4096];

		inode_path(fs->inodes, in, path, sizeof(path));
		log_error("%s: an image of it is missing or too short: %s: run "
			  "ckptctl fsck on the unmounted store",
			  path, strerror(-rc));
	}
	return rc;
}

int file_check_content(struct files *fs, struct inode *in)
{
	struct content_ref *content = NULL;
	bool verify;
	int rc;

	{
		HOLD(&in->lock);
		if (!in->file->stage)
			content = content_ref_get(in->file->content);
		verify = fs->verify_at_open && !in->file->verified;
	}
	if (!content)
		return 0;
	rc = check_images(fs, in, &content->c);
	if (rc == 0 && verify)
		rc = verify_content(fs, in, &content->c);
	if (rc == 0 && verify) {
		HOLD(&in->lock);
		in->file->verified = in->file->content == content;
	}
	content_ref_put(content);
	return rc;
}
