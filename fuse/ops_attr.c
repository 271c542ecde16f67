/* ops_attr.c - attributes, ordinary and extended; rules in fs.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "fuse/caller.h"
#include "fuse/fs.h"
#include "fuse/waiting.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/names/names.h"

/* The longest value of ours, with its end. */
#define OUR_XATTR_BYTES (WRITER_JOB_MAX + 1)

/* Reply with the attributes, or with the error when rc is one. */
static void reply_attr(fuse_req_t req, int rc, struct inode *in)
{
	struct fuse_entry_param e;

	if (rc == 0)
		rc = fs_entry(store_of(req), in, &e);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_attr(req, &e.attr, e.attr_timeout);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(req, ino, &i);

	(void)fi;
	reply_attr(req, rc, i.in);
}

/*
 * A new owner of anything but a directory, or a new size by who is not root,
 * takes the setuid bit and, where it means the same, the setgid bit; that of
 * a file which its group cannot execute goes only when the caller is not of
 * the group (the kernel's setattr_should_drop_suidgid()).
 */
static uint32_t without_suid(fuse_req_t req, uint32_t mode, gid_t gid)
{
	mode &= ~(uint32_t)S_ISUID;
	if ((mode & S_ISGID) && ((mode & S_IXGRP) || !fs_is_in_group(req, gid)))
		mode &= ~(uint32_t)S_ISGID;
	return mode;
}

/* With none of these it is chown(path, -1, -1), which takes those bits too. */
#define SET_ANYTHING                                                      \
	(FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID |     \
	 FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | \
	 FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)

/* What the kernel asks for, in our words. */
static unsigned set_of(fuse_req_t req, struct inode *in, const struct stat *s,
		       int to_set, struct attr *to)
{
	struct attr now = inode_attr(in);
	unsigned valid = 0;

	to->mode = to_set & FUSE_SET_ATTR_MODE ? s->st_mode : now.mode;
	to->uid = s->st_uid;
	to->gid = s->st_gid;
	if (to_set & FUSE_SET_ATTR_MODE)
		valid |= SET_MODE;
	if (to_set & FUSE_SET_ATTR_UID)
		valid |= SET_UID;
	if (to_set & FUSE_SET_ATTR_GID)
		valid |= SET_GID;
	if (!S_ISDIR(now.mode) && !(valid & SET_MODE) &&
	    ((valid & (SET_UID | SET_GID)) || !(to_set & SET_ANYTHING) ||
	     ((to_set & FUSE_SET_ATTR_SIZE) && fuse_req_ctx(req)->uid != 0))) {
		to->mode = without_suid(req, now.mode, now.gid);
		if (to->mode != now.mode)
			valid |= SET_MODE;
	}
	if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW)) {
		to->atime_ns = to_set & FUSE_SET_ATTR_ATIME_NOW
				       ? wall_ns()
				       : io_ns(&s->st_atim);
		valid |= SET_ATIME;
	}
	if (to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)) {
		to->mtime_ns = to_set & FUSE_SET_ATTR_MTIME_NOW
				       ? wall_ns()
				       : io_ns(&s->st_mtim);
		valid |= SET_MTIME;
	}
	return valid;
}

static int cut_path(fuse_req_t req, const struct fs_inode *i, uint64_t size)
{
	int rc;
	enum file_way way = fs_way(req, i->in->ino, &rc);

	if (rc == 0)
		rc = file_truncate_path(&i->st->files, i->in, size, way);
	fs_way_ends(req, i->in->ino, way, false, rc);
	return rc;
}

int fs_setattr(fuse_req_t req, const struct fs_inode *i, const struct stat *s,
	       int to_set, bool by_handle, unsigned *ret_valid,
	       struct attr *ret_to)
{
	struct attr to = { 0 };
	unsigned valid = set_of(req, i->in, s, to_set, &to);
	bool cuts = (to_set & FUSE_SET_ATTR_SIZE) != 0;
	int rc = 0;

	*ret_valid = valid;
	*ret_to = to;

