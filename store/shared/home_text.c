/*
 * home_text.c - what is understood of a text is written once more and compared,
 * so that a text of ours has one spelling, and a file that a crash or a person
 * left in part is never taken for it.
 */
#include "store/shared/home_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/db/identity.h"

#ifndef CKPTFS_VERSION /* the simulator has none */
#define CKPTFS_VERSION "0"
#endif
#define FORMAT_FILE "format"
#define STORE_FILE "store"
#define ALIVE_FILE "alive"
#define TEXT_MODE 0644
#define NODE_CHARACTERS \
	"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"

bool shared_node_is_name(const char *name)
{
	size_t len = strlen(name);

	return len >= 1 && len <= SHARED_NODE_MAX && name[0] != '.' &&
	       strspn(name, NODE_CHARACTERS) == len;
}

int home_text_put(int dirfd, const char *name, const char *text, size_t len,
		  bool durable)
{
	SCOPED(scope_close) int fd = -1;
	char tmp[NAME_MAX + 1];
	int rc;

	(void)snprintf(tmp, sizeof(tmp), "%s.tmp", name);
	/* Left of a process that ended; and links of it would be others'. */
	if (unlinkat(dirfd, tmp, 0) < 0 && errno != ENOENT)
		return -errno;
	fd = openat(dirfd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	rc = io_write_full(fd, text, len, 0);
	if (rc < 0)
		return rc;
	if (fchmod(fd, TEXT_MODE) < 0 || (durable && fsync(fd) < 0))
		return -errno;
	if (durable)
		return dir_rename(dirfd, tmp, name);
	return renameat(dirfd, tmp, dirfd, name) < 0 ? -errno : 0;
}

/* Is what was read this text, and not only as far as its first NUL? */
static bool is_same(const char *text, size_t len, const char *again)
{
	return len > 0 && len == strlen(again) && memcmp(text, again, len) == 0;
}

/* The text that was made, and its check. */
static size_t finish(char ret[HOME_TEXT_BYTES_MAX], int len)
{
	CHECK(len > 0 && len < HOME_TEXT_BYTES_MAX);
	return identity_add_check(ret, (size_t)len, HOME_TEXT_BYTES_MAX);
}

static size_t format_text(unsigned number, const char *uuid,
			  char ret[HOME_TEXT_BYTES_MAX])
{
	return finish(ret, snprintf(ret, HOME_TEXT_BYTES_MAX,
				    "ckptfs shared directory, format %u\n"
				    "uuid %s\n",
				    number, uuid));
}

size_t home_format_text(const char *uuid, char ret[HOME_TEXT_BYTES_MAX])
{
	return format_text(HOME_FORMAT, uuid, ret);
}

int home_format_read(int homefd, unsigned *ret_number,
		     char ret_uuid[LAYOUT_UUID_BYTES])
{
	char text[HOME_TEXT_BYTES_MAX], again[HOME_TEXT_BYTES_MAX] = "";
	char uuid[LAYOUT_UUID_BYTES] = "";
	ssize_t n = dir_read_text(homefd, FORMAT_FILE, text, sizeof(text));
	unsigned number = 0;
	int fields;

	if (n < 0)
		return (int)n;
	fields = sscanf(text,
			"ckptfs shared directory, format %u uuid %36[0-9a-f-]",
			&number, uuid);
	if (fields >= 1 && number > HOME_FORMAT) {
		*ret_number = number;
		return -EPROTO;
	}
	if (fields == 2)
		(void)format_text(number, uuid, again);
	if (number == 0 || strlen(uuid) != LAYOUT_UUID_BYTES - 1 ||
	    !is_same(text, (size_t)n, again))
		return -EINVAL;
	*ret_number = number;
	memcpy(ret_uuid, uuid, sizeof(uuid));
	return 0;
}

static size_t store_text(const char *uuid, char ret[HOME_TEXT_BYTES_MAX])
{
	return finish(ret, snprintf(ret, HOME_TEXT_BYTES_MAX,
				    "ckptfs node\nstore %s\n", uuid));
}

int home_store_read(int nodefd, char ret_uuid[LAYOUT_UUID_BYTES])
{
	char text[HOME_TEXT_BYTES_MAX], again[HOME_TEXT_BYTES_MAX] = "";
	char uuid[LAYOUT_UUID_BYTES] = "";
	ssize_t n = dir_read_text(nodefd, STORE_FILE, text, sizeof(text));

	if (n < 0)
		return (int)n;
	if (sscanf(text, "ckptfs node store %36[0-9a-f-]", uuid) == 1)
		(void)store_text(uuid, again);
	if (strlen(uuid) != LAYOUT_UUID_BYTES - 1 ||
	    !is_same(text, (size_t)n, again))
		return -EINVAL;
	memcpy(ret_uuid, uuid, sizeof(uuid));
	return 0;
}

int home_store_write(int nodefd, const char *uuid)
{
	char text[HOME_TEXT_BYTES_MAX];
	size_t len = store_text(uuid, text);

	return home_text_put(nodefd, STORE_FILE, text, len, true);
}

static size_t alive_text(const struct home_alive *a,
			 char ret[HOME_TEXT_BYTES_MAX])
{
	return finish(ret, snprintf(ret, HOME_TEXT_BYTES_MAX,
				    "ckptfs alive\nversion %s\nboot %s\n"
				    "process %ld\nsince %" PRId64
				    "\ntime %" PRId64 "\n",
				    a->version, a->boot, a->pid, a->since_ns,
				    a->time_ns));
}

/* Its text and its time are those of one file, whatever replaces it. */
static int read_alive_text(int nodefd, char ret[HOME_TEXT_BYTES_MAX],
			   size_t *ret_len, int64_t *ret_seen_ns)
{
	SCOPED(scope_close)
	int fd = openat(nodefd, ALIVE_FILE,
			O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK |
				O_NOCTTY);
	struct stat st;
	int rc;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	rc = io_read(fd, ret, HOME_TEXT_BYTES_MAX - 1, 0, ret_len);
	if (rc < 0)
		return rc;
	ret[*ret_len] = 0;
	*ret_seen_ns = io_ns(&st.st_mtim);
	return 0;
}

int home_alive_read(int nodefd, struct home_alive *ret, int64_t *ret_seen_ns)
{
	char text[HOME_TEXT_BYTES_MAX], again[HOME_TEXT_BYTES_MAX] = "";
	struct home_alive a = { .pid = 0 };
	size_t len = 0;
	int64_t seen_ns;
	int rc = read_alive_text(nodefd, text, &len, &seen_ns);

	if (rc < 0)
		return rc;
	if (sscanf(text,
		   "ckptfs alive version %31[0-9A-Za-z.+~-] "
		   "boot %36[0-9a-f-] process %ld since %" SCNd64
		   " time %" SCNd64,
		   a.version, a.boot, &a.pid, &a.since_ns, &a.time_ns) == 5)
		(void)alive_text(&a, again);
	if (!is_same(text, len, again))
		return -EINVAL;
	*ret = a;
	*ret_seen_ns = seen_ns;
	return 0;
}

int home_alive_put(int nodefd, const struct home_alive *a)
{
	char text[HOME_TEXT_BYTES_MAX];
	size_t len = alive_text(a, text);

	return home_text_put(nodefd, ALIVE_FILE, text, len, false);
}

int home_alive_write(int nodefd, int64_t since_ns)
{
	struct home_alive a = { .version = CKPTFS_VERSION,
				.pid = (long)getpid(),
				.since_ns = since_ns,
				.time_ns = wall_ns() };

	home_boot_id(a.boot);
	return home_alive_put(nodefd, &a);
}

void home_boot_id(char ret[HOME_BOOT_BYTES])
{
	if (dir_read_text(AT_FDCWD, "/proc/sys/kernel/random/boot_id", ret,
			  HOME_BOOT_BYTES) != HOME_BOOT_BYTES - 1 ||
	    strspn(ret, "0123456789abcdef-") != HOME_BOOT_BYTES - 1)
		strcpy(ret, "-");
}
