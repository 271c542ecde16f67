/*
 * shared_node.c - a node of a shared directory, as a daemon is one, that does
 * what its standard input says, line by line, and answers each with "ok":
 *
 *   shared_node DIR NODE STORE_UUID [rejoin]
 *
 *   alive                 write `alive`
 *   joined                all that came back is known
 *   alive-of BOOT AHEAD   write it as of another boot, AHEAD seconds ahead
 *   unlock                give up the lock, as if no locks were known there
 *   pending SIZE PATH     a pending file: PATH is from DIR
 *   bare SIZE PATH        one without a link in own/
 *   new NAME              a file in new/NODE
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/shared/home.h"

#define LINE_BYTES 4096

struct node {
	struct shared_home home;
	const char *store;
};

static int put_pending(const struct node *n, const char *kind, uint64_t size,
		       const char *path)
{
	SCOPED(scope_close)
	int fd = openat(n->home.dirfd, path, O_WRONLY | O_CREAT | O_EXCL,
			shared_pending_mode());
	char name[32];
	struct stat st;

	if (fd < 0 || ftruncate(fd, (off_t)size) < 0 || fstat(fd, &st) < 0)
		return -errno;
	(void)snprintf(name, sizeof(name), "%016llx",
		       (unsigned long long)st.st_ino);
	return strcmp(kind, "bare") == 0 ? 0
					 : dir_link(fd, n->home.ownfd, name);
}

static int put_alive(const struct node *n, const char *boot, long ahead_s)
{
	int64_t ahead_ns = (int64_t)ahead_s * 1000000000;
	struct home_alive a = { .version = "0.9-other",
				.pid = 1,
				.since_ns = n->home.since_ns + ahead_ns,
				.time_ns = wall_ns() + ahead_ns };

	(void)snprintf(a.boot, sizeof(a.boot), "%s", boot);
	return home_alive_put(n->home.nodefd, &a);
}

static int put_new(const struct node *n, const char *name)
{
	SCOPED(scope_close)
	int fd = openat(n->home.newfd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	return fd < 0 ? -errno : 0;
}

static int obey(struct node *n, const char *line)
{
	char word[32] = "", rest[LINE_BYTES] = "";
	unsigned long long size = 0;
	long ahead_s = 0;

	if (strcmp(line, "alive") == 0)
		return shared_home_alive(&n->home);
	if (strcmp(line, "joined") == 0)
		return shared_home_joined(&n->home, n->store);
	if (strcmp(line, "unlock") == 0) {
		scope_close(&n->home.lockfd);
		n->home.lockfd = -1;
		return 0;
	}
	if (sscanf(line, "alive-of %4095s %ld", rest, &ahead_s) == 2)
		return put_alive(n, rest, ahead_s);
	if (sscanf(line, "new %4095s", rest) == 1)
		return put_new(n, rest);
	if (sscanf(line, "%31s %llu %4095[^\n]", word, &size, rest) == 3)
		return put_pending(n, word, size, rest);
	return -EINVAL;
}

int main(int argc, char **argv)
{
	struct node n = { .home = SHARED_HOME_NONE };
	char why[LINE_BYTES] = "", line[LINE_BYTES];
	int rc;

	if ((argc != 4 && argc != 5) ||
	    strlen(argv[3]) != LAYOUT_UUID_BYTES - 1) {
		(void)fputs("usage: shared_node DIR NODE STORE_UUID "
			    "[rejoin]\n",
			    stderr);
		return 2;
	}
	n.store = argv[3];
	rc = shared_home_open(argv[1], argv[2], n.store, argc == 5, &n.home,
			      why, sizeof(why));
	(void)puts(rc == 0 ? "ok" : why);
	(void)fflush(stdout);
	while (rc == 0 && fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		rc = obey(&n, line);
		(void)puts(rc == 0 ? "ok" : strerror(-rc));
		(void)fflush(stdout);
	}
	shared_home_release(&n.home);
	return rc == 0 ? 0 : 1;
}
