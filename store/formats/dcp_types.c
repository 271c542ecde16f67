/* dcp_types.c - the classes of torch's and Megatron's that .metadata has. */
#include "store/formats/dcp_types.h"

#include <stddef.h>
#include <string.h>

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
size_t dcp_fill_classes(struct pickle_class ret[PICKLE_CLASSES_MAX])
{
	memcpy(ret, known, sizeof(known));
	for (size_t i = 0; i < DTYPES; i++)
		ret[KNOWN + i] =
			(struct pickle_class){ "torch", dtypes[i].name,
					       PICKLE_CONSTANT,
					       (uint32_t)(CLASS_DTYPE + i) };
	return KNOWN + DTYPES;
}
