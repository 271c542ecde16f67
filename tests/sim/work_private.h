/*
 * work_private.h - a client of a run, and what the parts of work*.c call of
 * each other.
 */
#ifndef TESTS_SIM_WORK_PRIVATE_H
#define TESTS_SIM_WORK_PRIVATE_H

#include "store/base/interrupt.h"
#include "store/base/sync.h"
#include "tests/sim/kernel.h"
#include "tests/sim/model.h"
#include "tests/sim/saver.h"
#include "tests/sim/sim.h"
#include "tests/sim/work.h"

#define KIB 1024u
#define MIB (1024u * KIB)
#define SAVED_OF_CLIENT 2
#define FILES_OF_FOLDER 2
#define POOL_BYTES (3u * MIB)
#define FILE_BYTES_MAX (400u * KIB)

struct own {
	struct path *path;
	bool linked; /* another name has the same file */
};

/*
 * A folder is renamed from its first name to the second one when its files are
 * written, and back.
 */
struct folder {
	char name[2][32];
	unsigned at; /* which name it has */
	struct path *file[2][FILES_OF_FOLDER];
	bool in_doubt; /* a rename of it failed, and may have happened */
};

struct client {
	const struct plan *plan;
	struct chance chance;
	unsigned number;
	struct own file[FILES_OF_CLIENT], tmp, link;
	struct path *saved[SAVED_OF_CLIENT];
	struct folder folder;
	struct saver *saver; /* NULL: it has not saved anything yet */
	struct store *st;
	struct interrupt interrupt;
	size_t save_size;
	struct thread thread;
};

/* A point of the trace. p: NULL when it is about none. */
void say_op(const struct client *c, const char *what, const struct path *p,
	    size_t size, int rc);
/* false: it failed, and may have: errors are injected. */
bool fine(const struct client *c, const char *what, const struct path *p,
	  int rc);
/* From here on a call of this client is told to end as soon as it waits. */
void interrupt(struct client *c);
void interrupt_end(void);
/* ESTALE: whoever asked tries again, as a person would. */
int open_again(const char *name, int flags, struct kernel_file **ret);

/* --- work_write.c */

/* Fill what the payloads are parts of. */
void bytes_init(void);
/* also: where it is to be renamed to, or p. */
void write_file(struct client *c, struct path *p, const struct path *also);
/* Open it and make it longer or shorter, in place. */
void change(struct client *c, struct own *own);
/* The same without a handle. */
void truncate_path(struct client *c, struct own *own);
/*
 * The same memory again and again: so each save is as long as the others, and a
 * save of one path is told from the next by its bytes alone.
 */
void save(struct client *c);

/* --- work_names.c */

void replace(struct client *c, struct own *own);
void remove_file(struct client *c, struct own *own);
void make_link(struct client *c, struct own *own);
/* Make the client's folder, write its files or rename it. */
void use_folder(struct client *c);
/* After a crash: where the folder is, and whether it was renamed as a whole. */
void find_folder(struct client *c);

/* --- work_look.c */

/* Whether it succeeded. */
bool sync_path(struct client *c, struct path *p);
void sync_all(struct client *c);
void read_path(struct client *c, struct path *p);
/* A path as it was found after a crash. */
void find_path(struct path *p, bool cut);
/* Open it and close it, some times. */
void peek(struct client *c, struct path *p);

#endif
