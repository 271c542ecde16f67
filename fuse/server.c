/*
 * server.c - see server.h. A thread accepts; each client has a thread of its
 * own, so that one that has to wait for memory holds nobody up. A client's
 * thread ends when the socket is closed or the process that connected it is
 * gone, also when a child that it forked keeps the socket.
 *
 * Locks: server.lock is a leaf; a client's thread takes itself out of the list
 * under it.
 */
#include "fuse/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/log.h"
#include "store/base/node.h"
#include "store/base/scope.h"

#define SOCKET_DIR "/run/ckptfs"
#define SEND_TIMEOUT_S 10
/* How often a client's segments are looked at. */
#define TRIM_MS 1000
#define TRIM_NS (INT64_C(1000000) * TRIM_MS)

struct client {
	LIST_ENTRY(client) entry;
	struct server *server;
	struct segment_client segments;
	pthread_t thread;
	int fd;
	int wake; /* eventfd: there is something to release */
	int process; /* pidfd of who connected, or -1 */
	bool done; /* server.lock: the thread is at its end */
};

struct server {
	const char *uuid; /* of the store, as ... */
	struct segments *segments; /* ... these are */
	struct sockaddr_un address;
	socklen_t address_len;
	uint8_t token[SEGMENT_TOKEN_BYTES];
	int fd;
	int stop; /* eventfd */
	pthread_t thread;
	pthread_mutex_t lock; /* guards the list */
	LIST_HEAD(, client) clients;
	unsigned client_count;
	unsigned clients_max, clients_of_uid_max; /* immutable */
};

static int send_reply(struct client *c, const struct segment_reply *r, int fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct segment_reply copy = *r;
	struct iovec iov = { .iov_base = &copy, .iov_len = sizeof(copy) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd >= 0) {
		struct cmsghdr *cm;

		m.msg_control = control.buf;
		m.msg_controllen = sizeof(control.buf);
		cm = CMSG_FIRSTHDR(&m);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cm), &fd, sizeof(int));
	}
	return sendmsg(c->fd, &m, MSG_NOSIGNAL) == sizeof(copy) ? 0 : -EPIPE;
}

static int send_releases(struct client *c)
{
	struct segment_reply r = { .op = SEGMENT_RELEASE };
	int rc = 0;

	while (rc == 0 &&
	       segment_take_release(c->server->segments, &c->segments, &r.id))
		rc = send_reply(c, &r, -1);
	return rc;
}

static int answer(struct client *c, const struct segment_request *q)
{
	struct segment_reply r = { .op = q->op };
	struct segments *g = c->server->segments;
	SCOPED(scope_close) int fd = -1;

	if (q->version != SEGMENT_WIRE_VERSION)
		r.error = -EPROTONOSUPPORT;
	else if (memcmp(q->token, c->server->token, sizeof(q->token)) != 0)
		r.error = -EACCES;
	else if (q->op == SEGMENT_ACQUIRE)
		r.error = segment_acquire(
			g, &c->segments, q->signature, q->size_bytes,
			q->generation <= NODES_MAX ? (int)q->generation - 1
						   : -1,
			&r, &fd);
	else if (q->op == SEGMENT_MAPPED)
		r.error = segment_mapped(g, &c->segments, q->id, q->generation);
	else if (q->op == SEGMENT_RETURN)
		r.error = segment_return(g, &c->segments, q->id, q->generation);
	else if (q->op == SEGMENT_DROP)
		r.error = segment_drop(g, &c->segments, q->id);
	else
		r.error = -EINVAL;
	if (send_releases(c) < 0)
		return -EPIPE;
	return send_reply(c, &r, fd);
}

/* One request, when there is one. Negative: the client is gone, or confused. */
static int receive(struct client *c)
{
	struct segment_request q;
	ssize_t n = recv(c->fd, &q, sizeof(q), MSG_DONTWAIT | MSG_TRUNC);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n != sizeof(q))
		return -EPIPE;
	return answer(c, &q);
}

