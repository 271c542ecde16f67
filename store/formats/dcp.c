/*
 * dcp.c - see dcp.h. The pickle is a graph that may have cycles and may use
 * one thing many times, so the way through it has a fixed depth, whatever it
 * holds, and what it yields is bounded by the pickle's length.
 */
#include "store/formats/dcp.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/formats/dcp_names.h"
#include "store/formats/pickle.h"

/* Attributes of one object; no class here has more than eight. */
#define ATTRIBUTES_MAX ((size_t)16)
#define NAME_SHOWN 120
/* No tensor has more elements. */
#define ELEMENTS_MAX (UINT64_C(1) << 56)

/* --- The classes -----------------------------------------------------------
 */

enum class_id {
	CLASS_OTHER, /* may be there, and is passed over */
	CLASS_METADATA,
	CLASS_TENSOR,
	CLASS_BYTES,
	CLASS_CHUNK,
	CLASS_PROPERTIES,
	CLASS_INDEX,
	CLASS_SIZE,
	CLASS_STORAGE_INFO,
	CLASS_DTYPE, /* and those that follow: of dtypes[id - CLASS_DTYPE] */
};

static const struct dcp_dtype dtypes[] = {
	{ "float64", 64 },       { "float32", 32 },
	{ "float16", 16 },       { "bfloat16", 16 },
	{ "float8_e4m3fn", 8 },  { "float8_e4m3fnuz", 8 },
	{ "float8_e5m2", 8 },    { "float8_e5m2fnuz", 8 },
	{ "float8_e8m0fnu", 8 }, { "float4_e2m1fn_x2", 8 },
	{ "complex32", 32 },     { "complex64", 64 },
	{ "complex128", 128 },   { "bool", 8 },
	{ "int8", 8 },           { "int16", 16 },
	{ "int32", 32 },         { "int64", 64 },
	{ "uint8", 8 },          { "uint16", 16 },
	{ "uint32", 32 },        { "uint64", 64 },
	{ "qint8", 8 },          { "quint8", 8 },
	{ "qint32", 32 },        { "quint4x2", 0 },
	{ "quint2x4", 0 },       { "bits1x8", 0 },
	{ "bits2x4", 0 },        { "bits4x2", 0 },
	{ "bits8", 8 },          { "bits16", 16 },
	{ "int1", 0 },           { "int2", 0 },
	{ "int3", 0 },           { "int4", 0 },
	{ "int5", 0 },           { "int6", 0 },
	{ "int7", 0 },           { "uint1", 0 },
	{ "uint2", 0 },          { "uint3", 0 },
	{ "uint4", 0 },          { "uint5", 0 },
	{ "uint6", 0 },          { "uint7", 0 },
};
#define DTYPES (sizeof(dtypes) / sizeof(*dtypes))

#define CHECKPOINT "torch.distributed.checkpoint."
#define BEFORE_2 "torch.distributed._shard.checkpoint."
#define SHARDED "torch.distributed._shard.sharded_tensor.metadata"
#define MEGATRON "megatron.core.dist_checkpointing.strategies.torch"

