/*
 * writer.h - who wrote a file: its rank in the job, as far as that is known.
 *
 * Two sources. The environment that the writing process was started with,
 * which launchers set; else the file's name, where a known format puts a rank
 * into it. Both are only what somebody says: a value that is not plainly a
 * number (or, of a name, a short printable text) counts as absent, and of the
 * environment nothing but the values below is kept.
 *
 * No wrong rank: what contradicts itself (a rank that its world has no place
 * for) counts as absent. The variables of a scheduler are those of the
 * process that it started; where a script starts its ranks itself, they all
 * have the same. So where a file's name says another rank than a scheduler's
 * variable, the name counts; RANK itself is never overruled. A process with
 * WORLD_SIZE=1 and no rank at all is rank 0, unless the name says another one;
 * one with neither has no rank: it may be cp.
 *
 * Threads: pure functions.
 */
#ifndef STORE_WRITER_H
#define STORE_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WRITER_RANK_MAX INT32_MAX
#define WRITER_HOST_MAX 64
#define WRITER_JOB_MAX 128

enum writer_source {
	WRITER_NOWHERE, /* the rank is not known */
	WRITER_ENVIRONMENT,
	WRITER_NAME,
};

/*
 * What the rank counts. DeepSpeed's names do not hold the rank in the job:
 * zero_pp_rank_D_mp_rank_X is stored as data parallel rank D, mp_rank_X alone
 * as model parallel rank X.
 */
enum writer_kind {
	WRITER_GLOBAL,
	WRITER_DATA_PARALLEL,
	WRITER_MODEL_PARALLEL,
};

struct writer {
	enum writer_source source; /* of the rank and the world size */
	enum writer_kind kind;
	uint32_t rank; /* with WRITER_NOWHERE: 0 */
	uint32_t world_size; /* 0: not known */
	/* "": not known; printable ASCII without spaces. */
	char host[WRITER_HOST_MAX + 1];
	char job[WRITER_JOB_MAX + 1];
};

/* A rank in the whole job, which can be compared with another one. */
static inline bool writer_is_global(const struct writer *w)
{
	return w->source != WRITER_NOWHERE && w->kind == WRITER_GLOBAL;
}

/*
 * The rank, world size and job of a process from its environment: strings,
 * each terminated, as in /proc/PID/environ. *ret_scheduler: the rank is a
 * scheduler's, see above. The host stays unknown.
 */
void writer_of_environment(const char *block, size_t len, struct writer *ret,
			   bool *ret_scheduler);

/* What a file's name says of its writer's rank. */
void writer_of_name(const char *name, struct writer *ret);

/*
 * Complete w, which is of the environment (with the host, if that is known),
 * with what the name says.
 */
void writer_add_name(struct writer *w, bool scheduler, const char *name);

/* Take text over, when it fits and is printable; else ret becomes "". */
void writer_set_text(char *ret, size_t max, const char *text, size_t len);

bool writer_equal(const struct writer *a, const struct writer *b);

/* "environment" or "name"; NULL when the rank is not known. */
const char *writer_source_word(const struct writer *w);
/* "global", "data_parallel" or "model_parallel". */
const char *writer_kind_word(const struct writer *w);

#endif
