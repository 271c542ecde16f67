/*
 * again.h - who was told with ESTALE to look a name up again, and who did not.
 *
 * Where readers have to keep what a file was, its name must get another inode
 * before the file is changed. That can be done only for a call that came by the
 * name, and its request does not say how it came: by a name, a descriptor in
 * /proc, or a mount of the file alone. The kernel answers ESTALE by walking the
 * path once more, with look-ups, and sends the request again, once. So a call
 * by name looks up the same inode next, in the same thread, and then the name
 * moves (file_renumber()); any other comes to the same inode again without a
 * look-up, and is carried out there. So is the second request of a call by name
 * where nothing has moved, or others were faster: there is no third, and who
 * called would be told ESTALE.
 *
 * A note is of one thread and of one inode: that which the thread was about to
 * change and may, or what its name has led to since. It goes with the move,
 * with the thread's next open or cut of anything, and with a look-up that
 * fails. The last AGAIN_MAX are kept: who has lost his is told ESTALE, and
 * nothing was changed. Not with shared=DIR, where what moves a name has to be
 * told of first (shared_change_begin()): there each change counts as one by
 * name.
 *
 * Threads: any thread.
 */
#ifndef FUSE_AGAIN_H
#define FUSE_AGAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/file/file.h"

#define AGAIN_MAX 64

struct again;

struct again *again_new(void);
void again_free(struct again *a);
/*
 * How thread tid comes to the file that it is to change: FILE_BY_HANDLE when it
 * was told so of it, and nothing has moved since. Without a tid (a process of a
 * pid namespace that is not the daemon's or below it) each change counts as one
 * by name. *ret_rc: 0, or the error that its look-up had for it.
 */
enum file_way again_way(struct again *a, pid_t tid, uint64_t ino, int *ret_rc);
/* It is told now; empties: what it wants is an open with O_TRUNC. */
void again_told(struct again *a, pid_t tid, uint64_t ino, bool empties);
/* Was it told so of any file, so that its look-up may wait for the drain? */
bool again_is_told(struct again *a, pid_t tid);
/*
 * A look-up of it has led to ino; 0: it has failed. True: it was told so of
 * that inode. That note is gone; when nothing moves it is to be told again.
 */
bool again_looks_up(struct again *a, pid_t tid, uint64_t ino,
		    bool *ret_empties);
/* And its name could not move: that is what its request is to be told. */
void again_failed(struct again *a, pid_t tid, uint64_t ino, int rc);

#endif
