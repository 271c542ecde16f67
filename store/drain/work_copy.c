/*
 * work_copy.c - what a file is read from when the memory that it was saved in
 * has gone back to its client.
 *
 * A client who has saved through a segment keeps its mapping, and may write to
 * it at any time; what he writes after the commit is not what is made durable.
 * So a durable file does not keep that memory as its cache (file_end()). But a
 * save is often read right after it was made, and the disk is slow: what the
 * drain has read and hashed of it is put into memory of the daemon's own on the
 * way, if there is room, and that is the cache. Nobody has it until the file is
 * durable, so a failure costs the cache and nothing else.
 */
#include <fcntl.h>
#include <unistd.h>

#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/drain/drain_private.h"
#include "store/drain/work.h"
#include "store/file/state.h"

void work_copy_begin(struct drain *d, struct work *w)
{
	if (!w->stage->sealed ||
	    stage_create_cache(d->stages, w->in->ino, w->size_bytes, &w->copy) <
		    0)
		return;
	w->copy_fd = stage_open(d->stages, w->copy, O_RDWR);
	if (w->copy_fd < 0 || ftruncate(w->copy_fd, (off_t)w->size_bytes) < 0)
		atomic_store(&w->copy_failed, true);
}

void work_copy_span(struct work *w, uint32_t first, uint32_t end,
		    const uint8_t *base)
{
	while (w->copy && first < end && !atomic_load(&w->copy_failed)) {
		uint64_t from = w->chunks[first].offset, to = from;

		while (first < end && w->chunks[first].kind != CHUNK_ZERO)
			to = chunk_end(&w->chunks[first++]);
		if (to == from)
			first++;
		else if (io_write_full(w->copy_fd, base + from,
				       (size_t)(to - from), from) < 0)
			atomic_store(&w->copy_failed, true);
	}
}

void work_copy_end(struct drain *d, struct work *w)
{
	struct timespec times[2] = { { 0, UTIME_OMIT },
				     io_timespec(w->mtime_ns) };

	if (w->copy)
		stage_set_times(d->stages, w->copy, times);
}

struct stage *work_copy_take_locked(struct work *w)
{
	/* One that was set by hand is in no content: the copy has it not. */
	bool own_time = w->in->attr.mtime_gen < w->number;

	if (!own_time || atomic_load(&w->copy_failed) ||
	    !file_may_move(&w->in->file->state, FILE_FOUND))
		return NULL;
	return TAKE(w->copy);
}
