/*
 * train.c - a training loop that can be killed at any time.
 *
 *     train DIRECTORY [--steps N] [--every N] [--keep N]
 *
 * Every N steps it saves ckpt_STEP.safetensors in the background: while the
 * bytes are copied the next gradient is computed, which only reads the
 * weights. It waits for the copy before it changes them, and for the file to
 * be durable before it deletes older ones. Started again it goes on from the
 * newest file, and ends with the same weights as if it had never stopped.
 *
 * Outside of this repository: cc train.c -lckpt_gpu
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu/ckpt_gpu.h"

#define LAYERS 4
#define LAYER_ROWS 1024
#define LAYER_COLUMNS 512
#define LAYER_ELEMENTS ((size_t)LAYER_ROWS * LAYER_COLUMNS)
#define PATH_BYTES 4096

struct training {
	const char *dir;
	unsigned long steps, every, keep;

	struct ckpt *ckpt;
	struct ckpt_save *save; /* the last one, until it is durable */
	unsigned long saved_step;
	int copying; /* the weights must not change */
	double stall_ms;

	float *weights[LAYERS];
	float *gradient; /* of one layer after the other */
};

static void die(const char *what)
{
	fprintf(stderr, "train: %s\n", what);
	exit(1);
}

/* The library's calls: 0, or the sentence why not. */
static void check(int rc)
{
	if (rc < 0)
		die(ckpt_last_error());
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void file_path(const struct training *t, unsigned long step,
		      char path[PATH_BYTES])
{
	int n = snprintf(path, PATH_BYTES, "%s/ckpt_%lu.safetensors", t->dir,
			 step);

	if (n >= PATH_BYTES)
		die("the path is too long");
}

/* The newest checkpoint before `before`; 0: there is none. */
static unsigned long newest_before(const struct training *t,
				   unsigned long before)
{
	DIR *dir = opendir(t->dir);
	const struct dirent *d;
	unsigned long newest = 0;

	if (!dir)
		die(strerror(errno));
	while ((d = readdir(dir))) {
		unsigned long step;
		int end = 0;

		if (sscanf(d->d_name, "ckpt_%lu.safetensors%n", &step, &end) ==
			    1 &&
		    end > 0 && d->d_name[end] == '\0' && step < before &&
		    step > newest)
			newest = step;
	}
	closedir(dir);
	return newest;
}

/* --- Saving ----------------------------------------------------------------
 */

static void begin_save(struct training *t, unsigned long step)
{
	static const uint64_t shape[2] = { LAYER_ROWS, LAYER_COLUMNS };
	double begun = now_ms();
	char path[PATH_BYTES];
	char text[32];

	file_path(t, step, path);
	check(ckpt_begin(t->ckpt, path, &t->save));
	snprintf(text, sizeof(text), "%lu", step);
	check(ckpt_metadata(t->save, "step", text));
	for (int i = 0; i < LAYERS; i++) {
		struct ckpt_tensor tensor = {
			.name = text,
			.dtype = "F32",
			.shape = shape,
			.rank = 2,
			.data = t->weights[i],
			.device = CKPT_DEVICE_HOST,
		};

		snprintf(text, sizeof(text), "layer.%d", i);
		check(ckpt_add(t->save, &tensor));
	}
	check(ckpt_start(t->save));
	t->copying = 1;
	t->saved_step = step;
	t->stall_ms = now_ms() - begun;
}

/* The weights may change when it returns. */
static void wait_copied(struct training *t)
{
	double begun = now_ms();

	if (!t->copying)
		return;
	check(ckpt_commit(t->save));
	t->copying = 0;
	t->stall_ms += now_ms() - begun;
	printf("step %lu: saved ckpt_%lu.safetensors (stall %.1f ms)\n",
	       t->saved_step, t->saved_step, t->stall_ms);
	fflush(stdout);
}

/* The newest `keep` stay; the last save is durable. */
static void delete_old(const struct training *t)
{
	unsigned long step = t->saved_step + 1;
	char path[PATH_BYTES];

	for (unsigned long kept = 0; (step = newest_before(t, step)); kept++) {
		file_path(t, step, path);
		if (kept >= t->keep && unlink(path) < 0)
			die(strerror(errno));
	}
}

static void wait_durable(struct training *t)
{
	wait_copied(t);
	if (!t->save)
		return;
	check(ckpt_wait(t->save));
	ckpt_save_free(t->save);
	t->save = NULL;
	delete_old(t);
}

/* --- Restoring -------------------------------------------------------------
 */

static int restore_from(struct training *t, const char *path)
{
	struct ckpt_target targets[LAYERS];
	struct ckpt_file *file;
	int rc = ckpt_file_open(t->ckpt, path, &file);

	if (rc < 0)
		return rc;
	for (int i = 0; i < LAYERS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "layer.%d", i);
		targets[i] = (struct ckpt_target){
			.entry = ckpt_file_find(file, name),
			.data = t->weights[i],
			.device = CKPT_DEVICE_HOST,
		};
		if (!targets[i].entry ||
		    targets[i].entry->bytes != LAYER_ELEMENTS * sizeof(float))
			die("that checkpoint is not one of this program's");
	}
	rc = ckpt_file_read(file, targets, LAYERS);
	ckpt_file_close(file);
	return rc;
}

