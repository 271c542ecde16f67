/*
 * plan.c - see plan.h. All that is drawn comes from one stream of the seed: who
 * adds something to it at the end leaves the other seeds as they are.
 */
#include "tests/sim/plan.h"

#include <stdio.h>

#include "tests/sim/sim.h"

#define MIB (1024u * 1024u)

static const struct {
	const char *name;
	unsigned usual;
} ops[OP_COUNT] = {
	[OP_WRITE] = { "write", 30 },      [OP_REPLACE] = { "replace", 12 },
	[OP_UNLINK] = { "unlink", 4 },     [OP_SYNC] = { "sync", 12 },
	[OP_SYNC_ALL] = { "sync-all", 3 }, [OP_READ] = { "read", 10 },
	[OP_CHANGE] = { "change", 6 },     [OP_LINK] = { "link", 2 },
	[OP_PAUSE] = { "pause", 4 },       [OP_SAVE] = { "save", 10 },
	[OP_TRUNCATE] = { "truncate", 3 }, [OP_FOLDER] = { "folder", 6 },
	[OP_PEEK] = { "peek", 8 },
};

static const char *const publishes[] = {
	[PUBLISH_WAIT] = ", publish wait",
	[PUBLISH_STEP] = "",
	[PUBLISH_ASYNC] = ", publish async",
};

/* A third of them is left out, and a third of the rest is done more often. */
static void draw_weights(struct plan *plan, struct chance *c)
{
	for (unsigned i = 0; i < OP_COUNT; i++) {
		plan->weight[i] = ops[i].usual;
		if (chance_one_in(c, 3))
			plan->weight[i] *= 5;
		if (chance_one_in(c, 3))
			plan->weight[i] = 0;
	}
	if (!plan->weight[OP_WRITE])
		plan->weight[OP_WRITE] = ops[OP_WRITE].usual;
}

/*
 * Where something is decided: a kill in the middle of what the database is
 * told, and another one while the next daemon takes over what is left.
 */
static void draw_places(struct plan *plan, struct chance *c)
{
	for (unsigned i = 0; sim_seeks_rare() && i < plan->crashes; i++) {
		struct crash *crash = &plan->crash[i];
		uint64_t how = chance_below(c, 4);

		if (how == 0)
			crash->changes =
				1 +
				chance_below(
					c, 12 + (i ? 0
						   : plan->clients * plan->ops *
								 6));
		else if (how == 1 && i > 0)
			crash->after = 1 + chance_below(c, 300);
		else if (how == 2)
			crash->commits = 1 + chance_below(c, 8);
	}
}

/*
 * Many at the same files; and a drain that does by itself nothing, so that much
 * is closed and not durable when somebody asks, or a crash comes.
 */
static void draw_crowd(struct plan *plan, struct chance *c)
{
	plan->files = FILES_OF_CLIENT;
	if (!sim_seeks_rare())
		return;
	if (chance_one_in(c, 3))
		plan->files = 1 + (unsigned)chance_below(c, 2);
	plan->interrupts = chance_one_in(c, 3);
	plan->errors_syncs = chance_one_in(c, 2);
	/* What failed is tried again by the drain itself. */
	if (plan->errors || plan->errors_kv || plan->disk_bytes ||
	    !chance_one_in(c, 4))
		return;
	plan->options.hold_drain = true;
	while (plan->crashes < CRASHES_MAX && !chance_one_in(c, 3)) {
		struct crash *crash = &plan->crash[plan->crashes++];

		crash->cut = chance_one_in(c, 4);
		crash->after = 1 + chance_below(c, 2000);
	}
}

/*
 * Somebody reads while what he reads is changed, is durable, and gives back the
 * part of an image that nobody else shares.
 */
static void draw_readers(struct plan *plan, struct chance *c)
{
	if (!sim_seeks_rare() || !chance_one_in(c, 8))
		return;
	plan->slow_reads = true;
	plan->passthrough = false;
	plan->options.no_stage_cache = true;
	plan->options.hold_drain = false;
	plan->sizes = 2;
	plan->payloads = 1 + (unsigned)chance_below(c, 2);
	plan->weight[OP_READ] = ops[OP_READ].usual * 5;
	plan->weight[OP_CHANGE] = ops[OP_CHANGE].usual * 5;
}

/* Numbers of their own: what a seed was before there were copies stays. */
static void draw_copies(struct plan *plan)
{
	struct chance c = chance_of(plan->seed, 9);

	if (chance_one_in(&c, 6))
		plan->options.dedup_copies = 2 + (unsigned)chance_below(&c, 2);
}

/* The same. Files of the simulator are small: most are emptied in place. */
static void draw_in_place(struct plan *plan)
{
	struct chance c = chance_of(plan->seed, 10);

	if (chance_one_in(&c, 2))
		plan->options.empty_in_place_bytes = SMALL_BYTES_MAX;
}

