/* ops_attr.c - attributes, ordinary and extended; rules in fs.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "fuse/fs.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/names/names.h"

#define OUR_XATTR "user.ckptfs."
/* The longest value of ours, with its end. */
#define OUR_XATTR_BYTES (WRITER_JOB_MAX + 1)

static void reply_attr(fuse_req_t req, struct inode *in)
{
	struct fuse_entry_param e;
	int rc = fs_entry(store_of(req), in, &e);

	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_attr(req, &e.attr, e.attr_timeout);
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct store *st = store_of(req);
	struct inode *in;
	int rc = inode_get(st->inodes, ino, &in);

	(void)fi;
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	reply_attr(req, in);
	inode_put(st->inodes, in, 1);
}

static int64_t real_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return io_ns(&t);
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
	if ((mode & S_ISGID) &&
	    ((mode & S_IXGRP) || !fs_is_in_group(req, gid)))
		mode &= ~(uint32_t)S_ISGID;
	return mode;
}

/* Without any of these it is chown(path, -1, -1), which takes those bits too. */
#define SET_ANYTHING                                                       \
	(FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID |      \
	 FUSE_SET_ATTR_SIZE | FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME |  \
	 FUSE_SET_ATTR_ATIME_NOW | FUSE_SET_ATTR_MTIME_NOW)

/* What the kernel asks for, in our words. */
static unsigned set_of(fuse_req_t req, struct inode *in, const struct stat *s,
		       int to_set, struct attr *to)
{
	unsigned valid = 0;
	uint32_t mode, gid;

	{
		HOLD(&in->lock);
		mode = in->attr.mode;
		gid = in->attr.gid;
	}
	to->mode = to_set & FUSE_SET_ATTR_MODE ? s->st_mode : mode;
	to->uid = s->st_uid;
	to->gid = s->st_gid;
	if (to_set & FUSE_SET_ATTR_MODE)
		valid |= SET_MODE;
	if (to_set & FUSE_SET_ATTR_UID)
		valid |= SET_UID;
	if (to_set & FUSE_SET_ATTR_GID)
		valid |= SET_GID;
	if (!S_ISDIR(mode) && !(valid & SET_MODE) &&
	    ((valid & (SET_UID | SET_GID)) || !(to_set & SET_ANYTHING) ||
	     ((to_set & FUSE_SET_ATTR_SIZE) && fuse_req_ctx(req)->uid != 0))) {
		to->mode = without_suid(req, mode, gid);
		if (to->mode != mode)
			valid |= SET_MODE;
	}
	if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW)) {
		to->atime_ns = to_set & FUSE_SET_ATTR_ATIME_NOW
				       ? real_now_ns()
				       : io_ns(&s->st_atim);
		valid |= SET_ATIME;
	}
	if (to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW)) {
		to->mtime_ns = to_set & FUSE_SET_ATTR_MTIME_NOW
				       ? real_now_ns()
				       : io_ns(&s->st_mtim);
		valid |= SET_MTIME;
	}
	return valid;
}

