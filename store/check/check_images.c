/*
 * check_images.c - the part of the check that looks at the images as files:
 * each one with chunks is there, as long as they need and recorded (I); what is
 * to be given back (P) lies in none; and what lies beside them is known.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/check/check_work.h"
#include "store/db/layout.h"
#include "store/space/image.h"
#include "store/space/stage_table.h"

/* 1: there is a record of this kind about the image. */
static int has_record(struct check *c, char kind, uint64_t image)
{
	int rc = records_any(c->kv, key_ino(kind, image));

	return rc < 0 ? check_database_failed(c, rc) : rc;
}

/*
 * An image may be without chunks while the bytes of its last ones are still to
 * be given back: it goes after them.
 */
static int check_empty_image(struct check *c, uint64_t id)
{
	int rc = has_record(c, 'P', id);

	if (rc == 0)
		check_report(c, "empty-image", check_image_name(c, id),
			     "is recorded, but holds no chunk and nothing "
			     "that is to be given back, so its record "
			     "stays; " CHECK_ADVICE_INDEX);
	return rc < 0 ? rc : 0;
}

static int check_image_record(struct check *c, const struct check_record *r)
{
	struct check_image *i;
	uint64_t bytes;

	if (r->key_len != 9 || u64_decode(r->value, r->value_len, &bytes) < 0)
		return check_report_record(c, r);
	c->image_records++;
	i = check_find_image(c, get_be64(r->key + 1));
	if (!i)
		return check_empty_image(c, get_be64(r->key + 1));
	i->recorded = true;
	/* Missing or cut short was reported. */
	if (i->file_bytes != IMAGE_NO_FILE && i->file_bytes >= i->end &&
	    i->file_bytes != bytes)
		check_report(c, "image-size", check_image_name(c, i->id),
			     "has %llu bytes, but %llu were recorded; run "
			     "'ckptctl fsck --scrub' to learn which files are "
			     "damaged",
			     (unsigned long long)i->file_bytes,
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
		return check_report_record(c, r);
	return 0;
}

static int check_image_file(struct check *c, struct check_image *i)
{
	const char *object = check_image_name(c, i->id);
	char name[LAYOUT_IMAGE_NAME_BYTES];
	size_t last = i->first_chunk + i->chunk_count, n;
	struct stat st;

	layout_image_name(i->id, name);
	if (c->next_image != 0 && c->next_image <= i->id)
		check_report(c, "next-image", object,
			     "its number is in use, but %llu is to be given "
			     "out next; do not write to this store, copy the "
			     "files to a new one",
			     (unsigned long long)c->next_image);
	if (fstatat(c->images_dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(st.st_mode)) {
		check_report(c, "image-missing", object,
			     "its file images/%s is missing; put it back from "
			     "another copy of this store",
			     name);
		return check_add_damage(c, i->first_chunk, i->chunk_count,
					-ENOENT);
	}
	i->file_bytes = (uint64_t)st.st_size;
	if (i->file_bytes >= i->end)
		return 0;
	check_report(c, "image-short", object,
		     "its file images/%s was cut short: it has %llu bytes, "
		     "its chunks reach to %llu; put it back from another copy "
		     "of this store",
		     name, (unsigned long long)i->file_bytes,
		     (unsigned long long)i->end);
	/* Chunks may overlap when damaged, so look at each end. */
	n = i->first_chunk;
	while (n < last &&
	       c->chunks[n].offset + c->chunks[n].len <= i->file_bytes)
		n++;
	return check_add_damage(c, n, last - n, -ENODATA);
}

static int check_image_files(struct check *c)
{
	int rc = 0;

	if (c->image_count > 0 && c->next_image == 0)
		check_report_text(c, "next-image", "settings",
				  "the next image number is not recorded; do "
				  "not write to this store, copy the files to "
				  "a new one");
	for (size_t n = 0; rc == 0 && n < c->image_count; n++) {
		rc = check_image_file(c, &c->images[n]);
		check_progress(c, "images", n + 1, c->image_count);
	}
	return rc;
}

static void check_images_recorded(struct check *c)
{
	for (size_t n = 0; n < c->image_count; n++) {
		const struct check_image *i = &c->images[n];

		if (!i->recorded)
			check_report(c, "unrecorded-image",
				     check_image_name(c, i->id),
				     "holds %zu chunks, but is not recorded, "
				     "so that the next mount may remove it; "
				     "make a copy of the store before that",
				     i->chunk_count);
	}
	c->result->images = c->image_records;
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
	const struct stage_table *staged = c->options->staged;
	int rc = has_record(c, 'P', id);

	if (rc < 0)
		return rc;
	if (staged && stage_table_has_image(staged, id))
		return 0; /* check_staged() tells of it */
	if (rc == 1 || image_is_empty(c, name) ||
	    (id >= c->unfinished_from && id < c->next_image))
		check_remark(c, "leftover", object,
			     "%s: this image is not in use; the next mount "
			     "removes it",
			     object);
	else
		check_report(c, "unknown-image", object,
			     "the database does not know this image, so that "
			     "no file uses it; it is kept: 'ckptctl rebuild' "
			     "looks whether a file can be had from it, and "
			     "puts it aside if not");
	return 0;
}

static int check_leftover(void *arg, const char *path, uint64_t id,
			  const char *suffix)
{
	struct check *c = arg;
	bool gone = strcmp(suffix, LAYOUT_IMAGE_GONE) == 0;
	char name[LAYOUT_IMAGE_NAME_BYTES] = "";
	char object[64 + NAME_MAX];
	int rc;

	(void)snprintf(object, sizeof(object), "images/%s", path);
	if (id != 0 && (*suffix == 0 || gone))
		layout_image_file(id, suffix, name);
	if (strcmp(path, name) != 0) {
		check_remark(c, "foreign-file", object,
			     "%s: this file is not from ckptfs", object);
		return 0;
	}
	if (!gone && check_find_image(c, id))
		return 0;
	rc = gone ? 0 : has_record(c, 'I', id);
	if (rc != 0)
		return rc < 0 ? rc : 0;
	return report_unrecorded(c, id, name, object);
}

int check_images(struct check *c)
{
	int rc = check_image_files(c);

	if (rc == 0)
		rc = check_each(c, 'I', "images", check_image_record);
	if (rc == 0)
		rc = check_each(c, 'P', "images", check_punch);
	if (rc == 0)
		rc = image_each_file(c->images_dirfd, check_leftover, c);
	if (rc == 0)
		check_images_recorded(c);
	return rc;
}
