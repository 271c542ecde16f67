/*
 * ctl.c - options, and questions to a mount, which are the same for all
 * commands.
 */
#include "fuse/ctl/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "store/base/bytes.h"
#include "store/base/scope.h"
#include "store/db/layout.h"

/* An answer longer than this is not one of ours. */
#define ANSWER_BYTES_MAX (UINT64_C(1) << 30)
#define QUERY_TRIES_MAX 5

static void print_help(const struct ctl_command *c)
{
	(void)printf("usage: ckptctl %s %s\n\n%s\n\n%s", c->name, c->arguments,
		     c->summary, c->help);
	(void)printf("  --json   print the result as JSON\n"
		     "  --help   print this\n\n"
		     "exit code: 0 fine; 1 a problem was found; 2 wrong "
		     "usage, or this argument\ncannot be used for that\n");
}

/* option: '?' or ':', as getopt_long() has it. */
static void misused_option(const struct ctl_command *c, int option,
			   const char *argument)
{
	char letter[3] = { '-', (char)optopt, 0 };

	/* A letter may stand among others, a long option stands alone. */
	(void)ctl_misused("%s: '%s' %s", c->name,
			  strncmp(argument, "--", 2) == 0 ? argument : letter,
			  option == ':' ? "needs an argument"
					: "is not an option of it");
}

int ctl_option(struct ctl_options *o, int argc, char **argv)
{
	struct option names[CTL_OPTION_MAX + 3] = {
		{ "json", no_argument, NULL, 'J' },
		{ "help", no_argument, NULL, 'h' },
	};
	char letters[2 * CTL_OPTION_MAX + 3];
	int option;

	for (size_t n = 0; o->names && o->names[n].name; n++) {
		CHECK(n < CTL_OPTION_MAX);
		names[n + 2] = o->names[n];
	}
	(void)snprintf(letters, sizeof(letters), ":h%s",
		       o->letters ? o->letters : "");
	opterr = 0;
	for (;;) {
		option = getopt_long(argc, argv, letters, names, NULL);
		if (option == 'J') {
			o->json = true;
			ctl_want_json();
		} else if (option == 'h') {
			print_help(o->command);
			exit(ctl_end(CTL_FINE));
		} else if (option == '?' || option == ':') {
			misused_option(o->command, option, argv[optind - 1]);
			exit(ctl_end(CTL_USAGE));
		} else {
			return option;
		}
	}
}

/* All pages of an answer, and what they say together. */
static int query_once(int fd, enum ckptfs_what what, cJSON **ret_json)
{
	SCOPED(bytes_release) struct bytes answer = { 0 };
	struct ckptfs_query q = { .what = what };
	cJSON *json;

	do {
		if (ioctl(fd, CKPTFS_IOC_QUERY, &q) < 0)
			return -errno;
		if (q.len > sizeof(q.text) || answer.len > ANSWER_BYTES_MAX ||
		    (q.len == 0 && q.cursor != 0))
			return -EPROTO;
		bytes_put(&answer, q.text, q.len);
	} while (q.cursor != 0);
	if (answer.failed)
		return -ENOMEM;
	json = cJSON_ParseWithLength((const char *)answer.data, answer.len);
	if (!cJSON_IsObject(json)) {
		cJSON_Delete(json);
		return -EPROTO;
	}
	*ret_json = json;
	return 0;
}

int ctl_query(int fd, enum ckptfs_what what, cJSON **ret_json)
{
	int rc = -EPROTO;

	/* A page may be of a newer answer than the one before: ask again. */
	for (int tries = 0; rc == -EPROTO && tries < QUERY_TRIES_MAX; tries++)
		rc = query_once(fd, what, ret_json);
	return rc;
}

