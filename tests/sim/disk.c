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
#include "tests/sim/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/base/vec.h"
#include "tests/sim/wrap.h"

#define FDS_MAX 1024
#define MAPS_MAX 256
#define BLOCK 4096u

enum place {
	ELSEWHERE,
	DISK,
	STAGE,
};

struct file {
	uint64_t ino;
	enum place place;
	struct timespec mtime;
	bool dir;
	/* DISK: */
	uint64_t durable_size;
	bool changed; /* since it was synced */
	uint8_t **old; /* by block: as it was; NULL: not changed */
	size_t blocks;
};

struct name_change {
	char dir[200], name[100];
	uint64_t before, after; /* inode numbers; 0: nothing */
	bool joined; /* with the one before it: both or none */
};

static struct {
	char root[128], store[160], stage[160], grave[160], empty[160];
	struct chance chance;
	struct {
		enum place place;
		bool backing;
		struct file *file;
		char *path;
	} fd[FDS_MAX];
	struct {
		void *at;
		size_t len;
	} map[MAPS_MAX];
	struct file **file;
	size_t file_count, file_room;
	struct name_change *change;
	size_t change_count, change_room;
	uint64_t size, used;
	uint64_t errors_one_in;
	int64_t errors_until_ns;
	bool backing;
} d;

static uint8_t hole[BLOCK]; /* in `old`: it was not there */

/* --- files
 * -------------------------------------------------------------------- */

static struct timespec now(void)
{
	return io_timespec(wall_ns());
}

static struct file *file_of(uint64_t ino, enum place place)
{
	struct file *f;

	for (size_t i = d.file_count; i-- > 0;)
		if (d.file[i]->ino == ino)
			return d.file[i];
	CHECK(vec_grow(&d.file, d.file_count, &d.file_room, sizeof(*d.file)) ==
	      0);
	f = calloc(1, sizeof(*f));
	CHECK(f);
	f->ino = ino;
	f->place = place;
	f->mtime = now();
	d.file[d.file_count++] = f;
	return f;
}

static enum place place_of(const char *path)
{
	size_t store = strlen(d.store), stage = strlen(d.stage);

	if (!d.root[0])
		return ELSEWHERE;
	if (strncmp(path, d.store, store) == 0 &&
	    (path[store] == '/' || !path[store]))
		return DISK;
	if (strncmp(path, d.stage, stage) == 0 &&
	    (path[stage] == '/' || !path[stage]))
		return STAGE;
	return ELSEWHERE;
}

/* ret: what dirfd and path mean, without the root. */
static enum place resolve(int dirfd, const char *path, char ret[400])
{
	int n;

	if (sscanf(path, "/proc/self/fd/%d", &n) == 1 && n < FDS_MAX &&
	    d.fd[n].path)
		(void)snprintf(ret, 400, "%s", d.fd[n].path);
	else if (path[0] == '/' || dirfd < 0)
		(void)snprintf(ret, 400, "%s", path);
	else if (dirfd < FDS_MAX && d.fd[dirfd].path)
		(void)snprintf(ret, 400, "%s%s%s", d.fd[dirfd].path,
			       path[0] ? "/" : "", path);
	else
		(void)snprintf(ret, 400, "?/%s", path);
	return place_of(ret);
}

/* For the trace: no number of this process is in it. */
static const char *shown(const char *path)
{
	size_t len = strlen(d.root);

	return strncmp(path, d.root, len) == 0 && path[len] ? path + len + 1
							    : path;
}

static struct file *of_fd(int fd)
{
	return fd >= 0 && fd < FDS_MAX ? d.fd[fd].file : NULL;
}

static bool on_disk(int fd)
{
	return fd >= 0 && fd < FDS_MAX && d.fd[fd].place == DISK;
}

/* A point, and perhaps an error: 0 or an errno. */
static int step(const char *what, int fd, bool may_fail)
{
	char text[440];

	if (!sim_running() || fd < 0 || fd >= FDS_MAX ||
	    d.fd[fd].place == ELSEWHERE)
		return 0;
	(void)snprintf(text, sizeof(text), "%s %s", what, shown(d.fd[fd].path));
	sim_point("io", text);
	if (!may_fail || !d.errors_one_in || d.fd[fd].place != DISK ||
	    sim_clock() >= d.errors_until_ns ||
	    !chance_one_in(&d.chance, d.errors_one_in))
		return 0;
	sim_note(1);
	return chance_one_in(&d.chance, 2) ? EIO : ENOSPC;
}

