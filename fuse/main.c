/*
 * main.c - the ckptfs command: the store, and the background process.
 *
 * The parent of a background daemon waits until the mount can be used, or
 * until it has failed; so whoever calls ckptfs knows which.
 *
 * Exit codes: 0 fine, 1 the mount failed or something could not be made
 * durable, 2 wrong usage.
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuse/again.h"
#include "fuse/caller.h"
#include "fuse/opens.h"
#include "fuse/options.h"
#include "fuse/place.h"
#include "fuse/session.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/shared/look.h"
#include "store/shared/shared.h"

#define OPEN_FILES_WANTED (1u << 20)
/* How long to wait for the last mount of the store to finish its drains. */
#define PREDECESSOR_WAIT_S 600

enum main_exit { MAIN_FINE = 0, MAIN_FAILED = 1, MAIN_USAGE = 2 };

/*
 * Open the store. The process of an earlier mount may still be making things
 * durable after its unmount: wait for it.
 */
static struct store *open_store(const char *path,
				const struct store_options *options)
{
	struct timespec pause = { .tv_nsec = 100000000 };
	struct store *st;
	char why[8192];
	int rc = 0;

	for (int i = 0; i < PREDECESSOR_WAIT_S * 10; i++) {
		rc = store_open(path, options, &st, why, sizeof(why));
		if (rc != -EBUSY || place_has_mount_of(path))
			break;
		if (i == 10)
			log_info("%s: waiting for its last mount, which is "
				 "still writing",
				 path);
		nanosleep(&pause, NULL);
	}
	if (rc < 0) {
		fprintf(stderr, "ckptfs: %s\n", why);
		return NULL;
	}
	if (st->fresh)
		log_info("%s was empty, and is a new store now", path);
	return st;
}

static void raise_limits(void)
{
	struct rlimit r = { OPEN_FILES_WANTED, OPEN_FILES_WANTED };

	if (setrlimit(RLIMIT_NOFILE, &r) == 0)
		return;
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
}

/* Tell the parent, and let go of its terminal. */
static void on_ready(void *pipe_fd)
{
	int *fd = pipe_fd; /* -1: in the foreground */
	int null;

	if (*fd < 0)
		return;
	(void)!write(*fd, "r", 1);
	close(*fd);
	*fd = -1;
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		(void)dup2(null, STDIN_FILENO);
		(void)dup2(null, STDOUT_FILENO);
		(void)dup2(null, STDERR_FILENO);
		if (null > STDERR_FILENO)
			close(null);
	}
	log_to_syslog(true);
}

/* Before a store is made for nothing. */
static bool is_shared_dir(const char *dir)
{
	struct shared_look l = SHARED_LOOK_NONE;
	char why[8192] = "";
	int rc = shared_look_open(dir, &l, why, sizeof(why));

	if (rc < 0)
		fprintf(stderr, "ckptfs: %s\n", why);
	shared_look_release(&l);
	return rc == 0;
}

/* The directory that the names are in; a store that has one needs it. */
static int open_shared(struct fs *fs, const struct shared_options *o)
{
	char why[8192] = "";
	int rc;

	if (!o->dir && shared_has(fs->store)) {
		fprintf(stderr,
			"ckptfs: %s: is this node's part of a shared "
			"directory; mount it with -o shared=DIR\n",
			fs->store->path);
		return -EINVAL;
	}
	if (!o->dir)
		return 0;
	rc = shared_open(fs->store, o, &fs->shared, why, sizeof(why));
	if (rc < 0)
		fprintf(stderr, "ckptfs: %s\n", why);
	return rc;
}

/* In the child (or the foreground): open, mount, serve, close. */
static int serve(struct fs *fs, const char *store,
		 const struct store_options *so,
		 const struct shared_options *shared, int *pipe_fd)
{
	int rc;

	umask(0);
	/* Writing for others under memory pressure must not wait for itself. */
	(void)prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
	if (shared->dir && !is_shared_dir(shared->dir))
		return MAIN_FAILED;
	fs->store = open_store(store, so);
	if (!fs->store)
		return MAIN_FAILED;
	if (open_shared(fs, shared) < 0)
		return MAIN_FAILED;
	rc = store_start(fs->store);
	if (rc == 0 && fs->shared)
		rc = shared_start(fs->shared);
	if (rc < 0) {
		fprintf(stderr, "ckptfs: cannot start: %s\n", strerror(-rc));
		return MAIN_FAILED;
	}
	rc = session_run(fs, on_ready, pipe_fd);
	if (fs->shared) {
		files_abandoned(&fs->store->files);
		shared_stop(fs->shared);
		shared_free(TAKE(fs->shared));
	}
	if (store_close(fs->store) < 0) {
		log_error("%s: not everything could be made durable; it is "
			  "kept in the stage for the next mount",
			  fs->mountpoint);
		return MAIN_FAILED;
	}
	if (rc == 0)
		log_info("%s: ended, everything is durable", fs->mountpoint);
	return rc < 0 ? MAIN_FAILED : MAIN_FINE;
}

