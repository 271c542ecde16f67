/*
 * kv_iter.c - iterators with bounds: without them a search that finds nothing
 * goes on through all that was deleted around the prefix, seconds after a
 * million deletions. An iterator is a use of the database until it is freed, so
 * it must not outlive the call that made it.
 */
#include "store/db/kv_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct kv_iter {
	struct kv *kv;
	rocksdb_iterator_t *it;
	rocksdb_readoptions_t *read;
	uint8_t *prefix;
	size_t prefix_len;
	uint8_t *bound; /* the first key after all that begin with prefix */
	bool started;
};

static bool iter_bound(struct kv_iter *it)
{
	size_t len = it->prefix_len;

	rocksdb_readoptions_set_iterate_lower_bound(
		it->read, (const char *)it->prefix, it->prefix_len);
	while (len > 0 && it->prefix[len - 1] == 0xff)
		len--;
	if (len == 0)
		return true;
	it->bound = malloc(len);
	if (!it->bound)
		return false;
	memcpy(it->bound, it->prefix, len);
	it->bound[len - 1]++;
	rocksdb_readoptions_set_iterate_upper_bound(
		it->read, (const char *)it->bound, len);
	return true;
}

static struct kv_iter *iter_alloc(struct kv *kv, const void *prefix,
				  size_t prefix_len)
{
	struct kv_iter *it = calloc(1, sizeof(*it));

	if (!it)
		return NULL;
	it->prefix = malloc(prefix_len + 1);
	if (!it->prefix) {
		free(it);
		return NULL;
	}
	memcpy(it->prefix, prefix, prefix_len);
	it->prefix_len = prefix_len;
	it->read = rocksdb_readoptions_create();
	if (!iter_bound(it)) {
		rocksdb_readoptions_destroy(it->read);
		free(it->prefix);
		free(it);
		return NULL;
	}
	it->kv = kv;
	if (kv_enter(kv) == 0)
		it->it = rocksdb_create_iterator(kv->db, it->read);
	return it;
}

int kv_iter_new(struct kv *kv, const void *prefix, size_t prefix_len,
		const void *start, size_t start_len, struct kv_iter **ret_iter)
{
	struct kv_iter *it = iter_alloc(kv, prefix, prefix_len);

	if (!it)
		return -ENOMEM;
	if (!it->it) {
		kv_iter_free(it);
		return -EIO;
	}
	if (start)
		rocksdb_iter_seek(it->it, start, start_len);
	else
		rocksdb_iter_seek(it->it, prefix, prefix_len);
	*ret_iter = it;
	return 0;
}

int kv_iter_new_before(struct kv *kv, const void *prefix, size_t prefix_len,
		       const void *start, size_t start_len,
		       struct kv_iter **ret_iter)
{
	struct kv_iter *it = iter_alloc(kv, prefix, prefix_len);
	const char *p;
	size_t len;

	if (!it)
		return -ENOMEM;
	if (!it->it) {
		kv_iter_free(it);
		return -EIO;
	}
	rocksdb_iter_seek_for_prev(it->it, start, start_len);
	p = rocksdb_iter_valid(it->it) ? rocksdb_iter_key(it->it, &len) : NULL;
	if (!p || len < prefix_len || memcmp(p, prefix, prefix_len) != 0)
		rocksdb_iter_seek(it->it, start, start_len);
	*ret_iter = it;
	return 0;
}

int kv_iter_next(struct kv_iter *it, struct kv_slice *ret_key,
		 struct kv_slice *ret_value)
{
	char *err = NULL;
	const char *p;
	size_t len;

	if (it->started && rocksdb_iter_valid(it->it))
		rocksdb_iter_next(it->it);
	it->started = true;
	if (!rocksdb_iter_valid(it->it)) {
		rocksdb_iter_get_error(it->it, &err);
		return kv_error("iterate", err);
	}
	p = rocksdb_iter_key(it->it, &len);
	if (len < it->prefix_len || memcmp(p, it->prefix, it->prefix_len) != 0)
		return 0;
	*ret_key = (struct kv_slice){ p, len };
	p = rocksdb_iter_value(it->it, &len);
	*ret_value = (struct kv_slice){ p, len };
	return 1;
}

void kv_iter_free(struct kv_iter *it)
{
	if (!it)
		return;
	if (it->it) {
		rocksdb_iter_destroy(it->it);
		kv_leave(it->kv);
	}
	rocksdb_readoptions_destroy(it->read);
	free(it->prefix);
	free(it->bound);
	free(it);
}
