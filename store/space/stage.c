/*
 * stage.c - the life of a stage: from the slot of the table that it takes, over
 * the references to it, to its drop; and the list of the clean ones, which are
 * given up oldest first when a new one needs their memory.
 */
#include "store/space/stage_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/base/scope.h"

/* Left on the disk for the database, so that deleting always works. */
#define DATABASE_SPARE_BYTES (UINT64_C(64) << 20)
/* So many caches are given up at once, for a slot. */
#define SLOTS_GIVEN_UP 16

struct stage *stage_new(uint64_t ino, enum stage_kind kind)
{
	struct stage *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->ino = ino;
	s->kind = kind;
	atomic_init(&s->refs, 1);
	return s;
}

/* *ret_slots: as that of shares_take(). */
static int stage_take_slot(struct stages *st, struct stage *s,
			   uint32_t *ret_slots)
{
	int rc;

	HOLD(&st->lock);
	if (st->free_count == 0)
		return -ENFILE;
	rc = shares_take(&st->shares, s->uid, st->free_count, ret_slots);
	if (rc < 0)
		return rc;
	s->shared = true;
	s->slot_index = st->free_slot[--st->free_count];
	s->slot = &st->slots[s->slot_index];
	if (s->kind == STAGE_MEMORY)
		s->number = st->next_number++;
	return 0;
}

void stage_write_slot(struct stage *s)
{
	slot_make(s->slot, s->kind, s->number);
}

void stage_show(struct stage *s)
{
	slot_show(s->slot, s->ino);
}

/*
 * Whose the memory is: see shares.h. What a file was allocated counts as its
 * owner's as long as it is not clean; a clean one goes when its memory is
 * wanted. Segments have a quota of their own, and count as nobody's. What a
 * writer adds beyond what was allocated is seen by nobody, and does not count.
 */
static void stage_count_locked(struct stages *st, struct stage *s)
{
	if (s->counted || s->memory_bytes == 0)
		return;
	shares_add_bytes(&st->shares, s->uid, s->memory_bytes);
	s->counted = true;
}

static void stage_uncount_locked(struct stages *st, struct stage *s)
{
	if (s->counted)
		shares_give_bytes(&st->shares, s->uid, s->memory_bytes);
	s->counted = false;
}

/* So much more of what there is; false: he has his share. */
static bool stage_take_share(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	uint64_t used, total, free;

	stages_usage(st, &used, &total);
	if (size_bytes > total)
		return false; /* it will never fit */
	HOLD(&st->lock);
	used -= used < st->clean_bytes ? used : st->clean_bytes;
	free = used < total ? total - used : 0;
	if (!shares_take_bytes(&st->shares, s->uid, size_bytes, free,
			       mono_ns()))
		return false;
	stage_count_locked(st, s); /* what it had before */
	s->memory_bytes += size_bytes;
	s->counted = true;
	return true;
}

/*
 * stage_make_memory() for a file: -ENOSPC also when its user has his share of
 * the memory and others are in want.
 */
static int stage_make_shared(struct stages *st, struct stage *s,
			     uint64_t size_bytes)
{
	uint64_t used, total;
	int rc;

	if (!stage_take_share(st, s, size_bytes))
		return -ENOSPC;
	rc = stage_make_memory(st, s, size_bytes, true);
	if (rc == 0)
		return 0;
	stages_usage(st, &used, &total);
	HOLD(&st->lock);
	stage_uncount_locked(st, s);
	s->memory_bytes = 0;
	if (rc == -ENOSPC && size_bytes <= total) /* or it will never fit */
		shares_want(&st->shares, s->uid, mono_ns());
	return rc;
}

static void stage_give_slot(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (!s->slot)
		return;
	slot_free(s->slot);
	st->free_slot[st->free_count++] = s->slot_index;
	s->slot = NULL;
	stage_uncount_locked(st, s);
	if (s->shared)
		shares_give(&st->shares, s->uid);
	s->shared = false;
}

void stage_own(struct stages *st, struct stage *s, uid_t uid)
{
	HOLD(&st->lock);
	if (!s->slot || shares_add(&st->shares, uid) < 0)
		return;
	stage_uncount_locked(st, s);
	if (s->shared)
		shares_give(&st->shares, s->uid);
	s->shared = true;
	s->uid = uid;
	if (SLOT_GET(s->slot, dirty))
		stage_count_locked(st, s);
}

