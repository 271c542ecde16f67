/*
 * again.h - who was told with ESTALE to look a name up again, and who did not.
 *
 * Where readers have to keep what a file was, its name must get another inode
 * before the file is changed. That can be done only for a call that came by the
 * name, and its request does not say how it came: by a name, a descriptor in
 * /proc, or a mount of the file alone. The kernel answers ESTALE by walking the
 * path once more, with look-ups, and sends the request again, once. So a call
 * by name looks the name up next, in the same thread, and then the name moves
 * (file_renumber()); any other comes to the same inode again. The second
 * request is carried out where it arrives, also when others were faster:
 * nothing is left to be told to who called, but that he failed.
 *
 * A thread has one note at most, which the second request takes away. The last
 * AGAIN_MAX are kept: who has lost his is told ESTALE once more, and nothing
 * was changed.
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
 * How the request of thread tid comes to the file: FILE_BY_HANDLE when it is
 * the second one. Without a tid (a process of another pid namespace) each
 * counts as one by name.
 */
enum file_way again_way(struct again *a, pid_t tid, uint64_t ino);
/* It is told now; empties: what it wants is an open with O_TRUNC. */
void again_told(struct again *a, pid_t tid, uint64_t ino, bool empties);
/* It looks up a file: is that because it was told so? Once. */
bool again_looks_up(struct again *a, pid_t tid, bool *ret_empties);
/* Was it told so, and will it look a name up, which may wait for the drain? */
bool again_is_told(struct again *a, pid_t tid);
/* Its look-up failed, so there will be no second request. */
void again_is_over(struct again *a, pid_t tid);

#endif
