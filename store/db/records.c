/* records.c - see records.h. */
#include "store/db/records.h"

#include <sys/stat.h>
#include <xxhash.h>

#include "store/base/scope.h"

#define EXTENT_BYTES 32u
#define SYMLINK_BYTES_MAX 4096u
/* In the length of a chunk: its domain follows. */
#define CHUNK_OF_DOMAIN (UINT32_C(1) << 31)

static void key_put_u64(struct key *k, uint64_t v)
{
	put_be64(k->data + k->len, v);
	k->len += 8;
}

static void key_put_name(struct key *k, const char *name)
{
	size_t len = strlen(name);

	CHECK(len <= STORE_NAME_MAX);
	CHECK(len <= sizeof(k->data) - k->len);
	memcpy(k->data + k->len, name, len);
	k->len += len;
}

struct key key_kind(char kind)
{
	struct key k;

	k.data[0] = (uint8_t)kind;
	k.len = 1;
	return k;
}

struct key key_ino(char kind, uint64_t ino)
{
	struct key k = key_kind(kind);

	key_put_u64(&k, ino);
	return k;
}

static struct key key_pair(char kind, uint64_t a, uint64_t b)
{
	struct key k = key_ino(kind, a);

	key_put_u64(&k, b);
	return k;
}

struct key key_dirent(uint64_t parent, uint64_t hash, const char *name)
{
	struct key k = key_pair('E', parent, hash);

	key_put_name(&k, name);
	return k;
}

struct key key_dir_at(uint64_t parent, uint64_t hash)
{
	return key_pair('E', parent, hash);
}

struct key key_xattr(uint64_t ino, const char *name)
{
	struct key k = key_ino('X', ino);

	key_put_name(&k, name);
	return k;
}

struct key key_link(uint64_t ino, uint64_t parent, const char *name)
{
	struct key k = key_pair('L', ino, parent);

	key_put_name(&k, name);
	return k;
}

struct key key_chunk(uint64_t image, uint64_t offset)
{
	return key_pair('K', image, offset);
}

struct key key_punch(uint64_t image, uint64_t offset)
{
	return key_pair('P', image, offset);
}

struct key key_hash(const uint8_t hash[16], uint64_t domain)
{
	struct key k = key_kind('H');

	memcpy(k.data + 1, hash, 16);
	k.len = 17;
	if (domain != DOMAIN_ALL)
		key_put_u64(&k, domain);
	return k;
}

/* What no group has; the first of them is no valid number at all. */
#define WRITERS_OWNER UINT32_MAX
#define WRITERS_ALL (UINT32_MAX - 1)

uint64_t domain_of(const struct attr *a)
{
	uint64_t writers = WRITERS_OWNER;

	if (a->mode & S_IWOTH)
		writers = WRITERS_ALL;
	else if (a->mode & S_IWGRP)
		writers = a->gid;
	return writers << 32 | a->uid;
}

struct key key_series(uint64_t series)
{
	return key_ino('S', series);
}

struct key key_meta(const char *name)
{
	struct key k = key_kind('M');

	key_put_name(&k, name);
	return k;
}

uint64_t name_hash(const char *name)
{
	uint64_t h = XXH3_64bits(name, strlen(name)) >> 2;

	return h < 4 ? h + 4 : h;
}

void attr_encode(const struct attr *a, struct bytes *out)
{
	size_t name_len = strlen(a->name);
	size_t target_len = a->target ? strlen(a->target) : 0;

	bytes_put_u32(out, a->mode);
	bytes_put_u32(out, a->uid);
	bytes_put_u32(out, a->gid);
	bytes_put_u32(out, a->nlink);
	bytes_put_u64(out, a->rdev);
	bytes_put_u64(out, (uint64_t)a->atime_ns);
	bytes_put_u64(out, (uint64_t)a->mtime_ns);
	bytes_put_u64(out, (uint64_t)a->ctime_ns);
	bytes_put_u64(out, a->mtime_gen);
	bytes_put_u64(out, a->parent);
	bytes_put_u16(out, (uint16_t)name_len);
	bytes_put(out, a->name, name_len);
	bytes_put_u16(out, (uint16_t)target_len);
	bytes_put(out, a->target, target_len);
}

