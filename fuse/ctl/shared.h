/*
 * shared.h - what the commands share that look at a directory which nodes
 * share.
 */
#ifndef FUSE_CTL_SHARED_H
#define FUSE_CTL_SHARED_H

#include "fuse/ctl/ctl.h"
#include "store/shared/look.h"
#include "store/shared/pending.h"

/* More are counted, but not listed, in JSON. */
#define CTL_SHARED_LISTED_MAX 10000

/* CTL_FINE, or it was said why not: the exit code. */
int ctl_shared_open(const char *dir, struct shared_look *ret);
/* -errno of a call on DIR, which is not the user's fault; CTL_PROBLEM. */
int ctl_shared_failed(const char *dir, const char *what, int rc);

/* "7 s", "3 min", "2 h", "5 days"; valid as ctl_bytes() is. */
const char *ctl_seconds(int64_t seconds);

#endif
