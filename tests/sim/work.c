/*
 * work.c - see work.h. A client changes its own paths, one call after the
 * other, and reads and syncs everybody's. What it calls and what it is answered
 * goes to the model.
 */
#include "tests/sim/work_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/drain/drain.h"

static struct client clients[CLIENTS_MAX];

/* "what_1_0" */
static struct path *path_of(const char *what, unsigned client, unsigned n)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "%s_%u_%u", what, client, n);
	return model_path(name, client);
}

static struct path *path_in(const char *folder, unsigned client, unsigned n)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "%s/%u", folder, n);
	return model_path(name, client);
}

/* Paths that nobody uses would only cost time. */
static void client_init(struct client *c, const struct plan *plan, unsigned i)
{
	struct folder *f = &c->folder;

	memset(c, 0, sizeof(*c));
	c->plan = plan;
	c->number = i;
	for (unsigned k = 0; k < plan->files; k++)
		c->file[k].path = path_of("rank", i, k);
	c->tmp.path = path_of("tmp", i, 0);
	if (plan->weight[OP_LINK])
		c->link.path = path_of("link", i, 0);
	for (unsigned k = 0; plan->weight[OP_SAVE] && k < SAVED_OF_CLIENT; k++)
		c->saved[k] = path_of("saved", i, k);
	(void)snprintf(f->name[0], sizeof(f->name[0]), "new_%u", i);
	(void)snprintf(f->name[1], sizeof(f->name[1]), "step_%u", i);
	for (unsigned k = 0; plan->weight[OP_FOLDER] && k < FILES_OF_FOLDER;
	     k++) {
		f->file[0][k] = path_in(f->name[0], i, k);
		f->file[1][k] = path_in(f->name[1], i, k);
	}
}

void work_init(const struct plan *plan)
{
	bytes_init();
	if (!plan)
		return;
	model_init(plan->options.empty_in_place_bytes);
	if (plan->options.drain_interval_s > 0)
		model_expect_parts();
	if (plan->errors || plan->errors_kv || plan->disk_bytes)
		model_expect_errors();
	for (unsigned i = 0; i < plan->clients; i++)
		client_init(&clients[i], plan, i);
}

/* --- ops
 * ------------------------------------------------------------------------ */

void say_op(const struct client *c, const char *what, const struct path *p,
	    size_t size, int rc)
{
	char text[120];

	(void)snprintf(text, sizeof(text), "client %u %s %s %zu: %d", c->number,
		       what, p ? model_name(p) : "", size, rc);
	sim_point("op", text);
}

int open_again(const char *name, int flags, struct kernel_file **ret)
{
	int rc = kernel_open(name, flags, ret);

	for (unsigned i = 0; i < 20 && rc == -ESTALE; i++)
		rc = kernel_open(name, flags, ret);
	return rc;
}

static bool ends(const struct interrupt *i)
{
	(void)i;
	return true;
}

void interrupt(struct client *c)
{
	c->interrupt = (struct interrupt){ .signalled = true, .ends = ends };
	(void)interrupt_set(&c->interrupt);
}

void interrupt_end(void)
{
	(void)interrupt_set(NULL);
}

bool fine(const struct client *c, const char *what, const struct path *p,
	  int rc)
{
	const struct plan *plan = c->plan;

	if (rc >= 0)
		return true;
	if (!plan->errors && !plan->errors_kv && !plan->disk_bytes)
		sim_fail("client %u: %s %s: %s", c->number, what,
			 p ? model_name(p) : "", strerror(-rc));
	return false;
}

void work_check_all(void)
{
	for (unsigned i = 0; i < model_paths(); i++) {
		struct path *p = model_path_at(i);
		struct client c = { .number = 99, .plan = clients[0].plan };

		read_path(&c, p);
	}
}

/* A rename that a power cut took back may have taken a link's name back, too.
 */
static void relink(struct client *c)
{
	size_t size;

	if (!c->link.path ||
	    !model_bytes(c->link.path, model_last(c->link.path), &size))
		return;
	c->link.linked = c->tmp.linked = true;
	for (unsigned i = 0; i < c->plan->files; i++)
		c->file[i].linked = true;
}

void work_check_found(bool cut)
{
	for (unsigned i = 0; i < model_paths(); i++)
		find_path(model_path_at(i), cut);
	model_check_found_all(cut);
	for (unsigned i = 0; i < CLIENTS_MAX; i++) {
		relink(&clients[i]);
		find_folder(&clients[i]);
	}
}

void work_end(void)
{
	for (unsigned i = 0; i < CLIENTS_MAX; i++) {
		if (clients[i].saver)
			saver_end(clients[i].saver);
		clients[i].saver = NULL;
	}
}

/* Anybody's; with few files one of these. */
static struct path *any_path(struct client *c)
{
	const struct plan *plan = c->plan;
	uint64_t n;

	if (plan->files == FILES_OF_CLIENT)
		return model_path_at((unsigned)chance_below(&c->chance,
							    model_paths()));
	n = chance_below(&c->chance, (uint64_t)plan->clients * plan->files);
	return clients[n / plan->files].file[n % plan->files].path;
}

static void one_op(struct client *c)
{
	const struct plan *plan = c->plan;
	unsigned sum = 0, at, op = 0;
	struct own *own = &c->file[chance_below(&c->chance, plan->files)];
	struct path *any = any_path(c);

	for (unsigned i = 0; i < OP_COUNT; i++)
		sum += plan->weight[i];
	at = (unsigned)chance_below(&c->chance, sum);
	while (at >= plan->weight[op])
		at -= plan->weight[op++];
	switch ((enum op)op) {
	case OP_WRITE: /* a file with two names is left as it is */
		if (own->linked)
			replace(c, own);
		else
			write_file(c, own->path, own->path);
		break;
	case OP_REPLACE:
		replace(c, own);
		break;
	case OP_UNLINK:
		remove_file(c, own);
		break;
	case OP_SYNC:
		sync_path(c, any);
		break;
	case OP_SYNC_ALL:
		sync_all(c);
		break;
	case OP_READ:
		read_path(c, any);
		break;
	case OP_CHANGE:
		change(c, own);
		break;
	case OP_LINK:
		make_link(c, own);
		break;
	case OP_PAUSE:
		kernel_sleep((int64_t)chance_below(
			&c->chance,
			chance_one_in(&c->chance, 3) ? 40000000000 : 5000000));
		break;
	case OP_SAVE:
		save(c);
		break;
	case OP_TRUNCATE:
		truncate_path(c, own);
		break;
	case OP_FOLDER:
		use_folder(c);
		break;
	case OP_PEEK:
		peek(c, any);
		break;
	case OP_COUNT:
		break;
	}
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	char name[16];

	(void)snprintf(name, sizeof(name), "client-%u", c->number);
	sim_name(name);
	for (unsigned i = 0; i < c->plan->ops; i++)
		one_op(c);
	return NULL;
}

void work_run(const struct plan *plan, struct store *st, unsigned round)
{
	for (unsigned i = 0; i < plan->clients; i++) {
		clients[i].st = st;
		clients[i].saver = NULL; /* of before a crash: it is gone */
		clients[i].save_size = (i % 2 ? 35u : 110u) * KIB + 77;
		clients[i].chance = chance_of(plan->seed, 100 + i + 16 * round);
		CHECK(thread_create(&clients[i].thread, client_main,
				    &clients[i]) == 0);
	}
	for (unsigned i = 0; i < plan->clients; i++)
		thread_join(&clients[i].thread);
	drain_go_on(st->drain); /* if it was held */
}
