/*
 * stage_table.c - the table of stages, read slot by slot. With stage=DIR it
 * lies elsewhere than in the store, and a file in STORE/stage says where: an
 * fsck is not told the options of a mount.
 */
#include "store/space/stage_table.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/space/stage_private.h"

#define STAGE_ELSEWHERE "elsewhere"
#define TABLE_BYTES \
	((off_t)(STAGE_HEADER_BYTES + STAGE_SLOTS * sizeof(struct stage_slot)))

void stage_boot_id(char ret[STAGE_BOOT_ID_BYTES])
{
	if (dir_read_text(AT_FDCWD, "/proc/sys/kernel/random/boot_id", ret,
			  STAGE_BOOT_ID_BYTES) < 0)
		ret[0] = 0;
	ret[strcspn(ret, "\n")] = 0;
}

bool stage_header_is_ours(const struct stage_header *h,
			  const char boot_id[STAGE_BOOT_ID_BYTES],
			  const char *uuid)
{
	return memcmp(h->magic, STAGE_MAGIC, sizeof(h->magic)) == 0 &&
	       boot_id[0] != 0 &&
	       strncmp(h->boot_id, boot_id, sizeof(h->boot_id)) == 0 &&
	       strncmp(h->uuid, uuid, sizeof(h->uuid)) == 0 &&
	       h->slot_count == STAGE_SLOTS;
}

static int add_slot(struct stage_table *t, const struct stage_slot *slot)
{
	int rc = vec_grow(&t->slots, t->count, &t->capacity, sizeof(*slot));

	if (rc == 0)
		t->slots[t->count++] = *slot;
	return rc;
}

static int read_slots(int fd, struct stage_table *t)
{
	struct stage_slot some[64];
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < STAGE_SLOTS; i++) {
		const struct stage_slot *slot = &some[i % 64];
		size_t left = STAGE_SLOTS - i;

		if (i % 64 == 0)
			rc = io_read_full(
				fd, some,
				(left < 64 ? left : 64) * sizeof(*some),
				STAGE_HEADER_BYTES + i * sizeof(*some));
		if (rc == 0 && slot->ino != 0)
			rc = add_slot(t, slot);
	}
	return rc;
}

/* As stages_map_table() looks at it. */
static int read_table(int dirfd, const char *uuid, struct stage_table *t)
{
	char boot_id[STAGE_BOOT_ID_BYTES];
	struct stage_header h;
	struct stat sb;
	SCOPED(scope_close)
	int fd = openat(dirfd, STAGE_TABLE,
			O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(fd, &sb) < 0)
		return -errno;
	if (!S_ISREG(sb.st_mode) || sb.st_uid != geteuid() ||
	    sb.st_size != TABLE_BYTES || io_read_full(fd, &h, sizeof(h), 0) < 0)
		return 0; /* a mount would begin a new one */
	stage_boot_id(boot_id);
	h.uuid[LAYOUT_UUID_BYTES - 1] = 0;
	if (!stage_header_is_ours(&h, boot_id, uuid[0] ? uuid : h.uuid))
		return 0;
	memcpy(t->uuid, h.uuid, sizeof(t->uuid));
	t->next_place = h.next_place;
	return read_slots(fd, t);
}

int stage_table_read(int store_dirfd, const char *uuid, struct stage_table *ret)
{
	SCOPED(scope_close) int there = -1;
	SCOPED(scope_close) int elsewhere = -1;
	char path[PATH_MAX];
	int rc;

	memset(ret, 0, sizeof(*ret));
	there = openat(store_dirfd, LAYOUT_STAGE_DIR,
		       O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (there < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
	rc = read_table(there, uuid, ret);
	if (rc < 0 ||
	    dir_read_text(there, STAGE_ELSEWHERE, path, sizeof(path)) <= 0)
		return rc;
	elsewhere = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return elsewhere < 0 ? 0 : read_table(elsewhere, uuid, ret);
}

void stage_table_release(struct stage_table *t)
{
	free(t->slots);
	memset(t, 0, sizeof(*t));
}

bool stage_table_has_image(const struct stage_table *t, uint64_t id)
{
	for (size_t i = 0; i < t->count; i++)
		if (t->slots[i].kind == STAGE_DISK && t->slots[i].number == id)
			return true;
	return false;
}

bool stage_table_has_inode(const struct stage_table *t, uint64_t ino)
{
	for (size_t i = 0; i < t->count; i++)
		if (t->slots[i].ino == ino)
			return true;
	return false;
}

int stage_table_is_at(int store_dirfd, const char *path)
{
	SCOPED(scope_close)
	int fd = openat(store_dirfd, LAYOUT_STAGE_DIR,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	char old[PATH_MAX];

	if (fd < 0)
		return -errno;
	if (dir_read_text(fd, STAGE_ELSEWHERE, old, sizeof(old)) > 0 &&
	    strcmp(old, path) == 0)
		return 0;
	return dir_write_text(fd, STAGE_ELSEWHERE, path, strlen(path));
}
