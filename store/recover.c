/*
 * recover.c - what a start makes of what the last daemon left: see recover.h.
 * First the mount has places and numbers of its own (begin_places()); then it
 * is decided what becomes of each stage, before any is touched (decide()); then
 * they are taken over, in the order in which they were closed.
 */
#include "store/recover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/drain/commit.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/names/names.h"
#include "store/space/held.h"
#include "store/space/slot_fate.h"
#include "store/store.h"

/* So much newer than the database a stage may be; else it is damaged. */
#define PLACES_AHEAD_MAX (PLACES_OF_A_MOUNT << 12)

/* Inode numbers collected from one key space. */
struct ino_list {
	uint64_t *at;
	size_t count, capacity;
};

static int collect(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct ino_list *l = arg;
	int rc;

	(void)value;
	if (key.len != 9)
		return 0;
	rc = vec_grow(&l->at, l->count, &l->capacity, sizeof(*l->at));
	if (rc == 0)
		l->at[l->count++] = get_be64((const uint8_t *)key.data + 1);
	return rc;
}

/* A stage that was found, and what becomes of it. */
struct found {
	struct stage_slot slot;
	struct stage *stage;
	struct inode *in; /* a reference; NULL: there is no such inode */
	enum slot_fate fate;
	bool is_image; /* of what is durable of its file */
};

struct found_list {
	struct found *at;
	size_t count, capacity;
};

static int found_add(void *arg, const struct stage_slot *slot, struct stage *s)
{
	struct found_list *l = arg;
	int rc;

	if (!s)
		return 0;
	rc = vec_grow(&l->at, l->count, &l->capacity, sizeof(*l->at));
	if (rc == 0)
		l->at[l->count++] = (struct found){ .slot = *slot, .stage = s };
	return rc;
}

/*
 * First what goes, for its slot may be needed; then what was closed, by its
 * order, what was open, and caches. What has been replaced comes before what
 * its file is now, also without a place, or with the same.
 */
static uint64_t rank_of(const struct found *f)
{
	if (f->fate == SLOT_GOES)
		return 0;
	if (f->fate == SLOT_CACHE)
		return UINT64_MAX;
	if (f->slot.close_order == 0)
		return f->slot.earlier ? 1 : UINT64_MAX - 1;
	return f->slot.close_order + 1;
}

static int found_compare(const void *pa, const void *pb)
{
	const struct found *a = pa, *b = pb;
	uint64_t x = rank_of(a), y = rank_of(b);

	if (x != y)
		return x < y ? -1 : 1;
	if (a->slot.earlier != b->slot.earlier)
		return a->slot.earlier ? -1 : 1;
	return a->stage->slot_index < b->stage->slot_index ? -1 : 1;
}

/* Does the committed content lie, at least in part, in this image? */
static bool in_use(const struct file *file, uint64_t image)
{
	const struct content *c = file->content ? &file->content->c : NULL;

	for (size_t i = 0; c && i < c->extent_count; i++)
		if (c->extents[i].image == image)
			return true;
	return false;
}

/* What becomes of f. `next`: see slot_facts. */
static int decide(struct store *st, struct found *f, uint64_t next)
{
	struct slot_facts facts = { .next = next };
	const struct file *file;
	int rc;

	held_keep(&st->stages, f->stage);
	f->fate = SLOT_GOES;
	rc = inode_get(st->inodes, f->slot.ino, &f->in);
	if (rc == 0 && (f->in->attr.nlink == 0 || !S_ISREG(f->in->attr.mode)))
		rc = -ENOENT; /* its name was never written, or is gone */
	if (rc == 0)
		rc = inode_load_file(st->inodes, f->in);
	if (rc < 0) /* damage: nothing of it is dropped */
		return rc == -ENOENT ? 0 : rc;
	file = f->in->file;
	if (file->content)
		facts.durable = file->content->c.generation;
	f->is_image =
		f->stage->kind == STAGE_DISK && in_use(file, f->stage->number);
	/* It was committed just before the end: it is the image. */
	if (f->is_image)
		image_built(&st->images, f->stage->image);
	facts.is_image = f->is_image;
	f->fate = slot_fate(&f->slot, &facts);
	return 0;
}

