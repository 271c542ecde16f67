/*
 * Memory of clients that becomes files, without a mount: who has it when.
 */
#include "tests/unit/segment_fixture.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>

#include "store/base/node.h"

static void a_client_that_ends_leaves_what_it_saved(void **state)
{
	for (unsigned kind = 0; kind < LIVE_KINDS; kind += 2) {
		/* None is durable, and its memory given again, before that. */
		struct live l = live_kind_held(kind);
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

/* A reader maps it and closes it; small ones are not kept as a cache else. */
static void what_may_be_mapped_is_not_filled_again(void **state)
{
	for (int durable = 0; durable < 2; durable++) {
		struct live l = live_kind_held(2);
		struct segment_reply r;
		struct client c;
		struct handle h;
		uint8_t *memory;
		void *mapped;
		uint64_t id;

		(void)state;
		client_init(&c, &l);
		acquire_waiting(&c, 1, 8192, &r, &memory);
		id = r.id;
		fill(memory, 8192, 1);
		assert_int_equal(commit(&c, &r, "f"), 0);
		h = handle_open(&l, "f", O_RDONLY);
		mapped = mmap(NULL, 8192, PROT_READ, MAP_SHARED, h.fd, 0);
		assert_ptr_not_equal(mapped, MAP_FAILED);
		if (durable)
			live_sync_all(&l);
		file_release(&l.st->files, h.in, O_RDONLY);
		live_sync_all(&l);
		assert_int_equal(stage_count(&l), 1);
		/* The kernel forgets it: nobody has it mapped any more. */
		assert_int_equal(munmap(mapped, 8192), 0);
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

/* How memory is given to this thread: a mode, and node 0 to 63. */
static int policy(unsigned long *ret_nodes)
{
	unsigned long nodes[NODES_MAX / 64] = { 0 };
	int mode = -1;

	assert_int_equal(syscall(SYS_get_mempolicy, &mode, nodes, NODES_MAX + 1,
				 NULL, 0),
			 0);
	*ret_nodes = nodes[0];
	return mode;
}

/* Of the last one that this thread made. */
static _Thread_local struct {
	int mode;
	unsigned long nodes;
} made_with;

int __real_stage_create_kept(struct stages *st, uint64_t size_bytes,
			     struct stage **ret_stage);
int __wrap_stage_create_kept(struct stages *st, uint64_t size_bytes,
			     struct stage **ret_stage);

int __wrap_stage_create_kept(struct stages *st, uint64_t size_bytes,
			     struct stage **ret_stage)
{
	made_with.mode = policy(&made_with.nodes);
	return __real_stage_create_kept(st, size_bytes, ret_stage);
}

static void acquire_on(struct client *c, uint8_t kind, int node)
{
	uint8_t signature[SEGMENT_SIGNATURE_BYTES] = { kind };
	struct segment_reply r;
	int fd;

	assert_int_equal(segment_acquire(&c->l->st->segments, &c->sc, signature,
					 4096, node, &r, &fd),
			 0);
	close(fd);
}

static void memory_lies_on_the_node_that_was_asked_for(void **state)
{
	struct live l = live_new(NULL);
	unsigned long nodes;
	struct client c;

	(void)state;
	client_init(&c, &l);
	acquire_on(&c, 1, 0);
	assert_int_equal(made_with.mode, MPOL_PREFERRED);
	assert_int_equal(made_with.nodes, 1);
	acquire_on(&c, 2, -1);
	assert_int_equal(made_with.mode, MPOL_DEFAULT);
	acquire_on(&c, 3, NODES_MAX - 1); /* there is none: as it comes */
	assert_int_equal(made_with.mode, MPOL_DEFAULT);
	assert_int_equal(policy(&nodes), MPOL_DEFAULT);
	client_end(&c);
	live_free(&l);
}

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
		cmocka_unit_test(what_may_be_mapped_is_not_filled_again),
		cmocka_unit_test(memory_lies_on_the_node_that_was_asked_for),
		cmocka_unit_test(files_are_whole_however_clients_race),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
