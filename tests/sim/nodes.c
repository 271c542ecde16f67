/*
 * nodes.c - a seed with several nodes: its plan, and their lives. See nodes.h.
 *
 * Each node is a group of threads (sim_set_group()): its daemon, with a store
 * of its own, and its clients. In group 0 are those whom no death ends: who
 * starts and kills a node (its keeper), and the job.
 */
#include "tests/sim/nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/shared/home.h"
#include "store/shared/shared.h"
#include "tests/sim/disk.h"
#include "tests/sim/kv_model.h"
#include "tests/sim/seeds.h"

#define SECOND INT64_C(1000000000)
#define MIB (1024u * 1024u)
/* Until all is whole, when nothing fails any more: by the run's clock. */
#define QUIET_SECONDS 300

const char seed_option[] = " --nodes";

struct nodes_plan nodes_plan;
static struct node_run nodes[NODES_MAX + 1];
static struct outcome *outcome;
static bool healed; /* nothing fails from now on */
static bool over; /* the job is, and who is beside it */

struct node_run *node_of(unsigned number)
{
	return &nodes[number];
}

/* --- the plan ------------------------------------------------------------- */

static void draw_kind(struct engine_kind *k, struct chance *c)
{
	static const int64_t remembers[] = { 0, 0, SECOND, 3 * SECOND,
					     30 * SECOND };
	static const int64_t ticks[] = { 1, 4000000, SECOND };

	k->buffers = !chance_one_in(c, 3);
	k->set_flushes = chance_one_in(c, 2);
	k->gone_is_stale = chance_one_in(c, 2);
	k->files_ns = remembers[chance_below(c, 4)];
	k->dirs_ns = remembers[chance_below(c, 5)];
	k->tick_ns = ticks[chance_below(c, 3)];
}

static void draw_deaths(struct nodes_plan *p, struct chance *c)
{
	uint64_t calls = 60 + 40 * (p->steps * p->files + p->churn);

	while (p->deaths < DEATHS_MAX && chance_one_in(c, 2)) {
		struct death *d = &p->death[p->deaths++];

		d->node = 1 + (unsigned)chance_below(c, p->nodes);
		d->calls = 1 + chance_below(c, chance_one_in(c, 3) ? 120
								   : calls);
		d->cut = chance_one_in(c, 2);
		d->for_good = chance_one_in(c, 4);
		d->away_ns = (int64_t)chance_below(
			c, chance_one_in(c, 2) ? SECOND : 40 * SECOND);
	}
}

static void draw(struct nodes_plan *p, uint64_t seed)
{
	struct chance c = chance_of(seed, 20);
	struct store_options o = STORE_OPTIONS_DEFAULT;

	*p = (struct nodes_plan){ .seed = seed };
	o.backup_interval_s = 0;
	o.stage_bytes = 64u * MIB;
	o.drain_threads = 1 + (unsigned)chance_below(&c, 2);
	o.drain_interval_s = chance_one_in(&c, 4) ? 30 : 0;
	o.stage_all_in_memory = chance_one_in(&c, 2);
	o.no_stage_cache = chance_one_in(&c, 3);
	o.durable_close = chance_one_in(&c, 6);
	o.publish = (enum publish_mode)chance_below(&c, 3);
	/* Which files move to another inode is to be as it was. */
	o.empty_in_place_bytes = SMALL_BYTES_MAX;
	p->options = o;
	p->nodes = 2 + (unsigned)chance_below(&c, NODES_MAX - 1);
	p->steps = 1 + (unsigned)chance_below(&c, STEPS_MAX);
	p->files = 1 + (unsigned)chance_below(&c, 3);
	p->sizes = (unsigned)chance_below(&c, 6);
	p->folders = chance_one_in(&c, 3);
	p->metadata = chance_one_in(&c, 2);
	p->latest = (unsigned)chance_below(&c, LATEST_WAYS);
	p->syncs = chance_one_in(&c, 2);
	p->churn = (unsigned)chance_below(&c, 16);
	p->common = chance_one_in(&c, 2) ? 2 + (unsigned)chance_below(&c, 3) : 0;
	p->wait_s = chance_one_in(&c, 2) ? 60 : 3;
	draw_kind(&p->kind, &c);
	draw_deaths(p, &c);
	if (chance_one_in(&c, 5))
		p->errors = 20 + chance_below(&c, 200);
}

