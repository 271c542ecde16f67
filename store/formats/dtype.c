/*
 * dtype.c - see dtype.h. The words of safetensors are those of its tensor.rs,
 * numpy's those of its array interface: byte order, kind, bytes of one.
 */
#include "store/formats/dtype.h"

#include <string.h>

#define DIGITS_MAX 6

static const struct {
	const char *torch;
	unsigned bits;
	const char *safetensors, *numpy;
} words[] = {
	{ "bool", 8, "BOOL", "b1" },
	{ "int8", 8, "I8", "i1" },
	{ "int16", 16, "I16", "i2" },
	{ "int32", 32, "I32", "i4" },
	{ "int64", 64, "I64", "i8" },
	{ "uint8", 8, "U8", "u1" },
	{ "uint16", 16, "U16", "u2" },
	{ "uint32", 32, "U32", "u4" },
	{ "uint64", 64, "U64", "u8" },
	{ "float16", 16, "F16", "f2" },
	{ "float32", 32, "F32", "f4" },
	{ "float64", 64, "F64", "f8" },
	{ "complex64", 64, "C64", "c8" },
	{ "complex128", 128, "", "c16" },
	{ "bfloat16", 16, "BF16", "" },
	{ "float8_e4m3fn", 8, "F8_E4M3", "" },
	{ "float8_e5m2", 8, "F8_E5M2", "" },
	{ "float8_e4m3fnuz", 8, "F8_E4M3FNUZ", "" },
	{ "float8_e5m2fnuz", 8, "F8_E5M2FNUZ", "" },
	{ "float8_e8m0fnu", 8, "F8_E8M0", "" },
};
#define WORDS (sizeof(words) / sizeof(*words))

const char *dtype_of_safetensors(const char *word)
{
	for (size_t i = 0; i < WORDS; i++)
		if (*word && strcmp(words[i].safetensors, word) == 0)
			return words[i].torch;
	return word;
}

/* The number at the end of numpy's word; 0: there is none that counts. */
static size_t number_of(const char *digits)
{
	size_t n = 0;

	if (strlen(digits) > DIGITS_MAX)
		return 0;
	for (; *digits; digits++) {
		if (*digits < '0' || *digits > '9')
			return 0;
		n = n * 10 + (size_t)(*digits - '0');
	}
	return n;
}

const char *dtype_of_numpy(const char *word, size_t *ret_bytes)
{
	*ret_bytes = 0;
	if (strlen(word) < 3 || !strchr("<>|=", word[0]))
		return word;
	if (word[1] != 'O') /* pickled objects are no array of bytes */
		*ret_bytes = number_of(word + 2) * (word[1] == 'U' ? 4 : 1);
	if (word[0] == '>' && *ret_bytes > 1)
		return word;
	for (size_t i = 0; i < WORDS; i++)
		if (strcmp(words[i].numpy, word + 1) == 0)
			return words[i].torch;
	return word;
}

unsigned dtype_bits(const char *torch_word)
{
	for (size_t i = 0; i < WORDS; i++)
		if (strcmp(words[i].torch, torch_word) == 0)
			return words[i].bits;
	return 0;
}