/* Fork; the parent waits for the word and exits. *ret_pipe takes the word. */
static int background(int *ret_pipe)
{
	int fds[2], status = 0;
	char word;
	pid_t pid;

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		close(fds[0]);
		*ret_pipe = fds[1];
		(void)setsid();
		(void)!chdir("/");
		return 0;
	}
	close(fds[1]);
	if (read(fds[0], &word, 1) == 1)
		_exit(MAIN_FINE);
	(void)waitpid(pid, &status, 0);
	_exit(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status)
						       : MAIN_FAILED);
}

static int add_mount_options(struct fuse_args *args, const struct options *o,
			     const char *store)
{
	bool others = o->allow_other || geteuid() == 0;
	SCOPED(scope_free) char *source = NULL;
	SCOPED(scope_free) char *text = NULL;

	if (asprintf(&source, "fsname=%s", store) < 0 ||
	    fuse_opt_add_opt_escaped(&text, source) < 0 ||
	    fuse_opt_add_opt(&text, "subtype=ckptfs,default_permissions") < 0 ||
	    (others && fuse_opt_add_opt(&text, "allow_other") < 0) ||
	    fuse_opt_add_arg(args, "-o") < 0 ||
	    fuse_opt_add_arg(args, text) < 0)
		return -ENOMEM;
	return 0;
}

/* The options are right and the paths are found: mount. */
static int mount_place(struct fuse_args *args, const struct options *o,
		       struct fs *fs, const struct place *p)
{
	/* The background process is in another directory. */
	SCOPED(scope_free) char *dir =
		o->shared ? realpath(o->shared, NULL) : NULL;
	const struct shared_options shared = {
		.dir = dir ? dir : o->shared,
		.node = o->node,
		.rejoin = o->rejoin,
		.pending_wait_s = o->pending_wait_s,
		.direct = o->direct,
		.local_keep_bytes = o->local_keep_bytes,
	};
	struct store_options so = o->all;
	int rc, pipe_fd = -1;

	if (p->stage)
		so.stage_dir = p->stage;
	fs->mountpoint = p->mountpoint;
	fs->is_shared = o->shared != NULL;
	fs->names_timeout_s = o->names_timeout_s;
	if (add_mount_options(args, o, p->store) < 0)
		return MAIN_FAILED;
	rc = session_new(fs, args, o->debug);
	if (rc == -EINVAL) {
		options_usage();
		return MAIN_USAGE;
	}
	if (rc < 0)
		return MAIN_FAILED;
	rc = o->foreground || o->debug ? 0 : background(&pipe_fd);
	if (rc < 0) {
		fprintf(stderr, "ckptfs: %s: cannot start its process: %s\n",
			p->mountpoint, strerror(-rc));
		rc = MAIN_FAILED;
	} else {
		raise_limits(); /* before anybody counts on them */
		fs->callers = callers_new();
		fs->opens = opens_new();
		fs->again = again_new();
		rc = fs->callers && fs->opens && fs->again
			     ? serve(fs, p->store, &so, &shared, &pipe_fd)
			     : MAIN_FAILED;
		again_free(fs->again);
		opens_free(fs->opens);
		callers_free(fs->callers);
	}
	fuse_session_destroy(fs->se);
	return rc;
}

static int run(struct fuse_args *args, const struct options *o)
{
	struct fs fs = { .want_passthrough = o->passthrough,
			 .read_only = o->read_only };
	struct place p;
	int rc;

	if (o->help) {
		options_help();
		return MAIN_FINE;
	}
	if (o->version) {
		printf("ckptfs %s, libfuse %s\n", CKPTFS_VERSION,
		       fuse_pkgversion());
		return MAIN_FINE;
	}
	rc = place_find(o->store, o->mountpoint, o->stage, o->no_create, &p);
	if (rc < 0)
		return rc == -EINVAL ? MAIN_USAGE : MAIN_FAILED;
	rc = mount_place(args, o, &fs, &p);
	place_release(&p);
	return rc;
}

/*
 * Large allocations are mappings of their own, and go back to the system when
 * they are freed: glibc would learn from the first one to keep those that
 * follow, for each thread. What is left of a thread's memory goes back as well.
 */
static void set_memory(void)
{
	(void)mallopt(M_MMAP_THRESHOLD, 4 << 20);
	(void)mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

int main(int argc, char **argv)
{
	struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
	struct options o;
	int rc;

	set_memory();
	session_take_messages();
	rc = options_parse(&args, &o) < 0 ? MAIN_USAGE : run(&args, &o);
	fuse_opt_free_args(&args);
	options_release(&o);
	return rc;
}
