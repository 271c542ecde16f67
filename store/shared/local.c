/*
 * local.c - local files: which file of DIR each is the content of.
 *
 * Locally they lie in the store's root, by names that mean nothing ("12-a.pt",
 * so that a series is known by its name). What is known of one is a record in
 * the database, apart from the inode: a file that was made and never durable is
 * gone after a power cut, and its pending file in DIR has to go as well.
 *
 *   M shared.uuid            the UUID of DIR
 *   M shared.own             all that is pending has its link: own.c
 *   M shared.file.N          of local file N: see encode()
 *   M shared.place.N         its place in the order of closes, put by the
 *                            committer into the batch that makes it durable
 *
 * A record is there before the file in DIR is, and goes after it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "store/base/bytes.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/file/file.h"
#include "store/shared/shared_private.h"

#define RECORD_VERSION 1
/* Kept files that go before it is looked again how much room there is. */
#define GIVE_UP_AT_ONCE 16
#define LOOK_AT_ONCE 256

struct key local_key(const char *what, uint64_t ino)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "%s%016" PRIx64, what, ino);
	return key_meta(name);
}

/* --- records -------------------------------------------------------------- */

void local_record_release(struct local_record *r)
{
	free(r->dir);
	free(r->name);
}

static void put_text(struct bytes *b, const char *text)
{
	size_t len = strlen(text);

	bytes_put_le(b, len, 2);
	bytes_put(b, text, len);
}

static void encode(const struct local_record *r, struct bytes *b)
{
	bytes_put_le(b, RECORD_VERSION, 1);
	bytes_put_le(b, r->flags, 1);
	bytes_put_le(b, r->engine, 8);
	bytes_put_le(b, r->size, 8);
	bytes_put_le(b, (uint64_t)r->mtime_ns, 8);
	bytes_put_le(b, (uint64_t)r->ctime_ns, 8);
	bytes_put_le(b, r->new_id, 8);
	put_text(b, r->dir);
	put_text(b, r->name);
}

static char *get_text(struct bytes_reader *r)
{
	size_t len = (size_t)bytes_take_le(r, 2);
	const void *p = bytes_take(r, len);

	return p ? strndup(p, len) : NULL;
}

int local_record_decode(struct kv_slice v, struct local_record *ret)
{
	struct bytes_reader r = bytes_reader_of(v.data, v.len);
	uint64_t version = bytes_take_le(&r, 1);

	*ret = (struct local_record){ 0 };
	ret->flags = (unsigned)bytes_take_le(&r, 1);
	ret->engine = bytes_take_le(&r, 8);
	ret->size = bytes_take_le(&r, 8);
	ret->mtime_ns = (int64_t)bytes_take_le(&r, 8);
	ret->ctime_ns = (int64_t)bytes_take_le(&r, 8);
	ret->new_id = bytes_take_le(&r, 8);
	ret->dir = get_text(&r);
	ret->name = get_text(&r);
	if (version == RECORD_VERSION && !r.bad && ret->dir && ret->name)
		return 0;
	local_record_release(ret);
	return -EIO;
}

/* False: it is gone, and so are its records. */
static bool save_begin(struct shared *s, struct node *n, struct local_record *r,
		       char name[STORE_NAME_MAX + 1], struct node **ret_parent)
{
	HOLD(&s->lock);
	while (n->saving)
		cond_wait(&s->moved, &s->lock);
	if (n->state == NODE_GONE)
		return false;
	n->saving = true;
	r->flags = (n->state == NODE_KEPT ? LOCAL_KEPT : 0) |
		   (n->ticket ? LOCAL_REPLACES : 0) |
		   (n->completing ? LOCAL_COMPLETING : 0) |
		   (n->empties ? LOCAL_EMPTIES : 0);
	r->engine = n->engine;
	r->size = n->kept_size;
	r->mtime_ns = n->kept_mtime_ns;
	r->ctime_ns = n->kept_ctime_ns;
	(void)snprintf(name, STORE_NAME_MAX + 1, "%s", n->name);
	*ret_parent = node_ref_locked(n->parent);
	return true;
}

