/*
 * caller.c - see caller.h.
 *
 * What is remembered of a process hangs on an open /proc/PID/environ. The
 * kernel ties that to the memory the process had when it was opened, and it
 * gives nothing once that memory is gone: so one byte tells that the process
 * is still the same one and still runs the same program, where the time of
 * its start would say nothing of an exec, and costs more to read.
 *
 * That holds only of memory that is the process's own. Between vfork and exec
 * it is the parent's, and lives on after the exec: such a process is read
 * anew each time.
 */
#include "fuse/caller.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"

/* Remembered at a time, at most: each takes a descriptor. */
#define CALLERS_MAX 256
/* A longer environment is not looked at: half of one could mislead. */
#define ENVIRON_BYTES_MAX (1u << 20)

struct caller_slot {
	pthread_mutex_t lock; /* guards everything below */
	pid_t pid; /* 0: nobody */
	int fd; /* its environ */
	struct writer writer; /* without the host */
	bool scheduler;
};

struct callers {
	bool readable; /* immutable */
	unsigned count; /* of the slots, those that are used; immutable */
	char host[WRITER_HOST_MAX + 1]; /* immutable */
	struct caller_slot slots[CALLERS_MAX];
};

/*
 * Are the numbers in /proc those that the kernel gives us? Not where it was
 * mounted for another pid namespace: a number would be somebody else's there.
 * Then /proc shows us with more than one number, or not as who we are.
 */
static bool proc_is_ours(void)
{
	static const char key[] = "\nNSpid:\t";
	char text[4096], *at, *end;

	if (dir_read_text(AT_FDCWD, "/proc/self/status", text, sizeof(text)) <
	    0)
		return false;
	at = strstr(text, key);
	if (!at)
		return false;
	at += sizeof(key) - 1;
	return strtol(at, &end, 10) == getpid() && end > at && *end == '\n';
}

struct callers *callers_new(void)
{
	struct callers *c = calloc(1, sizeof(*c));
	struct utsname name;

	if (!c)
		return NULL;
	c->readable = proc_is_ours();
	c->count = 1 + io_fd_share(10, CALLERS_MAX - 1);
	if (uname(&name) == 0)
		writer_set_text(c->host, WRITER_HOST_MAX, name.nodename,
				strlen(name.nodename));
	for (size_t i = 0; i < CALLERS_MAX; i++)
		CHECK(pthread_mutex_init(&c->slots[i].lock, NULL) == 0);
	return c;
}

void callers_free(struct callers *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < CALLERS_MAX; i++) {
		if (c->slots[i].pid != 0)
			(void)close(c->slots[i].fd);
		(void)pthread_mutex_destroy(&c->slots[i].lock);
	}
	free(c);
}

pid_t caller_in_proc(const struct callers *c, pid_t pid)
{
	return c->readable ? pid : 0;
}

/* Has pid its memory to itself and its threads? False: not known either. */
static bool has_own_memory(pid_t pid)
{
	char path[64], text[1024], state;
	const char *at;
	int parent = 0;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (dir_read_text(AT_FDCWD, path, text, sizeof(text)) < 0)
		return false;
	at = strrchr(text, ')'); /* the name before it may hold anything */
	if (!at || sscanf(at, ") %c %d", &state, &parent) != 2 || parent <= 0)
		return false;
	return syscall(SYS_kcmp, pid, parent, KCMP_VM, 0L, 0L) > 0;
}

/* A descriptor to remember it by, or -1. */
static int look(pid_t pid, struct writer *ret, bool *ret_scheduler)
{
	SCOPED(scope_free) char *block = malloc(ENVIRON_BYTES_MAX + 1);
	size_t len = 0;
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (block && io_read(fd, block, ENVIRON_BYTES_MAX + 1, 0, &len) == 0 &&
	    len > 0 && len <= ENVIRON_BYTES_MAX)
		writer_of_environment(block, len, ret, ret_scheduler);
	if (has_own_memory(pid))
		return fd;
	(void)close(fd);
	return -1;
}

/* Under the lock only the memory of pid itself is waited for. */
static bool recall(struct caller_slot *s, pid_t pid, struct writer *ret,
		   bool *ret_scheduler)
{
	char byte;

	HOLD(&s->lock);
	if (s->pid != pid || pread(s->fd, &byte, 1, 0) != 1)
		return false;
	*ret = s->writer;
	*ret_scheduler = s->scheduler;
	return true;
}

/* Takes fd over; who had the slot is forgotten. */
static void remember(struct caller_slot *s, pid_t pid, int fd,
		     const struct writer *w, bool scheduler)
{
	HOLD(&s->lock);
	if (s->pid != 0)
		(void)close(s->fd);
	s->pid = pid;
	s->fd = fd;
	s->writer = *w;
	s->scheduler = scheduler;
}

void caller_find(struct callers *c, pid_t pid, struct writer *ret,
		 bool *ret_scheduler)
{
	struct caller_slot *s = &c->slots[(unsigned)pid % c->count];

	memset(ret, 0, sizeof(*ret));
	*ret_scheduler = false;
	if (pid > 0 && c->readable && !recall(s, pid, ret, ret_scheduler)) {
		int fd = look(pid, ret, ret_scheduler);

		if (fd >= 0)
			remember(s, pid, fd, ret, *ret_scheduler);
	}
	memcpy(ret->host, c->host, sizeof(ret->host));
}

/* --- signals -------------------------------------------------------------- */

#define BIT(signal) (UINT64_C(1) << ((signal)-1))
#define ENDS_A_WAIT (BIT(SIGINT) | BIT(SIGQUIT) | BIT(SIGKILL))
/* What does no harm to who does not catch it. */
#define HARMLESS                                                     \
	(BIT(SIGCHLD) | BIT(SIGCONT) | BIT(SIGURG) | BIT(SIGWINCH) | \
	 BIT(SIGSTOP) | BIT(SIGTSTP) | BIT(SIGTTIN) | BIT(SIGTTOU))

/* A set of bits in /proc/PID/status; none: it is not there. */
static uint64_t bits_of(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	uint64_t set = 0;

	if (at && sscanf(at + strlen(key), " %" SCNx64, &set) != 1)
		set = 0;
	return set;
}

bool caller_is_to_end(const struct callers *c, pid_t pid, bool heard)
{
	char path[64], text[4096];
	uint64_t pending, caught;

	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (pid <= 0 || !c->readable ||
	    dir_read_text(AT_FDCWD, path, text, sizeof(text)) < 0)
		return heard;
	pending = bits_of(text, "\nSigPnd:") | bits_of(text, "\nShdPnd:");
	pending &= ~bits_of(text, "\nSigBlk:");
	caught = bits_of(text, "\nSigCgt:");
	return (pending & (ENDS_A_WAIT | (~caught & ~HARMLESS))) != 0;
}

/* --- capabilities --------------------------------------------------------- */

/* Of a container's root the capabilities are not what they are here. */
static bool is_of_our_users(pid_t pid)
{
	char path[64];
	struct stat his, ours;

	(void)snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
	return stat(path, &his) == 0 && stat("/proc/self/ns/user", &ours) == 0 &&
	       his.st_dev == ours.st_dev && his.st_ino == ours.st_ino;
}

bool caller_is_admin(const struct callers *c, pid_t pid, uid_t uid)
{
	char path[64], text[4096];

	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	if (pid <= 0 || !c->readable ||
	    dir_read_text(AT_FDCWD, path, text, sizeof(text)) < 0)
		return uid == 0;
	return ((bits_of(text, "\nCapEff:") >> CAP_SYS_ADMIN) & 1) &&
	       is_of_our_users(pid);
}
