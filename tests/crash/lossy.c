#include "tests/crash/lossy.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/base/scope.h"
#include "tests/crash/lossy_data.h"
#include "tests/crash/lossy_names.h"

struct lossy_node {
	mode_t mode;
	uid_t uid;
	gid_t gid;
	dev_t rdev;
	nlink_t nlink; /* present names; a directory counts itself too */
	struct timespec atime, mtime, ctime;
	char *symlink; /* NULL for anything else */
	struct lossy_data data;
	struct lossy_dir dir;
};

struct lossy_fs {
	struct lossy_options options; /* immutable */
	struct lossy_room room;
	struct lossy_names names;
	/* By number; 0 is none. Kept until a reboot: an old name may return. */
	struct lossy_node **nodes;
	uint64_t node_next;
	uint64_t count;
	uint64_t cut_in; /* operations until the cut; 0: not armed */
	bool cut;
};

static void node_free(struct lossy_fs *fs, struct lossy_node *n)
{
	if (!n)
		return;
	lossy_data_release(&n->data, &fs->room);
	lossy_dir_release(&n->dir);
	free(n->symlink);
	free(n);
}

static struct lossy_node *node_find(struct lossy_fs *fs, uint64_t id)
{
	return id < fs->node_next ? fs->nodes[id] : NULL;
}

static int node_dir(struct lossy_fs *fs, uint64_t id, struct lossy_node **ret)
{
	struct lossy_node *n = node_find(fs, id);

	if (!n)
		return -ESTALE;
	if (!S_ISDIR(n->mode))
		return -ENOTDIR;
	*ret = n;
	return 0;
}

static int node_file(struct lossy_fs *fs, uint64_t id, struct lossy_node **ret)
{
	struct lossy_node *n = node_find(fs, id);

	if (!n)
		return -ESTALE;
	if (!S_ISREG(n->mode))
		return S_ISDIR(n->mode) ? -EISDIR : -EINVAL;
	*ret = n;
	return 0;
}

static void node_touch(struct lossy_node *n)
{
	clock_gettime(CLOCK_REALTIME, &n->mtime);
	n->ctime = n->mtime;
}

static int node_new(struct lossy_fs *fs, mode_t mode, struct lossy_node **ret)
{
	struct lossy_node *n;

	if (fs->node_next >= LOSSY_NODES_MAX)
		return -ENOSPC;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	n->mode = mode;
	n->nlink = S_ISDIR(mode) ? 2 : 1;
	lossy_data_init(&n->data);
	node_touch(n);
	n->atime = n->mtime;
	fs->nodes[fs->node_next++] = n;
	*ret = n;
	return 0;
}

static struct lossy_dir *names_dir(void *self, uint64_t id)
{
	struct lossy_fs *fs = self;
	struct lossy_node *n = node_find(fs, id);

	CHECK(n && S_ISDIR(n->mode));
	return &n->dir;
}

void lossy_erase(struct lossy_fs *fs)
{
	struct lossy_node *root;
	int rc;

	lossy_names_release(&fs->names);
	for (uint64_t i = LOSSY_ROOT; i < fs->node_next; i++)
		node_free(fs, fs->nodes[i]);
	CHECK(fs->room.blocks == 0);
	fs->node_next = LOSSY_ROOT;
	fs->count = 0;
	fs->cut_in = 0;
	fs->cut = false;
	rc = node_new(fs, S_IFDIR | 0755, &root);
	CHECK(rc == 0);
}

int lossy_new(const struct lossy_options *options, struct lossy_fs **ret_fs)
{
	struct lossy_fs *fs = calloc(1, sizeof(*fs));

	if (!fs)
		return -ENOMEM;
	fs->nodes = calloc(LOSSY_NODES_MAX, sizeof(struct lossy_node *));
	if (!fs->nodes) {
		free(fs);
		return -ENOMEM;
	}
	fs->options = *options;
	fs->room.blocks_max = options->bytes_max / LOSSY_BLOCK_BYTES;
	fs->names.dir = names_dir;
	fs->names.self = fs;
	fs->node_next = LOSSY_ROOT;
	lossy_erase(fs);
	*ret_fs = fs;
	return 0;
}