static int save(struct shared *s, uint64_t ino, const struct local_record *r)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	SCOPED(bytes_release) struct bytes value = { 0 };
	int rc;

	encode(r, &value);
	if (value.failed)
		return -ENOMEM;
	record_save(b, local_key(LOCAL_FILE_KEY, ino), value.data, value.len);
	if (r->flags & LOCAL_KEPT)
		record_delete(b, local_key(LOCAL_PLACE_KEY, ino));
	rc = kv_write(s->st->kv, b);
	return rc == 0 && (r->flags & LOCAL_COMPLETING) ? kv_sync(s->st->kv)
							: rc;
}

int local_save(struct shared *s, struct node *n)
{
	char dir[4096] = "", name[STORE_NAME_MAX + 1];
	struct local_record r = { .dir = dir, .name = name };
	struct node *parent;
	int rc;

	if (!save_begin(s, n, &r, name, &parent))
		return 0;
	node_path(s, parent, dir, sizeof(dir));
	node_put(s, parent);
	rc = save(s, n->id, &r);
	HOLD(&s->lock);
	n->saving = false;
	cond_broadcast(&s->moved);
	return rc;
}

int local_forget_records(struct shared *s, uint64_t ino)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

	record_delete(b, local_key(LOCAL_FILE_KEY, ino));
	record_delete(b, local_key(LOCAL_PLACE_KEY, ino));
	return kv_write(s->st->kv, b);
}

/* --- local files ---------------------------------------------------------- */

int local_make(struct shared *s, const struct names_new *n, const char *name,
	       struct node *parent, const char *ticket, struct node **ret_node)
{
	SCOPED(scope_free) char *copy = ticket ? strdup(ticket) : NULL;
	char local[STORE_NAME_MAX + 1];
	struct inode *in;
	struct node *node;
	uint64_t serial;
	int rc;

	if (ticket && !copy)
		return -ENOMEM;
	{
		HOLD(&s->lock);
		serial = s->next_local++;
	}
	(void)snprintf(local, sizeof(local), "%" PRIu64 "-%.*s", serial,
		       STORE_NAME_MAX - 24, name);
	rc = names_create(s->st->names, ROOT_INO, local, n, &in);
	if (rc < 0)
		return rc;
	file_created(in);
	node = node_new_local(s, in);
	if (!node) {
		inode_put(s->st->inodes, in, 1);
		return -ENOMEM;
	}
	{
		HOLD(&s->lock);
		node_place_locked(s, node, parent, name);
		node->since_ns = mono_ns();
		node_set_ticket_locked(s, node, TAKE(copy));
		node->changing = 1; /* until it is open */
		node->undone = ticket != NULL; /* and then it is not */
	}
	rc = local_save(s, node);
	if (rc < 0) {
		local_drop(s, node);
		node_put(s, node);
		return rc;
	}
	*ret_node = node;
	return 0;
}

/* Its only name goes. */
static void unlink_local(struct shared *s, struct inode *in)
{
	struct attr a = inode_attr(in);
	struct inode *gone;

	if (a.nlink == 0 ||
	    names_unlink(s->st->names, ROOT_INO, a.name, &gone) < 0)
		return;
	file_unlinked(&s->st->files, gone);
	inode_put(s->st->inodes, gone, 1);
}

/* notes: who comes to write to it looks again. */
static bool drop(struct shared *s, struct node *n, bool only_kept, bool notes)
{
	ino_t owned = 0;

	{
		HOLD(&s->lock);
		if (n->state == NODE_GONE || n->state == NODE_OF_DIR ||
		    (only_kept && n->state != NODE_KEPT))
			return false;
		if (notes && !n->dropped)
			local_note_dropped_locked(s, n);
		if (n->state == NODE_KEPT)
			queue_unkeep_locked(s, n, NODE_GONE);
		owned = own_take_locked(n);
		waits_end_locked(&n->last);
		node_forget_local_locked(s, n);
		while (n->saving) /* or its record would come back */
			cond_wait(&s->moved, &s->lock);
	}
	unlink_local(s, n->in);
	if (local_forget_records(s, n->id) < 0)
		log_warning("local file %" PRIu64 ": its record stays, and "
			    "goes with the next mount",
			    n->id);
	if (owned)
		own_unlink_later(s, owned);
	return true;
}