void disk_errors(uint64_t one_in, int64_t until_ns)
{
	d.errors_one_in = one_in;
	d.errors_until_ns = until_ns;
}

void disk_set_size(uint64_t bytes)
{
	d.size = bytes;
}

uint64_t disk_free(void)
{
	return d.used < d.size ? d.size - d.used : 0;
}

static uint64_t blocks_of(int fd)
{
	struct stat sb;

	return d.size != UINT64_MAX && __real_fstat64(fd, &sb) == 0
		       ? (uint64_t)sb.st_blocks * 512
		       : 0;
}

/* --- what a power cut takes back
 * ----------------------------------------------- */

static void old_free(struct file *f)
{
	for (size_t i = 0; i < f->blocks; i++)
		if (f->old[i] && f->old[i] != hole)
			free(f->old[i]);
	free(f->old);
	f->old = NULL;
	f->blocks = 0;
}

static void begin_change(struct file *f, uint64_t size)
{
	if (f->changed)
		return;
	f->changed = true;
	f->durable_size = size;
}

/* Keep what [off, off + len) is, before it changes. */
static void keep_old(int fd, uint64_t off, uint64_t len)
{
	struct file *f = of_fd(fd);
	SCOPED(scope_close) int own = -1;
	char path[40];
	struct stat sb;

	if (!f || f->place != DISK || len == 0)
		return;
	CHECK(__real_fstat64(fd, &sb) == 0);
	begin_change(f, (uint64_t)sb.st_size);
	if ((off + len + BLOCK - 1) / BLOCK > f->blocks) {
		size_t want = (off + len + BLOCK - 1) / BLOCK;

		f->old = reallocarray(f->old, want, sizeof(*f->old));
		CHECK(f->old);
		memset(f->old + f->blocks, 0,
		       (want - f->blocks) * sizeof(*f->old));
		f->blocks = want;
	}
	for (uint64_t b = off / BLOCK; b * BLOCK < off + len; b++) {
		if (f->old[b])
			continue;
		f->old[b] = hole;
		if (b * BLOCK >= (uint64_t)sb.st_size)
			continue;
		if (own < 0) {
			(void)snprintf(path, sizeof(path), "/proc/self/fd/%d",
				       fd);
			own = __real_open64(path, O_RDONLY | O_CLOEXEC);
			CHECK(own >= 0);
		}
		f->old[b] = calloc(1, BLOCK);
		CHECK(f->old[b]);
		CHECK(__real_pread64(own, f->old[b], BLOCK,
				     (off_t)(b * BLOCK)) >= 0);
	}
}

static void synced(struct file *f)
{
	if (!f)
		return;
	old_free(f);
	f->changed = false;
}

static void split(const char *path, char dir[200], char name[100])
{
	const char *slash = strrchr(path, '/');

	CHECK(slash && slash - path < 200 && strlen(slash + 1) < 100);
	memcpy(dir, path, (size_t)(slash - path));
	dir[slash - path] = 0;
	strcpy(name, slash + 1);
}

static void note_name(const char *path, uint64_t before, uint64_t after,
		      bool joined)
{
	struct name_change *c;

	CHECK(vec_grow(&d.change, d.change_count, &d.change_room,
		       sizeof(*d.change)) == 0);
	c = &d.change[d.change_count++];
	*c = (struct name_change){ .before = before,
				   .after = after,
				   .joined = joined };
	split(path, c->dir, c->name);
}

static void names_synced(const char *dir)
{
	size_t kept = 0;

	for (size_t i = 0; i < d.change_count; i++)
		if (strcmp(d.change[i].dir, dir) != 0)
			d.change[kept++] = d.change[i];
	d.change_count = kept;
}

static uint64_t ino_at(const char *path)
{
	struct stat sb;

	return __real_fstatat64(AT_FDCWD, path, &sb, AT_SYMLINK_NOFOLLOW) == 0
		       ? sb.st_ino
		       : 0;
}

