/*
 * unchanged.c - hash, compare, and copy the rest. See unchanged.h.
 *
 * All tensors are cut into chunks, in one list, and each device hashes its own
 * in one run. A chunk is then skipped, or copied from an equal chunk within the
 * segment, or copied from where the tensor is; neighbours become one copy.
 */
#include "gpu/unchanged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/copy.h"
#include "gpu/crew.h"
#include "gpu/hash.h"
#include "store/base/scope.h"

/* What is to be done for one save, and what it is known by next time. */
struct unchanged {
	struct copy_job *jobs; /* what is to be copied; owned */
	size_t job_count;
	struct repeat { /* then these, within the segment */
		const uint8_t *from;
		uint8_t *to;
		uint64_t bytes;
	} * repeats; /* owned */
	size_t repeat_count;
	uint64_t skipped_bytes;
	uint8_t (*digests)[16]; /* of all chunks; owned */
	size_t chunk_count;
};

struct chunk {
	const struct layout_tensor *tensor;
	uint64_t from, bytes;
};

static size_t count_chunks(const struct layout *l)
{
	size_t n = 0;

	for (size_t i = 0; i < l->count; i++)
		n += (size_t)((l->tensors[i].bytes + UNCHANGED_CHUNK_BYTES - 1) /
			      UNCHANGED_CHUNK_BYTES);
	return n;
}

static void list_chunks(const struct layout *l, struct chunk *chunks)
{
	for (size_t i = 0; i < l->count; i++) {
		const struct layout_tensor *t = &l->tensors[i];

		for (uint64_t at = 0; at < t->bytes;) {
			uint64_t n = t->bytes - at;

			if (n > UNCHANGED_CHUNK_BYTES)
				n = UNCHANGED_CHUNK_BYTES;
			*chunks++ = (struct chunk){ t, at, n };
			at += n;
		}
	}
}

/* Hash those chunks that lie on `device`, in one run. */
static int hash_device(struct ckpt *c, int device, const struct chunk *chunks,
		       size_t count, uint8_t (*digests)[16])
{
	SCOPED(scope_free) struct hash_range *ranges =
		calloc(count + 1, sizeof(*ranges));
	SCOPED(scope_free) uint8_t(*found)[16] =
		calloc(count + 1, sizeof(*found));
	struct gpu_stream *stream = NULL;
	struct hasher **h = &c->hashers[device + 1];
	size_t n = 0;
	int rc = 0;

	if (!ranges || !found)
		return ckpt_say(-ENOMEM, "no memory for hashes");
	for (size_t i = 0; i < count && rc == 0; i++) {
		const struct layout_tensor *t = chunks[i].tensor;

		if (t->device != device || t->stride)
			continue;
		if (device >= 0 && (n == 0 || chunks[i].from == 0))
			rc = copy_stream(c, device, t->ready, &stream);
		ranges[n++] = (struct hash_range){
			t->data + chunks[i].from, chunks[i].bytes
		};
	}
	if (rc < 0 || n == 0)
		return rc;
	{
		HOLD(&c->hashers_lock);
		if (!*h)
			rc = hasher_new(c->gpu, device, c->secret, h);
		if (rc == 0)
			rc = hasher_run(*h, stream, ranges, n, found);
	}
	n = 0;
	for (size_t i = 0; i < count && rc == 0; i++)
		if (chunks[i].tensor->device == device &&
		    !chunks[i].tensor->stride)
			memcpy(digests[i], found[n++], sizeof(*digests));
	return rc;
}

/* Host memory, and each device that has tensors. */
static int hash_all(struct ckpt *c, const struct chunk *chunks, size_t count,
		    uint8_t (*digests)[16])
{
	struct gpu *gpu = ckpt_driver_opened(c);
	int devices = gpu ? gpu_device_count(gpu) : 0;
	int rc = 0;

	for (int d = CKPT_DEVICE_HOST; d < devices && rc == 0; d++)
		rc = hash_device(c, d, chunks, count, digests);
	return rc;
}

/* A table of chunks by digest, to find equal ones. */
struct table {
	const struct chunk *chunks;
	uint8_t (*digests)[16];
	uint32_t *slots; /* index + 1 */
	size_t mask;
};

/* An earlier chunk of this save with the same bytes, or NULL. */
static const struct chunk *find_equal(struct table *t, size_t i)
{
	uint64_t hash;
	size_t at;

	memcpy(&hash, t->digests[i], sizeof(hash));
	for (at = hash & t->mask; t->slots[at] != 0; at = (at + 1) & t->mask) {
		size_t other = t->slots[at] - 1;

		if (t->chunks[other].bytes == t->chunks[i].bytes &&
		    memcmp(t->digests[other], t->digests[i], 16) == 0)
			return &t->chunks[other];
	}
	t->slots[at] = (uint32_t)i + 1;
	return NULL;
}

