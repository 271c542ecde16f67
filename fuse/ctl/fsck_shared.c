/*
 * fsck_shared.c - ckptctl fsck --shared: is everything pending in a directory
 * that nodes share somebody's? It changes nothing, and nodes go on meanwhile.
 *
 * A file is without a link for a moment when it is made. So those are looked at
 * again for a while before one is called a problem: a node that died in that
 * moment has left it for good.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fuse/ctl/fsck.h"
#include "fuse/ctl/shared.h"
#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/base/vec.h"
#include "store/shared/forget.h"
#include "store/shared/ticket.h"

#define BARE_WAIT_NS (INT64_C(2) * 1000000000)
#define BARE_POLL_NS 50000000
/* More are problems at once: they are not of one moment. */
#define BARE_MAX 1000

struct known {
	char name[SHARED_NODE_MAX + 1];
	char store[LAYOUT_UUID_BYTES];
};

struct suspect { /* nobody's when it was found */
	char *path;
	ino_t ino;
};

struct fsck_shared {
	const char *dir;
	struct shared_look look;
	cJSON *json, *list; /* NULL: for people */
	struct known *nodes;
	size_t node_count, node_capacity;
	struct suspect *suspects;
	size_t suspect_count, suspect_capacity;
	uint64_t problems, pending, pending_bytes, lost;
};

__attribute__((format(printf, 4, 5))) static void
problem(struct fsck_shared *f, const char *code, const char *path,
	const char *format, ...)
{
	SCOPED(scope_free) char *text = NULL;
	va_list ap;
	cJSON *one;
	int rc;

	va_start(ap, format);
	rc = vasprintf(&text, format, ap);
	va_end(ap);
	CHECK(rc >= 0); /* out of memory */
	f->problems++;
	if (!f->json) {
		(void)printf("%s: ", ctl_shown(path));
		ctl_print_line(text);
		return;
	}
	if (cJSON_GetArraySize(f->list) >= CTL_SHARED_LISTED_MAX)
		return;
	one = cJSON_CreateObject();
	ctl_add_text(one, "code", code);
	ctl_add_text(one, "path", path);
	ctl_add_text(one, "text", text);
	(void)cJSON_AddItemToArray(f->list, one);
}

/* --- Nodes -------------------------------------------------------------- */

static int add_node(void *arg, const struct shared_node *n)
{
	struct fsck_shared *f = arg;
	int rc = vec_grow(&f->nodes, f->node_count, &f->node_capacity,
			  sizeof(*f->nodes));

	if (rc < 0)
		return rc;
	memcpy(f->nodes[f->node_count].name, n->name, sizeof(n->name));
	memcpy(f->nodes[f->node_count].store, n->store, sizeof(n->store));
	f->node_count++;
	/* While a daemon has it, it is being made. */
	if (!n->store[0] && n->locked == SHARED_UNLOCKED)
		problem(f, "node", n->name,
			"is a node, and its file '%s' is missing or damaged, "
			"so that it is not known whose; mount it again, or "
			"'ckptctl forget-node %s %s'",
			SHARED_STORE_FILE, f->dir, n->name);
	return 0;
}

static const struct known *find_node(const struct fsck_shared *f,
				     const char *name)
{
	for (size_t n = 0; n < f->node_count; n++)
		if (strcmp(f->nodes[n].name, name) == 0)
			return &f->nodes[n];
	return NULL;
}

/* new/NAME. */
static int look_new(void *arg, int newfd, const char *name)
{
	struct fsck_shared *f = arg;
	char path[sizeof(SHARED_HOME) + 16 + NAME_MAX];

	(void)newfd;
	if (find_node(f, name))
		return 0;
	(void)snprintf(path, sizeof(path), SHARED_HOME "/" SHARED_NEW_DIR "/%s",
		       name);
	problem(f, "leftover", path,
		"is of a node that is not there; 'ckptctl forget-node %s %s' "
		"removes it",
		f->dir, name);
	return 0;
}

/* Who has it, and what is it to replace? */
static int look_ticket(void *arg, const struct ticket_left *t)
{
	char path[sizeof(SHARED_HOME "/" SHARED_NEXT_DIR "/") +
		  TICKET_PATH_BYTES];
	struct fsck_shared *f = arg;

	if (find_node(f, t->node))
		return 0;
	(void)snprintf(path, sizeof(path),
		       SHARED_HOME "/" SHARED_NEXT_DIR "/%s", t->path);
	problem(f, "leftover", path,
		"is to replace a file, and of a node that is not there; "
		"'ckptctl forget-node %s %s' removes it",
		f->dir, t->node);
	return 0;
}

