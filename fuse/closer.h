/*
 * closer.h - does whoever closes a file have it open by another descriptor?
 *
 * FLUSH comes with the close of each descriptor: of a dup(2), and of one that a
 * child has inherited. It does not say which is the last one. But what a
 * process has open is in /proc, without what is being closed: a shell that has
 * opened a file for a redirection and moved the descriptor to its place goes on
 * to write it, and so does who has a child that ends. So the one that closes is
 * looked at, and those that it descends from. What a child has still when its
 * parent closes is not looked for, nor what is of a mount that a process does
 * not see: above its root (chroot).
 *
 * Threads: any thread. Reads /proc: hold no lock.
 */
#ifndef FUSE_CLOSER_H
#define FUSE_CLOSER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct callers;

struct closer_file {
	dev_t dev; /* of the mount; 0: not known */
	uint64_t ino; /* as stat(2) shows it */
};

/*
 * Is the file open to write in the process of the thread pid, or in one above
 * it? False where that cannot be known.
 */
bool closer_goes_on(const struct callers *c, pid_t pid,
		    const struct closer_file *file);

#endif
