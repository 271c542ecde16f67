/*
 * session.c - see session.h. What is asked of the kernel, and why:
 *
 *   passthrough      reads and writes do not pass the daemon
 *   atomic_o_trunc   an O_TRUNC is one request: the old content can stay
 *   direct_io mmap   files that the daemon serves can be mapped
 *   killpriv_v2      no look-up of security.capability before every write
 *   no splice, no writeback cache: measured slower, or they lose the order
 */
#include "fuse/session.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fuse/device.h"
#include "fuse/ending.h"
#include "fuse/loop.h"
#include "fuse/place.h"
#include "fuse/server.h"
#include "fuse/teller.h"
#include "fuse/umount8.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/shared/shared.h"

#define MESSAGE_BYTES_MAX 1024
#define UNKNOWN_OPTIONS "fuse: unknown option(s): `"

/* Set by the main thread before the others are there. */
static bool is_serving;
/* libfuse lists options that it does not know in pieces: "-o ", "a,b'\n". */
static char unknown[MESSAGE_BYTES_MAX];
static bool lists_unknown;

__attribute__((format(printf, 2, 0))) static void
on_message(enum fuse_log_level level, const char *format, va_list ap)
{
	char text[MESSAGE_BYTES_MAX];
	const char *from = text;
	size_t len;

	if (level >= FUSE_LOG_DEBUG) { /* asked for with -d; in pieces too */
		(void)vfprintf(stderr, format, ap);
		return;
	}
	(void)vsnprintf(text, sizeof(text), format, ap);
	if (lists_unknown) {
		len = strlen(unknown);
		(void)snprintf(unknown + len, sizeof(unknown) - len, "%s",
			       text);
		return;
	}
	if (strcmp(text, UNKNOWN_OPTIONS) == 0) {
		lists_unknown = true;
		return;
	}
	if (strncmp(text, "fuse: ", 6) == 0)
		from += 6;
	len = strlen(from);
	while (len > 0 && from[len - 1] == '\n')
		len--;
	if (len == 0)
		return;
	if (is_serving)
		log_at((int)level, "%.*s", (int)len, from);
	else
		(void)fprintf(stderr, "ckptfs: %.*s\n", (int)len, from);
}

void session_take_messages(void)
{
	fuse_set_log_func(on_message);
}

static void want(struct fuse_conn_info *conn, uint64_t flag)
{
#if FUSE_MAJOR_VERSION > 3 || FUSE_MINOR_VERSION >= 17
	(void)fuse_set_feature_flag(conn, flag);
#else
	if (conn->capable & flag)
		conn->want |= (unsigned)flag;
#endif
}

static void refuse(struct fuse_conn_info *conn, uint64_t flag)
{
#if FUSE_MAJOR_VERSION > 3 || FUSE_MINOR_VERSION >= 17
	fuse_unset_feature_flag(conn, flag);
#else
	conn->want &= ~(unsigned)flag;
#endif
}

static void warn_no_passthrough(const struct fs *fs)
{
	const char *why = "it needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH";

#ifndef FUSE_CAP_PASSTHROUGH
	why = "it was built with a libfuse older than 3.17";
#endif
	if (geteuid() != 0)
		why = "it needs root";
	log_warning("%s: no kernel passthrough (%s): all bytes go through the "
		    "daemon, at a third of the speed or less",
		    fs->mountpoint, why);
}

#ifdef FUSE_CAP_PASSTHROUGH
/*
 * May the directory's file system lie on another? The kernel does not say how
 * deep it is; these may, and all others do not.
 */
static bool may_be_stacked(int dirfd)
{
	struct statfs fs;

	return fstatfs(dirfd, &fs) < 0 || fs.f_type == OVERLAYFS_SUPER_MAGIC ||
	       fs.f_type == ECRYPTFS_SUPER_MAGIC ||
	       fs.f_type == FUSE_SUPER_MAGIC;
}

/*
 * How deep what backs our files may be. The kernel has two levels in all: a
 * mount that says 0 is one, and leaves the other to an overlayfs on top of it.
 */
