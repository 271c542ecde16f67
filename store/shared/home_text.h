/*
 * home_text.h - the small files of the shared directory.
 *
 *   .ckptfs/format            that it is one, of which format, and its UUID
 *   .ckptfs/nodes/NAME/store  UUID of the store that is this node
 *   .ckptfs/nodes/NAME/alive  who runs there, and when that was written
 *
 * Each is a text of a few lines, as those of a store are (identity.h), with a
 * check at its end; a text that is not one of ours to the byte is damaged. One
 * is replaced by a rename, so that who reads sees one or the other.
 *
 * Errors: 0 or a negative errno; ret_* are set on success only. All of it
 * blocks on the file system.
 */
#ifndef STORE_SHARED_HOME_TEXT_H
#define STORE_SHARED_HOME_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/db/layout.h"

#define HOME_FORMAT 2u
#define SHARED_NODE_MAX 63 /* characters of a node's name */
#define HOME_TEXT_BYTES_MAX 512
#define HOME_VERSION_BYTES 32
#define HOME_BOOT_BYTES LAYOUT_UUID_BYTES

/* 1 to SHARED_NODE_MAX of A-Z a-z 0-9 . _ - that do not begin with a dot. */
bool shared_node_is_name(const char *name);

/*
 * The file holds these bytes, for everybody to read, and never a part of them:
 * they are written to another name in dirfd, which only this process uses.
 * durable: with its name, when it is 0.
 */
int home_text_put(int dirfd, const char *name, const char *text, size_t len,
		  bool durable);

/*
 * *ret_number is HOME_FORMAT, or 1: the first form. -ENOENT: there is none.
 * -EPROTO: a newer one, *ret_number. -EINVAL: it is damaged. Others: it cannot
 * be read.
 */
int home_format_read(int homefd, unsigned *ret_number,
		     char ret_uuid[LAYOUT_UUID_BYTES]);
size_t home_format_text(const char *uuid, char ret[HOME_TEXT_BYTES_MAX]);

/* -ENOENT: there is none. -EINVAL: it is damaged. */
int home_store_read(int nodefd, char ret_uuid[LAYOUT_UUID_BYTES]);
int home_store_write(int nodefd, const char *uuid);

struct home_alive {
	char version[HOME_VERSION_BYTES];
	char boot[HOME_BOOT_BYTES]; /* of the kernel; "-": not known */
	long pid; /* there, in its own namespace */
	int64_t since_ns; /* the mount began, by the node's clock */
	int64_t time_ns; /* this was written, by the node's clock */
};

/* *ret_seen_ns: when it was written, by the clock of the file system. */
int home_alive_read(int nodefd, struct home_alive *ret, int64_t *ret_seen_ns);
/* Of this process and this moment. It is not made durable. */
int home_alive_write(int nodefd, int64_t since_ns);
int home_alive_put(int nodefd, const struct home_alive *a);

/* Which boot of the kernel this is; "-" when that cannot be said. */
void home_boot_id(char ret[HOME_BOOT_BYTES]);

#endif
