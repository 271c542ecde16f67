/*
 * replace.c - what is to replace a name, by this node's calls: see ticket.h for
 * the rule that all nodes go by.
 *
 * A local file that is to replace another one is not at its name in DIR yet,
 * but in .ckptfs/next, as a ticket; s->replacing has all of them. On this node
 * the name means it from the beginning, for the others when it is complete.
 * There is one for a name: what this node put there before goes when the newer
 * one is there.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/base/interrupt.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/shared/forget.h"
#include "store/shared/pending.h"
#include "store/shared/shared_private.h"

#define PAUSE_FIRST_NS (INT64_C(2) * 1000000)
#define PAUSE_MOST_NS (INT64_C(200) * 1000000)
/* What is taken has its place in milliseconds; an upload tries again then. */
#define UPLOAD_WAIT_NS (INT64_C(2) * 1000000000)
/* ... if its node lives. */
#define HELP_AFTER_NS (INT64_C(1) * 1000000000)
/* Of a removal, which is no file that anybody opens. */
#define REMOVAL_MODE 0600

/* --- who waits for others ------------------------------------------------- */

struct wait {
	struct shared *s;
	const struct at *at;
	bool is_upload; /* which tries again */
	int64_t since_ns, pause_ns;
};

static int folder_of(const struct at *a, ino_t *ret)
{
	struct stat sb;

	{
		HOLD(&a->s->lock);
		*ret = a->dir->engine;
	}
	if (*ret != 0)
		return 0;
	if (fstat(a->fd, &sb) < 0)
		return -errno;
	*ret = sb.st_ino;
	return 0;
}

static int wait_for_none(void *arg, const char *taken)
{
	(void)arg;
	(void)taken;
	return -EBUSY;
}

/*
 * What a node had taken when it died is done for it, as whoever forgets it
 * would do it: with its lock, so that it does not start meanwhile. taken: NULL:
 * of the name, whatever is taken.
 */
static bool help(const struct wait *w, const char *taken)
{
	const struct ticket_wait none = { wait_for_none, NULL };
	SCOPED(scope_close) int lockfd = -1;
	char found[TICKET_NAME_BYTES];
	struct shared *s = w->s;
	int nextfd = s->home.nextfd;
	struct ticket_left t;
	ino_t folder;

	if (!w->at || folder_of(w->at, &folder) < 0)
		return false;
	if (!taken && ticket_find_taken(nextfd, folder, w->at->name, found) > 0)
		taken = found;
	if (!taken || ticket_look(nextfd, folder, w->at->name, taken, &t) < 0 ||
	    !ticket_is_to_finish(&t) ||
	    !shared_node_is_dead(s->home.homefd, t.node) ||
	    shared_node_lock(s->home.homefd, t.node, &lockfd) < 0 ||
	    ticket_look(nextfd, folder, w->at->name, taken, &t) < 0 ||
	    ticket_finish(nextfd, &t, w->at->fd, &none) < 0)
		return false;
	log_info("%s: node %s died just before '%s' got its new content there: "
		 "it has that now",
		 s->dir, t.node, w->at->name);
	return true;
}

static void say_not_come(const struct wait *w, const char *taken)
{
	char path[4096] = "";

	node_path(w->s, w->at->dir, path, sizeof(path));
	log_warning("%s/%s%s%s: what another node is to put there did not come "
		    "in %u s (%s)",
		    w->s->dir, path, path[0] ? "/" : "", w->at->name,
		    w->s->pending_wait_s,
		    taken ? taken : SHARED_HOME "/" SHARED_NEXT_DIR);
}

static int64_t most_ns(const struct wait *w)
{
	return w->is_upload ? UPLOAD_WAIT_NS
			    : (int64_t)w->s->pending_wait_s * 1000000000;
}

