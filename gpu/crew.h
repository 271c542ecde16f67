/*
 * crew.h - a few threads that work off a numbered list together.
 *
 * For copies that one processor cannot do as fast as the memory allows. The
 * caller works along, so a crew of one has no thread of its own.
 *
 * Errors:  0 or a negative errno.
 * Threads: a crew belongs to one thread at a time.
 */
#ifndef GPU_CREW_H
#define GPU_CREW_H

#include <stddef.h>

struct crew;

/*
 * Item `index`; called once for each, in any order, by any of the threads.
 * Its own ckpt_last_error() reaches nobody: the caller of crew_run() says it.
 */
typedef int crew_work(void *arg, size_t index);

/*
 * Start up to `threads` - 1 threads. There may be fewer, down to none, when
 * the system has no more to give: that is not an error.
 */
int crew_new(unsigned threads, struct crew **ret_crew);
void crew_free(struct crew *c); /* c may be NULL */

/*
 * Do work(arg, 0) ... work(arg, count - 1). Returns when all are done, the
 * error of one of them: no further ones are begun after an error.
 */
int crew_run(struct crew *c, size_t count, crew_work *work, void *arg);

/* The same by a crew of up to `threads` that is there for this alone. */
int crew_once(unsigned threads, size_t count, crew_work *work, void *arg);

#endif
