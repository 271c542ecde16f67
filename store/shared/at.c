/*
 * at.c - who calls, where, and what is held meanwhile: what each call that
 * changes names begins with.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/shared/shared_private.h"

/*
 * Of this thread alone: glibc's setgroups() and the like are for all of them.
 * An id that is not the superuser's takes the capabilities over files along,
 * and root's brings them back (capabilities(7)).
 */
void act_as(const struct shared *s, const struct shared_caller *c)
{
	if (!s->as_root || c->uid == 0)
		return;
	(void)syscall(SYS_setgroups, c->group_count, c->groups);
	(void)syscall(SYS_setfsgid, c->gid);
	(void)syscall(SYS_setfsuid, c->uid);
}

void act_as_self(const struct shared *s, const struct shared_caller *c)
{
	if (!s->as_root || c->uid == 0)
		return;
	(void)syscall(SYS_setfsuid, 0);
	(void)syscall(SYS_setfsgid, 0);
	(void)syscall(SYS_setgroups, 0, NULL);
}

void at_end(struct at *a)
{
	if (a->fd >= 0)
		(void)close(a->fd);
	if (a->dir)
		node_put(a->s, a->dir);
}

int at_begin(struct shared *s, uint64_t dir, const char *name, struct at *ret)
{
	*ret = (struct at){ .s = s, .fd = -1, .name = name };
	ret->dir = node_get(s, dir);
	if (!ret->dir)
		return -ESTALE;
	return node_fd(s, ret->dir, &ret->fd);
}

bool at_node(struct shared *s, struct node *n, struct at *ret,
	     char name[STORE_NAME_MAX + 1])
{
	{
		HOLD(&s->lock);
		if (!n->parent)
			return false;
		ret->dir = node_ref_locked(n->parent);
		(void)snprintf(name, STORE_NAME_MAX + 1, "%s", n->name);
	}
	ret->name = name;
	return node_fd(s, ret->dir, &ret->fd) == 0;
}

int at_open(const struct at *a, int flags, struct stat *sb)
{
	int fd = openat(a->fd, a->name,
			flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return errno == ELOOP || errno == ENXIO ? -ENOENT : -errno;
	if (fstat(fd, sb) == 0 && S_ISREG(sb->st_mode))
		return fd;
	(void)close(fd);
	return -ENOENT;
}

void hold_begin(struct shared *s, struct node *n, struct hold *h)
{
	*h = (struct hold){ .s = s };
	if (!n || !n->in)
		return;
	h->n = n;
	HOLD(&s->lock);
	while (n->state == NODE_COMPLETING)
		cond_wait(&s->moved, &s->lock);
	node_ref_locked(n);
	n->renaming++;
}

void hold_end(struct hold *h)
{
	if (!h->n)
		return;
	{
		HOLD(&h->s->lock);
		h->n->renaming--;
		cond_broadcast(&h->s->moved);
	}
	node_put(h->s, h->n);
}