/* It is about to lose a name: it may have to come back. */
static void bury(const char *path, uint64_t ino)
{
	char grave[200];

	(void)snprintf(grave, sizeof(grave), "%s/%llu", d.grave,
		       (unsigned long long)ino);
	(void)__real_linkat(AT_FDCWD, path, AT_FDCWD, grave, 0);
}

static void undo_name(const struct name_change *c)
{
	char path[400], grave[200];

	(void)snprintf(path, sizeof(path), "%s/%s", c->dir, c->name);
	if (c->after) {
		uint64_t ino = ino_at(path);

		if (ino)
			bury(path, ino);
		if (__real_unlinkat(AT_FDCWD, path, 0) < 0)
			(void)__real_unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
	}
	if (c->before) {
		(void)snprintf(grave, sizeof(grave), "%s/%llu", d.grave,
			       (unsigned long long)c->before);
		(void)__real_linkat(AT_FDCWD, grave, AT_FDCWD, path, 0);
	}
}

/* Of each directory some first changes stay. */
static void cut_names(struct chance *c)
{
	bool *gone = calloc(d.change_count + 1, sizeof(*gone));

	CHECK(gone);
	for (size_t i = 0; i < d.change_count; i++) {
		struct name_change *n = &d.change[i];

		for (size_t k = 0; k < i && !gone[i]; k++)
			gone[i] =
				gone[k] && strcmp(d.change[k].dir, n->dir) == 0;
		if (!gone[i] && n->joined)
			continue;
		gone[i] = gone[i] || chance_one_in(c, 3);
	}
	for (size_t i = d.change_count; i-- > 0;) {
		if (!gone[i] && i + 1 < d.change_count &&
		    d.change[i + 1].joined)
			gone[i] = gone[i + 1];
		if (gone[i])
			undo_name(&d.change[i]);
	}
	free(gone);
	d.change_count = 0;
}

static void cut_file(struct file *f, const char *path, struct chance *c)
{
	SCOPED(scope_close) int fd = __real_open64(path, O_RDWR | O_CLOEXEC);
	uint64_t how = chance_below(c, 4); /* 0: none stay, 1: all, else some */
	struct stat sb;
	uint64_t size;

	CHECK(fd >= 0 && __real_fstat64(fd, &sb) == 0);
	size = (uint64_t)sb.st_size;
	for (size_t b = 0; b < f->blocks; b++) {
		bool stays = how == 1 || (how > 1 && chance_one_in(c, 2));
		off_t at = (off_t)(b * BLOCK);

		if (!f->old[b] || stays || b * BLOCK >= size)
			continue;
		if (f->old[b] == hole)
			CHECK(__real_fallocate64(fd,
						 FALLOC_FL_PUNCH_HOLE |
							 FALLOC_FL_KEEP_SIZE,
						 at, BLOCK) == 0);
		else
			CHECK(__real_pwrite64(fd, f->old[b], BLOCK, at) ==
			      BLOCK);
	}
	/* A larger size is on the disk before or after the bytes are. */
	if (f->durable_size > size || how == 0 ||
	    (how > 1 && chance_one_in(c, 2)))
		size = f->durable_size;
	CHECK(__real_ftruncate64(fd, (off_t)size) == 0);
	synced(f);
}

static void cut_tree(const char *path, struct chance *c)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	CHECK(dir);
	while ((e = readdir(dir)) != NULL) {
		char below[400];

		if (e->d_name[0] == '.')
			continue;
		(void)snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
		if (e->d_type == DT_DIR) {
			cut_tree(below, c);
			continue;
		}
		for (size_t i = 0; i < d.file_count; i++) {
			struct chance own = chance_of(c->x, i);

			if (d.file[i]->ino == e->d_ino && d.file[i]->changed)
				cut_file(d.file[i], below, &own);
		}
	}
	closedir(dir);
}

