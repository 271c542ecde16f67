/*
 * What is there of files that had been durable, and were changed, replaced,
 * linked or removed when the daemon ended at once.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "tests/unit/live_child.h"
#include "tests/unit/live_flight.h"
#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)

/* --- what existed before --- */

static void child_changes_durable_files(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 2);
	struct handle h;

	l->options.hold_drain = true;
	child_open(l, kind);
	live_write(l, "replaced", data, DATA_BYTES);
	h = handle_open(l, "appended", O_WRONLY | O_APPEND);
	handle_write(&h, data, 1000, DATA_BYTES);
	handle_close(&h);
	h = handle_open(l, "changed", O_RDWR);
	handle_write(&h, data, 1000, 500); /* still open */
	h = handle_open(l, "emptied", O_WRONLY | O_TRUNC);
	assert_int_equal(live_rename(l, "moved", "target", 0), 0);
	assert_int_equal(live_unlink(l, "removed"), 0);
	assert_int_equal(kv_sync(l->st->kv), 0);
}

static struct live with_durable_files(unsigned kind, const uint8_t *old)
{
	static const char *const names[] = { "replaced", "appended", "changed",
					     "emptied",  "moved",    "target",
					     "removed" };
	struct live l = live_kind(kind);

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		live_write(&l, names[i], old + i, DATA_BYTES);
	live_close(&l);
	return l;
}

static void after_kill_changed_files_are_as_they_were_left(void **state)
{
	uint8_t *old = filled(DATA_BYTES + 2000, 1), *new;

	(void)state;
	new = filled(DATA_BYTES, 2);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = with_durable_files(kind, old);
		uint8_t *expected = malloc(DATA_BYTES + 2000);

		assert_non_null(expected);
		live_child_kind(&l, "change", kind);
		live_open(&l);
		for (int i = 0; i < 2; i++) {
			assert_file(&l, "replaced", new, DATA_BYTES);
			memcpy(expected, old + 1, DATA_BYTES);
			memcpy(expected + DATA_BYTES, new, 1000);
			assert_file(&l, "appended", expected,
				    DATA_BYTES + 1000);
			memcpy(expected, old + 2, DATA_BYTES);
			memcpy(expected + 500, new, 1000);
			assert_file(&l, "changed", expected, DATA_BYTES);
			assert_file(&l, "emptied", new, 0);
			assert_absent(&l, "moved");
			assert_file(&l, "target", old + 4, DATA_BYTES);
			assert_absent(&l, "removed");
			live_reopen(&l);
		}
		live_free(&l);
		free(expected);
	}
	free(old);
	free(new);
}

static void after_a_power_cut_changed_files_have_their_old_content(void **state)
{
	uint8_t *old = filled(DATA_BYTES + 2000, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = with_durable_files(kind, old);

		live_child_kind(&l, "change", kind);
		live_empty_stage(&l);
		live_open(&l);
		assert_file(&l, "replaced", old, DATA_BYTES);
		assert_file(&l, "appended", old + 1, DATA_BYTES);
		assert_file(&l, "changed", old + 2, DATA_BYTES);
		assert_file(&l, "emptied", old + 3, DATA_BYTES);
		assert_absent(&l, "moved");
		assert_file(&l, "target", old + 4, DATA_BYTES);
		assert_absent(&l, "removed");
		live_settle(&l);
		assert_int_equal(live_images(&l).count, 5);
		live_free(&l);
	}
	free(old);
}

static void child_leaves_orphans(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 2);
	struct handle h;

	child_open(l, kind);
	h = handle_open(l, "durable", O_RDWR);
	assert_int_equal(live_unlink(l, "durable"), 0);
	h = handle_open(l, "new", O_RDWR | O_CREAT);
	handle_write(&h, data, DATA_BYTES, 0);
	assert_int_equal(live_unlink(l, "new"), 0);
	h = handle_open(l, "small", O_RDWR);
	handle_write(&h, data, 10, 0);
	assert_int_equal(live_rename(l, "other", "small", 0), 0);
	assert_int_equal(kv_sync(l->st->kv), 0);
}

