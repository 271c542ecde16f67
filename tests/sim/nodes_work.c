/*
 * nodes_work.c - what is done on the nodes: see nodes.h. A rank does what the
 * job tells it, one task at a time; who dies with his node has not done it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "tests/sim/nodes.h"

#define SECOND INT64_C(1000000000)
#define TRIES 70 /* a second each: what a client remembers is longer gone */
#define OWN_FILES 3
#define COMMON_FILES 3

enum task {
	TASK_NONE,
	TASK_BEGIN, /* make the step */
	TASK_SAVE,
	TASK_TELL, /* name the step, and write its trackers */
};

struct rank {
	unsigned node;
	bool alive; /* on a node that is up */
	enum task task;
	unsigned step;
	bool done, failed;
};

static struct {
	struct rank rank[NODES_MAX + 1]; /* by node */
	bool over;
	unsigned churned[NODES_MAX + 1]; /* calls that were made */
} job;

/* --- writing -------------------------------------------------------------- */

/* Another node made it: a client may not know for a while. */
static bool is_worth_another_try(int rc)
{
	return rc == -ENOENT || rc == -ESTALE || rc == -EIO || rc == -ENOSPC ||
	       rc == -EDQUOT || rc == -EBUSY;
}

static int open_to_write(struct mount *mt, const char *path, int flags,
			 bool is_sure, struct mount_file **ret)
{
	int rc = mount_open(mt, path, flags, ret);

	for (int tries = 0; is_sure && rc < 0 && tries < TRIES; tries++) {
		if (!is_worth_another_try(rc))
			break;
		mount_sleep(SECOND);
		rc = mount_open(mt, path, flags, ret);
	}
	return rc;
}

/* In pieces; then closed, and perhaps synced before. */
static int write_version(struct mount_file *f, unsigned id, bool syncs)
{
	size_t size = model_size(id), off = 0;
	uint8_t *buf = malloc(size);
	struct chance c = chance_of(nodes_plan.seed + id, 41);
	unsigned pieces = size < 1000 ? 1 : 1 + (unsigned)chance_below(&c, 3);
	int rc = 0;

	CHECK(buf);
	model_bytes(id, buf, size, 0);
	model_written(id, 0);
	for (unsigned i = 0; rc == 0 && i < pieces; i++) {
		size_t len = i + 1 == pieces ? size - off
					     : size / pieces / 8 * 8;

		/* It may be written, and its node dies before it is told. */
		if (i + 1 < pieces)
			model_written(id, off + len);
		rc = mount_write(f, buf + off, len, off);
		off += len;
	}
	free(buf);
	if (rc == 0 && syncs) {
		rc = mount_fsync(f);
		if (rc == 0)
			model_synced(id);
	}
	return rc;
}

static int close_version(struct mount_file *f, unsigned id, int rc)
{
	int closed;

	model_closing(id);
	closed = mount_close(f, model_released, id);
	rc = rc < 0 ? rc : closed;
	model_closed(id, rc);
	return rc;
}

static size_t draw_size(struct chance *c)
{
	static const size_t sizes[] = { 64, 3000, 4096, 9000, 30000, 60000 };

	return sizes[chance_below(c, 1 + nodes_plan.sizes)] / 8 * 8 +
	       chance_below(c, 8) * 8;
}

/* A new file, or what an old one is to be. */
static int save(struct mount *mt, const char *path, enum file_kind kind,
		unsigned step, int flags, bool syncs, unsigned node,
		struct chance *c)
{
	unsigned id = model_version(node, path, kind, step, draw_size(c));
	struct mount_file *f;
	int rc = open_to_write(mt, path, O_WRONLY | O_CREAT | flags, true, &f);

	if (rc < 0) {
		model_void(id);
		model_closed(id, rc);
		return rc;
	}
	return close_version(f, id, write_version(f, id, syncs));
}

/* --- the job -------------------------------------------------------------- */

static void step_path(unsigned step, char ret[40])
{
	(void)snprintf(ret, 40, "run/step_%u%s", step,
		       nodes_plan.folders ? ".tmp" : "");
}