/*
 * An older ckptfs said of what it had replaced no version: it is over when
 * something that was closed later is the image of its file.
 */
static bool is_overtaken(const struct found_list *l, const struct found *f)
{
	if (!f->slot.earlier || f->slot.version != 0)
		return false;
	for (size_t i = 0; i < l->count; i++)
		if (l->at[i].is_image && l->at[i].slot.ino == f->slot.ino &&
		    l->at[i].slot.close_order - 1 > f->slot.close_order - 1)
			return true;
	return false;
}

/*
 * Whoever can still write to the stage keeps it, and the file goes on in a copy
 * of what it holds now. What is sealed is copied before it is hashed, as ever.
 */
static void leave_held(struct store *st, struct found *f)
{
	int rc = held_for_writing(&st->stages, f->stage)
			 ? held_replace(&st->stages, &f->stage)
			 : 0;

	if (rc == 0)
		return;
	log_warning("inode %llu is still open for writing from the last mount, "
		    "and there is no room for a copy: %s; it is made durable "
		    "as it stands",
		    (unsigned long long)f->slot.ino, strerror(-rc));
	f->stage->unseen_writer = true;
}

/* Is there nothing in it that its file needs, or may have? */
static bool is_unwanted(struct store *st, const struct found *f)
{
	if (f->fate == SLOT_GOES)
		return true;
	if (!f->slot.earlier && f->in->file->stage)
		return true; /* there is a newer one */
	/* A cache that somebody else could still write to. */
	return f->fate == SLOT_CACHE &&
	       (f->stage->sealed || held_for_writing(&st->stages, f->stage));
}

/* Without memory for it nobody looks at it. */
static void note_open(struct store *st, struct inode *in)
{
	if (vec_grow(&st->was_open, st->was_open_count, &st->was_open_capacity,
		     sizeof(struct inode *)) < 0) {
		(void)drain_closed(st->drain, in);
		return;
	}
	inode_ref(in, 1);
	st->was_open[st->was_open_count++] = in;
}

/* Its references to the stage and to the inode are used up. */
static int adopt_one(struct store *st, struct found *f)
{
	bool dirty = f->fate != SLOT_CACHE;
	int rc;

	if (is_unwanted(st, f)) {
		f->fate = SLOT_GOES;
		stage_drop(&st->stages, f->stage);
		inode_put(st->inodes, f->in, 1);
		return 0;
	}
	if (dirty && !f->stage->sealed)
		leave_held(st, f);
	slot_adopted(f->stage->slot, dirty);
	stage_own(&st->stages, f->stage, f->in->attr.uid);
	if (f->slot.earlier) { /* keeps both references */
		rc = drain_resume(st->drain, f->in, f->stage,
				  f->slot.close_order);
		if (rc == 0)
			return 0;
		stage_put(&st->stages, f->stage);
	} else {
		rc = file_adopt(&st->files, f->in, f->stage, dirty,
				f->slot.close_order);
		if (rc == 0 && f->fate == SLOT_OPEN)
			note_open(st, f->in);
	}
	inode_put(st->inodes, f->in, 1);
	return rc;
}

/*
 * A mount gives places and numbers from a range of its own, so that none is
 * given twice, and what is closed later has the greater one, also across a
 * power cut, of which nothing is left but what the database has. A database
 * that was put back from a copy may have less than what was found. An older
 * ckptfs counted what is staged and what waits for a shared directory apart:
 * what is staged is later.
 */
