/*
 * local.c - local files: which file of DIR each is the content of.
 *
 * Locally they lie in the store's root, by names that mean nothing ("12-a.pt",
 * so that a series is known by its name). What is known of one is a record in
 * the database, apart from the inode: a file that was made and never durable is
 * gone after a power cut, and its pending file in DIR has to go as well.
 *
 *   M shared.uuid            the UUID of DIR
 *   M shared.file.N          of local file N: see encode()
 *   M shared.place.N         its place among the uploads, put by the committer
 *                            into the batch that makes a version durable
 *
 * A record is there before the file in DIR is, and goes after it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/bytes.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/shared/shared_private.h"

#define FILE_KEY "shared.file."
#define PLACE_KEY "shared.place."
#define RECORD_VERSION 1
#define RECORD_KEPT 1u
#define RECORD_REPLACES 2u
#define RECORD_COMPLETING 4u

static struct key key_of(const char *what, uint64_t ino)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "%s%016" PRIx64, what, ino);
	return key_meta(name);
}

void local_new_name(const struct node *n, char ret[LOCAL_NEW_BYTES])
{
	(void)snprintf(ret, LOCAL_NEW_BYTES, "%016" PRIx64, n->id);
}

/* --- records -------------------------------------------------------------- */

struct record {
	unsigned flags;
	uint64_t engine, size;
	int64_t mtime_ns, ctime_ns;
	char *dir, *name; /* owned */
};

static void record_release(struct record *r)
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

static void encode(const struct record *r, struct bytes *b)
{
	bytes_put_le(b, RECORD_VERSION, 1);
	bytes_put_le(b, r->flags, 1);
	bytes_put_le(b, r->engine, 8);
	bytes_put_le(b, r->size, 8);
	bytes_put_le(b, (uint64_t)r->mtime_ns, 8);
	bytes_put_le(b, (uint64_t)r->ctime_ns, 8);
	put_text(b, r->dir);
	put_text(b, r->name);
}

static char *get_text(struct bytes_reader *r)
{
	size_t len = (size_t)bytes_take_le(r, 2);
	const void *p = bytes_take(r, len);

	return p ? strndup(p, len) : NULL;
}

static int decode(struct kv_slice v, struct record *ret)
{
	struct bytes_reader r = bytes_reader_of(v.data, v.len);
	uint64_t version = bytes_take_le(&r, 1);

	*ret = (struct record){ 0 };
	ret->flags = (unsigned)bytes_take_le(&r, 1);
	ret->engine = bytes_take_le(&r, 8);
	ret->size = bytes_take_le(&r, 8);
	ret->mtime_ns = (int64_t)bytes_take_le(&r, 8);
	ret->ctime_ns = (int64_t)bytes_take_le(&r, 8);
	ret->dir = get_text(&r);
	ret->name = get_text(&r);
	if (version == RECORD_VERSION && !r.bad && ret->dir && ret->name)
		return 0;
	record_release(ret);
	return -EIO;
}

int local_save(struct shared *s, struct node *n, bool completing)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	SCOPED(bytes_release) struct bytes value = { 0 };
	char dir[4096] = "", name[STORE_NAME_MAX + 1];
	struct record r = { .dir = dir, .name = name };
	struct node *parent;

	{
		HOLD(&s->lock);
		if (n->state == NODE_GONE)
			return 0;
		r.flags = (n->state == NODE_KEPT ? RECORD_KEPT : 0) |
			  (n->replaces ? RECORD_REPLACES : 0) |
			  (completing ? RECORD_COMPLETING : 0);
		r.engine = n->engine;
		r.size = n->kept_size;
		r.mtime_ns = n->kept_mtime_ns;
		r.ctime_ns = n->kept_ctime_ns;
		(void)snprintf(name, sizeof(name), "%s", n->name);
		parent = node_ref_locked(n->parent);
	}
	node_path(s, parent, dir, sizeof(dir));
	node_put(s, parent);
	encode(&r, &value);
	if (value.failed)
		return -ENOMEM;
	record_save(b, key_of(FILE_KEY, n->id), value.data, value.len);
	if (r.flags & RECORD_KEPT)
		record_delete(b, key_of(PLACE_KEY, n->id));
	return kv_write(s->st->kv, b);
}

static int forget_records(struct shared *s, uint64_t ino)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

	record_delete(b, key_of(FILE_KEY, ino));
	record_delete(b, key_of(PLACE_KEY, ino));
	return kv_write(s->st->kv, b);
}

/* --- local files ---------------------------------------------------------- */

int local_make(struct shared *s, const struct names_new *n, const char *name,
	       struct node *parent, bool replaces, struct node **ret_node)
{
	char local[STORE_NAME_MAX + 1];
	struct inode *in;
	struct node *node;
	uint64_t serial;
	int rc;

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
		node->replaces = replaces;
		if (replaces)
			LIST_INSERT_HEAD(&s->replacing, node, replacing);
		node->changing = 1; /* until it is open */
	}
	rc = local_save(s, node, false);
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