static int stage_create_memory(struct stages *st, struct stage *s,
			       uint64_t size_bytes)
{
	SCOPED(scope_close)
	int fd = stage_open(st, s, O_RDWR | O_CREAT | O_EXCL);
	int rc;

	if (fd < 0)
		return fd;
	if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size_bytes) == 0)
		return 0;
	rc = -errno;
	stage_unlink(st, s->number);
	return rc;
}

static int stage_create_disk(struct stages *st, struct stage *s)
{
	int rc = image_create(st->images, &s->image);

	if (rc < 0)
		return rc;
	s->number = s->image->id;
	/* One that is used again has the time of its last use. */
	stage_set_times(st, s, NULL);
	return 0;
}

static void touch_locked(struct stages *st, struct stage *s)
{
	TAILQ_REMOVE(&st->clean, s, by_use);
	TAILQ_INSERT_TAIL(&st->clean, s, by_use);
}

static bool evict_until(struct stages *st, uint64_t want)
{
	/* Each clean stage is tried once: one that is open stays. */
	unsigned tries = (unsigned)atomic_load(&st->memory_count) + 1;

	for (;;) {
		uint64_t used, total;
		struct stage *s;

		stages_usage(st, &used, &total);
		if (used + want <= total)
			return true;
		if (!st->evict || tries-- == 0)
			return false;
		{
			HOLD(&st->lock);
			s = TAILQ_FIRST(&st->clean);
			if (!s)
				return false;
			stage_ref(s);
			touch_locked(st, s);
		}
		(void)st->evict(st->hook_arg, s);
		stage_put(st, s);
	}
}

/*
 * A file of this size fits in memory, maybe after others were given up; `ask`:
 * if it does not, for the next time, segments are asked back.
 */
static bool stage_fits(struct stages *st, uint64_t size, bool ask)
{
	uint64_t used, total;

	stages_usage(st, &used, &total);
	if (size > total)
		return false;
	if (used + size <= total)
		return true;
	return ask ? stages_make_room(st, size) : evict_until(st, size);
}

void stage_allocate(struct stages *st, struct stage *s, uint64_t size_bytes)
{
	SCOPED(scope_close) int fd = -1;
	uint64_t has;
	struct stat sb;

	if (s->kind != STAGE_MEMORY || stage_stat(st, s, &sb) < 0)
		return;
	has = (uint64_t)sb.st_blocks * 512;
	if (size_bytes <= has || !stage_take_share(st, s, size_bytes - has))
		return;
	fd = stage_open(st, s, O_RDWR);
	if (fd < 0)
		return;
	HOLD(&st->admit);
	if (stage_fits(st, size_bytes - has, true))
		(void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size_bytes);
}

int stage_make_memory(struct stages *st, struct stage *s, uint64_t size_bytes,
		      bool ask)
{
	HOLD(&st->admit);
	return stage_fits(st, size_bytes, ask)
		       ? stage_create_memory(st, s, size_bytes)
		       : -ENOSPC;
}

int stage_new_slot(struct stages *st, uint64_t ino, uid_t uid,
		   struct stage **ret_stage)
{
	struct stage *s = stage_new(ino, STAGE_MEMORY);
	uint32_t slots = 0;
	int rc;

	if (!s)
		return -ENOMEM;
	s->uid = uid;
	rc = stage_take_slot(st, s, &slots);
	if (slots > 0)
		log_warning("user %u has %u files that are open or not durable "
			    "yet, of %u that there can be, and gets no more "
			    "(EDQUOT) while no more than that are free for "
			    "others",
			    (unsigned)uid, slots, st->slot_count);
	if (rc < 0) {
		free(s);
		return rc;
	}
	*ret_stage = s;
	return 0;
}

int stage_create(struct stages *st, uint64_t ino, uid_t uid,
		 uint64_t size_bytes, struct stage **ret_stage)
{
	/* A series' files differ a little: a thirty-second more. */
	uint64_t want = size_bytes + size_bytes / 32;
	struct stage *s;
	int rc = stage_new_slot(st, ino, uid, &s);

	if (rc < 0)
		return rc;
	rc = -ENOSPC;
	if (size_bytes >= STAGE_MEMORY_BYTES_MIN)
		rc = stage_make_shared(st, s, want);
	if (rc < 0) {
		s->kind = STAGE_DISK;
		rc = stage_create_disk(st, s);
	}
	if (s->kind == STAGE_MEMORY)
		atomic_fetch_add(&st->memory_count, 1);
	if (rc < 0) {
		stage_drop(st, s);
		return rc;
	}
	stage_write_slot(s);
	*ret_stage = s;
	return 0;
}