static int begin_places(struct store *st, struct found_list *l,
			uint64_t *ret_first)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct key k = key_meta(META_NEXT_PLACE);
	uint64_t first = PLACES_OF_A_MOUNT, most;
	int rc = u64_load(st->kv, k, &first);
	bool is_old = rc == -ENOENT, is_known;

	if (rc == -EIO || first > PLACE_MAX) {
		log_error("%s: the setting " META_NEXT_PLACE " is damaged",
			  st->path);
		return -EUCLEAN;
	}
	if (rc < 0 && !is_old)
		return rc;
	is_known = stages_had_last(&st->stages, is_old ? 0 : first);
	most = first + PLACES_AHEAD_MAX;
	for (size_t i = 0; i < l->count; i++) {
		struct stage_slot *slot = &l->at[i].slot;

		if (is_old && slot->close_order != 0 &&
		    slot->close_order < PLACES_OF_A_MOUNT / 2)
			slot->close_order += PLACES_OF_A_MOUNT / 2;
		if (slot->close_order > most)
			slot->close_order = slot->version = 0;
		if (slot->version > most || !is_known)
			slot->version = 0;
		slot_found(l->at[i].stage->slot, slot->close_order,
			   slot->version);
		if (first <= slot->close_order)
			first = slot->close_order + 1;
		if (first <= slot->version)
			first = slot->version + 1;
	}
	stages_have(&st->stages, first + PLACES_OF_A_MOUNT);
	u64_save(b, k, first + PLACES_OF_A_MOUNT);
	rc = kv_write(st->kv, b);
	if (rc == 0)
		rc = kv_sync(st->kv);
	if (rc == 0)
		drain_begin_places(st->drain, first);
	*ret_first = first;
	return rc;
}

static int adopt_found(struct store *st, struct found_list *l, uint64_t first)
{
	size_t dirty = 0, i;
	int rc = 0;

	for (i = 0; rc == 0 && i < l->count; i++)
		rc = decide(st, &l->at[i], first);
	for (i = 0; rc == 0 && i < l->count; i++)
		if (is_overtaken(l, &l->at[i]))
			l->at[i].fate = SLOT_GOES;
	if (rc == 0 && l->count > 0)
		qsort(l->at, l->count, sizeof(*l->at), found_compare);
	for (i = 0; rc == 0 && i < l->count; i++) {
		rc = adopt_one(st, &l->at[i]);
		dirty += l->at[i].fate == SLOT_RESUMES ||
			 l->at[i].fate == SLOT_OPEN;
	}
	for (; i < l->count; i++) { /* as they were */
		stage_put(&st->stages, l->at[i].stage);
		inode_put(st->inodes, l->at[i].in, 1);
	}
	if (dirty > 0)
		log_info("%s: took over %zu staged file%s that the last mount "
			 "had not made durable yet",
			 st->path, dirty, dirty == 1 ? "" : "s");
	return rc;
}

/* Its bytes were committed before its name was: they were never without. */
static int keep_committed(struct store *st, uint64_t ino)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

	record_delete(b, key_ino('U', ino));
	return kv_write(st->kv, b);
}

/* A file that was created but never became durable is absent. */
static int remove_uncommitted(struct store *st, uint64_t ino)
{
	struct inode *in = NULL, *removed;
	char name[STORE_NAME_MAX + 1];
	uint64_t parent;
	int rc = record_find(st->kv, key_ino('F', ino));

	if (rc != -ENOENT)
		return rc < 0 ? rc : keep_committed(st, ino);
	rc = inode_get(st->inodes, ino, &in);
	if (rc == 0 && in->file &&
	    (in->file->stage || in->file->versions.replaced > 0)) {
		/* it was adopted */
		inode_put(st->inodes, in, 1);
		return 0;
	}
	while (rc == 0 && in->attr.nlink > 0) {
		parent = in->attr.parent;
		memcpy(name, in->attr.name, sizeof(name));
		rc = names_unlink(st->names, parent, name, &removed);
		if (rc == 0)
			inode_put(st->inodes, removed, 1);
	}
	inode_put(st->inodes, in, 1);
	if (rc == -ENOENT || rc == 0)
		return commit_delete(st->drain, ino);
	return rc;
}

/* It lost its last name, and the last daemon did not get to its records. */
static int delete_unlinked(struct store *st, uint64_t ino)
{
	return commit_delete(st->drain, ino);
}

static int each_ino(struct store *st, char kind,
		    int (*fn)(struct store *st, uint64_t ino))
{
	struct ino_list l = { 0 };
	int rc = records_each(st->kv, key_kind(kind), collect, &l);

	for (size_t i = 0; rc == 0 && i < l.count; i++)
		rc = fn(st, l.at[i]);
	free(l.at);
	return rc;
}

