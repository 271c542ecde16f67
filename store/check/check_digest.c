/*
 * check_digest.c - the part of the scrub that looks at files as a whole: the
 * digest of a file without holes must follow from the hashes of its chunks, so
 * that no file can consist of sound chunks that are not its own. The digest of
 * a small file is the hash of its bytes. (Where a file has holes the chunks
 * that were all zero are not recorded, so their lengths are not known.)
 */
#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "store/base/scope.h"
#include "store/check/check_work.h"

static void scope_state(XXH3_state_t **s)
{
	(void)XXH3_freeState(*s);
}

struct feed {
	XXH3_state_t *state;
	uint64_t at, end; /* what is still to be fed, in the image */
};

static int feed_chunk(void *arg, uint64_t offset, const struct chunk_rec *k)
{
	uint32_t len = htole32(k->len);
	struct feed *f = arg;

	if (offset != f->at || f->at >= f->end)
		return 1;
	(void)XXH3_128bits_update(f->state, k->hash, sizeof(k->hash));
	(void)XXH3_128bits_update(f->state, &len, sizeof(len));
	f->at += k->len;
	return 0;
}

/*
 * From the hashes and lengths of the chunks under the extents. 0: they do not
 * cover one exactly (which was reported), 1: done, or -errno.
 */
static int digest_extents(struct check *c, const struct content *f,
			  uint8_t ret[HASH_BYTES])
{
	SCOPED(scope_state) XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t canon;

	if (!state)
		return -ENOMEM;
	(void)XXH3_128bits_reset(state);
	for (size_t n = 0; n < f->extent_count; n++) {
		const struct extent *e = &f->extents[n];
		struct feed feed = { state, e->image_offset,
				     e->image_offset + e->len };
		int rc = check_each_chunk(c, e->image, e->image_offset,
					  feed_chunk, &feed);

		if (rc < 0 || feed.at != feed.end)
			return rc;
	}
	XXH128_canonicalFromHash(&canon, XXH3_128bits_digest(state));
	memcpy(ret, canon.digest, HASH_BYTES);
	return 1;
}

static int digest_small(struct check *c, uint64_t ino, const struct content *f,
			uint8_t ret[HASH_BYTES])
{
	SCOPED(scope_free) void *value = NULL;
	struct key k = key_ino('D', ino);
	size_t len;
	int rc = kv_get(c->kv, k.data, k.len, &value, &len);

	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	if (len != f->size_bytes)
		return 0;
	chunk_hash(c->secret, value, len, ret);
	return 1;
}

static int digest_file(struct check *c, uint64_t ino, const struct content *f)
{
	uint8_t digest[HASH_BYTES];
	int rc = 0;

	if (f->kind == CONTENT_SMALL)
		rc = digest_small(c, ino, f, digest);
	else if (f->data_bytes == f->size_bytes)
		rc = digest_extents(c, f, digest);
	if (rc < 0 && rc != -ENOMEM)
		return check_database_failed(c, rc);
	if (rc <= 0 || memcmp(digest, f->digest, sizeof(digest)) == 0)
		return rc < 0 ? rc : 0;
	check_report(c, "digest", check_path(c, ino),
		     "what it consists of is not what was committed (its "
		     "digest differs); restore it from another copy, or "
		     "delete it");
	return 0;
}

static int check_file_digest(struct check *c, const struct check_record *r)
{
	struct content f;
	int rc;

	/* What does not decode was reported before. */
	if (r->key_len != 9)
		return 0;
	rc = content_decode(r->value, r->value_len, &f);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	rc = digest_file(c, get_be64(r->key + 1), &f);
	content_release(&f);
	return rc;
}

int check_digests(struct check *c)
{
	if (!c->options->scrub || !c->secret_known)
		return 0;
	return check_each(c, 'F', "digests", check_file_digest);
}
