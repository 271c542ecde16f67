/*
 * lossyfs - mounts a lossy_fs (lossy.h), to lie under a store that a test
 * takes the power from.
 *
 *	lossyfs [--lie-fsync] [--strict-names] [--mib N] MOUNTPOINT
 *
 * It stays in the foreground, says "ready" once it is mounted, and ends when
 * it is unmounted or told to with SIGTERM. Everything is in memory and gone
 * then. The directory .lossy in the root takes commands (lossyfs.h).
 *
 * --lie-fsync is "lie all" from the start: a test that passes all the same
 * proves nothing.
 *
 * While the power is cut every call fails with EIO. Requests are served one
 * at a time, in the order in which the kernel hands them out, so a count read
 * after a call has returned is never less than what that call needed.
 *
 * The kernel may keep what it looked up for as long as it likes: every reboot
 * gives all nodes new numbers, and only names in the root are asked for again
 * each time, which is enough to find the new ones below.
 *
 * What it cannot show: syncfs(2) and sync(2) do not reach such a file system,
 * so they make nothing durable here. There are no extended attributes, no
 * reflinks and no O_TMPFILE.
 */
#include "tests/crash/lossyfs.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "store/base/scope.h"
#include "tests/crash/lossy_names.h"

#define FOREVER 86400.0 /* seconds */
#define READ_BYTES_MAX (4u << 20)
#define MIB_DEFAULT 1024u

/* --- node numbers --- */

static fuse_ino_t ino_of(const struct lossyfs *l, uint64_t node)
{
	return node == LOSSY_ROOT ? FUSE_ROOT_ID : l->epoch << 32 | node;
}

/* 0, which is no node, for one from before a reboot. */
static uint64_t node_of(const struct lossyfs *l, fuse_ino_t ino)
{
	if (ino == FUSE_ROOT_ID)
		return LOSSY_ROOT;
	return ino >> 32 == l->epoch ? ino & UINT32_MAX : 0;
}

static int power(const struct lossyfs *l)
{
	return lossy_is_cut(l->fs) ? -EIO : 0;
}

static int change(struct lossyfs *l, const struct lossy_op *op,
		  uint64_t *ret_node)
{
	int rc = lossy_do(l->fs, op, ret_node);

	if (rc == 0 && l->logging)
		rc = lossy_log_add(&l->log, op);
	return rc;
}

static int fill_entry(struct lossyfs *l, uint64_t node, fuse_ino_t parent,
		      struct fuse_entry_param *ret_entry)
{
	struct fuse_entry_param e = { .attr_timeout = FOREVER };
	int rc = lossy_stat(l->fs, node, &e.attr);

	if (rc < 0)
		return rc;
	e.ino = ino_of(l, node);
	e.attr.st_ino = e.ino;
	e.entry_timeout = parent == FUSE_ROOT_ID ? 0 : FOREVER;
	*ret_entry = e;
	return 0;
}

static void reply_entry(fuse_req_t req, int rc, uint64_t node,
			fuse_ino_t parent)
{
	struct fuse_entry_param e;

	if (rc == 0)
		rc = fill_entry(self_of(req), node, parent, &e);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_entry(req, &e);
}

/* --- names --- */

static void reply_control(fuse_req_t req, fuse_ino_t ino)
{
	struct fuse_entry_param e = { .ino = ino,
				      .attr_timeout = FOREVER,
				      .entry_timeout = FOREVER };

	if (ino == 0) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	control_stat(ino, &e.attr);
	fuse_reply_entry(req, &e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct lossyfs *l = self_of(req);
	uint64_t node = 0;
	int rc;

	if (control_find(parent, name) || is_control(parent)) {
		reply_control(req, control_find(parent, name));
		return;
	}
	rc = power(l);
	if (rc == 0)
		rc = lossy_lookup(l->fs, node_of(l, parent), name, &node);
	reply_entry(req, rc, node, parent);
}

static int do_make(fuse_req_t req, fuse_ino_t parent, struct lossy_op *op,
		   uint64_t *ret_node)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);
	struct lossyfs *l = self_of(req);

	if (is_control(parent))
		return -EPERM;
	op->kind = LOSSY_CREATE;
	op->node = node_of(l, parent);
	op->uid = ctx->uid;
	op->gid = ctx->gid;
	return change(l, op, ret_node);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		     mode_t mode, dev_t rdev)
{
	struct lossy_op op = { .name = name, .mode = mode, .rdev = rdev };
	uint64_t node = 0;
	int rc = do_make(req, parent, &op, &node);

	reply_entry(req, rc, node, parent);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		     mode_t mode)
{
	op_mknod(req, parent, name, S_IFDIR | (mode & 07777), 0);
}

