/* torch_pickle.h - the tensors in the data.pkl of a torch.save archive. */
#ifndef STORE_FORMATS_TORCH_PICKLE_H
#define STORE_FORMATS_TORCH_PICKLE_H

#include "store/formats/tensor_list.h"

/* Where a storage's bytes are. */
struct tensor_storages {
	/* 0, or -ENOENT: there is none of that key. */
	int (*find)(void *self, const char *key, size_t key_len,
		    uint64_t *ret_at, uint64_t *ret_bytes);
	void *self;
};

/*
 * Add the tensors of a pickle of torch.save; the name of one that is all the
 * pickle has is "". -EBADMSG, -EFBIG, -EOPNOTSUPP, -ENOMEM.
 */
int torch_pickle_read(struct tensors *l, const void *data, size_t len,
		      const struct tensor_storages *storages, const char *file);

#endif
