/*
 * check_fixture.h - the store of store_fixture.h is checked, and what the check
 * says is written down.
 */
#ifndef TESTS_UNIT_CHECK_FIXTURE_H
#define TESTS_UNIT_CHECK_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/check/check.h"
#include "tests/unit/store_fixture.h"

#define FOUND_MAX 64

struct found {
	struct fixture *f;
	unsigned problems, notes;
	char codes[FOUND_MAX][32];
	char last_text[16384];
	char files[FOUND_MAX][256]; /* of every "damaged" */
	unsigned file_count;
	uint64_t progress_done, progress_total; /* of the scrub */
	struct check_result result;
};

static inline void on_problem(void *self, const struct check_problem *p)
{
	struct found *found = self;

	if (p->note) {
		(void)snprintf(found->codes[found->problems + found->notes++],
			       32, "%s", p->code);
		return;
	}
	assert_true(found->problems < FOUND_MAX);
	assert_true(strlen(p->object) > 0);
	assert_true(strlen(p->text) > strlen(p->object));
	assert_true(strlen(p->text) < sizeof(found->last_text));
	(void)snprintf(found->codes[found->problems++], 32, "%s", p->code);
	strcpy(found->last_text, p->text);
	for (size_t i = 0; i < p->file_count; i++)
		(void)snprintf(found->files[found->file_count++], 256, "%s",
			       p->files[i]);
}

static inline void on_progress(void *self, const char *phase, uint64_t done,
			       uint64_t total)
{
	struct found *found = self;

	if (strcmp(phase, "scrub") != 0)
		return;
	assert_true(done >= found->progress_done);
	found->progress_done = done;
	found->progress_total = total;
}

static inline int run_check(struct found *found, bool scrub, unsigned threads)
{
	struct check_options options = { .scrub = scrub,
					 .threads = threads,
					 .problem = on_problem,
					 .progress = on_progress,
					 .self = found };

	fixture_reopen(found->f);
	return check_store(found->f->kv, found->f->images_dirfd, &options,
			   &found->result);
}

static inline bool has_code(const struct found *found, const char *code)
{
	for (unsigned i = 0; i < found->problems; i++)
		if (strcmp(found->codes[i], code) == 0)
			return true;
	return false;
}

static inline bool has_file(const struct found *found, const char *path)
{
	for (unsigned i = 0; i < found->file_count; i++)
		if (strcmp(found->files[i], path) == 0)
			return true;
	return false;
}

/* The file of image 1. */
static inline void lose_image_file(struct fixture *f)
{
	assert_int_equal(unlinkat(f->images_dirfd, "01/0000000000000001", 0),
			 0);
}

static inline void cut_image_file(struct fixture *f)
{
	int fd = openat(f->images_dirfd, "01/0000000000000001", O_WRONLY);

	assert_int_equal(ftruncate(fd, CHUNK_A + CHUNK_B - 1), 0);
	close(fd);
}

#endif