int ctl_query_opens(int fd, cJSON *list)
{
	struct ckptfs_query q = { .what = CKPTFS_OPENS };
	uint64_t from;

	do {
		cJSON *page, *one;

		from = q.cursor;
		if (ioctl(fd, CKPTFS_IOC_QUERY, &q) < 0)
			return -errno;
		if (q.len > sizeof(q.text))
			return -EPROTO;
		page = cJSON_ParseWithLength(q.text, q.len);
		if (!cJSON_IsArray(page) ||
		    (q.cursor != 0 && q.cursor <= from)) {
			cJSON_Delete(page);
			return -EPROTO;
		}
		while ((one = cJSON_DetachItemFromArray(page, 0)) != NULL)
			(void)cJSON_AddItemToArray(list, one);
		cJSON_Delete(page);
	} while (q.cursor != 0);
	return 0;
}

int ctl_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	return fd < 0 ? -errno : fd;
}

int ctl_ask(const char *path, enum ckptfs_what what, cJSON **ret_json)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	int rc = fd < 0 ? fd : ctl_query(fd, what, ret_json);

	return rc < 0 ? ctl_complain_query(path, rc) : CTL_FINE;
}

/* Somebody named the store where its mount point belongs. */
static bool is_store(const char *path)
{
	SCOPED(scope_free) char *name = NULL;

	return asprintf(&name, "%s/" LAYOUT_FORMAT_FILE, path) > 0 &&
	       access(name, F_OK) == 0;
}

/* The mount point of a mount whose daemon is dead: open() tells, not stat(). */
static char *dead_mount(const char *path)
{
	char *mount = strdup(path), *slash;

	CHECK(mount); /* out of memory */
	while ((slash = strrchr(mount, '/')) != NULL && slash > mount) {
		SCOPED(scope_close) int fd = -1;

		*slash = 0;
		fd = ctl_open(mount);
		if (fd != -ENOTCONN) {
			*slash = '/';
			break;
		}
	}
	return mount;
}

int ctl_complain_query(const char *path, int rc)
{
	SCOPED(scope_free) char *mount = NULL;

	switch (rc) {
	case -ENOTTY:
	case -ENOSYS:
	case -EOPNOTSUPP:
		if (is_store(path))
			ctl_complain("%s is a store, not where it is mounted; "
				     "mount it (ckptfs %s MOUNTPOINT) and give "
				     "the mount point",
				     path, path);
		else
			ctl_complain("%s is not in a ckptfs mount", path);
		return CTL_USAGE;
	case -ENOTCONN:
	case -ECONNABORTED:
		mount = dead_mount(path);
		ctl_complain("%s: the ckptfs that was mounted here has ended; "
			     "unmount it (umount %s) and mount it again",
			     path, mount);
		return CTL_PROBLEM;
	case -EACCES:
	case -EPERM:
		ctl_complain("%s: %s; ask as the user who may read it", path,
			     strerror(-rc));
		return CTL_USAGE;
	case -EPROTO:
		ctl_complain("%s: the answer of this mount is not understood; "
			     "is its ckptfs another version than this ckptctl?",
			     path);
		return CTL_PROBLEM;
	default:
		ctl_complain("%s: %s", path, strerror(-rc));
		return rc == -ENOENT || rc == -ENOTDIR ? CTL_USAGE
						       : CTL_PROBLEM;
	}
}

int ctl_refuse_mount(const char *path)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	cJSON *status;

	if (fd == -ENOTCONN || fd == -ECONNABORTED)
		return ctl_complain_query(path, fd);
	if (fd < 0 || ctl_query(fd, CKPTFS_STATUS, &status) < 0)
		return CTL_FINE;
	ctl_complain("%s is mounted; unmount it (umount %s) and give its "
		     "store%s%s",
		     path, path, *ctl_text(status, "store") ? ": " : "",
		     ctl_text(status, "store"));
	cJSON_Delete(status);
	return CTL_USAGE;
}

bool ctl_is_elsewhere(int dirfd, const char *name)
{
	static const char elsewhere[] = "pending on ";
	char path[64 + 4096], value[256];
	int n = snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dirfd,
			 name);

	return n > 0 && (size_t)n < sizeof(path) &&
	       lgetxattr(path, "user.ckptfs.shared", value, sizeof(value)) >
		       (ssize_t)strlen(elsewhere) &&
	       memcmp(value, elsewhere, strlen(elsewhere)) == 0;
}
