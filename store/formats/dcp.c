/*
 * dcp.c - from a pickle to items, chunks and entries. The pickle is a graph
 * that may have cycles and may use one thing many times, so the way through it
 * has a fixed depth, whatever it holds, and what it yields is bounded by the
 * pickle's length.
 */
#include "store/formats/dcp.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/formats/chunks.h"
#include "store/formats/dcp_reading.h"

/* What is wrong with a tensor. Yields -EBADMSG. */
#define BAD(r, item, format, ...) \
	reading_refuse(r, "tensor '%.120s'" format, (item)->name, ##__VA_ARGS__)

/* --- state_dict_metadata -------------------------------------------------- */

static int read_chunk(struct reading *r, pickle_value v, uint32_t number)
{
	static const char *const names[] = { "offsets", "sizes" };
	const struct dcp_item *item = &r->d.items[number];
	struct dcp_chunk c = { .item = number, .entry = DCP_NONE };
	uint64_t offsets[DCP_DIMENSIONS_MAX], sizes[DCP_DIMENSIONS_MAX];
	unsigned offset_count, size_count;
	pickle_value a[2];
	int rc;

	if (!reading_is_class(r, v, CLASS_CHUNK) ||
	    !ATTRIBUTES(r, v, names, a) ||
	    !reading_numbers(r, a[0], offsets, &offset_count) ||
	    !reading_numbers(r, a[1], sizes, &size_count))
		return BAD(r, item, ": a chunk that is not understood");
	if (offset_count != item->dimensions || size_count != item->dimensions)
		return BAD(r, item,
			   " has %u dimensions, and a chunk of it offsets of "
			   "%u and sizes of %u",
			   item->dimensions, offset_count, size_count);
	if (!dims_volume(sizes, size_count, &c.elements))
		return BAD(r, item, ": a chunk of more than 2^56 elements");
	rc = reading_spend(r);
	if (rc == 0)
		rc = reading_keep_dims(r, offsets, offset_count, &c.offsets);
	if (rc == 0)
		rc = reading_keep_dims(r, sizes, size_count, &c.sizes);
	if (rc == 0)
		rc = GROW(r, r->d.chunks, r->d.chunk_count, r->chunk_capacity);
	if (rc < 0)
		return rc;
	r->d.chunks[r->d.chunk_count] = c;
	if (reading_find_chunk(r, number, c.offsets, offset_count) == DCP_NONE)
		rc = reading_add_chunk(r, number, c.offsets, offset_count);
	r->d.chunk_count++;
	r->d.items[number].chunk_count++;
	return rc;
}

static int read_dtype(struct reading *r, pickle_value properties,
		      struct dcp_item *item)
{
	static const char *const names[] = { "dtype" };
	pickle_value dtype = 0, state;

	/* A tuple that starts with it, or by name. */
	state = pickle_state(&r->p, properties);
	if (pickle_kind(state) == PICKLE_TUPLE) {
		struct pickle_walk w = pickle_walk(&r->p, state);

		(void)pickle_next(&w, &dtype);
	} else {
		(void)ATTRIBUTES(r, properties, names, &dtype);
	}
	item->dtype = dcp_dtype_of(&r->p, dtype, CLASS_DTYPE);
	if (!item->dtype || !reading_is_class(r, properties, CLASS_PROPERTIES))
		return BAD(r, item, ": its dtype is not understood");
	return 0;
}

static int read_tensor(struct reading *r, pickle_value v, uint32_t number)
{
	static const char *const names[] = { "properties", "size", "chunks" };
	struct dcp_item *item = &r->d.items[number];
	uint64_t shape[DCP_DIMENSIONS_MAX];
	struct pickle_walk w;
	pickle_value a[3], chunk;
	int rc;

	if (!ATTRIBUTES(r, v, names, a))
		return BAD(r, item, " has no properties");
	rc = read_dtype(r, a[0], item);
	if (rc < 0)
		return rc;
	if (!reading_numbers(r, a[1], shape, &item->dimensions))
		return BAD(r, item, ": its size is not understood");
	if (!dims_volume(shape, item->dimensions, &item->elements))
		return BAD(r, item, " has more than 2^56 elements");
	rc = reading_keep_dims(r, shape, item->dimensions, &item->shape);
	if (rc < 0)
		return rc;
	if (pickle_kind(a[2]) != PICKLE_LIST)
		return BAD(r, item, ": its chunks are no list");
	w = pickle_walk(&r->p, a[2]);
	while (rc == 0 && pickle_next(&w, &chunk))
		rc = read_chunk(r, chunk, number);
	return rc;
}

static int read_item(struct reading *r, pickle_value key, pickle_value v)
{
	struct dcp_item item = { .chunk_at = r->d.chunk_count,
				 .entry = DCP_NONE };
	uint32_t number = r->d.item_count;
	struct name n;
	int rc = name_take(r, key, "the name of an item", &n);

	if (rc == 0)
		rc = reading_spend(r);
	if (rc < 0)
		return rc;
	if (dcp_table_find(&r->item_names, n.text, n.len, 0) != DCP_NONE)
		return reading_refuse(r, "'%s' is there twice", SHOWN(n));
	rc = name_keep(r, n, &item.name);
	if (rc == 0)
		rc = GROW(r, r->d.items, number, r->item_capacity);
	if (rc == 0)
		rc = dcp_table_add(&r->item_names, item.name, n.len, 0, number);
	if (rc < 0)
		return rc;
	r->d.items[r->d.item_count++] = item;
	if (reading_is_class(r, v, CLASS_TENSOR))
		return read_tensor(r, v, number);
	if (!reading_is_class(r, v, CLASS_BYTES))
		return reading_refuse(r, "'%s' is neither a tensor nor bytes",
				      SHOWN(n));
	return 0;
}

/* --- storage_data --------------------------------------------------------- */

/* A name that leads nowhere but below the checkpoint's folder. */
static bool is_relative(struct name n)
{
	const char *at = n.text, *end = n.text + n.len;

	while (at <= end) {
		const char *slash = memchr(at, '/', (size_t)(end - at));
		size_t len = (size_t)((slash ? slash : end) - at);

		if (len == 0 || (len == 1 && at[0] == '.') ||
		    (len == 2 && at[0] == '.' && at[1] == '.'))
			return false;
		at += len + 1;
	}
	return true;
}

static int read_file_name(struct reading *r, pickle_value v, uint32_t *ret_file)
{
	struct dcp_file file;
	struct name n;
	int rc = name_take(r, v, "the name of a file", &n);

	if (rc < 0)
		return rc;
	*ret_file = dcp_table_find(&r->file_names, n.text, n.len, 0);
	if (*ret_file != DCP_NONE)
		return 0;
	if (!is_relative(n))
		return reading_refuse(r,
				      "'%s' is no name of a file in the "
				      "checkpoint's folder",
				      SHOWN(n));
	rc = name_keep(r, n, &file.name);
	if (rc == 0)
		rc = GROW(r, r->d.files, r->d.file_count, r->file_capacity);
	if (rc == 0)
		rc = dcp_table_add(&r->file_names, file.name, n.len, 0,
				   r->d.file_count);
	if (rc < 0)
		return rc;
	file.rank = dcp_file_rank(file.name);
	*ret_file = r->d.file_count;
	r->d.files[r->d.file_count++] = file;
	return 0;
}

/* Which chunk or item the entry is of. */
static int entry_link(struct reading *r, struct name n, struct dcp_entry *e,
		      uint32_t number)
{
	uint32_t *owner;

	e->item = dcp_table_find(&r->item_names, n.text, n.len, 0);
	e->chunk = DCP_NONE;
	if (e->item == DCP_NONE)
		return name_keep(r, n, &e->name);
	e->name = r->d.items[e->item].name;
	owner = &r->d.items[e->item].entry;
	if (r->d.items[e->item].dtype) {
		if (e->offsets)
			e->chunk = reading_find_chunk(r, e->item, e->offsets,
						      e->dimensions);
		if (e->chunk == DCP_NONE)
			return 0;
		owner = &r->d.chunks[e->chunk].entry;
	}
	if (*owner != DCP_NONE)
		return reading_refuse(r, "'%s' is stored at two places",
				      SHOWN(n));
	*owner = number;
	return 0;
}

static int read_index(struct reading *r, pickle_value key, struct name *ret,
		      struct dcp_entry *e)
{
	static const char *const names[] = { "fqn", "offset" };
	uint64_t offsets[DCP_DIMENSIONS_MAX];
	pickle_value a[2];
	int rc;

	if (!reading_is_class(r, key, CLASS_INDEX) ||
	    !ATTRIBUTES(r, key, names, a))
		return reading_refuse(r, "storage_data has a key that is no "
					 "MetadataIndex");
	rc = name_take(r, a[0], "the name of an item that is stored", ret);
	if (rc < 0 || pickle_kind(a[1]) == PICKLE_NONE)
		return rc;
	if (!reading_numbers(r, a[1], offsets, &e->dimensions))
		return reading_refuse(r,
				      "'%s' is stored at an offset that is not "
				      "understood",
				      SHOWN(*ret));
	return reading_keep_dims(r, offsets, e->dimensions, &e->offsets);
}

static int read_entry(struct reading *r, pickle_value key, pickle_value v)
{
	static const char *const names[] = { "relative_path", "offset",
					     "length",
					     "transform_descriptors" };
	struct dcp_entry e = { 0 };
	pickle_value a[4];
	struct name n;
	int rc = reading_spend(r);

	if (rc == 0)
		rc = read_index(r, key, &n, &e);
	if (rc < 0)
		return rc;
	if (!reading_is_class(r, v, CLASS_STORAGE_INFO) ||
	    !ATTRIBUTES(r, v, names, a) ||
	    !pickle_natural(&r->p, a[1], &e.offset) ||
	    !pickle_natural(&r->p, a[2], &e.length) ||
	    e.length > INT64_MAX - e.offset)
		return reading_refuse(
			r, "where '%s' is stored is not understood", SHOWN(n));
	e.transformed = pickle_kind(a[3]) != PICKLE_NONE &&
			pickle_walk(&r->p, a[3]).count > 0;
	rc = read_file_name(r, a[0], &e.file);
	if (rc == 0)
		rc = entry_link(r, n, &e, r->d.entry_count);
	if (rc == 0)
		rc = GROW(r, r->d.entries, r->d.entry_count, r->entry_capacity);
	if (rc == 0)
		r->d.entries[r->d.entry_count++] = e;
	return rc;
}

/* --- All of it ------------------------------------------------------------ */

static int read_pairs(struct reading *r, pickle_value dict,
		      int (*one)(struct reading *r, pickle_value key,
				 pickle_value v))
{
	struct pickle_walk w = pickle_walk(&r->p, dict);
	pickle_value key, v;
	int rc = 0;

	while (rc == 0 && pickle_next(&w, &key) && pickle_next(&w, &v))
		rc = one(r, key, v);
	return rc;
}

/* Empty chunks at one place: torch stores one of them. */
static void share_entries(struct reading *r)
{
	for (uint32_t i = 0; i < r->d.chunk_count; i++) {
		struct dcp_chunk *c = &r->d.chunks[i];
		uint32_t first;

		if (c->entry != DCP_NONE)
			continue;
		first = reading_find_chunk(r, c->item, c->offsets,
					   r->d.items[c->item].dimensions);
		c->entry = r->d.chunks[first].entry;
	}
}

static int read_metadata(struct reading *r)
{
	static const char *const names[] = { "state_dict_metadata",
					     "storage_data" };
	pickle_value a[2];
	int rc;

	if (!reading_is_class(r, r->p.root, CLASS_METADATA) ||
	    !ATTRIBUTES(r, r->p.root, names, a))
		return reading_refuse(r, "a pickle, but of no Metadata");
	if (pickle_kind(a[0]) != PICKLE_DICT)
		return reading_refuse(r, "state_dict_metadata is no dict");
	if (pickle_kind(a[1]) != PICKLE_DICT &&
	    pickle_kind(a[1]) != PICKLE_NONE)
		return reading_refuse(r, "storage_data is no dict");
	rc = read_pairs(r, a[0], read_item);
	if (rc == 0)
		rc = read_pairs(r, a[1], read_entry);
	if (rc == 0)
		share_entries(r);
	return rc;
}

static void reading_release(struct reading *r)
{
	pickle_release(&r->p);
	dcp_release(&r->d);
	dcp_table_release(&r->item_names);
	dcp_table_release(&r->file_names);
	dcp_table_release(&r->places);
}

int dcp_read(const void *data, size_t len, size_t memory_bytes_max,
	     struct dcp *ret, struct dcp_error *ret_error)
{
	SCOPED(reading_release)
	struct reading r = { .error = ret_error,
			     .memory_left = memory_bytes_max };
	struct pickle_class classes[PICKLE_CLASSES_MAX];
	struct pickle_error error = { 0, "" };
	int rc;

	ret_error->what[0] = 0;
	rc = pickle_load(data, len, classes, reading_classes(classes),
			 memory_bytes_max, &r.p, &error);
	if (rc < 0 && error.what[0])
		(void)reading_refuse(&r, "offset %zu: %s", error.offset,
				     error.what);
	if (rc < 0)
		return rc;
	r.left = len < DCP_NONE ? (uint32_t)len : DCP_NONE - 1;
	dcp_table_init(&r.item_names);
	dcp_table_init(&r.file_names);
	dcp_table_init(&r.places);
	rc = read_metadata(&r);
	if (rc < 0)
		return rc;
	r.d.trailing_bytes = len - r.p.end;
	r.d.memory_bytes = memory_bytes_max - r.memory_left;
	*ret = r.d;
	memset(&r.d, 0, sizeof(r.d));
	return 0;
}

int dcp_read_source(const struct cut_source *file, uint64_t bytes_max,
		    size_t memory_bytes_max, struct dcp *ret,
		    struct dcp_error *ret_error)
{
	SCOPED(scope_free) uint8_t *data = NULL;
	size_t len = (size_t)file->size_bytes;
	size_t may = DCP_MEMORY_PER_BYTE * (size_t)bytes_max;
	int rc;

	ret_error->what[0] = 0;
	if (file->size_bytes > bytes_max) {
		(void)snprintf(ret_error->what, sizeof(ret_error->what),
			       "it has %llu bytes; at most %llu are read",
			       (unsigned long long)file->size_bytes,
			       (unsigned long long)bytes_max);
		return -EFBIG;
	}
	/* Its text, and as much for the pickle as for what comes of it. */
	if (len > memory_bytes_max) {
		(void)snprintf(ret_error->what, sizeof(ret_error->what),
			       "too large to be checked: %zu bytes of memory "
			       "are left for it",
			       memory_bytes_max);
		return -EFBIG;
	}
	if ((memory_bytes_max - len) / 2 < may)
		may = (memory_bytes_max - len) / 2;
	data = malloc(len + 1);
	if (!data)
		return -ENOMEM;
	rc = file->read(file->self, data, len, 0);
	return rc < 0 ? rc : dcp_read(data, len, may, ret, ret_error);
}

int dcp_read_file(int dirfd, const char *name, struct dcp *ret,
		  struct dcp_error *ret_error)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct cut_source file = { cut_read_fd, (void *)(intptr_t)fd, 0 };
	struct stat st;

	ret_error->what[0] = 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	file.size_bytes = (uint64_t)st.st_size;
	return dcp_read_source(&file, DCP_FILE_BYTES_MAX, SIZE_MAX, ret,
			       ret_error);
}

void dcp_release(struct dcp *d)
{
	free(d->items);
	free(d->chunks);
	free(d->entries);
	free(d->files);
	dcp_blocks_release(&d->blocks);
	memset(d, 0, sizeof(*d));
}

uint32_t dcp_file_rank(const char *name)
{
	const char *at = NULL;
	char rank[10];
	int end = 0;

	for (const char *p = strstr(name, "__"); p; p = strstr(p + 1, "__"))
		at = p;
	if (!at || sscanf(at, "__%9[0-9]_%*[0-9].distcp%n", rank, &end) != 1 ||
	    end == 0 || at[end] != 0)
		return DCP_NONE;
	return (uint32_t)strtoul(rank, NULL, 10);
}
