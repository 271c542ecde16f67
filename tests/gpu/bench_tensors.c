/*
 * bench_tensors.c - tensors as a model has them: a few large ones, most of the
 * bytes in middle-sized ones, and many that are next to nothing. They lie in
 * one allocation, so that the machine's side can be a single copy.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "store/base/scope.h"
#include "tests/gpu/gpu_bench.h"

#define PLACE_ALIGN 256u
#define HUGE_BYTES (UINT64_C(2) << 20)

/* xorshift: as fast as memory, and no two chunks of it are alike. */
void fill_random(void *p, uint64_t len, uint64_t seed)
{
	uint64_t x = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
	uint8_t *at = p;

	for (uint64_t i = 0; i < len; i += sizeof(x)) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(at + i, &x, len - i < sizeof(x) ? len - i : sizeof(x));
	}
}

void *host_new(uint64_t len)
{
	void *p = NULL;

	if (posix_memalign(&p, HUGE_BYTES, len > 0 ? len : 1) != 0)
		die("no memory: %llu bytes", (unsigned long long)len);
	(void)madvise(p, len, MADV_HUGEPAGE);
	return p;
}

static void add(struct tensors *t, const char *prefix, uint64_t at,
		uint64_t bytes)
{
	struct tensor *n = &t->list[t->count];

	(void)snprintf(n->name, sizeof(n->name), "%s.%05zu", prefix, t->count);
	n->at = at;
	n->bytes = bytes;
	n->rank = 2;
	if (bytes == sizeof(float)) { /* a scalar: a step, a scale */
		n->dtype = "F32";
		n->rank = 0;
	} else if (bytes % 8192 == 0) {
		n->dtype = "BF16";
		n->shape[0] = bytes / 8192;
		n->shape[1] = 4096;
	} else {
		n->dtype = "U8";
		n->shape[0] = 1;
		n->shape[1] = bytes;
	}
	t->payload += bytes;
	t->count++;
}

void tensors_new(struct tensors *t, int device, uint64_t bytes,
		 const char *prefix)
{
	const uint64_t sizes[] = { bytes / 64,  8192,  bytes / 128,     4,
				   bytes / 256, 65536, bytes / 512 + 2, 12 };
	uint64_t at = 0, n = bytes / 8;
	size_t room = 4096;

	memset(t, 0, sizeof(*t));
	t->device = device;
	t->bytes = bytes;
	t->list = calloc(room, sizeof(*t->list));
	if (!t->list)
		die("no memory");
	for (size_t i = 0; bytes - at >= n && t->count < room; i++) {
		add(t, prefix, at, n);
		at += (n + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
		if (at >= bytes)
			break;
		n = sizes[i % (sizeof(sizes) / sizeof(*sizes))];
	}
	t->truth = host_new(bytes);
	fill_random(t->truth, bytes, 77 * (unsigned)(device + 1));
	t->data = device_new(device, bytes);
	t->stream = stream_new(device);
	put(t->stream, t->data, t->truth, bytes);
}

void tensors_free(struct tensors *t)
{
	gpu_stream_free(t->stream);
	gpu_free(gpu, t->device, t->data);
	free(t->truth);
	free(t->list);
}

void tensors_stamp(struct tensors *t, uint64_t stamp)
{
	for (size_t i = 0; i < t->count; i++) {
		const struct tensor *n = &t->list[i];
		uint64_t mark[2] = { stamp, i }, len = sizeof(mark);

		if (len > n->bytes)
			len = n->bytes;
		memcpy(t->truth + n->at, mark, len);
		memcpy(t->truth + n->at + n->bytes - len, mark, len);
		must(gpu_copy_h2d(t->stream, t->data + n->at, t->truth + n->at,
				  len),
		     "stamp");
		must(gpu_copy_h2d(t->stream, t->data + n->at + n->bytes - len,
				  t->truth + n->at + n->bytes - len, len),
		     "stamp");
	}
	finish(t->stream);
}

struct ckpt_tensor tensor_of(const struct tensors *t, size_t i)
{
	const struct tensor *n = &t->list[i];

	return (struct ckpt_tensor){
		.name = n->name,
		.dtype = n->dtype,
		.shape = n->shape,
		.rank = n->rank,
		.data = t->data + n->at,
		.device = t->device,
		.stream = t->stream->raw,
	};
}
