/*
 * drops.c - tickets that are over, and could not be removed.
 *
 * One that stays is waited for by all who come to its name, on all nodes, until
 * this node is mounted again. So what DIR failed to remove is tried again each
 * half second. A ticket's path is never used again (ticket.h), so that it is
 * still that one, whatever else became of the name.
 */
#include <stdio.h>
#include <stdlib.h>

#include "store/base/scope.h"
#include "store/shared/shared_private.h"

struct drop {
	LIST_ENTRY(drop) link;
	char ticket[TICKET_PATH_BYTES];
};

static void keep_for_later(struct shared *s, const char *ticket)
{
	struct drop *d = malloc(sizeof(*d));

	if (!d)
		return; /* the next start finds it */
	(void)snprintf(d->ticket, sizeof(d->ticket), "%s", ticket);
	HOLD(&s->lock);
	LIST_INSERT_HEAD(&s->drops, d, link);
}

int drops_ticket(struct shared *s, const char *ticket)
{
	int rc = ticket_drop(s->home.nextfd, ticket);

	if (rc < 0)
		keep_for_later(s, ticket);
	return rc;
}

static struct drop *take(struct shared *s)
{
	struct drop *d;

	HOLD(&s->lock);
	d = LIST_FIRST(&s->drops);
	if (d)
		LIST_REMOVE(d, link);
	return d;
}

void drops_flush(struct shared *s)
{
	LIST_HEAD(, drop) failed = LIST_HEAD_INITIALIZER(failed);
	struct drop *d;

	while ((d = take(s)))
		if (ticket_drop(s->home.nextfd, d->ticket) < 0)
			LIST_INSERT_HEAD(&failed, d, link);
		else
			free(d);
	while ((d = LIST_FIRST(&failed))) {
		LIST_REMOVE(d, link);
		HOLD(&s->lock);
		LIST_INSERT_HEAD(&s->drops, d, link);
	}
}

void drops_free(struct shared *s)
{
	struct drop *d;

	while ((d = take(s)))
		free(d);
}