static const struct pickle_class known[] = {
	{ CHECKPOINT "metadata", "Metadata", PICKLE_OBJECT, CLASS_METADATA },
	{ CHECKPOINT "metadata", "TensorStorageMetadata", PICKLE_OBJECT,
	  CLASS_TENSOR },
	{ CHECKPOINT "metadata", "BytesStorageMetadata", PICKLE_OBJECT,
	  CLASS_BYTES },
	{ CHECKPOINT "metadata", "ChunkStorageMetadata", PICKLE_OBJECT,
	  CLASS_CHUNK },
	{ CHECKPOINT "metadata", "TensorProperties", PICKLE_OBJECT,
	  CLASS_PROPERTIES },
	{ CHECKPOINT "metadata", "MetadataIndex", PICKLE_OBJECT, CLASS_INDEX },
	{ CHECKPOINT "metadata", "StorageMeta", PICKLE_OBJECT, CLASS_OTHER },
	{ CHECKPOINT "metadata", "_MEM_FORMAT_ENCODING", PICKLE_ENUM,
	  CLASS_OTHER },
	{ CHECKPOINT "filesystem", "_StorageInfo", PICKLE_OBJECT,
	  CLASS_STORAGE_INFO },
	{ CHECKPOINT "filesystem", "_StoragePrefix", PICKLE_OBJECT,
	  CLASS_OTHER },
	{ CHECKPOINT "planner", "SavePlan", PICKLE_OBJECT, CLASS_OTHER },
	{ CHECKPOINT "planner", "WriteItem", PICKLE_OBJECT, CLASS_OTHER },
	{ CHECKPOINT "planner", "WriteItemType", PICKLE_ENUM, CLASS_OTHER },
	{ CHECKPOINT "planner", "TensorWriteData", PICKLE_OBJECT, CLASS_OTHER },
	{ CHECKPOINT "planner", "BytesIOWriteData", PICKLE_OBJECT,
	  CLASS_OTHER },

	/* As torch 1.12 to 2.2 had it. */
	{ BEFORE_2 "metadata", "Metadata", PICKLE_OBJECT, CLASS_METADATA },
	{ BEFORE_2 "metadata", "TensorStorageMetadata", PICKLE_OBJECT,
	  CLASS_TENSOR },
	{ BEFORE_2 "metadata", "BytesStorageMetadata", PICKLE_OBJECT,
	  CLASS_BYTES },
	{ BEFORE_2 "metadata", "ChunkStorageMetadata", PICKLE_OBJECT,
	  CLASS_CHUNK },
	{ BEFORE_2 "metadata", "MetadataIndex", PICKLE_OBJECT, CLASS_INDEX },
	{ BEFORE_2 "filesystem", "_StorageInfo", PICKLE_OBJECT,
	  CLASS_STORAGE_INFO },
	{ SHARDED, "TensorProperties", PICKLE_OBJECT, CLASS_PROPERTIES },
	{ SHARDED, "MEM_FORMAT_ENCODING", PICKLE_ENUM, CLASS_OTHER },

	{ MEGATRON, "MCoreMetadata", PICKLE_OBJECT, CLASS_METADATA },
	{ MEGATRON, "MCoreSavePlan", PICKLE_OBJECT, CLASS_OTHER },

	{ "torch", "Size", PICKLE_CALL, CLASS_SIZE },
	{ "torch.serialization", "_get_layout", PICKLE_CALL, CLASS_OTHER },
	{ "builtins", "getattr", PICKLE_GETATTR, CLASS_OTHER },
	{ "__builtin__", "getattr", PICKLE_GETATTR, CLASS_OTHER },
	/* What a step is called, as of torch 2.3. */
	{ "pathlib", "PosixPath", PICKLE_CALL, CLASS_OTHER },
	{ "pathlib", "PurePosixPath", PICKLE_CALL, CLASS_OTHER },
	{ "pathlib", "WindowsPath", PICKLE_CALL, CLASS_OTHER },
	{ "pathlib", "PureWindowsPath", PICKLE_CALL, CLASS_OTHER },
	{ "pathlib._local", "PosixPath", PICKLE_CALL, CLASS_OTHER },
	{ "pathlib._local", "PurePosixPath", PICKLE_CALL, CLASS_OTHER },
};
#define KNOWN (sizeof(known) / sizeof(*known))
_Static_assert(KNOWN + DTYPES <= PICKLE_CLASSES_MAX, "one table of both");

const struct dcp_dtype *dcp_dtype_at(size_t index)
{
	return index < DTYPES ? &dtypes[index] : NULL;
}

/* ret has room for KNOWN + DTYPES. */
static void classes_fill(struct pickle_class *ret)
{
	memcpy(ret, known, sizeof(known));
	for (size_t i = 0; i < DTYPES; i++)
		ret[KNOWN + i] =
			(struct pickle_class){ "torch", dtypes[i].name,
					       PICKLE_CONSTANT,
					       (uint32_t)(CLASS_DTYPE + i) };
}

/* --- What is wrong ---------------------------------------------------------
 */

struct reading {
	struct pickle p;
	struct dcp d;
	struct dcp_error *error;
	size_t memory_left; /* for the result */
	uint32_t left; /* how many more things the pickle can have */
	uint32_t item_capacity, chunk_capacity, entry_capacity, file_capacity;
	struct dcp_table item_names, file_names, places; /* of chunks */
};

