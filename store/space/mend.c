/*
 * mend.c - see mend.h.
 *
 * A disk remaps a bad sector when it is written. To write a part of a block the
 * kernel has to read the block first, which is why one that cannot be read is
 * written as a whole. The block that the file ends in has no whole: it is given
 * up (zeroed, without a read) just before.
 */
#include "store/space/mend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/direct.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/db/hash.h"
#include "store/db/layout.h"
#include "store/db/records.h"
#include "store/formats/chunks.h"

#define BLOCK UINT64_C(4096)

/* One chunk that is mended. */
struct mending {
	const struct mend *m;
	struct chunk_loc at;
	struct chunk_rec k;
	uint64_t low, high; /* of the blocks that it lies in */
	uint64_t file_end;
	/* Room for [low, high), aligned: what they are to hold, ... */
	uint8_t *blocks;
	uint8_t *disk; /* and what the disk has */
	uint8_t *other; /* room for a neighbour: CHUNK_BYTES_MAX */
	/* What is to be written: the chunk, and blocks that cannot be read. */
	uint64_t from, to;
	bool tail_lost; /* that which the file ends in is one of them */
};

static int open_image(const struct mend *m, uint64_t image, int flags)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	int fd;

	layout_image_name(image, name);
	fd = openat(m->images_dirfd, name, flags | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

/* The blocks from low on as the disk has them, up to `end` at least. */
static int read_disk(const struct mend *m, uint64_t image, uint64_t low,
		     uint64_t end, uint8_t *blocks)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	size_t want = (size_t)(end - low);
	SCOPED(scope_close) int fd = -1;

	layout_image_name(image, name);
	fd = direct_open(m->images_dirfd, name);
	return fd < 0 ? fd
		      : direct_read(fd, blocks, want,
				    (want + BLOCK - 1) & ~(size_t)(BLOCK - 1),
				    low);
}

/* fn writes to the image while its name means this inode; then it is synced. */
static int write_image(const struct mend *m, uint64_t image,
		       int (*fn)(void *arg, int fd), void *arg)
{
	SCOPED(scope_close) int fd = -1;

	{
		int rc;

		HOLD(m->deciding);
		fd = open_image(m, image, O_RDWR);
		rc = fd < 0 ? fd : fn(arg, fd);
		if (rc < 0)
			return rc;
	}
	return fdatasync(fd) < 0 ? -errno : 0;
}

static bool is_whole(const struct mend *m, const struct chunk_rec *k,
		     const uint8_t *bytes)
{
	uint8_t hash[HASH_BYTES];

	chunk_hash(m->secret, bytes, k->len, hash);
	return memcmp(hash, k->hash, sizeof(hash)) == 0;
}

/* 0: these are the chunk's bytes. -ENOENT: this copy is not whole. */
static int read_place(const struct mend *m, const struct chunk_loc *l,
		      const struct chunk_rec *k, uint8_t *bytes)
{
	SCOPED(scope_close) int fd = open_image(m, l->image, O_RDONLY);
	int rc = fd < 0 ? fd : io_read_full(fd, bytes, l->len, l->offset);

	if (rc == 0 && is_whole(m, k, bytes))
		return 0;
	return rc == 0 || rc == -ESTALE || io_is_medium(rc) ? -ENOENT : rc;
}

/* The bytes of a chunk from a copy of it elsewhere. -ENOENT: none is whole. */
static int read_copy(const struct mend *m, const struct chunk_loc *own,
		     const struct chunk_rec *k, uint8_t *bytes)
{
	struct chunk_locs l;
	int rc = locs_load(m->kv, key_hash(k->hash, k->domain), &l);
	int why = -ENOENT;

	for (size_t i = 0; rc == 0 && i < l.count; i++) {
		const struct chunk_loc *at = &l.at[i];

		if (at->len != k->len ||
		    (at->image == own->image && at->offset == own->offset))
			continue;
		why = read_place(m, at, k, bytes);
		if (why == 0)
			return 0;
	}
	return rc < 0 ? rc : why;
}

/* --- what is beside the chunk --- */