static void files_without_a_name_are_deleted_at_the_next_start(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (int cut = 0; cut < 2; cut++) {
			struct live l = live_kind(kind);

			live_write(&l, "durable", data, DATA_BYTES);
			live_write(&l, "small", data, 1000);
			live_write(&l, "other", data, 2000);
			live_close(&l);
			live_child_kind(&l, "orphan", kind);
			if (cut)
				live_empty_stage(&l);
			live_open(&l);
			live_settle(&l);
			assert_absent(&l, "durable");
			assert_absent(&l, "new");
			assert_file(&l, "small", data, 2000);
			assert_int_equal(live_records(&l, 'A'), 2);
			assert_int_equal(live_records(&l, 'O'), 0);
			assert_int_equal(live_counter(&l, META_PHYSICAL), 2000);
			assert_int_equal(live_counter(&l, META_FILES), 1);
			assert_int_equal(live_images(&l).count, 0);
			live_free(&l);
		}
	}
	free(data);
}

/* --- a file that is replaced while its older bytes are not durable yet --- */

#define FIRST_BYTES (2 * MIB)
#define SECOND_BYTES (3 * MIB)

static void child_replaces(struct live *l, const char *kind)
{
	uint8_t *data = filled(SECOND_BYTES + 2, 1);
	struct handle h;

	l->options.hold_drain = true;
	child_open(l, kind);
	live_write(l, "a", data, FIRST_BYTES);
	live_write(l, "tracker", data, 3);
	live_write(l, "a", data + 1, SECOND_BYTES);
	live_write(l, "tracker_2", data, 4);
	h = handle_open(l, "a", O_WRONLY | O_TRUNC);
	handle_write(&h, data + 2, 1000, 0);
}

static void
after_kill_a_replaced_file_keeps_its_place_in_the_order(void **state)
{
	uint8_t *data = filled(SECOND_BYTES + 2, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (unsigned kills = 1; kills < 4; kills++) {
			struct live l = live_kind(kind);
			bool named = false, second = false;

			live_close(&l);
			live_child_kind(&l, "replace", kind);
			for (unsigned i = 1; i < kills; i++)
				live_child_kind(&l, "open", kind);
			live_open(&l);
			assert_file(&l, "a", data + 2, 1000);
			while (!second) {
				second = committed(&l,
						   live_ino(&l, "tracker_2"));
				named = committed(&l, live_ino(&l, "tracker"));
				if (named)
					assert_true(committed_size(&l, "a") !=
						    0);
			}
			assert_true(committed_size(&l, "a") == SECOND_BYTES ||
				    committed_size(&l, "a") == 1000);
			live_sync_all(&l);
			live_reopen(&l);
			assert_file(&l, "a", data + 2, 1000);
			live_free(&l);
		}
	}
	free(data);
}

/* Its bytes were drained while its name was not written yet. */
static void what_is_committed_is_not_taken_for_what_never_was(void **state)
{
	struct live l = live_new(NULL);
	struct kv_batch *b = kv_batch_new();
	struct key k;

	(void)state;
	live_write(&l, "small", "bytes", 5);
	live_sync_all(&l);
	k = key_ino('U', live_ino(&l, "small"));
	assert_non_null(b);
	kv_put(b, k.data, k.len, "", 0);
	assert_int_equal(kv_write(l.st->kv, b), 0);
	kv_batch_free(b);
	live_reopen(&l);
	assert_file(&l, "small", "bytes", 5);
	assert_false(live_has(&l, k));
	live_free(&l);
}

/* --- links of what is not durable yet, without a wait (publish=async) --- */

static void child_links(struct live *l, const char *kind)
{
	uint8_t *data = filled(SECOND_BYTES + 3, 1);
	struct handle h;

	l->options.hold_drain = true; /* nothing of this is durable */
	child_open(l, kind);
	live_write(l, "replaced", data + 1, SECOND_BYTES);
	assert_int_equal(live_link(l, "replaced", "replaced_too"), 0);
	h = handle_open(l, "changed", O_RDWR);
	handle_write(&h, data + 2, 1000, 500);
	handle_close(&h);
	assert_int_equal(live_link(l, "changed", "changed_too"), 0);
	live_write(l, "new", data + 3, SECOND_BYTES);
	assert_int_equal(live_link(l, "new", "new_too"), 0);
	/* The link is what keeps the file, and another one has its name. */
	live_write(l, "named", data + 3, FIRST_BYTES);
	assert_int_equal(live_link(l, "named", "named_too"), 0);
	live_write(l, "other", data + 1, FIRST_BYTES);
	assert_int_equal(live_rename(l, "other", "named", 0), 0);
}