static void op_symlink(fuse_req_t req, const char *text, fuse_ino_t parent,
		       const char *name)
{
	struct lossy_op op = { .name = name,
			       .mode = S_IFLNK | 0777,
			       .data = text,
			       .data_len = strlen(text) };
	uint64_t node = 0;
	int rc = do_make(req, parent, &op, &node);

	reply_entry(req, rc, node, parent);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		      mode_t mode, struct fuse_file_info *fi)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .name = name, .mode = S_IFREG | (mode & 07777) };
	struct fuse_entry_param e;
	uint64_t node = 0;
	int rc = do_make(req, parent, &op, &node);

	if (rc == 0)
		rc = fill_entry(l, node, parent, &e);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_create(req, &e, fi);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent,
		    const char *name)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_LINK,
			       .node = node_of(l, parent),
			       .other = node_of(l, ino),
			       .name = name };
	int rc = change(l, &op, NULL);

	reply_entry(req, rc, op.other, parent);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_UNLINK,
			       .node = node_of(l, parent),
			       .name = name };

	fuse_reply_err(req, -change(l, &op, NULL));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_RMDIR,
			       .node = node_of(l, parent),
			       .name = name };

	fuse_reply_err(req, -change(l, &op, NULL));
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		      fuse_ino_t newparent, const char *newname,
		      unsigned int flags)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_RENAME,
			       .flags = flags,
			       .node = node_of(l, parent),
			       .name = name,
			       .other = node_of(l, newparent),
			       .name2 = newname };

	fuse_reply_err(req, -change(l, &op, NULL));
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	struct lossyfs *l = self_of(req);
	const char *text = NULL;
	int rc = power(l);

	if (rc == 0)
		rc = lossy_readlink(l->fs, node_of(l, ino), &text);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_readlink(req, text);
}

static int do_readdir(fuse_req_t req, fuse_ino_t ino, size_t size,
		      uint64_t cookie, char *buf)
{
	struct lossyfs *l = self_of(req);
	const struct lossy_name *name;
	size_t used = 0;
	int rc = power(l);

	while (rc == 0) {
		struct stat st;
		size_t need;

		rc = lossy_next(l->fs, node_of(l, ino), cookie, &name);
		if (rc < 0 || !name)
			break;
		rc = lossy_stat(l->fs, name->node, &st);
		if (rc < 0)
			break;
		cookie = name->cookie;
		st.st_ino = ino_of(l, name->node);
		need = fuse_add_direntry(req, buf + used, size - used,
					 name->text, &st, (off_t)cookie);
		if (need > size - used)
			break;
		used += need;
	}
	return rc < 0 ? rc : (int)used;
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	SCOPED(scope_free) char *buf = malloc(size);
	int rc = buf && size <= READ_BYTES_MAX ? 0 : -ENOMEM;

	(void)fi;
	if (rc == 0 && !is_control(ino))
		rc = do_readdir(req, ino, size, (uint64_t)off, buf);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, buf, (size_t)rc);
}

/* --- attributes --- */

static void reply_attr(fuse_req_t req, fuse_ino_t ino, int rc)
{
	struct lossyfs *l = self_of(req);
	struct stat st;

	if (rc == 0)
		rc = lossy_stat(l->fs, node_of(l, ino), &st);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	st.st_ino = ino;
	fuse_reply_attr(req, &st, FOREVER);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (is_control(ino)) {
		control_stat(ino, &st);
		fuse_reply_attr(req, &st, FOREVER);
		return;
	}
	reply_attr(req, ino, power(self_of(req)));
}

static int do_chown_chmod(struct lossyfs *l, uint64_t node,
			  const struct stat *attr, int set)
{
	struct lossy_op op = { .kind = LOSSY_ATTR, .node = node };
	struct stat st;
	int rc = lossy_stat(l->fs, node, &st);

	if (rc < 0)
		return rc;
	op.mode = set & FUSE_SET_ATTR_MODE ? attr->st_mode : st.st_mode;
	op.uid = set & FUSE_SET_ATTR_UID ? attr->st_uid : st.st_uid;
	op.gid = set & FUSE_SET_ATTR_GID ? attr->st_gid : st.st_gid;
	return change(l, &op, NULL);
}

