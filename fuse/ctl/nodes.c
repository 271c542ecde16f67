/*
 * nodes.c - ckptctl nodes: who shares a directory, and who of them is there.
 *
 * When a node was last seen is told by the time that the directory's file
 * system gave to its `alive`, against what that file system says of now. So the
 * answer does not depend on the clocks of the nodes, and one that is wrong is
 * seen: the node wrote down its own time in that moment.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/ctl/shared.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/base/vec.h"
#include "store/shared/lost.h"

#define SECOND_NS INT64_C(1000000000)
/* Its clock is said to be off beyond this. */
#define CLOCK_OFF_S 60
/* Without a lock it is away when it was not seen for so long. */
#define AWAY_NS (3 * SHARED_ALIVE_PERIOD_NS)

struct node {
	struct shared_node is;
	uint64_t files, bytes; /* that are pending */
};

struct forgotten {
	struct lost_node is;
	uint64_t files, bytes; /* that are lost, and at their names yet */
};

struct nodes {
	const char *dir;
	int64_t now_ns; /* by DIR's clock */
	bool pending; /* asked for */
	struct node *at; /* sorted by name */
	size_t count, capacity;
	struct forgotten *lost;
	size_t lost_count, lost_capacity;
};

static int add_node(void *arg, const struct shared_node *n)
{
	struct nodes *all = arg;
	int rc = vec_grow(&all->at, all->count, &all->capacity,
			  sizeof(*all->at));

	if (rc == 0)
		all->at[all->count++] = (struct node){ .is = *n };
	return rc;
}

static int add_lost(void *arg, const struct lost_node *n)
{
	struct nodes *all = arg;
	int rc = vec_grow(&all->lost, all->lost_count, &all->lost_capacity,
			  sizeof(*all->lost));

	if (rc == 0)
		all->lost[all->lost_count++] = (struct forgotten){ .is = *n };
	return rc;
}

static int by_name(const void *a, const void *b)
{
	const struct node *x = a, *y = b;

	return strcmp(x->is.name, y->is.name);
}

static int64_t seen_s(const struct nodes *all, const struct node *n)
{
	return (all->now_ns - n->is.seen_ns) / SECOND_NS;
}

/*
 * How much its clock is ahead of DIR's, to the nearest second: the two were not
 * read in one moment. It is behind where that is negative.
 */
static int64_t ahead_s(const struct node *n)
{
	int64_t ns = n->is.alive.time_ns - n->is.seen_ns;

	return (ns + (ns < 0 ? -SECOND_NS : SECOND_NS) / 2) / SECOND_NS;
}

static bool is_away(const struct nodes *all, const struct node *n)
{
	return n->is.locked != SHARED_LOCKED &&
	       (!n->is.has_alive || all->now_ns - n->is.seen_ns > AWAY_NS);
}

/* --- For people --------------------------------------------------------- */

static const char *locked_text(const struct node *n)
{
	switch (n->is.locked) {
	case SHARED_LOCKED:
		return "yes";
	case SHARED_UNLOCKED:
		return "no";
	case SHARED_LOCK_UNKNOWN:
		break;
	}
	return "?";
}

/* Where nothing is in the last one, nothing follows the one before. */
static void print_row(int width, const char *const columns[6])
{
	(void)printf("%-*s  %-6s  %-12s  %-8s  %*s%s\n", width, columns[0],
		     columns[1], columns[2], columns[3], columns[5][0] ? -7 : 0,
		     columns[4], columns[5]);
}

static void print_node(const struct nodes *all, const struct node *n, int width)
{
	int64_t up_ns = n->is.alive.time_ns - n->is.alive.since_ns;
	char seen[40] = "never", pending[80] = "";

	if (n->is.has_alive)
		(void)snprintf(seen, sizeof(seen), "%s ago",
			       ctl_seconds(seen_s(all, n)));
	if (all->pending)
		(void)snprintf(pending, sizeof(pending), "  %s file%s, %s",
			       ctl_count(n->files), n->files == 1 ? "" : "s",
			       ctl_bytes(n->bytes));
	print_row(
		width,
		(const char *const[]){
			n->is.name, locked_text(n), seen,
			n->is.has_alive ? ctl_seconds(up_ns / SECOND_NS) : "-",
			n->is.has_alive ? n->is.alive.version : "-", pending });
}