/* What is known of the image's chunks that may reach into [from, to). */
static struct extent chunks_into(uint64_t image, uint64_t from, uint64_t to)
{
	uint64_t begin = from > CHUNK_BYTES_MAX ? from - CHUNK_BYTES_MAX : 0;

	return (struct extent){ .len = to - begin,
				.image = image,
				.image_offset = begin };
}

/* A chunk that is longer than it can be, or that overlaps, is no guide. */
static int check_one(void *arg, uint64_t offset, const struct chunk_rec *k)
{
	const struct mending *w = arg;
	uint64_t end = w->at.offset + w->at.len;

	if (!k || k->len > CHUNK_BYTES_MAX)
		return -EUCLEAN;
	return offset != w->at.offset && offset < end &&
			       offset + k->len > w->at.offset
		       ? -EUCLEAN
		       : 0;
}

/* A block that has more than the chunk's bytes, or not all of a block. */
struct edge {
	struct mending *w;
	uint64_t block; /* where it begins */
	uint64_t from, to; /* its bytes that are not the chunk's; maybe none */
	bool lost; /* it cannot be read */
};

static int fill_from_chunk(void *arg, uint64_t offset,
			   const struct chunk_rec *k)
{
	struct edge *e = arg;
	struct mending *w = e->w;
	uint64_t from = offset > e->from ? offset : e->from;
	uint64_t to = offset + k->len < e->to ? offset + k->len : e->to;
	const struct chunk_loc own = { w->at.image, offset, k->len };
	int rc;

	if (from >= to)
		return 0;
	rc = read_copy(w->m, &own, k, w->other);
	if (rc < 0)
		return rc == -ENOENT ? -EIO : rc;
	memcpy(w->blocks + (from - w->low), w->other + (from - offset),
	       (size_t)(to - from));
	return 0;
}

struct range {
	uint64_t from, to;
};

static int punch_overlaps(void *arg, struct kv_slice key, struct kv_slice value)
{
	const struct range *r = arg;
	uint64_t at, len;

	if (key.len != 17 || u64_decode(value.data, value.len, &len) < 0)
		return -EUCLEAN;
	at = get_be64((const uint8_t *)key.data + 9);
	return at < r->to && len > 0 && at + len > r->from ? -EBUSY : 0;
}

/* -EBUSY: some of it waits to be given back: somebody may still read it. */
static int is_nobodys(const struct mend *m, uint64_t image, uint64_t from,
		      uint64_t to)
{
	struct range r = { from, to };

	return records_each(m->kv, key_ino('P', image), punch_overlaps, &r);
}

/*
 * What is beside the chunk in a block that cannot be read, from the copies of
 * what is there. What no chunk covers, and nobody reads any more, is nothing.
 */
static int edge_replace(struct edge *e)
{
	struct mending *w = e->w;
	const struct extent x = chunks_into(w->at.image, e->from, e->to);
	int rc;

	if (w->m->is_written(w->m->arg, w->at.image))
		return -EBUSY;
	memset(w->blocks + (e->from - w->low), 0, (size_t)(e->to - e->from));
	if (e->from == e->to)
		return 0;
	rc = extent_each_chunk(w->m->kv, &x, fill_from_chunk, e);
	if (rc == 0)
		rc = is_nobodys(w->m, w->at.image, e->from, e->to);
	return rc;
}

static int edge_look(struct edge *e, int fd)
{
	uint64_t left = e->w->file_end - e->block;
	uint8_t block[BLOCK];
	int rc;

	if (e->from == e->to && e->from % BLOCK == 0)
		return 0;
	rc = io_read_full(fd, block, left < BLOCK ? (size_t)left : BLOCK,
			  e->block);
	e->lost = io_is_medium(rc);
	return e->lost ? edge_replace(e) : rc;
}

/*
 * What is to be written, as one piece: nothing has to be read for it then. The
 * blocks at the edges that can be read are in memory now.
 */
