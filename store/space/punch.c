/*
 * punch.c - see punch.h. The K records of an image are read in the order of
 * their offsets, and what lies between two of them is a gap; of each gap what
 * waits is taken out, and what is left grows to whole blocks where nothing else
 * lies in them.
 */
#include "store/space/punch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/db/kv.h"
#include "store/db/records.h"
#include "store/space/image.h"

#define BLOCK UINT64_C(4096)

static int span_compare(const void *pa, const void *pb)
{
	const struct punch_span *a = pa, *b = pb;

	if (a->image != b->image)
		return a->image < b->image ? -1 : 1;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return 0;
}

int punch_waiting_add(struct punch_waiting *w, uint64_t image, uint64_t offset,
		      uint64_t len)
{
	int rc = vec_grow(&w->at, w->count, &w->capacity, sizeof(*w->at));

	if (rc == 0)
		w->at[w->count++] =
			(struct punch_span){ image, offset, offset + len };
	return rc;
}

void punch_waiting_sort(struct punch_waiting *w)
{
	if (w->count > 0)
		qsort(w->at, w->count, sizeof(*w->at), span_compare);
	/* Each ends where the furthest before it does: then ends are sorted. */
	for (size_t i = 1; i < w->count; i++)
		if (w->at[i].image == w->at[i - 1].image &&
		    w->at[i].end < w->at[i - 1].end)
			w->at[i].end = w->at[i - 1].end;
}

/* The first waiting range of the image that ends after `at`, or NULL. */
static const struct punch_span *waiting_after(const struct punch_waiting *w,
					      uint64_t image, uint64_t at)
{
	size_t low = 0, high = w->count;

	while (low < high) {
		size_t mid = (low + high) / 2;
		const struct punch_span *s = &w->at[mid];

		if (s->image < image || (s->image == image && s->end <= at))
			low = mid + 1;
		else
			high = mid;
	}
	return low < w->count && w->at[low].image == image ? &w->at[low] : NULL;
}

bool punch_waits(const struct punch_waiting *w, uint64_t image, uint64_t from,
		 uint64_t to)
{
	const struct punch_span *s = waiting_after(w, image, from);

	return from < to && s && s->offset < to;
}

static int plan_add(struct punch_plan *p, uint64_t from, uint64_t to)
{
	int rc = vec_grow(&p->holes, p->count, &p->capacity, sizeof(*p->holes));

	if (rc == 0)
		p->holes[p->count++] = (struct punch_hole){ from, to };
	return rc;
}

/*
 * [from, to) without chunks: what of it does not wait, and as much around it
 * as whole blocks in which nothing lies and nothing waits.
 */
static int plan_gap(struct punch_plan *p, const struct punch_waiting *w,
		    uint64_t from, uint64_t to, uint64_t used_before,
		    uint64_t used_after)
{
	while (from < to) {
		const struct punch_span *s =
			waiting_after(w, p->image->id, from);
		uint64_t end = s && s->offset < to ? s->offset : to;

		if (end > from) {
			uint64_t low = from & ~(BLOCK - 1);
			uint64_t high = (end + BLOCK - 1) & ~(BLOCK - 1);
			uint64_t id = p->image->id;
			int rc;

			if (low < used_before || punch_waits(w, id, low, from))
				low = from;
			if (high > used_after || punch_waits(w, id, end, high))
				high = end;
			rc = plan_add(p, low, high);
			if (rc < 0)
				return rc;
		}
		from = s && s->end > end ? s->end : end;
	}
	return 0;
}

/* The gaps between the chunks that overlap [offset, offset + len). */
int punch_plan_range(struct kv *kv, const struct punch_waiting *w,
		     struct punch_plan *p, uint64_t offset, uint64_t len)
{
	uint64_t end = offset + len, at = offset, used_before = 0;
	struct key prefix = key_ino('K', p->image->id);
	struct key start = key_chunk(p->image->id, offset);
	uint64_t after = UINT64_MAX;
	struct kv_slice key, value;
	struct kv_iter *it;
	bool any = false;
	int rc;

	/* From the chunk before: it may reach into the range, or its block. */
	rc = kv_iter_new_before(kv, prefix.data, prefix.len, start.data,
				start.len, &it);
	if (rc < 0)
		return rc;
	while ((rc = kv_iter_next(it, &key, &value)) == 1) {
		struct chunk_rec k;
		uint64_t chunk;

		any = true;
		if (key.len != 17 ||
		    chunk_decode(value.data, value.len, &k) < 0) {
			rc = -EIO;
			break;
		}
		chunk = get_be64((const uint8_t *)key.data + 9);
		if (chunk >= end) {
			after = chunk;
			break;
		}
		if (chunk > at) {
			rc = plan_gap(p, w, at, chunk, used_before, chunk);
			if (rc < 0)
				break;
		}
		if (chunk + k.len > at)
			at = chunk + k.len;
		used_before = chunk + k.len;
	}
	kv_iter_free(it);
	if (rc >= 0 && at < end)
		rc = plan_gap(p, w, at, end, used_before, after);
	if (rc < 0)
		return rc;
	p->empty = !any && !punch_waits(w, p->image->id, 0, UINT64_MAX);
	return 0;
}

static int punch(int fd, const struct punch_hole *h, uint64_t *freed)
{
	struct stat before, after;

	if (fstat(fd, &before) < 0)
		return -errno;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)h->from, (off_t)(h->to - h->from)) < 0)
		return errno == EOPNOTSUPP ? 0 : -errno;
	if (fstat(fd, &after) == 0 && after.st_blocks < before.st_blocks)
		*freed += (uint64_t)(before.st_blocks - after.st_blocks) * 512;
	return 0;
}

int punch_holes(struct images *im, const struct punch_plan *p, uint64_t *freed)
{
	SCOPED(scope_close) int fd = image_open_fd(im, p->image, O_RDWR);
	int rc = fd < 0 ? fd : 0;

	for (size_t i = 0; rc == 0 && i < p->count; i++)
		rc = punch(fd, &p->holes[i], freed);
	return rc;
}