static void assert_links(struct live *l, const uint8_t *data,
			 const uint8_t *changed)
{
	static const char *const suffix[] = { "", "_too" };

	for (unsigned i = 0; i < 2; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "replaced%s", suffix[i]);
		assert_file(l, name, data + 1, SECOND_BYTES);
		(void)snprintf(name, sizeof(name), "changed%s", suffix[i]);
		assert_file(l, name, changed, FIRST_BYTES);
		(void)snprintf(name, sizeof(name), "new%s", suffix[i]);
		assert_file(l, name, data + 3, SECOND_BYTES);
	}
	assert_file(l, "named_too", data + 3, FIRST_BYTES);
	assert_file(l, "named", data + 1, FIRST_BYTES);
}

static void after_kill_a_link_shows_the_last_version_of_its_file(void **state)
{
	uint8_t *data = filled(SECOND_BYTES + 3, 1);
	uint8_t *changed = filled(FIRST_BYTES, 1);

	(void)state;
	memcpy(changed + 500, data + 2, 1000);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_write(&l, "replaced", data, FIRST_BYTES);
		live_write(&l, "changed", data, FIRST_BYTES);
		live_write(&l, "named", data, 1000);
		live_sync_all(&l);
		live_close(&l);
		live_child_kind(&l, "link", kind);
		live_open(&l);
		assert_links(&l, data, changed);
		live_sync_all(&l);
		live_reopen(&l);
		assert_links(&l, data, changed);
		live_free(&l);
	}
	free(changed);
	free(data);
}

/*
 * The committer has made a file durable, and is stopped on its way to drop the
 * stage; meanwhile the file is written anew. The old stage has a slot still.
 */
static void child_is_killed_while_a_stage_goes(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct stage_slot *slots, old;
	struct inode *in = NULL;
	struct stage *stage;
	uint32_t index;

	child_open(l, kind);
	live_write(l, "f", data, DATA_BYTES);
	live_sync_all(l);
	drain_stop(l->st->drain);
	if (live_lookup(l, "f", &in) < 0 || !in->file || !in->file->stage)
		_exit(1);
	stage = stage_ref(in->file->stage); /* so that its bytes stay */
	slots = l->st->stages.slots;
	index = stage->slot_index;
	old = slots[index];
	fill(data, DATA_BYTES, 2);
	live_write(l, "f", data, DATA_BYTES);
	if (slots[index].ino != 0)
		_exit(2);
	slots[index] = old;
}

static void what_a_file_lets_go_of_is_not_taken_for_the_file(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 1; kind < LIVE_KINDS; kind += 2) { /* in memory */
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "goes", kind);
		live_open(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_sync_all(&l);
		live_reopen(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

/* Who is to drop this stage stands before it does so, for ever. */
static struct {
	_Atomic(struct stage *) stage;
	sem_t stands;
} gate;

void __real_stage_drop(struct stages *st, struct stage *s);
void __wrap_stage_drop(struct stages *st, struct stage *s);

void __wrap_stage_drop(struct stages *st, struct stage *s)
{
	if (s && s == atomic_load(&gate.stage)) {
		(void)sem_post(&gate.stands);
		for (;;)
			(void)pause();
	}
	__real_stage_drop(st, s);
}

/* f, written anew while nothing is drained, and who drops that stage stands. */
static struct stage *write_gated(struct live *l, const uint8_t *data,
				 size_t len)
{
	struct inode *in = NULL;

	drain_stop(l->st->drain);
	live_write(l, "f", data, len);
	if (live_lookup(l, "f", &in) < 0 || !in->file || !in->file->stage ||
	    sem_init(&gate.stands, 0, 0) < 0)
		_exit(1);
	atomic_store(&gate.stage, in->file->stage);
	if (drain_start(l->st->drain) < 0)
		_exit(2);
	return in->file->stage;
}

/*
 * The committer has made a file durable whose stage on the disk is no cache,
 * and the file is written anew before it drops that.
 */
static void child_writes_while_a_stage_goes(struct live *l, const char *len)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	child_open(l, "0");
	(void)write_gated(l, data, (size_t)atol(len));
	(void)sem_wait(&gate.stands);
	fill(data, DATA_BYTES, 2);
	live_write(l, "f", data, DATA_BYTES);
}

static void *evict(void *arg)
{
	struct live *l = arg;

	(void)file_evict(&l->st->files, atomic_load(&gate.stage));
	return NULL;
}

/*
 * Somebody gives a cache up and has not dropped it yet; meanwhile the file is
 * written anew, is durable, and has no stage any more.
 */
static void child_commits_while_a_cache_goes(struct live *l, const char *len)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	pthread_t thread;
	struct inode *in;

	child_open(l, "1");
	(void)write_gated(l, data, (size_t)atol(len));
	live_sync_all(l);
	if (pthread_create(&thread, NULL, evict, l) != 0)
		_exit(3);
	(void)sem_wait(&gate.stands);
	fill(data, DATA_BYTES, 2);
	live_write(l, "f", data, DATA_BYTES);
	live_sync_all(l);
	if (live_lookup(l, "f", &in) < 0 || !in->file->stage ||
	    !file_evict(&l->st->files, in->file->stage))
		_exit(4);
}