static uint32_t backing_depth(const struct store *st)
{
	return may_be_stacked(st->dirfd) || may_be_stacked(st->stages.dirfd);
}
#endif

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;

	refuse(conn, FUSE_CAP_SPLICE_READ);
	refuse(conn, FUSE_CAP_SPLICE_WRITE);
	refuse(conn, FUSE_CAP_SPLICE_MOVE);
	refuse(conn, FUSE_CAP_WRITEBACK_CACHE);
	refuse(conn, FUSE_CAP_AUTO_INVAL_DATA);
	refuse(conn, FUSE_CAP_POSIX_ACL);
	/* Kept by the kernel for this mount, as for a local file system. */
	if (!fs->is_shared) {
		refuse(conn, FUSE_CAP_POSIX_LOCKS);
		refuse(conn, FUSE_CAP_FLOCK_LOCKS);
	} else {
		want(conn, FUSE_CAP_POSIX_LOCKS);
		want(conn, FUSE_CAP_FLOCK_LOCKS);
	}
	/* Numbers are those of the store, and never used again; but what nodes
	 * have of DIR is only known as long as it is looked up. */
	if (!fs->is_shared)
		want(conn, FUSE_CAP_EXPORT_SUPPORT);
#ifdef FUSE_CAP_NO_EXPORT_SUPPORT
	else
		want(conn, FUSE_CAP_NO_EXPORT_SUPPORT);
