/*
 * fuzz.h - what a harness and its drivers share.
 *
 * A harness is one file, fuzz_<parser>.c. It feeds whatever bytes it is given
 * to one parser and stops the program when a promise of that parser does not
 * hold. Two drivers run it: libFuzzer, and replay.c, which needs nothing but
 * a compiler. Inputs that are worth keeping lie in corpus/<parser>/, named
 * after what they are or what they found.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

/* Inputs are not longer; a harness may ignore those that are. */
#define FUZZ_INPUT_BYTES_MAX 65536

/* libFuzzer's name for it. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#endif
