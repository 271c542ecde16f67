/*
 * gpu_bench.c - the speed of libckpt_gpu on this machine's GPU, against what
 * the same machine does in the same run, and every result bit by bit against
 * the CPU.
 *
 * Both sides of a row take turns, figures are medians, and the ratio is the
 * median of the rounds' ratios. A row that falls short is printed as such; a
 * byte that is wrong makes the exit code 1. run.sh beside it brings a mount,
 * runs this, and keeps the table.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/scope.h"
#include "tests/gpu/gpu_bench.h"

#define ROUNDS_DEFAULT 5u
#define MIB (UINT64_C(1) << 20)
#define MIB_DEFAULT 4096u
#define MIB_SMALL 24u
#define SHORT_NS 1e5 /* which milliseconds would not show */
/* How often the tensors' size is on the device in the worst row. */
#define DEVICE_SHARES 5u

static const char usage_text[] =
	"usage: gpu_bench [OPTION...] DIR\n"
	"\n"
	"  --check      only the checks of every result, no speeds\n"
	"  --name       use the device, print its name\n"
	"  --small      as little as shows that it works (a fake driver)\n"
	"  --size MIB   of tensors on the device (4096)\n"
	"  --rounds N   of which the median counts (5)\n"
	"  --strict     a speed that falls short is a failure as well\n"
	"  --rows LIST  only these groups of rows (a,b), and no checks before\n"
	"  --list       print the groups\n"
	"  --mount TEXT how DIR is mounted, for the table\n"
	"\n"
	"DIR is a directory in a ckptfs mount. When it is none, rows are\n"
	"measured without the mount's part, and say so.\n"
	"\n"
	"Exit code: 0 fine, 1 a byte is wrong (--strict: or a row is short),\n"
	"2 wrong usage or it could not be measured, 77 there is no GPU.\n";

static unsigned wrongs, shorts;

void die(const char *format, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "gpu_bench: ");
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	exit(2);
}

void must(int rc, const char *what)
{
	if (rc < 0)
		die("%s: %s", what, ckpt_last_error());
}

void wrong(const char *format, ...)
{
	va_list ap;

	wrongs++;
	printf("WRONG: ");
	va_start(ap, format);
	vprintf(format, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
}

bool is_same(const void *ours, const void *cpu, uint64_t len, const char *what)
{
	const uint8_t *a = ours, *b = cpu;
	uint64_t at = 0;

	if (memcmp(a, b, len) == 0)
		return true;
	while (a[at] == b[at])
		at++;
	wrong("%s: byte %llu of %llu is %02x, must be %02x", what,
	      (unsigned long long)at, (unsigned long long)len, a[at], b[at]);
	return false;
}

uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* --- the table -------------------------------------------------------------
 */

static void line(const char *name, const char *ours, const char *theirs,
		 const char *ratio, const char *wanted, const char *verdict)
{
	printf("%-60s %13s %13s %8s  %-8s %s\n", name, ours, theirs, ratio,
	       wanted, verdict);
	fflush(stdout);
}

void row_add(struct row *r, uint64_t ours_ns, uint64_t theirs_ns)
{
	CHECK(r->rounds < ROUNDS_MAX);
	r->ours[r->rounds] = ours_ns > 0 ? ours_ns : 1;
	r->theirs[r->rounds] = theirs_ns > 0 ? theirs_ns : 1;
	r->rounds++;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), compare);
	return v[(n - 1) / 2];
}

struct medians {
	double ours, theirs; /* ns */
	double faster, slower; /* theirs / ours, ours / theirs */
};

static struct medians medians_of(const struct row *r)
{
	double ours[ROUNDS_MAX], theirs[ROUNDS_MAX];
	double faster[ROUNDS_MAX], slower[ROUNDS_MAX];

	for (unsigned i = 0; i < r->rounds; i++) {
		ours[i] = (double)r->ours[i];
		theirs[i] = (double)r->theirs[i];
		faster[i] = theirs[i] / ours[i];
		slower[i] = ours[i] / theirs[i];
	}
	return (struct medians){ median(ours, r->rounds),
				 median(theirs, r->rounds),
				 median(faster, r->rounds),
				 median(slower, r->rounds) };
}

static void print(const struct row *r, const char *ours, const char *theirs,
		  double ratio, enum wanted wanted, double limit)
{
	bool ok = wanted == AT_LEAST ? ratio >= limit : ratio <= limit;
	char number[32], want[32];

	(void)snprintf(number, sizeof(number), "%.3f", ratio);
	if (limit == NO_LIMIT) {
		line(r->name, ours, theirs, number,
		     wanted == AT_LEAST ? "(more)" : "(less)", "");
		return;
	}
	(void)snprintf(want, sizeof(want), "%s %g",
		       wanted == AT_LEAST ? ">=" : "<=", limit);
	shorts += !ok;
	line(r->name, ours, theirs, number, want, ok ? "ok" : "SHORT");
}

void row_print_speed(struct row *r, uint64_t bytes, double at_least)
{
	struct medians m = medians_of(r);
	char ours[32], theirs[32];

	(void)snprintf(ours, sizeof(ours), "%.2f GB/s", (double)bytes / m.ours);
	(void)snprintf(theirs, sizeof(theirs), "%.2f GB/s",
		       (double)bytes / m.theirs);
	print(r, ours, theirs, m.faster, AT_LEAST, at_least);
}