struct stage *stage_ref(struct stage *s)
{
	if (s)
		atomic_fetch_add(&s->refs, 1);
	return s;
}

void stage_put(struct stages *st, struct stage *s)
{
	unsigned left;
	bool kept;

	if (!s)
		return;
	kept = atomic_load(&s->kept);
	left = atomic_fetch_sub(&s->refs, 1) - 1;
	if (left == 1 && kept) { /* the segment's: nobody else uses it now */
		HOLD(&st->lock);
		cond_broadcast(&st->returned);
	}
	if (left > 0)
		return;
	stage_fd_forget(st, s, true);
	if (s->kind == STAGE_MEMORY && !s->slot)
		stage_unlink(st, s->number);
	image_put(st->images, s->image);
	free(s);
}

/* A file lets go of a stage: true when a segment has it. */
static bool stage_return(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (!atomic_load(&s->kept))
		return false;
	slot_free(s->slot);
	cond_broadcast(&st->returned);
	return true;
}

/* It has a slot, and no segment has it. */
static void give_bytes_up(struct stages *st, struct stage *s)
{
	/*
	 * First of all: who is killed here must not leave a slot for what is
	 * gone, or is another's already. The next start sweeps up the rest, gc
	 * an image that has a record.
	 */
	slot_free(s->slot);
	if (s->kind == STAGE_MEMORY) {
		atomic_fetch_sub(&st->memory_count, 1);
	} else if (s->image && image_is_building(st->images, s->image)) {
		image_ref(st->images, s->image);
		st->abandon(st->hook_arg, s->image);
	}
	stage_give_slot(st, s);
}

void stage_drop(struct stages *st, struct stage *s)
{
	if (!s)
		return;
	stage_unlist(st, s);
	if (s->slot && !stage_return(st, s)) /* else it was dropped before */
		give_bytes_up(st, s);
	stage_put(st, s);
}

static bool is_listed_locked(const struct stage *s)
{
	return s->by_use.tqe_prev != NULL;
}

void stage_list(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (is_listed_locked(s) || s->kind != STAGE_MEMORY)
		return;
	TAILQ_INSERT_TAIL(&st->clean, s, by_use);
	st->clean_bytes += s->memory_bytes;
	stage_uncount_locked(st, s);
}

void stage_unlist(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (!is_listed_locked(s))
		return;
	TAILQ_REMOVE(&st->clean, s, by_use);
	s->by_use.tqe_prev = NULL;
	st->clean_bytes -= s->memory_bytes;
	stage_count_locked(st, s);
}

void stage_touch(struct stages *st, struct stage *s)
{
	HOLD(&st->lock);
	if (is_listed_locked(s))
		touch_locked(st, s);
}

void stages_set_hooks(struct stages *st, stage_evict_fn evict,
		      stage_abandon_fn abandon, void *arg)
{
	st->evict = evict;
	st->abandon = abandon;
	st->hook_arg = arg;
}

int stage_create_cache(struct stages *st, uint64_t ino, uint64_t size_bytes,
		       struct stage **ret_stage)
{
	struct stage *s;
	int rc;

	if (st->no_cache || !stage_fits(st, 2 * size_bytes, false))
		return -ENOSPC;
	rc = stage_new_slot(st, ino, 0, &s);
	if (rc < 0)
		return rc;
	rc = stage_make_memory(st, s, size_bytes, false);
	atomic_fetch_add(&st->memory_count, 1);
	if (rc < 0) {
		stage_drop(st, s);
		return rc;
	}
	s->memory_bytes = size_bytes;
	stage_write_slot(s);
	*ret_stage = s;
	return 0;
}

void stages_set_pressure(struct stages *st,
			 void (*pressure)(void *arg, uint64_t want), void *arg)
{
	st->pressure = pressure;
	st->pressure_arg = arg;
}

