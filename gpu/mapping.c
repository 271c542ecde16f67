/*
 * mapping.c - the list of a mount's mappings, and what becomes of each.
 *
 * Whatever ends a use of a mapping (a commit, a return, a load that is done,
 * the mount's word, the end of the connection) asks the same question, under
 * mount.lock: is it idle, and to go? Who gets a yes has taken the mapping out
 * of the list, and is the only one who knows it: it is unmapped without a lock.
 */
#include "gpu/mapping.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "gpu/crew.h"
#include "gpu/map.h"
#include "store/base/io.h"
#include "store/base/scope.h"

static void mapping_free(struct mapping *p)
{
	struct ckpt *c = p->mount->c;

	if (p->pinned) {
		gpu_unregister(c->gpu, p->memory);
		(void)atomic_fetch_sub(&c->counters.pinned_bytes,
				       p->size_bytes);
	}
	if (p->memory)
		(void)munmap(p->memory, p->size_bytes);
	free(p->digests);
	free(p);
}

/* --- An end of a use -------------------------------------------------------
 */

static bool is_idle_locked(const struct mapping *p)
{
	return !p->filling && p->readers == 0;
}

bool mapping_is_over_locked(struct mapping *p)
{
	struct ckpt_mount *m = p->mount;

	pthread_cond_broadcast(&m->changed);
	if (!is_idle_locked(p) ||
	    (p->connection == m->connection && !p->wanted_back))
		return false;
	LIST_REMOVE(p, entry);
	return true;
}

/* In this order: what the mount is told of is to be its own again. */
void mapping_remove(struct mapping *p)
{
	struct ckpt_mount *m = p->mount;
	unsigned connection = p->connection;
	uint64_t id = p->id;

	if (p->wanted_back)
		CKPT_COUNT(m->c, released, 1);
	mapping_free(p);
	mount_drop(m, id, connection);
}

/* Another daemon counts its segments from one as well. */
static struct mapping *find_locked(struct ckpt_mount *m, uint64_t id,
				   unsigned connection)
{
	struct mapping *p;

	LIST_FOREACH(p, &m->mappings, entry)
		if (p->id == id && p->connection == connection)
			break;
	return p;
}

static void released(struct ckpt_mount *m, uint64_t id)
{
	struct mapping *p;
	bool over = false;

	{
		HOLD(&m->lock);
		p = find_locked(m, id, m->connection);
		if (p) {
			p->wanted_back = true;
			over = mapping_is_over_locked(p);
		}
	}
	if (over)
		mapping_remove(p);
}

static void ended(struct ckpt_mount *m, unsigned connection)
{
	for (;;) {
		struct mapping *p;

		{
			HOLD(&m->lock);
			LIST_FOREACH(p, &m->mappings, entry)
				if (p->connection == connection &&
				    is_idle_locked(p))
					break;
			if (!p)
				return;
			LIST_REMOVE(p, entry);
		}
		mapping_free(p);
	}
}

int mapping_find_mount(struct ckpt *c, int dirfd, struct ckpt_mount **ret_mount)
{
	static const struct mount_user user = { released, ended };

	return mount_find(c, dirfd, &user, ret_mount);
}

/* --- A segment that is new -------------------------------------------------
 */

static int populate_part(void *arg, size_t index)
{
	const struct mapping *p = arg;

	{
		HOLD(&p->mount->lock);
		if (p->mount->closing)
			return -ECANCELED;
	}
	/* Kernels without it let the copy do the first touch. */
	(void)map_advise_part(p->memory, p->size_bytes, index,
			      MADV_POPULATE_WRITE);
	return 0;
}

void mapping_populate(struct mapping *p, unsigned threads)
{
	(void)crew_once(threads, map_parts(p->size_bytes), populate_part, p);
}

void mapping_pin(struct mapping *p, unsigned threads)
{
	struct ckpt *c = p->mount->c;

	if (!ckpt_driver_opened(c) || p->pin_tried)
		return;
	p->pin_tried = true;
	mapping_populate(p, threads);
	if (gpu_register(c->gpu, p->memory, p->size_bytes, false) < 0) {
		CKPT_COUNT(c, pin_failures, 1);
		return;
	}
	p->pinned = true;
	CKPT_COUNT(c, pinned_bytes, p->size_bytes);
}

int mapping_new(struct ckpt_mount *m, const uint8_t *signature,
		const struct segment_reply *r, int fd, unsigned connection,
		struct mapping **ret_mapping)
{
	struct segment_request q = {
		.op = SEGMENT_MAPPED,
		.id = r->id,
		.generation = r->generation,
	};
	struct mapping *p = calloc(1, sizeof(*p));
	struct segment_reply answer;
	int rc;

	if (!p)
		return -ENOMEM;
	p->mount = m;
	p->id = r->id;
	p->generation = r->generation;
	p->connection = connection;
	p->filling = true;
	p->fresh = true;
	p->size_bytes = r->size_bytes;
	memcpy(p->signature, signature, sizeof(p->signature));
	p->memory = map_aligned(fd, p->size_bytes, PROT_READ | PROT_WRITE,
				MAP_SHARED);
	if (!p->memory) {
		free(p);
		return -ENOMEM;
	}
	/* A child neither needs it nor may keep it from being used again. */
	(void)madvise(p->memory, p->size_bytes, MADV_DONTFORK);
	rc = mount_request(m, &q, &answer, NULL, NULL);
	if (rc == 0)
		rc = answer.error;
	if (rc < 0) {
		mapping_free(p);
		return rc;
	}
	{
		HOLD(&m->lock);
		LIST_INSERT_HEAD(&m->mappings, p, entry);
	}
	CKPT_COUNT(m->c, segments_new, 1);
	*ret_mapping = p;
	return 0;
}

/* --- One that is there already ---------------------------------------------
 */

struct mapping *mapping_find_again(struct ckpt_mount *m,
				   const struct segment_reply *r,
				   unsigned connection)
{
	struct mapping *p;

	HOLD(&m->lock);
	/*
	 * It is the mount's word that it may be filled, but who filled it
	 * before may not have heard yet that it is committed or returned. When
	 * he has, it may be gone.
	 */
	while ((p = find_locked(m, r->id, connection)) != NULL &&
	       p->size_bytes == r->size_bytes && p->filling)
		pthread_cond_wait(&m->changed, &m->lock);
	if (!p || p->size_bytes != r->size_bytes)
		return NULL;
	p->filling = true;
	p->ino = 0;
	p->generation = r->generation;
	while (p->readers > 0) /* a load of ours copies from it */
		pthread_cond_wait(&m->changed, &m->lock);
	return p;
}

struct mapping *mapping_read_begin(struct ckpt *c, const struct stat *sb)
{
	struct ckpt_mount *m;
	struct mapping *p;

	{
		HOLD(&c->lock);
		m = c->mounts;
	}
	for (; m; m = m->next) {
		HOLD(&m->lock);
		LIST_FOREACH(p, &m->mappings, entry)
			if (p->ino != 0 && p->ino == sb->st_ino &&
			    p->dev == sb->st_dev && !p->filling && p->pinned &&
			    p->connection == m->connection &&
			    p->size_bytes == (uint64_t)sb->st_size &&
			    p->mtime_ns == io_ns(&sb->st_mtim))
				break;
		if (p) {
			p->readers++;
			return p;
		}
	}
	return NULL;
}

void mapping_read_end(struct mapping *p)
{
	bool over;

	{
		HOLD(&p->mount->lock);
		p->readers--;
		over = mapping_is_over_locked(p);
	}
	if (over)
		mapping_remove(p);
}
