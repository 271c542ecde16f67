/*
 * check_content.c - the part of the check that looks at bytes without reading
 * them: K, H, I, P, D and F, and which image files there are. After it every
 * file is known to consist of whole chunks that lie in images which are long
 * enough, and the reference counts to equal a recount.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/check/check_work.h"
#include "store/formats/cut.h"
#include "store/db/layout.h"

/* Of an H of one domain. */
#define HASH_DOMAIN_KEY_BYTES (1 + HASH_BYTES + 8)
#define ADVICE_FILE "restore it from another copy, or delete it"
#define ADVICE_INDEX "copy the files to a new store"

/* K: fills the tables of chunks and of images. */

/* The image that the next chunk lies in; they come in order. */
static int chunk_image(struct check *c, uint64_t id)
{
	struct check_image *grown;

	if (c->image_count > 0 && c->images[c->image_count - 1].id == id)
		return 0;
	grown = check_grown(c->images, c->image_count, &c->image_capacity,
			    sizeof(*c->images));
	if (!grown)
		return -ENOMEM;
	c->images = grown;
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
	char object[CHECK_IMAGE_BYTES];
	struct check_chunk *grown;
	struct check_image *i;
	int rc;

	rc = chunk_image(c, image);
	if (rc < 0)
		return rc;
	grown = check_grown(c->chunks, c->chunk_count, &c->chunk_capacity,
			    sizeof(*c->chunks));
	if (!grown)
		return -ENOMEM;
	c->chunks = grown;
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
		check_report(c, "overlap", check_image_name(image, object),
			     "%s: the chunk at %llu begins inside the one "
			     "before it; " ADVICE_INDEX,
			     object, (unsigned long long)offset);
	if (offset + k->len > i->end)
		i->end = offset + k->len;
	return 0;
}

static int check_chunk(struct check *c, const struct check_record *r)
{
	char object[CHECK_IMAGE_BYTES];
	uint64_t image, offset;
	struct chunk_rec k;

	if (r->key_len != 17 || chunk_decode(r->value, r->value_len, &k) < 0) {
		check_report_record(c, 'K', r);
		return 0;
	}
	image = get_be64(r->key + 1);
	offset = get_be64(r->key + 9);
	if (image == 0 || offset > INT64_MAX - UINT32_MAX ||
	    k.len > CHUNK_BYTES_MAX || c->image_count == UINT32_MAX) {
		check_report_record(c, 'K', r);
		return 0;
	}
	if (k.refs == 0)
		check_report(c, "refs", check_image_name(image, object),
			     "%s: the chunk at %llu is recorded as used by no "
			     "file, but is still there; " ADVICE_INDEX,
			     object, (unsigned long long)offset);
	c->result->chunks++;
	c->result->physical_bytes += k.len;
	c->result->shared_bytes += k.refs > 1 ? (k.refs - 1) * (uint64_t)k.len :
						0;
	return chunk_add(c, image, offset, &k);
}

/* The chunk at exactly this place, or NULL. */
static const struct check_chunk *chunk_at(struct check *c, uint64_t image,
					  uint64_t offset)
{
	const struct check_image *i = check_find_image(c, image);
	size_t n;

	if (!i)
		return NULL;
	n = check_find_chunk(c, i, offset);
	if (n == i->first_chunk + i->chunk_count ||
	    c->chunks[n].offset != offset)
		return NULL;
	return &c->chunks[n];
}

static int check_hash(struct check *c, const struct check_record *r)
{
	char object[CHECK_IMAGE_BYTES];
	const struct check_chunk *k;
	uint64_t domain = DOMAIN_ALL;
	struct chunk_loc l;

	if (r->key_len == HASH_DOMAIN_KEY_BYTES)
		domain = get_be64(r->key + 1 + HASH_BYTES);
	if ((r->key_len != 1 + HASH_BYTES && domain == DOMAIN_ALL) ||
	    loc_decode(r->value, r->value_len, &l) < 0) {
		check_report_record(c, 'H', r);
		return 0;
	}
	k = chunk_at(c, l.image, l.offset);
	if (k && k->len == l.len && k->hash_tag == check_hash_tag(r->key + 1, domain))
		return 0;
	check_report(c, "hash", check_image_name(l.image, object),
		     "%s: a hash in the index leads to %u bytes at %llu, but "
		     "no chunk with that hash and length is there; "
		     ADVICE_INDEX,
		     object, l.len, (unsigned long long)l.offset);
	return 0;
}