static void say_plan(void)
{
	static const char *const publishes[] = { "wait", "step", "async" };
	const struct nodes_plan *p = &nodes_plan;
	const struct engine_kind *k = &p->kind;

	fprintf(stderr,
		"seed %llu: %u nodes, %u steps of %u files%s%s, latest is %s, "
		"publish %s%s%s, %u calls beside%s, pending_wait %u; the "
		"directory%s%s%s, remembers files %lld s, directories %lld s, "
		"ticks of %lld ns",
		(unsigned long long)p->seed, p->nodes, p->steps, p->files,
		p->folders ? " in folders that are renamed" : "",
		p->metadata ? " with .metadata" : "",
		p->latest == LATEST_REPLACED ? "replaced" : "renamed",
		publishes[p->options.publish], p->syncs ? ", synced" : "",
		p->options.durable_close ? ", durable close" : "", p->churn,
		p->common ? ", at files of all" : "", p->wait_s,
		k->buffers ? ", buffers" : "",
		k->set_flushes ? ", flushes when attributes are set" : "",
		k->gone_is_stale ? ", stale" : "",
		(long long)(k->files_ns / SECOND),
		(long long)(k->dirs_ns / SECOND), (long long)k->tick_ns);
	if (p->errors)
		fprintf(stderr, "; one call in %llu fails",
			(unsigned long long)p->errors);
	for (unsigned i = 0; i < p->deaths; i++) {
		const struct death *d = &p->death[i];

		fprintf(stderr, "; node %u %s after %llu calls, %s", d->node,
			d->cut ? "loses power" : "is killed",
			(unsigned long long)d->calls,
			d->for_good ? "for good" : "and comes back");
	}
	fprintf(stderr, "\n");
}

/* --- a life --------------------------------------------------------------- */

static int open_shared(struct node_run *n)
{
	struct shared_options o = { .dir = ENGINE_PATH,
				    .node = n->name,
				    .pending_wait_s = nodes_plan.wait_s };
	char why[8192] = "";
	int rc = shared_open(n->st, &o, &n->shared, why, sizeof(why));

	if (rc < 0 && (!nodes_plan.errors || healed))
		sim_fail("node %u: shared_open: %s: %s", n->number,
			 strerror(-rc), why);
	return rc;
}

static void *boot_main(void *arg)
{
	struct node_run *n = arg;
	struct store_options o = nodes_plan.options;
	char why[512] = "";
	int rc;

	sim_set_group(n->number);
	sim_name("boot");
	o.stage_dir = n->stage;
	rc = store_open(n->store, &o, &n->st, why, sizeof(why));
	if (rc < 0)
		sim_fail("node %u: store_open: %s: %s", n->number,
			 strerror(-rc), why);
	while (open_shared(n) < 0)
		mount_sleep(SECOND);
	rc = store_start(n->st);
	if (rc == 0)
		rc = shared_start(n->shared);
	if (rc < 0)
		sim_fail("node %u: start: %s", n->number, strerror(-rc));
	n->mount = mount_new(n->st, n->shared,
			     nodes_plan.seed + n->number * 7 + n->starts);
	nodes_work_start(n);
	n->up = true;
	return NULL;
}

static void *down_main(void *arg)
{
	struct node_run *n = arg;
	int rc;

	sim_set_group(n->number);
	sim_name("end");
	mount_end(n->mount);
	shared_stop(n->shared);
	shared_free(n->shared);
	rc = store_close(n->st);
	if (rc < 0)
		sim_fail("node %u: store_close: %s", n->number, strerror(-rc));
	if (engine_open(n->number) > 0)
		sim_fail("node %u: descriptors of the directory are open after "
			 "the end",
			 n->number);
	n->up = false;
	return NULL;
}

