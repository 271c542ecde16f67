/*
 * dir.h - the names in a directory, and its small files.
 *
 * A name is taken as it is: a symbolic link in its place is not followed.
 * Errors: 0 or a negative errno. All of it blocks on the disk.
 */
#ifndef STORE_BASE_DIR_H
#define STORE_BASE_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Call fn for each name but "." and ".." in the directory `path`, which is
 * looked up in dirfd, until it returns other than 0, which is returned. fn gets
 * a descriptor of that directory, and may remove the name.
 */
int dir_each(int dirfd, const char *path,
	     int (*fn)(void *arg, int fd, const char *name), void *arg);

/*
 * What is listed, or looked up, in this directory from now on is what is there
 * now: clients of network file systems remember, NFS for a minute. -errno.
 */
int dir_ask_anew(int fd);

/* Is it a directory without a name in it? */
bool dir_is_empty(int dirfd, const char *path);

/*
 * Up to size - 1 bytes of a file, and a NUL behind them. Returns their number.
 * It does not wait for who writes to a FIFO.
 */
ssize_t dir_read_text(int dirfd, const char *name, char *ret, size_t size);

/* The file holds just these bytes; durable, with its name, when it is 0. */
int dir_write_text(int dirfd, const char *name, const char *text, size_t len);

/*
 * The file of fd, which may be O_PATH, gets one more name in dirfd; -EEXIST, or
 * -ENOENT when it has none. Another process may rename it meanwhile.
 */
int dir_link(int fd, int dirfd, const char *name);

/* It gets another name, durably, in the place of what had that. */
int dir_rename(int dirfd, const char *from, const char *to);

#endif
