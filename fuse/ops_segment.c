/*
 * ops_segment.c - the ioctls of clients that save through segments: where to
 * get one, make it a file, wait until that is durable (ckptfs_ioctl.h).
 *
 * The kernel checks nothing of an ioctl but that the directory could be opened,
 * so the permissions that open(2) would need are checked here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/caller.h"
#include "fuse/fs.h"
#include "fuse/server.h"
#include "fuse/teller.h"
#include "fuse/waiting.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/shared/shared.h"

/* Who asks, with all his groups. */
struct caller {
	uid_t uid;
	gid_t gid;
	int group_count;
	gid_t *groups;
};

static void scope_caller(struct caller *c)
{
	free(c->groups);
}

static int caller_of(fuse_req_t req, struct caller *ret)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	int n;

	ret->uid = c->uid;
	ret->gid = c->gid;
	/* Of a process in another pid namespace they cannot be read: none. */
	n = fuse_req_getgroups(req, 0, NULL);
	if (n <= 0)
		return 0;
	ret->groups = calloc((size_t)n, sizeof(*ret->groups));
	if (!ret->groups)
		return -ENOMEM;
	ret->group_count = fuse_req_getgroups(req, n, ret->groups);
	if (ret->group_count > n)
		ret->group_count = n;
	return 0;
}

static bool is_in_group(const struct caller *c, gid_t gid)
{
	if (c->gid == gid)
		return true;
	for (int i = 0; i < c->group_count; i++)
		if (c->groups[i] == gid)
			return true;
	return false;
}

/* want: bits of rwx, as of S_IRWXO. */
static bool may(void *arg, const struct attr *a, uint32_t want)
{
	const struct caller *c = arg;
	unsigned shift = 0;

	if (c->uid == 0)
		return true;
	if (c->uid == a->uid)
		shift = 6;
	else if (is_in_group(c, a->gid))
		shift = 3;
	return ((a->mode >> shift) & want) == want;
}

bool fs_is_in_group(fuse_req_t req, gid_t gid)
{
	SCOPED(scope_caller) struct caller c = { 0 };

	return fuse_req_ctx(req)->uid == 0 ||
	       (caller_of(req, &c) == 0 && is_in_group(&c, gid));
}

int fs_may(fuse_req_t req, struct inode *in, uint32_t want)
{
	SCOPED(scope_caller) struct caller c = { 0 };
	struct attr a = inode_attr(in);
	int rc = caller_of(req, &c);

	if (rc < 0)
		return rc;
	return may(&c, &a, want) ? 0 : -EACCES;
}

/* --- with shared=DIR the name is made there, and the file is pending -------
 */

struct shared_commit {
	fuse_req_t req;
	struct caller *caller;
	struct shared_caller as;
	fuse_ino_t dir;
	const char *name;
	struct names_new n;
	struct shared_entry entry; /* with a look-up, while it is committed */
	bool made;
};

static struct attr attr_of(const struct stat *sb)
{
	return (struct attr){ .mode = sb->st_mode,
			      .uid = sb->st_uid,
			      .gid = sb->st_gid };
}

/* What has the name, as open(2) with O_TRUNC would have it. */
static int take_over(struct shared_commit *c)
{
	struct shared *s = fs_of(c->req)->shared;
	const struct stat *sb = &c->entry.stat;
	const struct attr a = attr_of(sb);
	int fd, backing, rc;

	if (!S_ISREG(a.mode))
		return S_ISDIR(a.mode)   ? -EISDIR
		       : S_ISLNK(a.mode) ? -ELOOP
					 : -EINVAL;
	if (!may(c->caller, &a, 02))
		return -EACCES;
	if (!shared_is_node(c->entry.id))
		return shared_change_begin(s, c->entry.id, O_WRONLY | O_TRUNC,
					   &c->n);
	/* Its bytes go to DIR itself: the client writes them. */
	if (sb->st_nlink > 1)
		return -EOPNOTSUPP;
	rc = shared_open_file(s, &c->as, c->entry.id, O_WRONLY | O_TRUNC, &c->n,
			      &fd, &backing);
	if (rc == 0)
		shared_close(s, c->entry.id, fd);
	return rc == 0 ? -EOPNOTSUPP : rc;
}

static int find_shared(void *arg, struct inode **ret_inode, bool *ret_made)
{
	struct shared_commit *c = arg;
	struct shared *s = fs_of(c->req)->shared;
	struct fs_inode i;
	int rc = shared_create(s, &c->as, c->dir, c->name, &c->n, &c->entry,
			       ret_inode);

	c->made = *ret_made = rc == 0;
	if (rc != -EEXIST)
		return rc;
	rc = shared_lookup(s, c->dir, c->name, c->n.pid, &c->entry);
	if (rc < 0)
		return rc == -ENOENT ? -ESTALE : rc;
	rc = take_over(c);
	if (rc == 0) {
		rc = fs_get(c->req, c->entry.id, &i);
		if (rc < 0)
			shared_change_end(s, c->entry.id);
		else
			*ret_inode = i.in;
	}
	if (rc < 0)
		fs_shared_forget(c->req, c->entry.id, 1);
	return rc;
}

static void ended_shared(void *arg, struct inode *in, int rc)
{
	struct shared_commit *c = arg;
	struct shared *s = fs_of(c->req)->shared;

	shared_change_end(s, in->ino);
	if (rc < 0 && rc != -ESTALE && c->made)
		(void)shared_unlink(s, &c->as, c->dir, c->name, false);
	fs_shared_forget(c->req, c->entry.id, 1);
}