	if (cuts && by_handle)
		rc = file_truncate(&i->st->files, i->in, (uint64_t)s->st_size);
	else if (cuts)
		rc = cut_path(req, i, (uint64_t)s->st_size);
	if (rc == 0 && (valid & SET_MTIME) && S_ISREG(inode_attr(i->in).mode)) {
		rc = inode_load_file(i->st->inodes, i->in);
		file_set_times(&i->st->files, i->in, valid, &to);
	}
	if (rc == 0 && valid)
		rc = names_setattr(i->st->names, i->in, valid, &to);
	return rc;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct store *st = store_of(req);
	int rc = fs_get(req, ino, &i);
	struct waiting w;
	unsigned valid;
	struct attr to;

	waiting_begin(&w, req);
	if (rc == 0)
		rc = fs_setattr(req, &i, attr, to_set, fi != NULL, &valid, &to);
	waiting_end(&w);
	reply_attr(req, rc, i.in);
	if (to_set & FUSE_SET_ATTR_SIZE)
		names_tell_moved(st->names);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(req, ino, &i);
	const char *target = rc == 0 ? inode_attr(i.in).target : NULL;

	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_readlink(req, target ? target : "");
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct store *st = store_of(req);
	struct stages_figures f;
	struct statvfs v;
	uint64_t staged;

	(void)ino;
	if (fstatvfs(st->dirfd, &v) < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	/* What is staged in memory will need its room on the disk. */
	stages_figures(&st->stages, &f);
	staged = f.memory_bytes / (v.f_frsize ? v.f_frsize : 1);
	v.f_bavail = v.f_bavail > staged ? v.f_bavail - staged : 0;
	v.f_bfree = v.f_bfree > staged ? v.f_bfree - staged : 0;
	v.f_files = store_counter(st, META_FILES) + v.f_ffree;
	v.f_namemax = STORE_NAME_MAX;
	fuse_reply_statfs(req, &v);
}

/* --- extended attributes -------------------------------------------------- */

static int add_share(void *sum, uint64_t offset, const struct chunk_rec *k)
{
	(void)offset;
	if (k && k->refs > 0)
		*(double *)sum += (double)k->len / k->refs;
	return 0;
}

/* The file's fair share of its chunks: what it would cost alone, divided. */
static int physical_bytes(struct store *st, const struct content *c,
			  uint64_t *ret)
{
	double sum = 0;
	int rc = 0;

	if (c->kind == CONTENT_SMALL) {
		*ret = c->size_bytes;
		return 0;
	}
	for (size_t i = 0; rc == 0 && i < c->extent_count; i++)
		rc = extent_each_chunk(st->kv, &c->extents[i], add_share, &sum);
	if (rc == 0)
		*ret = (uint64_t)sum + (sum > (double)(uint64_t)sum);
	return rc;
}

/*
 * A file that is still open may have been drained as it stands: then its size
 * and time are those that were committed. (What a mapping changes without
 * a time is drained at the last close in any case.)
 */
static bool is_durable_locked(const struct file *f, const struct stat *now)
{
	const struct content *c = f->content ? &f->content->c : NULL;

	if (!file_is_dirty(f))
		return c != NULL;
	return c && c->size_bytes == (uint64_t)now->st_size &&
	       c->mtime_ns == io_ns(&now->st_mtim);
}

int fs_file_state(const struct fs_inode *i, bool own, struct fs_state *ret)
{
	struct inode *in = i->in;
	const struct content *c;
	struct stat now = { 0 };
	int rc = inode_load_file(i->st->inodes, in);

	memset(ret, 0, sizeof(*ret));
	if (rc == 0)
		rc = inode_stat(i->st->inodes, in, &now);
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		ret->error = in->file->sticky_error;
		ret->word = ret->error < 0                      ? "failed"
			    : is_durable_locked(in->file, &now) ? "durable"
								: "staged";
		ret->content = in->file->content;
		if (ret->content)
			atomic_fetch_add(&ret->content->refs, 1);
	}
	if (!ret->content)
		return 0;
	c = &ret->content->c;
	for (size_t n = 0; n < sizeof(c->digest); n++)
		(void)sprintf(ret->digest + 2 * n, "%02x", c->digest[n]);
	ret->physical_bytes = c->data_bytes;
	ret->shares_shown = own || i->st->options.share_all;
	return ret->shares_shown
		       ? physical_bytes(i->st, c, &ret->physical_bytes)
		       : 0;
}

