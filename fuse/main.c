/*
 * main.c - the ckptfs command: options, the store, the background process.
 *
 * The parent of a background daemon waits until the mount can be used, or
 * until it has failed; so whoever calls ckptfs knows which.
 *
 * Exit codes: 0 fine, 1 the mount failed or something could not be made
 * durable, 2 wrong usage.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuse/caller.h"
#include "fuse/place.h"
#include "fuse/opens.h"
#include "fuse/session.h"
#include "store/base/log.h"
#include "store/base/scope.h"

#define OPEN_FILES_WANTED (1u << 20)
/* How long to wait for the last mount of the store to finish its drains. */
#define PREDECESSOR_WAIT_S 600

enum main_exit { MAIN_FINE = 0, MAIN_FAILED = 1, MAIN_USAGE = 2 };

struct options {
	char *store, *mountpoint;
	int foreground, debug, help, version, hold_drain, no_stage_cache;
	char *stage, *stage_size, *durable, *publish, *verify, *passthrough;
	char *saving, *threads, *backup, *interval, *debug_stage, *segments, *structure;
	char *share;
	int allow_other, read_only;
	unsigned bare;
};

#define OPT(text, member) { text, offsetof(struct options, member), 1 }
#define OPT_TEXT(text, member) { text, offsetof(struct options, member), 0 }
static const struct fuse_opt option_table[] = {
	OPT("-f", foreground),
	OPT("-d", debug),
	OPT("debug", debug),
	OPT("-h", help),
	OPT("--help", help),
	OPT("-V", version),
	OPT("--version", version),
	OPT("debug_hold_drain", hold_drain),
	OPT("debug_no_stage_cache", no_stage_cache),
	OPT("allow_other", allow_other),
	OPT_TEXT("debug_stage=%s", debug_stage),
	OPT_TEXT("stage=%s", stage),
	OPT_TEXT("stage_size=%s", stage_size),
	OPT_TEXT("segments=%s", segments),
	OPT_TEXT("durable=%s", durable),
	OPT_TEXT("publish=%s", publish),
	OPT_TEXT("structure=%s", structure),
	OPT_TEXT("share=%s", share),
	OPT_TEXT("verify=%s", verify),
	OPT_TEXT("passthrough=%s", passthrough),
	OPT_TEXT("dedup_min_saving=%s", saving),
	OPT_TEXT("drain_threads=%s", threads),
	OPT_TEXT("drain_interval=%s", interval),
	OPT_TEXT("backup_interval=%s", backup),
	FUSE_OPT_END
};

static const char usage_line[] =
	"usage: ckptfs [-f] [-o option,...] STORE MOUNTPOINT\n";
static const char help_text[] =
	"\n"
	"Mount the checkpoint store in the directory STORE on MOUNTPOINT. An empty\n"
	"directory becomes a new store. Unmount with umount or fusermount3 -u; the\n"
	"process ends when everything is durable. \"ckptctl status MOUNTPOINT\" tells\n"
	"how a mount is doing.\n"
	"\n"
	"  -f                   stay in the foreground\n"
	"  -d                   the same, and show every request\n"
	"  -h, --help           this text\n"
	"  -V, --version        the version\n"
	"\n"
	"options (-o):\n"
	"  stage=DIR            stage in DIR (default: an own tmpfs, STORE/stage)\n"
	"  stage_size=SIZE      size of that tmpfs, e.g. 64G (half of the memory)\n"
	"  segments=SIZE|off    how much of it a user of the GPU library may keep\n"
	"                       (all of it)\n"
	"  durable=async|close  close returns at once, or when durable (async)\n"
	"  publish=wait|async   rename and link wait until all under the name is\n"
	"                       durable, or rename only when it replaces something\n"
	"                       (wait)\n"
	"  structure=warn|refuse|off\n"
	"                       when a step is published: log how its tensors differ\n"
	"                       from the step before, or that it is broken; or let\n"
	"                       the call fail with EUCLEAN (warn)\n"
	"  share=user|all       bytes are stored once for each owner of files, or once\n"
	"                       for all; then who takes up less space than he wrote\n"
	"                       learns that another user's file has those bytes (user)\n"
	"  verify=on|open|off   on: compare bytes before sharing them; open: and\n"
	"                       check a file's hashes at its first open; off: share\n"
	"                       by the 128-bit keyed hash alone (on)\n"
	"  dedup_min_saving=P   share parts of a file only if that saves P percent\n"
	"                       of it; a file that shares parts is read through the\n"
	"                       daemon (3)\n"
	"  drain_threads=N      workers that hash and write (one for each\n"
	"                       processor, 2 to 8)\n"
	"  drain_interval=S     seconds after which a file that stays open and grows\n"
	"                       is made durable as it stands, 0: never (30)\n"
	"  backup_interval=S    seconds from one backup of the database, after a\n"
	"                       rename, to the next, 0: none is made (600)\n"
	"  passthrough=auto|off let the kernel move the bytes where it can (auto)\n"
	"  allow_other          let other users in (default for root)\n"
	"  and those of mount(8): ro, noexec, nosuid, ...\n"
	"\n"
	"exit code: 0 fine; 1 could not mount, or something could not be made\n"
	"durable; 2 wrong usage\n";

