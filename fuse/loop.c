/*
 * loop.c - see loop.h.
 *
 * A request is looked at as the kernel wrote it, before libfuse has it: its
 * opcode, and a word or two of what follows, say whether it may wait. Each
 * thread reads, and serves what it has read; one that has served a request
 * which may wait serves one that is held, in its place, before it reads again.
 * That is enough: as one request of a user ends, there is room for one more,
 * of him or of another one.
 *
 * libfuse's own loop is the model, in what it does with threads: there is
 * always one more that reads, and idle ones beyond FS_IDLE_THREADS end. In the
 * end it cancels those that read. Ours get a signal, and go home by themselves:
 * the address sanitizer takes a cancelled thread's stack for one in use.
 */
#include "fuse/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "fuse/again.h"
#include "fuse/caller.h"
#include "store/base/ckptfs_ioctl.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/shared/shared.h"

/* How often it is asked whether who has a signal is to end: see waiting.h. */
#define SIGNALLED_WAIT_NS (INT64_C(100) * 1000000)
/* How many that read are woken at a time for what was put off; how often. */
#define DUE_WORKERS 4
#define DUE_NS (INT64_C(10) * 1000000)
/* In the end, how often who may still be reading is woken. */
#define WAKE_NS (INT64_C(10) * 1000000)
#define WAKE_SIGNAL SIGUSR1

struct request { /* as the kernel sends it; what follows depends on the opcode
		  */
	struct fuse_in_header head;
	union {
		struct fuse_interrupt_in interrupt;
		struct fuse_ioctl_in ioctl;
		struct fuse_open_in open;
		struct fuse_setattr_in setattr;
		struct fuse_write_in write;
	};
};

struct held { /* a request without a thread, or one that could be */
	TAILQ_ENTRY(held) entry;
	struct put_off off; /* what it keeps while it is put off */
	int64_t due_ns; /* until then it is; 0: it is not */
	bool signalled; /* then with what told it: */
	struct {
		struct fuse_in_header head;
		struct fuse_interrupt_in arg;
	} interrupt;
	size_t len;
	uint8_t bytes[]; /* a struct request */
};
TAILQ_HEAD(held_queue, held);

struct user { /* who has a request that runs or is held */
	TAILQ_ENTRY(user) entry;
	uid_t uid;
	unsigned running;
	struct held_queue held;
};

struct worker {
	TAILQ_ENTRY(worker) entry;
	struct loop *loop;
	pthread_t thread;
	atomic_bool reads; /* or is about to, or just did */
	struct fuse_buf buf; /* its memory is libfuse's, until we free it */
};

struct loop {
	struct fs *fs;
	unsigned waits_max; /* requests that may wait and run, at most */
	pthread_mutex_t lock; /* guards everything below */
	TAILQ_HEAD(, worker) workers;
	unsigned worker_count; /* that have not ended */
	unsigned idle_count; /* of these, that read or are about to */
	bool stop;
	TAILQ_HEAD(, user) users; /* whose turn it is first */
	unsigned running; /* of all users */
	unsigned signalled; /* of those that are held */
	unsigned off_count; /* of those that are held: put off */
	int64_t wake_ns; /* when the main thread looks at these next */
};

/* The request that this thread serves, if it may be put off. */
static _Thread_local struct {
	struct put_off *off; /* NULL: it may not */
	bool again; /* it was */
} served;

static const struct request *request_of(const void *bytes)
{
	return bytes;
}

/* Is it one whose answer may wait for the drain, and so for the disk? */
static bool may_wait(const struct fs *fs, const struct request *r)
{
	switch (r->head.opcode) {
	case FUSE_FALLOCATE:
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
	case FUSE_LINK:
	case FUSE_RENAME:
	case FUSE_RENAME2:
		return true;
	case FUSE_FLUSH:
		return fs->store->options.durable_close;
	case FUSE_IOCTL:
		return r->ioctl.cmd == CKPTFS_IOC_FLUSH ||
		       r->ioctl.cmd == CKPTFS_IOC_FLUSH_SHARED;
	case FUSE_OPEN:
		return (r->open.flags & O_ACCMODE) != O_RDONLY;
	case FUSE_SETATTR:
		return (r->setattr.valid & FATTR_SIZE) != 0;
	case FUSE_LOOKUP: /* a name may have to move first */
		return again_is_told(fs->again, (pid_t)r->head.pid);
	case FUSE_WRITE:
		return (r->write.flags & O_DSYNC) != 0;
	default:
		return false;
	}
}