static int begin_step(struct mount *mt, unsigned step)
{
	char path[40];
	int rc = mount_mkdir(mt, "run");

	if (rc < 0 && rc != -EEXIST)
		return rc;
	step_path(step, path);
	rc = mount_mkdir(mt, path);
	return rc == -EEXIST ? 0 : rc;
}

static int save_step(struct mount *mt, struct rank *r, struct chance *c)
{
	char dir[40], path[80], names[8192];
	int rc = 0;

	step_path(r->step, dir);
	if (chance_one_in(c, 2)) /* as who looks what there is already */
		(void)mount_list(mt, dir, names, sizeof(names));
	for (unsigned i = 0; rc == 0 && i < nodes_plan.files; i++) {
		(void)snprintf(path, sizeof(path), "%s/shard_%u_%u.pt", dir,
			       r->node, i);
		rc = save(mt, path, FILE_PLAIN, r->step, O_TRUNC,
			  nodes_plan.syncs, r->node, c);
	}
	return rc;
}

static int tell_step(struct mount *mt, struct rank *r, struct chance *c)
{
	char dir[40], path[80], named[40];
	int rc = 0;

	step_path(r->step, dir);
	if (nodes_plan.metadata) {
		(void)snprintf(path, sizeof(path), "%s/.metadata", dir);
		rc = save(mt, path, FILE_META, r->step, O_TRUNC,
			  nodes_plan.syncs, r->node, c);
	}
	if (rc == 0 && nodes_plan.folders) {
		(void)snprintf(named, sizeof(named), "run/step_%u", r->step);
		rc = mount_rename(mt, dir, named, 0);
		if (rc == 0 && nodes_plan.options.publish != PUBLISH_ASYNC)
			model_folder_named(r->step);
	}
	if (rc < 0)
		return rc;
	if (nodes_plan.latest == LATEST_REPLACED)
		return save(mt, "run/latest", FILE_LATEST, r->step, O_TRUNC,
			    nodes_plan.syncs, r->node, c);
	rc = save(mt, "run/latest.tmp", FILE_LATEST, r->step, O_TRUNC,
		  nodes_plan.syncs, r->node, c);
	return rc < 0 ? rc : mount_rename(mt, "run/latest.tmp", "run/latest", 0);
}

static bool has_task(void *arg)
{
	const struct rank *r = arg;

	return job.over || (r->task != TASK_NONE && !r->done);
}

static void *rank_main(void *arg)
{
	struct node_run *n = arg;
	struct rank *r = &job.rank[n->number];
	struct chance c = chance_of(nodes_plan.seed + n->number,
				    50 + n->starts);

	sim_name("rank");
	for (;;) {
		int rc = 0;

		sim_wait(has_task, r);
		if (job.over)
			break;
		switch (r->task) {
		case TASK_BEGIN:
			rc = begin_step(n->mount, r->step);
			break;
		case TASK_SAVE:
			rc = save_step(n->mount, r, &c);
			break;
		case TASK_TELL:
			rc = tell_step(n->mount, r, &c);
			break;
		case TASK_NONE:
			break;
		}
		if (sim_traces())
			fprintf(stderr, "        node %u, task %u of step %u: %d\n",
				n->number, r->task, r->step, rc);
		if (rc < 0 && !nodes_plan.errors && !nodes_plan.deaths &&
		    r->task != TASK_TELL)
			sim_fail("rank of node %u, task %u of step %u: %s",
				 n->number, r->task, r->step, strerror(-rc));
		r->failed = rc < 0;
		r->done = true;
	}
	n->clients--;
	return NULL;
}

static bool are_done(void *arg)
{
	(void)arg;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (job.rank[i].alive && job.rank[i].task != TASK_NONE &&
		    !job.rank[i].done)
			return false;
	return true;
}

static bool any_alive(void *arg)
{
	bool all_forgotten = true;

	(void)arg;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		all_forgotten = all_forgotten && node_of(i)->forgotten;
	if (all_forgotten)
		return true;
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (job.rank[i].alive)
			return true;
	return false;
}

static unsigned leader(void)
{
	for (unsigned i = 1; i <= nodes_plan.nodes; i++)
		if (job.rank[i].alive)
			return i;
	return 0;
}

