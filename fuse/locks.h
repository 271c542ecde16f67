/*
 * locks.h - does anybody hold a lock on a file of this mount?
 *
 * The kernel keeps the locks of this mount by itself (session.c), so the daemon
 * is not told of them; it looks where the kernel shows them to everybody.
 */
#ifndef FUSE_LOCKS_H
#define FUSE_LOCKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Is there a flock(2) or fcntl(2) lock on inode `ino` of the file system with
 * this device number? Also true when that cannot be found out. Reads a file of
 * the kernel's that has a line for each lock of the machine.
 */
bool locks_held(dev_t dev, uint64_t ino);

#endif