/* Is it one that the shared directory has to answer, and may leave unanswered? */
static bool may_wait_for_shared(const struct request *r)
{
	switch (r->head.opcode) {
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return false;
	case FUSE_IOCTL: /* the root is asked for the mount's status */
		return r->head.nodeid != FUSE_ROOT_ID &&
		       shared_is_node(r->head.nodeid);
	case FUSE_GETATTR:
	case FUSE_READ:
	case FUSE_WRITE:
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_LSEEK:
		return shared_is_node(r->head.nodeid);
	default:
		return true;
	}
}

/* Is it one that may wait for what another node has? */
static bool may_be_put_off(const struct fs *fs, const struct request *r)
{
	return fs->shared &&
	       (r->head.opcode == FUSE_OPEN || r->head.opcode == FUSE_CREATE ||
		(r->head.opcode == FUSE_SETATTR &&
		 !(r->setattr.valid & FATTR_FH)));
}

struct put_off *loop_may_put_off(void)
{
	return served.off;
}

void loop_put_off(fuse_req_t req)
{
	CHECK(served.off);
	served.again = true;
	fuse_reply_none(req);
}

/* --- whose turn it is; the lock is held --- */

static struct user *user_find(struct loop *l, uid_t uid)
{
	struct user *u;

	TAILQ_FOREACH(u, &l->users, entry)
	if (u->uid == uid)
		return u;
	return NULL;
}

/* NULL: no memory. */
static struct user *user_find_or_add(struct loop *l, uid_t uid)
{
	struct user *u = user_find(l, uid);

	if (u)
		return u;
	u = calloc(1, sizeof(*u));
	if (!u)
		return NULL;
	u->uid = uid;
	TAILQ_INIT(&u->held);
	TAILQ_INSERT_TAIL(&l->users, u, entry);
	return u;
}

static bool has_room(const struct loop *l, const struct user *u)
{
	unsigned left = l->waits_max - l->running;

	if (u->uid == 0 || u->uid == geteuid())
		return left > 0;
	return u->running < left;
}

/* Unless he has one that runs or is held. */
static void user_drop(struct loop *l, struct user *u)
{
	if (u->running > 0 || !TAILQ_EMPTY(&u->held))
		return;
	TAILQ_REMOVE(&l->users, u, entry);
	free(u);
}

static void user_runs(struct loop *l, struct user *u)
{
	u->running++;
	l->running++;
}

static struct held *held_new(const struct fuse_buf *buf)
{
	struct held *h = calloc(1, sizeof(*h) + buf->size);

	if (!h)
		return NULL;
	h->len = buf->size;
	memcpy(h->bytes, buf->mem, buf->size);
	return h;
}

static void held_add(struct loop *l, struct user *u, struct held *h)
{
	TAILQ_INSERT_TAIL(&u->held, h, entry);
	l->off_count += h->due_ns != 0;
}

static struct held *held_take(struct loop *l, struct user *u, struct held *h)
{
	TAILQ_REMOVE(&u->held, h, entry);
	l->signalled -= h->signalled;
	l->off_count -= h->due_ns != 0;
	h->due_ns = 0;
	return h;
}

/* The first that is not put off, or not for longer. */
static struct held *held_due(const struct user *u, int64_t now_ns)
{
	struct held *h;

	TAILQ_FOREACH(h, &u->held, entry)
	if (h->due_ns <= now_ns)
		return h;
	return NULL;
}

/* --- what runs, and what is held --- */

enum turn {
	TURN_NOW, /* end_turn() afterwards */
	TURN_LATER, /* it is held, in a copy */
	TURN_UNCOUNTED, /* no memory to count it, or to hold it */
};

static enum turn take_turn(struct loop *l, const struct fuse_buf *buf)
{
	const struct request *r = request_of(buf->mem);
	struct held *h;
	struct user *u;

	HOLD(&l->lock);
	u = user_find_or_add(l, r->head.uid);
	if (!u)
		return TURN_UNCOUNTED;
	if (has_room(l, u)) {
		user_runs(l, u);
		return TURN_NOW;
	}
	h = held_new(buf);
	if (!h)
		return TURN_UNCOUNTED;
	held_add(l, u, h);
	return TURN_LATER;
}

/* The next one that is held and may run: it counts for its user. */
static struct held *next_turn_locked(struct loop *l)
{
	int64_t now_ns = l->off_count > 0 ? mono_ns() : 0;
	struct user *u;
	struct held *h;

	if (l->stop || fuse_session_exited(l->fs->se))
		return NULL;
	TAILQ_FOREACH(u, &l->users, entry)
	{
		h = has_room(l, u) ? held_due(u, now_ns) : NULL;
		if (!h)
			continue;
		user_runs(l, u);
		TAILQ_REMOVE(&l->users, u, entry);
		TAILQ_INSERT_TAIL(&l->users, u, entry);
		return held_take(l, u, h);
	}
	return NULL;
}