void local_drop(struct shared *s, struct node *n)
{
	{
		HOLD(&s->lock);
		if (n->state == NODE_GONE || n->state == NODE_OF_DIR)
			return;
		if (n->state == NODE_KEPT)
			s->figures.kept--;
		node_forget_local_locked(s, n);
	}
	unlink_local(s, n->in);
	if (forget_records(s, n->id) < 0)
		log_warning("local file %" PRIu64 ": its record stays, and "
			    "goes with the next mount",
			    n->id);
}

bool local_is_current(const struct node *n, const struct stat *sb)
{
	return (uint64_t)sb->st_size == n->kept_size &&
	       io_ns(&sb->st_mtim) == n->kept_mtime_ns &&
	       io_ns(&sb->st_ctim) == n->kept_ctime_ns;
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

/* --- what the committer calls --------------------------------------------- */

void local_committing(void *arg, struct kv_batch *b, uint64_t ino)
{
	struct shared *s = arg;
	uint64_t place;

	{
		HOLD(&s->lock);
		place = s->next_place++;
	}
	u64_save(b, key_of(PLACE_KEY, ino), place);
}

void local_committed(void *arg, uint64_t ino)
{
	struct shared *s = arg;
	struct node *n = node_get(s, ino);
	uint64_t place;

	if (!n)
		return;
	if (u64_load(s->st->kv, key_of(PLACE_KEY, ino), &place) == 0) {
		HOLD(&s->lock);
		if (n->state == NODE_PENDING || n->state == NODE_UPLOADING ||
		    n->state == NODE_MAKING)
			upload_queue_locked(s, n, place);
	}
	node_put(s, n);
}

/* --- the start ------------------------------------------------------------ */

/* The node of a folder, by its path below DIR. A reference. */
static int find_dir(struct shared *s, char *path, struct node **ret)
{
	struct node *at, *next;
	char *save = NULL;

	{
		HOLD(&s->lock);
		at = node_ref_locked(s->root);
	}
	for (char *part = strtok_r(path, "/", &save); part;
	     part = strtok_r(NULL, "/", &save)) {
		SCOPED(scope_close) int fd = -1;
		struct stat sb;
		int rc = node_fd(s, at, &fd);

		if (rc == 0 &&
		    fstatat(fd, part, &sb, AT_SYMLINK_NOFOLLOW) < 0)
			rc = -errno;
		if (rc == 0 && !S_ISDIR(sb.st_mode))
			rc = -ENOTDIR;
		next = rc == 0 ? node_at(s, at, part, &sb) : NULL;
		node_put(s, at);
		if (!next)
			return rc < 0 ? rc : -ENOMEM;
		at = next;
	}
	*ret = at;
	return 0;
}

/* What was to be made in DIR when its bytes were lost: nobody has them. */
static void remove_lost(struct shared *s, uint64_t ino, const struct record *r,
			struct node *parent)
{
	SCOPED(scope_close) int dirfd = -1, fd = -1;
	struct trailer t;
	char name[64];

	if (r->flags & RECORD_REPLACES) {
		(void)snprintf(name, sizeof(name), "%016" PRIx64, ino);
		(void)unlinkat(s->home.newfd, name, 0);
		return;
	}
	if (!parent || node_fd(s, parent, &dirfd) < 0)
		return;
	fd = openat(dirfd, r->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || pending_read(fd, &t) < 0 || t.number != ino ||
	    strcmp(t.uuid, s->st->uuid) != 0)
		return;
	if (unlinkat(dirfd, r->name, 0) == 0)
		log_warning("%s/%s/%s was made and was never durable: it is "
			    "gone, as after a power cut",
			    s->dir, r->dir, r->name);
}

/* Is the file in DIR, of which the record does not know the number, ours? */
static void adopt_engine(struct shared *s, struct node *n)
{
	SCOPED(node_use_end) struct node_use parent = { .s = s };
	SCOPED(scope_close) int dirfd = -1, fd = -1;
	struct trailer t;
	struct stat sb;
	char name[STORE_NAME_MAX + 1];

	{
		HOLD(&s->lock);
		if (n->replaces)
			local_new_name(n, name);
		else
			(void)snprintf(name, sizeof(name), "%s", n->name);
		parent.n = node_ref_locked(n->parent);
	}
	if (!n->replaces && node_fd(s, parent.n, &dirfd) < 0)
		return;
	fd = openat(n->replaces ? s->home.newfd : dirfd, name,
		    O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &sb) < 0 || !pending_is(s, &sb))
		return;
	if (pending_read(fd, &t) == 0 &&
	    (t.number != n->id || strcmp(t.uuid, s->st->uuid) != 0))
		return;
	{
		HOLD(&s->lock);
		node_engine_locked(s, n, sb.st_ino);
	}
	node_keep_fd(s, n, fd);
}

