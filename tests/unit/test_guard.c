/*
 * What is said of steps that are published, by many at once; see
 * tests/mount/test_structure.py for the words and what calls it.
 */
#include <pthread.h>

#include "tests/unit/live_store.h"

#include "store/guard/guard_private.h"

#define TENSOR_BYTES (64 * KIB)
#define PUBLISHERS 4
#define STEPS 12

/* A step of `count` tensors, under a name that is not published yet. */
static void make_step(struct live *l, const char *folder, size_t count,
		      uint64_t seed)
{
	struct payload tensors[4];
	char path[128];
	uint8_t *file;
	size_t len;

	live_mkdir(l, folder);
	for (size_t i = 0; i < count; i++)
		tensors[i] = (struct payload){ seed + i, TENSOR_BYTES };
	file = safetensors(tensors, count, 0, &len);
	(void)snprintf(path, sizeof(path), "%s/model.safetensors", folder);
	live_write(l, path, file, len);
	free(file);
}

/* As a mount does it. */
static int publish(struct live *l, const char *from, const char *to)
{
	bool looked;
	int rc = guard_rename(l->st->guard, ROOT_INO, from, ROOT_INO, to,
			      &looked);

	if (rc == 0)
		rc = live_rename(l, from, to, 0);
	if (rc == 0)
		guard_named(l->st->guard, ROOT_INO, to, looked);
	return rc;
}

static int step(struct live *l, const char *name, size_t count, uint64_t seed)
{
	char aside[64];

	(void)snprintf(aside, sizeof(aside), "%s.tmp", name);
	make_step(l, aside, count, seed);
	return publish(l, aside, name);
}

static struct guard_figures figures(struct live *l)
{
	struct guard_figures f;

	guard_wait_idle(l->st->guard);
	guard_figures(l->st->guard, &f);
	assert_int_equal(f.waiting, 0);
	return f;
}

static struct live guarded(enum guard_policy policy)
{
	struct store_options o = live_options();

	o.structure = policy;
	return live_new(&o);
}

static void every_publish_is_looked_at_once(void **state)
{
	struct live l = guarded(GUARD_WARN);

	(void)state;
	assert_int_equal(step(&l, "step_1", 2, 1), 0);
	assert_int_equal(step(&l, "step_2", 2, 10), 0);
	assert_int_equal(step(&l, "step_3", 3, 20), 0);
	assert_int_equal(step(&l, "step_4", 3, 20), 0);
	assert_int_equal(figures(&l).checked, 4);
	assert_int_equal(figures(&l).different, 1);
	assert_int_equal(figures(&l).identical, 1);
	assert_non_null(strstr(figures(&l).last, "step_4"));
	live_free(&l);
}

static void what_is_refused_is_where_it_was(void **state)
{
	struct live l = guarded(GUARD_REFUSE);

	(void)state;
	assert_int_equal(step(&l, "step_1", 3, 1), 0);
	assert_int_equal(step(&l, "step_2", 2, 10), -EUCLEAN);
	assert_absent(&l, "step_2");
	assert_int_equal(step(&l, "step_3", 4, 20), 0);
	assert_int_equal(figures(&l).refused, 1);
	assert_int_equal(figures(&l).gone, 1);
	assert_int_equal(figures(&l).checked, 3);
	live_free(&l);
}

/* Nothing may be lost when a store is closed while the thread has work. */
static void a_store_that_is_closed_has_looked_at_everything(void **state)
{
	struct store_options o = live_options();
	struct live l;

	(void)state;
	o.structure = GUARD_WARN;
	o.hold_drain = true; /* the thread waits until it is closed */
	l = live_new(&o);
	for (unsigned i = 0; i < STEPS; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "step_%u", i);
		assert_int_equal(step(&l, name, 1 + i % 2, i), 0);
	}
	live_free(&l);
}

