/* safetensors_dtype.h - the dtypes of safetensors/src/tensor.rs: "BF16". */
#ifndef STORE_BASE_SAFETENSORS_DTYPE_H
#define STORE_BASE_SAFETENSORS_DTYPE_H

/*
 * Bits of one element ("BF16": 16), 0: there is no such dtype. Elements of
 * less than 8 bits are packed.
 */
unsigned safetensors_dtype_bits(const char *dtype);
/* The same text, static. NULL: there is no such dtype. */
const char *safetensors_dtype_name(const char *dtype);

#endif
