/* stash_memory.c - see stash_memory.h. */
#include "gpu/stash_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int stash_alloc(struct ckpt_stash *s, uint64_t len, void **ret_p)
{
	void *p = NULL;

	if (s->g)
		return gpu_alloc(s->g, s->device, len, ret_p);
	if (posix_memalign(&p, STASH_ALIGN, len) != 0)
		return ckpt_say(-ENOMEM, "no memory for a stash of %llu bytes",
				(unsigned long long)len);
	*ret_p = p;
	return 0;
}

void stash_unalloc(struct ckpt_stash *s, void *p)
{
	if (s->g)
		gpu_free(s->g, s->device, p);
	else
		free(p);
}

int stash_host_alloc(struct ckpt_stash *s, uint64_t len, void **ret_p)
{
	int rc = s->g ? gpu_host_alloc(s->g, len, ret_p)
		      : stash_alloc(s, len, ret_p);

	if (rc == 0 && s->g)
		CKPT_COUNT(s->c, pinned_bytes, len);
	return rc;
}

void stash_host_unalloc(struct ckpt_stash *s, void *p, uint64_t len)
{
	if (!p)
		return;
	if (!s->g) {
		free(p);
		return;
	}
	gpu_host_free(s->g, p);
	CKPT_COUNT(s->c, pinned_bytes, -len);
}

int stash_put(struct ckpt_stash *s, void *to, uint64_t size, const void *from,
	      size_t len)
{
	struct gpu_stream *own;
	void *pinned = NULL;
	int rc;

	if (!s->g) {
		memset(to, 0, size);
		if (len > 0)
			memcpy(to, from, len);
		return 0;
	}
	rc = gpu_stream_new(s->g, s->device, &own);
	if (rc < 0)
		return rc;
	rc = gpu_zero(own, to, size);
	if (rc == 0 && len > 0)
		rc = gpu_host_alloc(s->g, len, &pinned);
	if (rc == 0 && len > 0) {
		memcpy(pinned, from, len);
		rc = gpu_copy_h2d(own, to, pinned, len);
	}
	if (rc == 0)
		rc = gpu_stream_sync(own);
	gpu_host_free(s->g, pinned);
	gpu_stream_free(own);
	return rc;
}
