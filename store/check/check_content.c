/*
 * check_content.c - the part of the check that looks at bytes without reading
 * them: K, H, I, P, D and F, and which image files there are. After it every
 * file is known to consist of whole chunks that lie in images which are long
 * enough, and the reference counts to equal a recount.
 */
#include <errno.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/check/check_work.h"
#include "store/formats/cut.h"

/* Of an H of one domain. */
#define HASH_DOMAIN_KEY_BYTES (1 + HASH_BYTES + 8)
#define ADVICE_FILE "restore it from another copy, or delete it"

/* K: fills the tables of chunks and of images. */

/* The image that the next chunk lies in; they come in order. */
static int chunk_image(struct check *c, uint64_t id)
{
	int rc;

	if (c->image_count > 0 && c->images[c->image_count - 1].id == id)
		return 0;
	rc = vec_grow(&c->images, c->image_count, &c->image_capacity,
		      sizeof(*c->images));
	if (rc < 0)
		return rc;
	c->images[c->image_count++] = (struct check_image){
		.id = id,
		.file_bytes = IMAGE_NO_FILE,
		.first_chunk = c->chunk_count,
	};
	return 0;
}

static int chunk_add(struct check *c, uint64_t image, uint64_t offset,
		     const struct chunk_rec *k)
{
	struct check_image *i;
	int rc;

	rc = chunk_image(c, image);
	if (rc == 0)
		rc = vec_grow(&c->chunks, c->chunk_count, &c->chunk_capacity,
			      sizeof(*c->chunks));
	if (rc < 0)
		return rc;
	i = &c->images[c->image_count - 1];
	c->chunks[c->chunk_count++] = (struct check_chunk){
		.offset = offset,
		.len = k->len,
		.image_index = (uint32_t)(c->image_count - 1),
		.hash_tag = check_hash_tag(k->hash, k->domain),
		.refs_left = k->refs,
	};
	i->chunk_count++;
	if (offset < i->end)
		check_report(c, "overlap", check_image_name(c, image),
			     "the chunk at %llu begins inside the one before "
			     "it; " CHECK_ADVICE_INDEX,
			     (unsigned long long)offset);
	if (offset + k->len > i->end)
		i->end = offset + k->len;
	return 0;
}

static int check_chunk(struct check *c, const struct check_record *r)
{
	uint64_t image, offset;
	struct chunk_rec k;

	if (r->key_len != 17 || chunk_decode(r->value, r->value_len, &k) < 0)
		return check_report_record(c, r);
	image = get_be64(r->key + 1);
	offset = get_be64(r->key + 9);
	if (image == 0 || offset > INT64_MAX - UINT32_MAX ||
	    k.len > CHUNK_BYTES_MAX || c->image_count == UINT32_MAX)
		return check_report_record(c, r);
	if (k.refs == 0)
		check_report(c, "refs", check_image_name(c, image),
			     "the chunk at %llu is recorded as used by no "
			     "file, but is still there; " CHECK_ADVICE_INDEX,
			     (unsigned long long)offset);
	c->result->chunks++;
	c->result->physical_bytes += k.len;
	c->result->shared_bytes +=
		k.refs > 1 ? (k.refs - 1) * (uint64_t)k.len : 0;
	return chunk_add(c, image, offset, &k);
}

/* The chunk at exactly this place, or NULL. */
static const struct check_chunk *chunk_at(struct check *c, uint64_t image,
					  uint64_t offset)
{
	const struct check_image *i = check_find_image(c, image);
	size_t n = i ? check_find_chunk(c, i, offset) : 0;

	return i && n < i->first_chunk + i->chunk_count &&
			       c->chunks[n].offset == offset
		       ? &c->chunks[n]
		       : NULL;
}

static void check_copy(struct check *c, const struct chunk_loc *l,
		       uint32_t hash_tag)
{
	const struct check_chunk *k = chunk_at(c, l->image, l->offset);

	if (k && k->len == l->len && k->hash_tag == hash_tag)
		return;
	check_report(c, "hash", check_image_name(c, l->image),
		     "a hash in the index leads to %u bytes at %llu, but no "
		     "chunk with that hash and length is "
		     "there; " CHECK_ADVICE_INDEX,
		     l->len, (unsigned long long)l->offset);
}

