/* zip.h - find the archive that ends at a place, and the members in it. */
#ifndef STORE_FORMATS_ZIP_H
#define STORE_FORMATS_ZIP_H

#include "store/formats/walk.h"

#define ZIP_LOCAL_BYTES 30 /* local header, without name and extra */
#define ZIP_END_BYTES 22 /* end record, without comment */
/* One member without a name, its directory entry and the end record. */
#define ZIP_ARCHIVE_BYTES_MIN (ZIP_LOCAL_BYTES + 46 + ZIP_END_BYTES)

/* All offsets are the file's. at < dir_at < dir_at + dir_bytes < its end. */
struct zip_archive {
	uint64_t at; /* first local header */
	uint64_t base; /* what offsets in the directory count from; <= at */
	uint64_t dir_at;
	uint32_t dir_bytes;
	uint32_t tail_bytes; /* end records and comment, behind the directory */
};

/* A directory entry. Only what is said here was compared with the file. */
struct zip_entry {
	uint64_t local_at; /* in the file, base..dir_at */
	uint64_t payload_bytes; /* as claimed */
	uint64_t next_at; /* of the next entry, at most the directory's end */
	bool npy; /* called *.npy */
	bool packed; /* its payload is not the bytes themselves */
	uint64_t name_at; /* in the file, all of it in the directory */
	uint16_t name_bytes;
};

/*
 * Is there an archive whose end record is at end_at, and which ends no later
 * than `limit`? end_at + ZIP_END_BYTES <= limit <= the file's size.
 * 1: *ret is it; 0: no, or it is empty; or an error of walk_peek().
 */
int zip_archive_read(struct walk *w, uint64_t end_at, uint64_t limit,
		     struct zip_archive *ret);

/*
 * Read the entry at `at`, which lies in the archive's directory or is its end.
 * 1: here it is; 0: there is none; or an error of walk_peek().
 */
int zip_entry_read(struct walk *w, const struct zip_archive *a, uint64_t at,
		   struct zip_entry *ret);

/*
 * Where the payload starts, from its local header (local_at + ZIP_LOCAL_BYTES
 * lies in the file): name and padding are not the same there as in the
 * directory. *ret may lie outside the file.
 * 1: there; 0: no header is there; or an error of walk_read().
 */
int zip_payload_at(struct walk *w, const struct zip_entry *e, uint64_t *ret);

#endif