/* As ticket_wait has it. -ERESTART: the call is put off instead. */
static int wait_on(void *arg, const char *taken)
{
	struct wait *w = arg;
	struct put_off here = { w->since_ns, w->pause_ns, 0, false };
	struct put_off *off = w->is_upload ? NULL : put_off_of_thread();
	struct put_off *p = off ? off : &here;
	struct timespec pause;

	if (p->since_ns == 0)
		p->since_ns = mono_ns();
	if (p->pause_ns == 0)
		p->pause_ns = PAUSE_FIRST_NS;
	else if (p->pause_ns < PAUSE_MOST_NS)
		p->pause_ns *= 2;
	w->since_ns = p->since_ns;
	w->pause_ns = p->pause_ns;
	if (!w->is_upload && interrupt_is_due())
		return -EINTR;
	if (mono_ns() - p->since_ns >= HELP_AFTER_NS && help(w, taken))
		return 0;
	if (mono_ns() - p->since_ns >= most_ns(w)) {
		if (!w->is_upload)
			say_not_come(w, taken);
		return -EBUSY;
	}
	if (off)
		return -ERESTART;
	pause = io_timespec(p->pause_ns);
	(void)nanosleep(&pause, NULL);
	return 0;
}

/* The ticket of this node for the name; false: it has none, and that is "". */
static bool own_ticket(const struct at *a, char ret[TICKET_PATH_BYTES])
{
	SCOPED(node_use_end) struct node_use u = { .s = a->s };

	u.n = node_replacing(a->s, a->dir, a->name);
	ret[0] = 0;
	return u.n && node_ticket(a->s, u.n, ret);
}

int replace_look(struct shared *s, const struct at *a)
{
	char own[TICKET_PATH_BYTES];
	bool has = own_ticket(a, own);
	ino_t folder;
	int rc = folder_of(a, &folder);

	return rc < 0 ? rc
		      : ticket_any(s->home.nextfd, folder, a->name,
				   has ? own : NULL);
}

/* 1: it had to wait. makes: -EEXIST when the name is there. */
static int wait_for_others(struct shared *s, const struct at *a, bool makes)
{
	struct wait w = { .s = s, .at = a };
	struct stat sb;
	int rc;

	while ((rc = replace_look(s, a)) > 0) {
		if (makes &&
		    fstatat(a->fd, a->name, &sb, AT_SYMLINK_NOFOLLOW) == 0)
			return -EEXIST;
		rc = wait_on(&w, NULL);
		if (rc < 0)
			break;
	}
	return rc < 0 ? rc : w.since_ns != 0;
}

int replace_wait(struct shared *s, const struct at *a)
{
	int rc = wait_for_others(s, a, false);

	return rc < 0 ? rc : 0;
}

int replace_wait_to_make(struct shared *s, const struct at *a)
{
	int rc = wait_for_others(s, a, true);

	return rc < 0 ? rc : 0;
}

int replace_wait_for(struct shared *s, struct node *n, ino_t number)
{
	SCOPED(at_end) struct at a = { .s = s, .fd = -1 };
	const struct put_off *off = put_off_of_thread();
	char name[STORE_NAME_MAX + 1];
	int rc;

	if (!at_node(s, n, &a, name))
		return 0;
	rc = wait_for_others(s, &a, false);
	if (rc < 0 || (rc == 0 && !(off && off->pause_ns > 0)))
		return rc;
	rc = node_has_name(s, n, number);
	return rc < 0 ? rc : rc == 0;
}

int replace_next_for(const struct at *a, char ret[TICKET_PATH_BYTES])
{
	struct shared *s = a->s;
	ino_t folder;
	uint64_t n;
	int rc = folder_of(a, &folder);

	if (rc < 0)
		return rc;
	{
		HOLD(&s->lock);
		if (s->is_forgotten)
			return -EIO;
		n = s->next_ticket++;
	}
	return ticket_next(s->home.nextfd, folder, a->name, s->home.node, n,
			   ret);
}

/* --- what is to replace a name -------------------------------------------- */

/* And nobody comes to open it who was sent there. */
static bool may_be_over(struct shared *s, const struct node *n)
{
	HOLD(&s->lock);
	return !sent_awaits_locked(s, n) &&
	       (n->state == NODE_PENDING || n->state == NODE_UPLOADING);
}

/* It has other names than its ticket. */
static bool is_linked(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int fd = -1;
	nlink_t names;

	return node_fd(s, n, &fd) < 0 || own_count_names(fd, &names) < 0 ||
	       names > 1;
}

int replace_is_followed(struct shared *s, struct node *n)
{
	SCOPED(at_end) struct at a = { .s = s, .fd = -1 };
	char ticket[TICKET_PATH_BYTES], name[STORE_NAME_MAX + 1];
	int rc;

	if (!may_be_over(s, n) || !at_node(s, n, &a, name))
		return 0;
	if (!node_ticket(s, n, ticket))
		return replace_look(s, &a);
	rc = ticket_stands(s->home.nextfd, ticket);
	return rc < 0 ? rc : rc == 0 && !is_linked(s, n);
}