static int refuse(struct reading *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static int refuse(struct reading *r, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(r->error->what, sizeof(r->error->what), format, ap);
	va_end(ap);
	return -EBADMSG;
}

static int too_large(struct reading *r)
{
	(void)refuse(r, "takes more memory than the limit allows");
	return -EFBIG;
}

/* --- Memory ----------------------------------------------------------------
 */

static int keep(struct reading *r, size_t bytes, void *ret_slot)
{
	void *p;

	if (bytes > r->memory_left)
		return too_large(r);
	r->memory_left -= bytes;
	p = dcp_alloc(&r->d.blocks, bytes);
	if (!p)
		return -ENOMEM;
	memcpy(ret_slot, &p, sizeof(p));
	return 0;
}

/* Room for one more in an array; slot is the array's pointer. */
static int array_grow(struct reading *r, void *slot, uint32_t count,
		      uint32_t *capacity, size_t size)
{
	uint32_t want = *capacity ? *capacity + *capacity / 2 : 64;
	void *array;

	if (count < *capacity)
		return 0;
	if (want < *capacity || (want - *capacity) * size > r->memory_left)
		return too_large(r);
	memcpy(&array, slot, sizeof(array));
	array = reallocarray(array, want, size);
	if (!array)
		return -ENOMEM;
	r->memory_left -= (want - *capacity) * size;
	memcpy(slot, &array, sizeof(array));
	*capacity = want;
	return 0;
}

#define GROW(r, array, count, capacity) \
	array_grow(r, &(array), count, &(capacity), sizeof(*(array)))

/* Every thing of the result takes at least one byte of the pickle. */
static int spend(struct reading *r)
{
	if (r->left == 0)
		return refuse(r, "has more in it than its length allows: the "
				 "same things again and again");
	r->left--;
	return 0;
}

/* --- Values ----------------------------------------------------------------
 */

static bool is_class(const struct reading *r, pickle_value v, uint32_t id)
{
	const struct pickle_class *c = pickle_class(&r->p, v);

	return c && c->id == id && pickle_kind(v) != PICKLE_IS_CLASS;
}

static bool is_attribute(const struct reading *r, pickle_value key,
			 const char *name)
{
	size_t len = 0;
	const char *text = pickle_text(&r->p, key, &len);

	return text && len == strlen(name) && memcmp(text, name, len) == 0;
}

/*
 * The attributes of an object: ret[i] is that of names[i], or None when there
 * is none. False: it has no such state.
 */
static bool attributes(const struct reading *r, pickle_value object,
		       const char *const *names, size_t count,
		       pickle_value *ret)
{
	pickle_value state = pickle_state(&r->p, object), key, v;
	struct pickle_walk w = pickle_walk(&r->p, state);

	for (size_t i = 0; i < count; i++)
		ret[i] = 0; /* None */
	if (pickle_kind(state) != PICKLE_DICT || w.count > 2 * ATTRIBUTES_MAX)
		return false;
	while (pickle_next(&w, &key) && pickle_next(&w, &v))
		for (size_t i = 0; i < count; i++)
			if (is_attribute(r, key, names[i]))
				ret[i] = v;
	return true;
}

#define ATTRIBUTES(r, object, names, ret) \
	attributes(r, object, names, sizeof(names) / sizeof(*(names)), ret)

static bool natural(const struct reading *r, pickle_value v, uint64_t *ret)
{
	int64_t i = 0;

	if (!pickle_int(&r->p, v, &i) || i < 0)
		return false;
	*ret = (uint64_t)i;
	return true;
}

/* A torch.Size, or a tuple or list: *ret_count numbers in dims. */
static bool numbers(const struct reading *r, pickle_value v,
		    uint64_t dims[DCP_DIMENSIONS_MAX], unsigned *ret_count)
{
	struct pickle_walk w;
	pickle_value one;
	unsigned count = 0;

	if (is_class(r, v, CLASS_SIZE)) {
		w = pickle_walk(&r->p, pickle_arguments(&r->p, v));
		if (w.count != 1 || !pickle_next(&w, &v))
			return false;
	}
	if (pickle_kind(v) != PICKLE_TUPLE && pickle_kind(v) != PICKLE_LIST)
		return false;
	w = pickle_walk(&r->p, v);
	if (w.count > DCP_DIMENSIONS_MAX)
		return false;
	while (pickle_next(&w, &one))
		if (!natural(r, one, &dims[count++]))
			return false;
	*ret_count = count;
	return true;
}

static int dims_keep(struct reading *r, const uint64_t *dims, unsigned count,
		     const uint64_t **ret)
{
	uint64_t *kept;
	int rc = keep(r, (count + 1) * sizeof(*dims), &kept);

	if (rc < 0)
		return rc;
	memcpy(kept, dims, count * sizeof(*dims));
	*ret = kept;
	return 0;
}

/* False: more than ELEMENTS_MAX. */
static bool volume(const uint64_t *dims, unsigned count, uint64_t *ret)
{
	uint64_t v = 1;

	*ret = 0;
	for (unsigned i = 0; i < count; i++)
		if (dims[i] == 0)
			return true;
	for (unsigned i = 0; i < count; i++)
		if (__builtin_mul_overflow(v, dims[i], &v) || v > ELEMENTS_MAX)
			return false;
	*ret = v;
	return true;
}

/* --- Names -----------------------------------------------------------------
 */

struct name {
	const char *text; /* in the pickle, not terminated */
	size_t len;
};

/* For a message: what can be shown of it. */
struct shown {
	char text[NAME_SHOWN + 4];
};

static const char *shown(struct name n, struct shown *ret)
{
	size_t len = n.len < NAME_SHOWN ? n.len : NAME_SHOWN;

	while (len < n.len && len > 0 && (n.text[len] & 0xc0) == 0x80)
		len--; /* not in the middle of a character */
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)n.text[i];

		ret->text[i] = c < ' ' || c == 0x7f ? '?' : (char)c;
	}
	(void)strcpy(ret->text + len, len < n.len ? "..." : "");
	return ret->text;
}

