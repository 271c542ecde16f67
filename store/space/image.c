/*
 * image.c - the table of images: their numbers, references and ends. An image
 * is in the table while somebody refers to it, while a clean stage has its
 * bytes, and some time after, for what of it is mapped. An empty one that is
 * not wanted any more is spare: it keeps its file, and becomes the next stage.
 */
#include "store/space/image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/db/layout.h"
#include "store/db/records.h"
#include "store/space/stage.h"

#define IMAGE_ID_STEP 1024
/* Numbers that are remembered; an image beyond is asked for each time. */
#define OLD_NUMBERS_MAX (UINT64_C(1) << 30)

/* Files may be there that the database does not know. */
static int image_note_used(void *arg, uint64_t id)
{
	struct images *im = arg;

	if (id >= im->next_id && id < IMAGE_ID_MAX)
		im->next_id = id + 1;
	return 0;
}

/* A number of the M records; when there is none, *ret stays what it is. */
static int read_number(struct kv *kv, const char *name, uint64_t *ret)
{
	int rc = u64_load(kv, key_meta(name), ret);

	return rc == -ENOENT ? 0 : rc;
}

/*
 * A fault in a mapping with MADV_HUGEPAGE and MADV_RANDOM reads 2 MiB since
 * Linux 5.18 (do_sync_mmap_readahead()); before, it read one page.
 */
static bool kernel_populates(void)
{
	unsigned major = 0, minor = 0;
	struct utsname name;

	if (uname(&name) < 0 ||
	    sscanf(name.release, "%u.%u", &major, &minor) != 2)
		return false;
	return (major > 5 || (major == 5 && minor >= 18)) &&
	       madvise(NULL, 0, MADV_POPULATE_READ) == 0;
}

int images_init(struct images *im, int store_dirfd, struct kv *kv)
{
	int rc;

	memset(im, 0, sizeof(*im));
	im->kv = kv;
	im->populates = kernel_populates();
	im->dirfd = openat(store_dirfd, LAYOUT_IMAGE_DIR,
			   O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (im->dirfd < 0)
		return -errno;
	im->next_id = 1;
	rc = read_number(kv, META_NEXT_IMAGE, &im->next_id);
	im->unfinished_from = im->unfinished_end = im->next_id;
	if (rc == 0) /* one of an older version does not say */
		rc = read_number(kv, META_UNFINISHED, &im->unfinished_from);
	if (rc == 0)
		rc = image_scan(im, true, image_note_used, im);
	im->next_id_at_start = im->next_id_recorded = im->next_id;
	im->free_of_old_end =
		im->next_id < OLD_NUMBERS_MAX ? im->next_id : OLD_NUMBERS_MAX;
	im->free_of_old = calloc(im->free_of_old_end / 8 + 1, 1);
	if (rc == 0 && !im->free_of_old)
		rc = -ENOMEM;
	if (rc < 0) {
		free(im->free_of_old);
		close(im->dirfd);
		im->kv = NULL;
		return rc;
	}
	/*
	 * A daemon that began images and did not end may have removed some of
	 * them without a sync; a P record tells of any other, and whoever finds
	 * its image gone says so with image_was_removed().
	 */
	for (unsigned x = 0; x < LAYOUT_IMAGE_DIRS; x++)
		atomic_store(&im->unlinked[x],
			     im->unfinished_from < im->unfinished_end);
	lock_init(&im->numbering, LOCK_IMAGE_NUMBERING);
	cond_init(&im->unused);
	lock_init(&im->lock, LOCK_IMAGES);
	return 0;
}

static void image_free(struct image *i)
{
	if (i->map)
		munmap(i->map, i->map_len);
	free(i);
}

/* Durably: images from `from` on, below `next`, may be unfinished. */
static int record_numbers(struct images *im, uint64_t from, uint64_t next)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	int rc;

	u64_save(b, key_meta(META_UNFINISHED), from);
	u64_save(b, key_meta(META_NEXT_IMAGE), next);
	rc = kv_write(im->kv, b);
	return rc == 0 ? kv_sync(im->kv) : rc;
}

static void remove_spares(struct images *im)
{
	while (im->spare_count > 0) {
		char name[LAYOUT_IMAGE_NAME_BYTES];
		uint64_t id = im->spare[--im->spare_count]->id;

		im->spare[im->spare_count]->building = false;
		layout_image_name(id, name);
		(void)unlinkat(im->dirfd, name, 0);
		atomic_store(&im->unlinked[layout_image_dir(id)], true);
	}
}