void fs_state_release(struct fs_state *s)
{
	content_ref_put(s->content);
}

/* One of those that begin with writer_; -ENODATA: not known. */
static int writer_xattr(struct store *st, struct inode *in, const char *name,
			char *text, size_t size)
{
	struct writer w;
	bool known;
	int rc = names_get_writer(st->names, in->ino, &w);

	if (rc < 0)
		return rc;
	known = w.source != WRITER_NOWHERE;
	if (known && strcmp(name, "rank") == 0)
		(void)snprintf(text, size, "%u", w.rank);
	else if (known && strcmp(name, "rank_kind") == 0)
		(void)snprintf(text, size, "%s", writer_kind_word(&w));
	else if (w.world_size > 0 && strcmp(name, "world") == 0)
		(void)snprintf(text, size, "%u", w.world_size);
	else if (strcmp(name, "host") == 0)
		(void)snprintf(text, size, "%s", w.host);
	else if (strcmp(name, "job") == 0)
		(void)snprintf(text, size, "%s", w.job);
	return text[0] ? 0 : -ENODATA;
}

/* One of ours, as text; -ENODATA: not known (yet). */
static int our_xattr(fuse_req_t req, const struct fs_inode *i, const char *name,
		     char *text, size_t size)
{
	SCOPED(fs_state_release) struct fs_state s = { 0 };
	int rc;

	if (inode_load_file(i->st->inodes, i->in) < 0)
		return -ENODATA; /* not a regular file */
	if (strncmp(name, "writer_", 7) == 0)
		return writer_xattr(i->st, i->in, name + 7, text, size);
	rc = fs_file_state(i, fs_is_own(req, i->in), &s);
	if (rc < 0)
		return rc;
	if (strcmp(name, "state") == 0)
		(void)snprintf(text, size, "%s", s.word);
	else if (!s.content)
		return -ENODATA;
	else if (strcmp(name, "native") == 0)
		(void)snprintf(text, size, "%d", s.content->c.native);
	else if (strcmp(name, "physical_bytes") == 0)
		(void)snprintf(text, size, "%llu",
			       (unsigned long long)s.physical_bytes);
	else if (strcmp(name, "digest") == 0)
		(void)snprintf(text, size, "%s", s.digest);
	else
		return -ENODATA;
	return 0;
}

/* Those that people set: what guard.h is told. */
static bool is_told(const char *name)
{
	return strcmp(name, GUARD_EXPECT_XATTR) == 0 ||
	       strcmp(name, GUARD_IGNORE_XATTR) == 0 ||
	       strcmp(name, GUARD_POLICY_XATTR) == 0;
}

bool fs_is_our_xattr(const char *name)
{
	return strncmp(name, FS_OUR_XATTR, strlen(FS_OUR_XATTR)) == 0 &&
	       !is_told(name);
}

bool fs_is_step_xattr(const char *name)
{
	return strncmp(name, "structure", 9) == 0 ||
	       strcmp(name, "refused") == 0;
}

int fs_step_xattr(fuse_req_t req, uint64_t id, uid_t owner, const char *name,
		  struct bytes *out)
{
	struct guard *g = store_of(req)->guard;
	uid_t uid = fuse_req_ctx(req)->uid;

	if (strcmp(name, "structure") == 0)
		return guard_signature(g, id, &uid, out);
	/* Names out of files that not everybody may read. */
	if (uid != 0 && uid != owner)
		return -EACCES;
	if (strcmp(name, "structure_diff") == 0)
		return guard_difference(g, id, &uid, out);
	return strcmp(name, "refused") == 0 ? guard_refused(g, id, out)
					    : -ENODATA;
}

