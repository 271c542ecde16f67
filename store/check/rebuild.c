/*
 * rebuild.c - see rebuild.h. The new database is made beside the old one and
 * takes its place with two renames at the end, so that whatever ends it before
 * leaves the store as it was. Names, attributes and small files are the base's
 * (rebuild_base.c); which bytes files consist of is the base's or a label's;
 * what says where chunks lie is written anew from that, so it agrees.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/check/check.h"
#include "store/check/rebuild_work.h"
#include "store/db/identity.h"
#include "store/db/mark.h"
#include "store/db/parents.h"
#include "store/formats/cut.h"

#define LOST_DIR "lost"

/* --- labels --- */

static int note_label(struct rebuild *r, uint64_t id)
{
	int fd = rebuild_image(r, id);
	struct label one;
	int rc;

	if (fd < 0 || label_get(fd, &one) < 0)
		return 0;
	/* One of another store was copied here. */
	if (one.image != id || !S_ISREG(one.mode) ||
	    (r->uuid[0] && strcmp(one.uuid, r->uuid) != 0)) {
		label_release(&one);
		return 0;
	}
	if (!r->uuid[0])
		memcpy(r->uuid, one.uuid, sizeof(r->uuid));
	rc = vec_grow(&r->labels, r->label_count, &r->label_capacity,
		      sizeof(*r->labels));
	if (rc < 0)
		label_release(&one);
	else
		r->labels[r->label_count++] = one;
	return rc;
}

/* Of one inode the newest first. */
static int label_order(const void *pa, const void *pb)
{
	const struct label *a = pa, *b = pb;

	if (a->ino != b->ino)
		return a->ino < b->ino ? -1 : 1;
	return (a->generation < b->generation) -
	       (a->generation > b->generation);
}

/* --- chunks of the base --- */

static int load_chunk(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct rebuild *r = arg;
	const uint8_t *p = key.data;
	struct rebuild_chunk *c;
	struct chunk_rec k;

	if (key.len != 17 || chunk_decode(value.data, value.len, &k) < 0)
		return 0;
	c = rebuild_add(&r->chunks, get_be64(p + 1), get_be64(p + 9));
	if (!c)
		return -ENOMEM;
	c->len = k.len;
	c->domain = k.domain;
	memcpy(c->hash, k.hash, sizeof(c->hash));
	return 0;
}

/* --- files --- */

static bool has_record(struct rebuild *r, char kind, uint64_t number)
{
	return record_find(r->kv, key_ino(kind, number)) == 0;
}

/* Does the label know something that the base does not? */
static bool is_newer(struct rebuild *r, const struct label *l)
{
	struct content c;

	if (content_load(r->kv, key_ino('F', l->ino), &c) == 0) {
		content_release(&c);
		return l->generation > c.generation;
	}
	/* A file that was deleted, but whose bytes others share. */
	return has_record(r, 'A', l->ino) || !has_record(r, 'I', l->image);
}

static int put_content(struct rebuild *r, uint64_t ino, const struct content *c)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

	content_save(b, key_ino('F', ino), c);
	record_delete(b, key_ino('D', ino));
	record_delete(b, key_ino('U', ino));
	return kv_write(r->kv, b);
}

/* The first of an inode's labels, newest first, that holds: into the base. */
static int use_labels_of(struct rebuild *r, size_t first, size_t end)
{
	const char *reason = NULL;

	for (size_t i = first; i < end; i++) {
		const struct label *l = &r->labels[i];
		struct content c;
		int rc;

		if (l->ino == 0 || !is_newer(r, l))
			break;
		rc = rebuild_content(r, l, &c, &reason);
		if (rc < 0)
			return rc;
		if (rc == 0 && stage_table_has_image(&r->staged, l->image))
			continue; /* it was about to be committed */
		if (rc == 0) {
			rebuild_say(r, REBUILD_LOST, l->path,
				    "version %llu of it, in image %016llx: %s",
				    (unsigned long long)l->generation,
				    (unsigned long long)l->image, reason);
			continue;
		}
		rc = rebuild_name(r, l);
		if (rc == 0)
			rc = put_content(r, l->ino, &c);
		content_release(&c);
		if (rc == 0)
			rebuild_say(r, REBUILD_RECOVERED, l->path,
				    "from the label of image %016llx",
				    (unsigned long long)l->image);
		return rc;
	}
	return 0;
}

