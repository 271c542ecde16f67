/*
 * held.h - what somebody still has open through a connection that is gone.
 *
 * Handles and mappings of passthrough go on when their daemon is dead: their
 * writes reach the stage, and nobody hears of them. So the next daemon asks
 * (lease.h) before it trusts what it finds:
 *
 *   a stage that somebody can write to    its content goes to a fresh one, and
 *                                         who has the old one keeps it
 *   one that somebody reads               the same, before it is changed; until
 *                                         then we serve it, so that those who
 *                                         have it open here see the change
 *   a clean one                           is not believed
 *   an image that somebody reads          is not punched: see image_is_left()
 */
#ifndef STORE_HELD_H
#define STORE_HELD_H

#include <stdbool.h>

struct stage;
struct stages;

/* Its file is never cut and used again: somebody may have it. */
void held_keep(struct stages *st, struct stage *s);
/* May somebody of an earlier connection write to it? */
bool held_for_writing(struct stages *st, struct stage *s);
/*
 * May somebody of an earlier connection read it? It is asked again each time,
 * until nobody does. The file's in->changing is held.
 */
bool held_is_left(struct stages *st, struct stage *s);
/* A stage with all that `old` has; it does not count yet. */
int held_copy(struct stages *st, const struct stage *old,
	      struct stage **ret_fresh);
/*
 * A copy of *stage takes its place: its slot counts, with the same place in the
 * order, and the old one is dropped, with the caller's reference, which he has
 * to the copy then. On failure nothing has changed.
 */
int held_replace(struct stages *st, struct stage **stage);

#endif
