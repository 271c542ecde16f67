/*
 * identity.h - a copy of what the database alone would know of a store as a
 * whole, in the file STORE/secret: its uuid and the secret of its hashes.
 * Without the secret no hash of an old store can be compared with a new one, so
 * it must not go with the database. Only its owner may read the file.
 *
 * Errors: 0 or a negative errno.
 */
#ifndef STORE_IDENTITY_H
#define STORE_IDENTITY_H

#include "store/db/hash.h"
#include "store/db/layout.h"

struct identity {
	char uuid[LAYOUT_UUID_BYTES];
	uint8_t secret[HASH_SECRET_BYTES];
};

/* -ENOENT: there is none. -EIO: it is damaged. */
int identity_read(int store_dirfd, struct identity *ret);
/* Replaces it, durably. */
int identity_write(int store_dirfd, const struct identity *id);

#endif