int attr_decode(const void *p, size_t len, struct attr *ret_attr)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	struct attr a = { 0 };
	const void *text;
	size_t n, name_len;

	a.mode = bytes_take_u32(&r);
	a.uid = bytes_take_u32(&r);
	a.gid = bytes_take_u32(&r);
	a.nlink = bytes_take_u32(&r);
	a.rdev = bytes_take_u64(&r);
	a.atime_ns = (int64_t)bytes_take_u64(&r);
	a.mtime_ns = (int64_t)bytes_take_u64(&r);
	a.ctime_ns = (int64_t)bytes_take_u64(&r);
	a.mtime_gen = bytes_take_u64(&r);
	a.parent = bytes_take_u64(&r);
	n = bytes_take_u16(&r);
	if (n > STORE_NAME_MAX)
		return -EIO;
	text = bytes_take(&r, n);
	if (text)
		memcpy(a.name, text, n);
	name_len = n;
	n = bytes_take_u16(&r);
	if (n > SYMLINK_BYTES_MAX)
		return -EIO;
	text = bytes_take(&r, n);
	if (r.bad || r.left != 0 || strlen(a.name) != name_len ||
	    (n > 0 && memchr(text, 0, n) != NULL))
		return -EIO;
	if (n > 0) {
		a.target = malloc(n + 1);
		if (!a.target)
			return -ENOMEM;
		memcpy(a.target, text, n);
		a.target[n] = 0;
	}
	*ret_attr = a;
	return 0;
}

void attr_release(struct attr *a)
{
	free(a->target);
	a->target = NULL;
}

void dirent_encode(const struct dirent_rec *d, struct bytes *out)
{
	bytes_put_u64(out, d->ino);
	bytes_put_u32(out, d->type);
}

int dirent_decode(const void *p, size_t len, struct dirent_rec *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	struct dirent_rec d;

	d.ino = bytes_take_u64(&r);
	d.type = bytes_take_u32(&r);
	if (r.bad || r.left != 0 || d.ino == 0 ||
	    (d.type & ~(uint32_t)S_IFMT) != 0)
		return -EIO;
	*ret = d;
	return 0;
}

void extent_append(struct extent *at, size_t *count, const struct extent *e)
{
	struct extent *last = *count > 0 ? &at[*count - 1] : NULL;

	if (last && last->offset + last->len == e->offset &&
	    last->image == e->image &&
	    last->image_offset + last->len == e->image_offset)
		last->len += e->len;
	else
		at[(*count)++] = *e;
}

void content_encode(const struct content *c, struct bytes *out)
{
	bytes_put_u64(out, c->generation);
	bytes_put_u64(out, c->size_bytes);
	bytes_put_u64(out, c->data_bytes);
	bytes_put_u64(out, (uint64_t)c->mtime_ns);
	bytes_put_u8(out, (uint8_t)c->kind);
	bytes_put_u8(out, c->native);
	bytes_put(out, c->digest, sizeof(c->digest));
	bytes_put_u64(out, c->extent_count);
	for (size_t i = 0; i < c->extent_count; i++) {
		const struct extent *e = &c->extents[i];

		bytes_put_u64(out, e->offset);
		bytes_put_u64(out, e->len);
		bytes_put_u64(out, e->image);
		bytes_put_u64(out, e->image_offset);
	}
}

