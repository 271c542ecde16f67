/*
 * replay.c - run a harness without libFuzzer: over its corpus, then over
 * random variations of it.
 *
 *   replay [-runs=N] [-seconds=N] [-seed=N] FILE|DIRECTORY...
 *
 * Each input of the corpus runs once, in the order of names. Then variations
 * run, until there were N or N seconds have passed (10 without either): with
 * -runs alone the same happens on each machine, with -runs=0 there are none.
 * There is no guidance by coverage: this is a check that runs everywhere and in
 * every build, not a search. Without -seed, CKPTFS_TEST_SEED is the seed of the
 * variations, and without that, 1; it is printed.
 *
 * The input that is being run is kept in the file ./NAME.input, so that it is
 * there after a crash; give it as FILE, with -runs=0, to see the crash again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "store/base/scope.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/test_seed.h"

#define INPUTS_MAX 4096
#define MUTATIONS_MAX 8 /* in one variation */

struct input {
	char *name; /* owned */
	uint8_t *data; /* owned */
	size_t len;
};

struct replay {
	uint64_t runs;
	uint64_t seconds;
	uint64_t random; /* state, never 0 */
	struct input inputs[INPUTS_MAX];
	size_t count;

	int fd; /* of current_name */
	char current_name[256];
	uint8_t *current; /* the file, mapped: FUZZ_INPUT_BYTES_MAX */
	size_t current_len;
};

static void fail(const char *what, const char *name)
{
	fprintf(stderr, "replay: %s '%s': %s\n", what, name, strerror(errno));
	exit(2);
}

static void load_file(struct replay *r, const char *path)
{
	struct input *in = &r->inputs[r->count];
	SCOPED(scope_close) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		fail("open", path);
	if (r->count == INPUTS_MAX) {
		errno = E2BIG;
		fail("load", path);
	}
	in->name = strdup(path);
	in->data = malloc(FUZZ_INPUT_BYTES_MAX);
	CHECK(in->name);
	CHECK(in->data);
	n = read(fd, in->data, FUZZ_INPUT_BYTES_MAX);
	if (n < 0)
		fail("read", path);
	in->len = (size_t)n;
	r->count++;
}

static int not_hidden(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

/* In the order of names, so that a seed means the same everywhere. */
static void load(struct replay *r, const char *path)
{
	struct dirent **entries;
	struct stat st;
	char name[4096];
	int n;

	if (stat(path, &st) < 0)
		fail("stat", path);
	if (!S_ISDIR(st.st_mode)) {
		load_file(r, path);
		return;
	}
	n = scandir(path, &entries, not_hidden, alphasort);
	if (n < 0)
		fail("scan", path);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s/%s", path, entries[i]->d_name);
		load_file(r, name);
		free(entries[i]);
	}
	free(entries);
}

static uint64_t random_next(struct replay *r)
{
	r->random ^= r->random << 13;
	r->random ^= r->random >> 7;
	r->random ^= r->random << 17;
	return r->random;
}

/* 0 <= result < n */
static size_t random_below(struct replay *r, size_t n)
{
	CHECK(n > 0);
	return (size_t)(random_next(r) >> 11) % n;
}

/* A number that breaks things: near a power of two, or any. */
static uint64_t random_number(struct replay *r)
{
	uint64_t v = UINT64_C(1) << random_below(r, 64);

	switch (random_below(r, 5)) {
	case 0:
		return random_next(r);
	case 1:
		return UINT64_MAX - random_below(r, 4);
	case 2:
		return random_below(r, 256);
	default:
		return v + random_below(r, 5) - 2;
	}
}

static void overwrite_number(struct replay *r)
{
	size_t width = (size_t)1 << random_below(r, 4);
	uint64_t v = random_number(r);
	size_t at;

	if (r->current_len < width)
		return;
	at = random_below(r, r->current_len - width + 1);
	memcpy(r->current + at, &v, width);
}

/* Add a little to a number, which keeps a length almost right. */
static void nudge_number(struct replay *r)
{
	size_t width = (size_t)1 << random_below(r, 3);
	uint32_t v = 0;
	size_t at;

	if (r->current_len < width)
		return;
	at = random_below(r, r->current_len - width + 1);
	memcpy(&v, r->current + at, width);
	v += (uint32_t)random_below(r, 65) - 32;
	memcpy(r->current + at, &v, width);
}

static void flip_bit(struct replay *r)
{
	if (r->current_len > 0)
		r->current[random_below(r, r->current_len)] ^=
			(uint8_t)(1u << random_below(r, 8));
}

static void remove_block(struct replay *r)
{
	size_t at;
	size_t n;

	if (r->current_len == 0)
		return;
	at = random_below(r, r->current_len);
	n = 1 + random_below(r, r->current_len - at);
	if (random_below(r, 4) != 0 && n > 16)
		n = 16;
	memmove(r->current + at, r->current + at + n, r->current_len - at - n);
	r->current_len -= n;
}

/* Put a part of some input, or all of it, anywhere into this one. */
static void insert_block(struct replay *r)
{
	const struct input *in = &r->inputs[random_below(r, r->count)];
	size_t room = FUZZ_INPUT_BYTES_MAX - r->current_len;
	size_t at = random_below(r, r->current_len + 1);
	size_t from;
	size_t n;

	if (in->len == 0)
		return;
	from = random_below(r, 3) == 0 ? 0 : random_below(r, in->len);
	n = random_below(r, 3) == 0 ? in->len - from
				    : 1 + random_below(r, in->len - from);
	n = n < room ? n : room;
	memmove(r->current + at + n, r->current + at, r->current_len - at);
	memcpy(r->current + at, in->data + from, n);
	r->current_len += n;
}

