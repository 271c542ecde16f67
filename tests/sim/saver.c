/* saver.c - see saver.h. */
#include "tests/sim/saver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/db/records.h"
#include "store/file/file.h"
#include "store/file/segment.h"
#include "tests/sim/sim.h"

#define MAPPED_MAX 16

struct saver {
	struct store *st;
	struct segment_client client;
	struct segment_reply last;
	struct {
		uint64_t id;
		uint8_t *memory;
		size_t len;
	} mapped[MAPPED_MAX];
};

static void on_wake(struct segment_client *c)
{
	(void)c; /* it looks before each save */
}

struct saver *saver_new(struct store *st)
{
	struct saver *s = calloc(1, sizeof(*s));

	CHECK(s);
	s->st = st;
	s->client.wake = on_wake;
	segment_client_add(&st->segments, &s->client);
	return s;
}

static unsigned find(const struct saver *s, uint64_t id)
{
	for (unsigned i = 0; i < MAPPED_MAX; i++)
		if (s->mapped[i].id == id)
			return i;
	sim_fail("a client is told of a segment that it has not mapped");
}

static void unmap(struct saver *s, unsigned i)
{
	CHECK(munmap(s->mapped[i].memory, s->mapped[i].len) == 0);
	memset(&s->mapped[i], 0, sizeof(s->mapped[i]));
}

void saver_drop_asked(struct saver *s)
{
	uint64_t id;

	while (segment_take_release(&s->st->segments, &s->client, &id)) {
		unmap(s, find(s, id));
		CHECK(segment_drop(&s->st->segments, &s->client, id) == 0);
	}
	(void)segment_client_trim(&s->st->segments, &s->client);
}

int saver_acquire(struct saver *s, size_t size, uint8_t **ret_memory,
		  uint64_t *ret_busy)
{
	uint8_t signature[SEGMENT_SIGNATURE_BYTES] = { 1 };
	struct segment_reply *r = &s->last;
	int fd, rc;

	memset(r, 0, sizeof(*r));
	rc = segment_acquire(&s->st->segments, &s->client, signature, size, -1, r,
			     &fd);
	*ret_busy = r->busy_ino;
	if (rc < 0)
		return rc;
	if (r->fresh) {
		unsigned i = find(s, 0);

		s->mapped[i].memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
					   MAP_SHARED, fd, 0);
		(void)close(fd);
		CHECK(s->mapped[i].memory != MAP_FAILED);
		s->mapped[i].id = r->id;
		s->mapped[i].len = size;
		rc = segment_mapped(&s->st->segments, &s->client, r->id,
				    r->generation);
	}
	if (rc == 0)
		*ret_memory = s->mapped[find(s, r->id)].memory;
	return rc;
}

static bool may(void *arg, const struct attr *a, uint32_t want)
{
	(void)arg;
	(void)a;
	(void)want;
	return true;
}

int saver_commit(struct saver *s, const char *name)
{
	const struct segment_commit q = {
		.id = s->last.id,
		.generation = s->last.generation,
		.size_bytes = s->mapped[find(s, s->last.id)].len,
		.parent = ROOT_INO,
		.name = name,
		.mode = 0644,
		.may = may,
	};
	struct segment_committed done;

	return segment_commit(&s->st->segments, &q, &done);
}

int saver_wait_for(struct saver *s, uint64_t ino)
{
	struct inode *in;
	int rc = inode_get(s->st->inodes, ino, &in);

	if (rc < 0)
		return rc;
	rc = inode_load_file(s->st->inodes, in);
	if (rc == 0)
		rc = file_sync(&s->st->files, in);
	inode_put(s->st->inodes, in, 1);
	return rc;
}

void saver_end(struct saver *s)
{
	segment_client_remove(&s->st->segments, &s->client);
	segment_client_forget(&s->st->segments, &s->client);
	for (unsigned i = 0; i < MAPPED_MAX; i++)
		if (s->mapped[i].id)
			unmap(s, i);
	free(s);
}