/*
 * From the newest that can be read: one that could not be made durable can be
 * damaged after a power cut, and then the one before it is taken.
 */
static unsigned long restore(struct training *t)
{
	unsigned long step = (unsigned long)-1;
	char path[PATH_BYTES];

	while ((step = newest_before(t, step))) {
		file_path(t, step, path);
		if (restore_from(t, path) == 0) {
			printf("step %lu: restored\n", step);
			return step;
		}
		fprintf(stderr, "train: %s\n", ckpt_last_error());
	}
	for (int i = 0; i < LAYERS; i++)
		for (size_t n = 0; n < LAYER_ELEMENTS; n++)
			t->weights[i][n] = (float)(n % 101) * 0.01f;
	return 0;
}

/* --- Training --------------------------------------------------------------
 */

/* Reads the weights, does not change them. */
static void compute_gradient(struct training *t, unsigned long step)
{
	for (int i = 0; i < LAYERS; i++)
		for (size_t n = 0; n < LAYER_ELEMENTS; n++)
			t->gradient[(size_t)i * LAYER_ELEMENTS + n] =
				t->weights[i][n] * 0.01f +
				(float)((n + step) % 17) * 0.001f;
}

static void update(struct training *t)
{
	for (int i = 0; i < LAYERS; i++)
		for (size_t n = 0; n < LAYER_ELEMENTS; n++)
			t->weights[i][n] -=
				t->gradient[(size_t)i * LAYER_ELEMENTS + n];
}

static uint32_t checksum(const struct training *t)
{
	uint32_t sum = 2166136261u; /* FNV-1a */

	for (int i = 0; i < LAYERS; i++)
		for (size_t n = 0; n < LAYER_ELEMENTS; n++) {
			uint32_t bits;

			memcpy(&bits, &t->weights[i][n], sizeof(bits));
			sum = (sum ^ bits) * 16777619u;
		}
	return sum;
}

static void train(struct training *t)
{
	unsigned long step = restore(t);

	while (step < t->steps) {
		step++;
		compute_gradient(t, step);
		wait_copied(t);
		update(t);
		if (step % t->every == 0) {
			wait_durable(t); /* the one before */
			begin_save(t, step);
		}
	}
	wait_durable(t);
	printf("step %lu: done, checksum %08" PRIx32 "\n", step, checksum(t));
}

static unsigned long take_number(const char *s)
{
	char *end;
	unsigned long n = s ? strtoul(s, &end, 10) : 0;

	if (n == 0 || *end != '\0')
		die("give a number that is not 0");
	return n;
}

static void take_options(struct training *t, char **argv)
{
	for (; *argv; argv++) {
		if (strcmp(*argv, "--steps") == 0)
			t->steps = take_number(*++argv);
		else if (strcmp(*argv, "--every") == 0)
			t->every = take_number(*++argv);
		else if (strcmp(*argv, "--keep") == 0)
			t->keep = take_number(*++argv);
		else if (!t->dir && **argv != '-')
			t->dir = *argv;
		else
			t->dir = NULL;
	}
	if (!t->dir)
		die("usage: train DIRECTORY [--steps N] [--every N] "
		    "[--keep N]");
}

int main(int argc, char **argv)
{
	/* CKPT_PLAIN: the directory need not be in a mount. */
	struct ckpt_options options = { .flags = CKPT_PLAIN };
	struct training t = { .steps = 100, .every = 10, .keep = 2 };

	(void)argc;
	take_options(&t, argv + 1);
	t.gradient = calloc(LAYERS, LAYER_ELEMENTS * sizeof(float));
	if (!t.gradient)
		die("no memory");
	for (int i = 0; i < LAYERS; i++) {
		t.weights[i] = calloc(LAYER_ELEMENTS, sizeof(float));
		if (!t.weights[i])
			die("no memory");
	}
	check(ckpt_open(&options, &t.ckpt));
	train(&t);
	ckpt_close(t.ckpt);
	for (int i = 0; i < LAYERS; i++)
		free(t.weights[i]);
	free(t.gradient);
	return 0;
}