/* Who publishes faster than anybody can look is not made to wait. */
static void what_is_too_much_is_overlooked_and_counted(void **state)
{
	const unsigned waiting = 256, more = 7;
	struct store_options o = live_options();
	struct guard_figures f;
	struct live l;

	(void)state;
	o.structure = GUARD_WARN;
	o.hold_drain = true; /* the thread waits until it is closed */
	l = live_new(&o);
	live_write(&l, "held", "x", 1); /* or there is nothing to wait for */
	for (unsigned i = 0; i < waiting + more; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "step_%u", i);
		live_mkdir(&l, "aside");
		assert_int_equal(publish(&l, "aside", name), 0);
	}
	assert_int_equal(publish(&l, "step_1", "step_300"), 0);
	guard_figures(l.st->guard, &f);
	assert_int_equal(f.waiting, waiting);
	assert_int_equal(f.overlooked, more + 1);
	live_free(&l);
}

#define LARGE_STEPS 3

struct publisher {
	struct live *l;
	unsigned number;
};

static void *publish_large(void *arg)
{
	const struct publisher *p = arg;

	for (unsigned n = 1; n <= LARGE_STEPS; n++) {
		char from[64], to[64];

		(void)snprintf(from, sizeof(from), "aside_%u_%u", p->number, n);
		(void)snprintf(to, sizeof(to), "user%u_step_%u", p->number, n);
		assert_int_equal(publish(p->l, from, to), 0);
	}
	return NULL;
}

/*
 * Each step fits, two of them do not: the second is said to be too large to be
 * checked, and whatever was taken is given back. The counter says it: what a
 * process has is not known under a sanitizer.
 */
static void who_publishes_at_once_has_one_budget_of_memory(void **state)
{
	enum { USERS = 4 };
	struct live l = guarded(GUARD_REFUSE);
	struct memory_budget *memory = &l.st->guard->memory;
	struct publisher all[USERS];
	pthread_t threads[USERS];
	struct guard_figures f;

	(void)state;
	for (unsigned u = 0; u < USERS; u++)
		for (unsigned n = 1; n <= LARGE_STEPS; n++) {
			char name[64];

			(void)snprintf(name, sizeof(name), "aside_%u_%u", u, n);
			make_step(&l, name, 4, u + n);
		}
	assert_int_equal(step(&l, "step_1", 4, 1), 0);
	f = figures(&l);
	assert_int_equal(f.memory_bytes, 0);
	assert_true(f.memory_peak > 0);
	assert_null(strstr(f.last, "too large"));
	assert_int_equal(step(&l, "step_2", 4, 9), 0);
	assert_true(figures(&l).memory_peak > f.memory_peak);
	memory->bytes_max = f.memory_peak;
	memory->peak = 0;
	for (unsigned u = 0; u < USERS; u++) {
		all[u] = (struct publisher){ &l, u };
		assert_int_equal(pthread_create(&threads[u], NULL,
						publish_large, &all[u]),
				 0);
	}
	for (unsigned u = 0; u < USERS; u++)
		pthread_join(threads[u], NULL);
	f = figures(&l);
	assert_int_equal(f.checked, 2 + USERS * LARGE_STEPS);
	assert_int_equal(f.refused, 0);
	assert_int_equal(f.memory_bytes, 0);
	assert_true(f.memory_peak <= memory->bytes_max);
	live_free(&l);
}

/* A file server that does not answer for one file, until it is told to. */
struct server {
	struct guard_table files; /* what it has */
	pthread_mutex_t lock;
	pthread_cond_t moved;
	uint64_t silent; /* the file */
	bool asked, answers;
};

