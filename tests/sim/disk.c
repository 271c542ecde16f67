/*
 * disk.c - see disk.h.
 *
 * Each file is known by its inode number on the carrier. `old` has what a block
 * of it was when it was last synced, for each block that was changed since. A
 * name's change is a record of what the name meant before and after; a file
 * that loses its last name meanwhile gets one in ROOT/grave, so that it can
 * come back. Times of files are the simulator's: the carrier's would be the
 * clock of this machine.
 */
#include "tests/sim/disk_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/base/vec.h"

struct disk_state disk;

/* --- files
 * -------------------------------------------------------------------- */

struct timespec disk_now(void)
{
	return io_timespec(wall_ns());
}

struct file *disk_file_of(uint64_t ino, enum place place)
{
	struct file *f;

	for (size_t i = disk.file_count; i-- > 0;)
		if (disk.file[i]->ino == ino)
			return disk.file[i];
	CHECK(vec_grow(&disk.file, disk.file_count, &disk.file_room,
		       sizeof(*disk.file)) == 0);
	f = calloc(1, sizeof(*f));
	CHECK(f);
	f->ino = ino;
	f->place = place;
	f->mtime = disk_now();
	disk.file[disk.file_count++] = f;
	return f;
}

static enum place place_of(const char *path)
{
	size_t store = strlen(disk.store), stage = strlen(disk.stage);

	if (!disk.root[0])
		return ELSEWHERE;
	if (strncmp(path, disk.store, store) == 0 &&
	    (path[store] == '/' || !path[store]))
		return DISK;
	if (strncmp(path, disk.stage, stage) == 0 &&
	    (path[stage] == '/' || !path[stage]))
		return STAGE;
	return ELSEWHERE;
}

/* ret: what dirfd and path mean, without the root. */
enum place disk_resolve(int dirfd, const char *path, char ret[400])
{
	int n;

	if (sscanf(path, "/proc/self/fd/%d", &n) == 1 && n < FDS_MAX &&
	    disk.fd[n].path)
		(void)snprintf(ret, 400, "%s", disk.fd[n].path);
	else if (path[0] == '/' || dirfd < 0)
		(void)snprintf(ret, 400, "%s", path);
	else if (dirfd < FDS_MAX && disk.fd[dirfd].path)
		(void)snprintf(ret, 400, "%s%s%s", disk.fd[dirfd].path,
			       path[0] ? "/" : "", path);
	else
		(void)snprintf(ret, 400, "?/%s", path);
	return place_of(ret);
}

/* For the trace: no number of this process is in it. */
const char *disk_shown(const char *path)
{
	size_t len = strlen(disk.root);

	return strncmp(path, disk.root, len) == 0 && path[len] ? path + len + 1
							       : path;
}

struct file *disk_of_fd(int fd)
{
	return fd >= 0 && fd < FDS_MAX ? disk.fd[fd].file : NULL;
}

bool disk_on_disk(int fd)
{
	return fd >= 0 && fd < FDS_MAX && disk.fd[fd].place == DISK;
}

/* A point, and perhaps an error: 0 or an errno. */
int disk_step(const char *what, int fd, bool may_fail)
{
	char text[440];

	if (!sim_running() || fd < 0 || fd >= FDS_MAX ||
	    disk.fd[fd].place == ELSEWHERE)
		return 0;
	(void)snprintf(text, sizeof(text), "%s %s", what,
		       disk_shown(disk.fd[fd].path));
	sim_point("io", text);
	if (!may_fail || !disk.errors_one_in || disk.fd[fd].place != DISK ||
	    sim_clock() >= disk.errors_until_ns ||
	    !chance_one_in(&disk.chance, disk.errors_one_in))
		return 0;
	sim_note(1);
	return chance_one_in(&disk.chance, 2) ? EIO : ENOSPC;
}

void disk_errors(uint64_t one_in, int64_t until_ns)
{
	disk.errors_one_in = one_in;
	disk.errors_until_ns = until_ns;
}

void disk_set_size(uint64_t bytes)
{
	disk.size = bytes;
}

uint64_t disk_free(void)
{
	int64_t used = (int64_t)disk.used; /* less than 0: older files went */

	if (disk.size == UINT64_MAX || used < 0)
		return disk.size;
	return disk.used < disk.size ? disk.size - disk.used : 0;
}

uint64_t disk_blocks_of(int fd)
{
	struct stat sb;

	return disk.size != UINT64_MAX && __real_fstat64(fd, &sb) == 0
		       ? (uint64_t)sb.st_blocks * 512
		       : 0;
}

/* --- set-up
 * -------------------------------------------------------------------- */