static int do_utimens(struct lossyfs *l, uint64_t node, const struct stat *attr,
		      int set)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return lossy_times(l->fs, node,
			   set & FUSE_SET_ATTR_ATIME_NOW ? &now
			   : set & FUSE_SET_ATTR_ATIME   ? &attr->st_atim
							 : NULL,
			   set & FUSE_SET_ATTR_MTIME_NOW ? &now
			   : set & FUSE_SET_ATTR_MTIME   ? &attr->st_mtim
							 : NULL);
}

static int do_setattr(struct lossyfs *l, uint64_t node, const struct stat *attr,
		      int set)
{
	const int owner =
		FUSE_SET_ATTR_MODE | FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID;
	const int times = FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW |
			  FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW;
	int rc = power(l);

	if (rc == 0 && (set & owner))
		rc = do_chown_chmod(l, node, attr, set);
	if (rc == 0 && (set & FUSE_SET_ATTR_SIZE)) {
		struct lossy_op op = { .kind = LOSSY_TRUNCATE,
				       .node = node,
				       .off = (uint64_t)attr->st_size };

		rc = change(l, &op, NULL);
	}
	if (rc == 0 && (set & times))
		rc = do_utimens(l, node, attr, set);
	return rc;
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		       int set, struct fuse_file_info *fi)
{
	struct lossyfs *l = self_of(req);

	if (is_control(ino)) {
		op_getattr(req, ino, fi); /* O_TRUNC: nothing to do */
		return;
	}
	reply_attr(req, ino, do_setattr(l, node_of(l, ino), attr, set));
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	const struct lossyfs *l = self_of(req);
	struct statvfs st = { .f_bsize = 4096,
			      .f_frsize = 4096,
			      .f_namemax = LOSSY_NAME_BYTES_MAX,
			      .f_files = LOSSY_NODES_MAX,
			      .f_ffree = LOSSY_NODES_MAX };
	uint64_t used, max;

	(void)ino;
	lossy_room(l->fs, &used, &max);
	st.f_blocks = max;
	st.f_bfree = st.f_bavail = max - used;
	fuse_reply_statfs(req, &st);
}

/* --- bytes --- */

#define SECTOR_BYTES UINT64_C(4096)

/* -EIO: the bad block is among these bytes. */
static int spoilt_read(const struct lossyfs *l, fuse_ino_t ino, uint64_t off,
		       uint64_t len)
{
	uint64_t bad = l->spoilt_block * SECTOR_BYTES;

	return ino == l->spoilt && ino != 0 && off < bad + SECTOR_BYTES &&
			       off + len > bad
		       ? -EIO
		       : 0;
}

/* The same of a write, or a punch: all of the block makes it good again. */
static int spoilt_write(struct lossyfs *l, fuse_ino_t ino, uint64_t off,
			uint64_t len)
{
	uint64_t bad = l->spoilt_block * SECTOR_BYTES;
	int rc = spoilt_read(l, ino, off, len);

	if (rc < 0 && off <= bad && off + len >= bad + SECTOR_BYTES) {
		l->spoilt = 0;
		rc = 0;
	}
	return rc;
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_TRUNCATE,
			       .node = node_of(l, ino) };
	int rc;

	if (is_control(ino)) {
		fi->direct_io = 1;
		fuse_reply_open(req, fi);
		return;
	}
	rc = fi->flags & O_TRUNC ? change(l, &op, NULL) : power(l);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	/* Nothing changes behind the kernel's back, except by a reboot. */
	fi->keep_cache = 1;
	fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	SCOPED(scope_free) char *buf = NULL;
	struct lossyfs *l = self_of(req);
	size_t len = 0;
	int rc = power(l);

	(void)fi;
	if (is_control(ino)) {
		control_read(req, size, off);
		return;
	}
	if (rc == 0 && size > READ_BYTES_MAX)
		rc = -EINVAL;
	if (rc == 0) {
		buf = malloc(size);
		rc = buf ? 0 : -ENOMEM;
	}
	if (rc == 0)
		rc = lossy_read(l->fs, node_of(l, ino), buf, size,
				(uint64_t)off, &len);
	if (rc == 0)
		rc = spoilt_read(l, ino, (uint64_t)off, len);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, buf, len);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf,
		     size_t size, off_t off, struct fuse_file_info *fi)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_WRITE,
			       .node = node_of(l, ino),
			       .off = (uint64_t)off,
			       .data = buf,
			       .data_len = size };
	int rc;

	if (is_control(ino)) {
		control_write(req, buf, size);
		return;
	}
	if ((fi->flags & O_DSYNC) && !l->lie_files)
		op.flags = LOSSY_SYNCED;
	rc = spoilt_write(l, ino, (uint64_t)off, size);
	if (rc == 0)
		rc = change(l, &op, NULL);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_write(req, size);
}

