/*
 * torch_zip.c - zip archives as torch.save and numpy.savez write them, one
 * in a file or many, one after another (.distcp).
 *
 * torch writes its local headers before it knows the sizes and leaves them
 * 0: only the directory, behind all members, tells how long a payload is. So
 * archives are found from the end of the file towards its start: the end
 * record gives the directory, the directory the archive's start, and in
 * front of that the previous archive ends. Then they are walked forwards.
 * A file that is cut off inside its last archive has no end record and is
 * one payload; nothing can be learnt from sizes of 0.
 *
 * Something else may lie between archives, such as a pickle that is no
 * archive. It is searched for the end of the archive before it, up to
 * ZIP_SEARCH_BYTES_MAX, in files that are known to hold archives.
 */
#include "store/formats/torch_zip.h"

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/formats/npy.h"
#include "store/formats/zip.h"

/* Further archives, towards the start of the file, are not looked for. */
#define ZIP_ARCHIVES_MAX (UINT32_C(1) << 18)
/* How far before a gap's end, how far in all gaps, how often in vain. */
#define ZIP_SEARCH_BYTES_MAX (UINT32_C(1) << 20)
#define ZIP_SEARCH_TOTAL_MAX (UINT32_C(16) << 20)
#define ZIP_SEARCH_TRIES_MAX 256
#define ZIP_SEARCH_STEP_BYTES (UINT32_C(16) << 10)

struct zip {
	struct walk *w;
	struct zip_archive *archives; /* owned; the last one comes first */
	size_t count;
	size_t capacity;
	uint32_t search_left; /* bytes that may still be searched */
	uint32_t tries_left;
};

/*
 * The last signature of an end record that starts in [stop, *at), which *at
 * becomes. 1: found; 0: there is none; or -errno.
 */
static int zip_search_signature(struct walk *w, uint64_t stop, uint64_t *at)
{
	while (*at > stop) {
		uint64_t lo = stop;
		const uint8_t *hit;
		const uint8_t *p;
		int rc;

		if (*at - stop > ZIP_SEARCH_STEP_BYTES)
			lo = *at - ZIP_SEARCH_STEP_BYTES;
		/* All of a signature that starts in front of *at. */
		rc = walk_peek(w, lo, (size_t)(*at - lo) + 3, lo, *at + 3, &p);
		if (rc < 0)
			return rc;
		hit = memrchr(p, 'P', (size_t)(*at - lo));
		while (hit && memcmp(hit, "PK\5\6", 4) != 0)
			hit = memrchr(p, 'P', (size_t)(hit - p));
		*at = hit ? lo + (uint64_t)(hit - p) : lo;
		if (hit)
			return 1;
	}
	return 0;
}

/*
 * Search back from `limit` for the end of an archive. What is passed over,
 * and every place that looks like an end and is none, is counted, so that
 * hostile bytes cannot make it slow.
 */
static int zip_search(struct zip *z, uint64_t limit, struct zip_archive *ret)
{
	uint64_t at = limit - ZIP_END_BYTES + 1; /* one past the candidates */
	uint64_t stop = at;
	int rc = 0;

	stop -= stop < ZIP_SEARCH_BYTES_MAX ? stop : ZIP_SEARCH_BYTES_MAX;
	if (at - stop > z->search_left)
		stop = at - z->search_left;
	while (rc == 0 && z->tries_left > 0) {
		rc = zip_search_signature(z->w, stop, &at);
		if (rc <= 0)
			break;
		rc = zip_archive_read(z->w, at, limit, ret);
		if (rc == 0)
			z->tries_left--;
	}
	z->search_left -= (uint32_t)(limit - ZIP_END_BYTES + 1 - at);
	return rc;
}

/* Find the last archive in front of `limit`. 1: found; 0: none; or -errno. */
static int zip_find_before(struct zip *z, uint64_t limit, bool search,
			   struct zip_archive *ret)
{
	int rc;

	if (limit < ZIP_ARCHIVE_BYTES_MIN || z->count >= ZIP_ARCHIVES_MAX)
		return 0;
	rc = zip_archive_read(z->w, limit - ZIP_END_BYTES, limit, ret);
	if (rc == 0 && search)
		rc = zip_search(z, limit, ret);
	return rc;
}

