/*
 * stages.c - where stages lie: a tmpfs of the store's own, or a directory that
 * is given, and the table of slots in it. The table is a mapped file that stays
 * when this process is killed; the next daemon of the same boot and store
 * believes it, and takes over what its slots name.
 */
#include "store/space/stage_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/log.h"
#include "store/base/memory.h"
#include "store/base/scope.h"
#include "store/db/parents.h"
#include "store/space/stage_table.h"

#define STAGE_BYTES_MIN (UINT64_C(64) << 20)

static uint64_t memory_size(void)
{
	uint64_t bytes = memory_bytes();

	return bytes < 2 * STAGE_BYTES_MIN ? 2 * STAGE_BYTES_MIN : bytes;
}

/* st->path, which may have become another directory. */
static int open_path(struct stages *st)
{
	if (st->dirfd >= 0)
		close(st->dirfd);
	st->dirfd =
		open(st->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return st->dirfd < 0 ? -errno : 0;
}

static bool is_tmpfs_mount(int dirfd, int parentfd)
{
	struct statfs fs;
	struct stat a, b;

	return fstatfs(dirfd, &fs) == 0 && fs.f_type == TMPFS_MAGIC &&
	       fstat(dirfd, &a) == 0 && fstat(parentfd, &b) == 0 &&
	       a.st_dev != b.st_dev;
}

/* Mount our tmpfs on STORE/stage, or find the one that is there already. */
static int stages_mount(struct stages *st, const struct stages_config *c,
			char *why, size_t why_size)
{
	const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	uint64_t size, memory = memory_size();
	char options[96];
	int rc;

	st->capacity = c->size_bytes ? c->size_bytes : memory / 2;
	if (st->capacity > memory) { /* the kernel would kill this process */
		log_warning(
			"stage_size: %llu MiB are more than the %llu MiB of "
			"memory that there are: half of those are used",
			(unsigned long long)(st->capacity >> 20),
			(unsigned long long)(memory >> 20));
		st->capacity = memory / 2;
	}
	/* It holds more than what is admitted: see stage.h. */
	size = st->capacity + (memory - st->capacity) / 2;
	(void)snprintf(st->path, sizeof(st->path), "%s/" LAYOUT_STAGE_DIR,
		       c->store_path);
	if (mkdir(st->path, 0700) < 0 && errno != EEXIST)
		return -errno;
	rc = open_path(st);
	if (rc < 0)
		return rc;
	if (is_tmpfs_mount(st->dirfd, c->store_dirfd)) {
		st->own_tmpfs = true;
		return 0;
	}
	(void)snprintf(options, sizeof(options),
		       "size=%llu,mode=0700,huge=always,nr_inodes=0",
		       (unsigned long long)size);
	rc = mount("ckptfs-stage", st->path, "tmpfs", flags, options);
	if (rc < 0 && errno == EINVAL) { /* a kernel without huge pages */
		(void)snprintf(options, sizeof(options), "size=%llu,mode=0700",
			       (unsigned long long)size);
		rc = mount("ckptfs-stage", st->path, "tmpfs", flags, options);
	}
	if (rc < 0) {
		rc = -errno;
		if (rc == -EPERM) /* the directory itself will do */
			return 0;
		(void)snprintf(why, why_size, "cannot mount a tmpfs on %s: %s",
			       st->path, strerror(-rc));
		return rc;
	}
	st->own_tmpfs = true;
	return open_path(st);
}

static int stages_open_dir(struct stages *st, const struct stages_config *c,
			   char *why, size_t why_size)
{
	SCOPED(scope_free) char *real = NULL;
	int rc = parents_check(c->dir, &real, why, why_size);

	if (rc < 0)
		return rc;
	if (strlen(real) >= sizeof(st->path))
		return -ENAMETOOLONG;
	strcpy(st->path, real);
	st->capacity = c->size_bytes;
	st->dirfd = open(st->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (st->dirfd < 0) {
		rc = -errno;
		(void)snprintf(why, why_size,
			       "cannot use %s as the stage: %s; make the "
			       "directory or leave stage= out",
			       c->dir, strerror(-rc));
		return rc;
	}
	rc = layout_check_owner(st->dirfd, c->dir, why, why_size);
	if (rc < 0)
		return rc;
	rc = stage_table_is_at(c->store_dirfd, st->path);
	if (rc < 0) /* a full disk is mounted all the same */
		log_warning("%s/" LAYOUT_STAGE_DIR ": cannot be written to: "
			    "%s; ckptctl fsck does not know of %s",
			    c->store_path, strerror(-rc), st->path);
	return 0;
}

/* Map the table; start a new one unless this boot's daemon left it here. */
static int stages_map_table(struct stages *st, const char *uuid,
			    bool *ret_adopted)
{
	size_t bytes =
		STAGE_HEADER_BYTES + STAGE_SLOTS * sizeof(struct stage_slot);
	char boot_id[STAGE_BOOT_ID_BYTES];
	struct stage_header *h;
	struct stat sb;
	SCOPED(scope_close) int fd = -1;
	void *map;
	int rc = 0;

	stage_boot_id(boot_id);
	fd = openat(st->dirfd, STAGE_TABLE,
		    O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
		    0600);
	if (fd < 0)
		return -errno;
	/* A directory that is ours now may have been somebody else's before. */
	if (fstat(fd, &sb) < 0 || !S_ISREG(sb.st_mode) || sb.st_nlink != 1 ||
	    sb.st_uid != geteuid())
		return -EPERM;
	/* Allocated now: a full tmpfs must not raise SIGBUS later. */
	if ((size_t)sb.st_size != bytes)
		rc = ftruncate(fd, 0) < 0
			     ? errno
			     : posix_fallocate(fd, 0, (off_t)bytes);
	if (rc != 0)
		return -rc;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	h = map;
	st->slots = (struct stage_slot *)((uint8_t *)map + STAGE_HEADER_BYTES);
	st->slot_count = STAGE_SLOTS;
	*ret_adopted = stage_header_is_ours(h, boot_id, uuid);
	if (!*ret_adopted) {
		memset(map, 0, bytes);
		memcpy(h->boot_id, boot_id, sizeof(boot_id));
		memcpy(h->uuid, uuid, LAYOUT_UUID_BYTES);
		h->slot_count = STAGE_SLOTS;
		memcpy(h->magic, STAGE_MAGIC, sizeof(h->magic));
	}
	return 0;
}

int stages_init(struct stages *st, const struct stages_config *config,
		struct images *images, bool *ret_adopted, char *why,
		size_t why_size)
{
	int rc;

	memset(st, 0, sizeof(*st));
	st->images = images;
	st->dirfd = -1;
	st->no_cache = config->no_cache;
	why[0] = 0;
	if (config->dir)
		rc = stages_open_dir(st, config, why, why_size);
	else
		rc = stages_mount(st, config, why, why_size);
	if (rc == 0)
		rc = stages_map_table(st, config->uuid, ret_adopted);
	if (rc == 0) {
		st->free_slot = calloc(STAGE_SLOTS, sizeof(uint32_t));
		rc = st->free_slot ? 0 : -ENOMEM;
	}
	if (rc < 0) {
		if (why[0] == 0)
			(void)snprintf(why, why_size,
				       "cannot set up the stage in %s: %s",
				       st->path, strerror(-rc));
		return rc;
	}
	TAILQ_INIT(&st->clean);
	st->next_number = 1;
	for (uint32_t i = STAGE_SLOTS; i-- > 0;) {
		if (st->slots[i].ino == 0)
			st->free_slot[st->free_count++] = i;
		else if (st->slots[i].kind == STAGE_MEMORY &&
			 st->slots[i].number >= st->next_number)
			st->next_number = st->slots[i].number + 1;
	}
	stage_fds_init(&st->fds);
	lock_init(&st->admit, LOCK_STAGE_ADMIT);
	cond_init(&st->returned);
	lock_init(&st->lock, LOCK_STAGES);
	return 0;
}

/* Clean stages are a cache; on a tmpfs of our own they go with it. */
static void remove_clean(struct stages *st)
{
	(void)unlinkat(st->dirfd, STAGE_TABLE, 0);
	for (uint32_t i = 0; i < st->slot_count; i++)
		if (st->slots[i].ino != 0 && st->slots[i].kind == STAGE_MEMORY)
			stage_unlink(st, st->slots[i].number);
}

static struct stage_header *header_of(const struct stages *st)
{
	return (struct stage_header *)((uint8_t *)st->slots -
				       STAGE_HEADER_BYTES);
}

void stages_release(struct stages *st)
{
	uint32_t dirty = 0;

	for (uint32_t i = 0; i < st->slot_count; i++)
		dirty += st->slots[i].ino != 0 && st->slots[i].dirty;
	if (dirty)
		log_warning("%s keeps %u files that are not durable, or that "
			    "somebody still writes to; the next mount takes "
			    "them over",
			    st->path, dirty);
	if (!dirty && !st->own_tmpfs)
		remove_clean(st);
	munmap(header_of(st),
	       STAGE_HEADER_BYTES + st->slot_count * sizeof(*st->slots));
	free(st->free_slot);
	shares_release(&st->shares);
	stage_fds_release(&st->fds);
	lock_destroy(&st->lock);
	lock_destroy(&st->admit);
	cond_destroy(&st->returned);
	close(st->dirfd);
	/*
	 * A lazy unmount would hide bytes that are not durable yet. When there
	 * are none, it is a client that has a segment mapped yet.
	 */
	if (st->own_tmpfs && !dirty && umount2(st->path, 0) < 0 &&
	    (errno != EBUSY || umount2(st->path, MNT_DETACH) < 0))
		log_warning("cannot unmount %s: %s", st->path, strerror(errno));
}

/* Is it there yet? When it was sealed, a client may have it mapped yet. */
static int stage_find_memory(struct stages *st, struct stage *s)
{
	SCOPED(scope_close) int fd = stage_open(st, s, O_RDONLY);
	struct stat sb;

	if (fd < 0)
		return fd;
	s->sealed = stage_is_sealed(fd);
	if (fstat(fd, &sb) == 0)
		s->memory_bytes = (uint64_t)sb.st_blocks * 512;
	return 0;
}

int stages_adopt(struct stages *st,
		 int (*fn)(void *arg, const struct stage_slot *slot,
			   struct stage *s),
		 void *arg)
{
	int rc = 0;

	for (uint32_t i = 0; i < st->slot_count && rc == 0; i++) {
		struct stage_slot *slot = &st->slots[i];
		struct stage *s;

		if (slot->ino == 0)
			continue;
		s = stage_new(slot->ino, slot->kind == STAGE_DISK
						 ? STAGE_DISK
						 : STAGE_MEMORY);
		if (!s)
			return -ENOMEM;
		s->number = slot->number;
		s->slot = slot;
		s->slot_index = i;
		if (s->kind == STAGE_MEMORY) {
			rc = stage_find_memory(st, s);
			atomic_fetch_add(&st->memory_count, 1);
		} else {
			rc = image_get(st->images, s->number, &s->image);
			if (rc == 0) {
				HOLD(&st->images->lock);
				s->image->building = true;
			}
		}
		if (rc < 0 && rc != -ENOENT) { /* not gone: not now */
			stage_put(st, s);
			return rc;
		}
		if (rc < 0) {
			log_error("stage of inode %llu is gone: %s",
				  (unsigned long long)slot->ino, strerror(-rc));
			rc = fn(arg, slot, NULL);
			stage_drop(st, s);
			continue;
		}
		rc = fn(arg, slot, s);
	}
	return rc;
}

bool stages_had_last(const struct stages *st, uint64_t next_place)
{
	return next_place <= header_of(st)->next_place;
}

void stages_have(struct stages *st, uint64_t next_place)
{
	header_of(st)->next_place = next_place;
}

static bool memory_is_used(const struct stages *st, uint64_t number)
{
	for (uint32_t i = 0; i < st->slot_count; i++)
		if (st->slots[i].ino != 0 &&
		    st->slots[i].kind == STAGE_MEMORY &&
		    st->slots[i].number == number)
			return true;
	return false;
}

static int sweep_one(void *arg, int fd, const char *name)
{
	struct stages *st = arg;
	char *end;

	(void)fd;
	if (name[0] == 's' && strlen(name) == 17) {
		uint64_t number = strtoull(name + 1, &end, 16);

		if (*end == 0 && !memory_is_used(st, number))
			stage_unlink(st, number);
	}
	return 0;
}

void stages_sweep(struct stages *st)
{
	(void)dir_each(st->dirfd, ".", sweep_one, st);
}
