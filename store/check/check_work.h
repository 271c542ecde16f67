/*
 * check_work.h - what the parts of the check share: the tables that one part
 * fills and the next one compares with. Private to check*.c.
 *
 * Tables are sorted, because the database is: inodes by number, images by
 * number, chunks by image and offset. They are looked up by bisection.
 */
#ifndef STORE_CHECK_WORK_H
#define STORE_CHECK_WORK_H

#include <limits.h>

#include "store/base/sync.h"
#include "store/check/check.h"
#include "store/db/hash.h"
#include "store/db/kv.h"
#include "store/db/records.h"

enum inode_flag {
	INODE_CONTENT = 1 << 0, /* has F */
	INODE_SMALL = 1 << 1, /* and that says: the bytes are in D */
	INODE_BYTES = 1 << 2, /* has D */
	INODE_FRESH = 1 << 3, /* has U */
	INODE_UNLINKED = 1 << 4, /* has O */
	INODE_FIRST = 1 << 5, /* the name in A is a name in a directory */
	INODE_WALKED = 1 << 6, /* a directory: its way up is known to end */
};

struct check_inode {
	uint64_t ino; /* sorted by it, as images by id and chunks by offset */
	uint64_t parent, name_hash; /* of the first name, as A has it */
	uint64_t up; /* of a directory: where its name was found */
	uint32_t mode, nlink; /* as A has them */
	uint32_t names, subdirs; /* counted */
	uint32_t small_bytes; /* length of D */
	uint32_t flags; /* enum inode_flag */
	uint32_t walk; /* of a directory: the last walk up that passed here */
};

#define IMAGE_NO_FILE UINT64_MAX
struct check_image {
	uint64_t id;
	uint64_t end; /* of the last byte of a chunk */
	uint64_t file_bytes; /* IMAGE_NO_FILE: there is none */
	size_t first_chunk, chunk_count;
	bool recorded; /* has I */
	bool native; /* a file reads it as it is, also where no chunk is */
};

struct check_chunk {
	uint64_t offset;
	uint32_t len;
	uint32_t image_index;
	uint32_t hash_tag; /* 32 bits: all of the hash, and the domain */
	uint32_t refs_left; /* as K has them, less those found; wraps */
};
_Static_assert(sizeof(struct check_chunk) == 24, "a million is 24 MB");

/* Chunks [first, first + count) cannot be read back as they were stored. */
struct check_damage {
	size_t first, count; /* what a scrub finds: one chunk */
	int rc; /* -EIO and the like; 0: the bytes differ */
	int mend_rc; /* of mend_chunk(); 0: it was not tried */
	bool mended;
	/* Not the chunk, but what is beside it and is to be zeros; 0: no. */
	uint64_t zeros_from, zeros_to;
};

/* One key, which begins with its kind, and its value. */
struct check_record {
	const uint8_t *key;
	size_t key_len;
	const void *value;
	size_t value_len;
};

struct check {
	struct kv *kv;
	int images_dirfd;
	const struct check_options *options;
	struct check_result *result;

	struct check_inode *inodes;
	size_t inode_count, inode_capacity;
	struct check_image *images;
	size_t image_count, image_capacity;
	struct check_chunk *chunks;
	size_t chunk_count, chunk_capacity;
	struct check_damage *damage;
	size_t damage_count, damage_capacity;

	uint64_t image_records; /* I, whether or not they have chunks */
	uint64_t next_ino, next_image; /* as M has them; 0: not known */
	uint64_t next_place; /* UINT64_MAX: damaged */
	uint64_t unfinished_from; /* UINT64_MAX: not known */
	bool secret_known;
	uint8_t secret[HASH_SECRET_BYTES];
	bool database_failed; /* and that was reported */
	struct lock deciding; /* for mend.h: nobody else has the store */
	char path[PATH_MAX], image[32]; /* check_path(), check_image_name() */
};

/* Counts it, and calls who asked for the check. */
void check_tell(struct check *c, const struct check_problem *p);
/* For what only the index gets wrong. */
#define CHECK_ADVICE_INDEX "copy the files to a new store"
/* A problem: the text is "OBJECT: " and the sentence. */
__attribute__((format(printf, 4, 5))) void
check_report(struct check *c, const char *code, const char *object,
	     const char *format, ...);
/* The sentence alone is the text. */
__attribute__((format(printf, 4, 5))) void
check_report_text(struct check *c, const char *code, const char *object,
		  const char *format, ...);
/* The same for a note. */
__attribute__((format(printf, 4, 5))) void
check_remark(struct check *c, const char *code, const char *object,
	     const char *format, ...);
/* A version, or a time, has this number. False: no store gives such a one. */
bool check_number(struct check *c, uint64_t number);
/* A record that nobody can read. Returns 0: the check goes on. */
int check_report_record(struct check *c, const struct check_record *r);
/* The database gave `rc`: reported once; returns rc. */
int check_database_failed(struct check *c, int rc);
void check_progress(struct check *c, const char *phase, uint64_t done,
		    uint64_t total);

/*
 * Names for messages, each valid until the next call of any of the first two or
 * of the third: the path of an inode, or "inode N" when no names lead to it;
 * "inode N"; "image 0000000000000012".
 */
const char *check_path(struct check *c, uint64_t ino);
const char *check_inode_name(struct check *c, uint64_t ino);
const char *check_image_name(struct check *c, uint64_t id);

/* Call fn for each record of a kind, until it fails. */
int check_each(struct check *c, char kind, const char *phase,
	       int (*fn)(struct check *c, const struct check_record *r));

struct check_inode *check_find_inode(struct check *c, uint64_t ino);
/*
 * The inode, or regular file, that a record is about, by the number in its key;
 * NULL: there is none, which was reported.
 */
struct check_inode *check_inode_of(struct check *c,
				   const struct check_record *r, bool regular);
struct check_image *check_find_image(struct check *c, uint64_t id);
/* The first chunk of this image at or after offset, or one past its last. */
size_t check_find_chunk(const struct check *c, const struct check_image *i,
			uint64_t offset);
uint32_t check_hash_tag(const uint8_t hash[HASH_BYTES], uint64_t domain);
int check_add_damage(struct check *c, size_t first, size_t count, int rc);

/* The parts, in this order. 0 or -errno; problems are reported. */
int check_names(struct check *c); /* A E L O U W X: check_names.c */
int check_content(struct check *c); /* K H D F: check_content.c */
int check_images(struct check *c); /* I P, by check_content(): check_images.c */
int check_staged(struct check *c); /* check_staged.c */
int check_digests(struct check *c); /* check_digest.c */
int check_scrub(struct check *c); /* adds to damage: check_scrub.c */
int check_mend(struct check *c); /* marks what it mended: check_mend.c */
int check_zeros(struct check *c); /* adds to damage: check_mend.c */
int check_name_damage(struct check *c); /* reports it: check_damage.c */

#endif
