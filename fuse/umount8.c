/*
 * umount8.c - see umount8.h.
 *
 * The table is that of libmount, so its own tools write it: the options keep
 * them from mounting anything (-f, --fake), from asking a helper (-i) and from
 * looking at the paths (-c).
 */
#include "fuse/umount8.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuse/place.h"
#include "store/base/scope.h"

/* umount(8) looks nowhere else. */
#define HELPER "/sbin/umount.fuse.ckptfs"
#define ARGUMENTS_MAX 16

/* Run it without a word; one that does not end is ended. True: exit code 0. */
static bool ran(const char *const *argv)
{
	static char *const environment[] = { NULL };
	SCOPED(scope_close) int pidfd = -1;
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	struct pollfd p = { .events = POLLIN };
	sigset_t none;
	char *arguments[ARGUMENTS_MAX];
	int status = -1;
	size_t n = 0;
	pid_t pid;
	int rc;

	for (; argv[n]; n++) {
		CHECK(n < ARGUMENTS_MAX - 1);
		/* They are not changed; posix_spawn() only does not say so. */
		memcpy(&arguments[n], &argv[n], sizeof(argv[n]));
	}
	arguments[n] = NULL;
	(void)sigemptyset(&none);
	(void)posix_spawn_file_actions_init(&files);
	(void)posix_spawnattr_init(&attributes);
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		(void)posix_spawn_file_actions_addopen(&files, fd, "/dev/null",
						       O_RDWR, 0);
	(void)posix_spawnattr_setsigmask(&attributes, &none);
	(void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	rc = posix_spawn(&pid, argv[0], &files, &attributes, arguments,
			 environment);
	(void)posix_spawn_file_actions_destroy(&files);
	(void)posix_spawnattr_destroy(&attributes);
	if (rc != 0)
		return false;
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	p.fd = pidfd;
	while (pidfd >= 0 && (rc = poll(&p, 1, UMOUNT8_WAIT_MS)) < 0 &&
	       errno == EINTR)
		;
	if (pidfd >= 0 && rc == 0)
		(void)kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status == 0;
}

bool umount8_note(const char *store, const char *mountpoint)
{
	const char *const argv[] = {
		"/bin/mount",         "-cif", "-t",  "fuse.ckptfs", "-o",
		"helper=fuse.ckptfs", "--",   store, mountpoint,    NULL
	};

	if (geteuid() != 0 || access(HELPER, X_OK) < 0)
		return false;
	return ran(argv);
}

void umount8_forget(const char *mountpoint)
{
	const char *const argv[] = { "/bin/umount", "--fake",   "-ci",
				     "--",          mountpoint, NULL };

	/* Somebody else's mount may be there by now: that one's is kept. */
	if (place_device(mountpoint) == 0)
		(void)ran(argv);
}