static void do_fsync(fuse_req_t req, fuse_ino_t ino, bool lie)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_SYNC,
			       .node = node_of(l, ino),
			       .flags = lie ? LOSSY_LIE : 0 };

	fuse_reply_err(req, is_control(ino) ? 0 : -change(l, &op, NULL));
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		     struct fuse_file_info *fi)
{
	(void)datasync; /* the size is synced too, and there is no more */
	(void)fi;
	do_fsync(req, ino, self_of(req)->lie_files);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
			struct fuse_file_info *fi)
{
	(void)datasync;
	(void)fi;
	do_fsync(req, ino, self_of(req)->lie_dirs);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off,
			 off_t len, struct fuse_file_info *fi)
{
	struct lossyfs *l = self_of(req);
	struct lossy_op op = { .kind = LOSSY_FALLOCATE,
			       .node = node_of(l, ino),
			       .flags = (uint32_t)mode,
			       .off = (uint64_t)off,
			       .size = (uint64_t)len };
	int rc = spoilt_write(l, ino, (uint64_t)off, (uint64_t)len);

	(void)fi;
	fuse_reply_err(req, rc < 0 ? -rc : -change(l, &op, NULL));
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	struct lossyfs *l = self_of(req);
	uint64_t at = 0;
	int rc = power(l);

	(void)fi;
	if (rc == 0 && whence != SEEK_DATA && whence != SEEK_HOLE)
		rc = -EINVAL;
	if (rc == 0)
		rc = lossy_seek(l->fs, node_of(l, ino), (uint64_t)off,
				whence == SEEK_HOLE, &at);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_lseek(req, (off_t)at);
}

static const struct fuse_lowlevel_ops lossyfs_ops = {
	.lookup = op_lookup,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.read = op_read,
	.write = op_write,
	.fsync = op_fsync,
	.readdir = op_readdir,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.create = op_create,
	.fallocate = op_fallocate,
	.lseek = op_lseek,
};

/* --- the process --- */

static int parse(int argc, char **argv, struct lossy_options *ret_options,
		 bool *ret_lie)
{
	static const struct option options[] = {
		{ "lie-fsync", no_argument, NULL, 'l' },
		{ "strict-names", no_argument, NULL, 's' },
		{ "mib", required_argument, NULL, 'm' },
		{ NULL, 0, NULL, 0 },
	};
	unsigned long mib = MIB_DEFAULT;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'l')
			*ret_lie = true;
		else if (c == 's')
			ret_options->strict_names = true;
		else if (c == 'm')
			mib = strtoul(optarg, NULL, 10);
		else
			return -EINVAL;
	}
	ret_options->bytes_max = (uint64_t)mib << 20;
	return mib > 0 && optind + 1 == argc ? 0 : -EINVAL;
}

static int serve(struct lossyfs *l, const char *mountpoint)
{
	char *argv[] = { (char[]){ "lossyfs" },
			 (char[]){ "-ofsname=lossyfs,subtype=lossyfs" }, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(2, argv);
	struct fuse_session *se =
		fuse_session_new(&args, &lossyfs_ops, sizeof(lossyfs_ops), l);
	int rc = -EIO;

	fuse_opt_free_args(&args);
	if (!se)
		return rc;
	if (fuse_set_signal_handlers(se) == 0) {
		if (fuse_session_mount(se, mountpoint) == 0) {
			puts("ready");
			fflush(stdout);
			rc = fuse_session_loop(se);
			fuse_session_unmount(se);
		}
		fuse_remove_signal_handlers(se);
	}
	fuse_session_destroy(se);
	return rc;
}

int main(int argc, char **argv)
{
	struct lossy_options options = { 0 };
	struct lossyfs l = { 0 };
	bool lie = false;
	int rc = parse(argc, argv, &options, &lie);

	if (rc < 0) {
		fprintf(stderr, "usage: lossyfs [--lie-fsync] "
				"[--strict-names] [--mib N] MOUNTPOINT\n");
		return 2;
	}
	l.lie_files = l.lie_dirs = lie;
	rc = lossy_new(&options, &l.fs);
	if (rc == 0)
		rc = serve(&l, argv[optind]);
	lossy_log_clear(&l.log);
	lossy_free(l.fs);
	/* A signal ends it as well as an unmount does. */
	return rc >= 0 ? 0 : 1;
}
