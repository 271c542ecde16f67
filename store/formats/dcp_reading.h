/*
 * dcp_reading.h - a .metadata while it is read: the result so far, what may
 * still be added to it, and how its names and places are found again; for
 * dcp*.c alone.
 *
 * Errors: 0, -ENOMEM, -EBADMSG or -EFBIG; of the last two r->error has what.
 */
#ifndef STORE_FORMATS_DCP_READING_H
#define STORE_FORMATS_DCP_READING_H

#include "store/base/text.h"
#include "store/formats/dcp.h"
#include "store/formats/dcp_names.h"
#include "store/formats/pickle.h"

#define NAME_SHOWN 120

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
	CLASS_DTYPE, /* and those that follow: dcp_dtype_of() */
};

/* All that are known; returns how many. */
size_t reading_classes(struct pickle_class ret[PICKLE_CLASSES_MAX]);

struct reading {
	struct pickle p;
	struct dcp d;
	struct dcp_error *error;
	size_t memory_left; /* for the result */
	uint32_t left; /* how many more things the pickle can have */
	size_t item_capacity, chunk_capacity, entry_capacity, file_capacity;
	/* Items and files by name; chunks by their offsets, and item. */
	struct dcp_table item_names, file_names, places;
};

/* What is wrong; returns -EBADMSG. */
#define reading_refuse(r, ...) \
	text_refuse((r)->error->what, sizeof((r)->error->what), __VA_ARGS__)
/* vec_grow(), as far as the memory goes. */
int reading_grow(struct reading *r, void *slot, size_t count, size_t *capacity,
		 size_t item_bytes);
#define GROW(r, array, count, capacity) \
	reading_grow(r, &(array), count, &(capacity), sizeof(*(array)))

/* Every thing of the result takes at least one byte of the pickle. */
int reading_spend(struct reading *r);
bool reading_is_class(const struct reading *r, pickle_value v, uint32_t id);
/*
 * The attributes of an object: ret[i] is that of names[i], or None when there
 * is none. False: it has no such state.
 */
bool reading_attributes(const struct reading *r, pickle_value object,
			const char *const *names, size_t count,
			pickle_value *ret);
#define ATTRIBUTES(r, object, names, ret)                                      \
	reading_attributes(r, object, names, sizeof(names) / sizeof(*(names)), \
			   ret)

/* A torch.Size, or a tuple or list: *ret_count numbers in dims. */
bool reading_numbers(const struct reading *r, pickle_value v,
		     uint64_t dims[DCP_DIMENSIONS_MAX], unsigned *ret_count);
int reading_keep_dims(struct reading *r, const uint64_t *dims, unsigned count,
		      const uint64_t **ret);
/* False: more elements than any tensor has. */
bool dims_volume(const uint64_t *dims, unsigned count, uint64_t *ret);

struct name {
	const char *text; /* in the pickle, not terminated */
	size_t len;
};

/* What can be shown of a name, in a message. */
#define SHOWN(n) name_shown(n, (char[NAME_SHOWN + 4]){ "" })
const char *name_shown(struct name n, char ret[NAME_SHOWN + 4]);
/* A text that may be a name; `whose` is for what is wrong with it. */
int name_take(struct reading *r, pickle_value v, const char *whose,
	      struct name *ret);
int name_keep(struct reading *r, struct name n, const char **ret);

/* The first chunk of this item at this place, or DCP_NONE. */
uint32_t reading_find_chunk(const struct reading *r, uint32_t item,
			    const uint64_t *offsets, unsigned dimensions);
/* The next one is. The offsets are the result's. */
int reading_add_chunk(struct reading *r, uint32_t item, const uint64_t *offsets,
		      unsigned dimensions);

#endif
