/* image.c - see image.h. */
#include "store/space/image.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "store/base/lease.h"
#include "store/base/scope.h"
#include "store/db/layout.h"
#include "store/db/records.h"
#include "store/space/stage.h"

#define IMAGE_ID_STEP 1024
/* Numbers that are remembered; an image beyond is asked for each time. */
#define OLD_NUMBERS_MAX (UINT64_C(1) << 30)

/*
 * At the start nobody has what the last daemon removed while somebody had it:
 * the rest of that is done then.
 */
static bool is_gone_name(const char *name)
{
	return strlen(name) > 16 &&
	       (strcmp(name + 16, LAYOUT_IMAGE_GONE) == 0 ||
		strcmp(name + 16, LAYOUT_IMAGE_COPY) == 0);
}

static int image_scan_dir(struct images *im, const char *name, bool at_start,
			  int (*fn)(void *arg, uint64_t id), void *arg)
{
	int fd = openat(im->dirfd, name,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	struct dirent *d;
	int rc = 0;
	DIR *dir;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return -ENOMEM;
	}
	while (rc == 0 && (d = readdir(dir)) != NULL) {
		char *end;
		uint64_t id = strtoull(d->d_name, &end, 16);

		if (*end == 0 && end - d->d_name == 16)
			rc = fn(arg, id);
		else if (at_start && is_gone_name(d->d_name))
			(void)unlinkat(fd, d->d_name, 0);
	}
	closedir(dir);
	return rc;
}

static int image_scan_dirs(struct images *im, bool at_start,
			   int (*fn)(void *arg, uint64_t id), void *arg)
{
	int rc = 0;

	for (unsigned x = 0; x < 256 && rc == 0; x++) {
		char dir[3];

		(void)snprintf(dir, sizeof(dir), "%02x", x);
		rc = image_scan_dir(im, dir, at_start, fn, arg);
	}
	return rc;
}

/* Files may be there that the database does not know. */
static int image_note_used(void *arg, uint64_t id)
{
	struct images *im = arg;

	if (id >= im->next_id && id < IMAGE_ID_MAX)
		im->next_id = id + 1;
	return 0;
}

/* A number of the M records, or `missing` when there is none. */
static int read_number(struct kv *kv, const char *name, uint64_t missing,
		       uint64_t *ret)
{
	SCOPED(scope_free) void *value = NULL;
	struct key k = key_meta(name);
	size_t len;
	int rc = kv_get(kv, k.data, k.len, &value, &len);

	*ret = missing;
	return rc == -ENOENT ? 0 : rc < 0 ? rc : u64_decode(value, len, ret);
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
	rc = read_number(kv, META_NEXT_IMAGE, 1, &im->next_id);
	im->unfinished_end = im->next_id;
	if (rc == 0) /* one of an older version does not say */
		rc = read_number(kv, META_UNFINISHED, im->unfinished_end,
				 &im->unfinished_from);
	if (rc == 0)
		rc = image_scan_dirs(im, true, image_note_used, im);
	if (rc < 0) {
		close(im->dirfd);
		im->kv = NULL;
		return rc;
	}
	im->next_id_at_start = im->next_id_reserved = im->next_id;
	im->free_of_old_end =
		im->next_id < OLD_NUMBERS_MAX ? im->next_id : OLD_NUMBERS_MAX;
	im->free_of_old = calloc(im->free_of_old_end / 8 + 1, 1);
	if (!im->free_of_old) {
		close(im->dirfd);
		im->kv = NULL;
		return -ENOMEM;
	}
	lock_init(&im->id_turn, LOCK_IMAGE_ID_TURN);
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
	struct key first = key_meta(META_UNFINISHED);
	struct key end = key_meta(META_NEXT_IMAGE);
	uint64_t le;
	int rc;

	if (!b)
		return -ENOMEM;
	le = htole64(from);
	kv_put(b, first.data, first.len, &le, sizeof(le));
	le = htole64(next);
	kv_put(b, end.data, end.len, &le, sizeof(le));
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
		atomic_store(&im->unlinked[id & 0xff], true);
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
	lock_destroy(&im->id_turn);
	cond_destroy(&im->unused);
	lock_destroy(&im->lock);
}