static int extents_decode(struct bytes_reader *r, struct content *c)
{
	uint64_t end = 0;

	if (c->extent_count != r->left / EXTENT_BYTES ||
	    r->left % EXTENT_BYTES != 0)
		return -EIO;
	if (c->extent_count == 0)
		return 0;
	c->extents = calloc(c->extent_count, sizeof(*c->extents));
	if (!c->extents)
		return -ENOMEM;
	for (size_t i = 0; i < c->extent_count; i++) {
		struct extent *e = &c->extents[i];

		e->offset = bytes_take_u64(r);
		e->len = bytes_take_u64(r);
		e->image = bytes_take_u64(r);
		e->image_offset = bytes_take_u64(r);
		if (e->len == 0 || e->image == 0 || e->offset < end ||
		    e->offset > c->size_bytes ||
		    e->len > c->size_bytes - e->offset ||
		    e->image_offset > INT64_MAX ||
		    e->len > INT64_MAX - e->image_offset)
			return -EIO;
		end = e->offset + e->len;
	}
	return 0;
}

int content_decode(const void *p, size_t len, struct content *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	struct content c = { 0 };
	const void *digest;
	uint8_t kind, native;
	int rc;

	c.generation = bytes_take_u64(&r);
	c.size_bytes = bytes_take_u64(&r);
	c.data_bytes = bytes_take_u64(&r);
	c.mtime_ns = (int64_t)bytes_take_u64(&r);
	kind = bytes_take_u8(&r);
	native = bytes_take_u8(&r);
	c.native = native == 1;
	digest = bytes_take(&r, sizeof(c.digest));
	c.extent_count = bytes_take_u64(&r);
	if (r.bad || c.size_bytes > INT64_MAX || native > 1 ||
	    (kind != CONTENT_SMALL && kind != CONTENT_EXTENTS))
		return -EIO;
	c.kind = kind;
	memcpy(c.digest, digest, sizeof(c.digest));
	if (c.kind == CONTENT_SMALL &&
	    (c.size_bytes > SMALL_BYTES_MAX || c.extent_count != 0))
		return -EIO;
	rc = extents_decode(&r, &c);
	if (rc < 0) {
		content_release(&c);
		return rc;
	}
	*ret = c;
	return 0;
}