/* --- where to get one, and what becomes of it ------------------------------
 */

static int directory_attr(fuse_req_t req, fuse_ino_t dir, struct attr *ret)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct stat sb;
	int rc;

	if (fs_of(req)->shared) {
		rc = shared_stat(fs_of(req)->shared, dir, &sb);
		if (rc == 0)
			*ret = attr_of(&sb);
		return rc;
	}
	rc = fs_get(req, dir, &i);
	if (rc == 0)
		*ret = inode_attr(i.in);
	return rc;
}

/* He could open the directory; may he look up a name in it? */
static int may_search(fuse_req_t req, fuse_ino_t dir, struct caller *c)
{
	struct attr a;
	int rc = directory_attr(req, dir, &a);

	if (rc < 0)
		return rc;
	if (!S_ISDIR(a.mode))
		return -ENOTDIR;
	return may(c, &a, 01) ? 0 : -EACCES;
}

static int do_commit(fuse_req_t req, fuse_ino_t dir, struct ckptfs_commit *q,
		     bool *ret_replaced)
{
	SCOPED(scope_caller) struct caller caller = { 0 };
	struct fs *fs = fs_of(req);
	struct writer writer;
	struct segment_commit c = {
		.id = q->id,
		.generation = q->generation,
		.size_bytes = q->size_bytes,
		.parent = dir,
		.name = q->name,
		.mode = q->mode,
		.may = may,
		.arg = &caller,
		.writer = &writer,
	};
	struct shared_commit shared = {
		.req = req, .caller = &caller, .dir = dir, .name = q->name
	};
	struct segment_committed done = { 0 };
	pid_t tid = caller_in_proc(fs->callers, fuse_req_ctx(req)->pid);
	struct waiting w;
	int rc;

	if (memchr(q->name, 0, sizeof(q->name)) == NULL)
		return -EINVAL;
	if (fs->read_only)
		return -EROFS;
	rc = caller_of(req, &caller);
	if (rc == 0)
		rc = may_search(req, dir, &caller);
	if (rc < 0)
		return rc;
	fs_writer(req, q->name, &writer);
	c.uid = caller.uid;
	c.gid = caller.gid;
	if (fs->shared && shared_is_direct(fs->shared, dir, q->name))
		return -EOPNOTSUPP;
	if (fs->shared) {
		shared.as = (struct shared_caller){ caller.uid, caller.gid,
						    caller.groups,
						    (size_t)caller.group_count,
						    tid };
		shared.n =
			(struct names_new){ .mode = S_IFREG | (q->mode & 0777),
					    .uid = caller.uid,
					    .gid = caller.gid,
					    .pid = tid,
					    .writer = &writer };
		c.find = find_shared;
		c.ended = ended_shared;
		c.find_arg = &shared;
	}
	if (fs->shared) /* DIR may leave it waiting */
		waiting_begin(&w, req);
	rc = segment_commit(&fs->store->segments, &c, &done);
	if (fs->shared)
		waiting_end(&w);
	if (rc < 0)
		return rc;
	q->ino = done.ino;
	q->mtime_ns = done.mtime_ns;
	*ret_replaced = done.replaced;
	return 0;
}

/* What the close of such a file would say; it is there, whatever that is. */
static int judge(fuse_req_t req, uint64_t ino)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct waiting w;
	int rc = fs_get(req, ino, &i);

	if (rc < 0) /* others have deleted it meanwhile */
		return 0;
	waiting_begin(&w, req);
	rc = guard_committed(i.st->guard, i.in);
	waiting_end(&w);
	return rc;
}

/* Of an inode that the caller can have nothing to do with there is none. */
static int do_wait(fuse_req_t req, uint64_t ino)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(req, ino, &i);

	if (rc < 0)
		return rc;
	if (!fs_is_own(req, i.in) && fs_may(req, i.in, 04) < 0 &&
	    fs_may(req, i.in, 02) < 0)
		return -ENOENT;
	rc = inode_load_file(i.st->inodes, i.in);
	if (rc == 0)
		rc = file_sync(&i.st->files, i.in);
	return inode_attr(i.in).nlink == 0 ? -ENOENT : rc;
}

bool op_segment_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd,
		      const void *in_buf, size_t in_size, size_t out_size)
{
	struct fs *fs = fs_of(req);

	if (cmd == CKPTFS_IOC_SEGMENTS &&
	    out_size == sizeof(struct ckptfs_segments)) {
		struct ckptfs_segments where;
		int rc = fs->read_only ? -EROFS : fs->server ? 0 : -EOPNOTSUPP;

		if (rc == 0)
			server_address(fs->server, &where);
		fs_reply_ioctl(req, rc, &where, sizeof(where));
		return true;
	}
	if (cmd == CKPTFS_IOC_COMMIT &&
	    in_size == sizeof(struct ckptfs_commit)) {
		struct ckptfs_commit q;
		bool replaced;
		int rc;

		memcpy(&q, in_buf, sizeof(q));
		rc = do_commit(req, ino, &q, &replaced);
		if (rc == 0) {
			q.refused = judge(req, q.ino) == -EUCLEAN;
			rc = teller_committed(fs->teller, req, ino, &q,
					      replaced);
		}
		if (rc < 0)
			fuse_reply_err(req, -rc);
		return true;
	}
	if (cmd == CKPTFS_IOC_WAIT && in_size == sizeof(struct ckptfs_wait)) {
		struct ckptfs_wait q;

		memcpy(&q, in_buf, sizeof(q));
		fs_reply_ioctl(req, do_wait(req, q.ino), NULL, 0);
		return true;
	}
	return false;
}
