/*
 * Memory of clients that becomes files, without a mount: who has it when.
 *
 * fstat(2) of the store is ours here (see CMakeLists.txt): the drain asks for a
 * stage's size between choosing it and giving it a job, and a test can make
 * something happen just there.
 */
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>

#include "store/drain/drain_private.h"
#include "store/space/reclaim.h"
#include "tests/unit/live_store.h"

#define SIZE (MIB + 12288)

static void on_wake(struct segment_client *c)
{
	(void)c;
}

struct client {
	struct live *l;
	struct segment_client sc;
	struct mapped {
		uint64_t id;
		uint8_t *memory;
		size_t len;
	} mapped[8];
};

static void client_init(struct client *c, struct live *l)
{
	memset(c, 0, sizeof(*c));
	c->l = l;
	c->sc.wake = on_wake;
	segment_client_add(&l->st->segments, &c->sc);
}

static struct mapped *find(struct client *c, uint64_t id)
{
	for (size_t i = 0; i < 8; i++)
		if (c->mapped[i].id == id)
			return &c->mapped[i];
	fail_msg("segment %llu is not mapped", (unsigned long long)id);
	abort();
}

static void unmap(struct mapped *m)
{
	munmap(m->memory, m->len);
	memset(m, 0, sizeof(*m));
}

static void client_end(struct client *c)
{
	segment_client_remove(&c->l->st->segments, &c->sc);
	segment_client_forget(&c->l->st->segments, &c->sc);
	for (size_t i = 0; i < 8; i++)
		if (c->mapped[i].id)
			unmap(&c->mapped[i]);
}

/* What a client does that was asked for memory. */
static void drop_released(struct client *c)
{
	uint64_t id;

	while (segment_take_release(&c->l->st->segments, &c->sc, &id)) {
		unmap(find(c, id));
		assert_int_equal(segment_drop(&c->l->st->segments, &c->sc, id),
				 0);
	}
}

static int acquire(struct client *c, uint8_t kind, size_t size,
		   struct segment_reply *r, uint8_t **ret_memory)
{
	uint8_t signature[SEGMENT_SIGNATURE_BYTES] = { kind };
	int fd, rc;

	memset(r, 0, sizeof(*r));
	rc = segment_acquire(&c->l->st->segments, &c->sc, signature, size, r,
			     &fd);
	if (rc == 0 && r->fresh) {
		struct mapped *m = find(c, 0);

		m->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
				 fd, 0);
		close(fd);
		assert_ptr_not_equal(m->memory, MAP_FAILED);
		m->id = r->id;
		m->len = size;
		assert_int_equal(segment_mapped(&c->l->st->segments, &c->sc,
						r->id, r->generation),
				 0);
	}
	if (rc == 0)
		*ret_memory = find(c, r->id)->memory;
	return rc;
}

/* As a client waits: for the file, or until what was asked for is dropped. */
static void acquire_waiting(struct client *c, uint8_t kind, size_t size,
			    struct segment_reply *r, uint8_t **ret_memory)
{
	int rc = acquire(c, kind, size, r, ret_memory);

	while (rc == -EAGAIN) {
		struct inode *in;

		drop_released(c);
		if (r->busy_ino &&
		    inode_get(c->l->st->inodes, r->busy_ino, &in) == 0) {
			assert_int_equal(inode_load_file(c->l->st->inodes, in),
					 0);
			assert_int_equal(file_sync(&c->l->st->files, in), 0);
			inode_put(c->l->st->inodes, in, 1);
		}
		rc = acquire(c, kind, size, r, ret_memory);
	}
	assert_int_equal(rc, 0);
}

static bool everybody_may(void *arg, const struct attr *a, uint32_t want)
{
	(void)arg;
	(void)a;
	(void)want;
	return true;
}

static int commit(struct client *c, const struct segment_reply *r,
		  const char *name)
{
	const struct segment_commit q = {
		.id = r->id,
		.generation = r->generation,
		.size_bytes = r->size_bytes,
		.parent = ROOT_INO,
		.name = name,
		.mode = 0644,
		.may = everybody_may,
	};
	struct segment_committed done;

	return segment_commit(&c->l->st->segments, &q, &done);
}

/* The whole life of a save; what it saved is `seed`. */
static void save(struct client *c, const char *name, uint64_t seed)
{
	struct segment_reply r;
	uint8_t *memory;

	acquire_waiting(c, 1, SIZE, &r, &memory);
	fill(memory, SIZE, seed);
	assert_int_equal(commit(c, &r, name), 0);
}

static void assert_seed(struct live *l, const char *name, uint64_t seed)
{
	SCOPED(scope_free) uint8_t *want = filled(SIZE, seed);

	assert_file(l, name, want, SIZE);
}