/*
 * One of this user has been answered, or is put off, and then it is `again`.
 * NULL: nobody is next.
 */
static struct held *end_turn(struct loop *l, uid_t uid, struct held *again)
{
	struct held *next;
	struct user *u;

	HOLD(&l->lock);
	u = user_find(l, uid);
	CHECK(u && u->running > 0);
	u->running--;
	l->running--;
	if (again) {
		again->signalled = false; /* each try asks: waiting.c */
		again->due_ns = mono_ns() + again->off.pause_ns;
		held_add(l, u, again);
		if (again->due_ns < l->wake_ns)
			(void)sem_post(&l->fs->moved);
	}
	next = next_turn_locked(l);
	user_drop(l, u);
	return next;
}

/* True: it was put off. */
static bool serve_held(struct loop *l, struct held *h)
{
	struct fuse_buf told = { .mem = &h->interrupt,
				 .size = sizeof(h->interrupt),
				 .fd = -1 };
	struct fuse_buf buf = { .mem = h->bytes, .size = h->len, .fd = -1 };

	if (h->signalled) /* it is kept until the request is there */
		fuse_session_process_buf(l->fs->se, &told);
	served.off =
		may_be_put_off(l->fs, request_of(h->bytes)) ? &h->off : NULL;
	served.again = false;
	fuse_session_process_buf(l->fs->se, &buf);
	served.off = NULL;
	return served.again;
}

/* What has its turn, and then what is held. Consumes it. */
static void serve_turns(struct loop *l, struct held *h)
{
	while (h) {
		uid_t uid = request_of(h->bytes)->head.uid;
		bool again = serve_held(l, h);
		struct held *next = end_turn(l, uid, again ? h : NULL);

		if (!again)
			free(h);
		h = next;
	}
}

/* Is it about one that is held? Then the main thread looks at that. */
static bool is_told_of_held(struct loop *l, const struct request *r)
{
	struct user *u;
	struct held *h;

	HOLD(&l->lock);
	TAILQ_FOREACH(u, &l->users, entry)
	TAILQ_FOREACH(h, &u->held, entry)
	{
		if (request_of(h->bytes)->head.unique != r->interrupt.unique)
			continue;
		if (!h->signalled) {
			h->signalled = true;
			l->signalled++;
			memcpy(&h->interrupt, r, sizeof(h->interrupt));
			(void)sem_post(&l->fs->moved);
		}
		return true;
	}
	return false;
}

static void serve(struct loop *l, const struct fuse_buf *buf)
{
	const struct request *r = request_of(buf->mem);
	uid_t uid = r->head.uid;
	struct held *own = NULL;
	enum turn turn;

	if (r->head.opcode == FUSE_INTERRUPT && is_told_of_held(l, r))
		return;
	turn = may_wait(l->fs, r) ||
			       (l->fs->shared && may_wait_for_shared(r)) ? take_turn(l, buf) : TURN_UNCOUNTED;
	if (turn == TURN_LATER)
		return;
	if (turn == TURN_NOW && may_be_put_off(l->fs, r))
		own = held_new(buf); /* else it waits in this thread */
	if (own) {
		serve_turns(l, own);
		return;
	}
	fuse_session_process_buf(l->fs->se, buf);
	if (turn == TURN_NOW)
		serve_turns(l, end_turn(l, uid, NULL));
}

/* --- who is signalled while his request is held --- */

/* The first that has a larger number than *unique, which is set. 0: none. */
static pid_t next_signalled(struct loop *l, uint64_t *unique)
{
	const struct fuse_in_header *found = NULL, *at;
	const struct user *u;
	const struct held *h;

	HOLD(&l->lock);
	TAILQ_FOREACH(u, &l->users, entry)
	TAILQ_FOREACH(h, &u->held, entry)
	{
		at = &request_of(h->bytes)->head;
		if (h->signalled && at->unique > *unique &&
		    (!found || at->unique < found->unique))
			found = at;
	}
	*unique = found ? found->unique : UINT64_MAX;
	return found ? (pid_t)found->pid : 0;
}

/* NULL: it is not held any more. */
static struct held *take_held(struct loop *l, uint64_t unique)
{
	struct user *u;
	struct held *h;

	HOLD(&l->lock);
	TAILQ_FOREACH(u, &l->users, entry)
	TAILQ_FOREACH(h, &u->held, entry)
	if (request_of(h->bytes)->head.unique == unique) {
		(void)held_take(l, u, h);
		user_drop(l, u);
		return h;
	}
	return NULL;
}

