/*
 * forget.c - ckptctl forget-node: what a node has left pending is lost, and
 * nobody waits for it any more (lost.h).
 *
 * Bytes that only that node has are given up by this, so it is refused while
 * there is a sign of life: somebody has the node's lock, or its `alive` moves.
 * The lock is held until the end, so that it does not come back meanwhile. What
 * it was to put in the place of something else is removed first, which stays
 * what it is; then one rename makes all of its files lost, and what they are is
 * listed.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fuse/ctl/shared.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/shared/forget.h"
#include "store/shared/lost.h"

/* A little more than a living node needs to write `alive`, and how often. */
#define WATCH_NS (SHARED_ALIVE_PERIOD_NS + INT64_C(2) * 1000000000)
#define WATCH_POLL_NS 250000000

struct forget {
	const char *dir, *node;
	bool yes;
	cJSON *json, *list; /* NULL: for people */
	uint64_t files, bytes, removed, lost, unread;
	bool is_lost; /* the node: what it had is listed */
};

static void list(struct forget *f, const struct pending_file *p, bool removed)
{
	cJSON *one;

	if (!f->json) {
		(void)printf("%s%10s  %s\n",
			     removed      ? "removed "
			     : p->is_lost ? "lost "
					  : "",
			     ctl_bytes((uint64_t)p->st.st_size),
			     ctl_shown(p->path));
		return;
	}
	if (cJSON_GetArraySize(f->list) >= CTL_SHARED_LISTED_MAX)
		return;
	one = cJSON_CreateObject();
	ctl_add_text(one, "path", p->path);
	ctl_add_number(one, "bytes", (uint64_t)p->st.st_size);
	(void)cJSON_AddBoolToObject(one, "removed", removed);
	(void)cJSON_AddBoolToObject(one, "lost", p->is_lost);
	(void)cJSON_AddItemToArray(f->list, one);
}

static int on_pending(void *arg, const struct pending_file *p)
{
	struct forget *f = arg;

	if (!p->node || strcmp(p->node, f->node) != 0 ||
	    p->is_lost != f->is_lost)
		return 0;
	f->files++;
	f->bytes += (uint64_t)p->st.st_size;
	f->lost += p->is_lost;
	list(f, p, false);
	return 0;
}

static void list_ticket(struct forget *f, const struct ticket_left *t)
{
	char path[sizeof(SHARED_HOME "/" SHARED_NEXT_DIR "/") +
		  TICKET_PATH_BYTES];
	const struct pending_file p = { .path = path, .st = t->st };

	(void)snprintf(path, sizeof(path),
		       SHARED_HOME "/" SHARED_NEXT_DIR "/%s", t->path);
	list(f, &p, f->yes);
}

/* It was to replace something, which stays what it is. */
static int on_ticket(void *arg, const struct ticket_left *t)
{
	struct forget *f = arg;

	f->files++;
	f->bytes += (uint64_t)t->st.st_size;
	f->removed += f->yes;
	list_ticket(f, t);
	return f->yes;
}

/* The first of them is said. */
static void on_unread(void *arg, const char *path, int rc)
{
	struct forget *f = arg;

	if (f->unread++ == 0)
		ctl_complain("%s/%s: cannot look at it: %s", f->dir, path,
			     strerror(-rc));
}

/* It ran in this boot of this machine, and does not any more. */
static bool is_dead_here(const struct home_alive *a)
{
	char boot[HOME_BOOT_BYTES];

	home_boot_id(boot);
	return strcmp(boot, "-") != 0 && strcmp(boot, a->boot) == 0 &&
	       a->pid > 0 && kill((pid_t)a->pid, 0) < 0 && errno == ESRCH;
}