/* What all that took part in it have done, or one of them. False: not so. */
static bool all_do(enum task task, unsigned step, unsigned only)
{
	bool given[NODES_MAX + 1] = { false }, fine = true;

	for (unsigned i = 1; i <= nodes_plan.nodes; i++) {
		struct rank *r = &job.rank[i];

		if (!r->alive || (only && i != only))
			continue;
		given[i] = true;
		r->step = step;
		r->done = r->failed = false;
		r->task = task;
	}
	while (!are_done(NULL))
		sim_wait(are_done, NULL);
	for (unsigned i = 1; i <= nodes_plan.nodes; i++) {
		if (given[i] && (job.rank[i].task == TASK_NONE ||
				 job.rank[i].failed))
			fine = false; /* it has died, or could not */
		job.rank[i].task = TASK_NONE;
	}
	return fine;
}

void nodes_work_job(void)
{
	for (unsigned step = 1; step <= nodes_plan.steps; step++) {
		unsigned who;

		while (!any_alive(NULL))
			sim_wait(any_alive, NULL);
		who = leader();
		if (!all_do(TASK_BEGIN, step, who))
			continue;
		if (!all_do(TASK_SAVE, step, 0))
			continue; /* a step that nobody names */
		if (job.rank[who].alive)
			(void)all_do(TASK_TELL, step, who);
	}
}

void nodes_work_end(void)
{
	job.over = true;
}

void nodes_work_dead(unsigned number)
{
	job.rank[number].alive = false;
	job.rank[number].task = TASK_NONE;
}

/* --- beside the job ------------------------------------------------------- */

static struct einode *mark_in_place(const char *path, int flags)
{
	struct einode *in = engine_at(path);

	if (!in || !S_ISREG(einode_mode(in)) ||
	    ((flags & O_TRUNC) && einode_links(in) == 1))
		return NULL;
	++*einode_mark(in);
	return in;
}

/* It is opened to write: what of DIR that may be is known before. */
static int open_own(struct mount *mt, const char *path, int flags,
		    struct mount_file **ret, struct einode **ret_in)
{
	struct einode *before = mark_in_place(path, flags);
	bool common = strncmp(path, "common/", 7) == 0;
	int rc;

	if (common)
		model_common_open(true);
	rc = mount_open(mt, path, flags, ret);
	if (common)
		model_common_open(false);
	*ret_in = NULL;
	/* One that has a single name is not emptied there, but replaced. */
	if (rc == 0 && mount_is_of_dir(*ret) &&
	    (before || !(flags & O_TRUNC) || nodes_plan.kind.files_ns > 0 ||
	     strncmp(path, "own_", 4) != 0)) {
		*ret_in = engine_of_fd(mount_fd(*ret));
		++*einode_mark(*ret_in);
	}
	if (before)
		--*einode_mark(before);
	return rc;
}

static void write_own(struct node_run *n, const char *path, bool mine, int flags,
		      struct chance *c)
{
	int64_t began_ns = sim_clock();
	size_t size = draw_size(c);
	struct mount_file *f;
	struct einode *in;
	unsigned id, call = 0;
	struct stat sb;
	int rc;

	if (!(flags & O_TRUNC)) { /* over what is there, of the same size */
		if (mount_stat(n->mount, path, &sb) < 0 || sb.st_size < 64)
			return;
		size = (size_t)sb.st_size / 8 * 8;
	}
	id = model_version(n->number, path, FILE_PLAIN, 0, size);
	if (!(flags & O_TRUNC))
		model_changes(id);
	if (mine)
		model_own_open(path, id, flags & O_TRUNC);
	else
		call = model_common_begin(path, COMMON_WRITES, id);
	rc = open_own(n->mount, path, O_RDWR | flags, &f, &in);
	if (in)
		model_in_place(id, in);
	if (rc == 0) {
		rc = write_version(f, id, chance_one_in(c, 3));
		if (rc == 0 && !(flags & O_TRUNC))
			rc = mount_truncate(f, size);
		rc = close_version(f, id, rc);
		if (in && rc == 0) /* else nobody knows what is there */
			--*einode_mark(in);
	} else {
		model_void(id);
		model_closed(id, rc);
	}
	if (!mine) {
		model_common_end(call, rc);
		model_void(id);
		return;
	}
	model_own_closed(path, id, rc);
	if (rc == -EBUSY && model_is_bare(path))
		return; /* nobody can say when it will be whole */
	if (rc == -ESTALE && sim_clock() - began_ns > 5 * SECOND)
		return; /* it came too late to what was made for it */
	if (rc < 0 && !nodes_plan.errors)
		sim_fail("node %u writes '%s': %s", n->number, path,
			 strerror(-rc));
}

