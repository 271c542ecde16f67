/* recover.c - see recover.h. */
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

/* Take one stage over, in the order of the closes. */
struct found {
	struct stage_slot slot;
	struct stage *stage;
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
		l->at[l->count++] = (struct found){ *slot, s };
	return rc;
}

/* When it was closed: those that were open come last. */
static uint64_t when_closed(const struct stage_slot *slot)
{
	return slot->close_order - 1;
}

/*
 * Closed ones by their order, then those that were open. An older ckptfs that
 * was killed in here left two with one place: a replaced one comes first.
 * What is not dirty comes last: it is, or was, the same as what is committed,
 * on the disk, too. One that its file had let go of, and that was not gone yet,
 * gives way to what the file has now.
 */
static int found_compare(const void *pa, const void *pb)
{
	const struct found *a = pa, *b = pb;
	uint64_t x = when_closed(&a->slot), y = when_closed(&b->slot);

	if (a->slot.dirty != b->slot.dirty)
		return a->slot.dirty ? -1 : 1;
	if (!a->slot.dirty && a->slot.number != b->slot.number)
		return a->slot.number > b->slot.number ? -1 : 1;
	if (x != y)
		return x < y ? -1 : 1;
	if (a->slot.earlier != b->slot.earlier)
		return a->slot.earlier ? -1 : 1;
	return a->slot.ino < b->slot.ino ? -1 : 1;
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
	f->stage->held = true;
}

/* May its stage differ from what is committed? */
static bool is_dirty(const struct found *f, const struct file *file)
{
	return f->slot.dirty || !file->content ||
	       file->content->c.generation != f->slot.clean_generation ||
	       f->stage->kind == STAGE_DISK;
}

/*
 * Was a version of the file that was closed after this one written to the
 * database? It is the image that the file has, and is let go of when its turn
 * comes; were this older one made durable again, it would become the file.
 * (The disk refused the newer one's sync, and the older one waited to be tried
 * once more. A newer one in memory stays dirty, and follows it.)
 */
static bool is_overtaken(const struct found_list *l, size_t i,
			 const struct file *file)
{
	const struct stage_slot *slot = &l->at[i].slot;

	if (!slot->earlier)
		return false;
	for (size_t k = 0; k < l->count; k++) {
		/* Its stage may be gone by now. */
		const struct stage_slot *later = &l->at[k].slot;

		if (later->ino == slot->ino && later->kind == STAGE_DISK &&
		    when_closed(later) > when_closed(slot) &&
		    in_use(file, later->number))
			return true;
	}
	return false;
}

/*
 * A cache of what is not committed any more: its file had let go of it, and
 * something newer is. Not of what is newer than that, which the database lost.
 */
static bool is_old_cache(const struct found *f, const struct file *file)
{
	return !f->slot.dirty && file->content &&
	       file->content->c.generation > f->slot.clean_generation;
}

/* Is there nothing in the stage that its file needs? */
static bool is_unwanted(struct store *st, struct found *f,
			const struct file *file)
{
	bool is_image =
		f->stage->kind == STAGE_DISK && in_use(file, f->stage->number);

	/* It was committed just before the end: it is the image. */
	if (is_image)
		image_built(&st->images, f->stage->image);
	if (f->slot.earlier ? !f->slot.dirty : file->stage != NULL)
		return true; /* there is a newer one */
	if (is_image || is_old_cache(f, file))
		return true;
	/* A cache that somebody else could still write to. */
	return !is_dirty(f, file) &&
	       (f->stage->sealed || held_for_writing(&st->stages, f->stage));
}

/* Without memory for it nobody looks at it. */
static void note_left(struct store *st, struct inode *in)
{
	if (vec_grow(&st->left, st->left_count, &st->left_capacity,
		     sizeof(struct inode *)) < 0) {
		(void)drain_closed(st->drain, in, true);
		return;
	}
	inode_ref(in, 1);
	st->left[st->left_count++] = in;
}