static int plan(struct mending *w, int fd)
{
	uint64_t end = w->at.offset + w->at.len;
	struct edge before = { .w = w, .block = w->low };
	struct edge after = { .w = w, .block = end & ~(BLOCK - 1) };
	struct stat st;
	int rc;

	if (fstat(fd, &st) < 0)
		return -errno;
	w->file_end = (uint64_t)st.st_size;
	if (w->file_end < end)
		return -ENODATA; /* more than bytes is missing */
	before.from = w->low;
	before.to = w->at.offset;
	after.from = end;
	after.to = w->high < w->file_end ? w->high : w->file_end;
	rc = edge_look(&before, fd);
	if (rc == 0)
		rc = edge_look(&after, fd);
	w->from = before.lost ? before.from : w->at.offset;
	w->to = after.lost ? after.to : end;
	w->tail_lost = after.lost && w->high > w->file_end;
	return rc;
}

/* --- one chunk --- */

/* Its block stays the file's where that can be: a full disk has no other. */
static int give_up_tail(const struct mending *w, int fd)
{
	off_t block = (off_t)(w->high - BLOCK);

	if (fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, block,
		      (off_t)BLOCK) == 0)
		return 0;
	if (errno == EOPNOTSUPP &&
	    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, block,
		      (off_t)BLOCK) == 0)
		return 0;
	return -errno;
}

static int write_planned(void *arg, int fd)
{
	const struct mending *w = arg;
	int rc = w->tail_lost ? give_up_tail(w, fd) : 0;

	return rc < 0 ? rc
		      : io_write_full(fd, w->blocks + (w->from - w->low),
				      (size_t)(w->to - w->from), w->from);
}

/* 0: it is whole, for who reads it now and after the next start. */
static int look(struct mending *w)
{
	int rc = read_disk(w->m, w->at.image, w->low, w->at.offset + w->at.len,
			   w->disk);

	if (rc < 0)
		return rc;
	if (!is_whole(w->m, &w->k, w->disk + (w->at.offset - w->low)))
		return -EIO;
	rc = read_place(w->m, &w->at, &w->k, w->other);
	return rc == -ENOENT ? -EIO : rc;
}

static int mend_it(struct mending *w)
{
	const struct extent x = chunks_into(w->at.image, w->low, w->high);
	SCOPED(scope_close) int fd = -1;
	int rc = extent_each_chunk(w->m->kv, &x, check_one, w);

	if (rc == 0)
		rc = read_copy(w->m, &w->at, &w->k,
			       w->blocks + (w->at.offset - w->low));
	if (rc < 0)
		return rc;
	if (look(w) == 0)
		return 0;
	fd = open_image(w->m, w->at.image, O_RDONLY);
	rc = fd < 0 ? fd : plan(w, fd);
	if (rc == 0)
		rc = write_image(w->m, w->at.image, write_planned, w);
	if (rc == 0)
		rc = look(w);
	return rc < 0 ? rc : 1;
}

static uint8_t *new_blocks(const struct mending *w)
{
	void *p = NULL;

	return posix_memalign(&p, BLOCK, (size_t)(w->high - w->low)) == 0
		       ? p
		       : NULL;
}

int mend_chunk(const struct mend *m, uint64_t image, uint64_t offset)
{
	SCOPED(scope_free) uint8_t *blocks = NULL, *disk = NULL, *other = NULL;
	struct mending w = { .m = m };
	int rc = chunk_load(m->kv, key_chunk(image, offset), &w.k);

	if (rc < 0)
		return rc == -ENOENT ? -EIO : rc;
	if (w.k.len > CHUNK_BYTES_MAX || offset > INT64_MAX - w.k.len - BLOCK)
		return -EUCLEAN;
	w.at = (struct chunk_loc){ image, offset, w.k.len };
	w.low = offset & ~(BLOCK - 1);
	w.high = (offset + w.k.len + BLOCK - 1) & ~(BLOCK - 1);
	w.blocks = blocks = new_blocks(&w);
	w.disk = disk = new_blocks(&w);
	w.other = other = malloc(CHUNK_BYTES_MAX);
	return blocks && disk && other ? mend_it(&w) : -ENOMEM;
}

/* --- what no chunk covers --- */

#define ZEROS_BYTES (UINT64_C(256) << 10)

/* A piece of an image that is to be zeros. */
struct zeros {
	const struct mend *m;
	uint64_t image, from, to;
	uint64_t file_end;
	uint8_t *buffer; /* for its blocks, aligned */
};