/* After the sentence that says what is wrong. */
static int show_usage(void)
{
	fprintf(stderr, "%ssee ckptfs --help\n", usage_line);
	return MAIN_USAGE;
}

static int misused(const char *format, ...)
	__attribute__((format(printf, 1, 2)));
static int misused(const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "ckptfs: ");
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	return show_usage();
}

/* Options of fstab that mount(8) hands on, and that mean nothing to us. */
static bool is_for_mount8(const char *arg)
{
	static const char *const words[] = {
		"auto", "noauto", "user", "nouser", "users", "owner", "group",
		"defaults", "nofail", "_netdev", "relatime", "norelatime",
		"strictatime", "lazytime", "nolazytime", "nodiratime",
	};

	if (strncmp(arg, "x-", 2) == 0 || strncmp(arg, "comment=", 8) == 0)
		return true;
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strcmp(arg, words[i]) == 0)
			return true;
	return false;
}

static int on_option(void *data, const char *arg, int key,
		     struct fuse_args *out)
{
	struct options *o = data;

	(void)out;
	if (strcmp(arg, "ro") == 0)
		o->read_only = 1; /* and libfuse is told */
	if (key != FUSE_OPT_KEY_NONOPT) /* else libfuse knows it, or says not */
		return is_for_mount8(arg) ? 0 : 1;
	if (o->bare++ == 0)
		o->store = strdup(arg);
	else if (o->bare == 2)
		o->mountpoint = strdup(arg);
	return 0;
}

/* "64G" in bytes; false: not a size. */
static bool parse_size(const char *text, uint64_t *ret)
{
	static const char units[] = "kmgt";
	unsigned shift = 0;
	const char *unit;
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (end == text || errno != 0 || *text == '-')
		return false;
	unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
	if (unit) {
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
	}
	if (*end != 0 || v == 0 || v > (UINT64_MAX >> 1) >> shift)
		return false;
	*ret = v << shift;
	return true;
}

static bool parse_number(const char *text, unsigned max, unsigned *ret)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (end == text || *end != 0 || errno != 0 || v > max || *text == '-')
		return false;
	*ret = (unsigned)v;
	return true;
}

/* text is one of words ("a|b|c"): its index, or -1. */
static int choose(const char *text, const char *const *words)
{
	for (int i = 0; words[i]; i++)
		if (strcmp(text, words[i]) == 0)
			return i;
	return -1;
}