static int open_served(void *self, uint64_t id, struct cut_source *ret)
{
	struct server *s = self;

	pthread_mutex_lock(&s->lock);
	if (id == s->silent) {
		s->asked = true;
		pthread_cond_broadcast(&s->moved);
		while (!s->answers)
			pthread_cond_wait(&s->moved, &s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return s->files.open(s->files.self, id, ret);
}

static int find_served(void *self, uint64_t parent, const char *name,
		       uint64_t *ret_id)
{
	struct server *s = self;

	return s->files.find(s->files.self, parent, name, ret_id);
}

static int attr_served(void *self, uint64_t id, struct guard_attr *ret)
{
	struct server *s = self;

	return s->files.attr(s->files.self, id, ret);
}

static int list_served(void *self, uint64_t dir, guard_list_fn fn, void *arg)
{
	struct server *s = self;

	return s->files.list(s->files.self, dir, fn, arg);
}

static void close_served(void *self, struct cut_source *source)
{
	struct server *s = self;

	s->files.close(s->files.self, source);
}

static uint32_t world_served(void *self, uint64_t id)
{
	struct server *s = self;

	return s->files.world(s->files.self, id);
}

static int getxattr_served(void *self, uint64_t id, const char *name,
			   void **ret_value, size_t *ret_len)
{
	struct server *s = self;

	return s->files.getxattr(s->files.self, id, name, ret_value, ret_len);
}

static bool digest_served(void *self, uint64_t id, uint64_t *ret_bytes,
			  uint8_t ret[HASH_BYTES])
{
	struct server *s = self;

	return s->files.digest(s->files.self, id, ret_bytes, ret);
}

static void *publish_silent(void *arg)
{
	struct live *l = arg;

	assert_int_equal(publish(l, "silent", "step_1"), 0);
	return NULL;
}

static void a_call_that_hangs_holds_up_nobody_else(void **state)
{
	struct live l = guarded(GUARD_REFUSE);
	struct server s = { .files = l.st->guard->table,
			    .lock = PTHREAD_MUTEX_INITIALIZER,
			    .moved = PTHREAD_COND_INITIALIZER };
	struct inode *in;
	pthread_t thread;

	(void)state;
	make_step(&l, "silent", 1, 1);
	make_step(&l, "other", 1, 2);
	assert_int_equal(live_lookup(&l, "silent/model.safetensors", &in), 0);
	s.silent = in->ino;
	inode_put(l.st->inodes, in, 1);
	l.st->guard->table = (struct guard_table){ .self = &s,
						   .hangs = true,
						   .find = find_served,
						   .attr = attr_served,
						   .list = list_served,
						   .open = open_served,
						   .close = close_served,
						   .digest = digest_served,
						   .world = world_served,
						   .getxattr =
							   getxattr_served };
	assert_int_equal(pthread_create(&thread, NULL, publish_silent, &l), 0);
	pthread_mutex_lock(&s.lock);
	while (!s.asked)
		pthread_cond_wait(&s.moved, &s.lock);
	pthread_mutex_unlock(&s.lock);
	assert_int_equal(publish(&l, "other", "run_step_1"), 0);
	pthread_mutex_lock(&s.lock);
	s.answers = true;
	pthread_cond_broadcast(&s.moved);
	pthread_mutex_unlock(&s.lock);
	pthread_join(thread, NULL);
	assert_int_equal(figures(&l).checked, 2);
	live_free(&l);
}

static void *publish_steps(void *arg)
{
	const struct publisher *p = arg;

	for (unsigned i = 0; i < STEPS; i++) {
		char name[32], before[64];

		(void)snprintf(name, sizeof(name), "run%u_step_%u", p->number,
			       i);
		if (step(p->l, name, 1 + i / (STEPS / 2), i) != 0)
			return arg;
		if (i < 2)
			continue;
		(void)snprintf(before, sizeof(before),
			       "run%u_step_%u/model.safetensors", p->number,
			       i - 2);
		if (live_unlink(p->l, before) != 0)
			return arg;
	}
	return NULL;
}

static void *look_at_them(void *arg)
{
	struct live *l = arg;

	for (unsigned i = 0; i < STEPS * PUBLISHERS; i++) {
		struct bytes out = { 0 };
		struct inode *in;
		char name[64];

		(void)snprintf(name, sizeof(name), "run%u_step_%u",
			       i % PUBLISHERS, i / PUBLISHERS);
		if (live_lookup(l, name, &in) < 0)
			continue;
		(void)guard_signature(l->st->guard, in->ino, NULL, &out);
		bytes_release(&out);
		(void)guard_difference(l->st->guard, in->ino, NULL, &out);
		bytes_release(&out);
		inode_put(l->st->inodes, in, 1);
	}
	return NULL;
}

static void many_publish_while_steps_are_deleted_and_looked_at(void **state)
{
	struct live l = guarded(GUARD_WARN);
	struct publisher p[PUBLISHERS];
	pthread_t threads[PUBLISHERS + 1];

	(void)state;
	for (unsigned i = 0; i < PUBLISHERS; i++) {
		p[i] = (struct publisher){ &l, i };
		assert_int_equal(
			pthread_create(&threads[i], NULL, publish_steps, &p[i]),
			0);
	}
	assert_int_equal(
		pthread_create(&threads[PUBLISHERS], NULL, look_at_them, &l),
		0);
	for (unsigned i = 0; i <= PUBLISHERS; i++) {
		void *failed;

		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	assert_true(figures(&l).checked <= PUBLISHERS * STEPS);
	assert_true(figures(&l).checked > 0);
	live_free(&l);
}

/* --- files that are steps by themselves, and are written again --- */

#define FILE_STEP "step_1.safetensors"
#define KINDS 4 /* of policies, with and without passthrough */

static struct live guarded_kind(unsigned kind, bool hold_drain)
{
	struct store_options o = live_options();
	struct live l;

	o.structure = kind & 1 ? GUARD_REFUSE : GUARD_WARN;
	o.hold_drain = hold_drain;
	l = live_closed(&o);
	l.passthrough = (kind & 2) != 0;
	live_open(&l);
	return l;
}

static bool has_no_other(void *arg, uint64_t number)
{
	(void)arg;
	(void)number;
	return false;
}

/* As a mount does it: what a close says, and what follows. */
static int file_closes(struct handle *h)
{
	const struct guard_closer by = { .goes_on = has_no_other };
	int rc = guard_close(h->l->st->guard, h->in, &by);

	assert_int_equal(file_flush(&h->l->st->files, h->in, h->flags), 0);
	return rc;
}

static void file_lets_go(struct handle *h)
{
	struct inode *in = h->in;

	inode_ref(in, 1);
	handle_release(h);
	guard_released(h->l->st->guard, in);
	inode_put(h->l->st->inodes, in, 1);
}

static int closed(struct handle *h)
{
	int rc = file_closes(h);

	file_lets_go(h);
	return rc;
}

static int saved(struct live *l, const char *name, const void *data, size_t len)
{
	struct handle h = handle_open(l, name, O_WRONLY | O_CREAT | O_TRUNC);

	handle_write(&h, data, len, 0);
	return closed(&h);
}

static void assert_seen(struct live *l, uint64_t checked, uint64_t broken,
			uint64_t refused)
{
	struct guard_figures f;

	assert_int_equal(drain_sync_closed(l->st->drain), 0);
	guard_wait_idle(l->st->guard); /* a look may have led to another one */
	f = figures(l);
	assert_int_equal(f.checked, checked);
	assert_int_equal(f.broken, broken);
	assert_int_equal(f.refused, refused);
}

static bool is_said_to_be_refused(struct live *l, const char *name)
{
	struct bytes out = { 0 };
	int rc = guard_refused(l->st->guard, live_ino(l, name), &out);

	bytes_release(&out);
	assert_true(rc == 0 || rc == -ENODATA);
	return rc == 0;
}

/* The thread waits for the first file until the drain is let go of. */
static void a_file_that_is_written_again_is_not_called_damaged(void **state)
{
	const struct payload tensor = { 1, TENSOR_BYTES };
	size_t len;
	uint8_t *file = safetensors(&tensor, 1, 0, &len);

	(void)state;
	for (unsigned kind = 0; kind < KINDS; kind++) {
		struct live l = guarded_kind(kind, true);
		bool refuse = kind & 1;
		struct handle h;

		assert_int_equal(saved(&l, "first_step_1.pt", "x", 1), 0);
		assert_int_equal(saved(&l, FILE_STEP, file, len), 0);
		h = handle_open(&l, FILE_STEP, O_WRONLY | O_TRUNC);
		handle_write(&h, file, len / 2, 0);
		assert_seen(&l, 1, 0, 0);
		handle_write(&h, file + len / 2, len - len / 2, len / 2);
		assert_int_equal(closed(&h), 0);
		assert_seen(&l, 2, 0, 0);
		/* The last close is looked at, whatever was passed over. */
		assert_int_equal(saved(&l, FILE_STEP, file, len / 2),
				 refuse ? -EUCLEAN : 0);
		assert_seen(&l, 3, 1, refuse);
		assert_int_equal(is_said_to_be_refused(&l, FILE_STEP), refuse);
		live_free(&l);
	}
	free(file);
}

static void what_was_made_first_and_written_torn_is_refused(void **state)
{
	const struct payload tensor = { 1, TENSOR_BYTES };
	size_t len;
	uint8_t *file = safetensors(&tensor, 1, 0, &len);
	struct live l = guarded_kind(1, true);
	struct handle h;

	(void)state;
	assert_int_equal(saved(&l, "first_step_1.pt", "x", 1), 0);
	h = handle_open(&l, FILE_STEP, O_WRONLY | O_CREAT);
	assert_int_equal(closed(&h), 0);
	assert_int_equal(saved(&l, FILE_STEP, file, len / 2), -EUCLEAN);
	assert_seen(&l, 2, 1, 1);
	free(file);
	live_free(&l);
}

/* Something happens once, when the guard has begun to look at a file. */
static struct planted {
	struct guard_table files;
	uint64_t ino; /* 0: no more */
	void (*fn)(struct planted *p);
	struct live *l;
	struct handle h;
	const uint8_t *file;
	size_t len;
} planted;

static int open_planted(void *self, uint64_t id, struct cut_source *ret)
{
	if (id == planted.ino) {
		planted.ino = 0;
		planted.fn(&planted);
	}
	return planted.files.open(self, id, ret);
}

static void plant(struct live *l, void (*fn)(struct planted *p),
		  const uint8_t *file, size_t len)
{
	planted = (struct planted){ .files = l->st->guard->table,
				    .ino = live_ino(l, FILE_STEP),
				    .fn = fn,
				    .l = l,
				    .file = file,
				    .len = len };
	l->st->guard->table.open = open_planted;
}

static void half_is_written(struct planted *p)
{
	p->h = handle_open(p->l, FILE_STEP, O_WRONLY | O_TRUNC);
	handle_write(&p->h, p->file, p->len / 2, 0);
}

static void the_rest_is_written(struct planted *p)
{
	handle_write(&p->h, p->file + p->len / 2, p->len - p->len / 2,
		     p->len / 2);
	assert_int_equal(closed(&p->h), 0);
}

static void half_is_closed(struct planted *p)
{
	half_is_written(p);
	assert_int_equal(file_flush(&p->l->st->files, p->h.in, p->h.flags), 0);
	file_lets_go(&p->h);
}

static void half_is_cut_off(struct planted *p)
{
	struct inode *in = NULL;

	assert_int_equal(live_lookup(p->l, FILE_STEP, &in), 0);
	assert_int_equal(file_truncate_path(&p->l->st->files, in, p->len / 2,
					    FILE_BY_NAME),
			 0);
	inode_put(p->l->st->inodes, in, 1);
}

/* A file is closed, and the thread is about to look at it. */
static void close_planted(struct live *l, void (*fn)(struct planted *p),
			  const uint8_t *file, size_t len)
{
	struct handle h = handle_open(l, FILE_STEP, O_WRONLY | O_CREAT);

	handle_write(&h, file, len, 0);
	assert_int_equal(file_closes(&h), 0);
	plant(l, fn, file, len);
	file_lets_go(&h);
}

static void what_is_written_while_it_is_read_is_not_called_damaged(void **state)
{
	const struct payload tensor = { 1, TENSOR_BYTES };
	size_t len;
	uint8_t *file = safetensors(&tensor, 1, 0, &len);

	(void)state;
	for (unsigned kind = 0; kind < KINDS; kind++) {
		struct live l = guarded_kind(kind, false);

		close_planted(&l, half_is_written, file, len);
		assert_seen(&l, 0, 0, 0);
		assert_false(is_said_to_be_refused(&l, FILE_STEP));
		the_rest_is_written(&planted);
		assert_seen(&l, 1, 0, 0);
		live_free(&l);
	}
	free(file);
}

/* However it was changed, what is there at the end was looked at, once. */
static void what_was_changed_while_it_is_read_is_looked_at_again(void **state)
{
	void (*const fns[])(struct planted *p) = { half_is_closed,
						   half_is_cut_off };
	const struct payload tensor = { 1, TENSOR_BYTES };
	size_t len;
	uint8_t *file = safetensors(&tensor, 1, 0, &len);

	(void)state;
	for (unsigned kind = 0; kind < KINDS; kind++)
		for (unsigned i = 0; i < sizeof(fns) / sizeof(*fns); i++) {
			struct live l = guarded_kind(kind, false);
			bool refuse = kind & 1;

			close_planted(&l, fns[i], file, len);
			assert_seen(&l, 1, 1, refuse);
			assert_int_equal(is_said_to_be_refused(&l, FILE_STEP),
					 refuse);
			live_free(&l);
		}
	free(file);
}

static void a_close_that_another_writer_overtakes_is_not_refused(void **state)
{
	const struct payload tensor = { 1, TENSOR_BYTES };
	size_t len;
	uint8_t *file = safetensors(&tensor, 1, 0, &len);

	(void)state;
	for (unsigned kind = 1; kind < KINDS; kind += 2) {
		struct live l = guarded_kind(kind, false);
		struct handle h =
			handle_open(&l, FILE_STEP, O_WRONLY | O_CREAT);

		handle_write(&h, file, len, 0);
		plant(&l, half_is_written, file, len);
		assert_int_equal(closed(&h), 0);
		assert_false(is_said_to_be_refused(&l, FILE_STEP));
		the_rest_is_written(&planted);
		assert_seen(&l, 1, 0, 0);
		live_free(&l);
	}
	free(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_publish_is_looked_at_once),
		cmocka_unit_test(what_is_refused_is_where_it_was),
		cmocka_unit_test(
			a_store_that_is_closed_has_looked_at_everything),
		cmocka_unit_test(what_is_too_much_is_overlooked_and_counted),
		cmocka_unit_test(
			who_publishes_at_once_has_one_budget_of_memory),
		cmocka_unit_test(a_call_that_hangs_holds_up_nobody_else),
		cmocka_unit_test(
			many_publish_while_steps_are_deleted_and_looked_at),
		cmocka_unit_test(
			a_file_that_is_written_again_is_not_called_damaged),
		cmocka_unit_test(
			what_was_made_first_and_written_torn_is_refused),
		cmocka_unit_test(
			what_is_written_while_it_is_read_is_not_called_damaged),
		cmocka_unit_test(
			what_was_changed_while_it_is_read_is_looked_at_again),
		cmocka_unit_test(
			a_close_that_another_writer_overtakes_is_not_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
