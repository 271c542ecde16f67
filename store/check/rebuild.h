/*
 * rebuild.h - a store whose database is lost or damaged gets a new one, put
 * together from what there is:
 *
 *   the old database   as far as its log goes, if it is sound so far
 *   the last backup    (backup.h), when that is newer
 *   labels             (label.h) of images that these do not know, or know an
 *                      older version of
 *
 * Nothing is deleted: the old database is kept as db.damaged-N, and an image of
 * which no file can be made is moved to STORE/lost. What a daemon that was
 * killed had staged stays for the next mount, and gets a name if it lost its
 * own. What is taken from a
 * database that may not be whole is verified: every chunk is read and hashed.
 *
 * Errors: 0 or a negative errno. Blocks on the disk. The store must not be in
 * use; its lock is held meanwhile.
 */
#ifndef STORE_REBUILD_H
#define STORE_REBUILD_H

#include <stddef.h>
#include <stdint.h>

enum rebuild_base {
	REBUILD_WHOLE, /* the old database lacks nothing */
	REBUILD_PART, /* it, up to where its log is damaged */
	REBUILD_BACKUP,
	REBUILD_NOTHING, /* labels alone */
};

enum rebuild_kind {
	REBUILD_NOTE,
	REBUILD_RECOVERED, /* a file, from a label */
	REBUILD_LOST, /* a file */
	REBUILD_STAGED, /* a file that the next mount makes durable */
	REBUILD_ASIDE, /* an image */
};

struct rebuild_options {
	/* Valid during the call only. */
	void (*say)(void *self, enum rebuild_kind kind, const char *object,
		    const char *text);
	void *self;
};

struct rebuild_result {
	enum rebuild_base base;
	int64_t base_ns; /* of a backup: when it was made */
	char kept_as[32]; /* the old database; "": there was none */
	uint64_t files; /* that there are now */
	uint64_t recovered, lost, aside;
};

/*
 * 0: all is there; 1: something is lost, or may be. -errno: nothing was
 * changed, and `why` holds a sentence for the user.
 */
int rebuild_store(const char *path, const struct rebuild_options *options,
		  struct rebuild_result *ret, char *why, size_t why_size);

#endif
