/* flush.c - ckptctl flush: wait until files are durable. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include "fuse/ctl/ctl.h"
#include "store/base/scope.h"

#define POLL_MS 200
#define WATCH_LINE_BYTES 128

/*
 * A thread that shows how much is left while the main thread waits, and says
 * what it waits for when that is not mere work.
 */
struct watch {
	const char *path;
	bool shared;
	int fd; /* in the mount */
	int stop; /* eventfd; -1: nobody watches */
	pthread_t thread;
	/* The thread's, until it is joined. */
	struct ctl_progress progress;
	char said[512]; /* the reasons, so far */
};

/* False: it is time to stop. */
static bool watch_wait(const struct watch *w)
{
	struct pollfd p = { .fd = w->stop, .events = POLLIN };

	return poll(&p, 1, POLL_MS) <= 0;
}

/* Once for each reason: a full cluster is nothing that passes by itself. */
static void say_why(struct watch *w, const cJSON *dir)
{
	const char *why = ctl_text(dir, "error");
	size_t len = strlen(w->said);

	if (ctl_number(dir, "failing") == 0 || !*why || strstr(w->said, why))
		return;
	(void)snprintf(w->said + len, sizeof(w->said) - len, "%s\n", why);
	ctl_progress_clear(&w->progress);
	ctl_complain("%s: %s of the files that are to go to %s cannot be "
		     "written there: %s; they are kept here, and tried again "
		     "until they can (Ctrl-C stops waiting)",
		     w->path, ctl_count(ctl_number(dir, "failing")),
		     ctl_text(dir, "dir"), why);
}

static void watch_say(struct watch *w, const cJSON *s, unsigned seconds)
{
	const cJSON *dir = ctl_member(s, "shared_directory");
	char line[WATCH_LINE_BYTES], there[WATCH_LINE_BYTES / 2] = "";

	if (w->shared && dir) {
		say_why(w, dir);
		(void)snprintf(there, sizeof(there),
			       ", %s on their way to the directory",
			       ctl_count(ctl_number(dir, "pending")));
	}
	(void)snprintf(line, sizeof(line),
		       "flush: %s files on their way to the disk, %s "
		       "staged%s, %u s",
		       ctl_count(ctl_number(s, "draining")),
		       ctl_bytes(ctl_number(s, "staged_bytes")), there,
		       seconds);
	ctl_progress_say(&w->progress, line);
}

static void *watch_run(void *arg)
{
	struct watch *w = arg;
	unsigned polls = 0;

	while (watch_wait(w)) {
		cJSON *s;

		if (ctl_query(w->fd, CKPTFS_STATUS, &s) < 0)
			break;
		watch_say(w, s, ++polls * POLL_MS / 1000);
		cJSON_Delete(s);
	}
	return NULL;
}

/* It works without, too. */
static void watch_start(struct watch *w, int fd)
{
	w->fd = fd;
	w->stop = w->shared || ctl_progress_wanted() ? eventfd(0, EFD_CLOEXEC)
						     : -1;
	if (w->stop < 0 || pthread_create(&w->thread, NULL, watch_run, w) == 0)
		return;
	(void)close(w->stop);
	w->stop = -1;
}

static void watch_end(struct watch *w)
{
	if (w->stop < 0)
		return;
	CHECK(eventfd_write(w->stop, 1) == 0);
	(void)pthread_join(w->thread, NULL);
	(void)close(w->stop);
	ctl_progress_clear(&w->progress);
}

/* 0, or -errno; *ret_asked tells whether the mount said it. */
static int flush_one(const char *path, bool shared, bool *ret_asked)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	struct watch w = { .path = path, .shared = shared };
	int rc = 0;

	*ret_asked = false;
	if (fd < 0)
		return fd;
	watch_start(&w, fd);
	if (ioctl(fd, CKPTFS_IOC_FLUSH) < 0 ||
	    (shared && ioctl(fd, CKPTFS_IOC_FLUSH_SHARED) < 0))
		rc = -errno;
	watch_end(&w);
	*ret_asked = rc != -ENOTTY && rc != -ENOSYS && rc != -EOPNOTSUPP &&
		     rc != -ENOTCONN;
	return rc;
}

static int flush(const char *path, bool shared, cJSON *flushed, cJSON *failed)
{
	bool asked;
	int rc = flush_one(path, shared, &asked);
	cJSON *one;

	if (rc == 0) {
		ctl_add_text(flushed, NULL, path);
		return CTL_FINE;
	}
	one = cJSON_CreateObject();
	ctl_add_text(one, "path", path);
	ctl_add_text(one, "error", strerror(-rc));
	(void)cJSON_AddItemToArray(failed, one);
	if (shared && rc == -EOPNOTSUPP) {
		ctl_complain("%s: is mounted without a shared directory", path);
		return CTL_USAGE;
	}
	if (!asked)
		return ctl_complain_query(path, rc);
	ctl_complain("%s: is not durable: %s (ckptctl status MOUNTPOINT says "
		     "which files failed)",
		     path, strerror(-rc));
	return CTL_PROBLEM;
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "shared", no_argument, NULL, 's' },
		{ NULL, 0, NULL, 0 },
	};
	struct ctl_options o = { .command = self, .names = names };
	cJSON *json, *flushed, *failed;
	int worst = CTL_FINE;
	bool shared = false;

	while (ctl_option(&o, argc, argv) == 's')
		shared = true;
	if (optind == argc)
		return ctl_misused("flush: name a file or a directory");
	json = cJSON_CreateObject();
	flushed = cJSON_AddArrayToObject(json, "flushed");
	failed = cJSON_AddArrayToObject(json, "failed");
	for (int n = optind; n < argc; n++) {
		int code = flush(argv[n], shared, flushed, failed);

		/* A file that is not durable outweighs a wrong argument. */
		if (code == CTL_PROBLEM || worst == CTL_FINE)
			worst = code;
	}
	if (o.json)
		ctl_print_json(json);
	else
		cJSON_Delete(json);
	return worst;
}

const struct ctl_command ctl_flush = {
	.name = "flush",
	.arguments = "[--shared] PATH...",
	.summary = "return when all under these paths is durable",
	.help = "Prints nothing when all went well. Files that are open are "
		"written as they\nstand. Exit code 1 when something could not "
		"be made durable.\n\n"
		"  --shared  return when all that was closed on this node is in "
		"the shared\n            directory, too\n\n",
	.run = run,
};
