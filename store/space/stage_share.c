/*
 * stage_share.c - whose the memory of the stage is: see shares.h.
 *
 * What a file was allocated counts as its owner's as long as it is not clean;
 * a clean one goes when its memory is wanted. Segments have a quota of their
 * own, and count as nobody's. What a writer adds beyond what was allocated is
 * seen by nobody, and does not count.
 */
#include "store/space/stage_private.h"

#include <errno.h>

#include "store/base/scope.h"

void stage_count_locked(struct stages *st, struct stage *s)
{
	if (s->counted || s->memory_bytes == 0)
		return;
	shares_add_bytes(&st->shares, s->uid, s->memory_bytes);
	s->counted = true;
}

void stage_uncount_locked(struct stages *st, struct stage *s)
{
	if (s->counted)
		shares_give_bytes(&st->shares, s->uid, s->memory_bytes);
	s->counted = false;
}

bool stage_take_share(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	uint64_t used, total, free;

	stages_usage(st, &used, &total);
	if (size_bytes > total)
		return false; /* it will never fit */
	HOLD(&st->lock);
	used -= used < st->clean_bytes ? used : st->clean_bytes;
	free = used < total ? total - used : 0;
	if (!shares_take_bytes(&st->shares, s->uid, size_bytes, free,
			       mono_ns()))
		return false;
	stage_count_locked(st, s); /* what it had before */
	s->memory_bytes += size_bytes;
	s->counted = true;
	return true;
}

int stage_make_shared(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	uint64_t used, total;
	int rc;

	if (!stage_take_share(st, s, size_bytes))
		return -ENOSPC;
	rc = stage_make_memory(st, s, size_bytes, true);
	if (rc == 0)
		return 0;
	stages_usage(st, &used, &total);
	HOLD(&st->lock);
	stage_uncount_locked(st, s);
	s->memory_bytes = 0;
	if (rc == -ENOSPC && size_bytes <= total) /* or it will never fit */
		shares_want(&st->shares, s->uid, mono_ns());
	return rc;
}
