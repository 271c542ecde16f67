/*
 * check_scrub.c - the part of the check that reads: every chunk is hashed
 * again and compared with its record.
 *
 * Several threads, because one core hashes slower than a good disk reads. Each
 * takes the next run of neighbouring chunks and reads it at once, past the
 * page cache where the file system allows that: a scrub must not push out
 * what the machine is working with. The threads only read the tables; what
 * they find is added to the list of damage under the lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/direct.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/check/check_work.h"
#include "store/db/layout.h"
#include "store/formats/cut.h"

#define SCRUB_THREADS_MAX 16
#define SCRUB_RUN_BYTES (4u << 20)
/* Reading a hole this long is cheaper than a second call. */
#define SCRUB_GAP_BYTES (256u << 10)
#define SCRUB_ALIGN 4096u
#define SCRUB_BUFFER_BYTES (SCRUB_RUN_BYTES + 2 * SCRUB_ALIGN)
#define SCRUB_TICK_NS 100000000
_Static_assert(SCRUB_RUN_BYTES >= CHUNK_BYTES_MAX, "a chunk fits in a run");

struct scrub {
	struct check *c; /* tables: read-only; damage: guarded by lock */

	struct lock lock; /* guards everything below */
	struct cond moved; /* running became 0 */
	size_t next; /* chunk that nobody has taken */
	unsigned running;
	uint64_t done_bytes;
	int rc; /* why it stopped early, or 0 */
};

/* One thread's own. */
struct scrub_worker {
	struct scrub *s;
	uint8_t *buffer; /* SCRUB_BUFFER_BYTES, aligned */
	uint32_t image_index; /* of what is open */
	int fd; /* -1: none */
	/* The run that it has taken: chunks [next, last), bytes of the image.
	 */
	size_t next, last;
	uint64_t offset, end;
	uint64_t chunk_bytes; /* without what lies between */
	const uint8_t *bytes; /* of it; NULL: to be read chunk by chunk */
};

/* Chunks that were reported as missing or cut off are not read. */
static bool is_readable(const struct check *c, size_t n)
{
	const struct check_chunk *k = &c->chunks[n];
	const struct check_image *i = &c->images[k->image_index];

	return i->file_bytes != IMAGE_NO_FILE &&
	       k->offset + k->len <= i->file_bytes;
}

/* Take the next run; false when there is none. */
static bool scrub_take(struct scrub_worker *w)
{
	struct scrub *s = w->s;
	const struct check_chunk *first, *k;
	const struct check *c = s->c;

	HOLD(&s->lock);
	while (s->next < c->chunk_count && !is_readable(c, s->next))
		s->next++;
	if (s->next == c->chunk_count || s->rc < 0)
		return false;
	w->next = w->last = s->next;
	first = &c->chunks[s->next];
	w->offset = w->end = first->offset;
	w->chunk_bytes = 0;
	for (; w->last < c->chunk_count && is_readable(c, w->last); w->last++) {
		k = &c->chunks[w->last];
		if (k->image_index != first->image_index ||
		    k->offset > w->end + SCRUB_GAP_BYTES ||
		    k->offset + k->len > w->offset + SCRUB_RUN_BYTES)
			break;
		if (k->offset + k->len > w->end)
			w->end = k->offset + k->len;
		w->chunk_bytes += k->len;
	}
	s->next = w->last;
	return true;
}

static void scrub_damaged(struct scrub *s, size_t n, int rc)
{
	HOLD(&s->lock);
	rc = check_add_damage(s->c, n, 1, rc);
	if (rc < 0 && s->rc == 0)
		s->rc = rc;
}

static int open_image(struct scrub_worker *w, uint32_t index)
{
	struct check *c = w->s->c;
	char name[LAYOUT_IMAGE_NAME_BYTES];

	if (w->fd >= 0 && w->image_index == index)
		return 0;
	scope_close(&w->fd);
	layout_image_name(c->images[index].id, name);
	w->image_index = index;
	w->fd = direct_open(c->images_dirfd, name);
	return w->fd < 0 ? w->fd : 0;
}

/* The image's bytes [offset, end) are then at *ret_bytes, in the buffer. */
static int read_range(struct scrub_worker *w, uint64_t offset, uint64_t end,
		      const uint8_t **ret_bytes)
{
	uint64_t begin = offset & ~(uint64_t)(SCRUB_ALIGN - 1);
	size_t want = (size_t)(end - begin);
	size_t ask = (want + SCRUB_ALIGN - 1) & ~(size_t)(SCRUB_ALIGN - 1);
	int rc;

	CHECK(ask <= SCRUB_BUFFER_BYTES);
	rc = direct_read(w->fd, w->buffer, want, ask, begin);
	/* Where there is no O_DIRECT the cache is not to be filled. */
	(void)posix_fadvise(w->fd, (off_t)begin, (off_t)ask,
			    POSIX_FADV_DONTNEED);
	if (rc < 0) /* it has become shorter, or cannot be read */
		return rc == -ESTALE ? -ENODATA : io_is_medium(rc) ? -EIO : rc;
	*ret_bytes = w->buffer + (offset - begin);
	return 0;
}

