/* lease.c - see lease.h. */
#include "store/base/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include "store/base/scope.h"

int lease_ask(int dirfd, const char *name, enum lease what)
{
	SCOPED(scope_close) int fd =
		openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return -errno;
	/*
	 * Whoever opens the file while we have the lease has it broken, and we
	 * are told by a signal. SIGIO would end the process; SIGURG is ignored
	 * unless somebody wants it.
	 */
	if (fcntl(fd, F_SETSIG, SIGURG) < 0)
		return -errno;
	if (fcntl(fd, F_SETLEASE,
		  what == LEASE_NOBODY ? F_WRLCK : F_RDLCK) < 0)
		return errno == EAGAIN ? 0 : -errno;
	(void)fcntl(fd, F_SETLEASE, F_UNLCK); /* so does the close */
	return 1;
}