void stages_free_slots(struct stages *st, uid_t uid)
{
	unsigned tries = (unsigned)atomic_load(&st->memory_count);
	unsigned wanted = SLOTS_GIVEN_UP;

	while (tries-- > 0 && wanted > 0 && st->evict) {
		struct stage *s;
		bool own;

		{
			HOLD(&st->lock);
			s = TAILQ_FIRST(&st->clean);
			if (!s)
				return;
			stage_ref(s);
			touch_locked(st, s);
			own = st->free_count == 0 || s->uid == uid;
		}
		if (own && st->evict(st->hook_arg, s))
			wanted--;
		stage_put(st, s);
	}
}

bool stages_make_room(struct stages *st, uint64_t want)
{
	if (evict_until(st, want))
		return true;
	if (st->pressure)
		st->pressure(st->pressure_arg, want);
	return false;
}

void stages_usage(struct stages *st, uint64_t *ret_used, uint64_t *ret_total)
{
	struct statfs fs;

	*ret_used = 0;
	*ret_total = 0;
	if (fstatfs(st->dirfd, &fs) < 0)
		return;
	*ret_total = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
	if (st->capacity && st->capacity < *ret_total)
		*ret_total = st->capacity;
	*ret_used =
		(uint64_t)(fs.f_blocks - fs.f_bavail) * (uint64_t)fs.f_bsize;
}

/* A hole is not staged: a file counts for no more than it has. */
static uint64_t staged_bytes(const struct stat *sb)
{
	uint64_t size = (uint64_t)sb->st_size;
	uint64_t has = (uint64_t)sb->st_blocks * 512;

	return size < has ? size : has;
}

static void count_clean(struct stages_figures *f, const struct stat *sb)
{
	f->clean_files++;
	f->clean_bytes += staged_bytes(sb);
}

static void count_dirty(struct stages_figures *f, const struct stat *sb,
			bool memory)
{
	uint64_t size = (uint64_t)sb->st_size;
	uint64_t has = (uint64_t)sb->st_blocks * 512;
	int64_t changed_ns =
		sb->st_ctim.tv_sec * INT64_C(1000000000) + sb->st_ctim.tv_nsec;

	f->dirty_files++;
	*(memory ? &f->memory_bytes : &f->disk_bytes) += staged_bytes(sb);
	if (memory && has > size)
		f->ahead_bytes += has - size;
	if (f->oldest_ns == 0 || changed_ns < f->oldest_ns)
		f->oldest_ns = changed_ns;
}

void stages_figures(struct stages *st, struct stages_figures *ret)
{
	memset(ret, 0, sizeof(*ret));
	{
		HOLD(&st->lock);
		ret->slots = st->slot_count;
		ret->slots_used = st->slot_count - st->free_count;
		ret->slots_refused = st->shares.refused;
		ret->slots_refused_uid = st->shares.refused_uid;
	}
	for (uint32_t i = 0; i < st->slot_count; i++) {
		const struct stage_slot *slot = &st->slots[i];
		bool memory = SLOT_GET(slot, kind) == STAGE_MEMORY;
		bool dirty = SLOT_GET(slot, dirty);
		int dirfd = memory ? st->dirfd : st->images->dirfd;
		char name[LAYOUT_IMAGE_NAME_BYTES];
		struct stat sb;

		if (SLOT_GET(slot, ino) == 0 || !(dirty || memory))
			continue;
		if (memory)
			stage_file_name(SLOT_GET(slot, number), name);
		else
			layout_image_name(SLOT_GET(slot, number), name);
		if (fstatat(dirfd, name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (dirty)
			count_dirty(ret, &sb, memory);
		else
			count_clean(ret, &sb);
	}
}

bool stages_have_room(struct stages *st)
{
	uint64_t used, total, room;
	struct stages_figures f;
	struct statvfs v;

	if (fstatvfs(st->images->dirfd, &v) < 0)
		return true;
	room = (uint64_t)v.f_bavail * v.f_frsize;
	/* Nearly always: there is more room than the whole stage could fill. */
	stages_usage(st, &used, &total);
	if (room > used + DATABASE_SPARE_BYTES)
		return true;
	stages_figures(st, &f);
	return room > f.memory_bytes;
}

struct stage *stage_of_image(struct images *im, struct image *i)
{
	HOLD(&im->lock);
	return stage_ref(i->clean);
}
