/*
 * bulk.h - memcpy(3) for more bytes than the processor's caches keep: a line
 * that is written whole need not be read first, and what the caches have stays
 * there. What is read again at once is better left to memcpy().
 */
#ifndef GPU_BULK_H
#define GPU_BULK_H

#include <stddef.h>
#include <stdint.h>

/* As memcpy(): they do not overlap, and other threads see it in order. */
void bulk_copy(uint8_t *to, const uint8_t *from, size_t bytes);

#endif