void replace_give_way(struct shared *s, struct node *n)
{
	char ticket[TICKET_PATH_BYTES];

	if (!node_ticket(s, n, ticket))
		return;
	(void)drops_ticket(s, ticket);
	local_give_up(s, n);
}

/* n is to be called as `to` says, when it is complete. -ESTALE: it is gone. */
static int place(struct shared *s, struct node *n, const struct at *to,
		 const char *ticket)
{
	char *copy = strdup(ticket);

	if (!copy)
		return -ENOMEM;
	{
		HOLD(&s->lock);
		if (n->state == NODE_GONE) {
			free(copy);
			return -ESTALE;
		}
		node_place_locked(s, n, to->dir, to->name);
		node_set_ticket_locked(s, n, copy);
		n->empties = n->undone = false;
	}
	return local_save(s, n);
}

/* It is where it was, after all; or somebody has dropped it meanwhile. */
static void place_back(struct shared *s, struct node *n, const struct at *from)
{
	{
		HOLD(&s->lock);
		if (!n->ticket)
			return;
		node_set_ticket_locked(s, n, NULL);
		node_place_locked(s, n, from->dir, from->name);
	}
	(void)local_save(s, n);
}

/* Back to where it was, unless something else is there by now. */
static void move_back(struct shared *s, const char *ticket,
		      const struct at *from)
{
	char taken[TICKET_PATH_BYTES];
	int nextfd = s->home.nextfd;

	ticket_path(ticket, TICKET_TAKEN, taken);
	if (renameat2(nextfd, taken, from->fd, from->name, RENAME_NOREPLACE) ==
		    0 ||
	    (errno != EEXIST &&
	     linkat(nextfd, taken, from->fd, from->name, 0) == 0)) {
		(void)drops_ticket(s, ticket);
		return;
	}
	log_error("%s/" SHARED_HOME "/" SHARED_NEXT_DIR
		  "/%s is '%s' of a user, and cannot be put back: %s; the next "
		  "mount gives it the name that it was to get",
		  s->dir, taken, from->name, strerror(errno));
}

/* What is taken for a call has its place; what is held of this node goes. */
static int put_there(const struct at *to, const char *ticket)
{
	struct wait w = { .s = to->s, .at = to };
	const struct ticket_wait wait = { wait_on, &w };
	int nextfd = to->s->home.nextfd, rc;
	char own[TICKET_PATH_BYTES];
	bool has = own_ticket(to, own);

	rc = ticket_settle(nextfd, ticket, has ? own : NULL, &wait);
	return rc < 0 ? rc : ticket_place(nextfd, ticket, to->fd, to->name);
}

/*
 * What became the ticket is n's, if nobody was faster: another node may have
 * put its file at the name before, which gets the new name then, and is not
 * ours to keep; and who removes the new name here drops n.
 */
