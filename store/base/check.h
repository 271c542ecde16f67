/* check.h - a broken invariant ends the process. */
#ifndef STORE_BASE_CHECK_H
#define STORE_BASE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

/*
 * Say which one, then stop. Unlike assert() it stays on in release builds,
 * where CMake's default flags define NDEBUG.
 */
#define CHECK(cond)                                                      \
	do {                                                             \
		if (__builtin_expect(!(cond), 0)) {                      \
			fprintf(stderr, "%s:%d: broken invariant: %s\n", \
				__FILE__, __LINE__, #cond);              \
			abort();                                         \
		}                                                        \
	} while (0)

#endif