static bool is_zero(const uint8_t *bytes, size_t len)
{
	return len == 0 ||
	       (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}

/* 0: it is, on the disk and in memory. -EIO: it is not, or cannot be read. */
static int zeros_look(const struct zeros *z)
{
	uint64_t low = z->from & ~(BLOCK - 1);
	size_t len = (size_t)(z->to - z->from);
	SCOPED(scope_close) int fd = -1;
	int rc = read_disk(z->m, z->image, low, z->to, z->buffer);

	if (rc == 0 && !is_zero(z->buffer + (z->from - low), len))
		return -EIO;
	if (rc == 0) {
		fd = open_image(z->m, z->image, O_RDONLY);
		rc = fd < 0 ? fd : io_read_full(fd, z->buffer, len, z->from);
	}
	if (rc == 0 && !is_zero(z->buffer, len))
		return -EIO;
	return io_is_medium(rc) ? -EIO : rc;
}

/* Whole blocks are given up, also the file's last; parts of others written. */
static int zeros_write(void *arg, int fd)
{
	const struct zeros *z = arg;
	uint64_t low = (z->from + BLOCK - 1) & ~(BLOCK - 1);
	uint64_t high = z->to == z->file_end
				? (z->to + BLOCK - 1) & ~(BLOCK - 1)
				: z->to & ~(BLOCK - 1);
	uint64_t first_end = low < z->to ? low : z->to;
	int rc;

	memset(z->buffer, 0, (size_t)BLOCK);
	rc = io_write_full(fd, z->buffer, (size_t)(first_end - z->from),
			   z->from);
	if (rc == 0 && high > low &&
	    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)low, (off_t)(high - low)) < 0)
		rc = -errno;
	if (rc == 0 && high >= low && high < z->to)
		rc = io_write_full(fd, z->buffer, (size_t)(z->to - high), high);
	return rc;
}

static int zeros_mend(struct zeros *z, bool write)
{
	int rc = zeros_look(z);

	if (rc != -EIO)
		return rc;
	rc = z->m->is_written(z->m->arg, z->image)
		     ? -EBUSY
		     : is_nobodys(z->m, z->image, z->from, z->to);
	if (rc < 0)
		return rc == -EBUSY ? 0 : rc;
	if (!write)
		return -EIO;
	rc = write_image(z->m, z->image, zeros_write, z);
	if (rc == 0)
		rc = zeros_look(z);
	return rc < 0 ? rc : 1;
}

/* What lies in [*at, to), from the next data on; false: no more. */
static bool next_piece(int fd, uint64_t to, uint64_t *at, struct zeros *z)
{
	off_t data = lseek(fd, (off_t)*at, SEEK_DATA), hole;

	if (data < 0 || (uint64_t)data >= to)
		return false;
	hole = lseek(fd, data, SEEK_HOLE);
	z->from = (uint64_t)data;
	z->to = hole < 0 || (uint64_t)hole > to ? to : (uint64_t)hole;
	/* It ends where a block does, so that one is not looked at twice. */
	if (z->to - z->from > ZEROS_BYTES)
		z->to = (z->from + ZEROS_BYTES) & ~(BLOCK - 1);
	*at = z->to;
	return true;
}

int mend_zeros(const struct mend *m, uint64_t image, uint64_t from, uint64_t to,
	       bool write)
{
	SCOPED(scope_close) int fd = open_image(m, image, O_RDONLY);
	SCOPED(scope_free) void *buffer = NULL;
	struct zeros z = { .m = m, .image = image };
	struct stat st;
	int rc = 0, mended = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		return fd < 0 ? fd : -errno;
	if (posix_memalign(&buffer, BLOCK, ZEROS_BYTES + 2 * BLOCK) != 0)
		return -ENOMEM;
	z.buffer = buffer;
	z.file_end = (uint64_t)st.st_size;
	if (to > z.file_end)
		to = z.file_end;
	while (rc >= 0 && from < to && next_piece(fd, to, &from, &z)) {
		rc = zeros_mend(&z, write);
		mended |= rc == 1;
	}
	return rc < 0 ? rc : mended;
}
