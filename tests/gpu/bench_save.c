/*
 * bench_save.c - the rows of the table about saves, one and several, beside the
 * machine's own pinned copy and what others do instead.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/gpu_bench.h"

#define PRIME_SAVES_MAX 8
#define UNCHANGED_TRIES_MAX (ROUNDS_MAX + PRIME_SAVES_MAX)
#define BURST 4u /* twice what there are segments for */

void warm(struct rig *r)
{
	if (r->warm)
		return;
	(void)place_save(&r->place, &r->t, 1, "save");
	place_settle(&r->place);
	(void)place_save(&r->place, &r->t, 1, "save");
	r->warm = true;
}

void row_save(struct rig *r)
{
	struct row row = {
		.name = named(r, "save, device to segment (pinned copy)",
			      "save, device to pinned memory, NO MOUNT (copy)"),
	};

	warm(r);
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours, theirs;

		tensors_stamp(&r->t, ++stamps);
		ours = place_save(&r->place, &r->t, 1, "save");
		place_check(&r->place, &r->t, 1, row.name);
		theirs = copy_d2h(r);
		(void)is_same(r->pinned, r->t.truth, r->t.payload,
			      "the machine's copy");
		if (i > 0)
			row_add(&row, ours, theirs);
	}
	row_print_speed(&row, r->t.payload, 0.95);
}

void row_stall(struct rig *r)
{
	struct row row = {
		.name = named(r, "stall of the second save (of the first)",
			      "second save (first), NO MOUNT"),
	};
	unsigned rounds = r->b->rounds < 3 ? r->b->rounds : 3;

	for (unsigned i = 0; i < rounds; i++) {
		struct place p;
		uint64_t first, second;

		place_open(&p, dir_of(r), false);
		tensors_stamp(&r->t, ++stamps);
		first = place_save(&p, &r->t, 1, "stall");
		place_check(&p, &r->t, 1, row.name);
		place_settle(&p);
		tensors_stamp(&r->t, ++stamps);
		second = place_save(&p, &r->t, 1, "stall");
		place_check(&p, &r->t, 1, row.name);
		place_close(&p);
		row_add(&row, second, first);
	}
	row_print_times(&row, AT_LEAST, 10);
}

void row_unchanged(struct rig *r)
{
	struct row row = {
		.name = named(r, "save, nothing changed (a full one)",
			      "save, nothing changed (full), NO MOUNT"),
	};
	struct place p;
	unsigned known = 0;

	place_open(&p, dir_of(r), true);
	(void)place_save(&p, &r->t, 1, "unchanged");
	place_settle(&p);
	for (int i = 0; i < PRIME_SAVES_MAX && known < 2; i++) {
		(void)place_save(&p, &r->t, 1, "unchanged");
		known = p.skipped_bytes == r->t.payload ? known + 1 : 0;
	}
	if (known < 2)
		wrong("%s: it skipped %llu bytes of %llu", row.name,
		      (unsigned long long)p.skipped_bytes,
		      (unsigned long long)r->t.payload);
	for (unsigned i = 0;
	     i < UNCHANGED_TRIES_MAX && row.rounds < r->b->rounds; i++) {
		uint64_t full = place_save(&r->place, &r->t, 1, "save");
		uint64_t ours = place_save(&p, &r->t, 1, "unchanged");

		place_check(&p, &r->t, 1, row.name);
		/* The mount chooses the segment: one may still be to prime. */
		if (p.skipped_bytes == r->t.payload)
			row_add(&row, ours, full);
	}
	if (row.rounds == 0)
		die("%s: something is always copied", row.name);
	row_print_times(&row, AT_MOST, 0.15);
	tensors_stamp(&r->t, ++stamps); /* and what did change is copied */
	(void)place_save(&p, &r->t, 1, "unchanged");
	place_check(&p, &r->t, 1, "a save after a change");
	place_close(&p);
}

/*
 * What dlrover's flash checkpoint does: tensor after tensor, from the device to
 * shared memory that is not pinned. Its pages are there since the first time.
 */