static void boot(struct node_run *n)
{
	struct thread t;

	n->starts++;
	n->calls_at_start = engine_calls(n->number);
	CHECK(thread_create(&t, boot_main, n) == 0);
}

static void die(struct node_run *n, bool cut, struct chance *c)
{
	char db[300];

	if (sim_traces())
		fprintf(stderr, "        node %u %s\n", n->number,
			cut ? "loses power" : "is killed");
	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, n->store);
	sim_kill(n->number);
	n->up = false;
	n->st = NULL;
	n->shared = NULL;
	n->mount = NULL;
	n->clients = 0;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		nodes[i].askers &= ~(1u << n->number);
	nodes_work_dead(n->number);
	/* What was promised is so before the directory is without it. */
	model_node_died(n->number, cut);
	disk_part_kill(n->number);
	kv_model_kill(db);
	if (cut) {
		kv_model_cut(db, c);
		disk_part_cut(n->number, c);
	}
	engine_dead(n->number, cut);
}

/* --- keepers -------------------------------------------------------------- */

struct keeper {
	struct node_run *n;
	const struct death *next; /* NULL: none */
	bool idle; /* it kills nobody any more, and nobody is away */
	struct thread thread;
};
static struct keeper keepers[NODES_MAX + 1];
static bool no_more; /* nobody dies any more */

static bool is_time(void *arg)
{
	const struct keeper *k = arg;

	/* It would be forgotten if it died just now, and could not come back. */
	return no_more || (k->n->askers == 0 &&
			   engine_calls(k->n->number) - k->n->calls_at_start >=
				   k->next->calls);
}

static void forget_dead(struct node_run *n)
{
	char path[40];
	int tries = 0, rc;

	mount_sleep(SECOND);
	/* Nothing of it is owed from when it begins. */
	model_node_forgotten(n->number);
	n->forgotten = true;
	(void)snprintf(path, sizeof(path), ".ckptfs/nodes/%s", n->name);
	/* It may have died before it was one. */
	while ((rc = nodes_forget(n->number)) != 0 && engine_at(path)) {
		if (++tries > 100 && !nodes_plan.errors)
			sim_fail("node %u is dead, and is not forgotten: %d",
				 n->number, rc);
		mount_sleep(SECOND);
	}
}

static void *keeper_main(void *arg)
{
	struct keeper *k = arg;
	struct chance c = chance_of(nodes_plan.seed + k->n->number, 70);

	sim_name("keeper");
	boot(k->n);
	for (unsigned i = 0; i < nodes_plan.deaths && !k->n->forgotten; i++) {
		const struct death *d = &nodes_plan.death[i];

		if (d->node != k->n->number)
			continue;
		k->next = d;
		sim_wait(is_time, k);
		if (no_more)
			break;
		die(k->n, d->cut, &c);
		if (d->for_good) {
			forget_dead(k->n);
			break;
		}
		mount_sleep(d->away_ns);
		boot(k->n);
	}
	k->idle = true;
	return NULL;
}

/* --- the run -------------------------------------------------------------- */

static bool clients_ended(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (!nodes[i].forgotten &&
		    (!nodes[i].up || nodes[i].clients > 1))
			return false;
	return true;
}

static bool all_idle(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (!keepers[i].idle ||
		    (!nodes[i].forgotten && !nodes[i].up))
			return false;
	return true;
}

static bool all_gone(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (nodes[i].clients > 0 && !nodes[i].forgotten)
			return false;
	return true;
}

static bool all_down(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (nodes[i].up)
			return false;
	return true;
}

static uint64_t pending_of(const struct node_run *n)
{
	struct shared_figures f;

	if (!n->up)
		return 0;
	shared_figures(n->shared, &f);
	return f.pending;
}

