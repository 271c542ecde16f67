/* inode.c - see inode.h. */
#include "store/names/inode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/kv.h"
#include "store/space/image.h"

#define INO_STEP 1024

struct content_ref *content_ref_new(struct content *c)
{
	struct content_ref *r = malloc(sizeof(*r));

	if (!r)
		return NULL;
	atomic_init(&r->refs, 1);
	r->c = *c;
	memset(c, 0, sizeof(*c));
	return r;
}

struct content_ref *content_ref_get(struct content_ref *r)
{
	if (r)
		atomic_fetch_add(&r->refs, 1);
	return r;
}

void content_ref_put(struct content_ref *r)
{
	if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
		return;
	content_release(&r->c);
	free(r);
}

int inodes_new(struct kv *kv, struct images *images, struct stages *stages,
	       struct inode_table **ret_table)
{
	SCOPED(scope_free) struct inode_table *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return -ENOMEM;
	rc = u64_load(kv, key_meta(META_NEXT_INO), &t->next_ino);
	if (rc < 0)
		return rc;
	t->next_ino_recorded = t->next_ino;
	for (unsigned i = 0; i < INODE_SHARDS; i++)
		lock_init(&t->shard[i].lock, LOCK_INODE_SHARD);
	lock_init(&t->numbering, LOCK_INO_NUMBERING);
	t->kv = kv;
	t->images = images;
	t->stages = stages;
	*ret_table = TAKE(t);
	return 0;
}

static void inode_free(struct inode_table *t, struct inode *in)
{
	struct file *f = in->file;

	if (f) {
		content_ref_put(f->content);
		stage_put(t->stages, f->stage);
		stage_put(t->stages, f->backing_stage);
		image_put(t->images, f->backing_image);
		free(f);
	}
	attr_release(&in->attr);
	lock_destroy(&in->lock);
	lock_destroy(&in->changing);
	free(in);
}

void inodes_free(struct inode_table *t)
{
	if (!t)
		return;
	for (unsigned s = 0; s < INODE_SHARDS; s++) {
		for (unsigned b = 0; b < INODE_BUCKETS; b++)
			while (t->shard[s].bucket[b]) {
				struct inode *in = t->shard[s].bucket[b];

				t->shard[s].bucket[b] = in->next;
				inode_free(t, in);
			}
		lock_destroy(&t->shard[s].lock);
	}
	lock_destroy(&t->numbering);
	free(t);
}

static struct inode_shard *shard_of(struct inode_table *t, uint64_t ino)
{
	return &t->shard[ino % INODE_SHARDS];
}

static struct inode **bucket_of(struct inode_shard *s, uint64_t ino)
{
	return &s->bucket[ino / INODE_SHARDS % INODE_BUCKETS];
}

static struct inode *inode_find_locked(struct inode_shard *s, uint64_t ino)
{
	struct inode *in = *bucket_of(s, ino);

	while (in && in->ino != ino)
		in = in->next;
	if (in)
		in->refs++;
	return in;
}

struct inode *inode_peek(struct inode_table *t, uint64_t ino)
{
	struct inode_shard *s = shard_of(t, ino);

	HOLD(&s->lock);
	return inode_find_locked(s, ino);
}

struct inode *inode_of_slot(struct inode_table *t,
			    const struct stage_slot *slot)
{
	uint64_t ino = SLOT_GET(slot, ino);

	return ino ? inode_peek(t, ino) : NULL;
}

static struct inode *inode_make(uint64_t ino, const struct attr *attr)
{
	struct inode *in = calloc(1, sizeof(*in));

	if (!in)
		return NULL;
	in->ino = ino;
	in->refs = 1;
	in->attr = *attr;
	lock_init(&in->lock, LOCK_INODE);
	lock_init(&in->changing, LOCK_INODE_CHANGING);
	return in;
}

/*
 * Into the table, unless another one got there first: that one counts. NULL:
 * since *removed inodes have left the table, and this may have been one of
 * them, which somebody changed after ours was read. removed NULL: it is new.
 */
static struct inode *inode_insert(struct inode_table *t, struct inode *in,
				  const uint64_t *removed)
{
	struct inode_shard *s = shard_of(t, in->ino);
	struct inode *other;

	{
		HOLD(&s->lock);
		other = inode_find_locked(s, in->ino);
		if (!other && (!removed || s->removed == *removed)) {
			struct inode **b = bucket_of(s, in->ino);

			in->next = *b;
			*b = in;
			return in;
		}
	}
	inode_free(t, in);
	return other;
}

