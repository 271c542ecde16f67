/*
 * ending.h - who ended a mount: for the log, so that nobody has to guess why a
 * daemon went away. The daemon is told of a signal by whom it came. Of an
 * unmount the kernel says nothing; but umount's helper asks for a flush of the
 * whole mount first.
 */
#ifndef FUSE_ENDING_H
#define FUSE_ENDING_H

#include <pthread.h>
#include <signal.h>

#include "fuse/fs.h"

#define ENDING_TEXT_BYTES 160

struct ending {
	struct fs *fs;
	pthread_mutex_t lock; /* guards everything below */
	char asker[ENDING_TEXT_BYTES]; /* "": the helper asked for nothing */
};

void ending_init(struct ending *e, struct fs *fs);
void ending_release(struct ending *e);

/*
 * The signals that end the session, of which libfuse's handlers were set just
 * now, are noted from here on, and fs->answered is posted. One mount in a
 * process. ending_forget_signals() has libfuse's handlers there again.
 */
void ending_note_signals(struct ending *e);
void ending_forget_signals(void);
/* Logs the signal that came, once. Not for a signal handler. */
void ending_say_signal(struct ending *e);

/* This process, which waits, had all of the mount flushed. */
void ending_flushed(struct ending *e, pid_t pid, uid_t uid);
/* Logs that the mount is gone. */
void ending_say_unmounted(struct ending *e);

#endif
