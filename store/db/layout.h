/*
 * layout.h - where things lie in a store directory.
 *
 *   STORE/format       number of the format, the store's UUID, and a check
 *   STORE/lock         flock()ed by whoever has the store open
 *   STORE/mark         what the database must at least hold: mark.h
 *   STORE/secret       a copy of the secret of its hashes: identity.h
 *   STORE/db/          RocksDB
 *   STORE/backup/      the last two backups of it: backup.h
 *   STORE/images/XX/N  images: N is 16 hex digits, XX its last two; with
 *                      ".gone" behind it: removed while somebody had it
 *   STORE/stage/       mount point of the private tmpfs (empty when unmounted)
 *
 * A directory without `format` becomes a store only when it is empty (or holds
 * nothing but lost+found, or what was left when just that was interrupted);
 * anything else is refused: it is somebody's data. `format` is written last, so
 * that a store which has one had a database, and never gets a new one.
 *
 * Format 1, of which the text has no check, is read as well.
 */
#ifndef STORE_LAYOUT_H
#define STORE_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define LAYOUT_FORMAT_FILE "format"
#define LAYOUT_LOCK_FILE "lock"
#define LAYOUT_MARK_FILE "mark"
#define LAYOUT_SECRET_FILE "secret"
#define LAYOUT_DB_DIR "db"
#define LAYOUT_BACKUP_DIR "backup"
#define LAYOUT_IMAGE_DIR "images"
#define LAYOUT_STAGE_DIR "stage"
#define LAYOUT_RESERVE_FILE "reserve"
#define LAYOUT_RESERVE_DIR "reserve.inodes"

#define LAYOUT_UUID_BYTES 37 /* 36 characters and a NUL */
/* From when it is removed until the last reference is put. */
#define LAYOUT_IMAGE_GONE ".gone"
#define LAYOUT_IMAGE_COPY ".copy" /* that is to take its place */
#define LAYOUT_IMAGE_NAME_BYTES 32
#ifndef LAYOUT_IMAGE_DIRS /* the simulator has fewer */
#define LAYOUT_IMAGE_DIRS 256u
#endif

/* In which directory an image's file is. */
static inline unsigned layout_image_dir(uint64_t image)
{
	return (unsigned)(image % LAYOUT_IMAGE_DIRS);
}

/* "images"-relative name of an image's file: "XX/NNNNNNNNNNNNNNNN" + suffix. */
static inline void layout_image_file(uint64_t image, const char *suffix,
				     char ret[LAYOUT_IMAGE_NAME_BYTES])
{
	(void)snprintf(ret, LAYOUT_IMAGE_NAME_BYTES, "%02x/%016llx%s",
		       layout_image_dir(image), (unsigned long long)image,
		       suffix);
}

static inline void layout_image_name(uint64_t image,
				     char ret[LAYOUT_IMAGE_NAME_BYTES])
{
	layout_image_file(image, "", ret);
}

/* What the directory of layout_open() may be. */
enum layout_want {
	LAYOUT_CHECK, /* a store, of which nothing is changed */
	LAYOUT_STORE, /* a store */
	LAYOUT_ANY, /* a store, or empty: then it becomes one */
	LAYOUT_NEW, /* empty, or not there: it becomes one */
};

/*
 * Open a store directory, take its lock and check its format. Nothing is
 * changed in one that is a store, and nothing in what is refused.
 *
 * Returns 0, or, where that is wanted, 1: the directory was empty and is to
 * become a store. Its lock and its directories are there; the caller makes a
 * database and calls layout_finish(). *ret_dirfd and *ret_lockfd are the
 * caller's to close (closing the lock lets the next one in). On failure `why`
 * (size bytes) holds a sentence for the user that says what to do. -EBUSY: in
 * use. -EINVAL: not a store, or a foreign directory. -EEXIST: a store, where a
 * new one was wanted. -EUCLEAN: a store that lacks a part. -EPROTO: a newer
 * format. -ENOENT, -EACCES, ... as open(2) says.
 */
int layout_open(const char *path, enum layout_want want, int *ret_dirfd,
		int *ret_lockfd, char ret_uuid[LAYOUT_UUID_BYTES], char *why,
		size_t why_size);
/*
 * The same for what is to be put right: only the directory must be one of a
 * store, and its lock free. *ret_uuid is empty when neither `format` nor the
 * copy beside it says it. 'images' is made when it is missing.
 */
int layout_open_damaged(const char *path, int *ret_dirfd, int *ret_lockfd,
			char ret_uuid[LAYOUT_UUID_BYTES], char *why,
			size_t why_size);
/* The store is whole: `format` is there, durably. Also of an older format. */
int layout_finish(int dirfd, const char uuid[LAYOUT_UUID_BYTES]);
/* Is it of a format before STORE_FORMAT? Then layout_finish() makes it new. */
bool layout_is_old(int dirfd);

/*
 * Who has the lock writes his name into it, for the message to the next one,
 * and a check that changes nothing puts back what was there (old may be NULL).
 */
#define LAYOUT_LOCK_BYTES_MAX 64
struct layout_lock_text {
	char text[LAYOUT_LOCK_BYTES_MAX + 1];
	size_t len;
};
void layout_say_who(int lockfd, struct layout_lock_text *ret_old);
void layout_unsay(int lockfd, const struct layout_lock_text *old);

/*
 * 0: only this user can change what names there are in the directory, so that
 * nobody can put a link where we write. -EPERM, and a sentence in `why`.
 */
int layout_check_owner(int dirfd, const char *path, char *why, size_t why_size);

#endif