int images_finish(struct images *im)
{
	uint64_t from = im->next_id;
	int rc;

	remove_spares(im);
	for (size_t b = 0; b < IMAGE_BUCKETS; b++)
		for (struct image *i = im->bucket[b]; i; i = i->next)
			if (i->building && !i->dead && i->id < from)
				from = i->id;
	rc = image_sync_removed(im);
	return rc == 0 ? record_numbers(im, from, im->next_id) : rc;
}

void images_release(struct images *im)
{
	remove_spares(im);
	for (size_t b = 0; b < IMAGE_BUCKETS; b++)
		while (im->bucket[b]) {
			struct image *i = im->bucket[b];

			im->bucket[b] = i->next;
			image_free(i);
		}
	close(im->dirfd);
	free(im->free_of_old);
	lock_destroy(&im->numbering);
	cond_destroy(&im->unused);
	lock_destroy(&im->lock);
}

/* A number that was never used, also not before a crash. */
static int image_next_id(struct images *im, uint64_t *ret_id)
{
	int rc;

	HOLD(&im->numbering);
	if (im->next_id >= im->next_id_recorded) {
		/*
		 * Durable before any number of it is used: a file of which a
		 * power cut leaves the name alone is known to be nothing. It
		 * is one sync for IMAGE_ID_STEP images.
		 */
		rc = record_numbers(im, im->unfinished_from,
				    im->next_id + IMAGE_ID_STEP);
		if (rc < 0)
			return rc;
		im->next_id_recorded = im->next_id + IMAGE_ID_STEP;
	}
	*ret_id = im->next_id++;
	return 0;
}

static struct image *image_new(uint64_t id)
{
	struct image *i = calloc(1, sizeof(*i));

	if (i) {
		i->id = id;
		i->refs = 1;
	}
	return i;
}

static struct image *image_find_locked(struct images *im, uint64_t id)
{
	struct image *i = im->bucket[id % IMAGE_BUCKETS];

	while (i && i->id != id)
		i = i->next;
	return i;
}

static void image_insert_locked(struct images *im, struct image *i)
{
	struct image **first = &im->bucket[i->id % IMAGE_BUCKETS];

	i->next = *first;
	*first = i;
}

/* One without references leaves the table. */
static void image_unlink_locked(struct images *im, struct image *i)
{
	struct image **at = &im->bucket[i->id % IMAGE_BUCKETS];

	while (*at != i)
		at = &(*at)->next;
	*at = i->next;
	im->idle--;
}

/* A spare image with one reference, or NULL. */
static struct image *image_take_spare(struct images *im)
{
	struct image *i;

	HOLD(&im->lock);
	if (im->spare_count == 0)
		return NULL;
	i = im->spare[--im->spare_count];
	CHECK(i->refs == 0 && !i->clean && !i->map);
	i->refs = 1;
	i->spare = false;
	i->building = true;
	return i;
}

/*
 * ext4 remembers that a file was truncated to nothing, and starts to write it
 * out at the next close of any descriptor of it (auto_da_alloc; fs/ext4/file.c,
 * ext4_release_file). That close would be the trainer's, with all its bytes in
 * the page cache: measured, a close of 1 s after a write of 0.3 s. Our own
 * close, while there is nothing to write, makes it forget.
 */
static bool image_empty(struct images *im, const struct image *i)
{
	SCOPED(scope_close) int fd = image_open_fd(im, i, O_RDWR);

	return fd >= 0 && ftruncate(fd, 0) == 0;
}

/*
 * From here on nobody finds it: the reclaimer, for ranges that were decided
 * before, may be the only other one that tries.
 */
static bool image_hide(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	if (i->refs != 1 || i->clean || i->map || i->dead ||
	    im->spare_count >= IMAGE_SPARE_MAX)
		return false;
	i->spare = true;
	return true;
}

void image_recycle(struct images *im, struct image *i)
{
	/* Nobody else has it, and no chunk lies in it. */
	if (image_hide(im, i)) {
		bool emptied = image_empty(im, i);

		HOLD(&im->lock);
		if (emptied && im->spare_count < IMAGE_SPARE_MAX) {
			i->refs = 0;
			im->spare[im->spare_count++] = i;
			return;
		}
		i->spare = false;
	}
	(void)image_remove(im, i);
	image_put(im, i);
}

int image_create(struct images *im, struct image **ret_image)
{
	struct image *i = image_take_spare(im);
	char name[LAYOUT_IMAGE_NAME_BYTES];
	uint64_t id;
	int fd, rc;

	if (i) {
		*ret_image = i;
		return 0;
	}
	rc = image_next_id(im, &id);
	if (rc < 0)
		return rc;
	i = image_new(id);
	if (!i)
		return -ENOMEM;
	layout_image_name(id, name);
	fd = openat(im->dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0600);
	if (fd < 0) {
		rc = -errno;
		free(i);
		return rc;
	}
	(void)close(fd);
	HOLD(&im->lock);
	i->building = true;
	image_insert_locked(im, i);
	*ret_image = i;
	return 0;
}

