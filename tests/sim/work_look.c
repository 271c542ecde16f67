/*
 * work_look.c - how clients sync and read, and what is found after a crash.
 */
#include "tests/sim/work_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"

bool sync_path(struct client *c, struct path *p)
{
	size_t promised = model_sync_begin(p);
	int rc;

	say_op(c, "sync", p, promised, 0);
	if (c->plan->interrupts && chance_one_in(&c->chance, 4))
		interrupt(c);
	rc = kernel_sync(model_name(p));
	interrupt_end();
	say_op(c, "synced", p, promised, rc);
	/* Nobody can sync a file that is not there, or just went. */
	if (rc != -ENOENT && rc != -ESTALE && rc != -EINTR)
		(void)fine(c, "sync", p, rc);
	model_sync_end(p, promised, rc == 0);
	return rc == 0;
}

void sync_all(struct client *c)
{
	size_t promised[PATHS_MAX];
	int rc;

	for (unsigned i = 0; i < model_paths(); i++)
		promised[i] = model_sync_begin(model_path_at(i));
	say_op(c, "sync-all", NULL, 0, 0);
	rc = kernel_sync_all();
	say_op(c, "synced-all", NULL, 0, rc);
	(void)fine(c, "sync of all", NULL, rc);
	for (unsigned i = 0; i < model_paths(); i++)
		model_sync_end(model_path_at(i), promised[i], rc == 0);
}

/* Read all of it; NULL: an error, which is *ret_size. */
static uint8_t *read_all(struct kernel_file *f, size_t *ret_size)
{
	size_t room = FILE_BYTES_MAX, size = 0;
	uint8_t *bytes = malloc(room);
	ssize_t n;

	CHECK(bytes);
	while ((n = kernel_read(f, bytes + size,
				room - size < 70000 ? room - size : 70000,
				size)) > 0)
		size += (size_t)n;
	if (n < 0) {
		free(bytes);
		*ret_size = (size_t)-n;
		return NULL;
	}
	*ret_size = size;
	return bytes;
}

void read_path(struct client *c, struct path *p)
{
	size_t from = model_ended(p), size = 0;
	uint64_t since = sim_points(), opened;
	struct kernel_file *f;
	uint8_t *bytes;
	int rc;

	say_op(c, "read", p, from, 0);
	rc = open_again(model_name(p), O_RDONLY, &f);
	if (rc == -ESTALE) /* replaced again and again */
		return;
	if (rc == -EIO && !fine(c, "open to read", p, rc)) /* said once */
		rc = open_again(model_name(p), O_RDONLY, &f);
	if (rc != -ENOENT && !fine(c, "open to read", p, rc))
		return;
	opened = sim_points();
	if (rc < 0) {
		model_check_read(p, since, opened, from, model_last(p), NULL, 0,
				 true);
		return;
	}
	if (chance_one_in(&c->chance, 3))
		kernel_sleep((int64_t)chance_below(&c->chance, 3000000000));
	bytes = read_all(f, &size);
	if (!bytes)
		sim_fail("read: %s: %s", model_name(p), strerror((int)size));
	model_check_read(p, since, opened, from, model_last(p), bytes, size,
			 false);
	free(bytes);
	(void)kernel_close(f);
}

void find_path(struct path *p, bool cut)
{
	struct kernel_file *f;
	uint8_t *bytes = NULL;
	size_t size = 0;
	int rc = open_again(model_name(p), O_RDONLY, &f);

	if (rc == -EIO) /* said once */
		rc = open_again(model_name(p), O_RDONLY, &f);
	if (rc < 0 && rc != -ENOENT)
		sim_fail("found: %s: %s", model_name(p), strerror(-rc));
	if (rc == 0) {
		bytes = read_all(f, &size);
		if (!bytes)
			sim_fail("found: %s: %s", model_name(p),
				 strerror((int)size));
		(void)kernel_close(f);
	}
	model_check_found(p, bytes, size, cut);
}

void peek(struct client *c, struct path *p)
{
	unsigned times = 1 + (unsigned)chance_below(&c->chance, 8);
	struct kernel_file *f;

	say_op(c, "peek", p, times, 0);
	while (times-- > 0)
		if (open_again(model_name(p), O_RDONLY, &f) == 0)
			(void)kernel_close(f);
}
