/*
 * zip.c - the records of a zip archive: end records, directory, members.
 *
 *   member:   local header (name, padding), payload, perhaps a descriptor
 *   archive:  members, directory, [zip64 end record, its locator,] end record
 *
 * Sizes are taken from the directory alone. Nothing here depends on how a
 * payload is packed: packed bytes are shared like any others.
 */
#include "store/formats/zip.h"

#include "store/base/bytes.h"
#include "store/base/scope.h"

#define ZIP_LOCAL_SIG UINT32_C(0x04034b50)
#define ZIP_ENTRY_SIG UINT32_C(0x02014b50)
#define ZIP_END_SIG UINT32_C(0x06054b50)
#define ZIP_END64_SIG UINT32_C(0x06064b50)
#define ZIP_LOCATOR_SIG UINT32_C(0x07064b50)

#define ZIP_ENTRY_BYTES 46 /* directory entry, without name and the like */
#define ZIP_END64_BYTES 56
#define ZIP_LOCATOR_BYTES 20

/* Worth reading with an end record: the directory is often as short. */
#define ZIP_TAIL_BYTES 1024

/*
 * The 64-bit fields that replace those of the entry that are all ones; they
 * are in its extra data [at, end), in a fixed order, present where needed.
 * 0 leaves what is not there as it is: it will not fit into the file.
 */
static int zip_entry_extra(struct walk *w, uint64_t at, uint64_t end,
			   uint64_t *fields[3])
{
	const uint8_t *p;

	while (end - at >= 4) {
		struct bytes_reader r;
		uint16_t id;
		uint64_t len;
		int rc = walk_peek(w, at, 4, at, end, &p);

		if (rc < 0)
			return rc;
		r = bytes_reader_of(p, 4);
		id = bytes_take_u16(&r);
		len = bytes_take_u16(&r);
		at += 4;
		if (len > end - at)
			return 0;
		if (id != 1) {
			at += len;
			continue;
		}
		len = len < 24 ? len : 24;
		rc = walk_peek(w, at, len, at, end, &p);
		if (rc < 0)
			return rc;
		r = bytes_reader_of(p, len);
		for (int i = 0; i < 3; i++)
			if (*fields[i] == UINT32_MAX && r.left >= 8)
				*fields[i] = bytes_take_u64(&r);
		return 0;
	}
	return 0;
}

/* Whether the name that ends at `end` is an array's in an .npz. */
static int zip_entry_name(struct walk *w, uint64_t at, uint64_t end, bool *ret)
{
	const uint8_t *p;
	int rc;

	*ret = false;
	if (end - at < 4)
		return 0;
	rc = walk_peek(w, end - 4, 4, end - 4, end, &p);
	if (rc == 0)
		*ret = memcmp(p, ".npy", 4) == 0;
	return rc;
}

int zip_entry_read(struct walk *w, const struct zip_archive *a, uint64_t at,
		   struct zip_entry *ret)
{
	uint64_t dir_end = a->dir_at + a->dir_bytes;
	uint64_t full_bytes, packed_bytes, local;
	uint16_t name_bytes, extra_bytes, comment_bytes;
	struct bytes_reader r;
	const uint8_t *p;
	int rc;

	if (dir_end - at < ZIP_ENTRY_BYTES)
		return 0;
	rc = walk_peek(w, at, ZIP_ENTRY_BYTES, at, dir_end, &p);
	if (rc < 0)
		return rc;
	r = bytes_reader_of(p, ZIP_ENTRY_BYTES);
	if (bytes_take_u32(&r) != ZIP_ENTRY_SIG)
		return 0;
	(void)bytes_take(&r, 6); /* versions, flags */
	ret->packed = bytes_take_u16(&r) != 0;
	(void)bytes_take(&r, 8); /* time, checksum */
	packed_bytes = bytes_take_u32(&r);
	full_bytes = bytes_take_u32(&r);
	name_bytes = bytes_take_u16(&r);
	extra_bytes = bytes_take_u16(&r);
	comment_bytes = bytes_take_u16(&r);
	(void)bytes_take(&r, 8); /* disk, attributes */
	local = bytes_take_u32(&r);
	CHECK(!r.bad);

	at += ZIP_ENTRY_BYTES;
	if ((uint32_t)name_bytes + extra_bytes + comment_bytes > dir_end - at)
		return 0;
	rc = zip_entry_name(w, at, at + name_bytes, &ret->npy);
	if (rc < 0)
		return rc;
	ret->name_at = at;
	ret->name_bytes = name_bytes;
	at += name_bytes;
	if (full_bytes == UINT32_MAX || packed_bytes == UINT32_MAX ||
	    local == UINT32_MAX) {
		uint64_t *fields[] = { &full_bytes, &packed_bytes, &local };

		rc = zip_entry_extra(w, at, at + extra_bytes, fields);
		if (rc < 0)
			return rc;
	}
	if (local > a->dir_at - a->base)
		return 0;
	ret->local_at = a->base + local;
	ret->payload_bytes = packed_bytes;
	ret->next_at = at + extra_bytes + comment_bytes;
	return 1;
}

