/*
 * guard_table.h - names and files as the guard walks through them: a table of
 * calls with two implementations, the store's own (guard_local.c) and those of
 * a directory that many nodes share (store/shared/steps.c).
 *
 * A number names a file or folder as long as it is held: what find() and hold()
 * give is the caller's until put(). Of the store's own it stays what it is.
 *
 * Threads: any. Errors: 0 or a negative errno, -ENOENT and -ESTALE: it is not
 * there (any more). All but put() may block, where `hangs` is set for ever: no
 * lock is held.
 */
#ifndef STORE_GUARD_GUARD_TABLE_H
#define STORE_GUARD_GUARD_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "store/base/bytes.h"
#include "store/db/hash.h"
#include "store/db/records.h"
#include "store/formats/cut.h"

/* Of a file that another node is still writing. */
#define GUARD_SIZE_UNKNOWN UINT64_MAX

struct guard_attr {
	uint64_t parent; /* 0: it is the root; held as long as the file is */
	/* Tells it from all others that are there now, as list() has it. */
	uint64_t number;
	uint32_t mode, nlink;
	uid_t uid;
	uint64_t size_bytes; /* GUARD_SIZE_UNKNOWN */
	int64_t mtime_ns; /* as exact as everybody who asks sees it */
	char name[STORE_NAME_MAX + 1];
};

struct guard_table {
	void *self;
	bool hangs;
	int (*find)(void *self, uint64_t parent, const char *name,
		    uint64_t *ret_id);
	int (*hold)(void *self, uint64_t id);
	void (*put)(void *self, uint64_t id);
	int (*attr)(void *self, uint64_t id, struct guard_attr *ret);
	/*
	 * Call fn for each name until it returns other than 0, which is
	 * returned; type: S_IFMT bits.
	 */
	int (*list)(void *self, uint64_t dir,
		    int (*fn)(void *arg, const char *name, uint32_t type,
			      uint64_t number),
		    void *arg);
	/* Where a symbolic link leads; `out` is empty. */
	int (*target)(void *self, uint64_t id, struct bytes *out);
	/*
	 * A regular file, to be read as it stands. -EINVAL: it is none.
	 * -EINPROGRESS: its bytes are on another node, and it is not whole yet.
	 */
	int (*open)(void *self, uint64_t id, struct cut_source *ret);
	void (*close)(void *self, struct cut_source *source);
	/*
	 * May the kernel have bytes of a regular file that it has not given to
	 * us, of a mapping that it keeps itself? And ask it for them. NULL: no.
	 */
	bool (*is_cached)(void *self, uint64_t id);
	void (*write_back)(void *self, uint64_t id);
	/* Size and digest of what is durable and not being changed, if known.
	 */
	bool (*digest)(void *self, uint64_t id, uint64_t *ret_bytes,
		       uint8_t ret[HASH_BYTES]);
	uint32_t (*world)(void *self, uint64_t id); /* 0: not known */
	int (*getxattr)(void *self, uint64_t id, const char *name,
			void **ret_value, size_t *ret_len);
	int (*setxattr)(void *self, uint64_t id, const char *name,
			const void *value, size_t len);
	int (*removexattr)(void *self, uint64_t id, const char *name);
	/* From the root, for people. */
	void (*path)(void *self, uint64_t id, char *buf, size_t size);
	/*
	 * What others read of a file that this one is to replace when it is
	 * whole. -ENODATA: it replaces none; -EFBIG: it has more than size.
	 */
	int (*replaced)(void *self, uint64_t id, void *buf, size_t size,
			size_t *ret_len);
	/*
	 * A tracker that was written is refused. True: it was to replace
	 * another one, which stays; nothing is left of it. Else what is durable
	 * of it is to be put back.
	 */
	bool (*undo)(void *self, uint64_t id);
};

/* The store's own; `use` is borrowed. */
struct guard_uses;
void guard_local_table(struct guard_uses *use, struct guard_table *ret);

#endif