static int look_tickets(struct fsck_shared *f)
{
	SCOPED(scope_close)
	int nextfd = openat(f->look.homefd, SHARED_NEXT_DIR,
			    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	if (nextfd < 0) /* nothing was ever replaced there */
		return errno == ENOENT ? 0 : -errno;
	return tickets_each(nextfd, look_ticket, f);
}

/* --- Files -------------------------------------------------------------- */

static void say_bare(struct fsck_shared *f, const char *path)
{
	problem(f, "nobodys", path,
		"has the sticky bit, and no node has a link of it: a node that "
		"died has left it (a mount removes an empty one when somebody "
		"comes to wait for it), or it is of an older ckptfs, whose node "
		"was not mounted since, and completes it; else remove it");
}

static int suspect(struct fsck_shared *f, const struct pending_file *p)
{
	struct suspect *s;
	int rc;

	if (f->suspect_count == BARE_MAX) {
		say_bare(f, p->path);
		return 0;
	}
	rc = vec_grow(&f->suspects, f->suspect_count, &f->suspect_capacity,
		      sizeof(*f->suspects));
	if (rc < 0)
		return rc;
	s = &f->suspects[f->suspect_count];
	*s = (struct suspect){ .path = strdup(p->path), .ino = p->st.st_ino };
	if (!s->path)
		return -ENOMEM;
	f->suspect_count++;
	return 0;
}

static int on_pending(void *arg, const struct pending_file *p)
{
	struct fsck_shared *f = arg;

	if (!p->node)
		return suspect(f, p);
	if (p->is_lost) {
		f->lost++;
		problem(f, "lost", p->path,
			"is lost with node %s, which was forgotten; remove it, "
			"or write it again, or mount that node with -o rejoin",
			p->node);
		return 0;
	}
	f->pending++;
	f->pending_bytes += (uint64_t)p->st.st_size;
	return 0;
}

static void on_unread(void *arg, const char *path, int rc)
{
	problem(arg, "unread", path, "cannot be looked at: %s", strerror(-rc));
}

/* The directory that it is in, without following a link; -1: it is gone. */
static int open_parent(int dirfd, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	SCOPED(scope_free)
	char *parent = strndup(path, slash ? (size_t)(slash - path) : 0);
	struct open_how how = {
		.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};

	CHECK(parent); /* out of memory */
	*ret_name = slash ? slash + 1 : path;
	return (int)syscall(SYS_openat2, dirfd, *parent ? parent : ".", &how,
			    sizeof(how));
}

/* Is it still the file that it was, and still nobody's? */
static bool is_still_bare(const struct fsck_shared *f, const struct suspect *s)
{
	const char *name;
	SCOPED(scope_close)
	int fd = open_parent(f->look.dirfd, s->path, &name);
	char node[SHARED_NODE_MAX + 1];
	struct stat st;

	return fd >= 0 && fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_ino == s->ino && (st.st_mode & S_ISVTX) &&
	       pending_owner(f->look.homefd, s->ino, node) == 0;
}

static void drop_suspects(struct fsck_shared *f)
{
	size_t left = 0;

	for (size_t n = 0; n < f->suspect_count; n++) {
		if (is_still_bare(f, &f->suspects[n]))
			f->suspects[left++] = f->suspects[n];
		else
			free(f->suspects[n].path);
	}
	f->suspect_count = left;
}

static void check_suspects(struct fsck_shared *f)
{
	const struct timespec pause = { .tv_nsec = BARE_POLL_NS };
	int64_t deadline_ns = mono_ns() + BARE_WAIT_NS;

	drop_suspects(f);
	while (f->suspect_count > 0 && mono_ns() < deadline_ns) {
		(void)nanosleep(&pause, NULL);
		drop_suspects(f);
	}
	for (size_t n = 0; n < f->suspect_count; n++)
		say_bare(f, f->suspects[n].path);
}

/* --- All of it ---------------------------------------------------------- */

static int check(struct fsck_shared *f)
{
	const struct pending_walk walk = { .found = on_pending,
					   .unread = on_unread,
					   .arg = f };
	int rc = shared_look_nodes(f->look.homefd, add_node, f);

	if (rc == 0)
		rc = dir_each(f->look.homefd, SHARED_NEW_DIR, look_new, f);
	if (rc == 0)
		rc = look_tickets(f);
	if (rc == 0)
		rc = pending_walk(f->look.dirfd, f->look.homefd, &walk);
	if (rc == 0)
		check_suspects(f);
	return rc;
}

static void print_result(struct fsck_shared *f)
{
	if (f->json) {
		ctl_add_text(f->json, "shared", f->dir);
		ctl_add_text(f->json, "uuid", f->look.uuid);
		(void)cJSON_AddBoolToObject(f->json, "ok", f->problems == 0);
		ctl_add_number(f->json, "problem_count", f->problems);
		ctl_add_number(f->json, "nodes", f->node_count);
		ctl_add_number(f->json, "pending_files", f->pending);
		ctl_add_number(f->json, "pending_bytes", f->pending_bytes);
		ctl_add_number(f->json, "lost_files", f->lost);
		ctl_print_json(TAKE(f->json));
		return;
	}
	if (f->problems == 0)
		(void)printf("%s: no problem found\n", ctl_shown(f->dir));
	else
		(void)printf("%s: %s problem%s found\n", ctl_shown(f->dir),
			     ctl_count(f->problems),
			     f->problems == 1 ? "" : "s");
	(void)printf("  %s node%s, %s pending file%s (%s)\n",
		     ctl_count(f->node_count), f->node_count == 1 ? "" : "s",
		     ctl_count(f->pending), f->pending == 1 ? "" : "s",
		     ctl_bytes(f->pending_bytes));
}

static void release(struct fsck_shared *f)
{
	for (size_t n = 0; n < f->suspect_count; n++)
		free(f->suspects[n].path);
	free(f->suspects);
	free(f->nodes);
	cJSON_Delete(f->json);
	shared_look_release(&f->look);
}

int ctl_fsck_shared(const char *dir, bool json)
{
	SCOPED(release)
	struct fsck_shared f = { .dir = dir, .look = SHARED_LOOK_NONE };
	int rc = ctl_shared_open(dir, &f.look);

	if (rc != CTL_FINE)
		return rc;
	if (json) {
		f.json = cJSON_CreateObject();
		f.list = cJSON_AddArrayToObject(f.json, "problems");
	}
	rc = check(&f);
	if (rc < 0)
		return ctl_shared_failed(dir, "finish the check", rc);
	print_result(&f);
	return f.problems == 0 ? CTL_FINE : CTL_PROBLEM;
}
