/*
 * model.h - what the clients did, and what may be seen of it: the checker.
 *
 * Each path goes through a line of states: absent, or one version with its
 * bytes. A state begins when the call is made that leads to it and is ended
 * when that has returned. One client alone changes a path; all may read and
 * sync it. Versions of one path differ in their sizes, so that the size that is
 * durable tells which one is.
 *
 * Checked, by the numbers of design.md, section 12:
 *   1  at each moment that makes something durable: nothing that was closed is
 *      durable before what was closed earlier (model_durable())
 *   2  there too: what an fsync or a publish has promised is durable from then
 *   3  after a crash each path is in one state, not before what was promised
 *   4  a reader sees one version
 * The rest is checked by main.c and by the simulator.
 */
#ifndef TESTS_SIM_MODEL_H
#define TESTS_SIM_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PATHS_MAX 64

struct path;

/* O_TRUNC leaves files up to this size their inodes. */
void model_init(uint64_t empty_in_place_bytes);
/* owner: who alone changes it. */
struct path *model_path(const char *name, unsigned owner);
const char *model_name(const struct path *p);
unsigned model_paths(void);
struct path *model_path_at(unsigned i);

/* A state begins: absent when bytes is NULL, which is taken over. */
size_t model_begin(struct path *p, uint8_t *bytes, size_t size);
/*
 * By writing it, bit by bit: until it is ended some first part of it may be
 * there. Otherwise it is there at once.
 */
void model_is_written(struct path *p, size_t state);
/* The version before it, if there is one, is replaced and not changed. */
void model_is_anew(struct path *p, size_t state);
/*
 * The open that empties the file for it has returned. One that has waited in
 * vain for a RELEASE empties the stage that the version before has.
 */
void model_opened(struct path *p, size_t state);
void model_end(struct path *p, size_t state);
/* Its last writer's close is called, and has returned. */
void model_close_begin(struct path *p, size_t state);
void model_close_end(struct path *p, size_t state);
/* The call that led to it failed: it may be there, or a part, or not. */
void model_failed(struct path *p, size_t state);
/* The call that led to it, the last one, was told to end: it is not there. */
void model_undone(struct path *p, size_t state);
/* `to` got, in one step, what `from` had. */
void model_moved(struct path *from, size_t from_state, struct path *to,
		 size_t to_state);
/*
 * A hard link: `state` of b is the file that a is. They are one file until one
 * of them is replaced.
 */
void model_linked(struct path *a, struct path *b, size_t state);

/* A sync out of its turn runs; what it promises when it returns 0. */
size_t model_sync_begin(struct path *p);
void model_sync_end(struct path *p, size_t promised, bool ok);
/* The same for one that keeps the order. */
size_t model_promise_begin(const struct path *p);
void model_promise(struct path *p, size_t promised);

/* The last state, and its bytes (NULL: absent). */
size_t model_last(const struct path *p);
const uint8_t *model_bytes(const struct path *p, size_t state,
			   size_t *ret_size);
/* Had a version of this path this size? */
bool model_has_size(const struct path *p, size_t size);
/* The last one that was reached for sure. */
size_t model_ended(const struct path *p);
/* No: the last call failed, and nobody knows what it left. */
bool model_known(const struct path *p);

/*
 * What a reader may see who began to open it at the point `since`, when `from`
 * was ended, and whose open returned at `opened`.
 */
void model_check_read(struct path *p, uint64_t since, uint64_t opened,
		      size_t from, size_t to, const uint8_t *bytes, size_t size,
		      bool absent);
/* Something was made durable. */
void model_durable(void);
/* May a power cut now leave a file with these bytes of an image? */
bool model_uses(uint64_t image, uint64_t off, uint64_t len);
/* Errors are injected: what failed need not be durable, nor in order. */
void model_expect_errors(void);
/* What stays open is drained as it stands, out of its turn. */
void model_expect_parts(void);
/*
 * The daemon is dead, and so are its clients: the next one drains what they had
 * open as they left it.
 */
void model_killed(void);
/*
 * The store was opened again. `bytes` NULL: absent. After it this is the path's
 * last state. `cut`: by a power cut, else by a kill.
 */
void model_check_found(struct path *p, uint8_t *bytes, size_t size, bool cut);
void model_check_found_all(bool cut);
/* All is drained: the last state of each path is durable. */
void model_check_drained(void);
void model_say(void);

#endif
