/*
 * bench.h - what the timed programs have in common: their clock, numbers of
 * their command line, and how they end when something fails.
 */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/io.h"
#include "store/base/sync.h"

static inline uint64_t now_ns(void)
{
	return (uint64_t)mono_ns();
}

/* Exit code 1. The message ends with errno, where it is set. */
static inline void die(const char *format, ...)
	__attribute__((format(printf, 1, 2))) __attribute__((noreturn));
static inline void die(const char *format, ...)
{
	int saved = errno;
	va_list ap;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "%s%s\n", saved ? ": " : "",
		saved ? strerror(saved) : "");
	exit(1);
}

/* 0 <= text <= max, or exit code 2. */
static inline uint64_t number(const char *text, uint64_t max)
{
	unsigned long long v;
	char *end;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (end == text || *end || errno != 0 || *text == '-' || v > max) {
		fprintf(stderr, "%s: bad number '%s'\n",
			program_invocation_short_name, text);
		exit(2);
	}
	return v;
}

/* No two words of it are the same. */
static inline void fill_random(uint8_t *p, size_t len)
{
	uint64_t x = UINT64_C(0x9e3779b97f4a7c15);

	for (size_t i = 0; i + sizeof(x) <= len; i += sizeof(x)) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(p + i, &x, sizeof(x));
	}
}

/* Touched, so that no page of it is met for the first time under the clock. */
static inline uint8_t *block_new(size_t alignment, size_t len)
{
	void *p;

	errno = posix_memalign(&p, alignment, len);
	if (errno != 0)
		die("%zu bytes of memory", len);
	fill_random(p, len);
	return p;
}

#endif
