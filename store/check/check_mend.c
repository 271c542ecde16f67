/*
 * check_mend.c - the one part of the check that changes something: what a scrub
 * found damaged gets its bytes from another copy, where there is one. An image
 * whose file is missing or cut short is left: more than bytes is gone with it.
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

int check_mend(struct check *c)
{
	const struct mend m = {
		.kv = c->kv,
		.images_dirfd = c->images_dirfd,
		.secret = c->secret,
		.is_written = is_staged,
		.arg = (void *)(uintptr_t)c->options->staged,
	};

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
