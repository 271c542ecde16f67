/* stash_memory.c - one call for a device and for the host. */
#include "gpu/stash_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int stash_alloc(const struct stash_memory *m, uint64_t len, void **ret_p)
{
	void *p = NULL;

	if (m->g)
		return gpu_alloc(m->g, m->device, len, ret_p);
	if (posix_memalign(&p, STASH_ALIGN, len) != 0)
		return ckpt_say(-ENOMEM, "no memory for a stash of %llu bytes",
				(unsigned long long)len);
	*ret_p = p;
	return 0;
}

void stash_unalloc(const struct stash_memory *m, void *p)
{
	if (m->g)
		gpu_free(m->g, m->device, p);
	else
		free(p);
}

int stash_host_alloc(const struct stash_memory *m, uint64_t len, void **ret_p)
{
	int rc = m->g ? gpu_host_alloc(m->g, len, ret_p)
		      : stash_alloc(m, len, ret_p);

	if (rc == 0 && m->g)
		CKPT_COUNT(m->c, pinned_bytes, len);
	return rc;
}

void stash_host_unalloc(const struct stash_memory *m, void *p, uint64_t len)
{
	if (!p)
		return;
	if (!m->g) {
		free(p);
		return;
	}
	gpu_host_free(m->g, p);
	CKPT_COUNT(m->c, pinned_bytes, -len);
}

int stash_put(const struct stash_memory *m, void *to, uint64_t size,
	      const void *from, size_t len)
{
	struct gpu_stream *own;
	void *pinned = NULL;
	int rc;

	if (!m->g) {
		memset(to, 0, size);
		if (len > 0)
			memcpy(to, from, len);
		return 0;
	}
	rc = gpu_stream_new(m->g, m->device, &own);
	if (rc < 0)
		return rc;
	rc = gpu_zero(own, to, size);
	if (rc == 0 && len > 0)
		rc = gpu_host_alloc(m->g, len, &pinned);
	if (rc == 0 && len > 0) {
		memcpy(pinned, from, len);
		rc = gpu_copy_h2d(own, to, pinned, len);
	}
	if (rc == 0)
		rc = gpu_stream_sync(own);
	gpu_host_free(m->g, pinned);
	gpu_stream_free(own);
	return rc;
}
