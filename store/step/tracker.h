/*
 * tracker.h - what trainers write last, to say that a step is there: which
 * names that has, and which steps its text may mean. The one place that knows
 * either, for the guard, for the shared directory and for the renames that
 * publish.
 *
 * Pure functions of names and texts.
 */
#ifndef STORE_STEP_TRACKER_H
#define STORE_STEP_TRACKER_H

#include <stdbool.h>
#include <stddef.h>

enum tracker {
	TRACKER_NONE,
	/* Beside the steps, it says which one is the last: latest, latest_step,
	 * latest_checkpointed_iteration.txt. */
	TRACKER_OF_STEPS,
	/* In the step, it says of what this consists: .metadata, an index. */
	TRACKER_IN_STEP,
};

/*
 * What is being written (.tmp in its name) is none yet: it becomes one when it
 * is renamed.
 */
enum tracker tracker_of(const char *name);
static inline bool tracker_is(const char *name)
{
	return tracker_of(name) != TRACKER_NONE;
}
static inline bool tracker_is_of_steps(const char *name)
{
	return tracker_of(name) == TRACKER_OF_STEPS;
}
/*
 * Does a file publish when it gets this name? It is a step itself (step_100.pt,
 * anything .ckpt), or says of one that it is there.
 */
bool tracker_publishes(const char *name);
/* Whoever reads it expects a number: Megatron's and verl's. */
bool tracker_is_of_number(const char *name);
/* What a number in a tracker of this name counts are steps. */
bool tracker_counts_steps(const char *name);

/* It names a step, or a number: it is no longer than this. */
#define TRACKER_BYTES_MAX 512
#define TRACKER_WORD_BYTES (TRACKER_BYTES_MAX + 1)
/* What a tracker's text says, without the space around it; "": nothing. */
void tracker_word(const void *text, size_t len, char ret[TRACKER_WORD_BYTES]);

/*
 * Call fn for each name that a step may have which the word means, until it
 * returns other than 0, which is returned: as it stands (DeepSpeed's latest),
 * and, of a number, with what frameworks put before it (iter_0000100).
 */
int tracker_each_step(const char *word, int (*fn)(void *arg, const char *name),
		      void *arg);

#endif
