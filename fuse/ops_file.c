/* ops_file.c - operations on regular files; rules in fs.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "fuse/caller.h"
#include "fuse/closer.h"
#include "fuse/fs.h"
#include "fuse/opens.h"
#include "fuse/waiting.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/guard/guard.h"
#include "store/names/names.h"

/* What an open handle must know: it is all that fi->fh holds. */
static int handle_flags(const struct fuse_file_info *fi)
{
	return (int)fi->fh;
}

/* O_SYNC has it as well; of a write with RWF_DSYNC or RWF_SYNC it is set, too.
 */
static bool is_synced(int flags)
{
	return (flags & O_DSYNC) && (flags & O_ACCMODE) != O_RDONLY;
}

void fs_handle_fill(fuse_req_t req, struct fuse_file_info *fi, int flags,
		    const struct file_opened *o)
{
	fi->fh = (uint64_t)(flags & O_ACCMODE);
	/* With locks of DIR it is what gives up those of fcntl(2). */
	fi->noflush = (flags & O_ACCMODE) == O_RDONLY && !fs_of(req)->is_shared;
	fi->keep_cache = 0;
#ifdef FUSE_CAP_PASSTHROUGH
	if (o->backing_id > 0) {
		fi->backing_id = o->backing_id;
		/* Its writes come to us all the same, as those of an inode that
		 * is not in passthrough: fuse_file_write_iter() of the kernel
		 * asks for this first. */
		fi->direct_io = is_synced(flags);
		return;
	}
#else
	(void)o;
#endif
	fi->direct_io = 1;
	fi->parallel_direct_writes = 1;
}

void fs_release(struct store *st, struct inode *in, int flags)
{
	file_release(&st->files, in, flags);
	if ((flags & O_ACCMODE) != O_RDONLY)
		guard_released(st->guard, in);
}

/*
 * A writer who is not root loses the file its set-user-id bits. Writes in
 * passthrough are not seen here, so it happens when such a file is opened.
 */
static int drop_suid(fuse_req_t req, struct inode *in, int flags)
{
	struct attr to = { 0 };

	if ((flags & O_ACCMODE) == O_RDONLY || fuse_req_ctx(req)->uid == 0)
		return 0;
	{
		HOLD(&in->lock);
		to.mode = in->attr.mode & ~(uint32_t)S_ISUID;
		if (to.mode & S_IXGRP)
			to.mode &= ~(uint32_t)S_ISGID;
		if (to.mode == in->attr.mode)
			return 0;
	}
	return names_setattr(store_of(req)->names, in, SET_MODE, &to);
}

