/* stage.c - see stage.h. */
#include "store/space/stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "store/base/lease.h"
#include "store/base/log.h"
#include "store/base/memory.h"
#include "store/base/scope.h"

#define STAGE_TABLE "table"
#define STAGE_SLOTS 65535u
#define STAGE_BYTES_MIN (UINT64_C(64) << 20)
/* Smaller files are staged on disk: a huge page would hold little of them. */
#define STAGE_MEMORY_BYTES_MIN (UINT64_C(1) << 20)
struct stage_header {
	char magic[16];
	char boot_id[40];
	char uuid[40];
	uint32_t slot_count;
	uint32_t pad;
	uint64_t reserved[2];
};
_Static_assert(sizeof(struct stage_slot) == 64, "slots are shared");
_Static_assert(sizeof(struct stage_header) == 120, "header is shared");
#define STAGE_MAGIC "ckptfs stages 1"
#define STAGE_HEADER_BYTES 4096

static int read_text(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, buf, size - 1);
	close(fd);
	if (n < 0)
		return -EIO;
	buf[n] = 0;
	buf[strcspn(buf, "\n")] = 0;
	return 0;
}

/* The memory that this process may use. */
static uint64_t memory_size(void)
{
	uint64_t bytes = memory_bytes();

	return bytes < 2 * STAGE_BYTES_MIN ? 2 * STAGE_BYTES_MIN : bytes;
}