static void read_file(struct node_run *n, const char *path, unsigned least)
{
	static uint8_t buf[NODES_MAX + 1][2 * FILE_BYTES_MAX];
	uint8_t *to = buf[n->number];
	struct mount_file *f;
	struct einode *in;
	size_t done = 0;
	ssize_t got = 0;
	unsigned id;
	int rc = mount_open(n->mount, path, O_RDONLY, &f);

	if (rc < 0) {
		if (least && !nodes_plan.errors && !nodes_plan.deaths)
			sim_fail("node %u reads '%s', which is there: %s",
				 n->number, path, strerror(-rc));
		return;
	}
	do {
		got = mount_read(f, to + done, 20000, done);
		if (got > 0)
			done += (size_t)got;
	} while (got > 0 && done + 20000 <= sizeof(buf[0]));
	(void)mount_close(f, NULL, 0);
	if (got < 0) {
		if (!nodes_plan.errors && got != -ESTALE)
			sim_fail("node %u reads '%s': %s", n->number, path,
				 strerror((int)-got));
		return;
	}
	in = engine_at(path);
	if (strncmp(path, "common/", 7) == 0 || (in && *einode_mark(in)))
		return; /* somebody may be at it, in place */
	id = model_read(path, to, done);
	if (least && id < least)
		sim_fail("node %u reads version %u of '%s', and %u was closed",
			 n->number, id, path, least);
}

/* A job that goes on: what `latest` says is there is whole. */
static void resume(struct node_run *n)
{
	char text[100] = "", path[100];
	struct mount_file *f;
	unsigned step, id;
	ssize_t got;

	if (mount_open(n->mount, "run/latest", O_RDONLY, &f) < 0)
		return;
	got = mount_read(f, text, sizeof(text) - 1, 0);
	(void)mount_close(f, NULL, 0);
	if (got <= 0 || sscanf(text, "step_%u", &step) != 1)
		return;
	for (unsigned i = 0;
	     model_step_file(step, i, path, sizeof(path), &id); i++) {
		struct einode *in = engine_at(path);

		/* A client may remember that it was not there. */
		if (in)
			read_file(n, path, 0);
	}
}

enum churn {
	CHURN_WRITE,
	CHURN_REPLACE, /* by a rename */
	CHURN_UNLINK,
	CHURN_CHANGE,
	CHURN_READ,
	CHURN_READ_OTHER,
	CHURN_RESUME,
	CHURN_LINK,
	CHURN_LIST,
	CHURN_PAUSE,
	CHURN_FORGET,
	CHURN_COUNT,
};

static void check_rc(const struct node_run *n, const char *what,
		     const char *path, bool mine, int rc)
{
	if (rc == 0 || !mine || nodes_plan.errors || rc == -ENOENT)
		return;
	sim_fail("node %u %s '%s': %s", n->number, what, path, strerror(-rc));
}

static void rename_own(struct node_run *n, const char *from, const char *to,
		       bool mine)
{
	unsigned away = 0, here = 0;
	int rc;

	if (mine) {
		model_own_rename(from, to, true, 0);
	} else {
		away = model_common_begin(from, COMMON_TAKES_AWAY, 0);
		here = model_common_begin(to, COMMON_MOVES_HERE, 0);
	}
	rc = mount_rename(n->mount, from, to, 0);
	if (mine) {
		model_own_rename(from, to, false, rc);
	} else {
		model_common_end(away, rc);
		model_common_end(here, rc);
	}
	check_rc(n, "renames", from, mine, rc);
}

static void unlink_own(struct node_run *n, const char *path, bool mine)
{
	unsigned call = 0;
	int rc;

	if (mine)
		model_own_unlink(path, true, 0);
	else
		call = model_common_begin(path, COMMON_TAKES_AWAY, 0);
	rc = mount_unlink(n->mount, path);
	if (mine)
		model_own_unlink(path, false, rc);
	else
		model_common_end(call, rc);
	check_rc(n, "removes", path, mine, rc);
}