/* Collect all archives, the last one first; they do not overlap. */
static int zip_find_all(struct zip *z)
{
	uint64_t limit = walk_size(z->w);
	struct zip_archive a;
	uint8_t sig[4];
	bool search;
	int rc;

	if (limit < ZIP_ARCHIVE_BYTES_MIN)
		return 0;
	rc = walk_read(z->w, sig, sizeof(sig), 0);
	if (rc < 0)
		return rc;
	/* A large file of another kind shall not be searched at all. */
	search = memcmp(sig, "PK\3\4", 4) == 0;

	while ((rc = zip_find_before(z, limit, search, &a)) > 0) {
		rc = vec_grow(&z->archives, z->count, &z->capacity, sizeof(a));
		if (rc < 0)
			return rc;
		z->archives[z->count++] = a;
		CHECK(a.at < limit);
		limit = a.at;
		search = true;
	}
	return rc;
}

/*
 * Mark one member that lies in [*pos, dir_at), and move *pos behind it. A
 * short member is one piece with its headers: they would be merged anyway,
 * and so its local header need not be read.
 */
static int zip_mark_member(struct walk *w, const struct zip_entry *e,
			   uint64_t dir_at, uint64_t *pos)
{
	uint64_t room;
	uint64_t at;
	int rc;

	if (e->local_at < *pos || dir_at - e->local_at < ZIP_LOCAL_BYTES)
		return 0;
	room = dir_at - e->local_at - ZIP_LOCAL_BYTES;
	if (e->payload_bytes > room)
		return 0;
	if (e->payload_bytes < CHUNK_BYTES_MIN) {
		*pos = e->local_at + ZIP_LOCAL_BYTES + e->payload_bytes;
		return walk_mark(w, e->local_at);
	}

	rc = zip_payload_at(w, e, &at);
	if (rc <= 0 || at > dir_at || e->payload_bytes > dir_at - at)
		return rc < 0 ? rc : 0;
	*pos = at + e->payload_bytes;
	rc = walk_mark(w, e->local_at);
	if (rc == 0)
		rc = walk_mark(w, at);
	if (rc == 0 && e->npy)
		rc = npy_walk_member(w, at, e->payload_bytes);
	if (rc >= 0)
		rc = walk_mark(w, *pos);
	return rc;
}

static int zip_mark_archive(struct walk *w, const struct zip_archive *a)
{
	uint64_t dir_end = a->dir_at + a->dir_bytes;
	uint64_t entry_at = a->dir_at;
	uint64_t pos = a->at;
	struct zip_entry e;
	int rc = walk_mark(w, a->at);

	if (rc < 0)
		return rc;
	while ((rc = zip_entry_read(w, a, entry_at, &e)) > 0) {
		rc = zip_mark_member(w, &e, a->dir_at, &pos);
		if (rc < 0)
			return rc;
		entry_at = e.next_at;
	}
	if (rc == 0)
		rc = walk_mark(w, a->dir_at);
	if (rc == 0)
		rc = walk_mark(w, dir_end + a->tail_bytes);
	return rc;
}

int torch_zip_archives(struct walk *w, struct zip_archive **ret,
		       size_t *ret_count)
{
	struct zip z = {
		.w = w,
		.search_left = ZIP_SEARCH_TOTAL_MAX,
		.tries_left = ZIP_SEARCH_TRIES_MAX,
	};
	int rc = zip_find_all(&z);

	if (rc < 0) {
		free(z.archives);
		return rc;
	}
	for (size_t i = 0; i < z.count / 2; i++) {
		struct zip_archive a = z.archives[i];

		z.archives[i] = z.archives[z.count - 1 - i];
		z.archives[z.count - 1 - i] = a;
	}
	*ret = z.archives;
	*ret_count = z.count;
	return 0;
}

int torch_zip_walk(struct walk *w)
{
	SCOPED(scope_free) struct zip_archive *archives = NULL;
	size_t count = 0;
	int rc = torch_zip_archives(w, &archives, &count);

	w->archive_count = count;
	for (size_t i = 0; rc == 0 && i < count; i++)
		rc = zip_mark_archive(w, &archives[i]);
	return rc < 0 ? rc : count > 0;
}
