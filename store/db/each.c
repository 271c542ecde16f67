/*
 * each.c - kv_each(): the loop that most who iterate need. It is not in a kv*.c
 * file because it sees no RocksDB: another database behind kv.h has it, too.
 */
#include "store/db/kv.h"

int kv_each(struct kv *kv, const void *prefix, size_t prefix_len,
	    int (*fn)(void *arg, struct kv_slice key, struct kv_slice value),
	    void *arg)
{
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc = kv_iter_new(kv, prefix, prefix_len, NULL, 0, &it);

	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		rc = fn(arg, key, value);
		if (rc != 0)
			break;
	}
	kv_iter_free(it);
	return rc;
}
