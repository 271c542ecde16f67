/*
 * ops_shared_xattr.c - extended attributes with shared=DIR: they are DIR's, so
 * that all nodes have them, but for those that are worked out. Rules in fs.h.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "fuse/fs.h"
#include "fuse/waiting.h"
#include "store/base/scope.h"
#include "store/guard/guard.h"
#include "store/shared/shared.h"

/* DIR's file as a path; the caller closes *ret_fd. */
static int path_of(fuse_req_t req, fuse_ino_t ino, int *ret_fd,
		   char path[SHARED_PATH_BYTES])
{
	return shared_path(fs_of(req)->shared, ino, ret_fd, path);
}

static void reply_value(fuse_req_t req, ssize_t n, const void *value,
			size_t size)
{
	if (n < 0)
		fuse_reply_err(req, errno);
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)n);
	else
		fuse_reply_buf(req, value, (size_t)n);
}

/* What is told of a file or folder of DIR, and of none here. */
static int dir_xattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		     struct bytes *out)
{
	struct shared_where where;
	struct stat sb;
	const char *text = NULL;
	int rc = shared_stat(fs_of(req)->shared, ino, &sb);

	if (rc == 0 && fs_is_step_xattr(name))
		return fs_step_xattr(req, ino, sb.st_uid, name, out);
	if (rc == 0 && S_ISREG(sb.st_mode))
		rc = shared_where(fs_of(req)->shared, ino, &where);
	else if (rc == 0)
		rc = -ENODATA;
	if (rc < 0)
		return rc;
	if (strcmp(name, "state") == 0)
		text = shared_state(where.is);
	else if (strcmp(name, "physical_bytes") == 0)
		text = "0"; /* here */
	if (!text)
		return -ENODATA;
	bytes_put(out, text, strlen(text));
	return 0;
}

/* plain, kept, pending, "pending on NODE" or "lost on NODE". */
static int where_xattr(fuse_req_t req, fuse_ino_t ino, struct bytes *out)
{
	char text[sizeof("pending on ") + SHARED_NODE_MAX];
	struct shared_where where;
	struct stat sb;
	int rc = shared_stat(fs_of(req)->shared, ino, &sb);

	if (rc == 0 && !S_ISREG(sb.st_mode))
		rc = -ENODATA;
	if (rc == 0)
		rc = shared_where(fs_of(req)->shared, ino, &where);
	if (rc < 0)
		return rc;
	(void)snprintf(text, sizeof(text), "%s%s%s", shared_word(where.is),
		       where.node[0] ? " on " : "", where.node);
	bytes_put(out, text, strlen(text));
	return 0;
}

static void get_ours(fuse_req_t req, fuse_ino_t ino, const char *name,
		     size_t size)
{
	SCOPED(bytes_release) struct bytes ours = { 0 };
	const char *last = name + strlen(FS_OUR_XATTR);
	struct waiting w;
	int rc;

	waiting_begin(&w, req);
	if (strcmp(last, "shared") == 0)
		rc = where_xattr(req, ino, &ours);
	else if (shared_is_node(ino) || fs_is_step_xattr(last))
		rc = dir_xattr(req, ino, last, &ours);
	else
		rc = fs_our_xattr(req, ino, last, &ours);
	waiting_end(&w);
	if (rc == 0 && ours.failed)
		rc = -ENOMEM;
	fs_reply_xattr(req, rc, ours.data, ours.len, size);
}

void op_shared_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
			size_t size)
{
	SCOPED(scope_close) int fd = -1;
	SCOPED(scope_free) char *value = NULL;
	char path[SHARED_PATH_BYTES];
	int rc;

	if (fs_is_our_xattr(name)) {
		get_ours(req, ino, name, size);
		return;
	}
	rc = path_of(req, ino, &fd, path);
	if (rc == 0) {
		value = malloc(size + 1);
		rc = value ? 0 : -ENOMEM;
	}
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		reply_value(req, getxattr(path, name, value, size), value,
			    size);
}

void op_shared_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
			const char *value, size_t size, int flags)
{
	SCOPED(scope_close) int fd = -1;
	char path[SHARED_PATH_BYTES];
	int rc = fs_may_set_xattr(name, value, size);

	if (rc == 0)
		rc = path_of(req, ino, &fd, path);
	if (rc == 0 && setxattr(path, name, value, size, flags) < 0)
		rc = -errno;
	fuse_reply_err(req, -rc);
}

void op_shared_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	SCOPED(scope_close) int fd = -1;
	char path[SHARED_PATH_BYTES];
	int rc = fs_is_our_xattr(name) ? -EPERM : path_of(req, ino, &fd, path);

	if (rc == 0 && removexattr(path, name) < 0)
		rc = -errno;
	fuse_reply_err(req, -rc);
}

void op_shared_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	SCOPED(scope_close) int fd = -1;
	char names[XATTR_LIST_MAX], path[SHARED_PATH_BYTES];
	const struct fuse_ctx *c = fuse_req_ctx(req);
	size_t kept = 0;
	ssize_t n;
	int rc = path_of(req, ino, &fd, path);

	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	n = listxattr(path, names, sizeof(names));
	for (ssize_t at = 0; at < n;) {
		size_t len = strlen(names + at) + 1;

		if (!fs_is_our_xattr(names + at) &&
		    (strncmp(names + at, "trusted.", 8) != 0 || c->uid == 0)) {
			memmove(names + kept, names + at, len);
			kept += len;
		}
		at += (ssize_t)len;
	}
	if (n >= 0 && size > 0 && kept > size)
		fuse_reply_err(req, ERANGE);
	else
		reply_value(req, n < 0 ? n : (ssize_t)kept, names, size);
}
