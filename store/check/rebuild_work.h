/* rebuild_work.h - between the rebuild*.c files: see rebuild.h. */
#ifndef STORE_REBUILD_WORK_H
#define STORE_REBUILD_WORK_H

#include "store/check/rebuild.h"
#include "store/db/hash.h"
#include "store/db/kv.h"
#include "store/db/label.h"
#include "store/db/records.h"
#include "store/space/stage_table.h"

/* A chunk of any file, by its place; found again by (image, offset). */
struct rebuild_chunk {
	uint64_t image, offset; /* image 0: a free slot */
	uint64_t domain;
	uint32_t len, refs;
	uint8_t hash[HASH_BYTES];
	int8_t state; /* 0: not looked at; 1: its bytes are right; -1: not */
};

struct rebuild_table {
	struct rebuild_chunk *at;
	size_t count, capacity; /* a power of two */
};

struct rebuild {
	const struct rebuild_options *options;
	struct rebuild_result *result;
	const char *path;
	int dirfd, images_dirfd;
	struct kv *kv; /* the new database, open for writing */
	char uuid[LAYOUT_UUID_BYTES];
	uint8_t secret[HASH_SECRET_BYTES];
	bool secret_is_new;
	bool lossy; /* changes are missing at its end */

	struct rebuild_table chunks;
	struct label *labels; /* of all images; sorted by inode, newest first */
	size_t label_count, label_capacity;
	struct stage_table staged; /* what the next mount takes over */
	uint64_t next_ino, next_image;

	/* The image that was read last. */
	uint64_t open_image;
	int open_fd;
	uint8_t *buffer; /* CHUNK_BYTES_MAX */
};

__attribute__((format(printf, 4, 5))) void rebuild_say(struct rebuild *r,
						       enum rebuild_kind kind,
						       const char *object,
						       const char *format, ...);
/* The image, open for reading; -1: it is not there. Borrowed. */
int rebuild_image(struct rebuild *r, uint64_t id);
/* Call fn for each image file. */
int rebuild_each_image(struct rebuild *r,
		       int (*fn)(struct rebuild *r, uint64_t id));

/* --- rebuild_bytes.c: is it what was stored? */

/* The one of this place, new if there is none; NULL: out of memory. */
struct rebuild_chunk *rebuild_add(struct rebuild_table *t, uint64_t image,
				  uint64_t offset);
/*
 * NULL: every byte of the content is there, and its chunks have one more user
 * now. Else why not.
 */
const char *rebuild_use(struct rebuild *r, const struct content *f);
/*
 * What a label says becomes a content. 1: every byte of it is there; 0: not,
 * and *ret_reason says why.
 */
int rebuild_content(struct rebuild *r, const struct label *l,
		    struct content *ret, const char **ret_reason);

/* --- rebuild_names.c: names and inodes */

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

/* Where a file goes whose own place is not known, or taken by a directory. */
#define REBUILT_DIR "rebuilt"

/* --- rebuild_staged.c: what the last daemon left staged */

int rebuild_read_staged(struct rebuild *r);
/* 1: the base does not know of a file that is staged: its end is missing. */
int rebuild_lacks_staged(struct rebuild *r);
/* Nothing of the file can be had but what is staged: it waits for that. */
int rebuild_wait_for_stage(struct rebuild *r, uint64_t ino);
/* Each file that is staged gets an inode and a name, if it has none. */
int rebuild_name_staged(struct rebuild *r);
int rebuild_say_staged(struct rebuild *r);

/* --- rebuild_write.c: what follows from the files */

int rebuild_write_chunks(struct rebuild *r);
/* next_ino: a number that neither the base nor a label has used. */
int rebuild_next_inode(struct rebuild *r);
int rebuild_write_settings(struct rebuild *r);

/* --- rebuild_base.c: a database to begin with, as STORE/db.rebuild */

#define REBUILD_DIR "db.rebuild"
int rebuild_base(struct rebuild *r, char *why, size_t why_size);

#endif
