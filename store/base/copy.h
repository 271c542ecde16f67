/* copy.h - all bytes of one file to another, empty one. */
#ifndef STORE_BASE_COPY_H
#define STORE_BASE_COPY_H

#include <stdint.h>

/*
 * What `in` holds when the call begins; holes stay holes. Somebody may write to
 * it meanwhile: then the copy has some of that.
 */
int copy_file(int in, int out);

/*
 * Call fn for each range of the first `size` bytes of `in` that is no hole,
 * until it returns other than 0, which is returned.
 */
int copy_each_data(int in, uint64_t size,
		   int (*fn)(void *arg, uint64_t at, uint64_t end), void *arg);

#endif
