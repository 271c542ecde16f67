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

#include "store/base/check.h"

#define PREFIX_BYTES_MAX 512 /* more than any key of ours has */

struct kv_iter {
	struct kv *kv; /* entered; NULL: not yet */
	rocksdb_iterator_t *it;
	rocksdb_readoptions_t *read;
	size_t prefix_len;
	bool started;
	char prefix[PREFIX_BYTES_MAX];
	char bound[PREFIX_BYTES_MAX]; /* the first key after all with prefix */
};

static void iter_bound(struct kv_iter *it)
{
	size_t len = it->prefix_len;

	rocksdb_readoptions_set_iterate_lower_bound(it->read, it->prefix, len);
	while (len > 0 && it->prefix[len - 1] == (char)0xff)
		len--;
	if (len == 0)
		return; /* there is none after them */
	memcpy(it->bound, it->prefix, len);
	it->bound[len - 1]++;
	rocksdb_readoptions_set_iterate_upper_bound(it->read, it->bound, len);
}

static int iter_open(struct kv *kv, const void *prefix, size_t prefix_len,
		     struct kv_iter **ret_iter)
{
	struct kv_iter *it = calloc(1, sizeof(*it));
	int rc;

	CHECK(prefix_len <= PREFIX_BYTES_MAX);
	if (!it)
		return -ENOMEM;
	memcpy(it->prefix, prefix, prefix_len);
	it->prefix_len = prefix_len;
	it->read = rocksdb_readoptions_create();
	iter_bound(it);
	rc = kv_enter(kv);
	if (rc < 0) {
		kv_iter_free(it);
		return rc;
	}
	it->kv = kv;
	it->it = rocksdb_create_iterator(kv->db, it->read);
	*ret_iter = it;
	return 0;
}

int kv_iter_new(struct kv *kv, const void *prefix, size_t prefix_len,
		const void *start, size_t start_len, struct kv_iter **ret_iter)
{
	int rc = iter_open(kv, prefix, prefix_len, ret_iter);

	if (rc < 0)
		return rc;
	if (start)
		rocksdb_iter_seek((*ret_iter)->it, start, start_len);
	else
		rocksdb_iter_seek((*ret_iter)->it, prefix, prefix_len);
	return 0;
}

int kv_iter_new_before(struct kv *kv, const void *prefix, size_t prefix_len,
		       const void *start, size_t start_len,
		       struct kv_iter **ret_iter)
{
	int rc = iter_open(kv, prefix, prefix_len, ret_iter);
	rocksdb_iterator_t *it;
	const char *p;
	size_t len;

	if (rc < 0)
		return rc;
	it = (*ret_iter)->it;
	rocksdb_iter_seek_for_prev(it, start, start_len);
	p = rocksdb_iter_valid(it) ? rocksdb_iter_key(it, &len) : NULL;
	if (!p || len < prefix_len || memcmp(p, prefix, prefix_len) != 0)
		rocksdb_iter_seek(it, start, start_len);
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
	if (it->kv) {
		rocksdb_iter_destroy(it->it);
		kv_leave(it->kv);
	}
	rocksdb_readoptions_destroy(it->read);
	free(it);
}
