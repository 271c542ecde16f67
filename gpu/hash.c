/*
 * hash.c - hash where the bytes are. A run is one list of jobs up, one kernel, one list of
 * digests down; all three go through pinned memory, so nothing waits before
 * the end.
 */
#include "gpu/hash.h"

#include <errno.h>
#include <xxhash.h>

#include "gpu/say.h"
#include "gpu/xxh3_device.h"
#include "store/base/scope.h"

#define GRID_MAX 65536u
/* The first run makes room for so many. */
#define JOBS_MIN 1024u

_Static_assert(CHUNK_SECRET_BYTES == XXH3_SECRET_BYTES, "one secret");

struct hasher {
	struct gpu *g; /* NULL: host memory */
	int device;
	uint8_t secret[CHUNK_SECRET_BYTES];
	void *device_secret;
	/* Room for `capacity` jobs, and behind them as many digests. */
	size_t capacity;
	void *device_jobs;
	void *pinned;
};

static size_t jobs_bytes(size_t count)
{
	return count * sizeof(struct hash_job);
}

static size_t digests_bytes(size_t count)
{
	return count * CHUNK_HASH_BYTES;
}

static void hasher_shrink(struct hasher *h)
{
	gpu_free(h->g, h->device, TAKE(h->device_jobs));
	gpu_host_free(h->g, TAKE(h->pinned));
	h->capacity = 0;
}

static int hasher_grow(struct hasher *h, size_t count)
{
	size_t want = h->capacity > 0 ? h->capacity : JOBS_MIN, bytes;
	int rc;

	if (count <= h->capacity)
		return 0;
	if (count > SIZE_MAX / 4 / (sizeof(struct hash_job) + CHUNK_HASH_BYTES))
		return ckpt_say(-EOVERFLOW, "%zu chunks to hash", count);
	while (want < count)
		want *= 2;
	bytes = jobs_bytes(want) + digests_bytes(want);
	hasher_shrink(h);
	rc = gpu_host_alloc(h->g, bytes, &h->pinned);
	if (rc == 0)
		rc = gpu_alloc(h->g, h->device, bytes, &h->device_jobs);
	if (rc < 0) {
		hasher_shrink(h);
		return rc;
	}
	h->capacity = want;
	return 0;
}

/* The secret goes through the pinned buffer, on a stream of its own. */
static int hasher_put_secret(struct hasher *h)
{
	struct gpu_stream *s;
	int rc = gpu_stream_new(h->g, h->device, &s);

	if (rc < 0)
		return rc;
	memcpy(h->pinned, h->secret, sizeof(h->secret));
	rc = gpu_copy_h2d(s, h->device_secret, h->pinned, sizeof(h->secret));
	if (rc == 0)
		rc = gpu_stream_sync(s);
	gpu_stream_free(s);
	return rc;
}

static void scope_hasher_free(struct hasher **h)
{
	hasher_free(*h);
}

int hasher_new(struct gpu *g, int device,
	       const uint8_t secret[CHUNK_SECRET_BYTES],
	       struct hasher **ret_hasher)
{
	SCOPED(scope_hasher_free) struct hasher *h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return ckpt_say(-ENOMEM, "no memory");
	h->device = device;
	memcpy(h->secret, secret, sizeof(h->secret));
	if (device >= 0) {
		if (!g || !gpu_has_kernels(g))
			return ckpt_say(-ENODEV, "cannot hash on device %d: %s",
					device,
					g ? "this library was built without "
					    "nvcc" :
					    "there is no CUDA driver");
		h->g = g;
		rc = gpu_alloc(g, device, sizeof(h->secret), &h->device_secret);
		if (rc == 0)
			rc = hasher_grow(h, JOBS_MIN);
		if (rc == 0)
			rc = hasher_put_secret(h);
		if (rc < 0)
			return rc;
	}
	*ret_hasher = TAKE(h);
	return 0;
}

void hasher_free(struct hasher *h)
{
	if (!h)
		return;
	if (h->g) {
		hasher_shrink(h);
		gpu_free(h->g, h->device, h->device_secret);
	}
	free(h);
}

static int hash_on_device(struct hasher *h, struct gpu_stream *s,
			  const struct hash_range *ranges, size_t count,
			  uint8_t (*digests)[CHUNK_HASH_BYTES])
{
	struct hash_job *jobs;
	void *digests_at;
	uint8_t *pinned_digests;
	uint64_t n = count;
	unsigned grid = count < GRID_MAX ? (unsigned)count : GRID_MAX;
	bool rest = false;
	void *args[] = { &h->device_jobs, &n, &h->device_secret, &digests_at };
	int rc = hasher_grow(h, count);

	if (rc < 0)
		return rc;
	jobs = h->pinned;
	digests_at = (uint8_t *)h->device_jobs + jobs_bytes(h->capacity);
	pinned_digests = (uint8_t *)h->pinned + jobs_bytes(h->capacity);
	for (size_t i = 0; i < count; i++) {
		jobs[i].data = (uint64_t)(uintptr_t)ranges[i].data;
		jobs[i].len = ranges[i].len;
		rest = rest || hash_is_rest(&jobs[i]);
	}
	rc = gpu_copy_h2d(s, h->device_jobs, jobs, jobs_bytes(count));
	if (rc == 0)
		rc = gpu_launch(s, "hash_chunks", grid, HASH_THREADS, args);
	if (rc == 0 && rest)
		rc = gpu_launch(s, "hash_chunks_rest", grid, HASH_THREADS,
				args);
	if (rc == 0)
		rc = gpu_copy_d2h(s, pinned_digests, digests_at,
				  digests_bytes(count));
	/*
	 * After an error too: what was enqueued reads the pinned buffer, which
	 * the next run writes.
	 */
	if (rc < 0)
		(void)gpu_stream_sync(s);
	else
		rc = gpu_stream_sync(s);
	if (rc < 0)
		return rc;
	memcpy(digests, pinned_digests, digests_bytes(count));
	return 0;
}

int hasher_run(struct hasher *h, struct gpu_stream *s,
	       const struct hash_range *ranges, size_t count,
	       uint8_t (*digests)[CHUNK_HASH_BYTES])
{
	XXH128_canonical_t canonical;

	if (count == 0)
		return 0;
	if (h->g)
		return hash_on_device(h, s, ranges, count, digests);
	for (size_t i = 0; i < count; i++) {
		XXH128_canonicalFromHash(
			&canonical,
			XXH3_128bits_withSecret(ranges[i].data, ranges[i].len,
						h->secret, sizeof(h->secret)));
		memcpy(digests[i], canonical.digest, CHUNK_HASH_BYTES);
	}
	return 0;
}