size_t extent_find(const struct content *c, uint64_t off)
{
	size_t low = 0, high = c->extent_count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (c->extents[mid].offset + c->extents[mid].len <= off)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

void content_release(struct content *c)
{
	free(c->extents);
	c->extents = NULL;
	c->extent_count = 0;
}

void chunk_encode(const struct chunk_rec *k, struct bytes *out)
{
	CHECK(!(k->len & CHUNK_OF_DOMAIN));
	bytes_put_u32(out, k->domain == DOMAIN_ALL ? k->len
						   : k->len | CHUNK_OF_DOMAIN);
	bytes_put_u32(out, k->refs);
	bytes_put(out, k->hash, sizeof(k->hash));
	if (k->domain != DOMAIN_ALL)
		bytes_put_u64(out, k->domain);
}

int chunk_decode(const void *p, size_t len, struct chunk_rec *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	struct chunk_rec k = { .domain = DOMAIN_ALL };
	const void *hash;

	k.len = bytes_take_u32(&r);
	k.refs = bytes_take_u32(&r);
	hash = bytes_take(&r, sizeof(k.hash));
	if (k.len & CHUNK_OF_DOMAIN) {
		k.len &= ~CHUNK_OF_DOMAIN;
		k.domain = bytes_take_u64(&r);
		r.bad = r.bad || k.domain == DOMAIN_ALL;
	}
	if (r.bad || r.left != 0 || k.len == 0)
		return -EIO;
	memcpy(k.hash, hash, sizeof(k.hash));
	*ret = k;
	return 0;
}

void locs_encode(const struct chunk_locs *l, struct bytes *out)
{
	for (size_t i = 0; i < l->count; i++) {
		bytes_put_u64(out, l->at[i].image);
		bytes_put_u64(out, l->at[i].offset);
		bytes_put_u32(out, l->at[i].len);
	}
}

int locs_decode(const void *p, size_t len, struct chunk_locs *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	struct chunk_locs l = { .count = 0 };

	do {
		struct chunk_loc *at = &l.at[l.count++];

		at->image = bytes_take_u64(&r);
		at->offset = bytes_take_u64(&r);
		at->len = bytes_take_u32(&r);
		if (r.bad || at->image == 0 || at->offset > INT64_MAX ||
		    at->len == 0 || at->len != l.at[0].len)
			return -EIO;
	} while (r.left > 0 && l.count < CHUNK_COPIES_MAX);
	if (r.left > 0)
		return -EIO;
	*ret = l;
	return 0;
}

void locs_add(struct chunk_locs *l, const struct chunk_loc *one)
{
	size_t at = 0;

	while (at < l->count && l->at[at].image != one->image)
		at++;
	if (at == l->count && l->count < CHUNK_COPIES_MAX)
		l->count++;
	at = at < l->count ? at : l->count - 1;
	memmove(&l->at[1], &l->at[0], at * sizeof(*l->at));
	l->at[0] = *one;
}

void locs_remove(struct chunk_locs *l, uint64_t image, uint64_t offset)
{
	size_t left = 0;

	for (size_t i = 0; i < l->count; i++)
		if (l->at[i].image != image || l->at[i].offset != offset)
			l->at[left++] = l->at[i];
	l->count = left;
}

void series_encode(const struct series_rec *s, struct bytes *out)
{
	bytes_put_u64(out, s->size_bytes);
	bytes_put_u64(out, s->count);
}

int series_decode(const void *p, size_t len, struct series_rec *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	struct series_rec s;

	s.size_bytes = bytes_take_u64(&r);
	s.count = bytes_take_u64(&r);
	if (r.bad || r.left != 0)
		return -EIO;
	*ret = s;
	return 0;
}

void writer_encode(const struct writer *w, struct bytes *out)
{
	size_t host_len = strlen(w->host), job_len = strlen(w->job);

	bytes_put_u8(out, (uint8_t)w->source);
	bytes_put_u8(out, (uint8_t)w->kind);
	bytes_put_u32(out, w->rank);
	bytes_put_u32(out, w->world_size);
	bytes_put_u8(out, (uint8_t)host_len);
	bytes_put(out, w->host, host_len);
	bytes_put_u8(out, (uint8_t)job_len);
	bytes_put(out, w->job, job_len);
}

/* False: it is too long, or not what writer_set_text() lets through. */
static bool writer_take_text(struct bytes_reader *r, char *ret, size_t max)
{
	size_t len = bytes_take_u8(r);
	const void *text = bytes_take(r, len);

	if (r->bad)
		return false;
	writer_set_text(ret, max, text, len);
	return strlen(ret) == len;
}

int writer_decode(const void *p, size_t len, struct writer *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	struct writer w = { 0 };
	uint8_t source = bytes_take_u8(&r), kind = bytes_take_u8(&r);

	w.rank = bytes_take_u32(&r);
	w.world_size = bytes_take_u32(&r);
	if (!writer_take_text(&r, w.host, WRITER_HOST_MAX) ||
	    !writer_take_text(&r, w.job, WRITER_JOB_MAX) || r.left != 0 ||
	    source > WRITER_NAME || kind > WRITER_MODEL_PARALLEL ||
	    w.rank > WRITER_RANK_MAX ||
	    (w.world_size != 0 && w.rank >= w.world_size) ||
	    (source == WRITER_NOWHERE &&
	     (kind != WRITER_GLOBAL || w.rank != 0 || w.world_size != 0)))
		return -EIO;
	w.source = source;
	w.kind = kind;
	*ret = w;
	return 0;
}

int u64_decode(const void *p, size_t len, uint64_t *ret)
{
	struct bytes_reader r = bytes_reader_of(p, len);
	uint64_t v = bytes_take_u64(&r);

	if (r.bad || r.left != 0)
		return -EIO;
	*ret = v;
	return 0;
}
