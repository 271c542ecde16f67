/*
 * save.h - one save, from ckpt_begin() to ckpt_save_free().
 *
 *   OPEN --> RUNNING --> COMMITTED
 *     |         `------> FAILED      (ckpt_begin() and ckpt_add() leave OPEN)
 *     `-- ckpt_start() runs it in a thread, ckpt_commit() where it is called
 */
#ifndef GPU_SAVE_H
#define GPU_SAVE_H

#include "gpu/handle.h"
#include "gpu/layout.h"
#include "gpu/mount.h"

enum save_state {
	SAVE_OPEN,
	SAVE_RUNNING,
	SAVE_COMMITTED,
	SAVE_FAILED,
};

struct ckpt_save {
	struct ckpt *c;
	char *path; /* owned; as it was given, for messages */
	char *directory, *name; /* owned */
	int dirfd;
	bool in_mount; /* of ckptfs; else it is written plainly */
	struct layout layout;
	pthread_t thread;
	bool has_thread; /* to be joined */
	int fd; /* of a file that was written plainly; else -1 */
	uint64_t ino; /* of the file that was committed */

	pthread_mutex_t lock; /* guards everything below */
	enum save_state state;
	int rc; /* FAILED: why */
	char error[1024]; /* its sentence */
};

/*
 * Fill a segment and make it the file. -ENOSPC, -EDQUOT, -EOPNOTSUPP: there is
 * no segment, and nothing was copied.
 */
int save_through_segment(struct ckpt_save *s);
/* Write the file, then give it its name. */
int save_plainly(struct ckpt_save *s);
/* The directory again, after the mount was started anew. */
int save_reopen(struct ckpt_save *s);

#endif
