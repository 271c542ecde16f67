/*
 * layout.h - where things lie in a store directory.
 *
 *   STORE/format       "ckptfs store, format 2\n" + "uuid ...\n"
 *   STORE/lock         flock()ed by whoever has the store open
 *   STORE/db/          RocksDB
 *   STORE/images/XX/N  images: N is 16 hex digits, XX its last two; with
 *                      ".gone" behind it: removed while somebody had it
 *   STORE/stage/       mount point of the private tmpfs (empty when unmounted)
 *
 * A directory without `format` is a store only when it is empty (or holds
 * nothing but lost+found); anything else is refused: it is somebody's data.
 */
#ifndef STORE_LAYOUT_H
#define STORE_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define LAYOUT_FORMAT_FILE "format"
#define LAYOUT_LOCK_FILE "lock"
#define LAYOUT_DB_DIR "db"
#define LAYOUT_IMAGE_DIR "images"
#define LAYOUT_STAGE_DIR "stage"

#define LAYOUT_UUID_BYTES 37 /* 36 characters and a NUL */
#define LAYOUT_IMAGE_GONE ".gone"
#define LAYOUT_IMAGE_NAME_BYTES 32

/* "images"-relative name of an image: "XX/NNNNNNNNNNNNNNNN". */
static inline void layout_image_name(uint64_t image,
				     char ret[LAYOUT_IMAGE_NAME_BYTES])
{
	(void)snprintf(ret, LAYOUT_IMAGE_NAME_BYTES, "%02x/%016llx",
		       (unsigned)(image & 0xff), (unsigned long long)image);
}

/* Its name from when it is removed until the last reference is put. */
static inline void layout_gone_name(uint64_t image,
				    char ret[LAYOUT_IMAGE_NAME_BYTES])
{
	(void)snprintf(ret, LAYOUT_IMAGE_NAME_BYTES,
		       "%02x/%016llx" LAYOUT_IMAGE_GONE,
		       (unsigned)(image & 0xff), (unsigned long long)image);
}

/*
 * Open a store directory, take its lock and check its format.
 *
 * *ret_dirfd and *ret_lockfd are the caller's to close (closing the lock lets
 * the next one in). With `create`, an empty directory becomes a store.
 * On failure `why` (size bytes) holds a sentence for the user that says what
 * to do. -EBUSY: in use. -EINVAL: not a store, or a foreign directory.
 * -EPROTO: a newer format. -ENOENT, -EACCES, ... as open(2) says.
 */
int layout_open(const char *path, bool create, int *ret_dirfd, int *ret_lockfd,
		char ret_uuid[LAYOUT_UUID_BYTES], char *why, size_t why_size);

/*
 * 0: only this user can change what names there are in the directory, so that
 * nobody can put a link where we write. -EPERM, and a sentence in `why`.
 */
int layout_check_owner(int dirfd, const char *path, char *why,
		       size_t why_size);

#endif