static void print_clock(const struct node *n)
{
	int64_t ahead = ahead_s(n);

	if (!n->is.has_alive || (ahead < CLOCK_OFF_S && ahead > -CLOCK_OFF_S))
		return;
	(void)printf("%s: its clock is %s %s the one of the directory\n",
		     n->is.name, ctl_seconds(ahead < 0 ? -ahead : ahead),
		     ahead < 0 ? "behind" : "ahead of");
}

static void print_away(const struct nodes *all, const struct node *n)
{
	if (n->files > 0 && is_away(all, n))
		(void)printf("%s: it is away, and what is pending of it comes "
			     "when it is mounted again; if it never is: "
			     "ckptctl forget-node %s %s\n",
			     n->is.name, ctl_shown(all->dir), n->is.name);
}

static void print_lost(const struct nodes *all, const struct forgotten *l)
{
	char lost[80] = "";

	if (all->pending)
		(void)snprintf(lost, sizeof(lost), ", with %s file%s, %s",
			       ctl_count(l->files), l->files == 1 ? "" : "s",
			       ctl_bytes(l->bytes));
	(void)printf(
		"%s: it was forgotten%s; with its store it can join again: "
		"ckptfs -o rejoin\n",
		l->is.node, lost);
}

static void print_people(const struct nodes *all)
{
	int width = 4;

	(void)printf("%s: %s node%s\n", ctl_shown(all->dir),
		     ctl_count(all->count), all->count == 1 ? "" : "s");
	for (size_t i = 0; i < all->count; i++)
		if ((int)strlen(all->at[i].is.name) > width)
			width = (int)strlen(all->at[i].is.name);
	if (all->count > 0)
		print_row(width,
			  (const char *const[]){
				  "node", "locked", "last seen", "up",
				  "version", all->pending ? "  pending" : "" });
	for (size_t i = 0; i < all->count; i++)
		print_node(all, &all->at[i], width);
	for (size_t i = 0; i < all->count; i++)
		print_clock(&all->at[i]);
	for (size_t i = 0; i < all->count; i++)
		print_away(all, &all->at[i]);
	for (size_t i = 0; i < all->lost_count; i++)
		print_lost(all, &all->lost[i]);
}

/* --- JSON --------------------------------------------------------------- */

static void add_signed(cJSON *json, const char *name, int64_t value)
{
	(void)cJSON_AddNumberToObject(json, name, (double)value);
}

static cJSON *node_json(const struct nodes *all, const struct node *n)
{
	cJSON *one = cJSON_CreateObject();

	ctl_add_text(one, "node", n->is.name);
	if (n->is.store[0])
		ctl_add_text(one, "store", n->is.store);
	else
		(void)cJSON_AddNullToObject(one, "store");
	if (n->is.locked == SHARED_LOCK_UNKNOWN)
		(void)cJSON_AddNullToObject(one, "locked");
	else
		(void)cJSON_AddBoolToObject(one, "locked",
					    n->is.locked == SHARED_LOCKED);
	(void)cJSON_AddBoolToObject(one, "away", is_away(all, n));
	if (n->is.has_alive) {
		ctl_add_text(one, "version", n->is.alive.version);
		ctl_add_text(one, "boot", n->is.alive.boot);
		add_signed(one, "process", n->is.alive.pid);
		add_signed(one, "seen_s", seen_s(all, n));
		add_signed(one, "seen_by_its_clock_s",
			   (wall_ns() - n->is.alive.time_ns) / SECOND_NS);
		add_signed(one, "clock_ahead_s", ahead_s(n));
		add_signed(one, "up_s",
			   (n->is.alive.time_ns - n->is.alive.since_ns) /
				   SECOND_NS);
	}
	if (all->pending) {
		ctl_add_number(one, "pending_files", n->files);
		ctl_add_number(one, "pending_bytes", n->bytes);
	}
	return one;
}

static cJSON *lost_json(const struct nodes *all, const struct forgotten *l)
{
	cJSON *one = cJSON_CreateObject();

	ctl_add_text(one, "node", l->is.node);
	if (l->is.store[0])
		ctl_add_text(one, "store", l->is.store);
	else
		(void)cJSON_AddNullToObject(one, "store");
	if (l->is.seen_ns != 0)
		add_signed(one, "seen_s",
			   (all->now_ns - l->is.seen_ns) / SECOND_NS);
	if (all->pending) {
		ctl_add_number(one, "lost_files", l->files);
		ctl_add_number(one, "lost_bytes", l->bytes);
	}
	return one;
}