static void remove_tree(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;

	while (dir && (e = readdir(dir)) != NULL) {
		char below[400];

		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		(void)snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
		if (e->d_type == DT_DIR) {
			remove_tree(below);
		} else if (__real_unlinkat(AT_FDCWD, below, 0) < 0) {
			int fd = __real_open64(below, O_RDONLY | O_CLOEXEC);
			int none = 0;

			/* a sealed stage: append only */
			(void)ioctl(fd, FS_IOC_SETFLAGS, &none);
			__real_close(fd);
			(void)__real_unlinkat(AT_FDCWD, below, 0);
		}
	}
	if (dir)
		closedir(dir);
	(void)__real_unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

void disk_cut(struct chance *c)
{
	cut_names(c);
	cut_tree(d.store, c);
	chance_next(c);
	remove_tree(d.stage);
	CHECK(__real_mkdirat(AT_FDCWD, d.stage, 0700) == 0);
	remove_tree(d.grave);
	CHECK(__real_mkdirat(AT_FDCWD, d.grave, 0700) == 0);
}

/* --- set-up
 * -------------------------------------------------------------------- */

void disk_init(const char *root, uint64_t seed)
{
	(void)snprintf(d.store, sizeof(d.store), "%s/store", root);
	(void)snprintf(d.stage, sizeof(d.stage), "%s/stage", root);
	(void)snprintf(d.grave, sizeof(d.grave), "%s/grave", root);
	CHECK(__real_mkdirat(AT_FDCWD, d.store, 0700) == 0);
	CHECK(__real_mkdirat(AT_FDCWD, d.stage, 0700) == 0);
	CHECK(__real_mkdirat(AT_FDCWD, d.grave, 0700) == 0);
	(void)snprintf(d.empty, sizeof(d.empty), "%s/empty", root);
	CHECK(__real_mkdirat(AT_FDCWD, d.empty, 0700) == 0);
	(void)snprintf(d.root, sizeof(d.root), "%s", root);
	d.size = UINT64_MAX;
	d.chance = chance_of(seed, 2);
}

const char *disk_store(void)
{
	return d.store;
}

const char *disk_stage(void)
{
	return d.stage;
}

void disk_remove(void)
{
	remove_tree(d.store);
	remove_tree(d.stage);
	remove_tree(d.grave);
	remove_tree(d.empty);
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
		if (d.fd[i].place != ELSEWHERE) {
			fprintf(stderr, "open: %s%s\n", shown(d.fd[i].path),
				d.fd[i].backing ? " (backing)" : "");
			n++;
		}
	return n;
}

unsigned disk_mappings(void)
{
	unsigned n = 0;

	for (int i = 0; i < MAPS_MAX; i++)
		n += d.map[i].at ? 1 : 0;
	return n;
}

unsigned disk_stage_files(void)
{
	DIR *dir = opendir(d.stage);
	struct dirent *e;
	unsigned n = 0;

	CHECK(dir);
	while ((e = readdir(dir)) != NULL)
		n += e->d_name[0] == 's' ? 1 : 0;
	closedir(dir);
	return n;
}

void disk_kill(bool held)
{
	for (int i = 0; i < MAPS_MAX; i++) {
		if (d.map[i].at)
			(void)__real_munmap(d.map[i].at, d.map[i].len);
		d.map[i].at = NULL;
	}
	for (int i = 0; i < FDS_MAX; i++)
		if (d.fd[i].place != ELSEWHERE && !(held && d.fd[i].backing))
			(void)close(i);
}

int disk_backing_open(void *arg, int fd)
{
	char path[40];
	int own;

	(void)arg;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	d.backing = true;
	own = open(path, O_RDWR | O_CLOEXEC);
	if (own < 0 && errno == EPERM) /* sealed */
		own = open(path, O_RDONLY | O_CLOEXEC);
	d.backing = false;
	return own;
}

void disk_backing_close(void *arg, int id)
{
	(void)arg;
	CHECK(close(id) == 0);
}

/* --- the calls
 * ----------------------------------------------------------------- */

static void opened(int fd, enum place place, const char *path, bool is_new)
{
	struct stat sb;

	CHECK(fd < FDS_MAX);
	CHECK(__real_fstat64(fd, &sb) == 0);
	d.fd[fd].place = place;
	d.fd[fd].path = strdup(path);
	d.fd[fd].backing = d.backing;
	d.fd[fd].file = file_of(sb.st_ino, place);
	d.fd[fd].file->dir = S_ISDIR(sb.st_mode);
	if (is_new && place == DISK) {
		note_name(path, 0, sb.st_ino, false);
		begin_change(d.fd[fd].file, 0);
	}
}

/*
 * The 256 directories of images are made when they get a file; until then they
 * are all the same empty one.
 */
static bool is_image_dir(const char *full)
{
	const char *name = strstr(full, "/images/");

	return name && strlen(name) == strlen("/images/XX");
}

static int open_at(int dirfd, const char *path, const char *full, int flags,
		   mode_t mode)
{
	int fd = __real_openat64(dirfd, path, flags, mode);
	char dir[200], name[100];

	if (fd >= 0 || errno != ENOENT)
		return fd;
	if ((flags & O_DIRECTORY) && is_image_dir(full))
		return __real_open64(d.empty, O_RDONLY | O_CLOEXEC);
	if (!(flags & O_CREAT))
		return fd;
	split(full, dir, name);
	if (!is_image_dir(dir) || __real_mkdirat(AT_FDCWD, dir, 0700) < 0)
		return -1;
	return __real_openat64(dirfd, path, flags, mode);
}

static int open_any(int dirfd, const char *path, int flags, mode_t mode)
{
	char full[400], text[440];
	enum place place = resolve(dirfd, path, full);
	bool is_new;
	int fd;

	if (place == ELSEWHERE)
		return __real_openat64(dirfd, path, flags, mode);
	(void)snprintf(text, sizeof(text), "open %s", shown(full));
	if (!(flags & O_DIRECTORY))
		sim_point("io", text);
	is_new = (flags & O_CREAT) &&
		 faccessat(dirfd, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0;
	if ((flags & O_TRUNC) && !is_new && place == DISK) {
		fd = __real_openat64(dirfd, path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			struct stat sb;

			CHECK(__real_fstat64(fd, &sb) == 0);
			opened(fd, place, full, false);
			keep_old(fd, 0, (uint64_t)sb.st_size);
			(void)close(fd);
		}
	}
	fd = open_at(dirfd, path, full, flags, mode);
	if (fd >= 0)
		opened(fd, place, full, is_new);
	return fd;
}

int __wrap_open64(const char *path, int flags, ...)
{
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return open_any(AT_FDCWD, path, flags, mode);
}

int __wrap_openat64(int dirfd, const char *path, int flags, ...)
{
	mode_t mode;
	va_list ap;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return open_any(dirfd, path, flags, mode);
}

int __wrap_close(int fd)
{
	if (fd >= 0 && fd < FDS_MAX && d.fd[fd].place != ELSEWHERE) {
		free(d.fd[fd].path);
		memset(&d.fd[fd], 0, sizeof(d.fd[fd]));
	}
	return __real_close(fd);
}

DIR *__wrap_fdopendir(int fd)
{
	return __real_fdopendir(fd);
}

/* closedir(3) closes without asking us. */
int __wrap_closedir(DIR *dir)
{
	int fd = dirfd(dir);

	if (fd >= 0 && fd < FDS_MAX && d.fd[fd].place != ELSEWHERE) {
		free(d.fd[fd].path);
		memset(&d.fd[fd], 0, sizeof(d.fd[fd]));
	}
	return __real_closedir(dir);
}

ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t off)
{
	int rc = step("pread", fd, false);

	(void)rc;
	return __real_pread64(fd, buf, len, off);
}

static void changed(int fd, uint64_t blocks_before)
{
	struct file *f = of_fd(fd);

	if (!f)
		return;
	f->mtime = now();
	if (f->place == DISK)
		d.used += blocks_of(fd) - blocks_before;
}

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	int rc = step("pwrite", fd, true);
	uint64_t blocks;
	ssize_t n;

	if (rc == 0 && on_disk(fd) && disk_free() < len)
		rc = ENOSPC;
	if (rc) {
		errno = rc;
		return -1;
	}
	blocks = blocks_of(fd);
	keep_old(fd, (uint64_t)off, len);
	n = __real_pwrite64(fd, buf, len, off);
	if (n >= 0)
		changed(fd, blocks);
	return n;
}