void lossy_free(struct lossy_fs *fs)
{
	if (!fs)
		return;
	lossy_names_release(&fs->names);
	for (uint64_t i = LOSSY_ROOT; i < fs->node_next; i++)
		node_free(fs, fs->nodes[i]);
	free(fs->nodes);
	free(fs);
}

/* --- operations --- */

static int do_create(struct lossy_fs *fs, const struct lossy_op *op,
		     uint64_t *ret_node)
{
	uint64_t id = fs->node_next;
	struct lossy_set set = { .dir = op->node,
				 .node = id,
				 .name = op->name };
	struct lossy_node *dir, *n;
	int rc;

	rc = node_dir(fs, op->node, &dir);
	if (rc < 0)
		return rc;
	if (lossy_table_find(&dir->dir.now, op->name))
		return -EEXIST;
	rc = node_new(fs, op->mode, &n);
	if (rc < 0)
		return rc;
	n->uid = op->uid;
	n->gid = op->gid;
	n->rdev = op->rdev;
	if (S_ISLNK(op->mode))
		n->symlink = strndup(op->data, op->data_len);
	rc = S_ISLNK(op->mode) && !n->symlink
		     ? -ENOMEM
		     : lossy_names_add(&fs->names, 1, &set, true);
	if (rc < 0) {
		node_free(fs, n);
		fs->nodes[--fs->node_next] = NULL;
		return rc;
	}
	if (S_ISDIR(op->mode))
		dir->nlink++;
	node_touch(dir);
	if (ret_node)
		*ret_node = id;
	return 0;
}

static int do_link(struct lossy_fs *fs, const struct lossy_op *op)
{
	struct lossy_set set = { .dir = op->node,
				 .node = op->other,
				 .name = op->name };
	struct lossy_node *n = node_find(fs, op->other);
	struct lossy_node *dir;
	int rc;

	rc = node_dir(fs, op->node, &dir);
	if (rc < 0)
		return rc;
	if (!n || n->nlink == 0)
		return -ENOENT;
	if (S_ISDIR(n->mode))
		return -EPERM;
	if (lossy_table_find(&dir->dir.now, op->name))
		return -EEXIST;
	rc = lossy_names_add(&fs->names, 1, &set, false);
	if (rc < 0)
		return rc;
	n->nlink++;
	node_touch(dir);
	return 0;
}

/* May the node lose its name to nothing, or to a node of this mode? */
static int node_may_go(const struct lossy_node *n, bool for_dir)
{
	if (for_dir && !S_ISDIR(n->mode))
		return -ENOTDIR;
	if (!for_dir && S_ISDIR(n->mode))
		return -EISDIR;
	if (n->dir.now.first)
		return -ENOTEMPTY;
	return 0;
}

static void node_lost_name(struct lossy_node *n, struct lossy_node *dir)
{
	if (S_ISDIR(n->mode)) {
		n->nlink = 0;
		dir->nlink--;
	} else {
		n->nlink--;
	}
	clock_gettime(CLOCK_REALTIME, &n->ctime);
}

static int do_remove(struct lossy_fs *fs, const struct lossy_op *op)
{
	struct lossy_set set = { .dir = op->node, .name = op->name };
	struct lossy_node *dir, *n;
	int rc;

	rc = node_dir(fs, op->node, &dir);
	if (rc < 0)
		return rc;
	n = node_find(fs, lossy_table_find(&dir->dir.now, op->name));
	if (!n)
		return -ENOENT;
	rc = node_may_go(n, op->kind == LOSSY_RMDIR);
	if (rc < 0)
		return rc;
	rc = lossy_names_add(&fs->names, 1, &set, false);
	if (rc < 0)
		return rc;
	node_lost_name(n, dir);
	node_touch(dir);
	return 0;
}

