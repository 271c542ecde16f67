/* unchanged.c - see unchanged.h. */
#include "gpu/unchanged.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/hash.h"
#include "store/base/scope.h"

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
			rc = copy_stream(c, device, t->stream, &stream);
		ranges[n++] = (struct hash_range){
			t->data + chunks[i].from, chunks[i].bytes
		};
	}
	if (rc < 0 || n == 0)
		return rc;
	{
		HOLD(&c->hashers_turn);
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
	int devices = c->gpu ? gpu_device_count(c->gpu) : 0;
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
static const struct chunk *find_twin(struct table *t, size_t i)
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

static uint8_t *place_of(const struct segment *s, const struct chunk *k)
{
	return s->memory + k->tensor->offset + k->from;
}

/* Neighbours are copied together. */
static void add_job(struct unchanged *u, const struct segment *s,
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
		.to = place_of(s, k),
	};
}

static void decide(const struct segment *s, const struct chunk *chunks,
		   struct table *table, struct unchanged *u)
{
	bool known = s->digests_valid && s->digest_count == u->chunk_count;

	for (size_t i = 0; i < u->chunk_count; i++) {
		const struct chunk *k = &chunks[i], *twin;

		if (k->tensor->stride) { /* not hashed */
			add_job(u, s, k);
			continue;
		}
		twin = find_twin(table, i);
		if (known && memcmp(s->digests[i], u->digests[i], 16) == 0) {
			u->skipped_bytes += k->bytes;
		} else if (twin && k->tensor->device != CKPT_DEVICE_HOST) {
			u->skipped_bytes += k->bytes;
			u->twins[u->twin_count++] = (struct unchanged_twin){
				place_of(s, twin), place_of(s, k), k->bytes
			};
		} else {
			add_job(u, s, k);
		}
	}
}

int unchanged_find(struct ckpt *c, const struct segment *s,
		   const struct layout *l, struct unchanged *ret)
{
	SCOPED(scope_free) struct chunk *chunks = NULL;
	SCOPED(scope_free) uint32_t *slots = NULL;
	struct table table = { 0 };
	size_t room = 2;
	int rc;

	memset(ret, 0, sizeof(*ret));
	ret->chunk_count = count_chunks(l);
	while (room < 2 * ret->chunk_count)
		room *= 2;
	chunks = calloc(ret->chunk_count + 1, sizeof(*chunks));
	slots = calloc(room, sizeof(*slots));
	ret->jobs = calloc(ret->chunk_count + 1, sizeof(*ret->jobs));
	ret->twins = calloc(ret->chunk_count + 1, sizeof(*ret->twins));
	ret->digests = calloc(ret->chunk_count + 1, sizeof(*ret->digests));
	if (!chunks || !slots || !ret->jobs || !ret->twins || !ret->digests) {
		unchanged_release(ret);
		return ckpt_say(-ENOMEM, "no memory for %zu hashes",
				ret->chunk_count);
	}
	list_chunks(l, chunks);
	rc = hash_all(c, chunks, ret->chunk_count, ret->digests);
	if (rc < 0) {
		unchanged_release(ret);
		return rc;
	}
	table.chunks = chunks;
	table.digests = ret->digests;
	table.slots = slots;
	table.mask = room - 1;
	decide(s, chunks, &table, ret);
	return 0;
}

void unchanged_remember(struct unchanged *u, struct segment *s)
{
	free(s->digests);
	s->digests = TAKE(u->digests);
	s->digest_count = u->chunk_count;
	s->digests_valid = true;
}

void unchanged_close(struct ckpt *c)
{
	for (int i = 0; i <= CKPT_DEVICES_MAX; i++)
		hasher_free(TAKE(c->hashers[i]));
}

void unchanged_release(struct unchanged *u)
{
	free(u->jobs);
	free(u->twins);
	free(u->digests);
	memset(u, 0, sizeof(*u));
}