static int parse_words(const struct options *o, struct store_options *s,
		       bool *ret_passthrough)
{
	static const char *const durable[] = { "async", "close", NULL };
	static const char *const publish[] = { "wait", "async", NULL };
	static const char *const verify[] = { "off", "on", "open", NULL };
	static const char *const share[] = { "user", "all", NULL };
	static const char *const pass[] = { "off", "auto", NULL };
	static const char *const stage[] = { "auto", "memory", NULL };
	int d = o->durable ? choose(o->durable, durable) : 0;
	int p = o->publish ? choose(o->publish, publish) : 0;
	int v = o->verify ? choose(o->verify, verify) : VERIFY_ON;
	int w = o->share ? choose(o->share, share) : 0;
	int t = o->passthrough ? choose(o->passthrough, pass) : 1;
	int m = o->debug_stage ? choose(o->debug_stage, stage) : 0;

	if (d < 0)
		return misused("durable=%s: give async or close", o->durable);
	if (p < 0)
		return misused("publish=%s: give wait or async", o->publish);
	if (v < 0)
		return misused("verify=%s: give on, open or off", o->verify);
	if (w < 0)
		return misused("share=%s: give user or all", o->share);
	if (t < 0)
		return misused("passthrough=%s: give auto or off",
			       o->passthrough);
	if (o->structure &&
	    guard_policy_of(o->structure, strlen(o->structure),
			    &s->structure) < 0)
		return misused("structure=%s: give warn, refuse or off",
			       o->structure);
	if (!o->structure)
		s->structure = GUARD_WARN;
	if (m < 0)
		return misused("debug_stage=%s: give auto or memory",
			       o->debug_stage);
	s->durable_close = d == 1;
	s->publish_async = p == 1;
	s->verify = (enum verify_mode)v;
	s->share_all = w == 1;
	s->stage_all_in_memory = m == 1;
	*ret_passthrough = t == 1;
	return MAIN_FINE;
}

static int parse_values(const struct options *o, struct store_options *s)
{
	if (o->stage_size && !parse_size(o->stage_size, &s->stage_bytes))
		return misused("stage_size=%s: give a size such as 64G",
			       o->stage_size);
	if (o->saving && !parse_number(o->saving, 100,
				       &s->dedup_min_saving_percent))
		return misused("dedup_min_saving=%s: give 0 to 100 (percent)",
			       o->saving);
	if (o->threads && (!parse_number(o->threads, 8, &s->drain_threads) ||
			   s->drain_threads == 0))
		return misused("drain_threads=%s: give 1 to 8", o->threads);
	if (o->backup &&
	    !parse_number(o->backup, 86400, &s->backup_interval_s))
		return misused("backup_interval=%s: give 0 to 86400 seconds",
			       o->backup);
	if (o->interval &&
	    !parse_number(o->interval, 86400, &s->drain_interval_s))
		return misused("drain_interval=%s: give 0 to 86400 seconds",
			       o->interval);
	if (o->segments && strcmp(o->segments, "off") == 0)
		s->no_segments = true;
	else if (o->segments && !parse_size(o->segments, &s->segment_bytes))
		return misused("segments=%s: give a size such as 16G, or off",
			       o->segments);
	s->stage_dir = o->stage;
	s->hold_drain = o->hold_drain;
	s->no_stage_cache = o->no_stage_cache;
	return MAIN_FINE;
}

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
	if (rc == 0)
		return st;
	fprintf(stderr, "ckptfs: %s\n", why);
	return NULL;
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

struct ready {
	int pipe_fd; /* -1: in the foreground */
};

/* Tell the parent, and let go of its terminal. */
static void on_ready(void *arg)
{
	struct ready *r = arg;
	int null;

	if (r->pipe_fd < 0)
		return;
	(void)!write(r->pipe_fd, "r", 1);
	close(r->pipe_fd);
	r->pipe_fd = -1;
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

/* In the child (or the foreground): open, mount, serve, close. */
static int serve(struct fs *fs, const char *store,
		 const struct store_options *so, struct ready *ready)
{
	int rc;

	umask(0);
	/* Writing for others under memory pressure must not wait for itself. */
	(void)prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
	fs->store = open_store(store, so);
	if (!fs->store)
		return MAIN_FAILED;
	rc = store_start(fs->store);
	if (rc < 0) {
		fprintf(stderr, "ckptfs: cannot start: %s\n", strerror(-rc));
		return MAIN_FAILED;
	}
	rc = session_run(fs, on_ready, ready);
	if (store_close(fs->store) < 0) {
		log_error("not everything could be made durable; it is kept in "
			  "the stage for the next mount");
		return MAIN_FAILED;
	}
	return rc < 0 ? MAIN_FAILED : MAIN_FINE;
}

/* Fork; the parent waits for the word and exits. */
static int background(struct ready *ready)
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
		ready->pipe_fd = fds[1];
		(void)setsid();
		(void)!chdir("/");
		return 0;
	}
	close(fds[1]);
	if (read(fds[0], &word, 1) == 1)
		_exit(MAIN_FINE);
	(void)waitpid(pid, &status, 0);
	_exit(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) :
							 MAIN_FAILED);
}

