/*
 * mount.c - a socket to the mount's daemon, one request at a time, and the
 * thread that listens to it. See mount.h.
 */
#include "gpu/mount.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "gpu/thread.h"
#include "store/base/scope.h"

#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

/* A message of the mount. -EPIPE: the connection has ended. */
static int receive(int fd, struct segment_reply *ret, int *ret_fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = ret, .iov_len = sizeof(*ret) };
	struct msghdr m = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	struct cmsghdr *cm;
	ssize_t n;

	do {
		n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	*ret_fd = -1;
	if (n != sizeof(*ret))
		return -EPIPE;
	if (m.msg_flags & MSG_CTRUNC) /* no room in our table for it */
		*ret_fd = -EMFILE;
	cm = CMSG_FIRSTHDR(&m);
	if (cm && cm->cmsg_level == SOL_SOCKET && cm->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(cm), sizeof(int));
	return 0;
}

static void *listen_main(void *arg)
{
	struct ckpt_mount *m = arg;
	unsigned connection;
	int fd;

	{
		HOLD(&m->lock);
		fd = m->fd;
		connection = m->connection;
	}
	for (;;) {
		struct segment_reply r;
		int got;

		if (receive(fd, &r, &got) < 0)
			break;
		if (r.op == SEGMENT_RELEASE) {
			m->user->released(m, r.id);
			continue;
		}
		if (r.op == SEGMENT_DROP) /* nobody waits for it */
			continue;
		HOLD(&m->lock);
		m->reply = r;
		m->reply_fd = got;
		m->have_reply = true;
		pthread_cond_broadcast(&m->changed);
	}
	{
		HOLD(&m->lock);
		m->connection++; /* what was got from it is stale */
		pthread_cond_broadcast(&m->changed);
	}
	m->user->ended(m, connection);
	return NULL;
}

/* End what there is of a connection: request_lock is held, or nobody else is.
 */
static void disconnect(struct ckpt_mount *m)
{
	int fd;

	{
		HOLD(&m->lock);
		if (!m->listening)
			return;
		fd = m->fd;
	}
	(void)shutdown(fd, SHUT_RDWR);
	CHECK(pthread_join(m->listener, NULL) == 0);
	close(fd);
	HOLD(&m->lock);
	m->fd = -1;
	m->listening = false;
	if (m->have_reply && m->reply_fd >= 0)
		close(m->reply_fd);
	m->have_reply = false;
}

static int connect_mount(struct ckpt_mount *m)
{
	int fd, rc = 0;

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)(const void *)m->address,
		    m->address_len) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	HOLD(&m->lock);
	m->fd = fd;
	rc = thread_start(&m->listener, NULL, listen_main, m);
	if (rc < 0) {
		m->fd = -1;
		close(fd);
		return rc;
	}
	m->listening = true;
	return 0;
}

/*
 * m->connection counts up when a connection begins to be listened to, and
 * again when it ends: odd while there is one.
 */
static int connect_if_needed(struct ckpt_mount *m)
{
	int rc;

	{
		HOLD(&m->lock);
		if (m->connection % 2 == 1)
			return 0;
	}
	disconnect(m);
	{
		HOLD(&m->lock);
		m->connection++;
	}
	rc = connect_mount(m);
	if (rc < 0) {
		HOLD(&m->lock);
		m->connection++;
	}
	return rc;
}

int mount_request(struct ckpt_mount *m, struct segment_request *q,
		  struct segment_reply *ret, int *ret_fd,
		  unsigned *ret_connection)
{
	unsigned connection;
	int fd, got;

	HOLD(&m->request_lock);
	/* The mount is bound into a container, its socket is not. */
	if (connect_if_needed(m) < 0)
		return -EOPNOTSUPP;
	q->version = SEGMENT_WIRE_VERSION;
	{
		HOLD(&m->lock);
		connection = m->connection;
		fd = m->fd;
		memcpy(q->token, m->token, sizeof(q->token));
		m->have_reply = false;
	}
	if (send(fd, q, sizeof(*q), MSG_NOSIGNAL) != sizeof(*q))
		return -ESTALE;
	HOLD(&m->lock);
	while (!m->have_reply && m->connection == connection)
		pthread_cond_wait(&m->changed, &m->lock);
	if (!m->have_reply)
		return -ESTALE;
	*ret = m->reply;
	got = m->reply_fd;
	m->have_reply = false;
	if (ret_fd)
		*ret_fd = got;
	else if (got >= 0)
		close(got);
	if (ret_connection)
		*ret_connection = connection;
	return 0;
}