static int see_moved(struct shared *s, struct node *n, ino_t engine,
		     const struct at *from, const struct at *to,
		     const char *ticket)
{
	int nextfd = s->home.nextfd, rc = 0;
	struct stat sb;

	if (fstatat(nextfd, ticket, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno; /* overtaken, or dropped */
	if (sb.st_ino != engine) {
		place_back(s, n, from);
		rc = ticket_take(nextfd, ticket);
		if (rc == 0)
			rc = put_there(to, ticket);
		if (rc < 0 && rc != -ENODATA)
			move_back(s, ticket, from);
		return rc == -ENODATA ? 0 : rc;
	} else if (node_state(s, n) != NODE_GONE) {
		return 0;
	}
	(void)drops_ticket(s, ticket);
	return rc;
}

int replace_by_pending(struct shared *s, struct node *n, const struct at *from,
		       const struct at *to)
{
	SCOPED(node_use_end) struct node_use before = { .s = s };
	char ticket[TICKET_PATH_BYTES];
	ino_t engine;
	int rc = replace_next_for(to, ticket);

	if (rc < 0)
		return rc;
	before.n = node_replacing(s, to->dir, to->name);
	{
		HOLD(&s->lock);
		engine = n->engine;
	}
	/* A node that dies finds the ticket, whatever its record says. */
	rc = place(s, n, to, ticket);
	if (rc == 0)
		rc = ticket_move(s->home.nextfd, ticket, TICKET_OPEN, from->fd,
				 from->name);
	if (rc < 0)
		place_back(s, n, from);
	else
		rc = see_moved(s, n, engine, from, to, ticket);
	if (rc == 0 && before.n)
		(void)replace_drop(s, before.n);
	return rc;
}

int replace_from(struct shared *s, struct node *n, int fromfd, const char *name)
{
	SCOPED(at_end) struct at to = { .s = s, .fd = -1 };
	char ticket[TICKET_PATH_BYTES], at[STORE_NAME_MAX + 1];
	int rc = at_node(s, n, &to, at) ? replace_next_for(&to, ticket)
					: -ESTALE;

	if (rc == 0)
		rc = ticket_move(s->home.nextfd, ticket, TICKET_OPEN, fromfd,
				 name);
	return rc < 0 ? rc : place(s, n, &to, ticket);
}

int replace_another(struct shared *s, struct node *n, const struct at *to)
{
	char old[TICKET_PATH_BYTES], ticket[TICKET_PATH_BYTES];
	int nextfd = s->home.nextfd, rc = replace_next_for(to, ticket);

	if (rc < 0)
		return rc;
	if (!node_ticket(s, n, old))
		return -ESTALE;
	/* It was taken perhaps, by a try of its upload that failed. */
	rc = ticket_take(nextfd, old);
	if (rc == 0) {
		char taken[TICKET_PATH_BYTES];

		ticket_path(old, TICKET_TAKEN, taken);
		rc = ticket_move(nextfd, ticket, TICKET_OPEN, nextfd, taken);
	}
	if (rc < 0)
		return rc == -ENODATA ? -ESTALE : rc;
	(void)drops_ticket(s, old);
	return place(s, n, to, ticket);
}

bool replace_is_over(struct shared *s, struct node *n)
{
	SCOPED(scope_close) int fd = -1;
	nlink_t names;

	if (!may_be_over(s, n) || node_fd(s, n, &fd) < 0 ||
	    own_count_names(fd, &names) < 0 || names > 0 ||
	    !may_be_over(s, n)) /* it is whole, and so is its name */
		return false;
	local_give_up(s, n);
	return true;
}

int replace_await(struct shared *s, struct node *n)
{
	int64_t end_ns = mono_ns() + (int64_t)s->pending_wait_s * 1000000000;

	while (node_replaces(s, n)) {
		if (interrupt_is_due())
			return -EINTR;
		if (mono_ns() >= end_ns)
			return -EBUSY;
		HOLD(&s->lock);
		if (n->ticket)
			(void)cond_wait_until(&s->moved, &s->lock,
					      mono_ns() + PAUSE_MOST_NS);
	}
	return 0;
}

/* --- what has its place, or goes, before the call returns ------------------
 */

int replace_by_whole(struct shared *s, const struct at *from,
		     const struct at *to)
{
	char ticket[TICKET_PATH_BYTES];
	int rc = replace_next_for(to, ticket);

	if (rc == 0)
		rc = ticket_move(s->home.nextfd, ticket, TICKET_TAKEN, from->fd,
				 from->name);
	if (rc < 0)
		return rc;
	rc = put_there(to, ticket);
	if (rc < 0)
		move_back(s, ticket, from);
	return rc;
}

int replace_by_none(struct shared *s, const struct at *a)
{
	char ticket[TICKET_PATH_BYTES], own[TICKET_PATH_BYTES];
	struct wait w = { .s = s, .at = a };
	const struct ticket_wait wait = { wait_on, &w };
	bool has = own_ticket(a, own);
	int nextfd = s->home.nextfd, rc = replace_next_for(a, ticket), fd = -1;

	if (rc == 0)
		rc = fd = ticket_make(nextfd, ticket, TICKET_REMOVES,
				      REMOVAL_MODE);
	if (rc < 0)
		return rc;
	(void)close(fd);
	rc = ticket_settle(nextfd, ticket, has ? own : NULL, &wait);
	if (rc == 0)
		return ticket_remove(nextfd, ticket, a->fd, a->name);
	(void)drops_ticket(s, ticket);
	return rc;
}

bool replace_drop(struct shared *s, struct node *n)
{
	SCOPED(hold_end) struct hold h = { 0 };
	SCOPED(scope_close) int fd = -1;
	char ticket[TICKET_PATH_BYTES];
	nlink_t names;

	hold_begin(s, n, &h);
	if (!node_ticket(s, n, ticket))
		return false;
	/* Who is just making it takes it away, as it is gone. */
	if (drops_ticket(s, ticket) < 0 || node_state(s, n) == NODE_MAKING ||
	    node_fd(s, n, &fd) < 0 || own_count_names(fd, &names) < 0 ||
	    names == 0) {
		local_drop(s, n);
		return true;
	}
	{
		HOLD(&s->lock);
		node_set_ticket_locked(s, n, NULL);
	}
	(void)local_save(s, n);
	return true;
}

bool replace_drop_at(struct shared *s, const struct at *a)
{
	SCOPED(node_use_end) struct node_use u = { .s = s };

	u.n = node_replacing(s, a->dir, a->name);
	return u.n && replace_drop(s, u.n);
}

/* --- the last calls of an upload ------------------------------------------ */

/* What this node has of what is at the name, which is no folder. */
static int find_old(struct shared *s, const struct at *a, struct node **ret)
{
	struct stat sb;

	if (fstatat(a->fd, a->name, &sb, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	if (S_ISDIR(sb.st_mode))
		return -EISDIR;
	*ret = local_at(s, a->dir, a->name, &sb);
	return 0;
}

/* -ENODATA: its folder was removed, and what is to be in it goes. */
static int place_in(const struct at *a, const char *ticket)
{
	int nextfd = a->s->home.nextfd;
	int rc = ticket_place(nextfd, ticket, a->fd, a->name);
	struct stat sb;

	if (rc != -ENOENT || fstat(a->fd, &sb) < 0 || sb.st_nlink > 0)
		return rc;
	rc = ticket_drop(nextfd, ticket);
	return rc < 0 ? rc : -ENODATA;
}

int replace_complete(struct shared *s, struct node *n, int fd,
		     struct node **ret_old)
{
	SCOPED(at_end) struct at a = { .s = s, .fd = -1 };
	char ticket[TICKET_PATH_BYTES], name[STORE_NAME_MAX + 1];
	struct wait w = { .s = s, .at = &a, .is_upload = true };
	const struct ticket_wait wait = { wait_on, &w };
	int nextfd = s->home.nextfd, rc;

	*ret_old = NULL;
	if (!node_ticket(s, n, ticket))
		return 1;
	rc = at_node(s, n, &a, name) ? ticket_take(nextfd, ticket) : -ESTALE;
	if (rc == 0) {
		rc = ticket_settle(nextfd, ticket, NULL, &wait);
		if (rc == 0)
			rc = find_old(s, &a, ret_old);
		/* It is not to hold up others until the next try. */
		if (rc < 0 && rc != -ENODATA)
			(void)ticket_untake(nextfd, ticket);
	}
	if (rc == 0) {
		if (in_place_write(&a, n, fd, *ret_old) == 0)
			return 2;
		rc = place_in(&a, ticket);
	}
	if (rc < 0 && rc != -ENODATA)
		return rc;
	HOLD(&s->lock);
	node_set_ticket_locked(s, n, NULL);
	return rc == -ENODATA;
}

/* --- what the last daemon had taken --------------------------------------- */

static uint64_t number_of(const char *ticket)
{
	return strtoull(strrchr(ticket, '.') + 1, NULL, 16);
}

static bool is_of_file(struct shared *s, const char *ticket)
{
	struct node *n;

	HOLD(&s->lock);
	LIST_FOREACH(n, &s->replacing, replacing)
		if (strcmp(n->ticket, ticket) == 0)
			return true;
	return false;
}

static bool is_left(void *arg, const struct ticket_left *t)
{
	struct shared *s = arg;

	return strcmp(t->node, s->home.node) == 0 &&
	       number_of(t->path) < s->first_ticket && !is_of_file(s, t->path);
}

int replace_finish(struct shared *s)
{
	struct wait w = { .s = s, .is_upload = true };
	const struct ticket_wait wait = { wait_on, &w };
	const struct ticket_pick pick = { is_left, s };

	return tickets_finish(s->home.dirfd, s->home.nextfd, &pick, &wait);
}