/* Waits for that for a while. */
static bool is_stopping(struct server *s)
{
	struct pollfd p = { .fd = s->stop, .events = POLLIN };

	return poll(&p, 1, TRIM_MS) > 0;
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	struct server *s = c->server;
	int64_t next_trim = 0;
	bool has_some = false;
	int rc = 0;

	segment_client_add(s->segments, &c->segments);
	while (rc == 0) {
		struct pollfd p[3] = {
			{ .fd = c->fd, .events = POLLIN },
			{ .fd = c->wake, .events = POLLIN },
			{ .fd = c->process, .events = POLLIN },
		};

		if (poll(p, 3, has_some ? TRIM_MS : -1) < 0) {
			rc = errno == EINTR ? 0 : -errno;
			continue;
		}
		if (has_some && mono_ns() >= next_trim) {
			has_some =
				segment_client_trim(s->segments, &c->segments);
			next_trim = mono_ns() + TRIM_NS;
		}
		if (p[1].revents) {
			uint64_t count;

			(void)!read(c->wake, &count, sizeof(count));
			rc = send_releases(c);
		}
		if (rc == 0 && p[0].revents) {
			rc = receive(c);
			has_some = true;
		} else if (rc == 0 && p[2].revents) /* its last words first */
			rc = -ESRCH;
	}
	segment_client_remove(s->segments, &c->segments);
	(void)shutdown(c->fd, SHUT_RDWR); /* closed when it is joined */
	while (segment_client_trim(s->segments, &c->segments) &&
	       !is_stopping(s))
		;
	segment_client_forget(s->segments, &c->segments);
	HOLD(&s->lock);
	c->done = true;
	return NULL;
}

/* NULL: nothing. */
static void client_free(struct client *c)
{
	if (!c)
		return;
	scope_close(&c->fd);
	scope_close(&c->wake);
	scope_close(&c->process);
	free(c);
}

static void on_wake(struct segment_client *sc)
{
	struct client *c = sc->arg;
	uint64_t one = 1;

	(void)!write(c->wake, &one, sizeof(one));
}

/* Join what has ended; with `all`, disconnect and join everybody. */
static void reap(struct server *s, bool all)
{
	struct client *c;

	if (all) { /* before any is waited for: one may wait for another */
		HOLD(&s->lock);
		LIST_FOREACH(c, &s->clients, entry)
			(void)shutdown(c->fd, SHUT_RDWR);
	}
	for (;;) {
		{
			HOLD(&s->lock);
			LIST_FOREACH(c, &s->clients, entry)
				if (all || c->done)
					break;
			if (!c)
				return;
			LIST_REMOVE(c, entry);
			s->client_count--;
		}
		CHECK(pthread_join(c->thread, NULL) == 0);
		client_free(c);
	}
}

/* A user who connects for ever keeps the others out no more than himself. */
static bool is_full_locked(struct server *s, uid_t uid)
{
	unsigned own = 0;
	struct client *c;

	LIST_FOREACH(c, &s->clients, entry)
		own += c->segments.uid == uid;
	return s->client_count >= s->clients_max ||
	       own >= s->clients_of_uid_max;
}

/* Who is at the other end of fd, which it takes over. NULL: no resources. */
static struct client *client_new(struct server *s, int fd)
{
	struct timeval patience = { .tv_sec = SEND_TIMEOUT_S };
	struct client *c = calloc(1, sizeof(*c));
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (!c) {
		close(fd);
		return NULL;
	}
	c->server = s;
	c->fd = fd;
	c->process = -1;
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->wake < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0) {
		client_free(c);
		return NULL;
	}
	/* A process that we cannot see (0) must close its socket. */
	if (peer.pid > 0)
		c->process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience,
			 sizeof(patience));
	c->segments = (struct segment_client){ .uid = peer.uid,
					       .wake = on_wake,
					       .arg = c };
	return c;
}

/* False: there are too many, or no resources. */
static bool client_start(struct server *s, struct client *c)
{
	HOLD(&s->lock);
	if (is_full_locked(s, c->segments.uid) ||
	    pthread_create(&c->thread, NULL, client_main, c) != 0)
		return false;
	LIST_INSERT_HEAD(&s->clients, c, entry);
	s->client_count++;
	return true;
}

static void *server_main(void *arg)
{
	struct server *s = arg;
	bool told = false; /* once, until there is room again */

	for (;;) {
		struct pollfd p[2] = {
			{ .fd = s->fd, .events = POLLIN },
			{ .fd = s->stop, .events = POLLIN },
		};
		struct client *c;
		int fd;

		if (poll(p, 2, -1) < 0 && errno != EINTR)
			break;
		if (p[1].revents)
			break;
		reap(s, false);
		fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		c = client_new(s, fd);
		if (c && client_start(s, c)) {
			told = false;
			continue;
		}
		client_free(c);
		if (!told)
			log_warning("a client of the socket is refused: there "
				    "are %u, %u of one user, or no resources; "
				    "it will write files",
				    s->clients_max, s->clients_of_uid_max);
		told = true;
	}
	return NULL;
}

/* Nobody else can have put a socket, or a link, there. */
static bool socket_dir_is_safe(void)
{
	struct stat sb;

	if (mkdir(SOCKET_DIR, 0755) < 0 && errno != EEXIST)
		return false;
	return lstat(SOCKET_DIR, &sb) == 0 && S_ISDIR(sb.st_mode) &&
	       (sb.st_uid == 0 || sb.st_uid == geteuid()) &&
	       !(sb.st_mode & (S_IWGRP | S_IWOTH));
}

