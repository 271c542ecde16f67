/* flush.c - ckptctl flush: wait until files are durable. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "fuse/ctl/ctl.h"
#include "store/base/scope.h"

#define POLL_NS 200000000
#define WATCH_LINE_BYTES 128

/* A thread that shows how much is left while the main thread waits. */
struct watch {
	int fd; /* in the mount; -1: do not watch */
	pthread_t thread;
	struct ctl_progress progress; /* the thread's, until it is joined */

	pthread_mutex_t lock; /* guards stop */
	pthread_cond_t stopped;
	bool stop;
};

/* False: it is time to stop. */
static bool watch_wait(struct watch *w)
{
	struct timespec until;
	int rc = 0;

	(void)clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += POLL_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	HOLD(&w->lock);
	while (!w->stop && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&w->stopped, &w->lock, &until);
	return !w->stop;
}

static void *watch_run(void *arg)
{
	struct watch *w = arg;
	uint64_t polls = 0;

	while (watch_wait(w)) {
		char line[WATCH_LINE_BYTES];
		cJSON *s;

		if (ctl_query(w->fd, CKPTFS_STATUS, &s) < 0)
			break;
		(void)snprintf(line, sizeof(line),
			       "flush: %s files on their way to the disk, %s "
			       "staged, %u s",
			       ctl_count(ctl_number(s, "draining")),
			       ctl_bytes(ctl_number(s, "staged_bytes")),
			       (unsigned)(++polls * POLL_NS / 1000000000));
		cJSON_Delete(s);
		ctl_progress_say(&w->progress, line);
	}
	return NULL;
}

static void watch_start(struct watch *w, int fd)
{
	w->fd = ctl_progress_wanted() ? fd : -1;
	if (w->fd < 0)
		return;
	CHECK(pthread_mutex_init(&w->lock, NULL) == 0);
	CHECK(pthread_cond_init(&w->stopped, NULL) == 0);
	if (pthread_create(&w->thread, NULL, watch_run, w) != 0)
		w->fd = -1; /* it works without, too */
}

static void watch_end(struct watch *w)
{
	if (w->fd < 0)
		return;
	{
		HOLD(&w->lock);
		w->stop = true;
		(void)pthread_cond_signal(&w->stopped);
	}
	(void)pthread_join(w->thread, NULL);
	ctl_progress_clear(&w->progress);
	(void)pthread_cond_destroy(&w->stopped);
	(void)pthread_mutex_destroy(&w->lock);
}

/* 0, or -errno; *ret_asked tells whether the mount said it. */
static int flush_one(const char *path, bool *ret_asked)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	struct watch w = { 0 };
	int rc = 0;

	*ret_asked = false;
	if (fd < 0)
		return fd;
	watch_start(&w, fd);
	if (ioctl(fd, CKPTFS_IOC_FLUSH) < 0)
		rc = -errno;
	watch_end(&w);
	*ret_asked = rc != -ENOTTY && rc != -ENOSYS && rc != -EOPNOTSUPP &&
		     rc != -ENOTCONN;
	return rc;
}

static int flush(const char *path, cJSON *flushed, cJSON *failed)
{
	bool asked;
	int rc = flush_one(path, &asked);
	cJSON *one;

	if (rc == 0) {
		ctl_add_text(flushed, NULL, path);
		return CTL_FINE;
	}
	one = cJSON_CreateObject();
	ctl_add_text(one, "path", path);
	ctl_add_text(one, "error", strerror(-rc));
	(void)cJSON_AddItemToArray(failed, one);
	if (!asked)
		return ctl_complain_query(path, rc);
	ctl_complain("%s: is not durable: %s (ckptctl status MOUNTPOINT says "
		     "which files failed)",
		     path, strerror(-rc));
	return CTL_PROBLEM;
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	struct ctl_options o = { .command = self };
	cJSON *json, *flushed, *failed;
	int worst = CTL_FINE;

	(void)ctl_option(&o, argc, argv);
	if (optind == argc)
		return ctl_misused("flush: name a file or a directory");
	json = cJSON_CreateObject();
	flushed = cJSON_AddArrayToObject(json, "flushed");
	failed = cJSON_AddArrayToObject(json, "failed");
	for (int n = optind; n < argc; n++) {
		int code = flush(argv[n], flushed, failed);

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
	.arguments = "PATH...",
	.summary = "return when all under these paths is durable",
	.help = "Prints nothing when all went well. Files that are open are "
		"written as they\nstand. Exit code 1 when something could not "
		"be made durable.\n\n",
	.run = run,
};
