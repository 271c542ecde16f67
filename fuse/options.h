/*
 * options.h - what the command line of ckptfs says.
 */
#ifndef FUSE_OPTIONS_H
#define FUSE_OPTIONS_H

#include "fuse/fs.h"

struct options {
	/* Owned; NULL: not given. */
	char *store, *mountpoint, *stage, *stage_size, *segments;
	char *saving, *copies, *threads, *interval, *backup;
	char *shared, *node, *pending_wait, *names_timeout;
	char *direct, *local_keep, *empty_in_place;
	int foreground, debug, help, version, hold_drain, no_stage_cache;
	int allow_other, read_only;
	/* What words stand for; numbers because libfuse sets them. */
	int durable_close, publish, stage_all_in_memory, share_all;
	int structure, verify, passthrough, no_create;
	unsigned release_wait_s; /* 0: as usual */
	unsigned bare; /* words that are no option */
	struct store_options all; /* what of this is for the store */
	int rejoin; /* as libfuse sets it */
	unsigned pending_wait_s, names_timeout_s;
	uint64_t local_keep_bytes;
};

/*
 * Read the options; those of libfuse stay in args. options_release() *o in
 * any case. -EINVAL: wrong usage, which was printed. With help or version
 * nothing else was looked at.
 */
int options_parse(struct fuse_args *args, struct options *o);
void options_release(struct options *o);
/* On standard output all that --help says, or how to call it after an error. */
void options_help(void);
void options_usage(void);

#endif