static void print_json(const struct nodes *all, const char *uuid)
{
	cJSON *json = cJSON_CreateObject();
	cJSON *list;

	ctl_add_text(json, "shared", all->dir);
	ctl_add_text(json, "uuid", uuid);
	list = cJSON_AddArrayToObject(json, "nodes");
	for (size_t i = 0; i < all->count; i++)
		(void)cJSON_AddItemToArray(list, node_json(all, &all->at[i]));
	list = cJSON_AddArrayToObject(json, "forgotten");
	for (size_t i = 0; i < all->lost_count; i++)
		(void)cJSON_AddItemToArray(list, lost_json(all, &all->lost[i]));
	ctl_print_json(json);
}

/* Does anybody wait for what nobody brings? */
static int exit_code(const struct nodes *all)
{
	bool bad = false;

	for (size_t i = 0; i < all->count; i++)
		bad |= all->at[i].files > 0 && is_away(all, &all->at[i]);
	return bad ? CTL_PROBLEM : CTL_FINE;
}

static int count(int homefd, const char *parent, const char *dir,
		 uint64_t *ret_files, uint64_t *ret_bytes)
{
	char path[SHARED_LOST_MAX + 16];

	(void)snprintf(path, sizeof(path), "%s/%s", parent, dir);
	return pending_count(homefd, path, ret_files, ret_bytes);
}

static int collect(struct nodes *all, const struct shared_look *l)
{
	int rc = shared_look_nodes(l->homefd, add_node, all);

	if (rc < 0)
		return rc;
	if (all->count > 0)
		qsort(all->at, all->count, sizeof(*all->at), by_name);
	/* Who may not write there has to take his own clock for DIR's. */
	if (shared_look_now(l->homefd, &all->now_ns) < 0)
		all->now_ns = wall_ns();
	for (size_t i = 0; rc == 0 && all->pending && i < all->count; i++)
		rc = count(l->homefd, SHARED_NODES_DIR, all->at[i].is.name,
			   &all->at[i].files, &all->at[i].bytes);
	if (rc == 0)
		rc = lost_each(l->homefd, add_lost, all);
	for (size_t i = 0; rc == 0 && all->pending && i < all->lost_count; i++)
		rc = count(l->homefd, SHARED_LOST_DIR, all->lost[i].is.dir,
			   &all->lost[i].files, &all->lost[i].bytes);
	return rc;
}

static int nodes(const char *dir, bool pending, bool json)
{
	SCOPED(shared_look_release) struct shared_look l = SHARED_LOOK_NONE;
	struct nodes all = { .dir = dir, .pending = pending };
	int rc = ctl_shared_open(dir, &l);

	if (rc != CTL_FINE)
		return rc;
	rc = collect(&all, &l);
	if (rc < 0) {
		rc = ctl_shared_failed(dir, "look at its nodes", rc);
	} else {
		if (json)
			print_json(&all, l.uuid);
		else
			print_people(&all);
		rc = exit_code(&all);
	}
	free(all.at);
	free(all.lost);
	return rc;
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "pending", no_argument, NULL, 'p' },
		{ 0 },
	};
	struct ctl_options o = { .command = self, .names = names };
	bool pending = false;

	while (ctl_option(&o, argc, argv) >= 0)
		pending = true;
	if (argc - optind != 1)
		return ctl_misused("nodes: name one directory that nodes "
				   "share");
	return nodes(argv[optind], pending, o.json);
}

const struct ctl_command ctl_nodes = {
	.name = "nodes",
	.arguments = "[--pending] DIR",
	.summary = "who shares a directory, and when it was last seen",
	.help = "DIR is what the nodes were given as shared=DIR. A node that is "
		"mounted has its\nlock; where the file system keeps locks to "
		"each node, who was seen within half a\nminute is there as "
		"well. Clocks do not matter: one that is a minute off is "
		"said.\n\n"
		"  --pending  also count what is pending of each; then the exit "
		"code is 1 when a node\n"
		"             is away that has something\n",
	.run = run,
};
