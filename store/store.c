/* store.c - see store.h. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/identity.h"
#include "store/db/parents.h"
#include "store/db/trust.h"
#include "store/drain/commit.h"
#include "store/file/file.h"
#include "store/recover.h"

/* The directories' names must be durable before anything in them is. */
static int make_dirs(struct store *st)
{
	int rc = 0;
	int fd;

	for (unsigned x = 0; x < LAYOUT_IMAGE_DIRS; x++) {
		char dir[16];

		(void)snprintf(dir, sizeof(dir), LAYOUT_IMAGE_DIR "/%02x", x);
		if (mkdirat(st->dirfd, dir, 0700) < 0 && errno != EEXIST)
			return -errno;
	}
	if (mkdirat(st->dirfd, LAYOUT_STAGE_DIR, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = openat(st->dirfd, LAYOUT_IMAGE_DIR,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0 || fsync(st->dirfd) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

/*
 * A clean end: all that the database knows is in its tables, and the mark says
 * up to where. Without it the next start looks at the log, as after a crash.
 */
static void finish_database(struct store *st)
{
	struct mark mark = { .clean = true };
	int rc = st->images.kv ? images_finish(&st->images) : 0;

	if (rc == 0)
		rc = kv_finish(st->kv, &mark.sequence);
	if (rc == 0)
		rc = marker_write(&st->marker, &mark);
	if (rc < 0)
		log_error("%s: the database is closed as after a crash: %s",
			  st->path, strerror(-rc));
}

static void store_free(struct store *st)
{
	backup_stop(st);
	recover_release(st);
	guard_free(st->guard);
	reclaim_stop(st->reclaim);
	drain_free(st->drain); /* jobs hold inodes */
	names_free(st->names);
	inodes_free(st->inodes);
	reclaim_free(st->reclaim);
	if (st->segments.next_id)
		segments_release(&st->segments);
	if (st->stages.slots)
		stages_release(&st->stages);
	ahead_stop(st->files.ahead);
	if (st->ending)
		finish_database(st);
	if (st->images.kv)
		images_release(&st->images);
	kv_close(st->kv);
	marker_close(&st->marker);
	close(st->dirfd);
	close(st->lockfd);
	free(st);
}

/* --- what the stages call; see stages_set_hooks() --- */

static bool evict(void *arg, struct stage *s)
{
	struct store *st = arg;

	return file_evict(&st->files, s);
}

static void abandon_image(void *arg, struct image *i)
{
	struct store *st = arg;
	struct stat sb;

	commit_abandon(st->drain, i,
		       image_stat(&st->images, i, &sb) == 0
			       ? (uint64_t)sb.st_size
			       : 0);
}

static uint64_t segment_quota(const struct store_options *o)
{
	if (o->no_segments)
		return 0;
	return o->segment_bytes ? o->segment_bytes : INT64_MAX;
}

static void on_sync(void *arg, uint64_t sequence)
{
	marker_synced(arg, sequence);
}

/* Believe the database, or leave everything as it is. */
static int look_at_database(struct store *st, bool fresh, struct trust *ret,
			    char *why, size_t why_size)
{
	int rc;

	if (fresh) {
		ret->durable = 0;
		return 0;
	}
	rc = trust_database(st->path, st->dirfd, ret, why, why_size);
	if (rc == 0 && ret->mark < 0 && !layout_is_old(st->dirfd))
		log_error("%s/" LAYOUT_MARK_FILE " is %s, and is written anew",
			  st->path,
			  ret->mark == -ENOENT ? "missing" : "damaged");
	return rc;
}

/* A database is made for a new store only. */
static int open_database(struct store *st, bool fresh, char *why,
			 size_t why_size)
{
	struct identity id, copy;
	struct trust trust;
	char db[4096 + 16];
	int rc;

	reserve_give_up(st->path, st->dirfd);
	rc = look_at_database(st, fresh, &trust, why, why_size);
	if (rc < 0)
		return rc;
	layout_say_who(st->lockfd, NULL);
	rc = marker_open(&st->marker, st->dirfd);
	if (rc == 0) /* from here on it is not closed any more */
		rc = marker_write(&st->marker,
				  &(struct mark){ .sequence = trust.durable });
	if (rc < 0) {
		(void)snprintf(why, why_size,
			       "%s/" LAYOUT_MARK_FILE ": cannot be written: %s",
			       st->path, strerror(-rc));
		return rc;
	}
	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, st->path);
	rc = kv_open(db, fresh, &st->kv);
	if (rc == -ENOSPC) {
		(void)snprintf(why, why_size,
			       "%s: its disk is full, and there is no reserve "
			       "left to open the database with; make room for "
			       "64 MiB and 32 files on it",
			       st->path);
		return rc;
	}
	if (rc < 0) {
		(void)snprintf(why, why_size,
			       "%s: the database cannot be opened: %s; see the "
			       "line above, and ckptctl fsck %s",
			       st->path, strerror(-rc), st->path);
		return rc;
	}
	kv_on_sync(st->kv, on_sync, &st->marker);
	rc = make_dirs(st);
	if (rc == 0)
		rc = fresh ? identity_make_secret(st->secret)
			   : identity_load(st->kv, st->secret);
	if (rc == 0 && fresh)
		rc = identity_begin(st->kv, st->secret);
	if (rc == 0 && fresh)
		rc = kv_sync(st->kv);
	memcpy(id.uuid, st->uuid, sizeof(id.uuid));
	memcpy(id.secret, st->secret, sizeof(id.secret));
	if (rc == 0 && (identity_read(st->dirfd, &copy) < 0 ||
			memcmp(&copy, &id, sizeof(id)) != 0))
		rc = identity_write(st->dirfd, &id);
	if (rc == 0 && (fresh || layout_is_old(st->dirfd)))
		rc = layout_finish(st->dirfd, st->uuid);
	if (rc == -EUCLEAN)
		(void)snprintf(why, why_size,
			       "%s: its database lacks its secret; put the "
			       "database back from a copy of this store, or "
			       "run 'ckptctl rebuild %s'",
			       st->path, st->path);
	else if (rc < 0)
		(void)snprintf(why, why_size, "%s: %s", st->path,
			       strerror(-rc));
	return rc;
}

/* --- what the names call; see names_hooks --- */

static int prepare(void *arg, struct inode *in, const struct names_new *n)
{
	struct store *st = arg;

	return file_prepare(&st->files, in, n);
}

static void unlinked(void *arg, struct inode *in)
{
	struct store *st = arg;

	file_unlinked(&st->files, in);
}

static int clone_content(void *arg, struct kv_batch *b, uint64_t from,
			 uint64_t to)
{
	struct store *st = arg;
	const struct store_hooks *h = &st->hooks;
	int rc;

	if (h->renumbering)
		h->renumbering(h->arg, b, from, to);
	rc = commit_clone(st->drain, b, from, to);
	if (rc == 0 && h->renumbered)
		h->renumbered(h->arg, from, to);
	return rc;
}

static int keep_content(void *arg, struct kv_batch *b, const struct inode *old,
			struct inode *in)
{
	struct store *st = arg;

	return commit_keep(st->drain, b, old->ino, in);
}

static void renamed(void *arg, uint64_t parent, const char *name)
{
	const struct kernel_hooks *k = &((struct store *)arg)->files.kernel;

	if (k->on_renamed)
		k->on_renamed(k->arg, parent, name);
}

static void changed(void *arg, uint64_t ino)
{
	const struct kernel_hooks *k = &((struct store *)arg)->files.kernel;

	if (k->on_changed)
		k->on_changed(k->arg, ino);
}

static uint64_t number(void *arg)
{
	return drain_draw_place(((struct store *)arg)->drain);
}

static int make_guard(struct store *st)
{
	const struct guard_uses use = { .kv = st->kv,
					.inodes = st->inodes,
					.names = st->names,
					.drain = st->drain,
					.files = &st->files,
					.policy = st->options.structure };

	return guard_new(&use, &st->guard);
}

/* --- what the drain's timer calls; see drain_options --- */

static bool ask_left(void *arg)
{
	struct store *st = arg;

	return files_ask_left(&st->files);
}

static void each_second(void *arg)
{
	struct store *st = arg;

	segments_let_go(&st->segments);
	reserve_look(&st->reserve);
}

/* --- what else the drain calls; see store_hooks --- */

static void committing(void *arg, struct kv_batch *b, uint64_t ino,
		       uint64_t place)
{
	const struct store_hooks *h = &((struct store *)arg)->hooks;

	if (h->committing)
		h->committing(h->arg, b, ino, place);
}

static void tell_place(void *arg, uint64_t ino, uint64_t place, bool holds)
{
	const struct store_hooks *h = &((struct store *)arg)->hooks;

	if (h->tell_place)
		h->tell_place(h->arg, ino, place, holds);
}

static int open_drain(struct store *st)
{
	const struct store_options *o = &st->options;
	const struct drain_options options = {
		.uuid = st->uuid,
		.secret = st->secret,
		.threads = o->drain_threads,
		.interval_s = o->drain_interval_s,
		.dedup_min_saving_percent = o->dedup_min_saving_percent,
		.copies = o->dedup_copies,
		.verify = o->verify != VERIFY_OFF,
		.share_all = o->share_all,
		.hold = o->hold_drain,
		.arg = st,
		.ask_left = ask_left,
		.each_second = each_second,
		.committing = committing,
		.tell_place = tell_place,
	};

	return drain_new(st->kv, &st->images, &st->stages, st->inodes,
			 st->reclaim, &options, &st->drain);
}

static void set_files(struct store *st)
{
	const struct store_options *o = &st->options;

	st->files = (struct files){
		.kv = st->kv,
		.images = &st->images,
		.stages = &st->stages,
		.inodes = st->inodes,
		.names = st->names,
		.reclaim = st->reclaim,
		.drain = st->drain,
		.secret = st->secret,
		.durable_close = o->durable_close,
		.verify_at_open = o->verify == VERIFY_OPEN,
		.stage_all_in_memory = o->stage_all_in_memory,
		.empty_in_place_bytes = o->empty_in_place_bytes,
	};
}

static int open_parts(struct store *st, char *why, size_t why_size)
{
	struct stages_config config = {
		.store_path = st->path,
		.store_dirfd = st->dirfd,
		.dir = st->options.stage_dir,
		.size_bytes = st->options.stage_bytes,
		.uuid = st->uuid,
		.no_cache = st->options.no_stage_cache,
	};
	const struct names_hooks hooks = { st,           prepare,
					   unlinked,     clone_content,
					   keep_content, renamed,
					   changed,      number };
	bool adopted;
	int rc = open_database(st, st->fresh, why, why_size);

	if (rc < 0)
		return rc;
	rc = images_init(&st->images, st->dirfd, st->kv);
	if (rc == 0)
		rc = inodes_new(st->kv, &st->images, &st->stages, &st->inodes);
	if (rc == 0)
		rc = names_new(st->kv, st->inodes, &hooks, &st->names);
	if (rc == 0)
		rc = reclaim_new(st->kv, &st->images, &st->reclaim);
	if (rc == 0)
		rc = open_drain(st);
	if (rc == 0)
		rc = make_guard(st);
	if (rc < 0) {
		(void)snprintf(why, why_size, "%s: %s", st->path,
			       strerror(-rc));
		return rc;
	}
	rc = stages_init(&st->stages, &config, &st->images, &adopted, why,
			 why_size);
	if (rc < 0)
		return rc;
	stages_set_hooks(&st->stages, evict, abandon_image, st);
	set_files(st);
	segments_init(&st->segments, &st->files, segment_quota(&st->options));
	if (st->options.release_wait_s > 0)
		st->segments.release_wait_s = st->options.release_wait_s;
	rc = recover(st, adopted);
	if (rc < 0)
		(void)snprintf(why, why_size,
			       "%s: what the last mount left cannot be taken "
			       "over: %s; run ckptctl fsck %s",
			       st->path, strerror(-rc), st->path);
	return rc;
}

/* The directory is open and locked, and nothing else of the store. */
static int store_begin(const char *path, enum layout_want want,
		       struct store **ret_store, char *why, size_t why_size)
{
	SCOPED(scope_free) char *real = NULL;
	struct store *st;
	int rc = parents_check(path, &real, why, why_size);

	if (rc < 0)
		return rc;
	st = calloc(1, sizeof(*st));
	if (!st || strlen(real) >= sizeof(st->path)) {
		free(st);
		(void)snprintf(why, why_size, "%s: path is too long", path);
		return -ENAMETOOLONG;
	}
	strcpy(st->path, real);
	st->marker.fd = -1;
	rc = layout_open(st->path, want, &st->dirfd, &st->lockfd, st->uuid, why,
			 why_size);
	if (rc < 0) {
		free(st);
		return rc;
	}
	st->fresh = rc == 1;
	*ret_store = st;
	return 0;
}

int store_make(const char *path, char *why, size_t why_size)
{
	struct store *st;
	int rc = store_begin(path, LAYOUT_NEW, &st, why, why_size);

	if (rc < 0)
		return rc;
	rc = open_database(st, true, why, why_size);
	st->ending = rc == 0;
	store_free(st);
	return rc;
}

int store_open(const char *path, const struct store_options *options,
	       struct store **ret_store, char *why, size_t why_size)
{
	struct store *st;
	int rc = store_begin(path,
			     options->no_create ? LAYOUT_STORE : LAYOUT_ANY,
			     &st, why, why_size);

	if (rc < 0)
		return rc;
	st->options = *options;
	rc = open_parts(st, why, why_size);
	if (rc < 0) {
		store_free(st);
		return rc;
	}
	*ret_store = st;
	return 0;
}

int store_start(struct store *st)
{
	int rc;

	reserve_init(&st->reserve, st->path, st->dirfd, st->kv);
	rc = reclaim_start(st->reclaim);
	if (rc == 0)
		rc = drain_start(st->drain);
	if (rc == 0)
		rc = guard_start(st->guard);
	if (rc == 0)
		recover_close_open(st);
	if (rc == 0)
		rc = ahead_start(&st->images, &st->files.ahead);
	if (rc == 0)
		rc = backup_start(st);
	if (rc == 0)
		recover_sweep(st);
	return rc;
}

int store_close(struct store *st)
{
	uint64_t freed;
	int rc;

	files_abandoned(&st->files);
	drain_hurry_begin(st->drain); /* what goes on now is waited for */
	drain_go_on(st->drain);
	rc = drain_sync_tree(st->drain, ROOT_INO);
	drain_hurry_end(st->drain);
	guard_stop(st->guard);
	drain_stop(st->drain);
	reclaim_drain(st->reclaim, &freed);
	st->ending = true;
	store_free(st);
	return rc;
}

uint64_t store_counter(struct store *st, const char *name)
{
	uint64_t value = 0;

	(void)u64_load(st->kv, key_meta(name), &value);
	return value;
}
