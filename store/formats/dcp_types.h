/* dcp_types.h - what a class in .metadata means; for dcp*.c alone. */
#ifndef STORE_FORMATS_DCP_TYPES_H
#define STORE_FORMATS_DCP_TYPES_H

#include "store/formats/dcp.h"
#include "store/formats/pickle.h"

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

/* All that are known; returns how many. */
size_t dcp_fill_classes(struct pickle_class ret[PICKLE_CLASSES_MAX]);

#endif