static int check_hash(struct check *c, const struct check_record *r)
{
	uint64_t domain = DOMAIN_ALL;
	struct chunk_locs l;

	if (r->key_len == HASH_DOMAIN_KEY_BYTES)
		domain = get_be64(r->key + 1 + HASH_BYTES);
	if ((r->key_len != 1 + HASH_BYTES && domain == DOMAIN_ALL) ||
	    locs_decode(r->value, r->value_len, &l) < 0)
		return check_report_record(c, r);
	for (size_t i = 0; i < l.count; i++)
		check_copy(c, &l.at[i], check_hash_tag(r->key + 1, domain));
	return 0;
}

/* D and F. */

static int check_small(struct check *c, const struct check_record *r)
{
	struct check_inode *i;

	if (r->key_len != 9)
		return check_report_record(c, r);
	i = check_inode_of(c, r, true);
	if (!i)
		return 0;
	if (r->value_len > SMALL_BYTES_MAX)
		return check_report_record(c, r);
	i->flags |= INODE_BYTES;
	i->small_bytes = (uint32_t)r->value_len;
	c->result->physical_bytes += r->value_len;
	return 0;
}

static void report_extent(struct check *c, const struct check_inode *f,
			  const struct extent *e, const char *what)
{
	check_report(c, "extent", check_path(c, f->ino),
		     "bytes %llu to %llu should lie in %s from %llu on, but "
		     "%s; " ADVICE_FILE,
		     (unsigned long long)e->offset,
		     (unsigned long long)(e->offset + e->len),
		     check_image_name(c, e->image),
		     (unsigned long long)e->image_offset, what);
}

/* An extent is covered by whole chunks, one after the other. */
static void check_extent(struct check *c, const struct check_inode *f,
			 const struct extent *e)
{
	const struct check_image *i = check_find_image(c, e->image);
	uint64_t at = e->image_offset, end = at + e->len;
	size_t n, last;

	if (!i) {
		report_extent(c, f, e, "nothing is recorded of that image");
		return;
	}
	last = i->first_chunk + i->chunk_count;
	for (n = check_find_chunk(c, i, at); at < end; n++) {
		if (n == last || c->chunks[n].offset != at) {
			report_extent(c, f, e,
				      at == e->image_offset
					      ? "no chunk begins there"
					      : "the chunks there have gaps");
			return;
		}
		c->chunks[n].refs_left--;
		at += c->chunks[n].len;
	}
	if (at != end)
		report_extent(c, f, e, "the last chunk there is longer");
}

/* Native: the image, read in place of the file, gives the same bytes. */
static bool is_native(struct check *c, const struct content *f)
{
	const struct check_image *i;

	if (f->kind != CONTENT_EXTENTS || f->extent_count == 0)
		return false;
	for (size_t n = 0; n < f->extent_count; n++)
		if (f->extents[n].image != f->extents[0].image ||
		    f->extents[n].image_offset != f->extents[n].offset)
			return false;
	i = check_find_image(c, f->extents[0].image);
	/* That the image is not there was reported; do not repeat it. */
	return !i || i->file_bytes == IMAGE_NO_FILE || i->file_bytes < i->end ||
	       i->file_bytes == f->size_bytes;
}

static void check_file(struct check *c, struct check_inode *i,
		       const struct content *f)
{
	uint64_t covered = f->kind == CONTENT_SMALL ? f->size_bytes : 0;

	for (size_t n = 0; n < f->extent_count; n++) {
		covered += f->extents[n].len;
		check_extent(c, i, &f->extents[n]);
	}
	if (covered != f->data_bytes)
		check_report(c, "data-bytes", check_path(c, i->ino),
			     "holds %llu bytes, but says %llu; its space in "
			     "stat and du is off",
			     (unsigned long long)covered,
			     (unsigned long long)f->data_bytes);
	if (f->native && f->extent_count > 0) {
		struct check_image *image =
			check_find_image(c, f->extents[0].image);

		if (image)
			image->native = true;
	}
	if (f->native && !is_native(c, f))
		check_report(c, "native", check_path(c, i->ino),
			     "says that one image is the whole file, which is "
			     "not so: reading it gives wrong "
			     "bytes; " ADVICE_FILE);
	if (f->kind == CONTENT_SMALL &&
	    (!(i->flags & INODE_BYTES) || i->small_bytes != f->size_bytes))
		check_report(c, "small", check_path(c, i->ino),
			     "has %llu bytes, but %u of them are in the "
			     "database; " ADVICE_FILE,
			     (unsigned long long)f->size_bytes, i->small_bytes);
}

