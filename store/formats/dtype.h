/*
 * dtype.h - one spelling of what a tensor is made of, torch's ("bfloat16"),
 * whatever its file calls it: so the same model in two formats is the same.
 */
#ifndef STORE_FORMATS_DTYPE_H
#define STORE_FORMATS_DTYPE_H

#include <stddef.h>

/* Of safetensors' word, "BF16"; that word itself where torch has none. */
const char *dtype_of_safetensors(const char *word);
/*
 * Of numpy's, "<f4"; that word itself where torch has none, as for "|S3" and
 * numbers of the other byte order. *ret_bytes: of one; 0: not known.
 */
const char *dtype_of_numpy(const char *word, size_t *ret_bytes);

/* Bits of one, by torch's word; 0: not known. */
unsigned dtype_bits(const char *torch_word);

#endif