static void show_time(char *text, size_t size, double ns)
{
	if (ns < SHORT_NS)
		(void)snprintf(text, size, "%.1f us", ns / 1e3);
	else
		(void)snprintf(text, size, "%.3f ms", ns / 1e6);
}

void row_print_times(struct row *r, enum wanted wanted, double limit)
{
	struct medians m = medians_of(r);
	char ours[32], theirs[32];

	show_time(ours, sizeof(ours), m.ours);
	show_time(theirs, sizeof(theirs), m.theirs);
	print(r, ours, theirs, wanted == AT_LEAST ? m.faster : m.slower, wanted,
	      limit);
}

void row_skip(const char *name, const char *why)
{
	char text[160];

	(void)snprintf(text, sizeof(text), "SKIP: %s", why);
	line(name, "-", "-", "-", "-", text);
}

/* --- the run ---------------------------------------------------------------
 */

static unsigned number(const char *text, unsigned max)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = text ? strtoul(text, &end, 10) : 0;
	if (!text || end == text || *end || errno != 0 || v == 0 || v > max) {
		fprintf(stderr, "gpu_bench: bad number '%s'\n%s",
			text ? text : "", usage_text);
		exit(2);
	}
	return (unsigned)v;
}

static void print_head(const struct bench *b, struct ckpt *c)
{
	char name[128] = "";

	for (int i = 0;
	     !b->groups && i < gpu_device_count(gpu) && i < BENCH_DEVICES_MAX;
	     i++) {
		device_name(i, name, sizeof(name));
		printf("device %d: %s, %llu MiB free\n", i, name,
		       (unsigned long long)(device_free_bytes(i) / MIB));
	}
	printf("%s; %llu MiB of tensors, %u rounds\n", ckpt_gpu_state(c),
	       (unsigned long long)(b->bytes / MIB), b->rounds);
	if (b->mounted)
		printf("saves go to a mount (%s)\n",
		       b->mount_options ? b->mount_options : "options unknown");
	else
		printf("no mount at %s: saves go to plain pinned shared "
		       "memory\n",
		       b->dir);
	fflush(stdout);
}

/* What there is room for on the device. */
static void fit(struct bench *b)
{
	uint64_t room = device_free_bytes(0) / DEVICE_SHARES;

	while (b->bytes > room && b->bytes > 64 * MIB)
		b->bytes /= 2;
}

int main(int argc, char **argv)
{
	struct bench b = { .bytes = 0, .rounds = 0 };
	bool check_only = false, name_only = false, strict = false;
	bool list_only = false;
	struct ckpt *c;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--check") == 0)
			check_only = true;
		else if (strcmp(argv[i], "--name") == 0)
			name_only = true;
		else if (strcmp(argv[i], "--small") == 0)
			b.small = true;
		else if (strcmp(argv[i], "--strict") == 0)
			strict = true;
		else if (strcmp(argv[i], "--list") == 0)
			list_only = true;
		else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc)
			b.groups = argv[++i];
		else if (strcmp(argv[i], "--mount") == 0 && i + 1 < argc)
			b.mount_options = argv[++i];
		else if (strcmp(argv[i], "--size") == 0)
			b.bytes = number(argv[++i], 1u << 20) * MIB;
		else if (strcmp(argv[i], "--rounds") == 0)
			b.rounds = number(argv[++i], ROUNDS_MAX);
		else if (argv[i][0] != '-' && !b.dir)
			b.dir = argv[i];
		else {
			fputs(usage_text, stderr);
			return 2;
		}
	}
	if (list_only) {
		bench_list_groups();
		return 0;
	}
	if (b.groups && !bench_has_groups(b.groups)) {
		fprintf(stderr, "gpu_bench: no such rows: %s (see --list)\n",
			b.groups);
		return 2;
	}
	if (!b.dir && !name_only) {
		fputs(usage_text, stderr);
		return 2;
	}
	if (b.bytes == 0)
		b.bytes = (b.small ? MIB_SMALL : MIB_DEFAULT) * MIB;
	if (b.rounds == 0)
		b.rounds = b.small ? 1 : ROUNDS_DEFAULT;
	device_open();
	if (name_only) {
		char name[128] = "";

		/* What is refused is refused here. */
		gpu_free(gpu, 0, device_new(0, 1));
		device_name(0, name, sizeof(name));
		puts(name);
		device_close();
		return 0;
	}
	fit(&b);
	b.mounted = place_is_mount(b.dir);
	must(ckpt_open(NULL, &c), "ckpt_open");
	print_head(&b, c);
	if (!b.groups) {
		check_everything(&b);
		printf("checks: %s\n\n",
		       wrongs == 0 ? "every byte is right" : "WRONG");
	}
	if (!check_only) {
		line("row", "ours", "machine", "ratio", "wanted", "");
		bench_rows(&b);
		printf("\n%u short, %u wrong\n", shorts, wrongs);
	}
	ckpt_close(c);
	device_close();
	return wrongs > 0 || (strict && shorts > 0);
}