void image_built(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	i->building = false;
}

bool image_is_building(struct images *im, const struct image *i)
{
	HOLD(&im->lock);
	return i->building;
}

/* A reference: nothing can lie in a spare one, or in one that was removed. */
static int image_take_locked(struct images *im, struct image *i,
			     struct image **ret_image)
{
	if (i->spare || i->dead)
		return -ENOENT;
	if (i->refs++ == 0)
		im->idle--;
	*ret_image = i;
	return 0;
}

int image_get(struct images *im, uint64_t id, struct image **ret_image)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	struct image *mine, *other;
	struct stat sb;
	int rc;

	{
		HOLD(&im->lock);
		other = image_find_locked(im, id);
		if (other)
			return image_take_locked(im, other, ret_image);
	}
	layout_image_name(id, name);
	if (fstatat(im->dirfd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	mine = image_new(id);
	if (!mine)
		return -ENOMEM;
	{
		HOLD(&im->lock);
		other = image_find_locked(im, id);
		if (!other) {
			image_insert_locked(im, mine);
			*ret_image = mine;
			return 0;
		}
		rc = image_take_locked(im, other, ret_image);
	}
	image_free(mine);
	return rc;
}

void image_ref(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	CHECK(i->refs > 0);
	i->refs++;
}

/* The idle image that was used longest ago; the bound keeps this rare. */
static struct image *image_oldest_idle_locked(struct images *im)
{
	struct image *oldest = NULL;

	for (size_t b = 0; b < IMAGE_BUCKETS; b++)
		for (struct image *i = im->bucket[b]; i; i = i->next)
			if (i->refs == 0 && !i->clean && !i->building &&
			    i->opened_by == 0 &&
			    (!oldest || i->lru < oldest->lru))
				oldest = i;
	return oldest;
}

void image_put(struct images *im, struct image *i)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	struct image *gone = NULL;

	if (!i)
		return;
	{
		HOLD(&im->lock);
		CHECK(i->refs > 0);
		if (--i->refs > 0)
			return;
		i->lru = ++im->tick;
		im->idle++;
		if (i->dead)
			gone = i;
		else if (im->idle > IMAGE_IDLE_MAX && !i->clean)
			gone = i->map && i->opened_by == 0
				       ? i
				       : image_oldest_idle_locked(im);
		if (gone)
			image_unlink_locked(im, gone);
	}
	if (!gone)
		return;
	if (gone->gone) {
		layout_image_file(gone->id, LAYOUT_IMAGE_GONE, name);
		(void)unlinkat(im->dirfd, name, 0);
	}
	image_free(gone);
}

int image_remove(struct images *im, struct image *i)
{
	char name[LAYOUT_IMAGE_NAME_BYTES], gone[LAYOUT_IMAGE_NAME_BYTES];
	bool shared;
	int rc;

	layout_image_name(i->id, name);
	{
		HOLD(&im->lock);
		i->dead = true; /* from here on nobody else gets it */
		shared = i->refs > 1;
		i->gone = i->gone || shared;
	}
	layout_image_file(i->id, LAYOUT_IMAGE_GONE, gone);
	if (shared)
		rc = renameat(im->dirfd, name, im->dirfd, gone);
	else
		rc = unlinkat(im->dirfd, name, 0);
	if (rc < 0 && errno != ENOENT)
		return -errno;
	atomic_store(&im->unlinked[layout_image_dir(i->id)], true);
	return 0;
}

void image_was_removed(struct images *im, uint64_t id)
{
	if (id < im->next_id_at_start)
		atomic_store(&im->unlinked[layout_image_dir(id)], true);
}

void image_set_clean(struct images *im, uint64_t id, struct stage *s)
{
	struct image *i;

	HOLD(&im->lock);
	s->clean_image = id;
	i = image_find_locked(im, id);
	if (i)
		i->clean = s;
}

void image_clear_clean(struct images *im, struct stage *s)
{
	struct image *i;

	{
		HOLD(&im->lock);
		i = image_find_locked(im, s->clean_image);
		s->clean_image = 0;
		if (!i || i->clean != s)
			return;
		i->clean = NULL;
		if (i->refs > 0 || im->idle <= IMAGE_IDLE_MAX)
			return;
		image_unlink_locked(im, i);
	}
	image_free(i);
}
