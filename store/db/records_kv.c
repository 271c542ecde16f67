/*
 * records_kv.c - records in the database, by their keys, and the loop over many
 * of them. No RocksDB is seen here: another database behind kv.h has it, too.
 */
#include "store/db/kv.h"
#include "store/db/records.h"

#include "store/base/scope.h"

int record_load(struct kv *kv, struct key k, void **ret_value, size_t *ret_len)
{
	return kv_get(kv, k.data, k.len, ret_value, ret_len);
}

int record_find(struct kv *kv, struct key k)
{
	SCOPED(scope_free) void *value = NULL;
	size_t len;

	return record_load(kv, k, &value, &len);
}

void record_save(struct kv_batch *b, struct key k, const void *value,
		 size_t len)
{
	kv_put(b, k.data, k.len, value, len);
}

void record_mark(struct kv_batch *b, struct key k)
{
	record_save(b, k, "", 0);
}

void record_delete(struct kv_batch *b, struct key k)
{
	kv_delete(b, k.data, k.len);
}

void meta_add(struct kv_batch *b, const char *name, int64_t delta)
{
	struct key k = key_meta(name);

	kv_add(b, k.data, k.len, delta);
}

void u64_save(struct kv_batch *b, struct key k, uint64_t v)
{
	v = htole64(v);
	record_save(b, k, &v, sizeof(v));
}

/* NAME_load() and NAME_save(): the way between a key and a decoded value. */
#define LOAD(name, type)                                                \
	int name##_load(struct kv *kv, struct key k, typeof(type) *ret) \
	{                                                               \
		SCOPED(scope_free) void *value = NULL;                  \
		size_t len;                                             \
		int rc = record_load(kv, k, &value, &len);              \
                                                                        \
		return rc < 0 ? rc : name##_decode(value, len, ret);    \
	}
#define SAVE(name, type)                                   \
	void name##_save(struct kv_batch *b, struct key k, \
			 const typeof(type) *v)            \
	{                                                  \
		struct bytes value = { 0 };                \
                                                           \
		name##_encode(v, &value);                  \
		CHECK(!value.failed);                      \
		record_save(b, k, value.data, value.len);  \
		bytes_release(&value);                     \
	}

LOAD(u64, uint64_t)
LOAD(attr, struct attr)
LOAD(dirent, struct dirent_rec)
LOAD(content, struct content)
LOAD(chunk, struct chunk_rec)
LOAD(locs, struct chunk_locs)
LOAD(series, struct series_rec)
LOAD(writer, struct writer)
SAVE(attr, struct attr)
SAVE(dirent, struct dirent_rec)
SAVE(content, struct content)
SAVE(chunk, struct chunk_rec)
SAVE(locs, struct chunk_locs)
SAVE(series, struct series_rec)
SAVE(writer, struct writer)

int records_each_from(struct kv *kv, struct key prefix, struct key start,
		      record_fn fn, void *arg)
{
	struct kv_slice key, value;
	struct kv_iter *it;
	int rc = kv_iter_new(kv, prefix.data, prefix.len, start.data, start.len,
			     &it);

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

int records_each(struct kv *kv, struct key prefix, record_fn fn, void *arg)
{
	return records_each_from(kv, prefix, prefix, fn, arg);
}

static int stop_at_first(void *arg, struct kv_slice key, struct kv_slice value)
{
	(void)arg;
	(void)key;
	(void)value;
	return 1;
}

int records_any(struct kv *kv, struct key prefix)
{
	return records_each(kv, prefix, stop_at_first, NULL);
}

struct chunk_walk {
	uint64_t end; /* in the image */
	chunk_fn fn;
	void *arg;
};

static int walk_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	const struct chunk_walk *w = arg;
	uint64_t offset = 0;
	struct chunk_rec k;
	bool sound = key.len == 17;

	if (sound)
		offset = get_be64((const uint8_t *)key.data + 9);
	if (offset >= w->end)
		return 1;
	sound = sound && chunk_decode(value.data, value.len, &k) == 0;
	return w->fn(w->arg, offset, sound ? &k : NULL);
}

int extent_each_chunk(struct kv *kv, const struct extent *e, chunk_fn fn,
		      void *arg)
{
	struct chunk_walk w = { e->image_offset + e->len, fn, arg };
	int rc = records_each_from(kv, key_ino('K', e->image),
				   key_chunk(e->image, e->image_offset),
				   walk_one, &w);

	return rc < 0 ? rc : 0;
}