/* libfuse does not have it, so the answer is written by us. */
static void reply_interrupted(struct loop *l, uint64_t unique)
{
	struct fuse_out_header out = { .len = sizeof(out),
				       .error = -EINTR,
				       .unique = unique };
	ssize_t n = write(fuse_session_fd(l->fs->se), &out, sizeof(out));

	if (n < 0 && errno != ENOENT && errno != ENODEV)
		log_warning("an interrupted request is not answered: %s",
			    strerror(errno));
}

static void look_at_signalled(struct loop *l)
{
	uint64_t unique = 0;
	struct held *h;
	pid_t pid;

	for (;;) {
		pid = next_signalled(l, &unique);
		if (unique == UINT64_MAX)
			return;
		h = caller_is_to_end(l->fs->callers, pid, true)
			    ? take_held(l, unique)
			    : NULL;
		if (h)
			reply_interrupted(l, unique);
		free(h);
	}
}

/* --- threads --- */

static void *worker_main(void *arg);

static int worker_start_locked(struct loop *l)
{
	struct worker *w = calloc(1, sizeof(*w));
	sigset_t set, before;
	int rc;

	if (!w)
		return -ENOMEM;
	w->loop = l;
	w->buf.fd = -1;
	/* Those that end the session are the main thread's. */
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGHUP);
	(void)sigaddset(&set, SIGQUIT);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
	rc = pthread_create(&w->thread, NULL, worker_main, w);
	CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	if (rc != 0) {
		free(w);
		return -rc;
	}
	TAILQ_INSERT_TAIL(&l->workers, w, entry);
	l->worker_count++;
	l->idle_count++;
	return 0;
}

static void worker_free(struct worker *w)
{
	free(w->buf.mem);
	free(w);
}

/* It has read something: now another one has to read. */
static void worker_begins(struct loop *l, bool counts)
{
	HOLD(&l->lock);
	if (counts && --l->idle_count == 0 && !l->stop &&
	    l->worker_count < l->fs->threads)
		(void)worker_start_locked(l); /* else with those there are */
}

/* false: there are enough that read, and w, which is detached, ends. */
static bool worker_goes_on(struct loop *l, struct worker *w, bool counts)
{
	HOLD(&l->lock);
	if (counts)
		l->idle_count++;
	if (l->stop || l->idle_count <= FS_IDLE_THREADS)
		return true;
	l->idle_count--;
	l->worker_count--;
	TAILQ_REMOVE(&l->workers, w, entry);
	CHECK(pthread_detach(w->thread) == 0);
	return false;
}

static int receive(struct fuse_session *se, struct worker *w)
{
	int n;

	atomic_store(&w->reads, true);
	n = fuse_session_receive_buf(se, &w->buf);
	atomic_store(&w->reads, false);
	return n;
}

static struct held *take_due(struct loop *l)
{
	HOLD(&l->lock);
	return next_turn_locked(l);
}

/* It was woken for what was put off, perhaps. false: w ends. */
static bool serve_due(struct loop *l, struct worker *w)
{
	struct held *h = take_due(l);

	if (!h)
		return true;
	worker_begins(l, true);
	serve_turns(l, h);
	return worker_goes_on(l, w, true);
}

/* Read one, and serve it. false: the session has ended, or w has, alone. */
static bool worker_does_one(struct loop *l, struct worker *w, bool *ret_alone)
{
	int n = receive(l->fs->se, w);
	const struct request *r;
	bool counts;

	if (n == -EINTR) {
		*ret_alone = !serve_due(l, w);
		return !*ret_alone;
	}
	if (n <= 0) {
		fuse_session_exit(l->fs->se);
		return false;
	}
	/* A burst of FORGETs is no reason for more threads. */
	r = request_of(w->buf.mem);
	counts = r->head.opcode != FUSE_FORGET &&
		 r->head.opcode != FUSE_BATCH_FORGET;
	worker_begins(l, counts);
	serve(l, &w->buf);
	*ret_alone = !worker_goes_on(l, w, counts);
	return !*ret_alone;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct loop *l = w->loop;
	bool alone = false;
	sigset_t wake;

	(void)sigemptyset(&wake);
	(void)sigaddset(&wake, WAKE_SIGNAL);
	CHECK(pthread_sigmask(SIG_UNBLOCK, &wake, NULL) == 0);
	while (!fuse_session_exited(l->fs->se) && worker_does_one(l, w, &alone))
		;
	if (alone) {
		worker_free(w);
		return NULL;
	}
	HOLD(&l->lock);
	l->worker_count--;
	(void)sem_post(&l->fs->moved);
	return NULL;
}