void mount_drop(struct ckpt_mount *m, uint64_t id, unsigned connection)
{
	struct segment_request q = {
		.version = SEGMENT_WIRE_VERSION,
		.op = SEGMENT_DROP,
		.id = id,
	};
	HOLD(&m->lock);

	if (m->connection != connection)
		return;
	memcpy(q.token, m->token, sizeof(q.token));
	/* Small and local; what cannot be sent at once is not sent. */
	(void)send(m->fd, &q, sizeof(q), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static struct ckpt_mount *mount_new(struct ckpt *c,
				    const struct mount_user *user,
				    const struct ckptfs_segments *where)
{
	struct ckpt_mount *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->c = c;
	m->user = user;
	m->fd = -1;
	memcpy(m->address, where->address, sizeof(m->address));
	m->address_len = where->address_len;
	LIST_INIT(&m->mappings);
	LIST_INIT(&m->claims);
	CHECK(pthread_mutex_init(&m->request_lock, NULL) == 0);
	CHECK(pthread_mutex_init(&m->lock, NULL) == 0);
	CHECK(pthread_cond_init(&m->changed, NULL) == 0);
	return m;
}

/* Its token is the daemon's: another one means that it was started anew. */
static void set_token(struct ckpt_mount *m, const uint8_t *token)
{
	HOLD(&m->lock);
	if (memcmp(m->token, token, sizeof(m->token)) == 0)
		return;
	memcpy(m->token, token, sizeof(m->token));
	if (m->listening) /* it was the other daemon's */
		(void)shutdown(m->fd, SHUT_RDWR);
}

int mount_find(struct ckpt *c, int dirfd, const struct mount_user *user,
	       struct ckpt_mount **ret_mount)
{
	struct ckptfs_segments where;
	struct ckpt_mount *m;
	struct statfs fs;

	if (fstatfs(dirfd, &fs) < 0)
		return -errno;
	if ((uint32_t)fs.f_type != FUSE_SUPER_MAGIC)
		return -ENOTTY;
	if (ioctl(dirfd, CKPTFS_IOC_SEGMENTS, &where) < 0) {
		/* Another file system in user space answers as it likes. */
		return errno == EOPNOTSUPP || errno == EROFS ||
				       errno == ENOTCONN || errno == ENOMEM ?
			       -errno :
			       -ENOTTY;
	}
	if (where.address_len == 0 ||
	    where.address_len > sizeof(struct sockaddr_un))
		return -EPROTO;
	{
		HOLD(&c->lock);
		for (m = c->mounts; m; m = m->next)
			if (m->address_len == where.address_len &&
			    memcmp(m->address, where.address,
				   m->address_len) == 0)
				break;
		if (!m) {
			m = mount_new(c, user, &where);
			if (!m)
				return -ENOMEM;
			m->next = c->mounts;
			c->mounts = m;
		}
	}
	set_token(m, where.token);
	*ret_mount = m;
	return 0;
}

void mounts_close(struct ckpt *c)
{
	struct ckpt_mount *m;

	while ((m = c->mounts) != NULL) {
		c->mounts = m->next;
		disconnect(m); /* its user unmaps what nobody fills */
		if (!LIST_EMPTY(&m->mappings))
			continue; /* a save was not freed: leave it be */
		pthread_cond_destroy(&m->changed);
		pthread_mutex_destroy(&m->lock);
		pthread_mutex_destroy(&m->request_lock);
		free(m);
	}
}