static int use_labels(struct rebuild *r)
{
	int rc = 0;

	for (size_t i = 0, end; rc == 0 && i < r->label_count; i = end) {
		end = i + 1;
		while (end < r->label_count &&
		       r->labels[end].ino == r->labels[i].ino)
			end++;
		rc = use_labels_of(r, i, end);
	}
	return rc;
}

/* A file that cannot be had goes; the others' chunks are counted. */
static int keep_or_remove(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct rebuild *r = arg;
	SCOPED(content_release) struct content c = { 0 };
	const char *reason = NULL;
	bool deleted;
	uint64_t ino;
	int rc;

	if (key.len != 9)
		return 0;
	ino = get_be64((const uint8_t *)key.data + 1);
	rc = content_decode(value.data, value.len, &c);
	if (rc == -EIO && stage_table_has_inode(&r->staged, ino))
		return rebuild_wait_for_stage(r, ino);
	if (rc == -EIO)
		return rebuild_remove(r, ino, "its record is damaged");
	if (rc < 0)
		return rc;
	deleted = has_record(r, 'O', ino); /* and nobody has it open */
	if (!deleted)
		reason = rebuild_use(r, &c);
	if ((deleted || reason) && stage_table_has_inode(&r->staged, ino))
		return rebuild_wait_for_stage(r, ino);
	return deleted || reason ? rebuild_remove(r, ino, reason) : 0;
}

/* --- images of which there is no file --- */

static int put_aside(struct rebuild *r, uint64_t id)
{
	char name[LAYOUT_IMAGE_NAME_BYTES], to[64], object[64];
	int fd = rebuild_image(r, id);

	if (has_record(r, 'I', id) || fd < 0 ||
	    stage_table_has_image(&r->staged, id) ||
	    (lseek(fd, 0, SEEK_DATA) < 0 && errno == ENXIO))
		return 0;
	layout_image_name(id, name);
	(void)snprintf(object, sizeof(object), LAYOUT_IMAGE_DIR "/%s", name);
	(void)snprintf(to, sizeof(to), LOST_DIR "/%016llx",
		       (unsigned long long)id);
	if (mkdirat(r->dirfd, LOST_DIR, 0700) < 0 && errno != EEXIST)
		return -errno;
	if (renameat(r->images_dirfd, name, r->dirfd, to) < 0)
		return -errno;
	rebuild_say(r, REBUILD_ASIDE, object,
		    "no file can be made of it; it is kept as %s", to);
	return 0;
}

/* --- all of it --- */

/*
 * The base reaches as far as the mark, but both may be from an old copy of the
 * store: then there are whole files that it does not know, and that nobody was
 * about to commit (U, or a stage). 1: it is so.
 */
