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
	const char *note; /* what to know of its format, or NULL */
	/*
	 * After logical_make(): what in.tensors are made of, in their order; a
	 * tensor's offset is the first of its pieces.
	 */
	struct tensors pieces;
	bool is_logical;
	size_t objects; /* what is no tensor, and left out */
	bool is_described; /* its tensors are, but no bytes of them */
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

/* --- Printing: step_print.c ----------------------------------------------- */

/* For people; all: also the tensors after the first. */
void step_print(const struct step *s, bool all);
/* One JSON object: `head`, which is released, and what the step holds. */
void step_print_json(const struct step *s, cJSON *head);
/* A tensor's type and place, as a JSON object. */
void step_print_side(const struct step *s, const struct tensor *t);
/* "file: name", as one line. */
void step_print_name(const struct tensor *t);
/* "[2, 3]", or "-" for NULL, filled up with spaces. */
void step_print_shape(const uint64_t *shape, size_t rank, int width);
/* What does not match: lines, or a member "findings" that follows another. */
void step_print_findings(const struct closure *found, const char *indent);
void step_print_findings_json(const struct closure *found);

/* --- zarr.c --------------------------------------------------------------- */

/* Is this folder a zarr store? Then its arrays become the step's tensors. */
bool zarr_is(int folder);
int zarr_read(struct step *s);

/* --- logical.c ------------------------------------------------------------ */

/*
 * From here on the step's tensors are what a trainer would load: each once, as
 * a whole, in C's order, wherever and however its pieces are stored. What is no
 * tensor is left out and counted. -ENOMEM.
 */
int logical_make(struct step *s);
/* Must a and b be made so to be compared? */
bool logical_wanted(const struct step *a, const struct step *b);
/*
 * The same as step_digest_one(), of a tensor put together. -EBADMSG: its
 * pieces are not what they are said to be, or do not make a whole.
 */
int logical_digest_one(const struct step *s, size_t index);

/* --- diff.c --------------------------------------------------------------- */

/*
 * Print what changed from a to b; the command's exit code: CTL_PROBLEM when
 * the structure differs or a file could not be read. structure_only: no byte
 * is compared.
 */
int diff_steps(struct step *a, struct step *b, bool json, bool all,
	       bool structure_only);

#endif
