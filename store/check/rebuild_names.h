/* rebuild_names.h - names of files in a database that is being rebuilt. */
#ifndef STORE_REBUILD_NAMES_H
#define STORE_REBUILD_NAMES_H

#include "store/check/rebuild_work.h"

/*
 * The file that the label is of has an inode and a name. One that the base has
 * stays as it is; a new one gets the label's path, with the directories above
 * it, and what had that name before is renamed.
 */
int rebuild_name(struct rebuild *r, const struct label *l);
/*
 * Nothing of the inode is left, and no name of it. It is said, with the reason;
 * NULL: it had been deleted.
 */
int rebuild_remove(struct rebuild *r, uint64_t ino, const char *reason);

#endif