static int do_setattr(fuse_req_t req, struct inode *in, const struct stat *s,
		      int to_set)
{
	struct store *st = store_of(req);
	struct attr to = { 0 };
	unsigned valid = set_of(req, in, s, to_set, &to);
	int rc = 0;

	if (to_set & FUSE_SET_ATTR_SIZE)
		rc = file_truncate(st, in, (uint64_t)s->st_size);
	if (rc == 0 && (valid & SET_MTIME)) {
		bool reg;
		{
			HOLD(&in->lock);
			reg = S_ISREG(in->attr.mode);
		}
		if (reg) {
			rc = inode_load_file(st->inodes, in);
			file_set_times(st, in, valid, &to);
		}
	}
	if (rc == 0 && valid)
		rc = names_setattr(st->names, in, valid, &to);
	return rc;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	struct store *st = store_of(req);
	struct inode *in;
	int rc = inode_get(st->inodes, ino, &in);

	(void)fi;
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	rc = do_setattr(req, in, attr, to_set);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		reply_attr(req, in);
	inode_put(st->inodes, in, 1);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct store *st = store_of(req);
	SCOPED(scope_free) char *target = NULL;
	struct inode *in;
	int rc = inode_get(st->inodes, ino, &in);

	if (rc == 0) {
		{
			HOLD(&in->lock);
			target = strdup(in->attr.target ? in->attr.target : "");
		}
		inode_put(st->inodes, in, 1);
	}
	if (rc < 0 || !target)
		fuse_reply_err(req, rc < 0 ? -rc : ENOMEM);
	else
		fuse_reply_readlink(req, target);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct store *st = store_of(req);
	uint64_t staged, disk, files = 0;
	struct statvfs v;

	(void)ino;
	if (fstatvfs(st->dirfd, &v) < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	/* What is staged in memory will need its room on the disk. */
	stages_dirty(&st->stages, &staged, &disk);
	staged /= v.f_frsize ? v.f_frsize : 1;
	v.f_bavail = v.f_bavail > staged ? v.f_bavail - staged : 0;
	v.f_bfree = v.f_bfree > staged ? v.f_bfree - staged : 0;
	(void)store_counter(st, META_FILES, &files);
	v.f_files = files + v.f_ffree;
	v.f_namemax = STORE_NAME_MAX;
	fuse_reply_statfs(req, &v);
}

/* --- extended attributes -------------------------------------------------- */

/* The file's fair share of its chunks: what it would cost alone, divided. */
static int physical_bytes(struct store *st, const struct content *c,
			  uint64_t *ret)
{
	double sum = 0;

	if (c->kind == CONTENT_SMALL) {
		*ret = c->size_bytes;
		return 0;
	}
	for (size_t i = 0; i < c->extent_count; i++) {
		const struct extent *e = &c->extents[i];
		struct key prefix = key_ino('K', e->image);
		struct key start = key_chunk(e->image, e->image_offset);
		struct kv_slice key, value;
		struct kv_iter *it;
		int rc;

		rc = kv_iter_new(st->kv, prefix.data, prefix.len, start.data,
				 start.len, &it);
		if (rc < 0)
			return rc;
		while ((rc = kv_iter_next(it, &key, &value)) == 1) {
			struct chunk_rec k;

			if (key.len != 17 ||
			    get_be64((const uint8_t *)key.data + 9) >=
				    e->image_offset + e->len)
				break;
			if (chunk_decode(value.data, value.len, &k) == 0 &&
			    k.refs > 0)
				sum += (double)k.len / k.refs;
		}
		kv_iter_free(it);
		if (rc < 0)
			return rc;
	}
	*ret = (uint64_t)sum + (sum > (double)(uint64_t)sum);
	return 0;
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

int fs_file_state(struct store *st, struct inode *in, bool own,
		  struct fs_state *ret)
{
	struct content_ref *content = NULL;
	struct stat now = { 0 };
	int rc = inode_load_file(st->inodes, in);

	memset(ret, 0, sizeof(*ret));
	if (rc == 0)
		rc = inode_stat(st->inodes, in, &now);
	if (rc < 0)
		return rc;
	{
		HOLD(&in->lock);
		ret->error = in->file->sticky_error;
		ret->word = ret->error < 0                      ? "failed"
			    : is_durable_locked(in->file, &now) ? "durable"
								: "staged";
		content = in->file->content;
		if (content)
			atomic_fetch_add(&content->refs, 1);
	}
	if (content) {
		ret->has_content = true;
		ret->native = content->c.native;
		memcpy(ret->digest, content->c.digest, sizeof(ret->digest));
		ret->shares_shown = own || st->options.share_all;
		if (ret->shares_shown)
			rc = physical_bytes(st, &content->c,
					    &ret->physical_bytes);
		else
			ret->physical_bytes = content->c.data_bytes;
	}
	content_ref_put(content);
	return rc;
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
static int our_xattr(fuse_req_t req, struct inode *in, const char *name,
		     char *text, size_t size)
{
	struct store *st = store_of(req);
	struct fs_state s;
	int rc;

	if (inode_load_file(st->inodes, in) < 0)
		return -ENODATA; /* not a regular file */
	if (strncmp(name, "writer_", 7) == 0)
		return writer_xattr(st, in, name + 7, text, size);
	rc = fs_file_state(st, in, fs_is_own(req, in), &s);
	if (rc < 0)
		return rc;
	if (strcmp(name, "state") == 0)
		(void)snprintf(text, size, "%s", s.word);
	else if (!s.has_content)
		return -ENODATA;
	else if (strcmp(name, "native") == 0)
		(void)snprintf(text, size, "%d", s.native);
	else if (strcmp(name, "physical_bytes") == 0)
		(void)snprintf(text, size, "%llu",
			       (unsigned long long)s.physical_bytes);
	else if (strcmp(name, "digest") == 0)
		for (size_t i = 0; i < sizeof(s.digest); i++)
			(void)snprintf(text + 2 * i, size - 2 * i, "%02x",
				       s.digest[i]);
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

static bool is_ours(const char *name)
{
	return strncmp(name, OUR_XATTR, strlen(OUR_XATTR)) == 0 &&
	       !is_told(name);
}

/* Those that are worked out anew, of a file or a folder. -ENODATA: none. */
static int structure_xattr(fuse_req_t req, struct inode *in, const char *name,
			   struct bytes *out)
{
	struct store *st = store_of(req);
	uid_t uid = fuse_req_ctx(req)->uid, owner;

	{
		HOLD(&in->lock);
		owner = in->attr.uid;
	}
	if (strcmp(name, "structure") == 0)
		return guard_signature(st->guard, in, &uid, out);
	if (strcmp(name, "structure_diff") != 0)
		return -ENODATA;
	/* Names out of files that not everybody may read. */
	return uid == 0 || uid == owner
		       ? guard_difference(st->guard, in, &uid, out)
		       : -EACCES;
}

static void reply_xattr(fuse_req_t req, const void *value, size_t len,
			size_t size)
{
	if (size == 0)
		fuse_reply_xattr(req, len);
	else if (len > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, len);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct store *st = store_of(req);
	SCOPED(scope_free) void *value = NULL;
	char text[OUR_XATTR_BYTES] = "";
	struct bytes out = { 0 };
	size_t len = 0;
	int rc;

	if (is_ours(name)) {
		const char *ours = name + strlen(OUR_XATTR);
		struct inode *in = NULL;

		rc = inode_get(st->inodes, ino, &in);
		if (rc == 0 && strncmp(ours, "structure", 9) == 0)
			rc = structure_xattr(req, in, ours, &out);
		else if (rc == 0)
			rc = our_xattr(req, in, ours, text, sizeof(text));
		if (rc == 0)
			bytes_put(&out, text, strlen(text));
		if (rc == 0 && out.failed)
			rc = -ENOMEM;
		if (rc == 0)
			reply_xattr(req, out.data, out.len, size);
		inode_put(st->inodes, in, 1);
		bytes_release(&out);
	} else {
		rc = names_getxattr(st->names, ino, name, &value, &len);
		if (rc == 0)
			reply_xattr(req, value, len, size);
	}
	if (rc < 0)
		fuse_reply_err(req, -rc);
}

static int may_set(const char *name)
{
	if (is_ours(name))
		return -EPERM;
	/* Access lists (system.*) need the kernel's help: not asked for. */
	return strncmp(name, "user.", 5) == 0 ||
			       strncmp(name, "trusted.", 8) == 0 ||
			       strncmp(name, "security.", 9) == 0
		       ? 0
		       : -EOPNOTSUPP;
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		 const char *value, size_t size, int flags)
{
	struct store *st = store_of(req);
	struct inode *in;
	enum guard_policy policy;
	int rc = may_set(name);

	if (rc == 0 && strcmp(name, GUARD_POLICY_XATTR) == 0)
		rc = guard_policy_of(value, size, &policy);
	if (rc == 0 && strcmp(name, GUARD_IGNORE_XATTR) == 0)
		rc = guard_ignore_check(value, size);
	if (rc == 0)
		rc = inode_get(st->inodes, ino, &in);
	if (rc == 0) {
		rc = names_setxattr(st->names, in, name, value, size, flags);
		inode_put(st->inodes, in, 1);
	}
	fuse_reply_err(req, -rc);
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct bytes names = { 0 };
	/* Ours are not listed: cp -a would try to set them on the copy. */
	int rc = names_listxattr(store_of(req)->names, ino, &names);

	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		reply_xattr(req, names.data, names.len, size);
	bytes_release(&names);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct store *st = store_of(req);
	struct inode *in;
	int rc = may_set(name);

	if (rc == 0)
		rc = inode_get(st->inodes, ino, &in);
	if (rc == 0) {
		rc = names_removexattr(st->names, in, name);
		inode_put(st->inodes, in, 1);
	}
	fuse_reply_err(req, -rc);
}