static int load_one(struct shared *s, uint64_t ino, const struct record *r)
{
	struct node *parent = NULL, *n;
	struct inode *in;
	uint64_t place;
	int found = find_dir(s, r->dir, &parent);
	int rc = inode_get(s->st->inodes, ino, &in);

	if (rc == 0 && (!S_ISREG(inode_attr(in).mode) ||
			inode_attr(in).nlink == 0)) {
		inode_put(s->st->inodes, in, 1);
		rc = -ENOENT;
	}
	if (rc == -ENOENT) {
		remove_lost(s, ino, r, found == 0 ? parent : NULL);
		node_put(s, parent);
		return forget_records(s, ino);
	}
	if (rc < 0) {
		node_put(s, parent);
		return rc;
	}
	n = node_new_local(s, in);
	if (!n) {
		node_put(s, parent);
		inode_put(s->st->inodes, in, 1);
		return -ENOMEM;
	}
	{
		HOLD(&s->lock);
		node_place_locked(s, n, parent ? parent : s->root, r->name);
		n->replaces = (r->flags & RECORD_REPLACES) != 0;
		n->state = r->flags & RECORD_KEPT ? NODE_KEPT : NODE_PENDING;
		if (n->state == NODE_KEPT)
			s->figures.kept++;
		if (n->replaces)
			LIST_INSERT_HEAD(&s->replacing, n, replacing);
		n->kept_size = r->size;
		n->kept_mtime_ns = r->mtime_ns;
		n->kept_ctime_ns = r->ctime_ns;
		n->since_ns = mono_ns();
		node_engine_locked(s, n, (ino_t)r->engine);
	}
	node_put(s, parent);
	if (n->state == NODE_PENDING && r->engine == 0)
		adopt_engine(s, n);
	if (n->state == NODE_PENDING) {
		/* A file that was made, and is as it was made, has no place. */
		if (u64_load(s->st->kv, key_of(PLACE_KEY, ino), &place) < 0)
			place = s->next_place++;
		HOLD(&s->lock);
		if (s->next_place <= place)
			s->next_place = place + 1;
		upload_queue_locked(s, n, place);
	}
	node_put(s, n);
	return 0;
}

struct loading {
	struct shared *s;
	uint64_t *ino;
	struct record *r;
	size_t count, room;
};

static int collect(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct loading *l = arg;
	char name[64];
	size_t skip = 1 + strlen(FILE_KEY), len = key.len - skip;

	if (key.len <= skip || len >= sizeof(name))
		return 0;
	if (l->count == l->room) {
		size_t room = l->room ? 2 * l->room : 64;
		uint64_t *ino = realloc(l->ino, room * sizeof(*ino));
		struct record *r;

		if (!ino)
			return -ENOMEM;
		l->ino = ino;
		r = realloc(l->r, room * sizeof(*r));
		if (!r)
			return -ENOMEM;
		l->r = r;
		l->room = room;
	}
	memcpy(name, (const char *)key.data + skip, len);
	name[len] = 0;
	l->ino[l->count] = strtoull(name, NULL, 16);
	if (decode(value, &l->r[l->count]) < 0) {
		log_error("local file %" PRIu64 ": its record is damaged; the "
			  "file is kept in the store",
			  l->ino[l->count]);
		return 0;
	}
	l->count++;
	return 0;
}

static int see_place(void *arg, struct kv_slice key, struct kv_slice value)
{
	struct shared *s = arg;
	uint64_t place;

	(void)key;
	if (u64_decode(value.data, value.len, &place) == 0 &&
	    s->next_place <= place)
		s->next_place = place + 1;
	return 0;
}

static int see_serial(void *arg, const char *name,
		      const struct dirent_rec *entry, uint64_t cookie)
{
	struct shared *s = arg;
	uint64_t serial = strtoull(name, NULL, 10);

	(void)entry;
	(void)cookie;
	if (s->next_local <= serial)
		s->next_local = serial + 1;
	return 0;
}

int local_load(struct shared *s, char *why, size_t why_size)
{
	struct loading l = { .s = s };
	int rc;

	s->next_local = 1;
	s->next_place = 1;
	rc = names_list(s->st->names, ROOT_INO, 2, see_serial, s);
	if (rc == 0)
		rc = records_each(s->st->kv, key_meta(PLACE_KEY), see_place, s);
	if (rc == 0)
		rc = records_each(s->st->kv, key_meta(FILE_KEY), collect, &l);
	for (size_t i = 0; i < l.count; i++) {
		if (rc == 0)
			rc = load_one(s, l.ino[i], &l.r[i]);
		record_release(&l.r[i]);
	}
	free(l.ino);
	free(l.r);
	if (rc < 0)
		(void)snprintf(why, why_size,
			       "%s: what this node has of %s cannot be read: %s",
			       s->st->path, s->dir, strerror(-rc));
	return rc;
}