/* I, P and the files. */

/* 1: there is a record of this kind about the image. */
static int has_record(struct check *c, char kind, uint64_t image)
{
	struct key prefix = key_ino(kind, image);
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc;

	rc = kv_iter_new(c->kv, prefix.data, prefix.len, NULL, 0, &it);
	if (rc == 0) {
		rc = kv_iter_next(it, &key, &value);
		kv_iter_free(it);
	}
	return rc < 0 ? check_database_failed(c, rc) : rc;
}

/*
 * An image may be without chunks while the bytes of its last ones are still to
 * be given back: it goes after them.
 */
static int check_empty_image(struct check *c, uint64_t id)
{
	char object[CHECK_IMAGE_BYTES];
	int rc = has_record(c, 'P', id);

	if (rc == 0)
		check_report(c, "empty-image", check_image_name(id, object),
			     "%s: is recorded, but holds no chunk and nothing "
			     "that is to be given back, so its record stays; "
			     ADVICE_INDEX,
			     object);
	return rc < 0 ? rc : 0;
}

static int check_image_record(struct check *c, const struct check_record *r)
{
	char object[CHECK_IMAGE_BYTES];
	struct check_image *i;
	uint64_t bytes;

	if (r->key_len != 9 || u64_decode(r->value, r->value_len, &bytes) < 0) {
		check_report_record(c, 'I', r);
		return 0;
	}
	c->image_records++;
	i = check_find_image(c, get_be64(r->key + 1));
	if (!i)
		return check_empty_image(c, get_be64(r->key + 1));
	i->recorded = true;
	/* Missing or cut short was reported. */
	if (i->file_bytes != IMAGE_NO_FILE && i->file_bytes >= i->end &&
	    i->file_bytes != bytes)
		check_report(c, "image-size", check_image_name(i->id, object),
			     "%s: has %llu bytes, but %llu were recorded; "
			     "run 'ckptctl fsck --scrub' to learn which files "
			     "are damaged",
			     object, (unsigned long long)i->file_bytes,
			     (unsigned long long)bytes);
	return 0;
}

/*
 * Bytes that are to be given back. A chunk may lie there all the same: what
 * is covered by a chunk is not given back, that is looked at just before.
 */
static int check_punch(struct check *c, const struct check_record *r)
{
	uint64_t bytes;

	if (r->key_len != 17 ||
	    u64_decode(r->value, r->value_len, &bytes) < 0 ||
	    get_be64(r->key + 9) > INT64_MAX || bytes > INT64_MAX)
		check_report_record(c, 'P', r);
	return 0;
}