static bool begins_anew(int flags)
{
	return (flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY;
}

/*
 * After an open that was O_TRUNC the file is of whoever asked for it. It cannot
 * fail any more: the bytes are gone, and an open that failed would leave them
 * gone without a word.
 */
static void set_writer(struct store *st, struct inode *in,
		       const struct writer *w)
{
	int rc = names_set_writer(st->names, in, w);

	if (rc < 0)
		log_error("inode %llu: who writes it now is not recorded: %s",
			  (unsigned long long)in->ino, strerror(-rc));
}

static void set_writer_opened(fuse_req_t req, struct inode *in)
{
	struct attr now = inode_attr(in);
	struct writer w;

	fs_writer(req, now.name, &w);
	set_writer(store_of(req), in, &w);
}

/*
 * A file was opened to read: see opens.h. Whatever goes wrong here, the open is
 * fine.
 */
static void count_open(fuse_req_t req, struct inode *in)
{
	struct store *st = store_of(req);
	enum opens_whose whose = OPENS_UNKNOWN;
	struct writer reader, writer;
	bool scheduler;
	struct stat sb;

	caller_find(fs_of(req)->callers, fuse_req_ctx(req)->pid, &reader,
		    &scheduler);
	if (!writer_is_global(&reader) || inode_stat(st->inodes, in, &sb) < 0)
		return;
	if (names_get_writer(st->names, in->ino, &writer) == 0 &&
	    writer_is_global(&writer))
		whose = writer.rank == reader.rank ? OPENS_OWN : OPENS_FOREIGN;
	opens_count(fs_of(req)->opens, fuse_req_ctx(req)->uid, reader.rank,
		    whose, (uint64_t)sb.st_size);
	if (whose == OPENS_OWN)
		file_read_by_owner(in);
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	const struct fuse_ctx *c = fuse_req_ctx(req);
	struct names_new n = { .mode = S_IFREG | mode,
			       .uid = c->uid,
			       .gid = c->gid };
	SCOPED(fs_put) struct fs_inode i = { .st = store_of(req) };
	struct file_opened opened;
	struct fuse_entry_param e;
	struct writer writer;
	/* There is nothing to truncate in a file that is new. */
	int flags = fi->flags & ~O_TRUNC;
	struct waiting w;
	int rc;

	waiting_begin(&w, req);
	fs_writer(req, name, &writer);
	n.writer = &writer;
	n.pid = caller_in_proc(fs_of(req)->callers, c->pid);
	rc = names_create(i.st->names, parent, name, &n, &i.in);
	if (rc == 0)
		file_created(i.in);
	/* Asked again (the answer was lost): the file is there already. */
	if (rc == -EEXIST && !(fi->flags & O_EXCL)) {
		rc = names_lookup(i.st->names, parent, name, &i.in);
		flags = fi->flags;
	}
	if (rc == 0)
		rc = file_open_for(&i.st->files, i.in, flags,
				   &(struct file_opener){ FILE_BY_NAME, n.pid },
				   &opened);
	if (rc == 0 && begins_anew(flags))
		set_writer(i.st, i.in, &writer);
	if (rc == 0) {
		rc = fs_entry(i.st, i.in, &e);
		if (rc < 0)
			fs_release(i.st, i.in, flags);
	}
	waiting_end(&w);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		names_tell_moved(i.st->names);
		return;
	}
	fs_handle_fill(req, fi, flags, &opened);
	inode_remember(i.st->inodes, i.in);
	if (fuse_reply_create(req, &e, fi) < 0) {
		inode_forget(i.st->inodes, i.in, 1);
		fs_release(i.st, i.in, flags);
	} else {
		i.in = NULL; /* the reference is the kernel's */
	}
}

static int do_open(fuse_req_t req, const struct fs_inode *i, int flags,
		   struct file_opened *ret)
{
	struct fs *fs = fs_of(req);
	struct file_opener by = {
		.pid = caller_in_proc(fs->callers, fuse_req_ctx(req)->pid)
	};
	int rc;

	by.way = fs_way(req, i->in->ino, &rc);
	if (rc == 0)
		rc = drop_suid(req, i->in, flags);
	if (rc == 0)
		rc = file_open_for(&i->st->files, i->in, flags, &by, ret);
	fs_way_ends(req, i->in->ino, by.way, begins_anew(flags), rc);
	return rc;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct names *names = store_of(req)->names;
	struct file_opened opened;
	int rc = fs_get(req, ino, &i);
	struct waiting w;

	waiting_begin(&w, req);
	if (rc == 0)
		rc = do_open(req, &i, fi->flags, &opened);
	waiting_end(&w);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		names_tell_moved(names);
		return;
	}
	if (begins_anew(fi->flags))
		set_writer_opened(req, i.in);
	else if ((fi->flags & O_ACCMODE) != O_WRONLY)
		count_open(req, i.in);
	fs_handle_fill(req, fi, fi->flags, &opened);
	if (fuse_reply_open(req, fi) < 0)
		fs_release(i.st, i.in, fi->flags);
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
	     struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct file_read r;
	int rc = fs_get(req, ino, &i);

	(void)fi;
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	rc = file_read_begin(&i.st->files, i.in, size, (uint64_t)off, &r);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else if (fuse_reply_iov(req, r.iov, r.count) == -EFAULT)
		/* The kernel has answered EIO by itself. */
		(void)file_read_failed(&i.st->files, i.in, &r, size,
				       (uint64_t)off);
	file_read_end(&i.st->files, &r);
}