/* What the tmpfs holds at most; see above. */
static uint64_t hard_limit(uint64_t capacity)
{
	uint64_t memory = memory_size();

	return capacity < memory ? capacity + (memory - capacity) / 2
				 : capacity;
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
	size = hard_limit(st->capacity);
	(void)snprintf(st->path, sizeof(st->path), "%s/" LAYOUT_STAGE_DIR,
		       c->store_path);
	if (mkdir(st->path, 0700) < 0 && errno != EEXIST)
		return -errno;
	st->dirfd =
		open(st->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (st->dirfd < 0)
		return -errno;
	if (is_tmpfs_mount(st->dirfd, c->store_dirfd)) {
		st->own_tmpfs = true;
		return 0;
	}
	(void)snprintf(options, sizeof(options),
		       "size=%llu,mode=0700,huge=always,nr_inodes=0",
		       (unsigned long long)size);
	rc = mount("ckptfs-stage", st->path, "tmpfs",
		   MS_NOSUID | MS_NODEV | MS_NOEXEC, options);
	if (rc < 0 && errno == EINVAL) { /* a kernel without huge pages */
		(void)snprintf(options, sizeof(options), "size=%llu,mode=0700",
			       (unsigned long long)size);
		rc = mount("ckptfs-stage", st->path, "tmpfs",
			   MS_NOSUID | MS_NODEV | MS_NOEXEC, options);
	}
	if (rc < 0) {
		rc = -errno;
		/* Not allowed to mount: the directory itself will do. */
		if (rc == -EPERM)
			return 0;
		(void)snprintf(why, why_size, "cannot mount a tmpfs on %s: %s",
			       st->path, strerror(-rc));
		return rc;
	}
	st->own_tmpfs = true;
	close(st->dirfd);
	st->dirfd =
		open(st->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return st->dirfd < 0 ? -errno : 0;
}

static int stages_open_dir(struct stages *st, const struct stages_config *c,
			   char *why, size_t why_size)
{
	if (strlen(c->dir) >= sizeof(st->path))
		return -ENAMETOOLONG;
	strcpy(st->path, c->dir);
	st->capacity = c->size_bytes;
	st->dirfd = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (st->dirfd < 0) {
		int rc = -errno;

		(void)snprintf(why, why_size,
			       "cannot use %s as the stage: %s; make the "
			       "directory or leave stage= out",
			       c->dir, strerror(-rc));
		return rc;
	}
	return layout_check_owner(st->dirfd, c->dir, why, why_size);
}

/* Map the table; start a new one unless this boot's daemon left it here. */
static int stages_map_table(struct stages *st, const char *uuid,
			    bool *ret_adopted)
{
	size_t bytes =
		STAGE_HEADER_BYTES + STAGE_SLOTS * sizeof(struct stage_slot);
	char boot_id[40] = "";
	struct stage_header *h;
	struct stat sb;
	void *map;
	int fd;
	int rc;

	(void)read_text("/proc/sys/kernel/random/boot_id", boot_id,
			sizeof(boot_id));
	fd = openat(st->dirfd, STAGE_TABLE,
		    O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
		    0600);
	if (fd < 0)
		return -errno;
	/* A directory that is ours now may have been somebody else's before. */
	if (fstat(fd, &sb) < 0 || !S_ISREG(sb.st_mode) || sb.st_nlink != 1 ||
	    sb.st_uid != geteuid()) {
		close(fd);
		return -EPERM;
	}
	if ((size_t)sb.st_size != bytes) {
		/* Allocated now: a full tmpfs must not raise SIGBUS later. */
		rc = ftruncate(fd, 0) < 0
			     ? errno
			     : posix_fallocate(fd, 0, (off_t)bytes);
		if (rc != 0) {
			close(fd);
			return -rc;
		}
	}
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	rc = map == MAP_FAILED ? -errno : 0;
	close(fd);
	if (rc < 0)
		return rc;
	h = map;
	st->slots = (struct stage_slot *)((uint8_t *)map + STAGE_HEADER_BYTES);
	st->slot_count = STAGE_SLOTS;
	*ret_adopted = memcmp(h->magic, STAGE_MAGIC, sizeof(h->magic)) == 0 &&
		       boot_id[0] != 0 &&
		       strncmp(h->boot_id, boot_id, sizeof(h->boot_id)) == 0 &&
		       strncmp(h->uuid, uuid, sizeof(h->uuid)) == 0 &&
		       h->slot_count == STAGE_SLOTS;
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

static void stage_file_name(uint64_t number, char ret[24])
{
	(void)snprintf(ret, 24, "s%016llx", (unsigned long long)number);
}

/* The flags of a file, as chattr(1) has them: append-only or not. */
static int set_append_only(int fd, bool on)
{
	int flags = 0;

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0)
		return -errno;
	flags = on ? flags | FS_APPEND_FL : flags & ~FS_APPEND_FL;
	return ioctl(fd, FS_IOC_SETFLAGS, &flags) < 0 ? -errno : 0;
}

static bool is_append_only(int fd)
{
	int flags = 0;

	return ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 &&
	       (flags & FS_APPEND_FL);
}

/* Remove a file of the tmpfs, sealed or not. */
static void unlink_stage(struct stages *st, const char *name)
{
	int fd;

	if (unlinkat(st->dirfd, name, 0) == 0 || errno != EPERM)
		return;
	fd = openat(st->dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return;
	if (set_append_only(fd, false) < 0 || unlinkat(st->dirfd, name, 0) < 0)
		log_warning("cannot remove %s/%s: %s", st->path, name,
			    strerror(errno));
	close(fd);
}

/* Clean stages are a cache; on a tmpfs of our own they go with it. */
static void remove_clean(struct stages *st)
{
	(void)unlinkat(st->dirfd, STAGE_TABLE, 0);
	for (uint32_t i = 0; i < st->slot_count; i++) {
		char name[24];

		if (st->slots[i].ino == 0 || st->slots[i].kind != STAGE_MEMORY)
			continue;
		stage_file_name(st->slots[i].number, name);
		unlink_stage(st, name);
	}
	st->next_number = 0;
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
	munmap((uint8_t *)st->slots - STAGE_HEADER_BYTES,
	       STAGE_HEADER_BYTES + st->slot_count * sizeof(*st->slots));
	free(st->free_slot);
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

static struct stage *stage_new(uint64_t ino, enum stage_kind kind)
{
	struct stage *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->ino = ino;
	s->kind = kind;
	atomic_init(&s->refs, 1);
	return s;
}

int stage_open(struct stages *st, const struct stage *s, int flags)
{
	char name[24];
	int fd;

	if (s->kind == STAGE_DISK)
		return image_open_fd(st->images, s->image, flags);
	stage_file_name(s->number, name);
	fd = openat(st->dirfd, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

int stage_stat(struct stages *st, const struct stage *s, struct stat *ret)
{
	char name[24];

	if (s->kind == STAGE_DISK)
		return image_stat(st->images, s->image, ret);
	stage_file_name(s->number, name);
	return fstatat(st->dirfd, name, ret, AT_SYMLINK_NOFOLLOW) < 0 ? -errno
								      : 0;
}

int stage_ask(struct stages *st, const struct stage *s, enum lease what)
{
	char name[24];

	if (s->kind == STAGE_DISK)
		return image_ask(st->images, s->image, what);
	stage_file_name(s->number, name);
	return lease_ask(st->dirfd, name, what);
}

/* Is it there yet? When it was sealed, a client may have it mapped yet. */
static int stage_find_memory(struct stages *st, struct stage *s)
{
	SCOPED(scope_close) int fd = stage_open(st, s, O_RDONLY);

	if (fd < 0)
		return fd;
	s->sealed = is_append_only(fd);
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
		SLOT_SET(slot, opens, 0);
		SLOT_SET(slot, writers, 0);
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
		} else {
			rc = image_get(st->images, s->number, &s->image);
			if (rc == 0) {
				HOLD(&st->images->lock);
				s->image->building = true;
			}
		}
		if (s->kind == STAGE_MEMORY)
			atomic_fetch_add(&st->memory_count, 1);
		else
			atomic_fetch_add(&st->disk_count, 1);
		if (rc < 0 && rc != -ENOENT) { /* not gone: not now */
			stage_put(st, s);
			return rc;
		}
		if (rc < 0) {
			log_error("stage of inode %llu is gone: %s",
				  (unsigned long long)slot->ino, strerror(-rc));
			rc = fn(arg, slot, NULL);
			stage_drop(st, s);
			stage_put(st, s);
			continue;
		}
		rc = fn(arg, slot, s);
	}
	return rc;
}

void stages_sweep(struct stages *st)
{
	int fd = openat(st->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *d;

	if (!dir) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((d = readdir(dir)) != NULL) {
		uint64_t number;
		bool used = false;
		char *end;

		if (d->d_name[0] != 's' || strlen(d->d_name) != 17)
			continue;
		number = strtoull(d->d_name + 1, &end, 16);
		if (*end != 0)
			continue;
		for (uint32_t i = 0; i < st->slot_count && !used; i++)
			used = st->slots[i].ino != 0 &&
			       st->slots[i].kind == STAGE_MEMORY &&
			       st->slots[i].number == number;
		if (!used)
			unlink_stage(st, d->d_name);
	}
	closedir(dir);
}

static int stage_take_slot(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (st->free_count == 0)
		return -ENFILE;
	s->slot_index = st->free_slot[--st->free_count];
	s->slot = &st->slots[s->slot_index];
	if (s->kind == STAGE_MEMORY)
		s->number = st->next_number++;
	return 0;
}

/* All but the slot's ino, which makes it count: see stage_show(). */
static void stage_write_slot(struct stage *s)
{
	struct stage_slot *slot = s->slot;

	SLOT_SET(slot, number, s->number);
	SLOT_SET(slot, close_order, 0);
	SLOT_SET(slot, clean_generation, 0);
	SLOT_SET(slot, kind, s->kind);
	SLOT_SET(slot, dirty, 1);
	SLOT_SET(slot, opens, 0);
	SLOT_SET(slot, writers, 0);
	SLOT_SET(slot, earlier, 0);
}

void stage_show(struct stage *s)
{
	SLOT_SET(s->slot, ino, s->ino);
}

static void stage_give_slot(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (!s->slot)
		return;
	SLOT_SET(s->slot, ino, 0);
	st->free_slot[st->free_count++] = s->slot_index;
	s->slot = NULL;
}

static int stage_create_memory(struct stages *st, struct stage *s,
			       uint64_t size_bytes)
{
	SCOPED(scope_close)
	int fd = stage_open(st, s, O_RDWR | O_CREAT | O_EXCL);
	char name[24];
	int rc;

	if (fd < 0)
		return fd;
	if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size_bytes) == 0)
		return 0;
	rc = -errno;
	stage_file_name(s->number, name);
	(void)unlinkat(st->dirfd, name, 0);
	return rc;
}

static int stage_create_disk(struct stages *st, struct stage *s)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];
	int rc = image_create(st->images, &s->image);

	if (rc < 0)
		return rc;
	s->number = s->image->id;
	/* One that is used again has the time of its last use. */
	layout_image_name(s->number, name);
	(void)utimensat(st->images->dirfd, name, NULL, AT_SYMLINK_NOFOLLOW);
	return 0;
}

/* A file of this size fits in memory, maybe after others were given up. */
static bool stage_fits(struct stages *st, uint64_t size)
{
	uint64_t used, total;

	stages_usage(st, &used, &total);
	if (size > total)
		return false;
	return used + size <= total || stages_make_room(st, size);
}

void stage_reserve(struct stages *st, const struct stage *s,
		   uint64_t size_bytes)
{
	SCOPED(scope_close) int fd = -1;
	uint64_t has;
	struct stat sb;

	if (s->kind != STAGE_MEMORY || stage_stat(st, s, &sb) < 0)
		return;
	has = (uint64_t)sb.st_blocks * 512;
	if (size_bytes <= has)
		return;
	fd = stage_open(st, s, O_RDWR);
	if (fd < 0)
		return;
	HOLD(&st->admit);
	if (stage_fits(st, size_bytes - has))
		(void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size_bytes);
}

int stage_create(struct stages *st, uint64_t ino, uint64_t size_bytes,
		 struct stage **ret_stage)
{
	int rc = stage_create_hidden(st, ino, size_bytes, ret_stage);

	if (rc == 0)
		stage_show(*ret_stage);
	return rc;
}

/* A memory stage without bytes, with a slot. */
static int stage_new_slot(struct stages *st, uint64_t ino,
			  struct stage **ret_stage)
{
	struct stage *s = stage_new(ino, STAGE_MEMORY);
	int rc;

	if (!s)
		return -ENOMEM;
	rc = stage_take_slot(st, s);
	if (rc < 0) {
		free(s);
		return rc;
	}
	*ret_stage = s;
	return 0;
}

int stage_create_hidden(struct stages *st, uint64_t ino, uint64_t size_bytes,
			struct stage **ret_stage)
{
	/* A series' files differ a little: a thirty-second more. */
	uint64_t want = size_bytes + size_bytes / 32;
	struct stage *s;
	int rc = stage_new_slot(st, ino, &s);

	if (rc < 0)
		return rc;
	rc = -ENOSPC;
	if (size_bytes >= STAGE_MEMORY_BYTES_MIN) {
		HOLD(&st->admit);
		if (stage_fits(st, want))
			rc = stage_create_memory(st, s, want);
	}
	if (rc < 0) {
		s->kind = STAGE_DISK;
		rc = stage_create_disk(st, s);
	}
	if (s->kind == STAGE_MEMORY)
		atomic_fetch_add(&st->memory_count, 1);
	else
		atomic_fetch_add(&st->disk_count, 1);
	if (rc < 0) {
		stage_drop(st, s);
		stage_put(st, s);
		return rc;
	}
	stage_write_slot(s);
	*ret_stage = s;
	return 0;
}

void stage_ref(struct stage *s)
{
	atomic_fetch_add(&s->refs, 1);
}

void stage_put(struct stages *st, struct stage *s)
{
	unsigned left;
	bool kept;

	if (!s)
		return;
	kept = atomic_load(&s->kept);
	left = atomic_fetch_sub(&s->refs, 1) - 1;
	if (left == 1 && kept) { /* the segment's: nobody else uses it now */
		HOLD(&st->lock);
		cond_broadcast(&st->returned);
	}
	if (left > 0)
		return;
	stage_fd_forget(st, s, true);
	if (s->kind == STAGE_MEMORY && s->dropped) {
		char name[24];

		stage_file_name(s->number, name);
		unlink_stage(st, name);
	}
	image_put(st->images, s->image);
	free(s);
}

/* A file lets go of a stage: true when a segment has it. */
static bool stage_return(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (!atomic_load(&s->kept))
		return false;
	SLOT_SET(s->slot, ino, 0);
	cond_broadcast(&st->returned);
	return true;
}

/* The file gets its size. Can it be sealed, once the client has mapped it? */
static int stage_prepare_kept(struct stages *st, struct stage *s,
			      uint64_t size_bytes)
{
	SCOPED(scope_close) int fd = stage_open(st, s, O_RDWR);

	if (fd < 0)
		return fd;
	if (ftruncate(fd, (off_t)size_bytes) < 0)
		return -errno;
	if (set_append_only(fd, true) < 0 || set_append_only(fd, false) < 0)
		return -EOPNOTSUPP;
	return 0;
}

int stage_create_kept(struct stages *st, uint64_t size_bytes,
		      struct stage **ret_stage)
{
	struct stage *s;
	int rc;

	rc = stage_new_slot(st, 0, &s);
	if (rc < 0)
		return rc;
	atomic_store(&s->kept, true);
	{
		HOLD(&st->admit);
		rc = -ENOSPC;
		if (stage_fits(st, size_bytes))
			rc = stage_create_memory(st, s, size_bytes);
	}
	if (rc == 0)
		rc = stage_prepare_kept(st, s, size_bytes);
	atomic_fetch_add(&st->memory_count, 1);
	if (rc < 0) {
		atomic_store(&s->kept, false);
		stage_drop(st, s);
		stage_put(st, s);
		return rc;
	}
	*ret_stage = s;
	return 0;
}

int stage_seal(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	SCOPED(scope_close) int fd = stage_open(st, s, O_RDONLY);
	struct stat sb;
	int rc = fd < 0 ? fd : set_append_only(fd, true);

	if (rc < 0)
		return rc;
	s->sealed = true;
	if (fstat(fd, &sb) < 0)
		return -errno;
	return (uint64_t)sb.st_size == size_bytes ? 0 : -ESTALE;
}

uint64_t stage_beyond(struct stages *st, const struct stage *s,
		      uint64_t size_bytes)
{
	const uint64_t huge = UINT64_C(2) << 20;
	uint64_t whole = (size_bytes + huge - 1) / huge * huge, blocks;
	char name[24];
	struct stat sb;

	stage_file_name(s->number, name);
	if (fstatat(st->dirfd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	blocks = (uint64_t)sb.st_blocks * 512;
	if (blocks > whole)
		return blocks - whole;
	return (uint64_t)sb.st_size > size_bytes
		       ? (uint64_t)sb.st_size - size_bytes
		       : 0;
}

int stage_cut(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	SCOPED(scope_close) int flags_fd = stage_open(st, s, O_RDONLY);
	SCOPED(scope_close) int fd = -1;
	int rc;

	if (flags_fd < 0)
		return flags_fd;
	rc = set_append_only(flags_fd, false);
	if (rc < 0)
		return rc;
	fd = stage_open(st, s, O_RDWR);
	rc = fd < 0 ? fd : ftruncate(fd, (off_t)size_bytes) < 0 ? -errno : 0;
	if (s->sealed && set_append_only(flags_fd, true) < 0 && rc == 0)
		rc = -errno;
	return rc;
}

void stage_set_times(struct stages *st, struct stage *s,
		     const struct timespec times[2])
{
	SCOPED(scope_close) int fd = -1;
	char name[LAYOUT_IMAGE_NAME_BYTES];

	if (s->kind == STAGE_DISK) {
		layout_image_name(s->number, name);
		(void)utimensat(st->images->dirfd, name, times,
				AT_SYMLINK_NOFOLLOW);
		return;
	}
	if (s->sealed) {
		fd = stage_open(st, s, O_RDONLY);
		/* An append-only file takes no times but the present one. */
		if (fd < 0 || set_append_only(fd, false) < 0)
			return;
	}
	stage_file_name(s->number, name);
	(void)utimensat(st->dirfd, name, times, AT_SYMLINK_NOFOLLOW);
	if (s->sealed && set_append_only(fd, true) < 0)
		log_error("stage of inode %llu: cannot be sealed again: %s",
			  (unsigned long long)s->ino, strerror(errno));
}

void stage_lend(struct stages *st, struct stage *s, uint64_t ino)
{
	char name[24];

	CHECK(atomic_load(&s->kept) && s->sealed &&
	      SLOT_GET(s->slot, ino) == 0);
	atomic_store(&s->wanted, false);
	__atomic_store_n(&s->ino, ino, __ATOMIC_RELEASE);
	s->clean_image = 0;
	/* A mapping's writes leave no time. */
	stage_file_name(s->number, name);
	(void)utimensat(st->dirfd, name, NULL, AT_SYMLINK_NOFOLLOW);
	stage_ref(s);
	stage_write_slot(s);
	stage_show(s);
}

bool stage_is_idle(struct stage *s)
{
	return SLOT_GET(s->slot, ino) == 0 && atomic_load(&s->refs) == 1;
}

bool stage_wait_idle(struct stages *st, struct stage *s, int64_t deadline_ns)
{
	HOLD(&st->lock);
	while (!stage_is_idle(s))
		if (!cond_wait_until(&st->returned, &st->lock, deadline_ns))
			return stage_is_idle(s);
	return true;
}

void stage_unkeep(struct stages *st, struct stage *s)
{
	bool lent;

	{
		HOLD(&st->lock);
		atomic_store(&s->kept, false);
		lent = SLOT_GET(s->slot, ino) != 0;
	}
	if (!lent)
		stage_drop(st, s);
}

void stage_drop(struct stages *st, struct stage *s)
{
	stage_unlist(st, s);
	if (!s->slot || stage_return(st, s))
		return; /* dropped before, or the segment's again */
	/*
	 * First of all: who is killed here must not leave a slot for what is
	 * gone, or is another's already. The next start sweeps up the rest, gc
	 * an image that has a record.
	 */
	SLOT_SET(s->slot, ino, 0);
	if (s->kind == STAGE_MEMORY) {
		atomic_fetch_sub(&st->memory_count, 1);
		s->dropped = true; /* with the reference of who calls */
	} else {
		atomic_fetch_sub(&st->disk_count, 1);
		if (!s->keep_image && s->image) {
			image_ref(st->images, s->image);
			st->abandon(st->hook_arg, s->image);
		}
	}
	stage_give_slot(st, s);
}

const uint8_t *stage_map(struct stages *st, const struct stage *s,
			 uint64_t size)
{
	size_t len = (size_t)((size + 4095) & ~UINT64_C(4095));
	SCOPED(scope_close) int fd = -1;
	void *map;

	if (s->kind != STAGE_MEMORY || size == 0)
		return NULL;
	fd = stage_open(st, s, O_RDONLY);
	if (fd < 0)
		return NULL;
	map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	return map == MAP_FAILED ? NULL : map;
}

void stage_unmap(const uint8_t *map, uint64_t size)
{
	size_t len = (size_t)((size + 4095) & ~UINT64_C(4095));

	if (map)
		(void)munmap((void *)(uintptr_t)map, len);
}

static void stage_unlist_locked(struct stages *st, struct stage *s)
{
	if (!s->listed)
		return;
	*(s->older ? &s->older->newer : &st->oldest) = s->newer;
	*(s->newer ? &s->newer->older : &st->newest) = s->older;
	s->newer = NULL;
	s->older = NULL;
	s->listed = false;
}

static void stage_list_locked(struct stages *st, struct stage *s)
{
	s->older = st->newest;
	s->newer = NULL;
	*(st->newest ? &st->newest->newer : &st->oldest) = s;
	st->newest = s;
	s->listed = true;
}

void stage_list(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (!s->listed && s->kind == STAGE_MEMORY)
		stage_list_locked(st, s);
}

void stage_unlist(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	stage_unlist_locked(st, s);
}

void stage_touch(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (s->listed) {
		stage_unlist_locked(st, s);
		stage_list_locked(st, s);
	}
}

void stages_set_hooks(struct stages *st, stage_evict_fn evict,
		      stage_abandon_fn abandon, void *arg)
{
	st->evict = evict;
	st->abandon = abandon;
	st->hook_arg = arg;
}

static bool evict_until(struct stages *st, uint64_t want)
{
	/* Each clean stage is tried once: one that is open stays. */
	unsigned tries = (unsigned)atomic_load(&st->memory_count) + 1;

	while (st->evict) {
		uint64_t used, total;
		struct stage *s;

		stages_usage(st, &used, &total);
		if (used + want <= total)
			return true;
		if (tries-- == 0)
			return false;
		{
			HOLD(&st->lock);
			s = st->oldest;
			if (!s)
				return false;
			stage_ref(s);
			stage_unlist_locked(st, s);
			stage_list_locked(st, s);
		}
		(void)st->evict(st->hook_arg, s);
		stage_put(st, s);
	}
	return false;
}

void stages_set_pressure(struct stages *st,
			 void (*pressure)(void *arg, uint64_t want), void *arg)
{
	st->pressure = pressure;
	st->pressure_arg = arg;
}

bool stages_make_room(struct stages *st, uint64_t want)
{
	if (evict_until(st, want))
		return true;
	if (st->pressure)
		st->pressure(st->pressure_arg, want);
	return false;
}

void stages_usage(struct stages *st, uint64_t *ret_used, uint64_t *ret_total)
{
	struct statfs fs;

	*ret_used = 0;
	*ret_total = 0;
	if (fstatfs(st->dirfd, &fs) < 0)
		return;
	*ret_total = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
	if (st->capacity && st->capacity < *ret_total)
		*ret_total = st->capacity;
	*ret_used =
		(uint64_t)(fs.f_blocks - fs.f_bavail) * (uint64_t)fs.f_bsize;
}

void stages_dirty(struct stages *st, uint64_t *ret_memory, uint64_t *ret_disk)
{
	*ret_memory = 0;
	*ret_disk = 0;
	for (uint32_t i = 0; i < st->slot_count; i++) {
		const struct stage_slot *slot = &st->slots[i];
		char name[LAYOUT_IMAGE_NAME_BYTES];
		struct stat sb;

		if (SLOT_GET(slot, ino) == 0 || !SLOT_GET(slot, dirty))
			continue;
		if (SLOT_GET(slot, kind) == STAGE_MEMORY) {
			stage_file_name(SLOT_GET(slot, number), name);
			if (fstatat(st->dirfd, name, &sb,
				    AT_SYMLINK_NOFOLLOW) == 0)
				*ret_memory += (uint64_t)sb.st_size;
		} else {
			layout_image_name(SLOT_GET(slot, number), name);
			if (fstatat(st->images->dirfd, name, &sb,
				    AT_SYMLINK_NOFOLLOW) == 0)
				*ret_disk += (uint64_t)sb.st_size;
		}
	}
}