/*
 * The store's path as the source of the mount: a comma would end the option,
 * and libfuse reads a backslash as the sign that guards the next one.
 */
static char *escape(const char *path)
{
	char *text = malloc(2 * strlen(path) + 1), *to = text;

	for (; text && *path; path++) {
		if (*path == ',' || *path == '\\')
			*to++ = '\\';
		*to++ = *path;
	}
	if (text)
		*to = 0;
	return text;
}

static int add_mount_options(struct fuse_args *args, const struct options *o,
			     const char *store)
{
	SCOPED(scope_free) char *source = escape(store);
	SCOPED(scope_free) char *text = NULL;

	if (!source ||
	    asprintf(&text, "-ofsname=%s,subtype=ckptfs,default_permissions%s",
		     source,
		     o->allow_other || geteuid() == 0 ? ",allow_other" :
							"") < 0)
		return -ENOMEM;
	return fuse_opt_add_arg(args, text);
}

static void options_release(struct options *o)
{
	char **const texts[] = { &o->store,   &o->mountpoint, &o->stage,
				 &o->durable, &o->stage_size, &o->publish,
				 &o->verify,  &o->passthrough, &o->saving,
				 &o->threads, &o->interval,    &o->backup,
				 &o->debug_stage,
				 &o->segments, &o->structure,  &o->share };

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		free(*texts[i]);
}

/* The options are right and the paths are found: mount. */
static int mount_place(struct fuse_args *args, const struct options *o,
		       struct store_options *so, struct fs *fs,
		       const struct place *p)
{
	struct ready ready = { .pipe_fd = -1 };
	int rc;

	if (p->stage)
		so->stage_dir = p->stage;
	fs->mountpoint = p->mountpoint;
	fs->read_only = o->read_only;
	if (add_mount_options(args, o, p->store) < 0)
		return MAIN_FAILED;
	rc = session_new(fs, args, o->debug);
	if (rc == -EINVAL)
		return show_usage();
	if (rc < 0)
		return MAIN_FAILED;
	rc = o->foreground || o->debug ? 0 : background(&ready);
	if (rc < 0) {
		fprintf(stderr, "ckptfs: %s: cannot start its process: %s\n",
			p->mountpoint, strerror(-rc));
		rc = MAIN_FAILED;
	} else {
		raise_limits(); /* before anybody counts on them */
		fs->callers = callers_new();
		fs->opens = opens_new();
		rc = fs->callers && fs->opens ?
			     serve(fs, p->store, so, &ready) :
			     MAIN_FAILED;
		opens_free(fs->opens);
		callers_free(fs->callers);
	}
	session_free(fs);
	return rc;
}

static int run(struct fuse_args *args, struct options *o)
{
	struct store_options so = STORE_OPTIONS_DEFAULT;
	struct fs fs = { 0 };
	struct place p;
	int rc;

	if (o->help) {
		printf("%s%s", usage_line, help_text);
		return MAIN_FINE;
	}
	if (o->version) {
		printf("ckptfs %s, libfuse %s\n", CKPTFS_VERSION,
		       fuse_pkgversion());
		return MAIN_FINE;
	}
	if (o->bare != 2)
		return misused("%s", o->bare < 2 ?
					     "give a STORE and a MOUNTPOINT" :
					     "give one STORE and one "
					     "MOUNTPOINT, nothing else");
	rc = parse_words(o, &so, &fs.want_passthrough);
	if (rc == MAIN_FINE)
		rc = parse_values(o, &so);
	if (rc != MAIN_FINE)
		return rc;
	rc = place_find(o->store, o->mountpoint, o->stage, &p);
	if (rc < 0)
		return rc == -EINVAL ? MAIN_USAGE : MAIN_FAILED;
	rc = mount_place(args, o, &so, &fs, &p);
	place_release(&p);
	return rc;
}

int main(int argc, char **argv)
{
	struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
	struct options o = { 0 };
	int rc;

	session_take_messages();
	if (fuse_opt_parse(&args, &o, option_table, on_option) < 0)
		return show_usage();
	rc = run(&args, &o);
	fuse_opt_free_args(&args);
	options_release(&o);
	return rc;
}