static void a_client_that_ends_leaves_what_it_saved(void **state)
{
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_kind(kind);
		struct segment_figures f;
		struct segment_reply r;
		struct client c;
		uint8_t *memory;

		(void)state;
		client_init(&c, &l);
		save(&c, "a", 1);
		save(&c, "b", 2);
		acquire_waiting(&c, 2, SIZE, &r, &memory);
		segment_figures(&l.st->segments, &f);
		assert_int_equal(f.segments, 3);
		client_end(&c);
		segment_figures(&l.st->segments, &f);
		assert_int_equal(f.segments, 0);
		assert_int_equal(f.bytes, 0);
		assert_seed(&l, "a", 1);
		live_reopen(&l);
		assert_seed(&l, "a", 1);
		assert_seed(&l, "b", 2);
		live_free(&l);
	}
}

static void who_reads_keeps_his_bytes_whoever_is_next(void **state)
{
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_kind(kind);
		SCOPED(scope_free) uint8_t *want = filled(SIZE, 1);
		struct handle h;
		struct client c;

		(void)state;
		client_init(&c, &l);
		save(&c, "a", 1);
		live_sync_all(&l);
		h = handle_open(&l, "a", O_RDONLY);
		for (uint64_t seed = 2; seed < 8; seed++) {
			save(&c, "a", seed);
			assert_handle_bytes(&h, want, SIZE);
			assert_seed(&l, "a", seed);
		}
		handle_close(&h);
		client_end(&c);
		live_free(&l);
	}
}

static void a_commit_that_fails_leaves_the_segment_to_be_committed(void **state)
{
	struct live l = live_new(NULL);
	struct segment_reply r;
	struct client c;
	uint8_t *memory;

	(void)state;
	live_mkdir(&l, "dir");
	client_init(&c, &l);
	acquire_waiting(&c, 1, SIZE, &r, &memory);
	fill(memory, SIZE, 3);
	assert_int_equal(commit(&c, &r, "dir"), -EISDIR);
	assert_int_equal(commit(&c, &r, "a/b"), -EINVAL);
	assert_int_equal(commit(&c, &r, "f"), 0);
	assert_int_equal(commit(&c, &r, "g"), -ESTALE);
	assert_int_equal(
		segment_return(&l.st->segments, &c.sc, r.id, r.generation),
		-ESTALE);
	assert_seed(&l, "f", 3);
	client_end(&c);
	live_free(&l);
}

/* --- between a commit and its place in the order ---------------------------
 */

/* What comes between, once, when nobody changes the file. */
static struct between {
	struct inode *in;
	void (*fn)(void *arg);
	void *arg;
} between;

int __real_stage_stat(struct stages *st, const struct stage *s,
		      struct stat *ret);
int __wrap_stage_stat(struct stages *st, const struct stage *s,
		      struct stat *ret);

int __wrap_stage_stat(struct stages *st, const struct stage *s,
		      struct stat *ret)
{
	struct between b = between;
	bool now = false;

	if (b.fn && lock_try(&b.in->changing)) {
		now = b.in->file->stage == s;
		lock_give(&b.in->changing);
	}
	if (now) {
		between.fn = NULL;
		b.fn(b.arg);
	}
	return __real_stage_stat(st, s, ret);
}

/* The file is replaced, and everything is durable. */
static void somebody_else_saves(void *arg)
{
	struct client *other = arg;

	live_sync_all(other->l);
	save(other, "f", 3);
	live_sync_all(other->l);
}

static unsigned stage_count(struct live *l)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < l->st->stages.slot_count; i++)
		n += SLOT_GET(&l->st->stages.slots[i], ino) != 0;
	return n;
}

static void a_job_is_of_the_stage_that_the_file_has(void **state)
{
	struct store_options options = live_options();
	struct client c, other;
	struct inode *in;
	struct live l;

	(void)state;
	options.hold_drain = true;
	l = live_new(&options);
	client_init(&c, &l);
	client_init(&other, &l);
	save(&c, "f", 1);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	between = (struct between){ in, somebody_else_saves, &other };
	save(&c, "f", 2);
	assert_null(between.fn);
	assert_seed(&l, "f", 3);
	/* Whose bytes are gone gets no job for them. */
	assert_null(versions_next(&in->file->versions));
	save(&c, "f", 4);
	live_sync_all(&l);
	assert_seed(&l, "f", 4);
	assert_int_equal(in->file->versions.replaced, 0);
	assert_int_equal(stage_count(&l), 1);
	inode_put(l.st->inodes, in, 1);
	client_end(&c);
	client_end(&other);
	live_reopen(&l);
	assert_seed(&l, "f", 4);
	live_free(&l);
}