#endif
	want(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	want(conn, FUSE_CAP_PARALLEL_DIROPS);
	want(conn, FUSE_CAP_READDIRPLUS);
	want(conn, FUSE_CAP_READDIRPLUS_AUTO);
	want(conn, FUSE_CAP_ASYNC_READ);
	want(conn, FUSE_CAP_ASYNC_DIO);
#ifdef FUSE_CAP_HANDLE_KILLPRIV_V2
	refuse(conn, FUSE_CAP_HANDLE_KILLPRIV);
	want(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
#endif
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
	want(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
#endif
#ifdef FUSE_CAP_PASSTHROUGH
	if (fs->want_passthrough && geteuid() == 0) {
		want(conn, FUSE_CAP_PASSTHROUGH);
		conn->max_backing_stack_depth = backing_depth(fs->store);
		fs->passthrough = (conn->want_ext & FUSE_CAP_PASSTHROUGH) != 0;
	}
#endif
	conn->max_write = FS_WRITE_BYTES_MAX;
	conn->max_readahead = FS_READAHEAD_BYTES;
	conn->max_background = FS_BACKGROUND_MAX;
	conn->time_gran = 1;
	if (!fs->passthrough) {
		fs->store->files.kernel.backing_open = NULL;
		if (fs->want_passthrough)
			warn_no_passthrough(fs);
	}
	atomic_store(&fs->initialised, true);
	(void)sem_post(&fs->answered);
}

#ifdef FUSE_CAP_PASSTHROUGH
/* From the kernel's fuse.h; libfuse offers these calls for requests only. */
struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

static int backing_open(void *arg, int fd)
{
	struct fs *fs = arg;
	struct backing_map map = { .fd = fd };
	int id = ioctl(fuse_session_fd(fs->se), BACKING_OPEN, &map);

	return id < 0 ? -errno : id;
}

static void backing_close(void *arg, int id)
{
	struct fs *fs = arg;
	uint32_t backing = (uint32_t)id;

	if (ioctl(fuse_session_fd(fs->se), BACKING_CLOSE, &backing) < 0 &&
	    errno != ENOTCONN)
		log_warning("backing %d is not given back: %s", id,
			    strerror(errno));
}
#endif

static void on_renamed(void *arg, uint64_t parent, const char *name)
{
	struct fs *fs = arg;

	if (atomic_load(&fs->ended))
		return;
	(void)fuse_lowlevel_notify_inval_entry(fs->se, parent, name,
					       strlen(name));
}

static void on_changed(void *arg, uint64_t ino)
{
	struct fs *fs = arg;

	if (atomic_load(&fs->ended))
		return;
	(void)fuse_lowlevel_notify_inval_inode(fs->se, ino, -1, 0);
}

static void write_back(void *arg, uint64_t ino)
{
	struct fs *fs = arg;

	if (!atomic_load(&fs->ended))
		fs_forget_pages(fs, ino, 0, 0);
}

/*
 * Is there a flock(2) or fcntl(2) lock on the inode? The kernel keeps the locks
 * of this mount by itself and shows them to everybody, each on a line:
 *
 *   1: FLOCK  ADVISORY  WRITE 4711 00:2d:17 0 EOF
 *
 * The device is in hexadecimal, the inode number decimal (proc(5)). Leases are
 * in it too; they are no locks. Locks of processes that this pid namespace does
 * not see are left out. Also true when it cannot be read.
 */
static bool is_lock_held(dev_t dev, uint64_t ino)
{
	FILE *f = fopen("/proc/locks", "re");
	char line[256];
	bool held = false;

	if (!f)
		return true;
	while (!held && fgets(line, sizeof(line), f)) {
		const char *at = strchr(line, ':');
		unsigned major, minor;
		char kind[16];
		uint64_t number;

		if (!at)
			continue;
		if (strncmp(at, ": ->", 4) == 0) /* waits for one */
			continue;
		if (sscanf(at + 1, "%15s %*s %*s %*d %x:%x:%" SCNu64, kind,
			   &major, &minor, &number) != 4)
			continue;
		held = number == ino && makedev(major, minor) == dev &&
		       strcmp(kind, "LEASE") != 0 && strcmp(kind, "DELEG") != 0;
	}
	(void)fclose(f);
	return held;
}

/* In doubt it is: then the file keeps its inode, as on any file system. */
static bool is_locked(void *arg, uint64_t ino)
{
	struct fs *fs = arg;
	dev_t dev = atomic_load(&fs->dev);

	if (fs->shared)
		return shared_is_locked(fs->shared, ino);
	return dev == 0 || is_lock_held(dev, ino);
}

const struct fuse_lowlevel_ops fs_ops = {
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.symlink = op_symlink,
	.link = op_link,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.rename = op_rename,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.fsyncdir = op_fsyncdir,
	.create = op_create,
	.open = op_open,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.fallocate = op_fallocate,
	.lseek = op_lseek,
	.statfs = op_statfs,
	.getxattr = op_getxattr,
	.setxattr = op_setxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.ioctl = op_ioctl,
};

/* 0 or -errno. */
static int session_loop(struct fs *fs)
{
	fs->threads =
		io_fd_share(25, FS_THREADS_MAX * FS_THREAD_FDS) / FS_THREAD_FDS;
	if (fs->threads < FS_THREADS_MIN)
		fs->threads = FS_THREADS_MIN;
	return loop_run(fs);
}

int session_new(struct fs *fs, struct fuse_args *args, bool debug)
{
	struct fuse_lowlevel_ops ops; /* libfuse takes a copy */

	if (debug && fuse_opt_add_arg(args, "-odebug") < 0)
		return -ENOMEM;
	ops = fs->is_shared ? fs_shared_ops : fs_ops;
	ops.init = op_init;
	fs->se = fuse_session_new(args, &ops, sizeof(ops), fs);
	if (fs->se)
		return 0;
	if (!lists_unknown)
		return -ENOMEM;
	lists_unknown = false;
	unknown[strcspn(unknown, "'\n")] = 0;
	(void)fprintf(stderr, "ckptfs: unknown option: %s\n",
		      unknown + (strncmp(unknown, "-o ", 3) == 0 ? 3 : 0));
	return -EINVAL;
}

/* Who says that the mount is there, when the loop answers already. */
struct announcer {
	struct fs *fs;
	void (*ready)(void *arg);
	void *arg;
	bool announced;
	bool noted; /* umount(8) knows our helper */
};

static void announce_mount(struct announcer *a)
{
	struct fs *fs = a->fs;

	atomic_store(&fs->dev, place_device(fs->mountpoint));
	a->noted = umount8_note(fs->store->path, fs->mountpoint);
	a->announced = true;
	a->ready(a->arg); /* from here on the log is the system's */
	log_info("%s: mounted, its store is %s%s", fs->mountpoint,
		 fs->store->path, fs->read_only ? ", read-only" : "");
}

/* And afterwards the signal that ends it. */
static void *announce(void *arg)
{
	struct announcer *a = arg;
	bool ended;

	do {
		while (sem_wait(&a->fs->answered) < 0)
			CHECK(errno == EINTR);
		ended = atomic_load(&a->fs->ended);
		if (!a->announced && atomic_load(&a->fs->initialised))
			announce_mount(a);
		ending_say_signal(a->fs->ending);
	} while (!ended);
	return NULL;
}

/* From the mount to its end. 0, or -errno: it could not be served. */
static int serve(struct fs *fs, struct announcer *a)
{
	pthread_t thread;
	int rc = -pthread_create(&thread, NULL, announce, a);
	bool announces = rc == 0;

	if (rc == 0)
		rc = session_loop(fs);
	atomic_store(&fs->ended, true);
	/* Before the session's descriptor may be another's: they use it. */
	teller_stop(TAKE(fs->teller));
	server_stop(TAKE(fs->server));
	fuse_session_unmount(fs->se);
	if (!announces)
		return rc;
	(void)sem_post(&fs->answered); /* the kernel may have asked nothing */
	CHECK(pthread_join(thread, NULL) == 0);
	ending_say_unmounted(fs->ending);
	if (a->noted)
		umount8_forget(fs->mountpoint);
	return rc;
}

/* A mount without segments is a mount all the same. */
static void start_server(struct fs *fs)
{
	int rc;

	if (fs->store->segments.quota_bytes == 0 || fs->read_only)
		return;
	rc = teller_start(fs, &fs->teller);
	if (rc == 0)
		rc = server_start(fs->store, &fs->server);
	if (rc < 0)
		log_warning("no socket for segments: %s; clients of the "
			    "library will write files",
			    strerror(-rc));
}

static int mount_it(struct fs *fs)
{
	int rc = device_check();

	if (rc < 0)
		return rc;
	rc = fuse_session_mount(fs->se, fs->mountpoint);
	if (rc != 0)
		device_explain(fs->mountpoint);
	return rc;
}

int session_run(struct fs *fs, void (*ready)(void *arg), void *arg)
{
	struct announcer a = { .fs = fs, .ready = ready, .arg = arg };
	struct ending ending;
	int rc;

	fs->store->files.kernel = (struct kernel_hooks){
		.arg = fs,
		.on_renamed = on_renamed,
		.on_changed = on_changed,
		.write_back = write_back,
		.is_locked = is_locked,
#ifdef FUSE_CAP_PASSTHROUGH
		.backing_open = backing_open,
		.backing_close = backing_close,
#endif
	};
	CHECK(sem_init(&fs->answered, 0, 0) == 0);
	CHECK(sem_init(&fs->moved, 0, 0) == 0);
	ending_init(&ending, fs);
	fs->ending = &ending;
	rc = fuse_set_signal_handlers(fs->se);
	if (rc == 0)
		rc = mount_it(fs);
	if (rc == 0) {
		ending_note_signals(&ending);
		is_serving = true;
		start_server(fs);
		rc = serve(fs, &a);
		is_serving = false;
		ending_forget_signals();
	}
	fs->ending = NULL;
	ending_release(&ending);
	fuse_remove_signal_handlers(fs->se);
	(void)sem_destroy(&fs->answered);
	(void)sem_destroy(&fs->moved);
	/* The kernel is gone: nothing can be invalidated or closed there. */
	fs->store->files.kernel = (struct kernel_hooks){ 0 };
	return rc == 0 ? 0 : -EIO;
}