/* From the database. -EAGAIN: what was read may be out of date. */
static int inode_read(struct inode_table *t, uint64_t ino,
		      struct inode **ret_inode)
{
	struct inode_shard *s = shard_of(t, ino);
	uint64_t removed;
	struct inode *in;
	struct attr attr;
	int rc;

	{
		HOLD(&s->lock);
		in = inode_find_locked(s, ino);
		removed = s->removed;
	}
	if (in) {
		*ret_inode = in;
		return 0;
	}
	rc = attr_load(t->kv, key_ino('A', ino), &attr);
	if (rc == -EIO)
		log_error("inode %llu: damaged attributes: run ckptctl fsck",
			  (unsigned long long)ino);
	if (rc < 0)
		return rc;
	in = inode_make(ino, &attr);
	if (!in) {
		attr_release(&attr);
		return -ENOMEM;
	}
	*ret_inode = inode_insert(t, in, &removed);
	return *ret_inode ? 0 : -EAGAIN;
}

int inode_get(struct inode_table *t, uint64_t ino, struct inode **ret_inode)
{
	int rc;

	while ((rc = inode_read(t, ino, ret_inode)) == -EAGAIN)
		;
	return rc;
}

void inode_ref(struct inode *in, uint64_t count)
{
	CHECK(atomic_fetch_add(&in->refs, count) > 0);
}

void inode_remember(struct inode_table *t, struct inode *in)
{
	struct inode_shard *s = shard_of(t, in->ino);

	HOLD(&s->lock);
	in->lookups++;
}

void inode_forget(struct inode_table *t, struct inode *in, uint64_t count)
{
	struct inode_shard *s = shard_of(t, in->ino);

	HOLD(&s->lock);
	CHECK(in->lookups >= count);
	in->lookups -= count;
}

uint64_t inode_lookups(struct inode_table *t, struct inode *in)
{
	struct inode_shard *s = shard_of(t, in->ino);

	HOLD(&s->lock);
	return in->lookups;
}

/* False: these are all; without the shard's lock it may be found once more. */
static bool put_but_not_last(struct inode *in, uint64_t count)
{
	uint64_t refs = atomic_load(&in->refs);

	while (refs > count &&
	       !atomic_compare_exchange_weak(&in->refs, &refs, refs - count))
		;
	CHECK(refs >= count);
	return refs > count;
}

void inode_put(struct inode_table *t, struct inode *in, uint64_t count)
{
	struct inode_shard *s;
	struct inode **at;

	if (!in || put_but_not_last(in, count))
		return;
	s = shard_of(t, in->ino);
	{
		HOLD(&s->lock);
		if (atomic_fetch_sub(&in->refs, count) > count)
			return; /* found in the meantime */
		at = bucket_of(s, in->ino);
		while (*at != in)
			at = &(*at)->next;
		*at = in->next;
		s->removed++;
	}
	inode_free(t, in);
}

/* A number that was never used, also not before a crash. */
static int inode_next_ino(struct inode_table *t, uint64_t *ret_ino)
{
	HOLD(&t->numbering);
	if (t->next_ino >= t->next_ino_recorded) {
		/* In the log before any number of it is used. */
		SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
		uint64_t end = t->next_ino + INO_STEP;
		int rc;

		u64_save(b, key_meta(META_NEXT_INO), end);
		rc = kv_write(t->kv, b);
		if (rc < 0)
			return rc;
		t->next_ino_recorded = end;
	}
	*ret_ino = t->next_ino++;
	return 0;
}

int inode_new(struct inode_table *t, const struct attr *attr,
	      struct inode **ret_inode)
{
	struct inode *in;
	uint64_t ino;
	int rc;

	rc = inode_next_ino(t, &ino);
	if (rc < 0)
		return rc;
	in = inode_make(ino, attr);
	if (!in)
		return -ENOMEM;
	if (S_ISREG(attr->mode)) {
		in->file = calloc(1, sizeof(*in->file));
		if (!in->file) {
			in->attr.target = NULL; /* still the caller's */
			inode_free(t, in);
			return -ENOMEM;
		}
		versions_init(&in->file->versions);
		in->file->content_loaded = true;
	}
	*ret_inode = inode_insert(t, in, NULL);
	return 0;
}

static int content_read(struct inode_table *t, uint64_t ino,
			struct content_ref **ret_content)
{
	struct content c;
	int rc = content_load(t->kv, key_ino('F', ino), &c);