static int do_rename(struct lossy_fs *fs, const struct lossy_op *op)
{
	struct lossy_node *from_dir, *to_dir, *moved, *gone;
	struct lossy_set set[2];
	uint64_t moved_id, gone_id;
	bool swap = op->flags & RENAME_EXCHANGE;
	int rc;

	if (op->flags & ~(uint32_t)(RENAME_EXCHANGE | RENAME_NOREPLACE))
		return -EINVAL;
	rc = node_dir(fs, op->node, &from_dir);
	if (rc < 0)
		return rc;
	rc = node_dir(fs, op->other, &to_dir);
	if (rc < 0)
		return rc;
	moved_id = lossy_table_find(&from_dir->dir.now, op->name);
	gone_id = lossy_table_find(&to_dir->dir.now, op->name2);
	moved = node_find(fs, moved_id);
	gone = node_find(fs, gone_id);
	if (!moved || (swap && !gone))
		return -ENOENT;
	if (gone && (op->flags & RENAME_NOREPLACE))
		return -EEXIST;
	if (moved == gone)
		return 0;
	if (gone && !swap) {
		rc = node_may_go(gone, S_ISDIR(moved->mode));
		if (rc < 0)
			return rc;
	}
	set[0] = (struct lossy_set){ .dir = op->node,
				     .name = op->name,
				     .node = swap ? gone_id : 0 };
	set[1] = (struct lossy_set){ .dir = op->other,
				     .name = op->name2,
				     .node = moved_id };
	rc = lossy_names_add(&fs->names, 2, set, false);
	if (rc < 0)
		return rc;
	if (gone && !swap)
		node_lost_name(gone, to_dir);
	if (S_ISDIR(moved->mode)) {
		from_dir->nlink--;
		to_dir->nlink++;
	}
	if (swap && S_ISDIR(gone->mode)) {
		to_dir->nlink--;
		from_dir->nlink++;
	}
	node_touch(from_dir);
	node_touch(to_dir);
	return 0;
}

static int do_fallocate(struct lossy_fs *fs, struct lossy_node *n,
			const struct lossy_op *op)
{
	const uint32_t punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	uint32_t how = op->flags & ~(uint32_t)FALLOC_FL_KEEP_SIZE;
	uint64_t end;
	int rc = 0;

	if (op->off > LOSSY_FILE_BYTES_MAX ||
	    op->size > LOSSY_FILE_BYTES_MAX - op->off)
		return -EFBIG;
	end = op->off + op->size;
	if (op->flags == punch || how == FALLOC_FL_ZERO_RANGE)
		rc = lossy_data_zero(&n->data, &fs->room, op->off, op->size);
	else if (how != 0)
		return -EOPNOTSUPP;
	if (rc < 0 || (op->flags & FALLOC_FL_KEEP_SIZE))
		return rc;
	if (end > n->data.size_now)
		rc = lossy_data_truncate(&n->data, &fs->room, end);
	return rc;
}

static int do_bytes(struct lossy_fs *fs, const struct lossy_op *op)
{
	struct lossy_node *n;
	int rc;

	rc = node_file(fs, op->node, &n);
	if (rc < 0)
		return rc;
	if (op->kind == LOSSY_WRITE) {
		rc = lossy_data_write(&n->data, &fs->room, op->data,
				      op->data_len, op->off);
		if (rc == 0 && (op->flags & LOSSY_SYNCED))
			lossy_data_sync_range(&n->data, &fs->room, op->off,
					      op->data_len);
	} else if (op->kind == LOSSY_TRUNCATE) {
		rc = lossy_data_truncate(&n->data, &fs->room, op->off);
	} else {
		rc = do_fallocate(fs, n, op);
	}
	if (rc == 0)
		node_touch(n);
	return rc;
}

static int do_attr(struct lossy_fs *fs, const struct lossy_op *op)
{
	struct lossy_node *n = node_find(fs, op->node);

	if (!n)
		return -ESTALE;
	n->mode = (n->mode & S_IFMT) | (op->mode & 07777);
	n->uid = op->uid;
	n->gid = op->gid;
	clock_gettime(CLOCK_REALTIME, &n->ctime);
	return 0;
}