static void a_stage_that_goes_is_not_taken_for_the_file(void **state)
{
	static const struct {
		const char *child, *len;
	} ways[] = { { "while", "0" },
		     { "while", "100" },
		     { "while", "1048576" },
		     { "cache", "1048576" } };
	uint8_t *data = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		struct live l = live_kind(i == 3); /* a cache is in memory */

		live_close(&l);
		live_child(&l, ways[i].child, ways[i].len);
		live_open(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_sync_all(&l);
		live_settle(&l);
		live_reopen(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

/*
 * Two versions of a file wait on the disk. The newer one is written to the
 * database and its sync fails, so that both still have their slots; the older
 * one waits to be tried again, and the daemon is killed.
 */
static void child_commits_the_newer_first(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	char image[PATH_MAX], aside[PATH_MAX];
	struct stage_slot *slots, old, new;
	uint32_t old_at = 0, new_at = 0;

	child_open(l, kind);
	drain_stop(l->st->drain);
	slots = l->st->stages.slots;
	live_write(l, "f", data, DATA_BYTES);
	while (old_at < l->st->stages.slot_count && slots[old_at].ino == 0)
		old_at++;
	if (old_at == l->st->stages.slot_count ||
	    slots[old_at].kind != STAGE_DISK)
		_exit(1);
	(void)snprintf(image, sizeof(image), "%s/images/%02x/%016llx", l->path,
		       (unsigned)(slots[old_at].number & 0xff),
		       (unsigned long long)slots[old_at].number);
	(void)snprintf(aside, sizeof(aside), "%s/aside", l->path);
	if (link(image, aside) < 0)
		_exit(2);
	fill(data, DATA_BYTES, 2);
	live_write(l, "f", data, DATA_BYTES);
	while (new_at < l->st->stages.slot_count &&
	       (slots[new_at].ino == 0 || new_at == old_at))
		new_at++;
	if (new_at == l->st->stages.slot_count || !slots[old_at].earlier)
		_exit(3);
	old = slots[old_at];
	new = slots[new_at];
	if (drain_start(l->st->drain) < 0)
		_exit(4);
	live_sync_all(l);
	if (slots[old_at].ino != 0 || slots[new_at].ino != 0)
		_exit(5);
	if (rename(aside, image) < 0)
		_exit(6);
	if (atoi(kind) >= LIVE_KINDS) /* an older ckptfs says none */
		old.version = new.version = 0;
	slots[old_at] = old;
	slots[new_at] = new;
}

static void an_older_version_does_not_come_back_over_a_newer_one(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 2);

	(void)state;
	for (unsigned kind = 0; kind < 2 * LIVE_KINDS;
	     kind += 2) { /* on the disk */
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "newer", kind);
		live_open(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_sync_all(&l);
		live_reopen(&l);
		assert_file(&l, "f", data, DATA_BYTES);
		live_free(&l);
	}
	free(data);
}

/* --- what is changed while what it was becomes durable --- */

static const int changed_at = 500;

/* Closed by one who has it twice, synced, and written to by the other. */
static void child_goes_on_to_write(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES + 1, 1);
	struct handle h;

	child_open(l, kind);
	h = handle_open(l, "f", O_RDWR | O_CREAT);
	handle_write(&h, data, DATA_BYTES, 0);
	if (file_flush(&l->st->files, h.in, O_RDWR) < 0 ||
	    file_sync(&l->st->files, h.in) < 0)
		_exit(1);
	handle_write(&h, data + 1, 1000, changed_at);
}

static void *open_and_change(void *arg)
{
	uint8_t *data = filled(DATA_BYTES + 1, 1);
	struct handle h = handle_open(arg, "f", O_WRONLY);

	handle_write(&h, data + 1, 1000, changed_at);
	return NULL;
}

/*
 * The committer has what was closed when the file is opened to be changed,
 * which happens as soon as it does not have it any more.
 */
static void child_changes_what_is_taken(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct commits_paused paused;
	pthread_t changing;
	struct inode *in;

	child_open(l, kind);
	commits_pause(&paused, l);
	live_write(l, "f", data, DATA_BYTES);
	if (live_lookup(l, "f", &in) < 0)
		_exit(1);
	while (live_flight(l, in) != VERSION_TAKEN)
		(void)sched_yield();
	if (pthread_create(&changing, NULL, open_and_change, l) != 0)
		_exit(2);
	while (atomic_load(&l->st->drain->hurried) == 0) /* he waits */
		(void)sched_yield();
	commits_go_on(&paused);
	if (pthread_join(changing, NULL) != 0 || !committed(l, in->ino))
		_exit(3);
}

static void what_is_changed_meanwhile_is_not_taken_for_durable(void **state)
{
	static const struct {
		const char *child;
		unsigned kind;
	} ways[] = {
		{ "goes_on", 0 }, { "goes_on", 1 }, { "goes_on", 2 },
		{ "goes_on", 3 }, { "taken", 1 },   { "taken", 3 },
	};
	uint8_t *data = filled(DATA_BYTES + 1, 1), *changed;

	(void)state;
	changed = filled(DATA_BYTES, 1);
	memcpy(changed + changed_at, data + 1, 1000);
	for (unsigned i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		struct live l = live_kind(ways[i].kind);

		live_close(&l);
		live_child_kind(&l, ways[i].child, ways[i].kind);
		live_open(&l);
		assert_file(&l, "f", changed, DATA_BYTES);
		live_sync_all(&l);
		live_reopen(&l);
		assert_file(&l, "f", changed, DATA_BYTES);
		live_free(&l);
	}
	free(data);
	free(changed);
}

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "open", child_opens_and_is_killed },
		{ "change", child_changes_durable_files },
		{ "orphan", child_leaves_orphans },
		{ "replace", child_replaces },
		{ "link", child_links },
		{ "goes", child_is_killed_while_a_stage_goes },
		{ "while", child_writes_while_a_stage_goes },
		{ "cache", child_commits_while_a_cache_goes },
		{ "newer", child_commits_the_newer_first },
		{ "goes_on", child_goes_on_to_write },
		{ "taken", child_changes_what_is_taken },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			after_kill_a_replaced_file_keeps_its_place_in_the_order),
		cmocka_unit_test(
			after_kill_a_link_shows_the_last_version_of_its_file),
		cmocka_unit_test(
			after_kill_changed_files_are_as_they_were_left),
		cmocka_unit_test(
			after_a_power_cut_changed_files_have_their_old_content),
		cmocka_unit_test(
			files_without_a_name_are_deleted_at_the_next_start),
		cmocka_unit_test(
			what_is_committed_is_not_taken_for_what_never_was),
		cmocka_unit_test(
			what_a_file_lets_go_of_is_not_taken_for_the_file),
		cmocka_unit_test(a_stage_that_goes_is_not_taken_for_the_file),
		cmocka_unit_test(
			an_older_version_does_not_come_back_over_a_newer_one),
		cmocka_unit_test(
			what_is_changed_meanwhile_is_not_taken_for_durable),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