/* The i-th. *ret_dirty: it was taken over, and has to become durable. */
static int adopt_one(struct store *st, const struct found_list *l, size_t i,
		     bool *ret_dirty)
{
	struct found *f = &l->at[i];
	struct inode *in = NULL;
	bool dirty;
	int rc;

	*ret_dirty = false;
	held_keep(&st->stages, f->stage);
	rc = inode_get(st->inodes, f->slot.ino, &in);
	if (rc == 0 && (in->attr.nlink == 0 || !S_ISREG(in->attr.mode)))
		rc = -ENOENT; /* its name was never written, or is gone */
	if (rc == 0)
		rc = inode_load_file(st->inodes, in);
	if (rc == -ENOENT || (rc == 0 && (is_overtaken(l, i, in->file) ||
					  is_unwanted(st, f, in->file)))) {
		stage_drop(&st->stages, f->stage);
		inode_put(st->inodes, in, 1);
		return 0;
	}
	if (rc < 0) { /* damage: nothing of it is dropped */
		stage_put(&st->stages, f->stage);
		inode_put(st->inodes, in, 1);
		return rc;
	}
	dirty = is_dirty(f, in->file);
	if (dirty && !f->stage->sealed)
		leave_held(st, f);
	stage_own(&st->stages, f->stage, in->attr.uid);
	if (f->slot.earlier) { /* keeps both references */
		rc = drain_resume(st->drain, in, f->stage, f->slot.close_order);
		if (rc == 0) {
			*ret_dirty = true;
			return 0;
		}
		stage_put(&st->stages, f->stage);
	} else {
		rc = file_adopt(&st->files, in, f->stage, dirty,
				f->slot.close_order);
		*ret_dirty = dirty && rc == 0;
		if (*ret_dirty && f->slot.close_order == 0)
			note_left(st, in);
	}
	inode_put(st->inodes, in, 1);
	return rc;
}

/*
 * The last daemon was about to commit a version of a file, and had hidden the
 * older ones: it may be committed, or not. If not, it has the first place of
 * those, or what was closed after them would overtake the file.
 */
static void inherit_places(struct found_list *l)
{
	for (size_t i = 0; i < l->count; i++) {
		const struct stage_slot *old = &l->at[i].slot;
		struct stage_slot *next = NULL;

		for (size_t k = 0; old->superseded && k < l->count; k++) {
			struct stage_slot *s = &l->at[k].slot;

			if (s->ino == old->ino && s->dirty &&
			    s->close_order > old->close_order &&
			    (!next || s->close_order < next->close_order))
				next = s;
		}
		if (next)
			next->close_order = old->close_order;
	}
}

/*
 * A mount gives places and numbers from a range of its own, so that none is
 * given twice, and what is closed later has the greater one, also across a
 * power cut, of which nothing is left but what the database has. A database
 * that was put back from a copy may have less than what was found. An older
 * ckptfs counted what is staged and what waits for a shared directory apart:
 * what is staged is later.
 */
static int begin_places(struct store *st, struct found_list *l)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct key k = key_meta(META_NEXT_PLACE);
	uint64_t first = PLACES_OF_A_MOUNT, most;
	int rc = u64_load(st->kv, k, &first);
	bool is_old = rc == -ENOENT;

	if (rc == -EIO || first > PLACE_MAX) {
		log_error("%s: the setting " META_NEXT_PLACE " is damaged",
			  st->path);
		return -EUCLEAN;
	}
	if (rc < 0 && !is_old)
		return rc;
	most = first + PLACES_AHEAD_MAX;
	for (size_t i = 0; i < l->count; i++) {
		uint64_t *place = &l->at[i].slot.close_order;

		if (is_old && *place != 0 && *place < PLACES_OF_A_MOUNT / 2)
			*place += PLACES_OF_A_MOUNT / 2;
		if (*place > most) {
			*place = 0;
			SLOT_SET(l->at[i].stage->slot, close_order, 0);
		}
		if (first <= *place)
			first = *place + 1;
	}
	u64_save(b, k, first + PLACES_OF_A_MOUNT);
	rc = kv_write(st->kv, b);
	if (rc == 0)
		rc = kv_sync(st->kv);
	if (rc == 0)
		drain_begin_places(st->drain, first);
	return rc;
}

static int adopt_found(struct store *st, struct found_list *l)
{
	size_t dirty = 0;
	int rc = 0;

	inherit_places(l);
	if (l->count > 0)
		qsort(l->at, l->count, sizeof(*l->at), found_compare);
	for (size_t i = 0; rc == 0 && i < l->count; i++) {
		bool one;

		rc = adopt_one(st, l, i, &one);
		dirty += one;
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
	int rc = 0;

	/* Before new ones are made, which could get their numbers. */
	stages_sweep(&st->stages);
	if (adopted)
		rc = stages_adopt(&st->stages, found_add, &l);
	if (rc == 0)
		rc = begin_places(st, &l);
	if (rc == 0)
		rc = adopt_found(st, &l);
	free(l.at);
	if (rc == 0)
		rc = each_ino(st, 'U', remove_uncommitted);
	if (rc == 0)
		rc = each_ino(st, 'O', delete_unlinked);
	return rc;
}

/* --- afterwards, while the store is in use ----------------------------------
 */

void recover_close_left(struct store *st)
{
	for (size_t i = 0; i < st->left_count; i++) {
		guard_left(st->guard, st->left[i]);
		(void)drain_closed(st->drain, st->left[i], true);
	}
	recover_release(st);
}

void recover_release(struct store *st)
{
	for (size_t i = 0; i < st->left_count; i++)
		inode_put(st->inodes, st->left[i], 1);
	st->left_count = 0;
	free(TAKE(st->left));
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