/* Make the node's first name survive, and the names on the way to it. */
static void sync_birth(struct lossy_fs *fs, uint64_t id)
{
	struct lossy_change *c = lossy_names_birth(&fs->names, id);

	while (c) {
		uint64_t dir = c->set[0].dir;

		lossy_names_keep(&fs->names, c);
		c = lossy_names_birth(&fs->names, dir);
	}
}

static int do_sync(struct lossy_fs *fs, const struct lossy_op *op)
{
	struct lossy_node *n = node_find(fs, op->node);

	if (!n)
		return -ESTALE;
	if (op->flags & LOSSY_LIE)
		return 0;
	if (S_ISDIR(n->mode))
		lossy_names_sync(&fs->names, op->node);
	else
		lossy_data_sync(&n->data, &fs->room);
	if (!fs->options.strict_names)
		sync_birth(fs, op->node);
	return 0;
}

static int do_op(struct lossy_fs *fs, const struct lossy_op *op,
		 uint64_t *ret_node)
{
	switch (op->kind) {
	case LOSSY_CREATE:
		return do_create(fs, op, ret_node);
	case LOSSY_LINK:
		return do_link(fs, op);
	case LOSSY_UNLINK:
	case LOSSY_RMDIR:
		return do_remove(fs, op);
	case LOSSY_RENAME:
		return do_rename(fs, op);
	case LOSSY_WRITE:
	case LOSSY_TRUNCATE:
	case LOSSY_FALLOCATE:
		return do_bytes(fs, op);
	case LOSSY_ATTR:
		return do_attr(fs, op);
	case LOSSY_SYNC:
		return do_sync(fs, op);
	case LOSSY_KIND_COUNT:
		break;
	}
	return -EINVAL;
}

int lossy_do(struct lossy_fs *fs, const struct lossy_op *op, uint64_t *ret_node)
{
	int rc;

	if (fs->cut)
		return -EIO;
	if (fs->cut_in == 1) {
		fs->cut_in = 0;
		fs->cut = true;
		return -EIO;
	}
	rc = do_op(fs, op, ret_node);
	if (rc < 0)
		return rc;
	fs->count++;
	if (fs->cut_in > 0)
		fs->cut_in--;
	return 0;
}

/* --- questions --- */

int lossy_lookup(struct lossy_fs *fs, uint64_t dir, const char *name,
		 uint64_t *ret_node)
{
	struct lossy_node *d;
	uint64_t id;
	int rc = node_dir(fs, dir, &d);

	if (rc < 0)
		return rc;
	id = lossy_table_find(&d->dir.now, name);
	if (id == 0)
		return -ENOENT;
	*ret_node = id;
	return 0;
}

int lossy_stat(struct lossy_fs *fs, uint64_t node, struct stat *ret_st)
{
	const struct lossy_node *n = node_find(fs, node);

	if (!n)
		return -ESTALE;
	memset(ret_st, 0, sizeof(*ret_st));
	ret_st->st_ino = node;
	ret_st->st_mode = n->mode;
	ret_st->st_uid = n->uid;
	ret_st->st_gid = n->gid;
	ret_st->st_rdev = n->rdev;
	ret_st->st_nlink = n->nlink;
	ret_st->st_size = n->symlink ? (off_t)strlen(n->symlink)
				     : (off_t)n->data.size_now;
	ret_st->st_blocks =
		(blkcnt_t)(n->data.blocks_now * (LOSSY_BLOCK_BYTES / 512));
	ret_st->st_blksize = LOSSY_BLOCK_BYTES;
	ret_st->st_atim = n->atime;
	ret_st->st_mtim = n->mtime;
	ret_st->st_ctim = n->ctime;
	return 0;
}

