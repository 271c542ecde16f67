/*
 * closer.c - see closer.h.
 *
 * An exec(3) that closes descriptors on its way holds the lock that the links
 * in /proc/PID/fd need (exec_update_lock in Linux's fs/proc/base.c), and waits
 * for our answer: nothing but fdinfo, status and mountinfo may be read here.
 */
#include "fuse/closer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/caller.h"
#include "fuse/place.h"
#include "store/base/dir.h"

/* More processes above one are not looked at. */
#define ABOVE_MAX 64

struct looked_for {
	const struct closer_file *file;
	pid_t pid;
};

/* Of "KEY:\tNUMBER" in a text; false: it has none. */
static bool number_of(const char *text, const char *key, int base,
		      unsigned long long *ret)
{
	const char *at = strstr(text, key);

	if (at)
		*ret = strtoull(at + strlen(key), NULL, base);
	return at != NULL;
}

/* See proc_pid_fdinfo(5); the inode's number is there since Linux 5.14. */
static int look_at(void *arg, int infos, const char *number)
{
	const struct looked_for *l = arg;
	unsigned long long flags, mount, ino;
	char text[1024];

	return dir_read_text(infos, number, text, sizeof(text)) >= 0 &&
	       number_of(text, "flags:\t", 8, &flags) &&
	       (flags & O_ACCMODE) != O_RDONLY &&
	       number_of(text, "ino:\t", 10, &ino) && ino == l->file->ino &&
	       number_of(text, "mnt_id:\t", 10, &mount) &&
	       place_is_mount(l->pid, (unsigned)mount, l->file->dev);
}

static bool has_open(pid_t pid, const struct closer_file *file)
{
	struct looked_for l = { .file = file, .pid = pid };
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/fdinfo", (int)pid);
	return dir_each(AT_FDCWD, path, look_at, &l) > 0;
}

/* Of a thread that of its process; 0: it has none that can be seen. */
static pid_t parent_of(pid_t pid)
{
	unsigned long long parent = 0;
	char path[64], text[4096];

	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	return dir_read_text(AT_FDCWD, path, text, sizeof(text)) >= 0 &&
			       number_of(text, "\nPPid:\t", 10, &parent)
		       ? (pid_t)parent
		       : 0;
}

bool closer_goes_on(const struct callers *c, pid_t pid,
		    const struct closer_file *file)
{
	pid = file->dev == 0 ? 0 : caller_in_proc(c, pid);
	for (unsigned n = 0; pid > 0 && n < ABOVE_MAX; n++) {
		if (has_open(pid, file))
			return true;
		pid = parent_of(pid);
	}
	return false;
}
