/*
 * save_bench.c - saving host tensors through the library, against memcpy(3) of
 * the same bytes into the same memory by as many threads.
 *
 *     save_bench DIRECTORY BYTES ROUNDS THREADS
 *
 * Prints a line for each round: "OURS OTHER", in nanoseconds. Ours is all of a
 * save, from ckpt_begin() until ckpt_commit() has returned; it is durable
 * before the clock starts again. The other side writes to the mapped segment
 * that the save has filled just now, and writes what is there already: so the
 * file that the segment has become is not changed. What is timed are second
 * and later saves; both sides' memory was used before.
 */
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "gpu/mapping.h"
#include "store/base/scope.h"
#include "tests/bench/bench.h"

#define TENSORS 24u
#define THREADS_MAX 64u
#define ROUNDS_MAX 1000u
#define PRIME_SAVES 3u /* both segments are there, and were filled */
#define HUGE_BYTES (UINT64_C(2) << 20)

static void must(int rc)
{
	if (rc < 0) {
		errno = 0; /* it says all */
		die("%s", ckpt_last_error());
	}
}

static uint64_t positive(const char *text, uint64_t max)
{
	uint64_t v = number(text, max);

	if (v == 0) {
		fprintf(stderr, "save_bench: bad number '%s'\n", text);
		exit(2);
	}
	return v;
}

struct rig {
	struct ckpt *c;
	char path[512];
	uint8_t *data; /* all tensors, one after the other */
	uint64_t tensor_bytes;
	unsigned threads;
};

static uint64_t payload(const struct rig *r)
{
	return TENSORS * r->tensor_bytes;
}

static uint64_t save(struct rig *r)
{
	const uint64_t shape[] = { r->tensor_bytes / 4 };
	struct ckpt_tensor t = { .dtype = "F32",
				 .shape = shape,
				 .rank = 1,
				 .device = CKPT_DEVICE_HOST };
	uint64_t start = now_ns();
	struct ckpt_save *s;
	char name[32];

	must(ckpt_begin(r->c, r->path, &s));
	for (unsigned i = 0; i < TENSORS; i++) {
		(void)snprintf(name, sizeof(name), "layers.%02u.weight", i);
		t.name = name;
		t.data = r->data + i * r->tensor_bytes;
		must(ckpt_add(s, &t));
	}
	must(ckpt_commit(s));
	start = now_ns() - start;
	must(ckpt_wait(s));
	ckpt_save_free(s);
	return start;
}

/* Other bytes than before, in every MiB. */
static void change(struct rig *r, unsigned round)
{
	for (uint64_t at = 0; at < payload(r); at += UINT64_C(1) << 20)
		memcpy(r->data + at, &round, sizeof(round));
}

/* --- the other side ---------------------------------------------------------
 */

/* Of the segment that the last save is in, where the tensors are. */
static uint8_t *last_segment(const struct rig *r)
{
	const struct mapping *s, *last = NULL;

	if (!r->c->mounts)
		die("%s: no segment: is it in a mount?", r->path);
	LIST_FOREACH(s, &r->c->mounts->mappings, entry)
	if (s->ino != 0 && (!last || s->mtime_ns > last->mtime_ns))
		last = s;
	if (!last || last->size_bytes < payload(r))
		die("%s: no segment has it", r->path);
	/* The tensors' names are in order, and they end the file. */
	return last->memory + (last->size_bytes - payload(r));
}

struct part {
	uint8_t *to;
	const uint8_t *from;
	uint64_t bytes;
	pthread_t thread;
};

static void *part_main(void *arg)
{
	const struct part *p = arg;

	memcpy(p->to, p->from, p->bytes);
	return NULL;
}

static uint64_t copy(struct rig *r)
{
	uint8_t *to = last_segment(r);
	uint64_t start = now_ns(), each = payload(r) / r->threads;
	struct part parts[THREADS_MAX];

	if (memcmp(to, r->data, payload(r)) != 0)
		die("%s: the segment does not have the tensors", r->path);
	start = now_ns();
	for (unsigned i = 0; i < r->threads; i++) {
		parts[i] = (struct part){ to + i * each, r->data + i * each,
					  each, 0 };
		if (i + 1 == r->threads)
			parts[i].bytes = payload(r) - i * each;
		else if (pthread_create(&parts[i].thread, NULL, part_main,
					&parts[i]) != 0)
			die("no thread");
	}
	(void)part_main(&parts[r->threads - 1]); /* this one works along */
	for (unsigned i = 0; i + 1 < r->threads; i++)
		CHECK(pthread_join(parts[i].thread, NULL) == 0);
	return now_ns() - start;
}

int main(int argc, char **argv)
{
	struct ckpt_options o = { .flags = CKPT_NO_GPU | CKPT_SEGMENT_ONLY };
	struct rig r = { .c = NULL };
	unsigned rounds;
	void *p = NULL;

	if (argc != 5) {
		fprintf(stderr,
			"usage: save_bench DIRECTORY BYTES ROUNDS THREADS\n");
		return 2;
	}
	r.tensor_bytes = positive(argv[2], UINT64_C(1) << 40) / TENSORS / 4 * 4;
	rounds = (unsigned)positive(argv[3], ROUNDS_MAX);
	r.threads = (unsigned)positive(argv[4], THREADS_MAX);
	o.copy_threads = r.threads;
	(void)snprintf(r.path, sizeof(r.path), "%s/save_bench.safetensors",
		       argv[1]);
	if (posix_memalign(&p, HUGE_BYTES, payload(&r)) != 0)
		die("no memory");
	(void)madvise(p, payload(&r), MADV_HUGEPAGE);
	r.data = p;
	fill_random(r.data, payload(&r));
	must(ckpt_open(&o, &r.c));
	for (unsigned i = 0; i < PRIME_SAVES; i++) {
		(void)save(&r);
		(void)copy(&r);
	}
	for (unsigned i = 0; i < rounds; i++) {
		uint64_t ours;

		change(&r, i);
		ours = save(&r);
		printf("%llu %llu\n", (unsigned long long)ours,
		       (unsigned long long)copy(&r));
		fflush(stdout);
	}
	ckpt_close(r.c);
	free(p);
	return 0;
}