static int check_image_file(struct check *c, size_t index)
{
	struct check_image *i = &c->images[index];
	char object[CHECK_IMAGE_BYTES];
	char name[LAYOUT_IMAGE_NAME_BYTES];
	size_t last = i->first_chunk + i->chunk_count, n;
	struct stat st;

	layout_image_name(i->id, name);
	check_image_name(i->id, object);
	if (c->next_image != 0 && c->next_image <= i->id)
		check_report(c, "next-image", object,
			     "%s: its number is in use, but %llu is to be "
			     "given out next; do not write to this store, copy "
			     "the files to a new one",
			     object, (unsigned long long)c->next_image);
	if (fstatat(c->images_dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(st.st_mode)) {
		check_report(c, "image-missing", object,
			     "%s: its file images/%s is missing; put it back "
			     "from another copy of this store",
			     object, name);
		return check_add_damage(c, i->first_chunk, i->chunk_count,
					-ENOENT);
	}
	i->file_bytes = (uint64_t)st.st_size;
	if (i->file_bytes >= i->end)
		return 0;
	check_report(c, "image-short", object,
		     "%s: its file images/%s was cut short: it has %llu "
		     "bytes, its chunks reach to %llu; put it back from "
		     "another copy of this store",
		     object, name, (unsigned long long)i->file_bytes,
		     (unsigned long long)i->end);
	/* Chunks may overlap when damaged, so look at each end. */
	n = i->first_chunk;
	while (n < last && c->chunks[n].offset + c->chunks[n].len <=
				   i->file_bytes)
		n++;
	return check_add_damage(c, n, last - n, -ENODATA);
}

static int check_image_files(struct check *c)
{
	if (c->image_count > 0 && c->next_image == 0)
		check_report(c, "next-image", "settings",
			     "the next image number is not recorded; do not "
			     "write to this store, copy the files to a new "
			     "one");
	for (size_t n = 0; n < c->image_count; n++) {
		int rc = check_image_file(c, n);

		if (rc < 0)
			return rc;
		check_progress(c, "images", n + 1, c->image_count);
	}
	return 0;
}

static void check_images_recorded(struct check *c)
{
	char object[CHECK_IMAGE_BYTES];

	for (size_t n = 0; n < c->image_count; n++) {
		const struct check_image *i = &c->images[n];

		if (!i->recorded)
			check_report(c, "unrecorded-image",
				     check_image_name(i->id, object),
				     "%s: holds %zu chunks, but is not "
				     "recorded, so that the next mount may "
				     "remove it; make a copy of the store "
				     "before that",
				     object, i->chunk_count);
	}
	c->result->images = c->image_records;
}

/*
 * A number from a name like 000000000000012f, or from that of one that was
 * removed; 0 when it is not one.
 */
static uint64_t image_number(const char *name)
{
	for (size_t n = 0; n < 16; n++)
		if (!isxdigit((unsigned char)name[n]))
			return 0;
	return name[16] == 0 || strcmp(name + 16, LAYOUT_IMAGE_GONE) == 0 ?
		       strtoull(name, NULL, 16) :
		       0;
}

/* Not one byte is in it; the next mount removes it. */
static bool image_is_empty(struct check *c, const char *name)
{
	SCOPED(scope_close)
	int fd = openat(c->images_dirfd, name,
			O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	return fd >= 0 && lseek(fd, 0, SEEK_DATA) < 0 && errno == ENXIO;
}

/*
 * A file without a record: what a daemon left that was killed, if it had
 * recorded that it began it. The next mount removes that. Of any other the
 * database should know.
 */
static int report_unrecorded(struct check *c, uint64_t id, const char *name,
			     const char *object)
{
	int rc = has_record(c, 'P', id);

	if (rc < 0)
		return rc;
	if (rc == 1 || image_is_empty(c, name) ||
	    (c->unfinished_known && id >= c->unfinished_from &&
	     id < c->next_image))
		check_remark(c, "leftover", object,
			     "%s: this image is not in use; the next mount "
			     "removes it",
			     object);
	else
		check_report(c, "unknown-image", object,
			     "%s: the database does not know this image, so "
			     "that no file uses it; it is kept: 'ckptctl "
			     "rebuild' looks whether a file can be had from "
			     "it, and puts it aside if not",
			     object);
	return 0;
}

static int check_leftover(struct check *c, const char *dir, const char *file)
{
	uint64_t id = image_number(file);
	char name[LAYOUT_IMAGE_NAME_BYTES] = "";
	char object[CHECK_OBJECT_BYTES];
	int rc;

	(void)snprintf(object, sizeof(object), "images/%s/%s", dir, file);
	if (id != 0 && file[16] != 0)
		layout_gone_name(id, name);
	else if (id != 0)
		layout_image_name(id, name);
	if (strcmp(object + strlen("images/"), name) != 0) {
		check_remark(c, "foreign-file", object,
			     "%s: this file is not from ckptfs", object);
		return 0;
	}
	if (file[16] == 0 && check_find_image(c, id))
		return 0;
	rc = file[16] == 0 ? has_record(c, 'I', id) : 0;
	if (rc == 0)
		rc = report_unrecorded(c, id, name, object);
	return rc < 0 ? rc : 0;
}

static int check_image_dir(struct check *c, const char *name)
{
	int fd = openat(c->images_dirfd, name,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *d;
	int rc = 0;
	DIR *dir;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	dir = fdopendir(fd);
	if (!dir) {
		(void)close(fd);
		return -ENOMEM;
	}
	while (rc == 0 && (d = readdir(dir)) != NULL)
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
			rc = check_leftover(c, name, d->d_name);
	(void)closedir(dir);
	return rc;
}

static int check_image_dirs(struct check *c)
{
	for (unsigned n = 0; n < 256; n++) {
		char name[3];
		int rc;

		(void)snprintf(name, sizeof(name), "%02x", n);
		rc = check_image_dir(c, name);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* D and F. */

static struct check_inode *regular_of(struct check *c, char kind,
				      const struct check_record *r)
{
	struct check_inode *i;
	char object[64];

	if (r->key_len != 9) {
		check_report_record(c, kind, r);
		return NULL;
	}
	i = check_find_inode(c, get_be64(r->key + 1));
	if (i && S_ISREG(i->mode))
		return i;
	(void)snprintf(object, sizeof(object), "inode %llu",
		       (unsigned long long)get_be64(r->key + 1));
	check_report(c, "no-inode", object,
		     "%s: there is a record %c of it, but no regular file; "
		     "nothing can be reached through it",
		     object, kind);
	return NULL;
}

static int check_small(struct check *c, const struct check_record *r)
{
	struct check_inode *i = regular_of(c, 'D', r);

	if (!i)
		return 0;
	if (r->value_len > SMALL_BYTES_MAX) {
		check_report_record(c, 'D', r);
		return 0;
	}
	i->flags |= INODE_BYTES;
	i->small_bytes = (uint32_t)r->value_len;
	c->result->physical_bytes += r->value_len;
	return 0;
}

static void report_extent(struct check *c, const struct check_inode *f,
			  const struct extent *e, const char *what)
{
	char path[CHECK_OBJECT_BYTES], image[CHECK_IMAGE_BYTES];

	check_report(c, "extent", check_path(c, f->ino, path),
		     "%s: bytes %llu to %llu should lie in %s from %llu on, "
		     "but %s; " ADVICE_FILE,
		     path, (unsigned long long)e->offset,
		     (unsigned long long)(e->offset + e->len),
		     check_image_name(e->image, image),
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
			report_extent(c, f, e, at == e->image_offset ?
				      "no chunk begins there" :
				      "the chunks there have gaps");
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
	return !i || i->file_bytes == IMAGE_NO_FILE ||
	       i->file_bytes < i->end || i->file_bytes == f->size_bytes;
}

static void check_file(struct check *c, struct check_inode *i,
		       const struct content *f)
{
	uint64_t covered = f->kind == CONTENT_SMALL ? f->size_bytes : 0;
	char path[CHECK_OBJECT_BYTES];

	for (size_t n = 0; n < f->extent_count; n++) {
		covered += f->extents[n].len;
		check_extent(c, i, &f->extents[n]);
	}
	if (f->generation == 0)
		check_report(c, "generation", check_path(c, i->ino, path),
			     "%s: has content that was never committed; "
			     ADVICE_FILE,
			     path);
	if (covered != f->data_bytes)
		check_report(c, "data-bytes", check_path(c, i->ino, path),
			     "%s: holds %llu bytes, but says %llu; its space "
			     "in stat and du is off",
			     path, (unsigned long long)covered,
			     (unsigned long long)f->data_bytes);
	if (f->native && !is_native(c, f))
		check_report(c, "native", check_path(c, i->ino, path),
			     "%s: says that one image is the whole file, which "
			     "is not so: reading it gives wrong bytes; "
			     ADVICE_FILE,
			     path);
	if (f->kind == CONTENT_SMALL && (!(i->flags & INODE_BYTES) ||
					 i->small_bytes != f->size_bytes))
		check_report(c, "small", check_path(c, i->ino, path),
			     "%s: has %llu bytes, but %u of them are in the "
			     "database; " ADVICE_FILE,
			     path, (unsigned long long)f->size_bytes,
			     i->small_bytes);
}

static int check_content_record(struct check *c, const struct check_record *r)
{
	struct check_inode *i = regular_of(c, 'F', r);
	struct content f;
	int rc;

	if (!i)
		return 0;
	i->flags |= INODE_CONTENT;
	rc = content_decode(r->value, r->value_len, &f);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0) {
		char path[CHECK_OBJECT_BYTES];

		check_report(c, "record", check_path(c, i->ino, path),
			     "%s: the record of what it consists of is not "
			     "understood; " ADVICE_FILE,
			     path);
		return 0;
	}
	if (f.kind == CONTENT_SMALL)
		i->flags |= INODE_SMALL;
	c->result->logical_bytes += f.size_bytes;
	check_file(c, i, &f);
	content_release(&f);
	return 0;
}

static void check_has_content(struct check *c, const struct check_inode *i)
{
	char path[CHECK_OBJECT_BYTES];
	bool content = i->flags & INODE_CONTENT;
	bool fresh = i->flags & INODE_FRESH;

	if (!S_ISREG(i->mode))
		return;
	if (i->names > 0 && !content && !fresh)
		check_report(c, "no-content", check_path(c, i->ino, path),
			     "%s: nothing is recorded of what it consists of; "
			     ADVICE_FILE,
			     path);
	if (content && fresh)
		check_report(c, "fresh", check_path(c, i->ino, path),
			     "%s: is committed, but is recorded as new too, so "
			     "that the next mount may remove it; make a copy "
			     "of the store before that",
			     path);
	if ((i->flags & INODE_BYTES) && !(i->flags & INODE_SMALL))
		check_report(c, "small", check_path(c, i->ino, path),
			     "%s: has %u bytes in the database, which are not "
			     "its content; " ADVICE_FILE,
			     path, i->small_bytes);
}

static int check_refs_of(struct check *c, size_t n)
{
	const struct check_chunk *k = &c->chunks[n];
	uint64_t image = c->images[k->image_index].id;
	SCOPED(scope_free) void *value = NULL;
	struct key key = key_chunk(image, k->offset);
	char object[CHECK_IMAGE_BYTES];
	struct chunk_rec r = { 0 };
	size_t len;
	int rc;

	rc = kv_get(c->kv, key.data, key.len, &value, &len);
	if (rc == 0)
		rc = chunk_decode(value, len, &r);
	if (rc < 0)
		return check_database_failed(c, rc);
	check_image_name(image, object);
	if (r.refs == k->refs_left)
		check_report(c, "unused", object,
			     "%s: no file uses the chunk at %llu (%u bytes), "
			     "so its space stays in use; " ADVICE_INDEX,
			     object, (unsigned long long)k->offset, k->len);
	else
		check_report(c, "refs", object,
			     "%s: the chunk at %llu is used %u times, but %u "
			     "are recorded, so that deleting files gives its "
			     "space back too %s; " ADVICE_INDEX,
			     object, (unsigned long long)k->offset,
			     r.refs - k->refs_left, r.refs,
			     (int32_t)k->refs_left > 0 ? "late" : "early");
	return 0;
}

static int check_refs(struct check *c)
{
	for (size_t n = 0; n < c->chunk_count; n++) {
		int rc = 0;

		if (c->chunks[n].refs_left != 0)
			rc = check_refs_of(c, n);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int check_content(struct check *c)
{
	int rc = check_each(c, 'K', "chunks", check_chunk);

	if (rc == 0)
		rc = check_each(c, 'H', "chunks", check_hash);
	if (rc == 0)
		rc = check_image_files(c);
	if (rc == 0)
		rc = check_each(c, 'I', "images", check_image_record);
	if (rc == 0)
		rc = check_each(c, 'P', "images", check_punch);
	if (rc == 0)
		rc = check_image_dirs(c);
	if (rc == 0)
		rc = check_each(c, 'D', "files", check_small);
	if (rc == 0)
		rc = check_each(c, 'F', "files", check_content_record);
	if (rc < 0)
		return rc;
	check_images_recorded(c);
	for (size_t n = 0; n < c->inode_count; n++)
		check_has_content(c, &c->inodes[n]);
	return check_refs(c);
}
