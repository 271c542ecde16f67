/*
 * live_life.h - the life of a store without a mount: opened, closed, opened
 * again, and checked when it goes.
 *
 * With `passthrough` the store believes that the kernel moves the bytes: opens
 * are backed by a descriptor.
 *
 * live_free() closes the store and checks it: every record must fit every
 * other one, and every chunk is hashed again. So each test ends with a proof
 * that nothing was lost and nothing was counted twice.
 */
#ifndef TESTS_UNIT_LIVE_LIFE_H
#define TESTS_UNIT_LIVE_LIFE_H

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/base/log.h"
#include "store/check/check.h"
#include "store/check/rebuild.h"
#include "store/store.h"
#include "tests/unit/store_fixture.h"

struct live {
	char *path; /* of the store */
	char *stage; /* its stage, a directory in memory */
	struct store_options options;
	bool passthrough;
	struct store *st; /* NULL: closed */
};

/* Where a stage can be without a mount: in memory when there is such a place.
 */
static inline char *live_stage_dir(void)
{
	char *path = NULL;

	if (asprintf(&path, "/dev/shm/ckptfs-unit-XXXXXX") < 0)
		abort();
	if (mkdtemp(path))
		return path;
	free(path);
	return make_tmp();
}

/* As the kernel does it: the file is opened anew, to read and to write. */
static inline int live_backing_open(void *arg, int fd)
{
	char path[32];
	int own;

	(void)arg;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_RDWR | O_CLOEXEC);
	if (own < 0 && errno == EPERM) /* sealed */
		own = open(path, O_RDONLY | O_CLOEXEC);
	return own;
}

static inline void live_backing_close(void *arg, int id)
{
	(void)arg;
	if (close(id) < 0)
		abort();
}

/* Open, but do not start: nothing is drained, committed or punched. */
static inline int live_try_open(struct live *l, char why[512])
{
	int rc;

	l->options.stage_dir = l->stage;
	rc = store_open(l->path, &l->options, &l->st, why, 512);
	if (rc < 0) {
		l->st = NULL;
		return rc;
	}
	if (l->passthrough) {
		l->st->files.kernel.backing_open = live_backing_open;
		l->st->files.kernel.backing_close = live_backing_close;
	}
	return 0;
}

static inline void live_open(struct live *l)
{
	char why[512] = "";
	int rc = live_try_open(l, why);

	if (rc < 0)
		fail_msg("store_open: %d: %s", rc, why);
	assert_int_equal(store_start(l->st), 0);
}

/* Options for a test: nothing happens by itself. */
static inline struct store_options live_options(void)
{
	struct store_options o = STORE_OPTIONS_DEFAULT;

	o.drain_interval_s = 0;
	o.backup_interval_s = 0;
	o.drain_threads = 4;
	return o;
}

static inline struct live live_closed(const struct store_options *options)
{
	struct live l = { .path = make_tmp(), .stage = live_stage_dir() };

	log_set_level(LOG_CRIT); /* errors are provoked here */
	l.options = options ? *options : live_options();
	return l;
}

static inline struct live live_new(const struct store_options *options)
{
	struct live l = live_closed(options);

	live_open(&l);
	return l;
}

/* A store with one of the kinds of stage, with or without passthrough. */
#define LIVE_KINDS 4
static inline void live_open_kind(struct live *l, unsigned kind)
{
	l->options.stage_all_in_memory = (kind & 1) != 0;
	l->passthrough = (kind & 2) != 0;
	live_open(l);
}

static inline struct live live_kind(unsigned kind)
{
	struct live l = live_closed(NULL);

	live_open_kind(&l, kind);
	return l;
}

/* And nothing is drained but what somebody waits for. */
static inline struct live live_kind_held(unsigned kind)
{
	struct live l = live_closed(NULL);

	l.options.hold_drain = true;
	live_open_kind(&l, kind);
	return l;
}

static inline void live_close(struct live *l)
{
	int rc = store_close(l->st);

	l->st = NULL;
	assert_int_equal(rc, 0);
}

static inline void live_reopen(struct live *l)
{
	live_close(l);
	live_open(l);
}

static inline void live_problem(void *self, const struct check_problem *p)
{
	(void)self;
	print_error("%s: %s: %s\n", p->code, p->object, p->text);
}

/* The closed store is sound, to its last byte. */
static inline void live_check(struct live *l)
{
	struct check_options options = { .scrub = true,
					 .threads = 1,
					 .problem = live_problem };
	struct check_result result;
	char db[4096], images[4096];
	struct kv *kv;
	int fd, rc;

	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, l->path);
	(void)snprintf(images, sizeof(images), "%s/" LAYOUT_IMAGE_DIR, l->path);
	assert_int_equal(kv_open_readonly(db, &kv), 0);
	fd = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	rc = check_store(kv, fd, &options, &result);
	close(fd);
	kv_close(kv);
	assert_int_equal(rc, 0);
	assert_int_equal(result.problems, 0);
}

static inline void live_rebuilt(void *self, enum rebuild_kind kind,
				const char *object, const char *text)
{
	(void)self;
	if (kind == REBUILD_LOST || kind == REBUILD_ASIDE)
		print_error("%s: %s\n", object, text);
}

/* Of a closed store; something may be lost. */
static inline struct rebuild_result live_rebuild(struct live *l)
{
	const struct rebuild_options options = { .say = live_rebuilt };
	struct rebuild_result result;
	char why[512] = "";
	int rc = rebuild_store(l->path, &options, &result, why, sizeof(why));

	if (rc != 1)
		fail_msg("rebuild_store: %d: %s", rc, why);
	return result;
}

/* A new database, from labels alone. */
static inline struct rebuild_result live_rebuild_of_labels(struct live *l)
{
	char path[4352];

	(void)snprintf(path, sizeof(path), "%s/" LAYOUT_DB_DIR, l->path);
	remove_tree(path);
	(void)snprintf(path, sizeof(path), "%s/" LAYOUT_BACKUP_DIR, l->path);
	remove_tree(path);
	return live_rebuild(l);
}

static inline void live_remove(struct live *l)
{
	remove_tree(l->path);
	remove_tree(l->stage);
	free(l->path);
	free(l->stage);
}

static inline void live_free(struct live *l)
{
	if (l->st)
		live_close(l);
	live_check(l);
	live_remove(l);
}

/* What a power cut leaves of the stage: nothing. The store is not open. */
static inline void live_empty_stage(struct live *l)
{
	remove_tree(l->stage);
	assert_int_equal(mkdir(l->stage, 0700), 0);
}

/* Descriptors that this process has open. */
static inline unsigned open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

#endif