/* The kernel forgets the page that a file of ours ends in: see tail.c. */
static void forget_tail(fuse_req_t req, struct inode *in, uint64_t end)
{
	struct fs *fs = fs_of(req);
	uint64_t at;

	if (file_has_tail(&fs->store->files, in, end, &at))
		fs_forget_pages(fs, in->ino, (off_t)at, 1);
}

/* Whoever asks; see closer.h. */
static bool goes_on(void *arg, uint64_t number)
{
	fuse_req_t req = arg;
	struct fs *fs = fs_of(req);
	const struct closer_file file = { atomic_load(&fs->dev), number };

	return closer_goes_on(fs->callers, fuse_req_ctx(req)->pid, &file);
}

/* A tracker is about to say that a step is there: see guard.h. */
static int guard(fuse_req_t req, struct inode *in, bool close)
{
	const struct guard_closer by = { goes_on, req };
	int rc = guard_close(store_of(req)->guard, in, close ? &by : NULL);

	if (rc < 0) /* its old content is back: sizes are not what they were */
		(void)fuse_lowlevel_notify_inval_inode(fs_of(req)->se, in->ino,
						       -1, 0);
	return rc;
}

/*
 * After a close, an fsync, or a write that is to be as one. What the guard says
 * goes before what follows says; a close that ends nothing is followed by none.
 */
static int end_writes(fuse_req_t req, const struct fs_inode *i, int flags,
		      bool close)
{
	bool writes = (flags & O_ACCMODE) != O_RDONLY;
	int said = writes ? guard(req, i->in, close) : 0;
	int rc;

	if (said > 0)
		return 0;
	rc = close ? file_flush(&i->st->files, i->in, flags)
		   : file_sync(&i->st->files, i->in);
	return said < 0 ? said : rc;
}

static int do_write(fuse_req_t req, const struct fs_inode *i, const char *buf,
		    size_t size, uint64_t off, bool pages)
{
	int rc;

	if (pages)
		return file_write_pages(&i->st->files, i->in, buf, size, off);
	/* As the kernel does by itself for writes that do not come to us. */
	rc = names_drop_caps(i->st->names, i->in);
	if (rc < 0)
		return rc;
	forget_tail(req, i->in, off);
	return file_write(&i->st->files, i->in, buf, size, off);
}

void op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size,
	      off_t off, struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(req, ino, &i);
	struct waiting w;

	waiting_begin(&w, req);
	if (rc == 0)
		rc = do_write(req, &i, buf, size, (uint64_t)off, fi->writepage);
	if (rc == 0 && !fi->writepage && (fi->flags & O_DSYNC))
		rc = end_writes(req, &i, O_WRONLY, false);
	waiting_end(&w);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_write(req, size);
}

static void reply_to_end(fuse_req_t req, fuse_ino_t ino,
			 const struct fuse_file_info *fi, bool close)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(req, ino, &i);
	struct waiting w;

	waiting_begin(&w, req);
	if (rc == 0)
		rc = end_writes(req, &i, handle_flags(fi), close);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	reply_to_end(req, ino, fi, true);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
	      struct fuse_file_info *fi)
{
	(void)datasync;
	reply_to_end(req, ino, fi, false);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };

	if (fs_get(req, ino, &i) == 0)
		fs_release(i.st, i.in, handle_flags(fi));
	fuse_reply_err(req, 0); /* nobody hears the answer */
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off,
		  off_t len, struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	int rc = fs_get(req, ino, &i);
	struct waiting w;

	(void)fi;
	waiting_begin(&w, req);
	if (rc == 0 && !(mode & FALLOC_FL_KEEP_SIZE))
		forget_tail(req, i.in, (uint64_t)off + (uint64_t)len);
	if (rc == 0)
		rc = file_fallocate(&i.st->files, i.in, mode, (uint64_t)off,
				    (uint64_t)len);
	waiting_end(&w);
	fuse_reply_err(req, -rc);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
	      struct fuse_file_info *fi)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	uint64_t at = 0;
	int rc = fs_get(req, ino, &i);

	(void)fi;
	if (rc == 0)
		rc = file_seek(&i.st->files, i.in, (uint64_t)off, whence, &at);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_lseek(req, (off_t)at);
}
