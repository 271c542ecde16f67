/*
 * segment_fixture.h - a client of a store that runs without a mount: it maps
 * segments, fills them and commits them as files.
 */
#ifndef TESTS_UNIT_SEGMENT_FIXTURE_H
#define TESTS_UNIT_SEGMENT_FIXTURE_H

#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>

#include "store/drain/drain_private.h"
#include "store/space/reclaim.h"
#include "tests/unit/live_store.h"

#define SIZE (MIB + 12288)

static inline void on_wake(struct segment_client *c)
{
	(void)c;
}

struct client {
	struct live *l;
	struct segment_client sc;
	struct mapped {
		uint64_t id;
		uint8_t *memory;
		size_t len;
	} mapped[8];
};

static inline void client_init(struct client *c, struct live *l)
{
	memset(c, 0, sizeof(*c));
	c->l = l;
	c->sc.wake = on_wake;
	segment_client_add(&l->st->segments, &c->sc);
}

static inline struct mapped *find(struct client *c, uint64_t id)
{
	for (size_t i = 0; i < 8; i++)
		if (c->mapped[i].id == id)
			return &c->mapped[i];
	fail_msg("segment %llu is not mapped", (unsigned long long)id);
	abort();
}

static inline void unmap(struct mapped *m)
{
	munmap(m->memory, m->len);
	memset(m, 0, sizeof(*m));
}

static inline void client_end(struct client *c)
{
	segment_client_remove(&c->l->st->segments, &c->sc);
	segment_client_forget(&c->l->st->segments, &c->sc);
	for (size_t i = 0; i < 8; i++)
		if (c->mapped[i].id)
			unmap(&c->mapped[i]);
}

/* What a client does that was asked for memory. */
static inline void drop_released(struct client *c)
{
	uint64_t id;

	while (segment_take_release(&c->l->st->segments, &c->sc, &id)) {
		unmap(find(c, id));
		assert_int_equal(segment_drop(&c->l->st->segments, &c->sc, id),
				 0);
	}
}

static inline int acquire(struct client *c, uint8_t kind, size_t size,
			  struct segment_reply *r, uint8_t **ret_memory)
{
	uint8_t signature[SEGMENT_SIGNATURE_BYTES] = { kind };
	int fd, rc;

	memset(r, 0, sizeof(*r));
	rc = segment_acquire(&c->l->st->segments, &c->sc, signature, size, -1, r,
			     &fd);
	if (rc == 0 && r->fresh) {
		struct mapped *m = find(c, 0);

		m->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
				 fd, 0);
		close(fd);
		assert_ptr_not_equal(m->memory, MAP_FAILED);
		m->id = r->id;
		m->len = size;
		assert_int_equal(segment_mapped(&c->l->st->segments, &c->sc,
						r->id, r->generation),
				 0);
	}
	if (rc == 0)
		*ret_memory = find(c, r->id)->memory;
	return rc;
}

/* As a client waits: for the file, or until what was asked for is dropped. */
static inline void acquire_waiting(struct client *c, uint8_t kind, size_t size,
				   struct segment_reply *r,
				   uint8_t **ret_memory)
{
	int rc = acquire(c, kind, size, r, ret_memory);

	while (rc == -EAGAIN) {
		struct inode *in;

		drop_released(c);
		if (r->busy_ino &&
		    inode_get(c->l->st->inodes, r->busy_ino, &in) == 0) {
			assert_int_equal(inode_load_file(c->l->st->inodes, in),
					 0);
			assert_int_equal(file_sync(&c->l->st->files, in), 0);
			inode_put(c->l->st->inodes, in, 1);
		}
		rc = acquire(c, kind, size, r, ret_memory);
	}
	assert_int_equal(rc, 0);
}

static inline bool everybody_may(void *arg, const struct attr *a, uint32_t want)
{
	(void)arg;
	(void)a;
	(void)want;
	return true;
}

static inline int commit(struct client *c, const struct segment_reply *r,
			 const char *name)
{
	const struct segment_commit q = {
		.id = r->id,
		.generation = r->generation,
		.size_bytes = r->size_bytes,
		.parent = ROOT_INO,
		.name = name,
		.mode = 0644,
		.may = everybody_may,
	};
	struct segment_committed done;

	return segment_commit(&c->l->st->segments, &q, &done);
}

/* The whole life of a save; what it saved is `seed`. */
static inline void save(struct client *c, const char *name, uint64_t seed)
{
	struct segment_reply r;
	uint8_t *memory;

	acquire_waiting(c, 1, SIZE, &r, &memory);
	fill(memory, SIZE, seed);
	assert_int_equal(commit(c, &r, name), 0);
}

static inline void assert_seed(struct live *l, const char *name, uint64_t seed)
{
	SCOPED(scope_free) uint8_t *want = filled(SIZE, seed);

	assert_file(l, name, want, SIZE);
}

static inline unsigned stage_count(struct live *l)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < l->st->stages.slot_count; i++)
		n += SLOT_GET(&l->st->stages.slots[i], ino) != 0;
	return n;
}

#endif