void plan_draw(struct plan *plan, uint64_t seed)
{
	struct chance c = chance_of(seed, 4);
	struct store_options o = STORE_OPTIONS_DEFAULT;

	*plan = (struct plan){ .seed = seed };
	o.backup_interval_s = 0;
	o.stage_bytes = 256u * MIB;
	o.drain_threads = 1 + (unsigned)chance_below(&c, 3);
	o.drain_interval_s = chance_one_in(&c, 8) ? 30 : 0;
	o.stage_all_in_memory = chance_one_in(&c, 2);
	o.no_stage_cache = chance_one_in(&c, 4);
	o.durable_close = chance_one_in(&c, 10);
	o.publish = chance_one_in(&c, 4) ? PUBLISH_ASYNC : PUBLISH_WAIT;
	o.verify = chance_one_in(&c, 8) ? VERIFY_OFF : VERIFY_ON;
	o.dedup_min_saving_percent = chance_one_in(&c, 2) ? 0 : 3;
	plan->options = o;
	plan->passthrough = !chance_one_in(&c, 3);
	plan->clients = 1 + (unsigned)chance_below(&c, CLIENTS_MAX);
	plan->ops = 2 + (unsigned)chance_below(&c, 8);
	plan->sizes = (unsigned)chance_below(&c, 4);
	plan->payloads = 1 + (unsigned)chance_below(&c, 5);
	plan->crashes = chance_one_in(&c, 2) ? 0 : 1;
	while (plan->crashes > 0 && plan->crashes < CRASHES_MAX &&
	       chance_one_in(&c, 4))
		plan->crashes++;
	for (unsigned i = 0; i < plan->crashes; i++) {
		plan->crash[i].cut = chance_one_in(&c, 2);
		plan->crash[i].after =
			1 + chance_below(&c, 300 + (i ? 1 : plan->clients) *
							     plan->ops * 120);
	}
	if (chance_one_in(&c, 5))
		plan->errors = 5 + chance_below(&c, 200);
	if (chance_one_in(&c, 10))
		plan->errors_kv = 5 + chance_below(&c, 100);
	if (chance_one_in(&c, 12))
		plan->disk_bytes = (25u + chance_below(&c, 6)) * MIB;
	draw_weights(plan, &c);
	if (o.publish == PUBLISH_WAIT && !chance_one_in(&c, 3))
		plan->options.publish = PUBLISH_STEP;
	draw_crowd(plan, &c);
	draw_places(plan, &c);
	draw_readers(plan, &c);
	draw_copies(plan);
	draw_in_place(plan);
}

void plan_print(const struct plan *plan)
{
	const struct store_options *o = &plan->options;

	fprintf(stderr,
		"seed %llu: %u clients, %u ops of each, %u files, sizes %u, "
		"%u payloads, copies %u, %u workers, %s, stage %s%s%s%s%s%s%s%s%s; ",
		(unsigned long long)plan->seed, plan->clients, plan->ops,
		plan->files, plan->sizes, plan->payloads, o->dedup_copies,
		o->drain_threads,
		plan->passthrough ? "passthrough" : "through the daemon",
		o->stage_all_in_memory ? "in memory" : "on disk",
		o->durable_close ? ", durable close" : "",
		publishes[o->publish],
		o->drain_interval_s ? ", open files are drained" : "",
		o->no_stage_cache ? ", no cache" : "",
		o->hold_drain ? ", the drain is held" : "",
		plan->interrupts ? ", interrupted" : "",
		plan->slow_reads ? ", slow reads" : "",
		o->empty_in_place_bytes > SMALL_BYTES_MAX ? ", emptied in place"
							  : "");
	for (unsigned i = 0; i < OP_COUNT; i++)
		if (plan->weight[i])
			fprintf(stderr, " %s%s", ops[i].name,
				plan->weight[i] > ops[i].usual ? "+" : "");
	if (plan->errors)
		fprintf(stderr, "; one call in %llu fails",
			(unsigned long long)plan->errors);
	if (plan->errors_kv)
		fprintf(stderr, "; one %s in %llu fails",
			plan->errors_syncs ? "sync of the log" : "change",
			(unsigned long long)plan->errors_kv);
	if (plan->disk_bytes)
		fprintf(stderr, "; a disk of %llu MiB",
			(unsigned long long)(plan->disk_bytes >> 20));
	for (unsigned i = 0; i < plan->crashes; i++) {
		const struct crash *c = &plan->crash[i];

		fprintf(stderr, "; %s after %llu %s",
			c->cut ? "power cut" : "kill",
			(unsigned long long)(c->changes   ? c->changes
					     : c->commits ? c->commits
							  : c->after),
			c->changes   ? "changes"
			: c->commits ? "commits"
				     : "points");
	}
	fprintf(stderr, "\n");
}
