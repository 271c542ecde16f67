/*
 * dcp.h - what a checkpoint of torch.distributed.checkpoint says it holds: its
 * file .metadata, which is a pickle.
 *
 *     items    what a state dict has: tensors, and other things as bytes
 *     chunks   the parts that a tensor was saved in, by their place in it
 *     entries  where the bytes are: file, offset, length
 *     files    every name that an entry has, once
 *
 * An entry is of a chunk, or of an item that is no tensor. What belongs
 * together is found by name and place, as torch does it; what has no partner
 * is kept and says DCP_NONE. Nothing here was compared with the files
 * themselves, nor were chunks with each other: that is closure.h.
 *
 * What is read: the metadata of torch 1.12 to 2.15, and Megatron-LM's, which
 * also has the plans of all ranks. Only those classes are known, and none is
 * called; see pickle.h. Plans, paths into the state dict and what a step is
 * called are passed over.
 */
#ifndef STORE_FORMATS_DCP_H
#define STORE_FORMATS_DCP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/formats/pickle.h"

struct cut_source;

#define DCP_METADATA_NAME ".metadata"
#define DCP_NONE UINT32_MAX
#define DCP_DIMENSIONS_MAX 64
/* Of an item or a file. */
#define DCP_NAME_BYTES_MAX 4096
/* No larger .metadata is read: a million chunks take 150 MB. */
#define DCP_FILE_BYTES_MAX (UINT64_C(1) << 30)
/* What reading takes, for each byte of the file; less is kept. */
#define DCP_MEMORY_PER_BYTE 5

struct dcp_dtype {
	const char *name; /* "bfloat16" */
	unsigned bits; /* of an element; 0: that depends */
};

/* Names are UTF-8 without a NUL, and terminated. */
struct dcp_item {
	const char *name; /* unique */
	const struct dcp_dtype *dtype; /* NULL: no tensor */
	unsigned dimensions;
	const uint64_t *shape;
	uint64_t elements; /* of the shape, at most 2^56 */
	uint32_t chunk_at, chunk_count; /* its chunks, in the file's order */
	uint32_t entry; /* of what is no tensor, or DCP_NONE */
};

struct dcp_chunk {
	uint32_t item;
	uint32_t entry; /* or DCP_NONE. Empty chunks may share one. */
	const uint64_t *offsets, *sizes; /* as many as its item's dimensions */
	uint64_t elements;
};

struct dcp_entry {
	const char *name;
	const uint64_t *offsets; /* NULL: it names none */
	unsigned dimensions; /* of these offsets */
	uint32_t item; /* or DCP_NONE: there is none of that name */
	uint32_t chunk; /* or DCP_NONE: none is there, or it is no tensor's */
	uint32_t file;
	bool transformed; /* compressed or the like: length is of the result */
	uint64_t offset, length; /* their sum is below 2^63 */
};

struct dcp_file {
	const char *name; /* relative, without . or .. */
	uint32_t rank; /* see dcp_file_rank() */
};

struct dcp {
	struct dcp_item *items; /* all owned; in the file's order */
	struct dcp_chunk *chunks; /* grouped by item */
	struct dcp_entry *entries;
	struct dcp_file *files; /* in the order in which entries name them */
	uint32_t item_count, chunk_count, entry_count, file_count;
	struct dcp_block *blocks; /* what they point to */
	size_t trailing_bytes; /* behind the pickle, not looked at */
	size_t memory_bytes; /* that all of it takes, about */
};

struct dcp_error {
	char what[384]; /* with the offset, or the tensor's name */
};

/*
 * Read a .metadata. The result owns all that it needs; dcp_release() it.
 * -EBADMSG: refused, ret_error says why. -EFBIG: likewise, too large.
 * -EOPNOTSUPP: likewise, of a class that is not known here. -ENOMEM.
 */
int dcp_read(const void *data, size_t len, size_t memory_bytes_max,
	     struct dcp *ret, struct dcp_error *ret_error);
/*
 * The same of a file that has bytes_max bytes at the most; else -EFBIG. Also
 * the errors of file->read, and ret_error is then empty. Reading takes no more
 * than memory_bytes_max; SIZE_MAX: what so long a file may.
 */
int dcp_read_source(const struct cut_source *file, uint64_t bytes_max,
		    size_t memory_bytes_max, struct dcp *ret,
		    struct dcp_error *ret_error);
/*
 * The same of a file below dirfd (AT_FDCWD: wherever) of DCP_FILE_BYTES_MAX
 * bytes at the most. Also the errors of openat(2), and -EINVAL: no regular
 * file.
 */
int dcp_read_file(int dirfd, const char *name, struct dcp *ret,
		  struct dcp_error *ret_error);
void dcp_release(struct dcp *d);

/*
 * The rank that wrote a file, from its name: __<rank>_<number>.distcp, with a
 * prefix or in a folder; DCP_NONE: it has no such name, or no rank below 10^9.
 */
uint32_t dcp_file_rank(const char *name);

/*
 * The dtypes of torch as classes of a pickle: the id of each is its number and
 * first_id. Returns how many.
 */
size_t dcp_dtype_classes(struct pickle_class *ret, uint32_t first_id);
/* Which of them it is; NULL: none. No other class has an id from first_id on.
 */
const struct dcp_dtype *dcp_dtype_of(const struct pickle *p, pickle_value v,
				     uint32_t first_id);

#endif