static uint64_t place_of(struct live *l, const char *name)
{
	uint64_t order;
	struct inode *in;

	assert_int_equal(live_lookup(l, name, &in), 0);
	assert_non_null(versions_next(&in->file->versions));
	order = versions_next(&in->file->versions)->place;
	inode_put(l->st->inodes, in, 1);
	return order;
}

/* Who saved it says so once more, late: it keeps its place. */
static void sealed_bytes_keep_their_place_in_the_order(void **state)
{
	struct store_options options = live_options();
	struct client c;
	struct inode *in;
	struct live l;
	uint64_t place;

	(void)state;
	options.hold_drain = true;
	l = live_new(&options);
	client_init(&c, &l);
	save(&c, "f", 1);
	save(&c, "g", 2);
	place = place_of(&l, "f");
	assert_true(place < place_of(&l, "g"));
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	assert_int_equal(drain_closed(l.st->drain, in, true), 0);
	assert_int_equal(place_of(&l, "f"), place);
	inode_put(l.st->inodes, in, 1);
	client_end(&c);
	live_free(&l);
}

static void *save_main(void *arg)
{
	save(arg, "f", 2);
	return NULL;
}

/* The kernel forgets a file while who replaces it waits for it to be durable.
 */
static void who_is_forgotten_when_he_loses_his_name_leaves_nothing(void **state)
{
	struct live l = live_kind(2);
	struct drain *d = l.st->drain;
	struct client c, other;
	pthread_t thread;
	struct handle h;

	(void)state;
	client_init(&c, &l);
	client_init(&other, &l);
	{
		PAUSE_COMMITS(&l);

		save(&c, "f", 1);
		h = handle_open(&l, "f", O_RDONLY);
		file_release(&l.st->files, h.in,
			     O_RDONLY); /* perhaps mapped yet */
		assert_int_equal(
			pthread_create(&thread, NULL, save_main, &other), 0);
		{
			HOLD(&d->lock);
			while (order_first(&d->order)->want == WANT_NOT)
				cond_wait(&d->work, &d->lock);
		}
		inode_forget(l.st->inodes, h.in, 1);
		file_forgotten(&l.st->files, h.in);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	inode_put(l.st->inodes, h.in, 1);
	live_sync_all(&l);
	assert_seed(&l, "f", 2);
	assert_int_equal(stage_count(&l), 1);
	client_end(&c);
	client_end(&other);
	live_free(&l);
}

/* A reader maps it and closes it; small ones are not kept as a cache else. */
static void what_may_be_mapped_is_not_filled_again(void **state)
{
	for (int durable = 0; durable < 2; durable++) {
		struct live l = live_kind(2);
		struct segment_reply r;
		struct client c;
		struct handle h;
		uint8_t *memory;
		uint64_t id;

		(void)state;
		client_init(&c, &l);
		acquire_waiting(&c, 1, 8192, &r, &memory);
		id = r.id;
		fill(memory, 8192, 1);
		assert_int_equal(commit(&c, &r, "f"), 0);
		h = handle_open(&l, "f", O_RDONLY);
		if (durable)
			live_sync_all(&l);
		file_release(&l.st->files, h.in, O_RDONLY);
		live_sync_all(&l);
		assert_int_equal(stage_count(&l), 1);
		/* The kernel forgets it: nobody has it mapped any more. */
		inode_forget(l.st->inodes, h.in, 1);
		file_forgotten(&l.st->files, h.in);
		inode_put(l.st->inodes, h.in, 1);
		assert_int_equal(stage_count(&l), 0);
		acquire_waiting(&c, 1, 8192, &r, &memory);
		assert_int_equal(r.id, id);
		client_end(&c);
		live_free(&l);
	}
}

/*
 * The committer has published the first save, and is about to end its job: the
 * second one has a place of its own, behind it.
 */
static void a_save_right_after_one_that_was_published_has_a_place(void **state)
{
	struct live l = live_kind(2);
	struct segment_reply r;
	struct work seen = { .kind = WORK_OF_CLOSED };
	struct drain_job first = { .work = &seen };
	struct order *o = &l.st->drain->order;
	struct client c;
	struct inode *in;
	uint8_t *memory;

	(void)state;
	client_init(&c, &l);
	acquire_waiting(&c, 1, SIZE, &r, &memory);
	fill(memory, SIZE, 1);
	assert_int_equal(commit(&c, &r, "f"), 0);
	live_sync_all(&l);
	assert_int_equal(inode_get(l.st->inodes, live_ino(&l, "f"), &in), 0);
	first.in = in;
	first.stage = in->file->stage;
	{
		HOLD(&in->lock);
		HOLD(&l.st->drain->lock);
		order_add(o, &first.v, &in->file->versions, VERSION_QUEUED);
		order_place(o, &first.v);
		assert_ptr_equal(order_start(o), &first.v);
		order_ready(o, &first.v);
		assert_ptr_equal(order_take(o), &first.v);
		order_seen(o, &first.v);
	}
	acquire_waiting(&c, 1, SIZE, &r, &memory);
	fill(memory, SIZE, 2);
	assert_int_equal(commit(&c, &r, "f"), 0);
	{
		HOLD(&in->lock);
		HOLD(&l.st->drain->lock);
		assert_non_null(versions_next(&in->file->versions));
		assert_int_not_equal(versions_next(&in->file->versions)->place,
				     0);
		order_end(o, &first.v, VERSION_DONE);
		cond_broadcast(&l.st->drain->work);
	}
	inode_put(l.st->inodes, in, 1);
	live_sync_all(&l);
	client_end(&c);
	live_free(&l);
}

/* --- everything at once ----------------------------------------------------
 */

#define RACERS 3
#define RACER_STEPS 60
#define RACED_NAMES_MAX 4

struct race {
	struct live *l;
	uint64_t seed;
	unsigned number;
	unsigned names; /* how many they save */
};

static const char *raced_name(const struct race *r, uint64_t i)
{
	static const char *const names[RACED_NAMES_MAX] = { "a", "b", "c",
							    "d" };

	return names[i % r->names];
}

/* A file is one save's, whole: its first word says which. */
static void check_whole(struct live *l, const char *name)
{
	SCOPED(scope_free) uint8_t *got = malloc(SIZE);
	struct handle h = { .fd = -1 };
	uint64_t seed;
	int rc = handle_try(l, name, O_RDONLY, &h);

	if (rc == -ESTALE || rc == -ENOENT)
		return;
	assert_int_equal(rc, 0);
	assert_int_equal(handle_read(&h, got, SIZE, 0), SIZE);
	memcpy(&seed, got, sizeof(seed));
	for (size_t i = 8; i < SIZE; i += 8)
		assert_memory_equal(got + i, &seed, 8);
	handle_close(&h);
}

static void *race_main(void *arg)
{
	struct race *r = arg;
	struct client c;

	client_init(&c, r->l);
	for (uint64_t i = 0; i < RACER_STEPS; i++) {
		uint64_t word = r->seed * 1000 + i, *words;
		struct segment_reply reply;
		uint8_t *memory;

		acquire_waiting(&c, 1, SIZE, &reply, &memory);
		words = (uint64_t *)(void *)memory;
		for (size_t k = 0; k < SIZE / 8; k++)
			words[k] = word;
		assert_int_equal(commit(&c, &reply, raced_name(r, word * 7)),
				 0);
		check_whole(r->l, raced_name(r, i + r->number));
		if (i % 11 == r->number)
			(void)live_unlink(r->l, raced_name(r, i));
		if (i % 13 == r->number)
			(void)stages_make_room(&r->l->st->stages, SIZE);
		if (i % 17 == r->number) { /* a new connection */
			client_end(&c);
			client_init(&c, r->l);
		}
	}
	client_end(&c);
	return NULL;
}

static void race(struct live *l, unsigned names)
{
	pthread_t thread[RACERS];
	struct race r[RACERS];

	for (unsigned i = 0; i < RACERS; i++) {
		r[i] = (struct race){ l, i + 1, i, names };
		assert_int_equal(
			pthread_create(&thread[i], NULL, race_main, &r[i]), 0);
	}
	for (unsigned i = 0; i < RACERS; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	for (unsigned i = 0; i < names; i++)
		check_whole(l, raced_name(&r[0], i));
	live_sync_all(l);
	assert_true(stage_count(l) <= RACED_NAMES_MAX);
}

static void files_are_whole_however_clients_race(void **state)
{
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		struct live l = live_kind(kind);

		(void)state;
		race(&l, RACED_NAMES_MAX);
		race(&l, 1);
		live_free(&l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_that_ends_leaves_what_it_saved),
		cmocka_unit_test(who_reads_keeps_his_bytes_whoever_is_next),
		cmocka_unit_test(
			a_commit_that_fails_leaves_the_segment_to_be_committed),
		cmocka_unit_test(a_job_is_of_the_stage_that_the_file_has),
		cmocka_unit_test(sealed_bytes_keep_their_place_in_the_order),
		cmocka_unit_test(
			who_is_forgotten_when_he_loses_his_name_leaves_nothing),
		cmocka_unit_test(what_may_be_mapped_is_not_filled_again),
		cmocka_unit_test(
			a_save_right_after_one_that_was_published_has_a_place),
		cmocka_unit_test(files_are_whole_however_clients_race),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