static void compare_chunk(struct scrub_worker *w, size_t n,
			  const uint8_t expected[HASH_BYTES])
{
	const struct check_chunk *k = &w->s->c->chunks[n];
	const uint8_t *at = w->bytes;
	uint8_t hash[HASH_BYTES];
	int rc = 0;

	if (at)
		at += k->offset - w->offset;
	else
		rc = read_range(w, k->offset, k->offset + k->len, &at);
	if (rc < 0) {
		scrub_damaged(w->s, n, rc);
		return;
	}
	chunk_hash(w->s->c->secret, at, k->len, hash);
	if (memcmp(hash, expected, sizeof(hash)) != 0)
		scrub_damaged(w->s, n, 0);
}

/* Records come in the order of the table; not all of them need be in it. */
static int compare_next(void *arg, uint64_t offset, const struct chunk_rec *k)
{
	struct scrub_worker *w = arg;

	if (k && offset == w->s->c->chunks[w->next].offset)
		compare_chunk(w, w->next++, k->hash);
	return w->next == w->last;
}

static int scrub_run(struct scrub_worker *w)
{
	struct check *c = w->s->c;
	uint32_t index = c->chunks[w->next].image_index;
	const struct extent run = { .len = w->end - w->offset,
				    .image = c->images[index].id,
				    .image_offset = w->offset };
	int rc = open_image(w, index);

	if (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM)
		return rc;
	for (; rc < 0 && w->next < w->last; w->next++)
		scrub_damaged(w->s, w->next, rc);
	if (rc < 0)
		return 0;
	/* When something in it cannot be read, find out what. */
	if (read_range(w, w->offset, w->end, &w->bytes) < 0)
		w->bytes = NULL;
	return extent_each_chunk(c->kv, &run, compare_next, w);
}

static void *scrub_thread(void *arg)
{
	struct scrub *s = arg;
	struct scrub_worker w = { .s = s, .fd = -1 };
	void *buffer = NULL;
	int rc = -posix_memalign(&buffer, SCRUB_ALIGN, SCRUB_BUFFER_BYTES);

	w.buffer = buffer;
	while (rc == 0 && scrub_take(&w)) {
		rc = scrub_run(&w);
		if (rc == 0) {
			HOLD(&s->lock);
			s->done_bytes += w.chunk_bytes;
		}
	}
	free(buffer);
	scope_close(&w.fd);
	HOLD(&s->lock);
	if (s->rc == 0)
		s->rc = rc;
	s->running--;
	cond_signal(&s->moved);
	return NULL;
}

/* Show progress from this thread until the others are done. */
static void scrub_wait(struct scrub *s)
{
	uint64_t total = s->c->result->physical_bytes;
	uint64_t done;
	bool running;

	do {
		{
			int64_t until = mono_ns() + SCRUB_TICK_NS;

			HOLD(&s->lock);
			if (s->running > 0)
				(void)cond_wait_until(&s->moved, &s->lock,
						      until);
			running = s->running > 0;
			done = s->done_bytes;
		}
		check_progress(s->c, "scrub", done, total);
	} while (running);
	s->c->result->scrubbed_bytes = done;
}

int check_scrub(struct check *c)
{
	struct scrub s = { .c = c };
	struct thread threads[SCRUB_THREADS_MAX];
	unsigned want = c->options->threads;
	unsigned count = 0;
	int rc = 0;

	/* Without the secret, which was reported, nothing can be compared. */
	if (!c->options->scrub || !c->secret_known)
		return 0;
	if (want == 0)
		want = io_cpus(1, SCRUB_THREADS_MAX);
	if (want > SCRUB_THREADS_MAX)
		want = SCRUB_THREADS_MAX;
	lock_init(&s.lock, LOCK_SCRUB);
	cond_init(&s.moved);
	lock_take(&s.lock);
	for (; count < want; count++) {
		rc = thread_create(&threads[count], scrub_thread, &s);
		if (rc < 0)
			break;
		s.running++;
	}
	lock_give(&s.lock);
	if (count > 0)
		scrub_wait(&s);
	for (unsigned n = 0; n < count; n++)
		thread_join(&threads[n]);
	cond_destroy(&s.moved);
	lock_destroy(&s.lock);
	if (count == 0)
		return rc;
	return s.rc == -EIO ? check_database_failed(c, s.rc) : s.rc;
}