int lossy_times(struct lossy_fs *fs, uint64_t node,
		const struct timespec *atime, const struct timespec *mtime)
{
	struct lossy_node *n = node_find(fs, node);

	if (!n)
		return -ESTALE;
	if (atime)
		n->atime = *atime;
	if (mtime)
		n->mtime = *mtime;
	clock_gettime(CLOCK_REALTIME, &n->ctime);
	return 0;
}

int lossy_read(struct lossy_fs *fs, uint64_t node, void *buf, size_t len,
	       uint64_t off, size_t *ret_len)
{
	struct lossy_node *n;
	int rc = node_file(fs, node, &n);

	if (rc < 0)
		return rc;
	*ret_len = lossy_data_read(&n->data, buf, len, off);
	return 0;
}

int lossy_readlink(struct lossy_fs *fs, uint64_t node, const char **ret_text)
{
	const struct lossy_node *n = node_find(fs, node);

	if (!n)
		return -ESTALE;
	if (!n->symlink)
		return -EINVAL;
	*ret_text = n->symlink;
	return 0;
}

int lossy_seek(struct lossy_fs *fs, uint64_t node, uint64_t off, bool hole,
	       uint64_t *ret_off)
{
	struct lossy_node *n;
	int rc = node_file(fs, node, &n);

	return rc < 0 ? rc : lossy_data_seek(&n->data, off, hole, ret_off);
}

int lossy_next(struct lossy_fs *fs, uint64_t dir, uint64_t cookie,
	       const struct lossy_name **ret_name)
{
	const struct lossy_name *name;
	struct lossy_node *d;
	int rc = node_dir(fs, dir, &d);

	if (rc < 0)
		return rc;
	name = d->dir.now.first;
	while (name && name->cookie <= cookie)
		name = name->next;
	*ret_name = name;
	return 0;
}

void lossy_room(const struct lossy_fs *fs, uint64_t *ret_blocks,
		uint64_t *ret_blocks_max)
{
	*ret_blocks = fs->room.blocks;
	*ret_blocks_max = fs->room.blocks_max;
}

uint64_t lossy_count(const struct lossy_fs *fs)
{
	return fs->count;
}

/* --- the power --- */

bool lossy_is_cut(const struct lossy_fs *fs)
{
	return fs->cut;
}

void lossy_cut(struct lossy_fs *fs, uint64_t n)
{
	fs->cut_in = n;
	if (n == 0)
		fs->cut = true;
}

/* Count the names again; what has none is gone for good. */
static void settle_links(struct lossy_fs *fs)
{
	for (uint64_t i = LOSSY_ROOT; i < fs->node_next; i++)
		fs->nodes[i]->nlink = i == LOSSY_ROOT ? 2 : 0;
	for (uint64_t i = LOSSY_ROOT; i < fs->node_next; i++) {
		struct lossy_node *dir = fs->nodes[i];

		for (const struct lossy_name *name = dir->dir.now.first; name;
		     name = name->next) {
			struct lossy_node *n = fs->nodes[name->node];

			n->nlink += S_ISDIR(n->mode) ? 2 : 1;
			if (S_ISDIR(n->mode))
				dir->nlink++;
		}
	}
}

void lossy_reboot(struct lossy_fs *fs, uint64_t seed)
{
	struct lossy_coin coin = { .state = seed };
	unsigned names = 0, data = 0;

	/* Names without bytes and bytes without names come with the seeds. */
	if (seed == 1) {
		names = data = 4;
	} else if (seed > 1) {
		names = (unsigned)(lossy_coin_next(&coin) % 5);
		data = (unsigned)(lossy_coin_next(&coin) % 5);
	}
	lossy_names_draw(&fs->names, &coin, names);
	for (uint64_t i = LOSSY_ROOT; i < fs->node_next; i++) {
		struct lossy_node *n = fs->nodes[i];
		int rc = lossy_dir_settle(&n->dir);

		CHECK(rc == 0); /* out of memory: the rehearsal is over */
		lossy_data_draw(&n->data, &fs->room, &coin, data);
	}
	settle_links(fs);
	fs->cut = false;
	fs->cut_in = 0;
}