int __wrap_ftruncate64(int fd, off_t len)
{
	int rc = step("ftruncate", fd, false);
	uint64_t blocks = blocks_of(fd);
	struct stat sb;

	if (on_disk(fd) && __real_fstat64(fd, &sb) == 0) {
		begin_change(of_fd(fd), (uint64_t)sb.st_size);
		if (sb.st_size > len)
			keep_old(fd, (uint64_t)len,
				 (uint64_t)(sb.st_size - len));
	}
	rc = __real_ftruncate64(fd, len);
	if (rc == 0)
		changed(fd, blocks);
	return rc;
}

int __wrap_fallocate64(int fd, int mode, off_t off, off_t len)
{
	bool takes = !(mode & FALLOC_FL_PUNCH_HOLE);
	int rc = step("fallocate", fd, takes);
	uint64_t blocks = blocks_of(fd);
	struct stat sb = { 0 };

	if (rc == 0 && takes && on_disk(fd) && disk_free() < (uint64_t)len)
		rc = ENOSPC;
	if (rc) {
		errno = rc;
		return -1;
	}
	if (on_disk(fd) && __real_fstat64(fd, &sb) == 0) {
		begin_change(of_fd(fd), (uint64_t)sb.st_size);
		if (!takes)
			keep_old(
				fd, (uint64_t)off,
				off + len > sb.st_size
					? off < sb.st_size
						  ? (uint64_t)(sb.st_size - off)
						  : 0
					: (uint64_t)len);
	}
	/* The reserve of the disk would be memory of this machine. */
	rc = mode == 0 && on_disk(fd)
		     ? __real_ftruncate64(fd, sb.st_size > off + len
						      ? sb.st_size
						      : off + len)
		     : __real_fallocate64(fd, mode, off, len);
	if (rc == 0)
		changed(fd, blocks);
	return rc;
}

