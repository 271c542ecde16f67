/*
 * main.c - runs seeds: each in a process of its own, so that whatever it leaves
 * behind is gone with it.
 *
 * A seed is one run: a store is made, clients work, sometimes a crash ends that
 * and the store is opened again, at last all is drained, the store is closed
 * and checked. See README.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/check/check.h"
#include "store/store.h"
#include "tests/sim/disk.h"
#include "tests/sim/kernel.h"
#include "tests/sim/kv_model.h"
#include "tests/sim/model.h"
#include "tests/sim/sim.h"
#include "tests/sim/work.h"

#define RUN_SECONDS_MAX 60 /* of this machine's: then it hangs */
/* Waiting that long, by the run's clock, is for something that was missed. */
#define RUN_CLOCK_MAX INT64_C(3600000000000)

struct outcome {
	uint64_t trace, points;
};

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
	kv_model_kill();
	if (!c->cut) {
		model_killed();
		return;
	}
	run.cuts++;
	run.was_cut = true; /* until what is left was looked at */
	kv_model_cut(chance);
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

/* In the child. */
static void run_seed(uint64_t seed, const char *root, bool trace,
		     struct outcome *out)
{
	/* Memory that was touched once is used again. */
	(void)mallopt(M_MMAP_THRESHOLD, 256 << 20);
	(void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
	log_set_level(trace ? LOG_DEBUG : LOG_EMERG);
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

/* --- many seeds
 * ----------------------------------------------------------------- */

struct options {
	uint64_t seed, count;
	double seconds;
	bool trace, replay, quiet;
};

static double clock_s(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void remove_root(const char *root)
{
	char command[200];

	(void)snprintf(command, sizeof(command),
		       "chattr -R -a %s 2>/dev/null; "
		       "rm -rf %s",
		       root, root);
	(void)!system(command);
}

/* 0: fine. Otherwise what is wrong was said on stderr. */
static int child_of(uint64_t seed, bool trace, bool quiet, size_t shift,
		    struct outcome *out)
{
	char root[64];
	int status, null;
	pid_t pid;

	(void)snprintf(root, sizeof(root), "/dev/shm/ckptfs-sim-%d-XXXXXX",
		       (int)getpid());
	CHECK(mkdtemp(root));
	memset(out, 0, sizeof(*out));
	(void)fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		if (quiet) {
			null = open("/dev/null", O_WRONLY | O_CLOEXEC);
			(void)dup2(null, STDERR_FILENO);
		}
		(void)alarm(RUN_SECONDS_MAX);
		if (shift) /* addresses must not matter */
			(void)!malloc(shift * 4113);
		run_seed(seed, root, trace, out);
		disk_remove();
		(void)rmdir(root);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	remove_root(root);
	if (WIFSIGNALED(status) && !quiet)
		fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed,
			strsignal(WTERMSIG(status)));
	return 1;
}

static int usage(FILE *to, int code)
{
	fprintf(to,
		"usage: ckpt_sim [--seed N] [--count N] [--seconds S] "
		"[--hours H] [--rare] [--trace] [--replay]\n"
		"  --seed N     the first seed; without it, a fresh one\n"
		"  --count N    so many seeds (1 with --seed, else no end)\n"
		"  --seconds S, --hours H  for so long\n"
		"  --rare       plans that come to rare places more often\n"
		"  --trace      print each point\n"
		"  --replay     run each twice, and compare the traces\n"
		"exit code: 0 nothing was found; 1 a seed failed; 2 usage\n");
	return code;
}

static int parse(int argc, char **argv, struct options *o)
{
	static const struct option options[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "count", required_argument, NULL, 'n' },
		{ "seconds", required_argument, NULL, 't' },
		{ "hours", required_argument, NULL, 'h' },
		{ "trace", no_argument, NULL, 'v' },
		{ "rare", no_argument, NULL, 'p' },
		{ "replay", no_argument, NULL, 'r' },
		{ "quiet", no_argument, NULL, 'q' },
		{ "help", no_argument, NULL, 'H' },
		{ 0 },
	};
	bool seeded = false;
	struct timespec t;
	int opt;

	(void)clock_gettime(CLOCK_REALTIME, &t);
	*o = (struct options){ .seed = (uint64_t)t.tv_sec * 100000,
			       .count = UINT64_MAX };
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			o->seed = strtoull(optarg, NULL, 10);
			seeded = true;
			break;
		case 'n':
			o->count = strtoull(optarg, NULL, 10);
			break;
		case 't':
			o->seconds = strtod(optarg, NULL);
			break;
		case 'h':
			o->seconds = strtod(optarg, NULL) * 3600;
			break;
		case 'v':
			o->trace = true;
			break;
		case 'p':
			sim_seek_rare(); /* of this process' children, too */
			break;
		case 'r':
			o->replay = true;
			break;
		case 'q':
			o->quiet = true;
			break;
		case 'H':
			exit(usage(stdout, 0));
		default:
			return -EINVAL;
		}
	}
	if (optind < argc)
		return -EINVAL;
	if (seeded && o->count == UINT64_MAX && o->seconds <= 0)
		o->count = 1;
	if (o->count == UINT64_MAX && o->seconds <= 0)
		o->seconds = 60;
	return 0;
}