static int name_take(struct reading *r, pickle_value v, const char *whose,
		     struct name *ret)
{
	ret->text = pickle_text(&r->p, v, &ret->len);
	if (!ret->text || pickle_kind(v) != PICKLE_TEXT)
		return refuse(r, "%s is no text", whose);
	if (ret->len > DCP_NAME_BYTES_MAX)
		return refuse(r, "%s has %zu bytes; at most %u are read", whose,
			      ret->len, DCP_NAME_BYTES_MAX);
	if (!utf8_is(ret->text, ret->len))
		return refuse(r, "%s is not UTF-8", whose);
	if (memchr(ret->text, 0, ret->len))
		return refuse(r, "%s has a NUL in it", whose);
	return 0;
}

static int name_keep(struct reading *r, struct name n, const char **ret)
{
	char *kept;
	int rc = keep(r, n.len + 1, &kept);

	if (rc < 0)
		return rc;
	memcpy(kept, n.text, n.len);
	kept[n.len] = 0;
	*ret = kept;
	return 0;
}

static bool is_name(const char *kept, const struct name *n)
{
	return strncmp(kept, n->text, n->len) == 0 && kept[n->len] == 0;
}

static int same_item(const void *self, uint32_t number, const void *key)
{
	const struct reading *r = self;

	return is_name(r->d.items[number].name, key);
}

static int same_file(const void *self, uint32_t number, const void *key)
{
	const struct reading *r = self;

	return is_name(r->d.files[number].name, key);
}

static uint32_t item_find(const struct reading *r, struct name n)
{
	const struct dcp_table *t = &r->item_names;

	return dcp_table_find(t, dcp_table_hash(t, n.text, n.len, 0), same_item,
			      r, &n);
}

/* --- Chunks, by their place ------------------------------------------------
 */

struct place {
	uint32_t item;
	const uint64_t *offsets;
	unsigned dimensions;
};

static int same_place(const void *self, uint32_t number, const void *key)
{
	const struct reading *r = self;
	const struct dcp_chunk *c = &r->d.chunks[number];
	const struct place *p = key;

	return c->item == p->item &&
	       r->d.items[p->item].dimensions == p->dimensions &&
	       memcmp(c->offsets, p->offsets,
		      p->dimensions * sizeof(*p->offsets)) == 0;
}

