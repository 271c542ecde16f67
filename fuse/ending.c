/*
 * ending.c - see ending.h. A signal handler can do next to nothing: it notes
 * what it was told and posts the semaphore on which the thread that announced
 * the mount waits, and libfuse's own handler ends the session. That thread logs
 * it at once, not when the last operation has ended: that may wait for a disk.
 */
#include "fuse/ending.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "fuse/caller.h"
#include "store/base/dir.h"
#include "store/base/log.h"
#include "store/base/scope.h"

/* As much as /proc has of "umount.fuse.ckptfs". */
#define HELPER_COMM "umount.fuse.ckp"
#define COMM_BYTES 32

static const int ending_signals[] = { SIGHUP, SIGINT, SIGTERM };
#define SIGNALS (sizeof(ending_signals) / sizeof(*ending_signals))

/* Of the one mount of this process: a handler has no argument. */
static struct {
	struct sigaction old[SIGNALS];
	struct fs *fs;
	/* Written by the first signal, before `came` is. */
	bool from_process;
	pid_t pid;
	uid_t uid;
	atomic_int came; /* 0: none; -1: one is being noted */
	bool said; /* the announcing thread's */
} noted;

static void on_signal(int number, siginfo_t *info, void *context)
{
	int none = 0;

	(void)context;
	if (atomic_compare_exchange_strong(&noted.came, &none, -1)) {
		noted.from_process = info->si_code <= 0; /* SI_USER and kin */
		noted.pid = noted.from_process ? info->si_pid : 0;
		noted.uid = noted.from_process ? info->si_uid : 0;
		atomic_store(&noted.came, number);
		(void)sem_post(&noted.fs->answered);
	}
	for (size_t i = 0; i < SIGNALS; i++)
		if (ending_signals[i] == number)
			noted.old[i].sa_handler(number);
	(void)sem_post(&noted.fs->moved); /* the session has ended now */
}

/* One that is ignored (nohup) stays so. */
static bool has_handler(const struct sigaction *a)
{
	return a->sa_handler != SIG_DFL && a->sa_handler != SIG_IGN;
}

void ending_note_signals(struct ending *e)
{
	struct sigaction ours = { .sa_sigaction = on_signal,
				  .sa_flags = SA_SIGINFO };

	(void)sigemptyset(&ours.sa_mask);
	noted.fs = e->fs;
	for (size_t i = 0; i < SIGNALS; i++) {
		CHECK(sigaction(ending_signals[i], NULL, &noted.old[i]) == 0);
		if (has_handler(&noted.old[i]))
			CHECK(sigaction(ending_signals[i], &ours, NULL) == 0);
	}
}

void ending_forget_signals(void)
{
	for (size_t i = 0; i < SIGNALS; i++)
		CHECK(sigaction(ending_signals[i], &noted.old[i], NULL) == 0);
}

/* The name of a process and the number of its parent, 0: not known. */
static pid_t look_at(const struct ending *e, pid_t pid, char ret[COMM_BYTES])
{
	char path[64], text[1024], state;
	char *begin, *end;
	int parent = 0;

	(void)snprintf(ret, COMM_BYTES, "?");
	(void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (caller_in_proc(e->fs->callers, pid) <= 0 ||
	    dir_read_text(AT_FDCWD, path, text, sizeof(text)) < 0)
		return 0;
	begin = strchr(text, '(');
	end = strrchr(text, ')'); /* the name may hold anything */
	if (!begin || !end || end < begin)
		return 0;
	*end++ = 0;
	(void)snprintf(ret, COMM_BYTES, "%s", begin + 1);
	return sscanf(end, " %c %d", &state, &parent) == 2 ? parent : 0;
}

void ending_say_signal(struct ending *e)
{
	int number = atomic_load(&noted.came);
	char name[COMM_BYTES];

	if (number <= 0 || noted.said)
		return;
	noted.said = true;
	if (!noted.from_process) {
		log_info("%s: SIG%s from the kernel (a terminal) ends it",
			 e->fs->mountpoint, sigabbrev_np(number));
		return;
	}
	(void)look_at(e, noted.pid, name);
	log_info("%s: SIG%s from process %d (%s) of user %u ends it",
		 e->fs->mountpoint, sigabbrev_np(number), (int)noted.pid, name,
		 noted.uid);
}

void ending_init(struct ending *e, struct fs *fs)
{
	*e = (struct ending){ .fs = fs };
	CHECK(pthread_mutex_init(&e->lock, NULL) == 0);
}

void ending_release(struct ending *e)
{
	CHECK(pthread_mutex_destroy(&e->lock) == 0);
}

/*
 * ckptctl, whose parent is the helper: whose parent in turn called umount, as
 * a process of that name or by itself.
 */
void ending_flushed(struct ending *e, pid_t pid, uid_t uid)
{
	char name[COMM_BYTES], above[COMM_BYTES], text[ENDING_TEXT_BYTES];
	pid_t parent = look_at(e, pid, name);

	pid = parent;
	parent = look_at(e, pid, name);
	if (strcmp(name, HELPER_COMM) != 0)
		return;
	(void)look_at(e, parent, above);
	if (strcmp(above, "umount") == 0) {
		pid = parent;
		(void)snprintf(name, sizeof(name), "%s", above);
		parent = look_at(e, pid, above);
		(void)look_at(e, parent, above);
	}
	(void)snprintf(text, sizeof(text),
		       "process %d (%s) of user %u, for process %d (%s)",
		       (int)pid, name, uid, (int)parent, above);
	HOLD(&e->lock);
	memcpy(e->asker, text, sizeof(text));
}

void ending_say_unmounted(struct ending *e)
{
	char asker[ENDING_TEXT_BYTES];

	{
		HOLD(&e->lock);
		memcpy(asker, e->asker, sizeof(asker));
	}
	if (atomic_load(&noted.came) != 0)
		log_info("%s: unmounted", e->fs->mountpoint);
	else if (*asker)
		log_info("%s: unmounted, as %s asked", e->fs->mountpoint,
			 asker);
	else
		log_info("%s: unmounted, without umount's helper: nobody "
			 "says by whom",
			 e->fs->mountpoint);
}