	if (rc == -ENOENT) {
		*ret_content = NULL;
		return 0;
	}
	if (rc < 0) {
		log_error("inode %llu: damaged content record: %s: run ckptctl "
			  "fsck",
			  (unsigned long long)ino, strerror(-rc));
		return rc;
	}
	*ret_content = content_ref_new(&c);
	if (!*ret_content) {
		content_release(&c);
		return -ENOMEM;
	}
	return 0;
}

int inode_load_file(struct inode_table *t, struct inode *in)
{
	struct content_ref *content;
	struct file *fresh;
	int rc;

	{
		HOLD(&in->lock);
		if (!S_ISREG(in->attr.mode))
			return -EINVAL;
		if (in->file && in->file->content_loaded)
			return 0;
	}
	rc = content_read(t, in->ino, &content);
	if (rc < 0)
		return rc;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh) {
		content_ref_put(content);
		return -ENOMEM;
	}
	versions_init(&fresh->versions);
	{
		HOLD(&in->lock);
		if (in->deleted) { /* what was read may be no record of it */
			rc = -ESTALE;
		} else if (!in->file) {
			in->file = fresh;
			fresh = NULL;
		}
		if (rc == 0 && !in->file->content_loaded) {
			in->file->content = content;
			in->file->content_loaded = true;
			content = NULL;
		}
	}
	free(fresh);
	content_ref_put(content);
	return rc;
}

static blkcnt_t blocks_of(uint64_t bytes)
{
	return (blkcnt_t)((bytes + 511) / 512);
}

/* Size, blocks and times of a regular file; consumes the stage reference. */
static int file_stat(struct inode_table *t, struct stage *stage,
		     struct stat *out)
{
	struct stat sb;
	int rc;

	if (!stage)
		return 0;
	rc = stage_stat(t->stages, stage, &sb);
	if (rc == 0) {
		out->st_size = sb.st_size;
		out->st_blocks =
			blocks_of(stage_data_bytes(t->stages, stage, &sb));
		out->st_mtim = sb.st_mtim;
	}
	stage_put(t->stages, stage);
	return rc;
}

struct attr inode_attr(struct inode *in)
{
	HOLD(&in->lock);
	return in->attr;
}

int inode_attr_of(struct inode_table *t, uint64_t ino, struct attr *ret)
{
	struct inode *in;
	int rc = inode_get(t, ino, &in);

	if (rc < 0)
		return rc;
	*ret = inode_attr(in);
	ret->target = NULL;
	inode_put(t, in, 1);
	return 0;
}

int inode_stat(struct inode_table *t, struct inode *in, struct stat *ret_stat)
{
	struct stage *stage = NULL;
	struct stat s = { 0 };
	const struct attr *a = &in->attr;
	int64_t mtime_ns, by_hand_ns;
	bool reg;
	int rc;

	{
		HOLD(&in->lock);
		reg = S_ISREG(a->mode);
	}
	if (reg) {
		rc = inode_load_file(t, in);
		if (rc < 0)
			return rc;
	}
	{
		HOLD(&in->lock);
		s.st_ino = in->ino;
		s.st_mode = a->mode;
		s.st_nlink = a->nlink;
		s.st_uid = a->uid;
		s.st_gid = a->gid;
		s.st_rdev = a->rdev;
		s.st_blksize = 4096;
		s.st_atim = io_timespec(a->atime_ns);
		s.st_mtim = io_timespec(a->mtime_ns);
		s.st_ctim = io_timespec(a->ctime_ns);
		by_hand_ns = a->mtime_ns;
		if (S_ISDIR(a->mode))
			s.st_size = 4096;
		if (a->target)
			s.st_size = (off_t)strlen(a->target);
		if (reg && in->file->stage) {
			stage = in->file->stage;
			stage_ref(stage);
		} else if (reg && in->file->content) {
			const struct content *c = &in->file->content->c;

			s.st_size = (off_t)c->size_bytes;
			s.st_blocks = blocks_of(c->data_bytes);
			if (a->mtime_gen < c->generation || !c->generation)
				s.st_mtim = io_timespec(c->mtime_ns);
		}
	}
	rc = file_stat(t, stage, &s);
	if (rc < 0)
		return rc;
	/* Bytes that were written later than anything else was changed. */
	mtime_ns = io_ns(&s.st_mtim);
	if (mtime_ns != by_hand_ns && mtime_ns > io_ns(&s.st_ctim))
		s.st_ctim = s.st_mtim;
	*ret_stat = s;
	return 0;
}