int fs_our_xattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		 struct bytes *out)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	char text[OUR_XATTR_BYTES] = "";
	int rc = fs_get(req, ino, &i);

	if (rc == 0 && fs_is_step_xattr(name))
		return fs_step_xattr(req, ino, inode_attr(i.in).uid, name, out);
	if (rc == 0)
		rc = our_xattr(req, &i, name, text, sizeof(text));
	if (rc == 0)
		bytes_put(out, text, strlen(text));
	return rc;
}

/*
 * 0: attributes of such a name can be had, as on a local file system. Access
 * lists (system.*) need the kernel's help, which is not asked for.
 */
static int is_kept(const char *name)
{
	static const char *const spaces[] = { "user.", "trusted.",
					      "security." };

	for (size_t i = 0; i < sizeof(spaces) / sizeof(*spaces); i++) {
		size_t len = strlen(spaces[i]);

		if (strncmp(name, spaces[i], len) == 0)
			return name[len] ? 0 : -EINVAL;
	}
	return -EOPNOTSUPP;
}

void fs_reply_xattr(fuse_req_t req, int rc, const void *value, size_t len,
		    size_t size)
{
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else if (size == 0)
		fuse_reply_xattr(req, len);
	else if (len > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, len);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	SCOPED(bytes_release) struct bytes ours = { 0 };
	SCOPED(scope_free) void *value = NULL;
	size_t len = 0;
	int rc;

	if (fs_is_our_xattr(name)) {
		rc = fs_our_xattr(req, ino, name + strlen(FS_OUR_XATTR), &ours);
		if (rc == 0 && ours.failed)
			rc = -ENOMEM;
		fs_reply_xattr(req, rc, ours.data, ours.len, size);
	} else {
		rc = is_kept(name);
		if (rc == 0)
			rc = names_getxattr(store_of(req)->names, ino, name,
					    &value, &len);
		fs_reply_xattr(req, rc, value, len, size);
	}
}

static int may_set(const char *name)
{
	return fs_is_our_xattr(name) ? -EPERM : is_kept(name);
}

int fs_may_set_xattr(const char *name, const char *value, size_t size)
{
	enum guard_policy policy;

	if (fs_is_our_xattr(name))
		return -EPERM;
	if (strcmp(name, GUARD_POLICY_XATTR) == 0)
		return guard_policy_of(value, size, &policy);
	return strcmp(name, GUARD_IGNORE_XATTR) == 0
		       ? guard_ignore_check(value, size)
		       : 0;
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		 const char *value, size_t size, int flags)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_may_set_xattr(name, value, size);

	if (rc == 0)
		rc = is_kept(name);
	if (rc == 0)
		rc = fs_get(req, ino, &i);
	if (rc == 0)
		rc = names_setxattr(i.st->names, i.in, name, value, size,
				    flags);
	fuse_reply_err(req, -rc);
}

static bool is_trusted(const char *name)
{
	return strncmp(name, "trusted.", 8) == 0;
}

/*
 * Names, each with its NUL, but for ours and those that only an administrator
 * sees; how long they are then.
 */
static size_t shown_names(fuse_req_t req, char *names, size_t len)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	size_t kept = 0;
	int admin = -1; /* asked for when there is something to hide */

	for (size_t at = 0, n; at < len; at += n) {
		n = strlen(names + at) + 1;
		if (fs_is_our_xattr(names + at))
			continue;
		if (is_trusted(names + at) && admin < 0)
			admin = caller_is_admin(fs_of(req)->callers, c->pid,
						c->uid);
		if (is_trusted(names + at) && !admin)
			continue;
		memmove(names + kept, names + at, n);
		kept += n;
	}
	return kept;
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	SCOPED(bytes_release) struct bytes names = { 0 };
	int rc = names_listxattr(store_of(req)->names, ino, &names);

	/* Ours are not listed: cp -a would try to set them on the copy. */
	if (rc == 0)
		names.len =
			shown_names(req, (char *)names.data, names.len);
	fs_reply_xattr(req, rc, names.data, names.len, size);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = may_set(name);

	if (rc == 0)
		rc = fs_get(req, ino, &i);
	if (rc == 0)
		rc = names_removexattr(i.st->names, i.in, name);
	fuse_reply_err(req, -rc);
}