/* What a node drains is not to be uploaded yet, and will be. */
static bool is_draining(const struct node_run *n)
{
	struct drain_figures f;

	if (!n->up)
		return false;
	drain_figures(n->st->drain, &f);
	return f.draining > 0;
}

static bool is_quiet(void)
{
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (pending_of(&nodes[i]) > 0 || is_draining(&nodes[i]))
			return false;
	return nodes_model_is_quiet();
}

static void wait_quiet(void)
{
	for (unsigned i = 0; i < 2 * QUIET_SECONDS; i++) {
		if (is_quiet())
			return;
		if (i == QUIET_SECONDS && !nodes_model_remove_bare())
			break;
		mount_sleep(SECOND);
	}
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (pending_of(&nodes[i]) > 0)
			sim_fail("node %u has %llu files to upload at the end, "
				 "and does not",
				 i,
				 (unsigned long long)pending_of(&nodes[i]));
	nodes_model_check_end(); /* it says which */
}

/*
 * Who looks after the directory: a job that stands still for minutes waits for a
 * file that says no node (see nodes_model_remove_bare()), once nothing fails any
 * more and what can be completed is.
 */
static void *admin_main(void *arg)
{
	(void)arg;
	sim_name("admin");
	mount_sleep(QUIET_SECONDS * SECOND);
	while (!over) {
		engine_errors(0);
		mount_sleep(QUIET_SECONDS * SECOND);
		if (!over)
			(void)nodes_model_remove_bare();
	}
	return NULL;
}

static void first_main(void *arg)
{
	char why[8192] = "";
	struct thread t;

	(void)arg;
	if (shared_home_make(ENGINE_PATH, why, sizeof(why)) < 0)
		sim_fail("shared_home_make: %s", why);
	engine_errors(nodes_plan.errors);
	for (unsigned i = 1; i <= nodes_plan.nodes; i++) {
		keepers[i].n = &nodes[i];
		CHECK(thread_create(&keepers[i].thread, keeper_main,
				    &keepers[i]) == 0);
	}
	CHECK(thread_create(&t, admin_main, NULL) == 0);
	nodes_work_job();
	while (!clients_ended(NULL))
		sim_wait(clients_ended, NULL);
	mount_sleep(SECOND / 10);
	no_more = true;
	while (!all_idle(NULL))
		sim_wait(all_idle, NULL);
	nodes_work_end();
	while (!all_gone(NULL))
		sim_wait(all_gone, NULL);
	over = true; /* wait_quiet() looks after it now */
	engine_errors(0);
	healed = true;
	wait_quiet();
	nodes_model_check_end();
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (nodes[i].up)
			CHECK(thread_create(&t, down_main, &nodes[i]) == 0);
	while (!all_down(NULL))
		sim_wait(all_down, NULL);
	nodes_model_check_end();
	if (disk_open_descriptors() > 0)
		sim_fail("descriptors are open after the end");
}

static void say(void)
{
	say_plan();
	nodes_model_say();
	outcome->trace = sim_trace();
	outcome->points = sim_points();
}

void seed_prepare(void)
{
}

void seed_run(uint64_t seed, const char *root, bool trace, struct outcome *out)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	(void)dup2(null, STDOUT_FILENO); /* what forget-node says */
	(void)close(null);
	draw(&nodes_plan, seed);
	outcome = out;
	sim_init(seed);
	if (trace) {
		say_plan();
		sim_trace_on();
	}
	sim_on_fail(say);
	disk_init(root, seed);
	engine_init(seed, &nodes_plan.kind);
	nodes_model_init();
	for (unsigned i = 1; i <= nodes_plan.nodes; i++) {
		nodes[i].number = i;
		(void)snprintf(nodes[i].name, sizeof(nodes[i].name), "n%u", i);
		disk_part_make(i, nodes[i].store, nodes[i].stage);
	}
	CHECK(sim_run(first_main, NULL) == SIM_DONE);
	out->trace = sim_trace();
	out->points = sim_points();
}