static uint32_t place_hash(const struct reading *r, const struct place *p)
{
	return dcp_table_hash(&r->places, p->offsets,
			      p->dimensions * sizeof(*p->offsets), p->item);
}

static uint32_t chunk_find(const struct reading *r, const struct place *p)
{
	return dcp_table_find(&r->places, place_hash(r, p), same_place, r, p);
}

/* --- state_dict_metadata ---------------------------------------------------
 */

static int read_chunk(struct reading *r, pickle_value v, uint32_t number)
{
	static const char *const names[] = { "offsets", "sizes" };
	const struct dcp_item *item = &r->d.items[number];
	struct dcp_chunk c = { .item = number, .entry = DCP_NONE };
	uint64_t offsets[DCP_DIMENSIONS_MAX], sizes[DCP_DIMENSIONS_MAX];
	unsigned offset_count, size_count;
	struct place place = { number, offsets, item->dimensions };
	pickle_value a[2];
	int rc;

	if (!is_class(r, v, CLASS_CHUNK) || !ATTRIBUTES(r, v, names, a) ||
	    !numbers(r, a[0], offsets, &offset_count) ||
	    !numbers(r, a[1], sizes, &size_count))
		return refuse(r,
			      "tensor '%.120s': a chunk that is not "
			      "understood",
			      item->name);
	if (offset_count != item->dimensions || size_count != item->dimensions)
		return refuse(r,
			      "tensor '%.120s' has %u dimensions, and a "
			      "chunk of it offsets of %u and sizes of %u",
			      item->name, item->dimensions, offset_count,
			      size_count);
	if (!volume(sizes, size_count, &c.elements))
		return refuse(r,
			      "tensor '%.120s': a chunk of more than 2^56 "
			      "elements",
			      item->name);
	rc = spend(r);
	if (rc == 0)
		rc = dims_keep(r, offsets, offset_count, &c.offsets);
	if (rc == 0)
		rc = dims_keep(r, sizes, size_count, &c.sizes);
	if (rc == 0)
		rc = GROW(r, r->d.chunks, r->d.chunk_count, r->chunk_capacity);
	if (rc < 0)
		return rc;
	r->d.chunks[r->d.chunk_count] = c;
	if (chunk_find(r, &place) == DCP_NONE)
		rc = dcp_table_add(&r->places, place_hash(r, &place),
				   r->d.chunk_count);
	r->d.chunk_count++;
	r->d.items[number].chunk_count++;
	return rc;
}

static int read_dtype(struct reading *r, pickle_value properties,
		      struct dcp_item *item)
{
	static const char *const names[] = { "dtype" };
	pickle_value dtype = 0, state;
	const struct pickle_class *c;

	/* A tuple that starts with it, or by name. */
	state = pickle_state(&r->p, properties);
	if (pickle_kind(state) == PICKLE_TUPLE) {
		struct pickle_walk w = pickle_walk(&r->p, state);

		(void)pickle_next(&w, &dtype);
	} else {
		(void)ATTRIBUTES(r, properties, names, &dtype);
	}
	c = pickle_class(&r->p, dtype);
	if (!is_class(r, properties, CLASS_PROPERTIES) || !c ||
	    pickle_kind(dtype) != PICKLE_IS_CLASS || c->id < CLASS_DTYPE)
		return refuse(r, "tensor '%.120s': its dtype is not understood",
			      item->name);
	item->dtype = &dtypes[c->id - CLASS_DTYPE];
	return 0;
}