void local_drop(struct shared *s, struct node *n)
{
	(void)drop(s, n, false, false);
}

void local_give_up(struct shared *s, struct node *n)
{
	(void)drop(s, n, false, true);
}

bool local_give_up_kept(struct shared *s, struct node *n)
{
	return drop(s, n, true, true);
}

void local_name_removed(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int fd = -1;
	nlink_t left = 0;

	/* DIR has what is kept, by whatever other names. */
	if (node_state(s, n) != NODE_KEPT) {
		/* If this fails its upload sees what is to become of it. */
		if (node_fd(s, n, &fd) < 0 || own_count_names(fd, &left) < 0)
			return;
		/*
		 * It may have become whole since, and its link have gone: then
		 * too few are counted, and what goes is a copy of what DIR has.
		 */
	}
	if (left == 0) {
		local_drop(s, n);
		return;
	}
	HOLD(&s->lock);
	n->links = left;
}

struct node *local_at(struct shared *s, struct node *parent, const char *name,
		      const struct stat *sb)
{
	struct node *stale, *n = node_at(s, parent, name, sb, &stale);

	if (stale) { /* his word counts */
		local_drop(s, stale);
		node_put(s, stale);
	}
	return n;
}

/*
 * Where times are whole seconds, a file that was changed in the second in which
 * it was complete looks as it did: such a one is not kept.
 */
void local_set_kept_locked(struct node *n, const struct stat *sb)
{
	bool whole = sb->st_mtim.tv_nsec == 0 && sb->st_ctim.tv_nsec == 0;

	n->kept_size = (uint64_t)sb->st_size;
	n->kept_mtime_ns = io_ns(&sb->st_mtim);
	n->kept_ctime_ns = io_ns(&sb->st_ctim);
	if (whole && sb->st_ctim.tv_sec <= sb->st_mtim.tv_sec)
		n->kept_size = UINT64_MAX; /* no file has it */
}

/* Of a hundred parts of the disk so many are to be free. */
#define FREE_WANTED 10

/* Or what is staged has no room there, as the drain counts it. */
static bool is_short_of_room(struct shared *s)
{
	struct stages_figures f;
	struct statvfs v;

	stages_figures(&s->st->stages, &f);
	if (kv_room_for(s->st->kv, f.memory_bytes) < 0)
		return true;
	return fstatvfs(s->st->dirfd, &v) == 0 &&
	       v.f_bavail < v.f_blocks / 100 * FREE_WANTED;
}

static bool keeps_too_much(struct shared *s)
{
	HOLD(&s->lock);
	return s->kept_bytes > s->local_keep_bytes;
}

/* The one that is whole, or not read, for longest; it is the last then. */
static struct node *first_kept(struct shared *s)
{
	struct node *n;

	HOLD(&s->lock);
	n = TAILQ_FIRST(&s->kept);
	if (!n)
		return NULL;
	TAILQ_REMOVE(&s->kept, n, kept);
	TAILQ_INSERT_TAIL(&s->kept, n, kept);
	return node_ref_locked(n);
}

/* The kernel may remember it, which would keep the bytes. */
static void forget_name(struct shared *s, struct node *n)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	const struct kernel_hooks *k = &s->st->files.kernel;
	char name[STORE_NAME_MAX + 1];

	{
		HOLD(&s->lock);
		if (!n->parent)
			return;
		parent.n = node_ref_locked(n->parent);
		(void)snprintf(name, sizeof(name), "%s", n->name);
	}
	if (k->on_renamed)
		k->on_renamed(k->arg, parent.n->id, name);
}

void local_note_dropped_locked(struct shared *s, struct node *n)
{
	struct dropped *d = &s->dropped[s->next_dropped++ % DROPPED_MAX];

	n->dropped = true;
	d->id = n->id;
	d->parent = n->parent ? n->parent->id : 0;
	(void)snprintf(d->name, sizeof(d->name), "%s", n->name ? n->name : "");
}

bool local_was_dropped(struct shared *s, uint64_t id, struct dropped *ret)
{
	HOLD(&s->lock);
	for (unsigned i = 0; i < DROPPED_MAX; i++)
		if (s->dropped[i].id == id) {
			*ret = s->dropped[i];
			return true;
		}
	return false;
}