static void truncate_input(struct replay *r)
{
	r->current_len = random_below(r, r->current_len + 1);
}

static void mutate(struct replay *r)
{
	static void (*const mutations[])(struct replay *) = {
		overwrite_number, overwrite_number, nudge_number,
		nudge_number,     flip_bit,         remove_block,
		insert_block,     truncate_input,
	};
	const struct input *in = &r->inputs[random_below(r, r->count)];
	size_t n = 1 + random_below(r, MUTATIONS_MAX);

	memcpy(r->current, in->data, in->len);
	r->current_len = in->len;
	for (; n > 0; n--)
		mutations[random_below(r, sizeof(mutations) /
						  sizeof(*mutations))](r);
}

static void open_current(struct replay *r, const char *program)
{
	const char *slash = strrchr(program, '/');

	snprintf(r->current_name, sizeof(r->current_name), "%s.input",
		 slash ? slash + 1 : program);
	r->fd = open(r->current_name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC,
		     0644);
	if (r->fd < 0 || ftruncate(r->fd, FUZZ_INPUT_BYTES_MAX) < 0)
		fail("create", r->current_name);
	r->current = mmap(NULL, FUZZ_INPUT_BYTES_MAX, PROT_READ | PROT_WRITE,
			  MAP_SHARED, r->fd, 0);
	if (r->current == MAP_FAILED)
		fail("map", r->current_name);
}

/*
 * The harness gets a copy of exactly the right length, so that a sanitizer
 * sees the first byte too far; the file gets that length too.
 */
static void run_current(struct replay *r)
{
	uint8_t *exact = malloc(r->current_len > 0 ? r->current_len : 1);

	CHECK(exact);
	memcpy(exact, r->current, r->current_len);
	if (ftruncate(r->fd, (off_t)r->current_len) < 0)
		fail("truncate", r->current_name);
	(void)LLVMFuzzerTestOneInput(exact, r->current_len);
	if (ftruncate(r->fd, FUZZ_INPUT_BYTES_MAX) < 0)
		fail("extend", r->current_name);
	free(exact);
}

static void close_current(struct replay *r)
{
	(void)munmap(r->current, FUZZ_INPUT_BYTES_MAX);
	(void)close(r->fd);
	(void)unlink(r->current_name);
}

/* -> how many inputs ran. */
static size_t run_corpus(struct replay *r)
{
	for (size_t i = 0; i < r->count; i++) {
		r->current_len = r->inputs[i].len;
		memcpy(r->current, r->inputs[i].data, r->current_len);
		run_current(r);
	}
	return r->count;
}

static uint64_t now_seconds(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (uint64_t)now.tv_sec;
}

/* -> how many ran; without -seconds the clock is not looked at. */
static uint64_t run_variations(struct replay *r)
{
	bool timed = r->seconds > 0;
	uint64_t end = timed ? now_seconds() + r->seconds : 0, done;

	for (done = 0; done < r->runs && (!timed || now_seconds() < end);
	     done++) {
		mutate(r);
		run_current(r);
	}
	return done;
}

static bool take_option(const char *arg, const char *name, uint64_t *ret)
{
	size_t len = strlen(name);
	char *end;

	if (strncmp(arg, name, len) != 0)
		return false;
	errno = 0;
	*ret = strtoull(arg + len, &end, 0);
	if (errno != 0 || *end != '\0' || end == arg + len) {
		errno = EINVAL;
		fail("option", arg);
	}
	return true;
}

int main(int argc, char **argv)
{
	static struct replay r = { .runs = UINT64_MAX };
	uint64_t seed = test_seed_read(), done;
	size_t inputs;

	for (int i = 1; i < argc; i++)
		if (!take_option(argv[i], "-runs=", &r.runs) &&
		    !take_option(argv[i], "-seconds=", &r.seconds) &&
		    !take_option(argv[i], "-seed=", &seed))
			load(&r, argv[i]);
	if (r.count == 0) {
		fprintf(stderr,
			"usage: replay [-runs=N] [-seconds=N] "
			"[-seed=N] FILE|DIRECTORY...\n"
			"  -runs=0  the corpus alone, without "
			"variations: always the same\n"
			"  -runs=N  so many variations, however long they "
			"take\n"
			"  -seconds=N  for so long; without either 10\n"
			"  -seed    of the variations; without it " TEST_SEED
			", or 1\n");
		return 2;
	}
	if (r.runs == UINT64_MAX && r.seconds == 0)
		r.seconds = 10;
	r.random = test_seed_spread(seed);
	printf("replay: seed %" PRIu64 "\n", seed);
	(void)fflush(stdout);

	open_current(&r, argv[0]);
	inputs = run_corpus(&r);
	done = run_variations(&r);
	close_current(&r);
	printf("replay: %zu inputs, %" PRIu64 " variations\n", inputs, done);
	for (size_t i = 0; i < r.count; i++) {
		free(r.inputs[i].name);
		free(r.inputs[i].data);
	}
	return 0;
}
