/* dcp_types.c - the classes of torch's and Megatron's that .metadata has. */
#include <string.h>

#include "store/base/check.h"
#include "store/formats/dcp_reading.h"

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

#define METADATA "torch.distributed.checkpoint.metadata"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"
#define PLANNER "torch.distributed.checkpoint.planner"
/* As torch 1.12 to 2.2 had them. */
#define METADATA_1 "torch.distributed._shard.checkpoint.metadata"
#define FILESYSTEM_1 "torch.distributed._shard.checkpoint.filesystem"
#define SHARDED_1 "torch.distributed._shard.sharded_tensor.metadata"
#define MEGATRON "megatron.core.dist_checkpointing.strategies.torch"

static const struct pickle_class known[] = {
	{ METADATA, "Metadata", PICKLE_OBJECT, CLASS_METADATA },
	{ METADATA, "TensorStorageMetadata", PICKLE_OBJECT, CLASS_TENSOR },
	{ METADATA, "BytesStorageMetadata", PICKLE_OBJECT, CLASS_BYTES },
	{ METADATA, "ChunkStorageMetadata", PICKLE_OBJECT, CLASS_CHUNK },
	{ METADATA, "TensorProperties", PICKLE_OBJECT, CLASS_PROPERTIES },
	{ METADATA, "MetadataIndex", PICKLE_OBJECT, CLASS_INDEX },
	{ METADATA, "StorageMeta", PICKLE_OBJECT, CLASS_OTHER },
	{ METADATA, "_MEM_FORMAT_ENCODING", PICKLE_ENUM, CLASS_OTHER },
	{ FILESYSTEM, "_StorageInfo", PICKLE_OBJECT, CLASS_STORAGE_INFO },
	{ FILESYSTEM, "_StoragePrefix", PICKLE_OBJECT, CLASS_OTHER },
	{ PLANNER, "SavePlan", PICKLE_OBJECT, CLASS_OTHER },
	{ PLANNER, "WriteItem", PICKLE_OBJECT, CLASS_OTHER },
	{ PLANNER, "WriteItemType", PICKLE_ENUM, CLASS_OTHER },
	{ PLANNER, "TensorWriteData", PICKLE_OBJECT, CLASS_OTHER },
	{ PLANNER, "BytesIOWriteData", PICKLE_OBJECT, CLASS_OTHER },

	{ METADATA_1, "Metadata", PICKLE_OBJECT, CLASS_METADATA },
	{ METADATA_1, "TensorStorageMetadata", PICKLE_OBJECT, CLASS_TENSOR },
	{ METADATA_1, "BytesStorageMetadata", PICKLE_OBJECT, CLASS_BYTES },
	{ METADATA_1, "ChunkStorageMetadata", PICKLE_OBJECT, CLASS_CHUNK },
	{ METADATA_1, "MetadataIndex", PICKLE_OBJECT, CLASS_INDEX },
	{ FILESYSTEM_1, "_StorageInfo", PICKLE_OBJECT, CLASS_STORAGE_INFO },
	{ SHARDED_1, "TensorProperties", PICKLE_OBJECT, CLASS_PROPERTIES },
	{ SHARDED_1, "MEM_FORMAT_ENCODING", PICKLE_ENUM, CLASS_OTHER },

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

const struct dcp_dtype *dcp_dtype_of(const struct pickle *p, pickle_value v,
				     uint32_t first_id)
{
	const struct pickle_class *c = pickle_class(p, v);

	if (!c || pickle_kind(v) != PICKLE_IS_CLASS || c->id < first_id)
		return NULL;
	CHECK(c->id - first_id < DTYPES);
	return &dtypes[c->id - first_id];
}

size_t dcp_dtype_classes(struct pickle_class *ret, uint32_t first_id)
{
	for (uint32_t i = 0; i < DTYPES; i++)
		ret[i] = (struct pickle_class){ "torch", dtypes[i].name,
						PICKLE_CONSTANT, first_id + i };
	return DTYPES;
}

size_t reading_classes(struct pickle_class ret[PICKLE_CLASSES_MAX])
{
	memcpy(ret, known, sizeof(known));
	return KNOWN + dcp_dtype_classes(ret + KNOWN, CLASS_DTYPE);
}
