/* kv_private.h - between the kv*.c files, which alone see RocksDB. */
#ifndef STORE_KV_PRIVATE_H
#define STORE_KV_PRIVATE_H

#include <rocksdb/c.h>

#include "store/db/kv.h"

/* RocksDB's text to -errno; the text is logged and freed. */
int kv_error(const char *what, char *text);
/* It is not closed between these two. */
int kv_borrow(struct kv *kv, rocksdb_t **ret_db);
void kv_return(struct kv *kv);
/* Can the log be left alone for a while, and is there room on the disk? */
int kv_calm(struct kv *kv);

#endif
