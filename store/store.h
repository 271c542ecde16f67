/*
 * store.h - one open store: what its parts are, and how it is opened, drained
 * and closed. Nothing in store/ knows FUSE; a unit test opens a store without
 * a mount. What an earlier daemon left is taken over when it is opened
 * (recover.h).
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/backup.h"
#include "store/base/sync.h"
#include "store/db/hash.h"
#include "store/db/kv.h"
#include "store/db/layout.h"
#include "store/db/mark.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/file/segment.h"
#include "store/guard/guard.h"
#include "store/names/inode.h"
#include "store/names/names.h"
#include "store/names/series.h"
#include "store/space/ahead.h"
#include "store/space/image.h"
#include "store/space/reclaim.h"
#include "store/space/reserve.h"
#include "store/space/stage.h"

enum verify_mode {
	VERIFY_OFF, /* sharing trusts the 128-bit keyed hash */
	VERIFY_ON, /* bytes are compared before they are shared */
	VERIFY_OPEN, /* and a file is re-hashed at its first open */
};

enum publish_mode {
	PUBLISH_WAIT, /* all */
	PUBLISH_STEP, /* of steps, what makes them whole, what was fsynced */
	PUBLISH_ASYNC, /* none */
};

struct store_options {
	const char *stage_dir; /* NULL: our own tmpfs */
	uint64_t stage_bytes; /* 0: half of the memory */
	uint64_t segment_bytes; /* for each user; 0: no limit */
	bool no_segments;
	bool no_create; /* an empty directory does not become a store */
	enum verify_mode verify;
	unsigned drain_threads; /* 0: one for each processor, 2 to 8 */
	unsigned backup_interval_s; /* of the database; 0: none is made */
	unsigned drain_interval_s; /* for files that stay open; 0: never */
	unsigned dedup_min_saving_percent;
	/*
	 * So many files that have a chunk, 1 to CHUNK_COPIES_MAX, each store a
	 * copy; further ones share with those.
	 */
	unsigned dedup_copies;
	bool durable_close; /* close waits until the file is durable */
	enum publish_mode publish; /* which renames wait: publish.h */
	bool share_all; /* bytes are shared between owners: records.h */
	enum guard_policy structure; /* of what is published */
	uint64_t empty_in_place_bytes; /* see file.h */
	bool hold_drain; /* drain only when asked: for tests */
	bool stage_all_in_memory; /* whatever the size: for tests */
	bool no_stage_cache; /* give clean stages up at once: for tests */
	unsigned release_wait_s; /* not SEGMENT_RELEASE_WAIT_S: for tests */
};
#define STORE_OPTIONS_DEFAULT                                     \
	{                                                         \
		.verify = VERIFY_ON, .publish = PUBLISH_STEP,     \
		.drain_interval_s = 30, .backup_interval_s = 600, \
		.dedup_min_saving_percent = 3, .dedup_copies = 1, \
		.empty_in_place_bytes = UINT64_C(64) << 20,       \
	}

/* Who puts the store to use, set before store_start(); each may be NULL. */
struct store_hooks {
	void *arg;
	/* See drain_options. */
	void (*committing)(void *arg, struct kv_batch *b, uint64_t ino,
			   uint64_t place);
	void (*tell_place)(void *arg, uint64_t ino, uint64_t place, bool holds);
	/*
	 * A file gets another number, as names_renumber() has it: that is about
	 * to be written with b; it is.
	 */
	void (*renumbering)(void *arg, struct kv_batch *b, uint64_t from,
			    uint64_t to);
	void (*renumbered)(void *arg, uint64_t from, uint64_t to);
};

struct store {
	struct store_options options; /* immutable */
	char path[4096];
	char uuid[LAYOUT_UUID_BYTES];
	int dirfd, lockfd;
	bool fresh; /* it was made when it was opened */
	struct reserve reserve; /* the drain's timer's alone once it runs */
	struct kv *kv;
	struct marker marker; /* told of each kv_sync() */
	bool ending; /* store_close(): the database gets a clean end */
	struct images images;
	struct stages stages;
	struct files files; /* its hooks are set by who mounts */
	struct segments segments;
	struct inode_table *inodes;
	struct names *names;
	struct drain *drain;
	struct reclaim *reclaim;
	struct guard *guard;
	struct backup *backup; /* NULL: none is made */
	struct store_hooks hooks;
	/* See recover_close_open(); a reference each. */
	struct inode **was_open;
	size_t was_open_count, was_open_capacity;
	uint8_t secret[HASH_SECRET_BYTES];
	/* Image files that the database does not know; they are kept. */
	_Atomic uint64_t unknown_images;
};

/*
 * Make a store of an empty directory, or of one that is not there yet. On
 * failure `why` holds a sentence for the user, and what was begun is begun
 * anew by the next one. -EEXIST: it is a store already. -EINVAL: it is not
 * empty. Others as layout_open() says.
 */
int store_make(const char *path, char *why, size_t why_size);
/*
 * Open the store in `path`, making one of an empty directory. On failure
 * `why` holds a sentence for the user. The caller owns *ret_store.
 * -EUCLEAN: its database is gone or lacks changes, and nothing was changed.
 */
int store_open(const char *path, const struct store_options *options,
	       struct store **ret_store, char *why, size_t why_size);
/*
 * Start the threads that drain. Separate, because a daemon forks in between.
 */
int store_start(struct store *st);
/*
 * Wait until everything is durable, then close. The first error of a file
 * that could not be made durable is returned; its stage is left for the next
 * open, and nothing is dropped. Ends in bounded time: an error is not retried.
 */
int store_close(struct store *st);

/* A meta counter (META_FILES ...) as it is now; 0 when it cannot be read. */
uint64_t store_counter(struct store *st, const char *name);

#endif
