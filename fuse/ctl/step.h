/*
 * step.h - what ckptctl inspect looks at: a file, or all files of one step of
 * training in a directory; in a mount or not. See store/step/structure.h.
 */
#ifndef FUSE_CTL_STEP_H
#define FUSE_CTL_STEP_H

#include <cjson/cJSON.h>

#include "store/step/structure.h"

#define STEP_DIGEST_BYTES 16

struct step_extra { /* of tensors.all[i] */
	uint8_t digest[STEP_DIGEST_BYTES];
	bool digested;
	uint32_t next; /* one with the same digest, in a ring; or itself */
};

struct step {
	const char *path; /* borrowed */
	int fd; /* owned */
	bool is_folder;
	struct structure in;
	struct step_extra *extra; /* owned; NULL before step_digest() */
	cJSON *megatron; /* metadata.json, or NULL */
};

/*
 * Look into what `fd` is, which becomes the step's. A damaged file is one of
 * the errors. Also the errors of the system. step_release() it in any case.
 */
int step_read(struct step *s, const char *path, int fd);
void step_release(struct step *s);

/* Read all bytes of a tensor; ret is XXH3-128 of them, big-endian. */
int step_digest_one(const struct step *s, size_t index);
/* Of all of them, and who shares bytes with whom. */
int step_digest(struct step *s);
/* Room for the digests. */
int step_digest_begin(struct step *s);

/* The file of a tensor, to be closed; -errno. */
int step_open(const struct step *s, const struct tensor *t);

/* "file: name", as one line. */
void step_print_name(const struct tensor *t);

void step_hex(const uint8_t digest[STEP_DIGEST_BYTES],
	      char ret[2 * STEP_DIGEST_BYTES + 1]);

#endif
