/*
 * guard_closed.c - a file that is a step by itself and was closed under its
 * name: is what is read of it what its last close left?
 *
 * inode.file->changes counts what may change a file's bytes: opens to write,
 * truncations, a segment that takes their place. Each is counted as it begins,
 * and inode.changing is held until it ends, or the open is one of the writers.
 * So when nobody wrote the file at guard_closed_begin(), which waits for a
 * change that has begun, and the count is the same at guard_closed_still(), no
 * byte of it was changed in between.
 *
 * No look is lost so, though nothing is remembered of the release that asked
 * for it. Who finds a writer need not look: the writer's release asks again,
 * after he is not counted any more, and what waits for the thread until then
 * looks at what he left. Who finds the file changed when he has looked asks for
 * another look himself, as not every change ends with a release. So after the
 * last change and the last release there is a look that begins later, and that
 * nothing comes between.
 *
 * Somebody who has the file mapped, and closed it, is not seen: see `left` in
 * file/state.h.
 */
#include <sys/stat.h>

#include "store/guard/guard_private.h"

bool guard_closed_begin(struct guard *g, uint64_t id, unsigned writers,
			struct guard_closed *ret)
{
	struct inode *in;

	*ret = (struct guard_closed){ .g = g };
	if (inode_get(g->use.inodes, id, &in) < 0)
		return false;
	ret->in = in;
	if (inode_load_file(g->use.inodes, in) < 0)
		return false;
	HOLD(&in->changing);
	HOLD(&in->lock);
	ret->changes = in->file->changes;
	return !in->deleted && in->file->state.writers <= writers;
}

bool guard_closed_still(const struct guard_closed *c)
{
	HOLD(&c->in->lock);
	return !c->in->deleted && c->in->file->changes == c->changes;
}

bool guard_closed_untouched(const struct guard_closed *c)
{
	struct stat sb;

	return inode_stat(c->g->use.inodes, c->in, &sb) == 0 &&
	       (sb.st_size == 0 || sb.st_blocks == 0);
}

void guard_closed_end(struct guard_closed *c)
{
	if (c->in)
		inode_put(c->g->use.inodes, c->in, 1);
}
