/*
 * check_mend.c - the one part of the check that changes something: what a scrub
 * found damaged gets its bytes from another copy, where there is one, and what
 * no chunk covers is zeros again. An image whose file is missing or cut short
 * is left: more than bytes is gone with it.
 */
#include <errno.h>

#include "store/check/check_work.h"
#include "store/space/mend.h"
#include "store/space/stage_table.h"

/* A file that is not durable yet may lie in it. */
static bool is_staged(void *arg, uint64_t image)
{
	const struct stage_table *staged = arg;

	return !staged || stage_table_has_image(staged, image);
}

static struct mend mend_of(struct check *c)
{
	return (struct mend){
		.kv = c->kv,
		.images_dirfd = c->images_dirfd,
		.secret = c->secret,
		.deciding = &c->deciding,
		.is_written = is_staged,
		.arg = (void *)(uintptr_t)c->options->staged,
	};
}

int check_mend(struct check *c)
{
	const struct mend m = mend_of(c);

	if (!c->options->scrub || !c->options->mend || !c->secret_known)
		return 0;
	for (size_t n = 0; n < c->damage_count; n++) {
		struct check_damage *d = &c->damage[n];
		const struct check_chunk *k = &c->chunks[d->first];

		if (d->rc == -ENOENT || d->rc == -ENODATA)
			continue;
		d->mend_rc =
			mend_chunk(&m, c->images[k->image_index].id, k->offset);
		if (d->mend_rc == -ENOMEM)
			return d->mend_rc;
		d->mended = d->mend_rc >= 0;
		check_progress(c, "mend", n + 1, c->damage_count);
	}
	return 0;
}

/* What is between chunk n and the one before or after it. */
static int check_gap(struct check *c, const struct check_image *i, size_t n,
		     uint64_t from, uint64_t to)
{
	const struct mend m = mend_of(c);
	struct check_damage *d;
	int rc, added;

	if (from >= to)
		return 0;
	rc = mend_zeros(&m, i->id, from, to, c->options->mend);
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	added = check_add_damage(c, n, 1, rc < 0 ? rc : 0);
	if (added < 0)
		return added;
	d = &c->damage[c->damage_count - 1];
	d->zeros_from = from;
	d->zeros_to = to;
	d->mended = rc > 0;
	return 0;
}

static int check_gaps(struct check *c, const struct check_image *i)
{
	size_t last = i->first_chunk + i->chunk_count - 1;
	uint64_t at = 0;
	int rc = 0;

	for (size_t n = i->first_chunk; rc == 0 && n <= last; n++) {
		const struct check_chunk *k = &c->chunks[n];

		rc = check_gap(c, i, n, at, k->offset);
		if (k->offset + k->len > at)
			at = k->offset + k->len;
	}
	return rc == 0 ? check_gap(c, i, last, at, i->file_bytes) : rc;
}

int check_zeros(struct check *c)
{
	int rc = 0;

	if (!c->options->scrub)
		return 0;
	for (size_t n = 0; rc == 0 && n < c->image_count; n++) {
		const struct check_image *i = &c->images[n];

		if (i->native && i->file_bytes != IMAGE_NO_FILE &&
		    i->file_bytes >= i->end)
			rc = check_gaps(c, i);
		check_progress(c, "zeros", n + 1, c->image_count);
	}
	return rc;
}