static void forget_living(struct node_run *n, unsigned other)
{
	int rc;

	node_of(other)->askers |= 1u << n->number;
	rc = nodes_forget(other);
	node_of(other)->askers &= ~(1u << n->number);
	if (rc == 0)
		sim_fail("node %u lives, and was forgotten", other);
}

static void churn_once(struct node_run *n, struct chance *c)
{
	bool mine = !nodes_plan.common || !chance_one_in(c, nodes_plan.common);
	unsigned other = 1 + (unsigned)chance_below(c, nodes_plan.nodes);
	unsigned which = (unsigned)chance_below(c, OWN_FILES);
	char path[40], tmp[60], names[8192];

	if (mine)
		(void)snprintf(path, sizeof(path), "own_%u/%u.pt", n->number,
			       which);
	else
		(void)snprintf(path, sizeof(path), "common/%u.pt", which);
	if (mine)
		(void)snprintf(tmp, sizeof(tmp), "%s.tmp", path);
	else
		(void)snprintf(tmp, sizeof(tmp), "common/%u.pt",
			       (which + 1) % COMMON_FILES);
	switch ((enum churn)chance_below(c, CHURN_COUNT)) {
	case CHURN_WRITE:
		write_own(n, path, mine, O_CREAT | O_TRUNC, c);
		break;
	case CHURN_REPLACE:
		if (mine)
			write_own(n, tmp, mine, O_CREAT | O_TRUNC, c);
		rename_own(n, tmp, path, mine);
		break;
	case CHURN_UNLINK:
		unlink_own(n, path, mine);
		break;
	case CHURN_CHANGE:
		if (mine && model_own_least(path))
			write_own(n, path, mine, 0, c);
		break;
	case CHURN_READ:
		if (mine)
			read_file(n, path, model_own_least(path));
		break;
	case CHURN_READ_OTHER:
		(void)snprintf(path, sizeof(path), "own_%u/%u.pt", other,
			       which);
		read_file(n, path, 0);
		break;
	case CHURN_RESUME:
		resume(n);
		break;
	case CHURN_LINK:
		if (!mine) {
			model_common_linked();
			(void)mount_link(n->mount, path, tmp);
		} else {
			(void)snprintf(tmp, sizeof(tmp), "common/l_%u_%u",
				       n->number, which);
			(void)mount_unlink(n->mount, tmp);
			(void)mount_link(n->mount, path, tmp);
		}
		break;
	case CHURN_LIST:
		step_path(job.rank[n->number].step, path);
		(void)mount_list(n->mount, mine ? path : "common", names,
				 sizeof(names));
		break;
	case CHURN_PAUSE:
		mount_sleep((int64_t)chance_below(c, 4 * SECOND));
		break;
	case CHURN_FORGET: /* of one that lives, which is refused */
		if (chance_one_in(c, 4) && other != n->number &&
		    node_of(other)->up)
			forget_living(n, other);
		break;
	case CHURN_COUNT:
		break;
	}
}

static void *churn_main(void *arg)
{
	struct node_run *n = arg;
	struct chance c = chance_of(nodes_plan.seed + n->number,
				    60 + n->starts);
	char own[20];

	sim_name("churn");
	(void)snprintf(own, sizeof(own), "own_%u", n->number);
	for (int tries = 0; tries < 20; tries++) {
		int rc = mount_mkdir(n->mount, own);
		int common = mount_mkdir(n->mount, "common");

		if ((rc == 0 || rc == -EEXIST) &&
		    (common == 0 || common == -EEXIST))
			break;
		mount_sleep(SECOND);
	}
	while (job.churned[n->number] < nodes_plan.churn) {
		job.churned[n->number]++;
		churn_once(n, &c);
	}
	n->clients--;
	return NULL;
}

void nodes_work_start(struct node_run *n)
{
	struct thread rank, churn;

	job.rank[n->number].node = n->number;
	job.rank[n->number].task = TASK_NONE;
	job.rank[n->number].alive = true;
	n->clients = 2;
	CHECK(thread_create(&rank, rank_main, n) == 0);
	CHECK(thread_create(&churn, churn_main, n) == 0);
}
