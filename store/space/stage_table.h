/*
 * stage_table.h - the table of stages (stage.h) of a daemon that has ended, for
 * who looks at the store and is no daemon: fsck and rebuild have to know which
 * images are nobody's, and which are files that the next mount takes over.
 *
 * The store's lock is held, so that no daemon writes to it. It changes nothing.
 */
#ifndef STORE_STAGE_TABLE_H
#define STORE_STAGE_TABLE_H

#include "store/db/layout.h"
#include "store/space/stage.h"

struct stage_table {
	char uuid[LAYOUT_UUID_BYTES]; /* of the store that it is of; "": none */
	uint64_t next_place; /* see stages_had_last() */
	struct stage_slot *slots; /* those that are in use */
	size_t count, capacity;
};

/*
 * What the next mount of this boot would believe: in STORE/stage, and where the
 * last daemon with stage=DIR had it. uuid: of the store, or "": any. Nothing at
 * all is no error. 0 or -errno; release it in any case.
 */
int stage_table_read(int store_dirfd, const char *uuid,
		     struct stage_table *ret);
void stage_table_release(struct stage_table *t);

/* Is a version of a file staged in this image? */
bool stage_table_has_image(const struct stage_table *t, uint64_t id);
/* Is any version of this file staged? */
bool stage_table_has_inode(const struct stage_table *t, uint64_t ino);

/* Say in STORE/stage where the stage is: at `path`. */
int stage_table_is_at(int store_dirfd, const char *path);

#endif
