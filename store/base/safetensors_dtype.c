/* safetensors_dtype.c - the table of dtypes. See safetensors_dtype.h. */
#include "store/base/safetensors_dtype.h"

#include <stddef.h>
#include <string.h>

static const struct {
	const char *name;
	unsigned bits;
} dtypes[] = {
	{ "BOOL", 8 },        { "F4", 4 },      { "F6_E2M3", 6 },
	{ "F6_E3M2", 6 },     { "U8", 8 },      { "I8", 8 },
	{ "F8_E5M2", 8 },     { "F8_E4M3", 8 }, { "F8_E8M0", 8 },
	{ "I16", 16 },        { "U16", 16 },    { "F16", 16 },
	{ "BF16", 16 },       { "I32", 32 },    { "U32", 32 },
	{ "F32", 32 },        { "C64", 64 },    { "F64", 64 },
	{ "I64", 64 },        { "U64", 64 },    { "F8_E4M3FNUZ", 8 },
	{ "F8_E5M2FNUZ", 8 },
};

static int dtype_index(const char *dtype)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		if (strcmp(dtypes[i].name, dtype) == 0)
			return (int)i;
	return -1;
}

unsigned safetensors_dtype_bits(const char *dtype)
{
	int i = dtype_index(dtype);

	return i < 0 ? 0 : dtypes[i].bits;
}

const char *safetensors_dtype_name(const char *dtype)
{
	int i = dtype_index(dtype);

	return i < 0 ? NULL : dtypes[i].name;
}