static int sync_any(int fd, const char *what)
{
	struct file *f = of_fd(fd);
	int rc = step(what, fd, true);

	if (rc) {
		errno = rc;
		return -1;
	}
	if (!f || f->place != DISK)
		return 0;
	if (f->dir)
		names_synced(d.fd[fd].path);
	else
		synced(f);
	return 0;
}

int __wrap_fsync(int fd)
{
	return sync_any(fd, "fsync");
}

int __wrap_fdatasync(int fd)
{
	return sync_any(fd, "fdatasync");
}

static void name_point(const char *what, const char *path)
{
	char text[440];

	(void)snprintf(text, sizeof(text), "%s %s", what, shown(path));
	sim_point("io", text);
}

int __wrap_unlinkat(int dirfd, const char *path, int flags)
{
	char full[400];
	enum place place = resolve(dirfd, path, full);
	uint64_t ino = 0;
	struct stat sb;
	int rc;

	if (place != ELSEWHERE)
		name_point("unlink", full);
	if (place == DISK &&
	    __real_fstatat64(dirfd, path, &sb, AT_SYMLINK_NOFOLLOW) == 0) {
		ino = sb.st_ino;
		bury(full, ino);
	}
	rc = __real_unlinkat(dirfd, path, flags);
	if (rc == 0 && ino) {
		note_name(full, ino, 0, false);
		if (d.size != UINT64_MAX)
			d.used -= (uint64_t)sb.st_blocks * 512;
	}
	return rc;
}

int __wrap_unlink(const char *path)
{
	return __wrap_unlinkat(AT_FDCWD, path, 0);
}

int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	char a[400], b[400];
	enum place place = resolve(from_fd, from, a);
	uint64_t ino = 0, old = 0;
	int rc;

	(void)resolve(to_fd, to, b);
	if (place != ELSEWHERE)
		name_point("rename", a);
	if (place == DISK) {
		ino = ino_at(a);
		old = ino_at(b);
		if (ino)
			bury(a, ino);
		if (old)
			bury(b, old);
	}
	rc = __real_renameat(from_fd, from, to_fd, to);
	if (rc == 0 && ino) {
		note_name(a, ino, 0, false);
		note_name(b, old, ino, true);
	}
	/* Open descriptors follow. */
	for (int i = 0; rc == 0 && i < FDS_MAX; i++)
		if (d.fd[i].path && strcmp(d.fd[i].path, a) == 0) {
			free(d.fd[i].path);
			d.fd[i].path = strdup(b);
		}
	return rc;
}

