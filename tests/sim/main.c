/*
 * main.c - what a seed does with one store.
 *
 * A seed is one run: a store is made, clients work, sometimes a crash ends that
 * and the store is opened again, at last all is drained, the store is closed
 * and checked. See README.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/check/check.h"
#include "store/store.h"
#include "tests/sim/disk.h"
#include "tests/sim/kernel.h"
#include "tests/sim/kv_model.h"
#include "tests/sim/model.h"
#include "tests/sim/seeds.h"
#include "tests/sim/sim.h"
#include "tests/sim/work.h"

/* Waiting that long, by the run's clock, is for something that was missed. */
#define RUN_CLOCK_MAX INT64_C(3600000000000)

static struct {
	struct plan plan;
	struct store *st;
	struct outcome *out;
	bool was_cut;
	unsigned cuts;
	size_t part; /* how often the store was opened before */
} run;

static void mount_store(void)
{
	char why[512] = "";
	int rc = store_open(disk_store(), &run.plan.options, &run.st, why,
			    sizeof(why));

	if (rc < 0)
		sim_fail("store_open: %s: %s", strerror(-rc), why);
	kernel_mount(run.st, run.plan.passthrough, run.plan.slow_reads,
		     run.plan.seed);
	rc = store_start(run.st);
	if (rc < 0)
		sim_fail("store_start: %s", strerror(-rc));
}

/* The disk works from now on, and has room. */
static void heal(void)
{
	disk_errors(0, 0);
	kv_model_errors(0, false, 0);
	disk_set_size(UINT64_MAX);
}

static void drained(void)
{
	bool errors =
		run.plan.errors || run.plan.errors_kv || run.plan.disk_bytes;
	int rc = 0;

	kernel_settle();
	heal();
	/* What failed is tried again after a while. */
	for (unsigned i = 0; i < (errors ? 100 : 1); i++) {
		rc = kernel_sync_all();
		if (rc == 0)
			rc = drain_wait_drained(run.st->drain);
		if (rc == 0)
			break;
		/* See kv_condemn(): such a store has to be opened anew. */
		if (kv_health(run.st->kv) == KV_CONDEMNED)
			sim_crash_at(1);
		if (errors)
			kernel_sleep(INT64_C(10000000000));
	}
	if (rc < 0)
		sim_fail("the disk works, and what was closed is not durable: "
			 "%s",
			 strerror(-rc));
	model_check_drained();
}

/* After the store is there: the rest may fail. */
static void hurt(void)
{
	const struct plan *plan = &run.plan;

	disk_errors(plan->errors, INT64_MAX);
	kv_model_errors(plan->errors_kv, plan->errors_syncs, INT64_MAX);
	if (plan->disk_bytes)
		disk_set_size(plan->disk_bytes);
}

static void problem(void *self, const struct check_problem *p)
{
	(void)self;
	if (!p->note)
		fprintf(stderr, "%s: %s: %s\n", p->code, p->object, p->text);
}

/* The closed store is sound, to its last byte. */
static void check_closed(void)
{
	struct check_options options = { .scrub = true,
					 .threads = 1,
					 .problem = problem };
	struct check_result result;
	char images[300];
	struct kv *kv;
	int fd, rc;

	(void)snprintf(images, sizeof(images), "%s/" LAYOUT_IMAGE_DIR,
		       disk_store());
	CHECK(kv_open_readonly("", &kv) == 0);
	fd = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0);
	rc = check_store(kv, fd, &options, &result);
	(void)close(fd);
	kv_close(kv);
	if (rc < 0 || result.problems > 0)
		sim_fail("fsck: %d, %llu problems", rc,
			 (unsigned long long)result.problems);
}

static void unmount_store(void)
{
	int rc;

	work_end();
	kernel_unmount();
	rc = store_close(run.st);
	if (rc < 0)
		sim_fail("store_close: %s", strerror(-rc));
	if (disk_open_descriptors() > 0)
		sim_fail("descriptors are open after the end");
	if (disk_mappings() > 0)
		sim_fail("mappings are there after the end");
	if (disk_stage_files() > 0)
		sim_fail("stages are there after the end");
}

/* From one start to the next crash, or to the end. */
static void one_part(void *arg)
{
	(void)arg;
	mount_store();
	if (run.part > 0)
		work_check_found(run.was_cut);
	run.was_cut = false;
	hurt();
	work_run(&run.plan, run.st, (unsigned)run.part);
	drained();
	work_check_all();
	unmount_store();
	check_closed();
	if (sim_clock() > RUN_CLOCK_MAX)
		sim_fail("it took too long by its clock");
}

static void crash(const struct crash *c, struct chance *chance)
{
	heal();
	disk_kill(false);
	kernel_forget_all();
	kv_model_kill(NULL);
	if (!c->cut) {
		model_killed();
		return;
	}
	run.cuts++;
	run.was_cut = true; /* until what is left was looked at */
	kv_model_cut(NULL, chance);
	disk_cut(chance);
}

static void all_parts(void)
{
	static const struct crash condemned = { .cut = false };
	struct chance chance = chance_of(run.plan.seed, 6);

	for (;; run.part++) {
		struct crash *next = run.part < run.plan.crashes
					     ? &run.plan.crash[run.part]
					     : NULL;

		sim_crash_at(next ? sim_points() + next->after : 0);
		if (next && next->changes)
			sim_crash_at_change(next->changes);
		else if (next && next->commits)
			sim_crash_at_commit(next->commits);
		if (sim_run(one_part, NULL) == SIM_DONE)
			return;
		crash(next ? next : &condemned, &chance);
		if (!next)
			run.plan.errors_kv = 0;
	}
}

/* What was found is compared with what is found again, too. */
static void say_plan(void)
{
	plan_print(&run.plan);
	model_say();
	run.out->trace = sim_trace();
	run.out->points = sim_points();
}

const char seed_option[] = "";

void seed_prepare(void)
{
	work_init(NULL);
}

void seed_run(uint64_t seed, const char *root, bool trace, struct outcome *out)
{
	plan_draw(&run.plan, seed);
	if (trace) {
		plan_print(&run.plan);
		sim_trace_on();
	}
	run.out = out;
	sim_init(seed);
	sim_on_fail(say_plan);
	disk_init(root, seed);
	run.plan.options.stage_dir = disk_stage();
	work_init(&run.plan);
	kv_model_on_durable(model_durable);
	disk_on_change(model_uses);
	all_parts();
	out->trace = sim_trace();
	out->points = sim_points();
}