void disk_init(const char *root, uint64_t seed)
{
	(void)snprintf(disk.store, sizeof(disk.store), "%s/store", root);
	(void)snprintf(disk.stage, sizeof(disk.stage), "%s/stage", root);
	(void)snprintf(disk.grave, sizeof(disk.grave), "%s/grave", root);
	CHECK(__real_mkdirat(AT_FDCWD, disk.store, 0700) == 0);
	CHECK(__real_mkdirat(AT_FDCWD, disk.stage, 0700) == 0);
	CHECK(__real_mkdirat(AT_FDCWD, disk.grave, 0700) == 0);
	(void)snprintf(disk.empty, sizeof(disk.empty), "%s/empty", root);
	CHECK(__real_mkdirat(AT_FDCWD, disk.empty, 0700) == 0);
	(void)snprintf(disk.root, sizeof(disk.root), "%s", root);
	disk.size = UINT64_MAX;
	disk.chance = chance_of(seed, 2);
}

const char *disk_store(void)
{
	return disk.store;
}

const char *disk_stage(void)
{
	return disk.stage;
}

void disk_remove(void)
{
	disk_remove_tree(disk.store);
	disk_remove_tree(disk.stage);
	disk_remove_tree(disk.grave);
	disk_remove_tree(disk.empty);
}

int disk_put_file(const char *path, const char *text)
{
	SCOPED(scope_close)
	int fd = __real_open64(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	size_t len = strlen(text);

	return fd >= 0 && __real_pwrite64(fd, text, len, 0) == (ssize_t)len
		       ? 0
		       : -EIO;
}

unsigned disk_open_descriptors(void)
{
	unsigned n = 0;

	for (int i = 0; i < FDS_MAX; i++)
		if (disk.fd[i].place != ELSEWHERE) {
			fprintf(stderr, "open: %s%s\n",
				disk_shown(disk.fd[i].path),
				disk.fd[i].backing ? " (backing)" : "");
			n++;
		}
	return n;
}

unsigned disk_mappings(void)
{
	unsigned n = 0;

	for (int i = 0; i < MAPS_MAX; i++)
		n += disk.map[i].at ? 1 : 0;
	return n;
}

unsigned disk_stage_files(void)
{
	DIR *dir = opendir(disk.stage);
	struct dirent *e;
	unsigned n = 0;

	CHECK(dir);
	while ((e = readdir(dir)) != NULL)
		n += e->d_name[0] == 's' ? 1 : 0;
	closedir(dir);
	return n;
}

/* Of a store in a directory of its own: 0, 1, ...; -1: of none. */
int disk_part_of(const char *path)
{
	size_t store = strlen(disk.store), stage = strlen(disk.stage);
	int part;

	if (strncmp(path, disk.store, store) == 0 &&
	    sscanf(path + store, "/%d", &part) == 1)
		return part;
	if (strncmp(path, disk.stage, stage) == 0 &&
	    sscanf(path + stage, "/%d", &part) == 1)
		return part;
	return -1;
}

void disk_part_make(unsigned part, char ret_store[DISK_PART_BYTES],
		    char ret_stage[DISK_PART_BYTES])
{
	(void)snprintf(ret_store, DISK_PART_BYTES, "%s/%u", disk.store, part);
	(void)snprintf(ret_stage, DISK_PART_BYTES, "%s/%u", disk.stage, part);
	CHECK(__real_mkdirat(AT_FDCWD, ret_store, 0700) == 0);
	CHECK(__real_mkdirat(AT_FDCWD, ret_stage, 0700) == 0);
}

/* part: -1: of all. */
static void kill_part(int part, bool held)
{
	for (int i = 0; i < MAPS_MAX; i++) {
		if (part >= 0 && disk.map[i].part != part)
			continue;
		if (disk.map[i].at)
			(void)__real_munmap(disk.map[i].at, disk.map[i].len);
		disk.map[i].at = NULL;
	}
	for (int i = 0; i < FDS_MAX; i++)
		if (disk.fd[i].place != ELSEWHERE &&
		    !(held && disk.fd[i].backing) &&
		    (part < 0 || disk_part_of(disk.fd[i].path) == part))
			(void)close(i);
}

void disk_kill(bool held)
{
	kill_part(-1, held);
}

void disk_part_kill(unsigned part)
{
	kill_part((int)part, false);
}

int disk_backing_open(void *arg, int fd)
{
	char path[40];
	int own;

	(void)arg;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	disk.backing = true;
	own = open(path, O_RDWR | O_CLOEXEC);
	if (own < 0 && errno == EPERM) /* sealed */
		own = open(path, O_RDONLY | O_CLOEXEC);
	disk.backing = false;
	return own;
}

void disk_backing_close(void *arg, int id)
{
	(void)arg;
	CHECK(close(id) == 0);
}