int __wrap_linkat(int from_fd, const char *from, int to_fd, const char *to,
		  int flags)
{
	char full[400];
	enum place place = resolve(to_fd, to, full);
	int rc;

	if (place != ELSEWHERE)
		name_point("link", full);
	rc = __real_linkat(from_fd, from, to_fd, to, flags);
	if (rc == 0 && place == DISK)
		note_name(full, 0, ino_at(full), false);
	return rc;
}

/* Of a new store only, and that is whole when it is used. */
int __wrap_mkdirat(int dirfd, const char *path, mode_t mode)
{
	char full[400];

	if (resolve(dirfd, path, full) == DISK && is_image_dir(full))
		return 0;
	return __real_mkdirat(dirfd, path, mode);
}

void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd,
		    off_t off)
{
	void *p = __real_mmap64(at, len, prot, flags, fd, off);

	if (p == MAP_FAILED || fd < 0 || fd >= FDS_MAX ||
	    d.fd[fd].place == ELSEWHERE)
		return p;
	for (int i = 0; i < MAPS_MAX; i++)
		if (!d.map[i].at) {
			d.map[i].at = p;
			d.map[i].len = len;
			return p;
		}
	abort();
}

int __wrap_munmap(void *at, size_t len)
{
	for (int i = 0; i < MAPS_MAX; i++)
		if (d.map[i].at == at)
			d.map[i].at = NULL;
	return __real_munmap(at, len);
}

/* Times of files are those of the run. */
static void set_times(struct stat *sb)
{
	for (size_t i = d.file_count; i-- > 0;)
		if (d.file[i]->ino == sb->st_ino) {
			sb->st_mtim = sb->st_ctim = d.file[i]->mtime;
			sb->st_atim = d.file[i]->mtime;
			return;
		}
}

int __wrap_fstat64(int fd, struct stat *sb)
{
	int rc = __real_fstat64(fd, sb);

	if (rc == 0 && of_fd(fd))
		set_times(sb);
	return rc;
}

int __wrap_fstatat64(int dirfd, const char *path, struct stat *sb, int flags)
{
	char full[400];
	enum place place = resolve(dirfd, path, full);
	int rc = __real_fstatat64(dirfd, path, sb, flags);

	if (rc == 0 && place != ELSEWHERE)
		set_times(sb);
	return rc;
}

static int times_set(struct file *f, const struct timespec times[2])
{
	if (!times || times[1].tv_nsec == UTIME_NOW)
		f->mtime = now();
	else if (times[1].tv_nsec != UTIME_OMIT)
		f->mtime = times[1];
	return 0;
}

int __wrap_futimens(int fd, const struct timespec times[2])
{
	struct file *f = of_fd(fd);

	return f ? times_set(f, times) : __real_futimens(fd, times);
}

int __wrap_utimensat(int dirfd, const char *path,
		     const struct timespec times[2], int flags)
{
	char full[400];
	enum place place = resolve(dirfd, path, full);
	uint64_t ino;

	if (place == ELSEWHERE)
		return __real_utimensat(dirfd, path, times, flags);
	ino = ino_at(full);
	if (!ino) {
		errno = ENOENT;
		return -1;
	}
	return times_set(file_of(ino, place), times);
}

/* What is free elsewhere on the carrier is nobody's business. */
int __wrap_fstatvfs64(int fd, struct statvfs *v)
{
	int rc = __real_fstatvfs64(fd, v);
	bool disk = on_disk(fd);

	if (rc < 0 || !of_fd(fd))
		return rc;
	v->f_bsize = v->f_frsize = BLOCK;
	v->f_blocks = disk && d.size != UINT64_MAX ? d.size / BLOCK : 1u << 28;
	v->f_bfree = v->f_bavail =
		disk && d.size != UINT64_MAX ? disk_free() / BLOCK : 1u << 27;
	return 0;
}

int __wrap_fstatfs64(int fd, struct statfs *v)
{
	int rc = __real_fstatfs64(fd, v);

	if (rc < 0 || !of_fd(fd))
		return rc;
	v->f_blocks = 1u << 28;
	v->f_bfree = v->f_bavail = 1u << 27;
	return 0;
}

ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags)
{
	uint8_t *p = buf;

	(void)flags;
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)chance_next(&d.chance);
	return (ssize_t)len;
}