int recover(struct store *st, bool adopted)
{
	struct found_list l = { 0 };
	uint64_t first = 0;
	int rc = 0;

	/* Before new ones are made, which could get their numbers. */
	stages_sweep(&st->stages);
	if (adopted)
		rc = stages_adopt(&st->stages, found_add, &l);
	if (rc == 0)
		rc = begin_places(st, &l, &first);
	if (rc == 0)
		rc = adopt_found(st, &l, first);
	free(l.at);
	if (rc == 0)
		rc = each_ino(st, 'U', remove_uncommitted);
	if (rc == 0)
		rc = each_ino(st, 'O', delete_unlinked);
	return rc;
}

/* --- afterwards, while the store is in use ----------------------------------
 */

void recover_close_open(struct store *st)
{
	for (size_t i = 0; i < st->was_open_count; i++) {
		guard_was_open(st->guard, st->was_open[i]);
		(void)drain_closed(st->drain, st->was_open[i]);
	}
	recover_release(st);
}

void recover_release(struct store *st)
{
	for (size_t i = 0; i < st->was_open_count; i++)
		inode_put(st->inodes, st->was_open[i], 1);
	st->was_open_count = 0;
	free(TAKE(st->was_open));
}

static int punch_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct store *st = arg;
	const uint8_t *p = key.data;
	uint64_t len;

	if (key.len == 17 && u64_decode(value.data, value.len, &len) == 0)
		reclaim_add(st->reclaim, get_be64(p + 1), get_be64(p + 9), len);
	return 0;
}

static bool is_empty(struct store *st, const struct image *i)
{
	SCOPED(scope_close) int fd = image_open_fd(&st->images, i, O_RDONLY);

	return fd >= 0 && lseek(fd, 0, SEEK_DATA) < 0 && errno == ENXIO;
}

/*
 * An image without a record. It goes only when it is known to be nothing: the
 * last daemon had begun it, or it holds not one byte. Any other one is kept,
 * and counted: the database may be what is wrong.
 */
static int remove_unrecorded(struct store *st, struct image *i)
{
	const struct images *im = &st->images;

	if ((i->id < im->unfinished_from || i->id >= im->unfinished_end) &&
	    !is_empty(st, i)) {
		atomic_fetch_add(&st->unknown_images, 1);
		log_error("image %016llx: the database does not know it; it is "
			  "kept: unmount and run ckptctl fsck %s",
			  (unsigned long long)i->id, st->path);
		return 0;
	}
	return image_remove(&st->images, i);
}

static int sweep_one(void *arg, uint64_t id)
{
	struct store *st = arg;
	struct image *i;
	bool busy;
	int rc;

	/* This daemon's own. */
	if (id >= st->images.next_id_at_start && id < IMAGE_ID_MAX)
		return 0;
	rc = records_any(
		st->kv,
		key_ino('I', id)); /* nearly all: none of them is opened */
	if (rc == 0) /* what is to be given back is the reclaimer's */
		rc = records_any(st->kv, key_ino('P', id));
	if (rc != 0)
		return rc < 0 ? rc : 0;
	/*
	 * A stage that was taken over holds it until it is committed. When
	 * nobody does, it may have got its record since we looked.
	 */
	rc = image_get(&st->images, id, &i);
	if (rc < 0)
		return 0;
	{
		HOLD(&st->images.lock);
		busy = i->refs > 1;
	}
	rc = busy ? 1 : records_any(st->kv, key_ino('I', id));
	if (rc == 0)
		rc = remove_unrecorded(st, i);
	image_put(&st->images, i);
	return rc < 0 ? rc : 0;
}

void recover_sweep(struct store *st)
{
	int rc = records_each(st->kv, key_kind('P'), punch_one, st);

	if (rc == 0)
		rc = image_scan(&st->images, false, sweep_one, st);
	if (rc < 0)
		log_error("leftovers of the last mount are not removed: %s",
			  strerror(-rc));
}