/* Its `alive` does not move for as long as it would if somebody wrote it. */
static int watch(const struct forget *f, int homefd)
{
	const struct timespec pause = { .tv_nsec = WATCH_POLL_NS };
	int64_t deadline_ns = mono_ns() + WATCH_NS;
	struct ctl_progress progress = { .shown = false };
	struct shared_node first, now;

	if (shared_look_node(homefd, f->node, &first) < 0 ||
	    (first.has_alive && is_dead_here(&first.alive)))
		return CTL_FINE;
	ctl_progress_say(&progress, "looking for 12 s whether it is alive");
	while (mono_ns() < deadline_ns) {
		(void)nanosleep(&pause, NULL);
		if (shared_look_node(homefd, f->node, &now) < 0 ||
		    now.has_alive != first.has_alive ||
		    now.alive.time_ns != first.alive.time_ns ||
		    now.seen_ns != first.seen_ns) {
			ctl_progress_clear(&progress);
			ctl_complain("%s: node %s is alive; nothing was "
				     "removed: unmount it there first",
				     f->dir, f->node);
			return CTL_USAGE;
		}
	}
	ctl_progress_clear(&progress);
	return CTL_FINE;
}

/* *ret_known: there is such a node. */
static int lock(const struct forget *f, int homefd, int *ret_lockfd,
		bool *ret_known)
{
	int rc = shared_node_lock(homefd, f->node, ret_lockfd);

	if (rc == -EWOULDBLOCK) {
		ctl_complain("%s: node %s is mounted; unmount it there first",
			     f->dir, f->node);
		return CTL_USAGE;
	}
	if (rc == -EACCES || rc == -EPERM || rc == -EROFS) {
		ctl_complain("%s: %s; run this as who mounts there", f->dir,
			     strerror(-rc));
		return CTL_USAGE;
	}
	if (rc < 0 && rc != -ENOENT)
		return ctl_shared_failed(f->dir, "lock the node", rc);
	*ret_known = rc == 0;
	return CTL_FINE;
}

static void print_result(struct forget *f, bool gone)
{
	if (f->json) {
		ctl_add_text(f->json, "shared", f->dir);
		ctl_add_text(f->json, "node", f->node);
		(void)cJSON_AddBoolToObject(f->json, "forgotten", gone);
		ctl_add_number(f->json, "pending_files", f->files);
		ctl_add_number(f->json, "pending_bytes", f->bytes);
		ctl_add_number(f->json, "removed_files", f->removed);
		ctl_add_number(f->json, "lost_files", f->lost);
		ctl_add_number(f->json, "unread", f->unread);
		ctl_print_json(TAKE(f->json));
	} else {
		(void)printf("%s: node %s has %s pending file%s, %s%s\n",
			     ctl_shown(f->dir), f->node, ctl_count(f->files),
			     f->files == 1 ? "" : "s", ctl_bytes(f->bytes),
			     !gone         ? ""
			     : !f->is_lost ? "; it is forgotten"
					   : ": lost with it, as it is "
					     "forgotten");
	}
	if (f->is_lost)
		ctl_complain("whoever opens what is lost is told so (EIO): "
			     "remove it, or write it again; if node %s comes "
			     "back after all, with its store: ckptfs -o rejoin",
			     f->node);
	if (!f->yes)
		ctl_complain("nothing was changed; if node %s does not come "
			     "back, again with --yes",
			     f->node);
}

/* All of it, at once; CTL_FINE: it is forgotten. */
static int lose(struct forget *f, int dirfd, int homefd)
{
	int rc = shared_node_finish(dirfd, homefd, f->node);

	if (rc == 0)
		rc = lost_put(homefd, f->node, f->files > 0, &f->is_lost);
	return rc < 0 ? ctl_shared_failed(f->dir, "move the node to lost/", rc)
		      : CTL_FINE;
}

/* new/NODE of a node that is not there; CTL_FINE. */
static int remove_new(struct forget *f, int homefd)
{
	int rc = shared_node_remove(homefd, f->node);

	return rc < 0 ? ctl_shared_failed(f->dir, "remove what it left", rc)
		      : CTL_FINE;
}