/* With --replay: twice, and the two have to be the same, whatever they find. */
static int one_seed(uint64_t seed, const struct options *o,
		    struct outcome *shared, uint64_t *ret_points)
{
	struct outcome first;
	int rc = child_of(seed, o->trace, o->quiet || o->replay, 0, shared);
	int again;

	first = *shared;
	*ret_points += first.points;
	if (!o->replay)
		return rc;
	again = child_of(seed, false, true, 1 + seed % 40, shared);
	if (rc == again && memcmp(&first, shared, sizeof(first)) == 0)
		return 0;
	fprintf(stderr, "seed %llu: two runs, two traces\n",
		(unsigned long long)seed);
	return 1;
}

static int compare_traces(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* How many of the traces are different; they are sorted then. */
static size_t count_distinct(uint64_t *trace, size_t n)
{
	size_t distinct = n > 0 ? 1 : 0;

	if (n > 1)
		qsort(trace, n, sizeof(*trace), compare_traces);
	for (size_t i = 1; i < n; i++)
		distinct += trace[i] != trace[i - 1] ? 1 : 0;
	return distinct;
}

int main(int argc, char **argv)
{
	struct outcome *shared;
	struct options o;
	double begin = clock_s(), took;
	uint64_t n, points = 0, *traces = NULL;
	size_t room = 0;
	int rc = 0;

	if (parse(argc, argv, &o) < 0)
		return usage(stderr, 2);
	(void)signal(SIGURG, SIG_IGN);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	work_init(NULL); /* what all children have in common */
	printf("seeds from %llu\n", (unsigned long long)o.seed);
	for (n = 0; n < o.count; n++) {
		if (o.seconds > 0 && clock_s() - begin >= o.seconds)
			break;
		rc = one_seed(o.seed + n, &o, shared, &points);
		if (rc)
			break;
		CHECK(vec_grow(&traces, n, &room, sizeof(*traces)) == 0);
		traces[n] = shared->trace;
	}
	took = clock_s() - begin;
	if (rc)
		printf("FAILED: seed %llu, after %llu seeds and %.1f s; again: "
		       "tests/sim/run --seed %llu\n",
		       (unsigned long long)(o.seed + n), (unsigned long long)n,
		       took, (unsigned long long)(o.seed + n));
	else
		printf("%llu seeds in %.1f s (%.0f/s), %.0f points each, "
		       "%zu traces, nothing found\n",
		       (unsigned long long)n, took, (double)n / took,
		       n ? (double)points / (double)n : 0.0,
		       count_distinct(traces, n));
	free(traces);
	return rc;
}