static uint8_t *place_of(const struct mapping *p, const struct chunk *k)
{
	return p->memory + k->tensor->offset + k->from;
}

/* Neighbours are copied together. */
static void add_job(struct unchanged *u, const struct mapping *p,
		    const struct chunk *k)
{
	struct copy_job *last = u->job_count ? &u->jobs[u->job_count - 1] :
					       NULL;

	if (last && last->tensor == k->tensor &&
	    last->from + last->bytes == k->from) {
		last->bytes += k->bytes;
		return;
	}
	u->jobs[u->job_count++] = (struct copy_job){
		.tensor = k->tensor,
		.from = k->from,
		.bytes = k->bytes,
		.to = place_of(p, k),
	};
}

static void decide(const struct mapping *p, const struct chunk *chunks,
		   struct table *table, struct unchanged *u)
{
	bool known = p->digests_valid && p->digest_count == u->chunk_count;

	for (size_t i = 0; i < u->chunk_count; i++) {
		const struct chunk *k = &chunks[i], *equal;

		if (k->tensor->stride) { /* not hashed */
			add_job(u, p, k);
			continue;
		}
		equal = find_equal(table, i);
		if (known && memcmp(p->digests[i], u->digests[i], 16) == 0) {
			u->skipped_bytes += k->bytes;
		} else if (equal && k->tensor->device != CKPT_DEVICE_HOST) {
			u->skipped_bytes += k->bytes;
			u->repeats[u->repeat_count++] =
				(struct repeat){ place_of(p, equal),
						 place_of(p, k), k->bytes };
		} else {
			add_job(u, p, k);
		}
	}
}

/* Hash, and decide. */
static int find(struct ckpt *c, const struct mapping *p, const struct layout *l,
		struct unchanged *ret)
{
	SCOPED(scope_free) struct chunk *chunks = NULL;
	SCOPED(scope_free) uint32_t *slots = NULL;
	struct table table = { 0 };
	size_t room = 2;
	int rc;

	ret->chunk_count = count_chunks(l);
	while (room < 2 * ret->chunk_count)
		room *= 2;
	chunks = calloc(ret->chunk_count + 1, sizeof(*chunks));
	slots = calloc(room, sizeof(*slots));
	ret->jobs = calloc(ret->chunk_count + 1, sizeof(*ret->jobs));
	ret->repeats = calloc(ret->chunk_count + 1, sizeof(*ret->repeats));
	ret->digests = calloc(ret->chunk_count + 1, sizeof(*ret->digests));
	if (!chunks || !slots || !ret->jobs || !ret->repeats || !ret->digests)
		return ckpt_say(-ENOMEM, "no memory for %zu hashes",
				ret->chunk_count);
	list_chunks(l, chunks);
	rc = hash_all(c, chunks, ret->chunk_count, ret->digests);
	if (rc < 0)
		return rc;
	table.chunks = chunks;
	table.digests = ret->digests;
	table.slots = slots;
	table.mask = room - 1;
	decide(p, chunks, &table, ret);
	return 0;
}

static int copy_repeat(void *arg, size_t index)
{
	const struct unchanged *u = arg;
	const struct repeat *r = &u->repeats[index];

	memcpy(r->to, r->from, r->bytes);
	return 0;
}

/* What they are copied from is a chunk that is there, and no repeat itself. */
static int copy_repeats(struct ckpt *c, struct unchanged *u)
{
	for (size_t i = 0; i < u->repeat_count; i++)
		CKPT_COUNT(c, host_bytes, u->repeats[i].bytes);
	if (crew_once(c->copy_threads, u->repeat_count, copy_repeat, u) < 0)
		return ckpt_say(-ENOMEM, "no memory for threads");
	return 0;
}

static void scope_unchanged(struct unchanged *u)
{
	free(u->jobs);
	free(u->repeats);
	free(u->digests);
}

int unchanged_copy_rest(struct ckpt *c, struct mapping *p,
			const struct layout *l, uint64_t *ret_skipped_bytes)
{
	SCOPED(scope_unchanged) struct unchanged u = { 0 };
	int rc = find(c, p, l, &u);

	if (rc < 0)
		return rc;
	p->digests_valid = false;
	rc = copy_run(c, u.jobs, u.job_count);
	if (rc == 0)
		rc = copy_repeats(c, &u);
	if (rc < 0)
		return rc;
	free(p->digests);
	p->digests = TAKE(u.digests);
	p->digest_count = u.chunk_count;
	p->digests_valid = true;
	*ret_skipped_bytes = u.skipped_bytes;
	return 0;
}

void unchanged_close(struct ckpt *c)
{
	for (int i = 0; i <= CKPT_DEVICES_MAX; i++)
		hasher_free(TAKE(c->hashers[i]));
}