static int read_tensor(struct reading *r, pickle_value v, uint32_t number)
{
	static const char *const names[] = { "properties", "size", "chunks" };
	struct dcp_item *item = &r->d.items[number];
	uint64_t shape[DCP_DIMENSIONS_MAX], elements;
	struct pickle_walk w;
	pickle_value a[3], chunk;
	int rc;

	if (!ATTRIBUTES(r, v, names, a))
		return refuse(r, "tensor '%.120s' has no properties",
			      item->name);
	rc = read_dtype(r, a[0], item);
	if (rc < 0)
		return rc;
	if (!numbers(r, a[1], shape, &item->dimensions))
		return refuse(r, "tensor '%.120s': its size is not understood",
			      item->name);
	if (!volume(shape, item->dimensions, &elements))
		return refuse(r, "tensor '%.120s' has more than 2^56 elements",
			      item->name);
	rc = dims_keep(r, shape, item->dimensions, &item->shape);
	if (rc < 0)
		return rc;
	if (pickle_kind(a[2]) != PICKLE_LIST)
		return refuse(r, "tensor '%.120s': its chunks are no list",
			      item->name);
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
	struct shown s;
	struct name n;
	int rc = name_take(r, key, "the name of an item", &n);

	if (rc == 0)
		rc = spend(r);
	if (rc < 0)
		return rc;
	if (item_find(r, n) != DCP_NONE)
		return refuse(r, "'%s' is there twice", shown(n, &s));
	rc = name_keep(r, n, &item.name);
	if (rc == 0)
		rc = GROW(r, r->d.items, number, r->item_capacity);
	if (rc == 0)
		rc = dcp_table_add(
			&r->item_names,
			dcp_table_hash(&r->item_names, n.text, n.len, 0),
			number);
	if (rc < 0)
		return rc;
	r->d.items[r->d.item_count++] = item;
	if (is_class(r, v, CLASS_TENSOR))
		return read_tensor(r, v, number);
	if (!is_class(r, v, CLASS_BYTES))
		return refuse(r, "'%s' is neither a tensor nor bytes",
			      shown(n, &s));
	return 0;
}

/* --- storage_data ----------------------------------------------------------
 */

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
	struct dcp_table *t = &r->file_names;
	struct dcp_file file;
	struct shown s;
	struct name n;
	uint32_t hash;
	int rc = name_take(r, v, "the name of a file", &n);

	if (rc < 0)
		return rc;
	hash = dcp_table_hash(t, n.text, n.len, 0);
	*ret_file = dcp_table_find(t, hash, same_file, r, &n);
	if (*ret_file != DCP_NONE)
		return 0;
	if (!is_relative(n))
		return refuse(r,
			      "'%s' is no name of a file in the "
			      "checkpoint's folder",
			      shown(n, &s));
	rc = name_keep(r, n, &file.name);
	if (rc == 0)
		rc = GROW(r, r->d.files, r->d.file_count, r->file_capacity);
	if (rc == 0)
		rc = dcp_table_add(t, hash, r->d.file_count);
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
	struct place place = { 0, e->offsets, e->dimensions };
	uint32_t *owner;
	struct shown s;

	e->item = item_find(r, n);
	e->chunk = DCP_NONE;
	if (e->item == DCP_NONE)
		return name_keep(r, n, &e->name);
	e->name = r->d.items[e->item].name;
	owner = &r->d.items[e->item].entry;
	if (r->d.items[e->item].dtype) {
		place.item = e->item;
		if (e->offsets)
			e->chunk = chunk_find(r, &place);
		if (e->chunk == DCP_NONE)
			return 0;
		owner = &r->d.chunks[e->chunk].entry;
	}
	if (*owner != DCP_NONE)
		return refuse(r, "'%s' is stored at two places", shown(n, &s));
	*owner = number;
	return 0;
}

static int read_index(struct reading *r, pickle_value key, struct name *ret,
		      struct dcp_entry *e)
{
	static const char *const names[] = { "fqn", "offset" };
	uint64_t offsets[DCP_DIMENSIONS_MAX];
	struct shown s;
	pickle_value a[2];
	int rc;

	if (!is_class(r, key, CLASS_INDEX) || !ATTRIBUTES(r, key, names, a))
		return refuse(r, "storage_data has a key that is no "
				 "MetadataIndex");
	rc = name_take(r, a[0], "the name of an item that is stored", ret);
	if (rc < 0 || pickle_kind(a[1]) == PICKLE_NONE)
		return rc;
	if (!numbers(r, a[1], offsets, &e->dimensions))
		return refuse(r,
			      "'%s' is stored at an offset that is not "
			      "understood",
			      shown(*ret, &s));
	return dims_keep(r, offsets, e->dimensions, &e->offsets);
}

