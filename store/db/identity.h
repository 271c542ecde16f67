/*
 * identity.h - the two texts that say which store this is.
 *
 * STORE/format says that it is one, of which format, and its uuid.
 *
 * STORE/secret is a copy of what the database alone would know of a store as a
 * whole: its uuid and the secret of its hashes. Without the secret no hash of
 * an old store can be compared with a new one, so it must not go with the
 * database. Only its owner may read the file.
 *
 * Errors: 0 or a negative errno.
 */
#ifndef STORE_IDENTITY_H
#define STORE_IDENTITY_H

#include "store/db/hash.h"
#include "store/db/kv.h"
#include "store/db/layout.h"

/* A new one. */
int identity_make_uuid(char ret[LAYOUT_UUID_BYTES]);

/*
 * How such a text ends: the line with the check of its first len bytes, behind
 * them. size: of the array, which it fits in. Returns the length of it all.
 */
size_t identity_add_check(char *text, size_t len, size_t size);

struct format {
	unsigned number;
	char uuid[LAYOUT_UUID_BYTES];
};

/*
 * What STORE/format says. -EPROTO: a newer format, and only ret->number is
 * set. -EINVAL: it is damaged, or not from ckptfs. Others, among them -ENOENT:
 * it cannot be read.
 */
int format_read(int store_dirfd, struct format *ret);
/* The file `name` says that this is a store of STORE_FORMAT, durably. */
int format_write(int store_dirfd, const char *name, const char *uuid);

struct identity {
	char uuid[LAYOUT_UUID_BYTES];
	uint8_t secret[HASH_SECRET_BYTES];
};

/* -ENOENT: there is none. -EIO: it is damaged. */
int identity_read(int store_dirfd, struct identity *ret);
/* Replaces it, durably. */
int identity_write(int store_dirfd, const struct identity *id);

int identity_make_secret(uint8_t ret[HASH_SECRET_BYTES]);
/* The secret in the database. -EUCLEAN: it is not there, or none. */
int identity_load(struct kv *kv, uint8_t ret_secret[HASH_SECRET_BYTES]);
/*
 * Is this database of another store than STORE/format, which has this uuid ("":
 * it is not known)? STORE/secret says so: it has the store's uuid and the
 * database's secret, or neither. 1; 0, also when there is no such file; -errno
 * as of identity_load().
 */
int identity_is_foreign(int store_dirfd, const char *uuid, struct kv *kv);
/* A new database gets it, and a root directory that is this user's. */
int identity_begin(struct kv *kv, const uint8_t secret[HASH_SECRET_BYTES]);

#endif