static uint64_t copy_pageable(struct rig *r, uint8_t *shared)
{
	uint64_t start = now_ns();

	for (size_t i = 0; i < r->t.count; i++) {
		const struct tensor *n = &r->t.list[i];

		must(gpu_copy_d2h(r->stream, shared + n->at, r->t.data + n->at,
				  n->bytes),
		     "pageable copy");
	}
	finish(r->stream);
	return now_ns() - start;
}

void row_pageable(struct rig *r)
{
	struct row row = {
		.name = named(r, "save (pageable copies to shared memory)",
			      "save, NO MOUNT (pageable copies to shared)"),
	};
	uint8_t *shared = mmap(NULL, r->t.bytes, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED)
		die("no shared memory: %llu bytes",
		    (unsigned long long)r->t.bytes);
	warm(r);
	for (unsigned i = 0; i <= r->b->rounds; i++) {
		uint64_t ours, theirs;

		tensors_stamp(&r->t, ++stamps);
		ours = place_save(&r->place, &r->t, 1, "save");
		theirs = copy_pageable(r, shared);
		place_check(&r->place, &r->t, 1, row.name);
		for (size_t k = 0; k < r->t.count; k++)
			if (!is_same(shared + r->t.list[k].at,
				     r->t.truth + r->t.list[k].at,
				     r->t.list[k].bytes, "a pageable copy"))
				break;
		if (i > 0)
			row_add(&row, ours, theirs);
	}
	(void)munmap(shared, r->t.bytes);
	row_print_speed(&row, r->t.payload, 1);
}

/* Each is begun when the one before is copied; none is waited for. */
static uint64_t save_burst(struct rig *r, struct ckpt_save **saves)
{
	uint64_t start = now_ns();

	for (unsigned k = 0; k < BURST; k++) {
		char path[512];

		(void)snprintf(path, sizeof(path), "%s/burst.%u.safetensors",
			       r->b->dir, k);
		must(ckpt_begin(r->place.c, path, &saves[k]), "ckpt_begin");
		for (size_t i = 0; i < r->t.count; i++) {
			struct ckpt_tensor t = tensor_of(&r->t, i);

			must(ckpt_add(saves[k], &t), "ckpt_add");
		}
		must(ckpt_commit(saves[k]), "ckpt_commit");
	}
	return now_ns() - start;
}

/*
 * The third has to wait until the first is durable: there are two segments.
 * The second row is of all of them until then.
 */
void row_burst(struct rig *r)
{
	struct row copied = {
		.name = "4 saves back to back (4 pinned copies)"
	};
	struct row durable = { .name = "4 saves until durable (until copied)" };

	unsigned rounds = r->b->rounds < 3 ? r->b->rounds : 3;

	if (!r->b->mounted) {
		row_skip(copied.name, "no mount");
		return;
	}
	warm(r);
	for (unsigned i = 0; i <= rounds; i++) {
		struct ckpt_save *saves[BURST];
		uint64_t start, ours, theirs = 0;

		tensors_stamp(&r->t, ++stamps);
		start = now_ns();
		ours = save_burst(r, saves);
		for (unsigned k = 0; k < BURST; k++) {
			must(ckpt_wait(saves[k]), "ckpt_wait");
			ckpt_save_free(saves[k]);
		}
		start = now_ns() - start;
		for (unsigned k = 0; k < BURST; k++) {
			(void)snprintf(r->place.path, sizeof(r->place.path),
				       "%s/burst.%u.safetensors", r->b->dir, k);
			place_check(&r->place, &r->t, 1, copied.name);
			(void)unlink(r->place.path);
			theirs += copy_d2h(r);
		}
		if (i > 0) {
			row_add(&copied, ours, theirs);
			row_add(&durable, start, ours);
		}
	}
	row_print_speed(&copied, BURST * r->t.payload, NO_LIMIT);
	row_print_times(&durable, AT_MOST, NO_LIMIT);
}
