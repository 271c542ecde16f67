/*
 * saver.h - a client that saves through memory that it shares with the store:
 * segments (store/file/segment.h), as gpu/ uses them.
 */
#ifndef TESTS_SIM_SAVER_H
#define TESTS_SIM_SAVER_H

#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

struct saver;

/* Connect; NULL from then on until it is called again after a crash. */
struct saver *saver_new(struct store *st);
/* What the client does when the store wants memory back. */
void saver_drop_asked(struct saver *s);
/*
 * Memory of this size to fill, or -errno. -EAGAIN: *ret_busy is to be durable
 * first, when it is not 0.
 */
int saver_acquire(struct saver *s, size_t size, uint8_t **ret_memory,
		  uint64_t *ret_busy);
/* What was acquired last becomes the file `name` in the root. */
int saver_commit(struct saver *s, const char *name);
/* fsync(2) of the file whose number this is. */
int saver_wait_for(struct saver *s, uint64_t ino);
void saver_end(struct saver *s);

#endif
