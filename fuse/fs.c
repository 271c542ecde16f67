/* fs.c - what several files of operations need: see fs.h. */
#include "fuse/fs.h"

#include <string.h>

#include "fuse/again.h"
#include "fuse/caller.h"
#include "fuse/waiting.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/shared/shared.h"

int fs_get(fuse_req_t req, fuse_ino_t ino, struct fs_inode *ret)
{
	ret->st = store_of(req);
	return inode_get(ret->st->inodes, ino, &ret->in);
}

void fs_put(struct fs_inode *i)
{
	if (i->in)
		inode_put(i->st->inodes, i->in, 1);
}

void fs_reply_ioctl(fuse_req_t req, int rc, const void *data, size_t len)
{
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_ioctl(req, 0, data, len);
}

int fs_entry(struct store *st, struct inode *in, struct fuse_entry_param *e)
{
	bool writers, links;
	int rc;

	memset(e, 0, sizeof(*e));
	rc = inode_stat(st->inodes, in, &e->attr);
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		writers = in->file && in->file->state.writers > 0;
		links = in->attr.nlink > 1 && !S_ISDIR(in->attr.mode);
	}
	e->ino = in->ino;
	/* Numbers are never used again; the kernel's own root has 0. */
	e->generation = in->ino != ROOT_INO;
	/* A writer's mapping changes times without telling anybody. */
	e->attr_timeout = writers ? 0 : FS_TIMEOUT_S;
	e->entry_timeout = links ? 0 : FS_TIMEOUT_S;
	return 0;
}

enum file_way fs_way(fuse_req_t req, fuse_ino_t ino, int *ret_rc)
{
	*ret_rc = 0;
	if (fs_of(req)->is_shared)
		return FILE_BY_NAME;
	return again_way(fs_of(req)->again, fuse_req_ctx(req)->pid, ino,
			 ret_rc);
}

void fs_way_ends(fuse_req_t req, fuse_ino_t ino, enum file_way way,
		 bool empties, int rc)
{
	if (rc == -ESTALE && way == FILE_BY_ANY)
		again_told(fs_of(req)->again, fuse_req_ctx(req)->pid, ino,
			   empties);
}

bool fs_renumber(fuse_req_t req, struct inode *in)
{
	struct again *a = fs_of(req)->again;
	pid_t tid = fuse_req_ctx(req)->pid;
	struct waiting w;
	bool empties;
	mode_t mode;
	int rc;

	if (!again_is_told(a, tid))
		return false;
	mode = in ? inode_attr(in).mode : 0;
	/* On its way to the file it walks through these. */
	if (S_ISDIR(mode) || S_ISLNK(mode))
		return false;
	if (!again_looks_up(a, tid, in ? in->ino : 0, &empties))
		return false;
	waiting_begin(&w, req);
	rc = file_renumber(&store_of(req)->files, in, empties);
	waiting_end(&w);
	if (rc < 0)
		again_failed(a, tid, in->ino, rc);
	else if (inode_attr(in).nlink > 0) /* nobody reads it any more */
		again_told(a, tid, in->ino, empties);
	return rc == 0;
}

void fs_forget_pages(struct fs *fs, uint64_t ino, off_t from, off_t len)
{
	if (atomic_fetch_add(&fs->forgetting, 1) < fs->threads / 2)
		(void)fuse_lowlevel_notify_inval_inode(fs->se, ino, from, len);
	atomic_fetch_sub(&fs->forgetting, 1);
}

void fs_writer(fuse_req_t req, const char *name, struct writer *ret)
{
	bool scheduler;

	caller_find(fs_of(req)->callers, fuse_req_ctx(req)->pid, ret,
		    &scheduler);
	writer_add_name(ret, scheduler, name);
}

bool fs_is_own(fuse_req_t req, struct inode *in)
{
	uid_t uid = fuse_req_ctx(req)->uid;

	return uid == 0 || uid == inode_attr(in).uid;
}

void fs_forget(struct store *st, fuse_ino_t ino, uint64_t nlookup)
{
	struct inode *in = inode_peek(st->inodes, ino);

	if (!in)
		return;
	inode_forget(st->inodes, in, nlookup);
	file_forgotten(&st->files, in);
	/* One more for the reference that inode_peek() took. */
	inode_put(st->inodes, in, nlookup + 1);
}

void fs_shared_forget(fuse_req_t req, uint64_t id, uint64_t count)
{
	if (id == ROOT_INO)
		return;
	if (shared_is_node(id))
		shared_forget(fs_of(req)->shared, id, count);
	else
		fs_forget(store_of(req), id, count);
}
