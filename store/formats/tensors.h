/*
 * tensors.h - which tensors a file has: safetensors, and what torch.save makes,
 * one archive or many, one after another (.distcp).
 *
 * Nothing is executed and no payload is read. What a file claims is compared
 * with it: every tensor lies in the file, and every name is UTF-8 without a
 * NUL. Bytes that an archive has and no tensor that was understood takes are
 * listed too, without a dtype, so that nothing is passed over in silence.
 *
 * Errors:  0 or a negative errno. -EBADMSG: not what it says it is, and
 *          ret_list->error says why.
 */
#ifndef STORE_FORMATS_TENSORS_H
#define STORE_FORMATS_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cut_source;

#define TENSOR_NAME_BYTES_MAX 4096
#define TENSOR_RANK_MAX 64
#define TENSORS_MAX (UINT32_C(1) << 26)

struct tensor {
	const char *name; /* UTF-8 */
	const char *file; /* borrowed; NULL: there is but one */
	const char *dtype; /* the format's word; NULL: no tensor, just bytes */
	unsigned rank;
	const uint64_t *shape; /* of what is stored here */
	const uint64_t *strides; /* in elements; NULL: as in C */
	/* A part of a larger tensor: where in it, and its shape; else NULL. */
	const uint64_t *place, *whole;
	uint64_t offset, bytes; /* in the file; of a view: all it spans */
};

struct tensors {
	struct tensor *all; /* owned */
	size_t count, capacity;
	struct dcp_block *blocks; /* what they point to; owned */
	size_t bytes_max; /* of memory for all of them; 0: no limit */
	size_t bytes;
	const char *format; /* "safetensors", "torch_zip", ..., "plain" */
	char error[512];
};

void tensors_release(struct tensors *l);

/*
 * One more, with copies of everything but the file. -ENOMEM, -EFBIG: too many,
 * or they take more memory than they may.
 */
int tensors_add(struct tensors *l, const struct tensor *t);

/* What is wrong; returns -EBADMSG. */
int tensors_refuse(struct tensors *l, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Add what an open file has; `file` becomes the tensors' file. In a file of
 * many archives a tensor is "@<offset>", and its bytes are the archive's.
 * l->format is the file's. Also the errors of read(2).
 */
int tensors_read(struct tensors *l, int fd, const char *name, const char *file);
/* The same of anything that can be read. */
int tensors_read_source(struct tensors *l, const struct cut_source *source,
			const char *name, const char *file);

/* Where a storage's bytes are. */
struct tensor_storages {
	/* 0, or -ENOENT: there is none of that key. */
	int (*find)(void *self, const char *key, size_t key_len,
		    uint64_t *ret_at, uint64_t *ret_bytes);
	void *self;
};

/*
 * Add the tensors of a pickle of torch.save; the name of one that is all the
 * pickle has is "". -EBADMSG, -EFBIG, -ENOMEM.
 */
int torch_pickle_read(struct tensors *l, const void *data, size_t len,
		      const struct tensor_storages *storages, const char *file);

#endif
