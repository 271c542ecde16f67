/*
 * engine_private.h - between engine.c (files, and what each node remembers of
 * them), engine_calls.c (descriptors and paths), engine_file.c and
 * engine_names.c (the calls that come here).
 */
#ifndef TESTS_SIM_ENGINE_PRIVATE_H
#define TESTS_SIM_ENGINE_PRIVATE_H

#include <sys/stat.h>

#include "tests/sim/engine.h"

/* A name in a directory. */
struct entry_of {
	char *name;
	struct einode *in;
};

struct listing {
	struct entry_of *at;
	size_t count, room;
};

/* Written, and with the client that did it. */
struct unsent {
	unsigned node;
	uint64_t off;
	size_t len;
	uint8_t *bytes;
};

struct remembered {
	struct entry_of entry; /* in: NULL: it was not there */
	int64_t until_ns;
};

/* What a node's client remembers of a file. */
struct view {
	struct stat sb;
	int64_t sb_until_ns;
	/* Of a directory: */
	struct listing list; /* in's are references; names are its own */
	int64_t list_until_ns;
	struct remembered *name;
	size_t names, names_room;
};

struct einode {
	uint64_t ino;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	nlink_t links;
	uint8_t *bytes;
	size_t size, bytes_room;
	struct unsent *unsent;
	size_t unsents, unsents_room;
	int64_t mtime_ns, ctime_ns, atime_ns;
	char *target; /* of a link */
	struct einode *parent; /* of a directory */
	struct listing list;
	struct view view[ENGINE_NODES_MAX];
	const void *locked; /* flock(): the description that has it alone */
	unsigned locks; /* that share it */
	unsigned mark;
};

struct engine {
	struct engine_kind kind;
	struct chance chance;
	struct einode **all;
	size_t count, room;
	uint64_t errors_one_in;
	uint64_t calls[ENGINE_NODES_MAX];
	void (*on_change)(struct einode *, enum engine_change);
};
extern struct engine engine;

struct einode *einode_new(mode_t mode);
struct entry_of *list_find(const struct listing *l, const char *name);
void list_add(struct listing *l, const char *name, struct einode *in);
void list_remove(struct listing *l, const char *name);
void list_copy(struct listing *to, const struct listing *from);
void list_clear(struct listing *l);

/* The size as this node has it. */
size_t einode_size(const struct einode *in, unsigned node);
/* Up to len bytes from off, as this node reads them. */
size_t einode_read(const struct einode *in, unsigned node, void *buf,
		   size_t len, uint64_t off);
void einode_write(struct einode *in, unsigned node, const void *buf, size_t len,
		  uint64_t off);
void einode_cut(struct einode *in, unsigned node, size_t size);
/* What this node has written is there. */
void einode_flush(struct einode *in, unsigned node);
/* This node asks for it: what others have is brought, if the kind does that. */
void einode_recall(struct einode *in, unsigned node);
/* lost: each of its writes, perhaps. */
void einode_lose(struct einode *in, unsigned node, bool all);

/* Names in a directory, as a node looks them up; NULL: not there. */
struct einode *view_lookup(struct einode *dir, unsigned node, const char *name,
			   bool anew);
void view_stat(struct einode *in, unsigned node, struct stat *sb, bool anew);
void view_list(struct einode *dir, unsigned node, struct listing *ret);
/* It has changed it itself, or asked anew. */
void view_forget(struct einode *in, unsigned node);

void engine_changed(struct einode *in, enum engine_change what);
int64_t engine_now(void);

/* --- engine_calls.c: descriptors, points and paths */

/* An open file description; some have several descriptors. */
struct description {
	struct einode *in;
	int flags;
	unsigned node, refs;
	bool locked; /* flock(), alone */
	bool locks; /* or with others */
	struct listing list; /* of a directory, once it was read */
	bool listed;
	size_t at;
};

enum fails {
	NEVER,
	READS, /* EIO */
	WRITES, /* or no room */
};

/* What a path means: a file itself, or a name in a directory. */
struct place_at {
	struct einode *self; /* or NULL: */
	struct einode *dir;
	char name[ENGINE_NAME_MAX + 1];
};

#define FIRST_FD 100000 /* of ours */

struct description *engine_fd(int fd);
bool engine_is_ours(int fd);
/* -1, with errno. */
int engine_failed(int error);
int engine_new_fd(struct description *d);
/* Before a call is done: 0, or the errno that it fails with. */
int engine_begins(const char *what, const char *name, enum fails how);
/* It is done, and whoever called has not heard yet; rc. */
int engine_ends(int rc);
bool engine_is_below(int dirfd, const char *path);
/* Does it see what is there now: it is no client? */
bool engine_anew_for(unsigned node);
/* 0, or an errno. */
int engine_resolve(int dirfd, const char *path, struct place_at *ret);
/* The file at the place; anew: as it is now. 0, or an errno. */
int engine_find(const struct place_at *at, bool anew, struct einode **ret);
const char *engine_shown(const struct place_at *at);
void engine_touch_dir(struct einode *dir);
void engine_put_name(struct einode *dir, const char *name, struct einode *in);

/* --- engine_names.c */

/* Streams whose descriptors are closed are, too. */
void engine_streams_dead(void);

#endif