void local_make_room(struct shared *s)
{
	bool is_short = is_short_of_room(s);
	unsigned gone = 0;
	uint64_t freed;

	if (!is_short && !keeps_too_much(s))
		return;
	for (unsigned looked = 0;
	     looked < LOOK_AT_ONCE && gone < GIVE_UP_AT_ONCE &&
	     (is_short || keeps_too_much(s));
	     looked++) {
		struct node *n = first_kept(s);

		if (!n)
			break;
		if (!file_is_used(&s->st->files, n->in) &&
		    local_give_up_kept(s, n)) {
			forget_name(s, n);
			gone++;
		}
		node_put(s, n);
	}
	if (gone == 0)
		return;
	commit_wait(s->st->drain); /* they are deleted, and given back: */
	reclaim_drain(s->st->reclaim, &freed);
}

/* --- what the drain calls ------------------------------------------------- */

static struct node *find_to_upload_locked(struct shared *s, uint64_t ino)
{
	struct node *n = node_find_locked(s, ino);

	return n && (n->state == NODE_PENDING || n->state == NODE_UPLOADING ||
		     n->state == NODE_MAKING)
		       ? n
		       : NULL;
}

/*
 * What is durable is in the queue, or whole in DIR. What nobody has closed
 * comes into it here, and holds back nobody.
 */
void local_committing(void *arg, struct kv_batch *b, uint64_t ino,
		      uint64_t place)
{
	struct shared *s = arg;
	struct node *n;

	u64_save(b, local_key(LOCAL_PLACE_KEY, ino), place);
	HOLD(&s->lock);
	n = find_to_upload_locked(s, ino);
	if (n && !n->is_queued) {
		n->is_staged = n->is_passed = true;
		queue_add_locked(s, n, place);
	}
}

/*
 * It is in the queue from its close on, so that what was closed after it, and
 * is durable before, waits for it.
 */
void local_tell_place(void *arg, uint64_t ino, uint64_t place, bool holds)
{
	struct shared *s = arg;
	struct node *n;

	HOLD(&s->lock);
	n = find_to_upload_locked(s, ino);
	if (!n || (place == 0 && !n->is_staged))
		return;
	n->is_staged = place != 0;
	if (n->is_staged) {
		n->is_passed = !holds;
		queue_add_locked(s, n, place);
	} else {
		cond_signal(&s->idle);
	}
	cond_broadcast(&s->moved);
}

/*
 * O_TRUNC under readers: they keep the inode, and the name gets another one.
 * DIR's file is the new one's from now on, and so is its record.
 */
void local_renumbering(void *arg, struct kv_batch *b, uint64_t from,
		       uint64_t to)
{
	struct shared *s = arg;
	SCOPED(scope_free) void *value = NULL;
	size_t len;

	if (record_load(s->st->kv, local_key(LOCAL_FILE_KEY, from), &value,
			&len) < 0)
		return;
	record_save(b, local_key(LOCAL_FILE_KEY, to), value, len);
	record_delete(b, local_key(LOCAL_FILE_KEY, from));
	record_delete(b, local_key(LOCAL_PLACE_KEY, from));
}

void local_renumbered(void *arg, uint64_t from, uint64_t to)
{
	struct shared *s = arg;
	struct node *old = node_get(s, from), *fresh;
	uint64_t place = drain_draw_place(s->st->drain);
	struct inode *in;

	if (!old)
		return;
	if (inode_get(s->st->inodes, to, &in) < 0) {
		node_put(s, old);
		return; /* the next start finds it by its record */
	}
	fresh = node_alloc_local(in);
	if (!fresh) {
		inode_put(s->st->inodes, in, 1);
		node_put(s, old);
		return;
	}
	sent_expect(s, fresh); /* it is told ESTALE now */
	{
		HOLD(&s->lock);
		node_take_over_locked(s, fresh, old);
		fresh->since_ns = mono_ns();
		/* As it is, should nobody open it. */
		queue_add_locked(s, fresh, place);
	}
	node_put(s, fresh);
	node_put(s, old);
}