/* One of the first form has no links: what is of it cannot be told. */
static void say_older(const struct forget *f, int homefd, bool known)
{
	char path[SHARED_NODE_MAX + 64];

	(void)snprintf(path, sizeof(path),
		       SHARED_NODES_DIR "/%s/" SHARED_OWN_DIR, f->node);
	if (known && faccessat(homefd, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
		ctl_complain("%s: node %s is of an older ckptfs, which has not "
			     "said what is pending of it; see ckptctl fsck "
			     "--shared %s",
			     f->dir, f->node, f->dir);
}

static int forget(struct forget *f)
{
	SCOPED(shared_look_release) struct shared_look l = SHARED_LOOK_NONE;
	const struct pending_walk walk = { .found = on_pending,
					   .unread = on_unread,
					   .arg = f };
	SCOPED(scope_close) int lockfd = -1;
	bool known = false, has_new, gone;
	int rc = ctl_shared_open(f->dir, &l);

	if (rc == CTL_FINE)
		rc = lock(f, l.homefd, &lockfd, &known);
	if (rc == CTL_FINE && f->yes && known)
		rc = watch(f, l.homefd);
	if (rc != CTL_FINE)
		return rc;
	say_older(f, l.homefd, known);
	has_new = shared_node_has_new(l.homefd, f->node);
	rc = shared_node_tickets(l.homefd, f->node, on_ticket, f);
	if (rc < 0)
		return ctl_shared_failed(f->dir, "look for what it replaces",
					 rc);
	if (!known && f->files == 0 && !has_new) {
		ctl_complain("%s has no node %s; 'ckptctl nodes' lists them",
			     f->dir, f->node);
		return CTL_USAGE;
	}
	if (f->yes && known)
		rc = lose(f, l.dirfd, l.homefd);
	else if (f->yes)
		rc = remove_new(f, l.homefd);
	gone = f->yes && rc == CTL_FINE;
	if (rc == CTL_FINE)
		rc = pending_walk(l.dirfd, l.homefd, &walk);
	if (rc < 0)
		(void)ctl_shared_failed(f->dir, "look for its files", rc);
	print_result(f, gone);
	return gone && rc == CTL_FINE && f->unread == 0 ? CTL_FINE
							: CTL_PROBLEM;
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "yes", no_argument, NULL, 'y' },
		{ 0 },
	};
	struct ctl_options o = { .command = self, .names = names };
	struct forget f = { .yes = false };
	int rc;

	while (ctl_option(&o, argc, argv) >= 0)
		f.yes = true;
	if (argc - optind != 2)
		return ctl_misused("forget-node: name a directory that nodes "
				   "share, and a node of it");
	f.dir = argv[optind];
	f.node = argv[optind + 1];
	if (!shared_node_is_name(f.node))
		return ctl_misused("forget-node: '%s' is no name for a node",
				   f.node);
	if (o.json) {
		f.json = cJSON_CreateObject();
		f.list = cJSON_AddArrayToObject(f.json, "files");
	}
	rc = forget(&f);
	cJSON_Delete(f.json);
	return rc;
}

const struct ctl_command ctl_forget_node = {
	.name = "forget-node",
	.arguments = "[--yes] DIR NAME",
	.summary = "give up what a node that is lost will never complete",
	.help = "Lists the files of DIR whose bytes only that node has. Readers "
		"wait for them until\nthe node is mounted again; if it is lost, "
		"--yes gives them up, all at once. They keep\ntheir names: "
		"whoever opens one is told at once that it is lost (EIO), and "
		"no tracker\nsays that their step is there, until they are "
		"removed or written again. What was to\nreplace a file is "
		"removed, and that file stays what it is. A node that is "
		"mounted, or\nshows a sign of life within 12 s, is refused "
		"with exit code 2. Without --yes nothing\nis changed, and the "
		"exit code is 1.\n\n"
		"A node that comes back after that is not mounted but with "
		"'ckptfs -o rejoin': what\nstill has its name is pending on it "
		"once more, and comes.\n\n"
		"  --yes  give them up, and forget the node\n",
	.run = run,
};
