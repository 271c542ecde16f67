/*
 * place.h - where a mount goes: its store, its mount point and its stage.
 *
 * What cannot be used is said on standard error, in one line that names it and
 * what to do. The answers are -EINVAL for paths that no machine could mount so
 * (wrong usage) and another -errno for what this machine lacks.
 */
#ifndef FUSE_PLACE_H
#define FUSE_PLACE_H

#include <stdbool.h>
#include <sys/types.h>

/* Absolute paths without symbolic links; the strings are the caller's. */
struct place {
	char *store, *mountpoint;
	char *stage; /* NULL: none was given, or it cannot be resolved */
};

/*
 * Resolve the paths and refuse what cannot work: a missing directory, a mount
 * point that is in use, and paths that lie in each other. stage may be NULL.
 * must_be_store: what is said of a store that is not there.
 */
int place_find(const char *store, const char *mountpoint, const char *stage,
	       bool must_be_store, struct place *ret);
void place_release(struct place *p);

/* Is there a mount of this store? */
bool place_has_mount_of(const char *store);
/* The device number of the mount of ckptfs on it; 0: there is none. */
dev_t place_device(const char *mountpoint);
/* Is the mount that the process knows by this number one of the device? */
bool place_is_mount(pid_t pid, unsigned id, dev_t dev);

#endif
