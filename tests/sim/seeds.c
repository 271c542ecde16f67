/*
 * seeds.c - runs seeds: each in a process of its own, so that whatever it leaves
 * behind is gone with it. See seeds.h.
 */
#include "tests/sim/seeds.h"

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
#include "tests/sim/disk.h"
#include "tests/sim/sim.h"

#define RUN_SECONDS_MAX 60 /* of this machine's: then it hangs */

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
		/* Memory that was touched once is used again. */
		(void)mallopt(M_MMAP_THRESHOLD, 256 << 20);
		(void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
		log_set_level(trace ? LOG_DEBUG : LOG_EMERG);
		seed_run(seed, root, trace, out);
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
		"usage: %s [--seed N] [--count N] [--seconds S] "
		"[--hours H] [--rare] [--trace] [--replay]\n"
		"  --seed N     the first seed; without it, a fresh one\n"
		"  --count N    so many seeds (1 with --seed, else no end)\n"
		"  --seconds S, --hours H  for so long\n"
		"  --rare       plans that come to rare places more often\n"
		"  --trace      print each point\n"
		"  --replay     run each twice, and compare the traces\n"
		"exit code: 0 nothing was found; 1 a seed failed; 2 usage\n",
		program_invocation_short_name);
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
	seed_prepare();
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
		       "tests/sim/run%s --seed %llu\n",
		       (unsigned long long)(o.seed + n), (unsigned long long)n,
		       took, seed_option, (unsigned long long)(o.seed + n));
	else
		printf("%llu seeds in %.1f s (%.0f/s), %.0f points each, "
		       "%zu traces, nothing found\n",
		       (unsigned long long)n, took, (double)n / took,
		       n ? (double)points / (double)n : 0.0,
		       count_distinct(traces, n));
	free(traces);
	return rc;
}
