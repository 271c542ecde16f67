/*
 * closure.h - does a checkpoint hold together? What its .metadata says,
 * against the files that are there.
 *
 * A pure function: no file is opened, the sizes are the caller's. It sees what
 * a trainer handed over and lost, not what it never handed over.
 */
#ifndef STORE_CLOSURE_H
#define STORE_CLOSURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp;

/* More are counted, but not kept. */
#define CLOSURE_FINDINGS_MAX 1000
/*
 * What torch.save() puts around a tensor is about 1.5 KiB; an entry that is so
 * much longer than its tensor holds another one.
 */
#define CLOSURE_AROUND_BYTES_MAX (UINT64_C(64) << 10)

enum closure_kind {
	CLOSURE_DANGLING, /* an entry names a file that is not there */
	CLOSURE_PAST_END, /* its range ends behind the file's end */
	CLOSURE_LENGTH, /* its range cannot hold a tensor of this size */
	CLOSURE_OVERLAP, /* two entries have bytes of a file in common */
	CLOSURE_UNNAMED, /* bytes in the middle or at the end that none names */
	CLOSURE_ORPHAN, /* a __<rank>_<n>.distcp of which no entry names any */
	CLOSURE_UNSTORED, /* a chunk or an item that no entry is of */
	CLOSURE_UNKNOWN, /* an entry of no item, or of no chunk of it */
	CLOSURE_OUTSIDE, /* a chunk reaches beyond its tensor */
	CLOSURE_CHUNKS_OVERLAP, /* two chunks have elements in common */
	CLOSURE_NOT_COVERED, /* a tensor has elements that no chunk has */
	CLOSURE_NO_ARCHIVE, /* where an entry's should be there is none */
	CLOSURE_NOT_CHECKED, /* too many chunks in no order to compare all */
	CLOSURE_KINDS
};

/* Somebody writes the file, elsewhere. */
#define CLOSURE_SIZE_UNKNOWN UINT64_MAX

struct closure_file {
	const char *name; /* as entries have it; unique */
	uint64_t size_bytes;
};

struct closure_finding {
	enum closure_kind kind;
	const char *item; /* borrowed from the dcp, or NULL */
	const char *file; /* borrowed from the dcp or the files, or NULL */
	char what[224]; /* a sentence without the two */
};

struct closure {
	struct closure_finding *findings; /* owned */
	size_t count; /* of these; CLOSURE_FINDINGS_MAX at most */
	size_t capacity;
	size_t totals[CLOSURE_KINDS]; /* also those that were not kept */
};

/*
 * Compare. The files are all that the folder has; those that are neither named
 * by an entry nor called like one of torch's are nobody's business, and empty
 * ones are no orphans: a rank that had nothing to write leaves one. One
 * finding for each tensor and kind is enough, for chunks. Result and order
 * depend on the input alone. -ENOMEM.
 */
int closure_check(const struct dcp *d, const struct closure_file *files,
		  size_t file_count, struct closure *ret);
/*
 * Who has read the files adds: where an entry of the item should lie in the
 * file there is nothing of torch.save()'s. -ENOMEM.
 */
int closure_add_no_archive(struct closure *c, const char *item,
			   const char *file, uint64_t offset, uint64_t length);
void closure_release(struct closure *c);

/* Whether it holds together; what was not checked does not count. */
bool closure_holds(const struct closure *c);

/* "dangling", "past_end", ... */
const char *closure_kind_name(enum closure_kind kind);

#endif