/* A number that was never used, also not before a crash. */
static int image_next_id(struct images *im, uint64_t *ret_id)
{
	int rc;

	HOLD(&im->id_turn);
	if (im->next_id >= im->next_id_reserved) {
		/*
		 * Durable before any number of it is used: a file of which a
		 * power cut leaves the name alone is known to be nothing. It
		 * is one sync for IMAGE_ID_STEP images.
		 */
		rc = record_numbers(im, im->unfinished_from,
				    im->next_id + IMAGE_ID_STEP);
		if (rc < 0)
			return rc;
		im->next_id_reserved = im->next_id + IMAGE_ID_STEP;
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

/* The name changes once, from the first to the second: that order finds it. */
static int open_by_name(const struct images *im, uint64_t id, int flags)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	int fd;

	flags |= O_CLOEXEC | O_NOFOLLOW;
	layout_image_name(id, name);
	fd = openat(im->dirfd, name, flags);
	if (fd < 0 && errno == ENOENT) {
		layout_gone_name(id, name);
		fd = openat(im->dirfd, name, flags);
	}
	return fd < 0 ? -errno : fd;
}

int image_open_fd(struct images *im, const struct image *i, int flags)
{
	int fd = open_by_name(im, i->id, flags);

	if (fd == -EINVAL && (flags & O_DIRECT))
		fd = open_by_name(im, i->id, flags & ~O_DIRECT);
	return fd;
}

int image_stat(struct images *im, const struct image *i, struct stat *ret)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];

	layout_image_name(i->id, name);
	if (fstatat(im->dirfd, name, ret, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	layout_gone_name(i->id, name);
	if (errno == ENOENT &&
	    fstatat(im->dirfd, name, ret, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	return -errno;
}

int image_ask(struct images *im, const struct image *i, enum lease what)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	int rc;

	layout_image_name(i->id, name);
	rc = lease_ask(im->dirfd, name, what);
	if (rc != -ENOENT)
		return rc;
	layout_gone_name(i->id, name);
	return lease_ask(im->dirfd, name, what);
}

void images_end(struct images *im)
{
	HOLD(&im->lock);
	im->ending = true;
}

bool image_is_left(struct images *im, struct image *i)
{
	uint8_t bit = (uint8_t)(1u << (i->id % 8));
	int rc;

	{
		HOLD(&im->lock);
		if (!im->ending && (i->id >= im->next_id_at_start ||
				    (i->id < im->free_of_old_end &&
				     (im->free_of_old[i->id / 8] & bit))))
			return false;
	}
	(void)image_unmap_idle(im, i); /* our own mapping is no reason */
	rc = image_ask(im, i, LEASE_NOBODY);
	if (rc == 0 || rc == -EMFILE || rc == -ENFILE)
		return true;
	HOLD(&im->lock);
	if (rc == 1 && i->id < im->free_of_old_end)
		im->free_of_old[i->id / 8] |= bit;
	return false; /* without leases nobody can be asked */
}

static struct image *image_find_locked(struct images *im, uint64_t id)
{
	struct image *i = im->bucket[id % IMAGE_BUCKETS];

	while (i && i->id != id)
		i = i->next;
	return i;
}

/* Take a reference on an image that is in the table. */
static struct image *image_take_locked(struct images *im, struct image *i)
{
	if (i->refs++ == 0)
		im->idle--;
	return i;
}

static void image_unlink_locked(struct images *im, struct image *i)
{
	struct image **at = &im->bucket[i->id % IMAGE_BUCKETS];

	while (*at != i)
		at = &(*at)->next;
	*at = i->next;
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
	i->next = im->bucket[id % IMAGE_BUCKETS];
	im->bucket[id % IMAGE_BUCKETS] = i;
	*ret_image = i;
	return 0;
}

/* Nothing can lie in a spare one, or in one that was removed. */
static int image_take_known_locked(struct images *im, struct image *i,
				   struct image **ret_image)
{
	if (i->spare || i->dead)
		return -ENOENT;
	*ret_image = image_take_locked(im, i);
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
			return image_take_known_locked(im, other, ret_image);
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
			mine->next = im->bucket[id % IMAGE_BUCKETS];
			im->bucket[id % IMAGE_BUCKETS] = mine;
			*ret_image = mine;
			return 0;
		}
		rc = image_take_known_locked(im, other, ret_image);
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
		if (gone) {
			im->idle--;
			image_unlink_locked(im, gone);
		}
	}
	if (!gone)
		return;
	if (gone->gone) {
		layout_gone_name(gone->id, name);
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
	layout_gone_name(i->id, gone);
	if (shared)
		rc = renameat(im->dirfd, name, im->dirfd, gone);
	else
		rc = unlinkat(im->dirfd, name, 0);
	if (rc < 0 && errno != ENOENT)
		return -errno;
	atomic_store(&im->unlinked[i->id & 0xff], true);
	return 0;
}

int image_sync_removed(struct images *im)
{
	int rc = 0;

	for (unsigned x = 0; rc == 0 && x < 256; x++)
		if (atomic_exchange(&im->unlinked[x], false)) {
			rc = image_sync_name(im, x);
			if (rc < 0)
				atomic_store(&im->unlinked[x], true);
		}
	return rc;
}

int image_sync_name(struct images *im, uint64_t id)
{
	char dir[3];
	int rc = 0;
	int fd;

	(void)snprintf(dir, sizeof(dir), "%02x", (unsigned)(id & 0xff));
	fd = openat(im->dirfd, dir,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

/* A use of the mapping, when it reaches so far. */
static const uint8_t *map_use_locked(struct image *i, uint64_t end)
{
	if (end > i->map_len)
		return NULL;
	i->map_users++;
	return i->map;
}

/* *ret_again: the name came to mean another inode meanwhile. */
static const uint8_t *try_map(struct images *im, struct image *i, uint64_t end,
			      bool *ret_again)
{
	SCOPED(scope_close) int fd = -1;
	uint64_t unmapped;
	struct stat st;
	void *map;

	{
		HOLD(&im->lock);
		while (i->unmapping)
			cond_wait(&im->unused, &im->lock);
		if (i->map)
			return map_use_locked(i, end);
		unmapped = i->unmapped;
	}
	fd = image_open_fd(im, i, O_RDONLY);
	if (fd < 0 || fstat(fd, &st) < 0 || (uint64_t)st.st_size < end ||
	    end == 0)
		return NULL;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return NULL;
	/*
	 * A fault then reads 2 MiB and maps them at once, not 16 pages: an
	 * assembled file is read 1.4 times as fast from a cold cache. By itself
	 * it would read on behind them, into what may be another file's or an
	 * earlier step's: what comes next is ahead.h's to know.
	 */
	if (madvise(map, (size_t)st.st_size, MADV_HUGEPAGE) == 0 &&
	    im->populates)
		(void)madvise(map, (size_t)st.st_size, MADV_RANDOM);
	HOLD(&im->lock);
	if (i->map || i->unmapped != unmapped) { /* somebody was faster */
		munmap(map, (size_t)st.st_size);
		*ret_again = !i->map;
		return i->map ? map_use_locked(i, end) : NULL;
	}
	i->map = map;
	i->map_len = (size_t)st.st_size;
	return map_use_locked(i, end);
}

const uint8_t *image_map(struct images *im, struct image *i, uint64_t end)
{
	const uint8_t *map;
	bool again;

	do {
		again = false;
		map = try_map(im, i, end, &again);
	} while (again);
	return map;
}

void image_map_more(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	CHECK(i->map_users > 0);
	i->map_users++;
}

void image_map_end(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	CHECK(i->map_users > 0);
	if (--i->map_users == 0 && i->unmapping)
		cond_broadcast(&im->unused);
}

void image_unmap(struct images *im, struct image *i)
{
	uint8_t *map;

	HOLD(&im->lock);
	CHECK(!i->unmapping);
	i->unmapping = true;
	while (i->map_users > 0)
		cond_wait(&im->unused, &im->lock);
	map = TAKE(i->map);
	if (map)
		(void)munmap(map, i->map_len);
	i->unmapped++;
	i->unmapping = false;
	cond_broadcast(&im->unused);
}

bool image_unmap_idle(struct images *im, struct image *i)
{
	uint8_t *map;

	HOLD(&im->lock);
	if (i->unmapping || i->map_users > 0)
		return false;
	map = TAKE(i->map);
	if (map)
		(void)munmap(map, i->map_len);
	return map != NULL;
}

void image_note_free(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	i->opened_by = 0;
}

void image_note_opened(struct images *im, struct image *i, uint64_t ino)
{
	bool first, left;

	if (!i)
		return;
	{
		HOLD(&im->lock);
		first = i->opened_by == 0;
	}
	/* Somebody may have it from before this start: of whatever file. */
	left = first && image_is_left(im, i);
	HOLD(&im->lock);
	if (i->opened_by != ino)
		i->opened_by =
			i->opened_by || left ? IMAGE_OPENED_BY_MANY : ino;
}

bool image_opened_by(struct images *im, struct image *i, uint64_t ino)
{
	HOLD(&im->lock);
	return i->opened_by == 0 || i->opened_by == ino;
}

void image_move_opened(struct images *im, struct image *from, struct image *to)
{
	HOLD(&im->lock);
	to->opened_by = from->opened_by;
	from->opened_by = 0;
}

void image_set_clean(struct images *im, uint64_t id, struct stage *s)
{
	HOLD(&im->lock);
	struct image *i = image_find_locked(im, id);

	if (i)
		i->clean = s;
}

void image_clear_clean(struct images *im, uint64_t id, struct stage *s)
{
	struct image *gone = NULL;

	{
		HOLD(&im->lock);
		struct image *i = image_find_locked(im, id);

		if (i && i->clean == s) {
			i->clean = NULL;
			if (i->refs == 0 && im->idle > IMAGE_IDLE_MAX) {
				im->idle--;
				image_unlink_locked(im, i);
				gone = i;
			}
		}
	}
	if (gone)
		image_free(gone);
}

struct stage *image_clean(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	if (i->clean)
		stage_ref(i->clean);
	return i->clean;
}

int image_scan(struct images *im, int (*fn)(void *arg, uint64_t id), void *arg)
{
	return image_scan_dirs(im, false, fn, arg);
}