/*
 * Is nobody behind this socket any more? One of another type is refused by a
 * socket that somebody has, listening or not, for its type (EPROTOTYPE), so
 * that nobody is disturbed; see unix_find_bsd() in the kernel's af_unix.c.
 */
static bool is_dead_socket(const char *name)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	SCOPED(scope_close)
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int n = snprintf(a.sun_path, sizeof(a.sun_path), SOCKET_DIR "/%s",
			 name);

	return fd >= 0 && n < (int)sizeof(a.sun_path) &&
	       connect(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 &&
	       errno == ECONNREFUSED;
}

/*
 * That of a daemon that was killed goes. It is looked at again under another
 * name: a mount of the same store may have made its own at this one meanwhile,
 * and gets it back.
 */
static int remove_dead(void *arg, int dirfd, const char *name)
{
	char aside[64]; /* it goes with another mount, if not with this one */
	size_t len = strlen(name);

	(void)arg;
	if (len < 5 || strcmp(name + len - 5, ".sock") != 0 ||
	    !is_dead_socket(name))
		return 0;
	(void)snprintf(aside, sizeof(aside), "gone-%d.sock", (int)getpid());
	if (renameat(dirfd, name, dirfd, aside) < 0)
		return 0;
	if (is_dead_socket(aside))
		(void)unlinkat(dirfd, aside, 0);
	else
		(void)renameat2(dirfd, aside, dirfd, name, RENAME_NOREPLACE);
	return 0;
}

/* Bind where others can reach it. */
static int bind_socket(struct server *s)
{
	struct sockaddr_un *a = &s->address;
	const size_t head = offsetof(struct sockaddr_un, sun_path);
	mode_t mask;
	int n, rc;

	a->sun_family = AF_UNIX;
	if (socket_dir_is_safe()) {
		n = snprintf(a->sun_path, sizeof(a->sun_path),
			     SOCKET_DIR "/%.40s.sock", s->uuid);
		s->address_len = (socklen_t)(head + (size_t)n + 1);
		/* Only one mount has this store: it is a dead one's. */
		(void)unlink(a->sun_path);
		(void)dir_each(AT_FDCWD, SOCKET_DIR, remove_dead, NULL);
		mask = umask(0);
		rc = bind(s->fd, (struct sockaddr *)a, s->address_len);
		(void)umask(mask);
		if (rc == 0)
			return 0;
	}
	n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "ckptfs-%.40s",
		     s->uuid);
	a->sun_path[0] = 0;
	s->address_len = (socklen_t)(head + 1 + (size_t)n);
	return bind(s->fd, (struct sockaddr *)a, s->address_len) < 0 ? -errno
								     : 0;
}

static void server_free(struct server *s)
{
	scope_close(&s->fd);
	scope_close(&s->stop);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

int server_start(struct store *st, struct server **ret_server)
{
	struct server *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->uuid = st->uuid;
	s->segments = &st->segments;
	s->clients_max =
		io_fd_share(15, SERVER_CLIENTS_MAX * SERVER_CLIENT_FDS) /
		SERVER_CLIENT_FDS;
	s->clients_of_uid_max = 1 + (s->clients_max - 1) / 4;
	LIST_INIT(&s->clients);
	CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
	s->stop = eventfd(0, EFD_CLOEXEC);
	/* Not blocking: who called may be gone before he is let in. */
	s->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
		       0);
	rc = s->fd < 0 || s->stop < 0 ? -errno : bind_socket(s);
	if (rc == 0 &&
	    getrandom(s->token, sizeof(s->token), 0) != sizeof(s->token))
		rc = -EIO;
	if (rc == 0 && listen(s->fd, SOMAXCONN) < 0)
		rc = -errno;
	if (rc == 0)
		rc = -pthread_create(&s->thread, NULL, server_main, s);
	if (rc < 0) {
		server_free(s);
		return rc;
	}
	*ret_server = s;
	return 0;
}

void server_stop(struct server *s)
{
	uint64_t one = 1;

	if (!s)
		return;
	CHECK(write(s->stop, &one, sizeof(one)) == sizeof(one));
	CHECK(pthread_join(s->thread, NULL) == 0);
	close(s->fd); /* who waits to be let in is told */
	s->fd = -1;
	if (s->address.sun_path[0] != 0)
		(void)unlink(s->address.sun_path);
	reap(s, true);
	server_free(s);
}

void server_address(const struct server *s, struct ckptfs_segments *ret)
{
	_Static_assert(sizeof(ret->address) >= sizeof(s->address), "fits");
	memset(ret, 0, sizeof(*ret));
	memcpy(ret->address, &s->address, s->address_len);
	ret->address_len = (uint16_t)s->address_len;
	memcpy(ret->token, s->token, sizeof(ret->token));
}