static int read_entry(struct reading *r, pickle_value key, pickle_value v)
{
	static const char *const names[] = { "relative_path", "offset",
					     "length",
					     "transform_descriptors" };
	struct dcp_entry e = { 0 };
	struct shown s;
	pickle_value a[4];
	struct name n;
	int rc = spend(r);

	if (rc == 0)
		rc = read_index(r, key, &n, &e);
	if (rc < 0)
		return rc;
	if (!is_class(r, v, CLASS_STORAGE_INFO) ||
	    !ATTRIBUTES(r, v, names, a) || !natural(r, a[1], &e.offset) ||
	    !natural(r, a[2], &e.length) || e.length > INT64_MAX - e.offset)
		return refuse(r, "where '%s' is stored is not understood",
			      shown(n, &s));
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

/* --- All of it -------------------------------------------------------------
 */

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
		struct place place = { c->item, c->offsets,
				       r->d.items[c->item].dimensions };

		if (c->entry == DCP_NONE)
			c->entry = r->d.chunks[chunk_find(r, &place)].entry;
	}
}

static int read_metadata(struct reading *r)
{
	static const char *const names[] = { "state_dict_metadata",
					     "storage_data" };
	pickle_value a[2];
	int rc;

	if (!is_class(r, r->p.root, CLASS_METADATA) ||
	    !ATTRIBUTES(r, r->p.root, names, a))
		return refuse(r, "a pickle, but of no Metadata");
	if (pickle_kind(a[0]) != PICKLE_DICT)
		return refuse(r, "state_dict_metadata is no dict");
	if (pickle_kind(a[1]) != PICKLE_DICT &&
	    pickle_kind(a[1]) != PICKLE_NONE)
		return refuse(r, "storage_data is no dict");
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
	struct pickle_class classes[KNOWN + DTYPES];
	struct pickle_error error = { 0, "" };
	int rc;

	ret_error->what[0] = 0;
	classes_fill(classes);
	rc = pickle_load(data, len, classes, KNOWN + DTYPES, memory_bytes_max,
			 &r.p, &error);
	if (rc == -EBADMSG || rc == -EFBIG)
		(void)refuse(&r, "offset %zu: %s", error.offset, error.what);
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
	*ret = r.d;
	memset(&r.d, 0, sizeof(r.d));
	return 0;
}

int dcp_read_file(int dirfd, const char *name, struct dcp *ret,
		  struct dcp_error *ret_error)
{
	SCOPED(scope_free) uint8_t *data = NULL;
	SCOPED(scope_close)
	int fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	size_t len = 0;
	ssize_t n = 1;

	ret_error->what[0] = 0;
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	if ((uint64_t)st.st_size > DCP_FILE_BYTES_MAX) {
		(void)snprintf(ret_error->what, sizeof(ret_error->what),
			       "it has %llu bytes; at most %llu are read",
			       (unsigned long long)st.st_size,
			       (unsigned long long)DCP_FILE_BYTES_MAX);
		return -EFBIG;
	}
	data = malloc((size_t)st.st_size + 1);
	if (!data)
		return -ENOMEM;
	while (len < (size_t)st.st_size && n > 0) {
		n = read(fd, data + len, (size_t)st.st_size - len);
		if (n < 0)
			return -errno;
		len += (size_t)n;
	}
	return dcp_read(data, len, DCP_MEMORY_BYTES_MAX, ret, ret_error);
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

/* Step back over digits; how many there were. */
static size_t digits_before(const char *name, size_t *at)
{
	size_t count = 0;

	while (*at > 0 && name[*at - 1] >= '0' && name[*at - 1] <= '9') {
		(*at)--;
		count++;
	}
	return count;
}

uint32_t dcp_file_rank(const char *name)
{
	static const char suffix[] = ".distcp";
	size_t len = strlen(name), at, count;
	uint32_t rank = 0;

	if (len < sizeof(suffix) - 1)
		return DCP_NONE;
	at = len - (sizeof(suffix) - 1);
	if (strcmp(name + at, suffix) != 0 || digits_before(name, &at) == 0)
		return DCP_NONE;
	if (at == 0 || name[--at] != '_')
		return DCP_NONE;
	count = digits_before(name, &at);
	if (count == 0 || count > 9 || at < 2 || name[at - 1] != '_' ||
	    name[at - 2] != '_')
		return DCP_NONE;
	for (size_t i = 0; i < count; i++)
		rank = rank * 10 + (uint32_t)(name[at + i] - '0');
	return rank;
}
