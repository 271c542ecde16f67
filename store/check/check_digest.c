/*
 * check_digest.c - the part of the scrub that looks at files as a whole: the
 * digest of a file without holes must follow from the hashes of its chunks, so
 * that no file can consist of sound chunks that are not its own. The digest of
 * a small file is the hash of its bytes. (Where a file has holes the chunks
 * that were all zero are not recorded, so their lengths are not known.)
 */
#include <errno.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/check/check_work.h"

struct feed {
	struct digest *digest;
	uint64_t at; /* in the image: where the next chunk must begin */
};

static int feed_chunk(void *arg, uint64_t offset, const struct chunk_rec *k)
{
	struct feed *f = arg;

	if (!k)
		return 0;
	if (offset != f->at)
		return 1;
	digest_add(f->digest, k->hash, k->len);
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
	struct feed feed = { .digest = digest_new() };
	int rc = feed.digest ? 1 : -ENOMEM;

	if (rc < 0)
		return rc;
	for (size_t n = 0; rc == 1 && n < f->extent_count; n++) {
		const struct extent *e = &f->extents[n];

		feed.at = e->image_offset;
		rc = extent_each_chunk(c->kv, e, feed_chunk, &feed);
		if (rc == 0)
			rc = feed.at == e->image_offset + e->len;
	}
	digest_end(feed.digest, ret);
	return rc;
}

static int digest_small(struct check *c, uint64_t ino, const struct content *f,
			uint8_t ret[HASH_BYTES])
{
	SCOPED(scope_free) void *value = NULL;
	size_t len;
	int rc = record_load(c->kv, key_ino('D', ino), &value, &len);

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
	SCOPED(content_release) struct content f = { 0 };
	int rc;

	/* What does not decode was reported before. */
	if (r->key_len != 9)
		return 0;
	rc = content_decode(r->value, r->value_len, &f);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	return digest_file(c, get_be64(r->key + 1), &f);
}

int check_digests(struct check *c)
{
	if (!c->options->scrub || !c->secret_known)
		return 0;
	return check_each(c, 'F', "digests", check_file_digest);
}
