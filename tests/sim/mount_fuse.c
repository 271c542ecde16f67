/*
 * mount_fuse.c - libfuse, as the operations see it: what they answer is kept in
 * the request. And what of fuse/ is not about files.
 */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "fuse/caller.h"
#include "fuse/closer.h"
#include "fuse/loop.h"
#include "fuse/opens.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "tests/sim/mount_private.h"
#include "tests/sim/sim.h"

/* --- requests, and their answers ------------------------------------------ */

static void answer(fuse_req_t req, int rc)
{
	CHECK(!req->answered);
	req->answered = true;
	req->rc = rc;
}

int fuse_reply_err(fuse_req_t req, int err)
{
	answer(req, -err);
	return 0;
}

void fuse_reply_none(fuse_req_t req)
{
	answer(req, 0);
}

int fuse_reply_entry(fuse_req_t req, const struct fuse_entry_param *e)
{
	answer(req, 0);
	req->entry = *e;
	return 0;
}

int fuse_reply_create(fuse_req_t req, const struct fuse_entry_param *e,
		      const struct fuse_file_info *fi)
{
	answer(req, 0);
	req->entry = *e;
	req->file = *fi;
	return 0;
}

int fuse_reply_open(fuse_req_t req, const struct fuse_file_info *fi)
{
	answer(req, 0);
	req->file = *fi;
	return 0;
}

int fuse_reply_attr(fuse_req_t req, const struct stat *attr, double timeout)
{
	(void)timeout;
	answer(req, 0);
	req->stat = *attr;
	return 0;
}

int fuse_reply_readlink(fuse_req_t req, const char *link)
{
	(void)link;
	answer(req, 0);
	return 0;
}

int fuse_reply_write(fuse_req_t req, size_t count)
{
	answer(req, 0);
	req->len = count;
	return 0;
}

int fuse_reply_buf(fuse_req_t req, const char *buf, size_t size)
{
	answer(req, 0);
	CHECK(size <= req->size);
	memcpy(req->buf, buf, size);
	req->len = size;
	return 0;
}

int fuse_reply_iov(fuse_req_t req, const struct iovec *iov, int count)
{
	answer(req, 0);
	for (int i = 0; i < count; i++) {
		sim_point("copy", "read"); /* its answer takes a while */
		CHECK(req->len + iov[i].iov_len <= req->size);
		memcpy((uint8_t *)req->buf + req->len, iov[i].iov_base,
		       iov[i].iov_len);
		req->len += iov[i].iov_len;
	}
	return 0;
}

int fuse_reply_statfs(fuse_req_t req, const struct statvfs *v)
{
	(void)v;
	answer(req, 0);
	return 0;
}

int fuse_reply_xattr(fuse_req_t req, size_t count)
{
	(void)count;
	answer(req, 0);
	return 0;
}

int fuse_reply_lock(fuse_req_t req, const struct flock *lock)
{
	(void)lock;
	answer(req, 0);
	return 0;
}

int fuse_reply_lseek(fuse_req_t req, off_t off)
{
	(void)off;
	answer(req, 0);
	return 0;
}

int fuse_reply_ioctl(fuse_req_t req, int result, const void *buf, size_t size)
{
	(void)result;
	(void)buf;
	(void)size;
	answer(req, 0);
	return 0;
}

/* A name and a NUL; what is listed is all that matters here. */
static size_t add_name(char *buf, size_t size, const char *name)
{
	size_t len = strlen(name) + 1;

	if (len <= size)
		memcpy(buf, name, len);
	return len;
}

size_t fuse_add_direntry(fuse_req_t req, char *buf, size_t size,
			 const char *name, const struct stat *sb, off_t off)
{
	(void)req;
	(void)sb;
	(void)off;
	return add_name(buf, size, name);
}

size_t fuse_add_direntry_plus(fuse_req_t req, char *buf, size_t size,
			      const char *name,
			      const struct fuse_entry_param *e, off_t off)
{
	(void)req;
	(void)e;
	(void)off;
	return add_name(buf, size, name);
}

void *fuse_req_userdata(fuse_req_t req)
{
	return req->fs;
}

const struct fuse_ctx *fuse_req_ctx(fuse_req_t req)
{
	return &req->ctx;
}

int fuse_req_getgroups(fuse_req_t req, int size, gid_t list[])
{
	(void)req;
	(void)size;
	(void)list;
	return 0;
}

void fuse_req_interrupt_func(fuse_req_t req, fuse_interrupt_func_t func,
			     void *data)
{
	(void)req;
	(void)func;
	(void)data;
}

/* Each call has a thread of its own here, to wait in. */
struct put_off *loop_may_put_off(void)
{
	return NULL;
}

void loop_put_off(fuse_req_t req)
{
	(void)req;
	CHECK(!"it may be put off");
}

int fuse_lowlevel_notify_inval_inode(struct fuse_session *se, fuse_ino_t ino,
				     off_t off, off_t len)
{
	(void)se;
	(void)ino;
	(void)off;
	(void)len;
	return 0;
}

/* --- what of fuse/ is not about files ------------------------------------- */

pid_t caller_in_proc(const struct callers *c, pid_t pid)
{
	(void)c;
	return pid;
}

void caller_find(struct callers *c, pid_t pid, struct writer *ret,
		 bool *ret_scheduler)
{
	(void)c;
	(void)pid;
	*ret_scheduler = false;
	memset(ret, 0, sizeof(*ret));
}

bool caller_is_to_end(const struct callers *c, pid_t pid, bool heard)
{
	(void)heard;
	(void)c;
	(void)pid;
	return false;
}

bool caller_is_admin(const struct callers *c, pid_t pid, uid_t uid)
{
	(void)c;
	(void)pid;
	return uid == 0;
}

bool closer_goes_on(const struct callers *c, pid_t pid,
		    const struct closer_file *file)
{
	(void)c;
	(void)pid;
	(void)file;
	return false;
}

bool fs_is_in_group(fuse_req_t req, gid_t gid)
{
	(void)req;
	(void)gid;
	return true; /* who asks is root */
}

void opens_count(struct opens *r, uid_t uid, uint32_t rank,
		 enum opens_whose whose, uint64_t size_bytes)
{
	(void)r;
	(void)uid;
	(void)rank;
	(void)whose;
	(void)size_bytes;
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	      struct fuse_file_info *fi, unsigned flags, const void *in_buf,
	      size_t in_size, size_t out_size)
{
	(void)ino;
	(void)cmd;
	(void)arg;
	(void)fi;
	(void)flags;
	(void)in_buf;
	(void)in_size;
	(void)out_size;
	fuse_reply_err(req, ENOTTY);
}