static int is_old_copy(struct rebuild *r)
{
	for (size_t i = 0; i < r->label_count; i++) {
		const struct label *l = &r->labels[i];
		const char *reason = NULL;
		struct content c;
		int rc;

		if (l->ino == 0 || !is_newer(r, l) ||
		    has_record(r, 'U', l->ino) ||
		    stage_table_has_inode(&r->staged, l->ino))
			continue;
		rc = rebuild_content(r, l, &c, &reason);
		if (rc == 1)
			content_release(&c);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* What the images say of themselves is looked at before the base is believed.
 */
static int look_at_images(struct rebuild *r)
{
	int rc = records_each(r->kv, key_kind('K'), load_chunk, r);

	if (rc == 0)
		rc = rebuild_each_image(r, note_label);
	if (rc == 0)
		rc = rebuild_read_staged(r);
	if (rc < 0)
		return rc;
	if (r->label_count > 0)
		qsort(r->labels, r->label_count, sizeof(*r->labels),
		      label_order);
	if (r->lossy)
		return 0;
	rc = is_old_copy(r);
	if (rc == 0)
		rc = rebuild_lacks_staged(r);
	if (rc == 1) {
		r->lossy = true;
		r->result->base = REBUILD_PART;
	}
	return rc < 0 ? rc : 0;
}

static int fill_lossy(struct rebuild *r)
{
	int rc = rebuild_next_inode(r);

	if (rc == 0)
		rc = use_labels(r);
	if (rc == 0)
		rc = records_each(r->kv, key_kind('F'), keep_or_remove, r);
	if (rc == 0)
		rc = rebuild_name_staged(r);
	return rc == 0 ? rebuild_write_chunks(r) : rc;
}

/* The first name db.damaged-N that is free. */
static int swap(struct rebuild *r)
{
	struct rebuild_result *res = r->result;
	struct stat sb;
	unsigned n = 0;

	if (fstatat(r->dirfd, LAYOUT_DB_DIR, &sb, AT_SYMLINK_NOFOLLOW) == 0) {
		do
			(void)snprintf(res->kept_as, sizeof(res->kept_as),
				       LAYOUT_DB_DIR ".damaged-%u", ++n);
		while (fstatat(r->dirfd, res->kept_as, &sb,
			       AT_SYMLINK_NOFOLLOW) == 0);
		if (renameat(r->dirfd, LAYOUT_DB_DIR, r->dirfd, res->kept_as) <
		    0)
			return -errno;
	}
	if (renameat(r->dirfd, REBUILD_DIR, r->dirfd, LAYOUT_DB_DIR) < 0 ||
	    fsync(r->dirfd) < 0)
		return -errno;
	return 0;
}

static int finish(struct rebuild *r)
{
	struct mark mark = { .clean = true };
	struct marker marker;
	struct identity id;
	int rc = kv_finish(r->kv, &mark.sequence);

	kv_close(r->kv);
	r->kv = NULL;
	if (rc == 0)
		rc = swap(r);
	if (rc == 0)
		rc = marker_open(&marker, r->dirfd);
	if (rc < 0)
		return rc;
	rc = marker_write(&marker, &mark);
	marker_close(&marker);
	memcpy(id.uuid, r->uuid, sizeof(id.uuid));
	memcpy(id.secret, r->secret, sizeof(id.secret));
	if (rc == 0)
		rc = identity_write(r->dirfd, &id);
	if (rc == 0)
		rc = layout_finish(r->dirfd, r->uuid);
	return rc;
}

static int rebuild_all(struct rebuild *r, char *why, size_t why_size)
{
	int rc = rebuild_base(r, why, why_size);

	if (rc < 0)
		return rc;
	rc = look_at_images(r);
	if (rc == 0 && r->lossy)
		rc = fill_lossy(r);
	if (rc == 0)
		rc = rebuild_write_settings(r);
	if (rc == 0)
		rc = rebuild_each_image(r, put_aside);
	if (rc == 0)
		rc = rebuild_say_staged(r);
	if (rc == 0 && !r->uuid[0])
		rc = identity_make_uuid(r->uuid);
	return rc == 0 ? finish(r) : rc;
}

int rebuild_store(const char *path, const struct rebuild_options *options,
		  struct rebuild_result *ret, char *why, size_t why_size)
{
	struct rebuild r = { .options = options,
			     .result = ret,
			     .path = path,
			     .dirfd = -1,
			     .images_dirfd = -1,
			     .open_fd = -1 };
	SCOPED(scope_close) int lockfd = -1;
	SCOPED(scope_free) char *real = NULL;
	int rc;

	memset(ret, 0, sizeof(*ret));
	rc = parents_check(path, &real, why, why_size);
	if (rc < 0)
		return rc;
	r.path = real;
	rc = layout_open_damaged(real, &r.dirfd, &lockfd, r.uuid, why,
				 why_size);
	if (rc < 0)
		return rc;
	layout_say_who(lockfd, NULL);
	why[0] = 0;
	r.next_ino = ROOT_INO + 1;
	r.next_image = 1;
	r.images_dirfd = openat(r.dirfd, LAYOUT_IMAGE_DIR,
				O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r.buffer = malloc(CHUNK_BYTES_MAX);
	rc = r.images_dirfd < 0 ? -errno : r.buffer ? 0 : -ENOMEM;
	if (rc == 0)
		rc = rebuild_all(&r, why, why_size);
	if (rc < 0 && why[0] == 0)
		(void)snprintf(why, why_size,
			       "%s: the rebuild could not be finished: %s",
			       path, strerror(-rc));
	kv_close(r.kv);
	for (size_t i = 0; i < r.label_count; i++)
		label_release(&r.labels[i]);
	free(r.labels);
	stage_table_release(&r.staged);
	free(r.chunks.at);
	free(r.buffer);
	scope_close(&r.open_fd);
	scope_close(&r.images_dirfd);
	scope_close(&r.dirfd);
	if (rc < 0)
		return rc;
	return r.lossy || ret->lost > 0 ? 1 : 0;
}