/* --- what was put off --- */

/* When the first of those is due; INT64_MAX: there is none. */
static int64_t next_due_locked(const struct loop *l)
{
	int64_t due_ns = INT64_MAX;
	const struct user *u;
	const struct held *h;

	if (l->off_count == 0)
		return due_ns;
	TAILQ_FOREACH(u, &l->users, entry)
	TAILQ_FOREACH(h, &u->held, entry)
	if (h->due_ns != 0 && h->due_ns < due_ns)
		due_ns = h->due_ns;
	return due_ns;
}

/*
 * Wake some that read, for those that are due; each serves what is due after
 * that, too. Who is about to read does not hear it: it is done again. Returned
 * is when; INT64_MAX: when something has moved.
 */
static int64_t wake_for_due(struct loop *l)
{
	unsigned woken = 0;
	struct worker *w;
	int64_t due_ns;

	HOLD(&l->lock);
	due_ns = next_due_locked(l);
	l->wake_ns = due_ns;
	if (due_ns > mono_ns())
		return due_ns;
	TAILQ_FOREACH(w, &l->workers, entry)
	if (woken < DUE_WORKERS && atomic_load(&w->reads)) {
		(void)pthread_kill(w->thread, WAKE_SIGNAL);
		woken++;
	}
	l->wake_ns = mono_ns() + DUE_NS;
	return l->wake_ns;
}

/* Until something has moved, or it is time to look again. */
static void wait_moved(struct fs *fs, int64_t ns)
{
	struct timespec until = io_timespec(mono_ns() + ns);

	(void)sem_clockwait(&fs->moved, CLOCK_MONOTONIC, &until);
}

/* Until the session ends. */
static void wait_for_end(struct loop *l)
{
	while (!fuse_session_exited(l->fs->se)) {
		int64_t due_ns = wake_for_due(l), wait_ns;
		bool signalled;

		{
			HOLD(&l->lock);
			signalled = l->signalled > 0;
		}
		wait_ns = due_ns == INT64_MAX ? INT64_MAX : due_ns - mono_ns();
		if (signalled && wait_ns > SIGNALLED_WAIT_NS)
			wait_ns = SIGNALLED_WAIT_NS;
		if (wait_ns == INT64_MAX)
			(void)sem_wait(&l->fs->moved);
		else if (wait_ns > 0)
			wait_moved(l->fs, wait_ns);
		look_at_signalled(l);
	}
}

static void on_wake(int number)
{
	(void)number; /* that its read is interrupted is all */
}

/* Those that read; and again, for a signal may come just before the read. */
static unsigned wake_workers(struct loop *l)
{
	struct worker *w;

	HOLD(&l->lock);
	l->stop = true;
	TAILQ_FOREACH(w, &l->workers, entry)
	if (atomic_load(&w->reads))
		(void)pthread_kill(w->thread, WAKE_SIGNAL);
	return l->worker_count;
}

static void stop(struct loop *l)
{
	struct worker *w;
	struct user *u;
	struct held *h;

	while (wake_workers(l) > 0)
		wait_moved(l->fs, WAKE_NS);
	while ((w = TAILQ_FIRST(&l->workers)) != NULL) {
		CHECK(pthread_join(w->thread, NULL) == 0);
		TAILQ_REMOVE(&l->workers, w, entry);
		worker_free(w);
	}
	/* The kernel ends these calls: there is no connection any more. */
	while ((u = TAILQ_FIRST(&l->users)) != NULL) {
		while ((h = TAILQ_FIRST(&u->held)) != NULL)
			free(held_take(l, u, h));
		TAILQ_REMOVE(&l->users, u, entry);
		free(u);
	}
}

int loop_run(struct fs *fs)
{
	struct sigaction wake = { .sa_handler = on_wake }, before;
	struct loop l = { .fs = fs };
	int rc;

	l.waits_max = fs->threads - (fs->threads + 7) / 8;
	TAILQ_INIT(&l.workers);
	TAILQ_INIT(&l.users);
	CHECK(pthread_mutex_init(&l.lock, NULL) == 0);
	(void)sigemptyset(&wake.sa_mask);
	CHECK(sigaction(WAKE_SIGNAL, &wake, &before) == 0);
	{
		HOLD(&l.lock);
		rc = worker_start_locked(&l);
	}
	if (rc == 0)
		wait_for_end(&l);
	stop(&l);
	CHECK(sigaction(WAKE_SIGNAL, &before, NULL) == 0);
	CHECK(pthread_mutex_destroy(&l.lock) == 0);
	return rc;
}