static int check_content_record(struct check *c, const struct check_record *r)
{
	SCOPED(content_release) struct content f = { 0 };
	struct check_inode *i;
	int rc;

	if (r->key_len != 9)
		return check_report_record(c, r);
	i = check_inode_of(c, r, true);
	if (!i)
		return 0;
	i->flags |= INODE_CONTENT;
	rc = content_decode(r->value, r->value_len, &f);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0) {
		check_report(c, "record", check_path(c, i->ino),
			     "the record of what it consists of is not "
			     "understood; " ADVICE_FILE);
		return 0;
	}
	if (f.kind == CONTENT_SMALL)
		i->flags |= INODE_SMALL;
	if (!check_number(c, f.generation))
		check_report(c, "number", check_path(c, i->ino),
			     "the record of its content has the number %llu, "
			     "which no store gives; its bytes are not "
			     "affected, and what is saved over it gets a right "
			     "one",
			     (unsigned long long)f.generation);
	c->result->logical_bytes += f.size_bytes;
	check_file(c, i, &f);
	return 0;
}

static void check_has_content(struct check *c, const struct check_inode *i)
{
	bool content = i->flags & INODE_CONTENT;
	bool fresh = i->flags & INODE_FRESH;

	if (!S_ISREG(i->mode))
		return;
	if (i->names > 0 && !content && !fresh)
		check_report(c, "no-content", check_path(c, i->ino),
			     "nothing is recorded of what it consists "
			     "of; " ADVICE_FILE);
	if (content && fresh)
		check_report(c, "fresh", check_path(c, i->ino),
			     "is committed, but is recorded as new too, so "
			     "that the next mount may remove it; make a copy "
			     "of the store before that");
	if ((i->flags & INODE_BYTES) && !(i->flags & INODE_SMALL))
		check_report(c, "small", check_path(c, i->ino),
			     "has %u bytes in the database, which are not its "
			     "content; " ADVICE_FILE,
			     i->small_bytes);
}

static int check_refs_of(struct check *c, size_t n)
{
	const struct check_chunk *k = &c->chunks[n];
	uint64_t image = c->images[k->image_index].id;
	struct chunk_rec r = { 0 };
	const char *object;
	int rc = chunk_load(c->kv, key_chunk(image, k->offset), &r);

	if (rc < 0)
		return check_database_failed(c, rc);
	object = check_image_name(c, image);
	if (r.refs == k->refs_left)
		check_report(c, "unused", object,
			     "no file uses the chunk at %llu (%u bytes), so "
			     "its space stays in use; " CHECK_ADVICE_INDEX,
			     (unsigned long long)k->offset, k->len);
	else
		check_report(c, "refs", object,
			     "the chunk at %llu is used %u times, but %u are "
			     "recorded, so that deleting files gives its "
			     "space back too %s; " CHECK_ADVICE_INDEX,
			     (unsigned long long)k->offset,
			     r.refs - k->refs_left, r.refs,
			     (int32_t)k->refs_left > 0 ? "late" : "early");
	return 0;
}

static int check_refs(struct check *c)
{
	int rc = 0;

	for (size_t n = 0; rc == 0 && n < c->chunk_count; n++)
		if (c->chunks[n].refs_left != 0)
			rc = check_refs_of(c, n);
	return rc;
}

int check_content(struct check *c)
{
	int rc = check_each(c, 'K', "chunks", check_chunk);

	if (rc == 0)
		rc = check_each(c, 'H', "chunks", check_hash);
	if (rc == 0)
		rc = check_images(c);
	if (rc == 0)
		rc = check_each(c, 'D', "files", check_small);
	if (rc == 0)
		rc = check_each(c, 'F', "files", check_content_record);
	if (rc < 0)
		return rc;
	for (size_t n = 0; n < c->inode_count; n++)
		check_has_content(c, &c->inodes[n]);
	return check_refs(c);
}