/* What the end records say; nothing of it was compared with the file. */
struct zip_end {
	uint64_t entries;
	uint64_t dir_bytes;
	uint64_t dir_off; /* from the archive's base */
	uint64_t dir_end; /* in the file: the first of the end records */
	uint16_t comment_bytes;
};

/* If a zip64 end record is in front of the end record, it decides. */
static int zip_end64_read(struct walk *w, uint64_t end_at, struct zip_end *e)
{
	uint64_t at = end_at - ZIP_LOCATOR_BYTES - ZIP_END64_BYTES;
	struct bytes_reader r;
	const uint8_t *p;
	int rc;

	if (end_at < ZIP_LOCATOR_BYTES + ZIP_END64_BYTES)
		return 0;
	rc = walk_peek(w, at, ZIP_END64_BYTES + ZIP_LOCATOR_BYTES, at, end_at,
		       &p);
	if (rc < 0)
		return rc;
	r = bytes_reader_of(p + ZIP_END64_BYTES, 4);
	if (bytes_take_u32(&r) != ZIP_LOCATOR_SIG)
		return 0;
	r = bytes_reader_of(p, ZIP_END64_BYTES);
	if (bytes_take_u32(&r) != ZIP_END64_SIG)
		return 0;
	if (bytes_take_u64(&r) != ZIP_END64_BYTES - 12)
		return 0; /* its own length, as far as it follows that field */
	(void)bytes_take(&r, 20); /* versions, disks, entries on this disk */
	e->entries = bytes_take_u64(&r);
	e->dir_bytes = bytes_take_u64(&r);
	e->dir_off = bytes_take_u64(&r);
	e->dir_end = at;
	CHECK(!r.bad);
	return 0;
}

/* Read the end record at `at`. 1: here it is; 0: there is none; or -errno. */
static int zip_end_read(struct walk *w, uint64_t at, struct zip_end *ret)
{
	uint64_t lo = at + ZIP_END_BYTES;
	struct bytes_reader r;
	const uint8_t *p;
	int rc;

	lo = lo > ZIP_TAIL_BYTES ? lo - ZIP_TAIL_BYTES : 0;
	rc = walk_peek(w, at, ZIP_END_BYTES, lo, at + ZIP_END_BYTES, &p);
	if (rc < 0)
		return rc;
	r = bytes_reader_of(p, ZIP_END_BYTES);
	if (bytes_take_u32(&r) != ZIP_END_SIG)
		return 0;
	(void)bytes_take(&r, 6); /* disks, entries on this disk */
	ret->entries = bytes_take_u16(&r);
	ret->dir_bytes = bytes_take_u32(&r);
	ret->dir_off = bytes_take_u32(&r);
	ret->comment_bytes = bytes_take_u16(&r);
	ret->dir_end = at;
	CHECK(!r.bad);

	rc = zip_end64_read(w, at, ret);
	return rc < 0 ? rc : 1;
}

int zip_archive_read(struct walk *w, uint64_t end_at, uint64_t limit,
		     struct zip_archive *ret)
{
	struct zip_entry first;
	struct zip_end e;
	uint64_t tail;
	int rc;

	rc = zip_end_read(w, end_at, &e);
	if (rc <= 0)
		return rc;
	if (e.entries == 0 || e.dir_bytes < ZIP_ENTRY_BYTES ||
	    e.dir_bytes > CUT_HEADER_BYTES_MAX || e.dir_bytes > e.dir_end)
		return 0;
	if (e.dir_off > e.dir_end - e.dir_bytes)
		return 0;
	*ret = (struct zip_archive){
		.base = e.dir_end - e.dir_bytes - e.dir_off,
		.dir_at = e.dir_end - e.dir_bytes,
		.dir_bytes = (uint32_t)e.dir_bytes,
	};

	/* A comment that does not fit is what follows, and no comment. */
	tail = end_at + ZIP_END_BYTES - e.dir_end;
	if (e.comment_bytes <= limit - (end_at + ZIP_END_BYTES))
		tail += e.comment_bytes;
	ret->tail_bytes = (uint32_t)tail;

	rc = zip_entry_read(w, ret, ret->dir_at, &first);
	if (rc <= 0)
		return rc;
	if (ret->dir_at - first.local_at < ZIP_LOCAL_BYTES)
		return 0;
	ret->at = first.local_at;
	return 1;
}

int zip_payload_at(struct walk *w, const struct zip_entry *e, uint64_t *ret)
{
	uint8_t local[ZIP_LOCAL_BYTES];
	struct bytes_reader r;
	int rc = walk_read(w, local, sizeof(local), e->local_at);

	if (rc < 0)
		return rc;
	r = bytes_reader_of(local, sizeof(local));
	if (bytes_take_u32(&r) != ZIP_LOCAL_SIG)
		return 0;
	(void)bytes_take(&r, 22); /* version to full size */
	*ret = e->local_at + ZIP_LOCAL_BYTES;
	*ret += bytes_take_u16(&r); /* name */
	*ret += bytes_take_u16(&r); /* extra */
	CHECK(!r.bad);
	return 1;
}
