/*
 * What is there after the daemon ended at once: everything when the stage
 * is still there, what was durable when it is not, and never a part.
 *
 * A child opens the store, does its part and ends with _exit(). What it has to
 * tell is in a file beside the store.
 */
#include <pthread.h>
#include <sched.h>

#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)

/* Which kind of store the child opens: its argument. */
static void child_open(struct live *l, const char *kind)
{
	unsigned bits = (unsigned)atoi(kind);

	l->options.stage_all_in_memory = (bits & 1) != 0;
	l->passthrough = (bits & 2) != 0;
	live_open(l);
}

static void live_child_kind(struct live *l, const char *name, unsigned kind)
{
	char text[16];

	(void)snprintf(text, sizeof(text), "%u", kind);
	live_child(l, name, text);
}

/* --- kill -9
 * ------------------------------------------------------------------ */

#define CLOSED 8

static size_t len_of(unsigned i)
{
	static const size_t lens[CLOSED] = {
		DATA_BYTES, 100, 40000, 0, MIB, 70000, 5, 3 * MIB
	};

	return lens[i];
}

static void child_writes_and_is_killed(struct live *l, const char *kind)
{
	uint8_t *data = filled(3 * MIB + CLOSED, 1);
	struct handle h;
	char name[16];

	l->options.hold_drain = true; /* nothing is durable */
	child_open(l, kind);
	for (unsigned i = 0; i < CLOSED; i++) {
		(void)snprintf(name, sizeof(name), "c%u", i);
		live_write(l, name, data + i, len_of(i));
	}
	h = handle_open(l, "open", O_RDWR | O_CREAT);
	handle_write(&h, data, DATA_BYTES, 0);
	h = handle_open(l, "open_empty", O_RDWR | O_CREAT);
}

static void assert_all_there(struct live *l)
{
	uint8_t *data = filled(3 * MIB + CLOSED, 1);
	char name[16];

	for (unsigned i = 0; i < CLOSED; i++) {
		(void)snprintf(name, sizeof(name), "c%u", i);
		assert_file(l, name, data + i, len_of(i));
	}
	assert_file(l, "open", data, DATA_BYTES);
	assert_file(l, "open_empty", data, 0);
	free(data);
}

static void after_kill_every_byte_is_there(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_open(&l);
		assert_all_there(&l);
		live_sync_all(&l);
		assert_all_there(&l);
		assert_int_equal(live_records(&l, 'U'), 0);
		live_reopen(&l);
		assert_all_there(&l);
		live_free(&l);
	}
}

static void after_kill_and_kill_again_every_byte_is_there(void **state)
{
	char why[512];

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_child_kind(&l, "open", kind); /* killed at its start */
		live_child_kind(&l, "open", kind);
		assert_int_equal(live_try_open(&l, why), 0);
		assert_int_equal(store_start(l.st), 0);
		assert_all_there(&l);
		live_free(&l);
	}
}

static void child_opens_and_is_killed(struct live *l, const char *kind)
{
	l->options.hold_drain = true;
	child_open(l, kind);
}

static void after_kill_the_order_of_closes_is_kept(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t ino[CLOSED + 1];
		bool all = false;
		char name[16];

		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_open(&l);
		for (unsigned i = 0; i < CLOSED; i++) {
			(void)snprintf(name, sizeof(name), "c%u", i);
			ino[i] = live_ino(&l, name);
		}
		ino[CLOSED] = live_ino(&l, "open"); /* after all of them */
		while (!all) {
			bool later = false;

			all = true;
			for (unsigned i = CLOSED + 1; i-- > 0;) {
				bool now = committed(&l, ino[i]);

				assert_true(now || !later);
				later = later || now;
				all = all && now;
			}
		}
		live_free(&l);
	}
}

static void
after_kill_and_power_cut_what_was_not_durable_is_absent(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint8_t *data = filled(DATA_BYTES, 7);
		char name[16];

		live_write(&l, "before", data, DATA_BYTES);
		live_close(&l);
		live_child_kind(&l, "write", kind);
		live_empty_stage(&l);
		live_open(&l);
		for (unsigned i = 0; i < CLOSED; i++) {
			(void)snprintf(name, sizeof(name), "c%u", i);
			assert_absent(&l, name);
		}
		assert_absent(&l, "open");
		assert_absent(&l, "open_empty");
		assert_file(&l, "before", data, DATA_BYTES);
		live_settle(&l);
		/* Nothing of them is left, neither records nor images. */
		assert_int_equal(live_records(&l, 'A'), 2);
		assert_int_equal(live_images(&l).count, 1);
		assert_int_equal(live_counter(&l, META_FILES), 1);
		live_free(&l);
		free(data);
	}
}

static void child_drains_some(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	char name[16];

	child_open(l, kind);
	for (unsigned i = 0; i < 20; i++) {
		(void)snprintf(name, sizeof(name), "f%u", i);
		data[0] = (uint8_t)i;
		live_write(l, name, data, DATA_BYTES);
	}
	assert_int_equal(live_sync(l, "f9"), 0);
	/* It ends in the middle of the others. */
}

static void
a_cut_in_the_middle_of_a_drain_leaves_whole_files_in_order(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (int cut = 0; cut < 2; cut++) {
			struct live l = live_kind(kind);
			bool missing = false;
			char name[16];

			live_close(&l);
			live_child_kind(&l, "drain", kind);
			if (cut)
				live_empty_stage(&l);
			live_open(&l);
			for (unsigned i = 0; i < 20; i++) {
				struct inode *in;

				(void)snprintf(name, sizeof(name), "f%u", i);
				data[0] = (uint8_t)i;
				if (live_lookup(&l, name, &in) < 0) {
					assert_true(cut && i != 9);
					missing = true;
					continue;
				}
				inode_put(l.st->inodes, in, 1);
				/* Synced out of turn, or all before are here.
				 */
				assert_true(i == 9 || !missing);
				assert_file(&l, name, data, DATA_BYTES);
			}
			live_free(&l);
		}
	}
	free(data);
}

/* --- what existed before
 * --------------------------------------------------------- */

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

/* --- sync
 * ------------------------------------------------------------------------- */

#define RECORD_BYTES 4096u

struct appender {
	struct handle h;
	atomic_uint_fast64_t limit, count;
};

static void *append_records(void *arg)
{
	struct appender *a = arg;

	for (;;) {
		uint64_t record[RECORD_BYTES / 8], n = atomic_load(&a->count);

		if (n == atomic_load(&a->limit)) {
			sched_yield();
			continue;
		}
		for (unsigned i = 0; i < RECORD_BYTES / 8; i++)
			record[i] = n;
		handle_write(&a->h, record, RECORD_BYTES, n * RECORD_BYTES);
		atomic_store(&a->count, n + 1);
	}
	return NULL;
}

/* Beside the store: what was promised when the power went. */
static void promise_path(struct live *l, char path[4096])
{
	(void)snprintf(path, 4096, "%s.promise", l->path);
}

static void child_syncs_while_it_appends(struct live *l, const char *kind)
{
	struct appender a = { 0 };
	char path[4096];
	pthread_t thread;
	uint64_t promised;
	int fd;

	child_open(l, kind);
	a.h = handle_open(l, "log", O_WRONLY | O_CREAT);
	CHECK(pthread_create(&thread, NULL, append_records, &a) == 0);
	for (unsigned i = 0; i < 5; i++) {
		uint64_t limit = atomic_fetch_add(&a.limit, 100) + 30;

		while (atomic_load(&a.count) < limit)
			sched_yield();
		promised = atomic_load(&a.count);
		CHECK(file_sync(&l->st->files, a.h.in) ==
		      0); /* it goes on writing */
	}
	promise_path(l, path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK(write(fd, &promised, sizeof(promised)) == sizeof(promised));
}

static void a_sync_covers_all_that_was_written_before_it(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t promised = 0, record[RECORD_BYTES / 8];
		char path[4096];
		struct handle h;
		struct stat sb;
		int fd;

		live_close(&l);
		live_child_kind(&l, "sync", kind);
		live_empty_stage(&l);
		promise_path(&l, path);
		fd = open(path, O_RDONLY);
		assert_int_equal(read(fd, &promised, sizeof(promised)),
				 sizeof(promised));
		close(fd);
		unlink(path);
		assert_true(promised >= 430);
		live_open(&l);
		h = handle_open(&l, "log", O_RDONLY);
		assert_int_equal(inode_stat(l.st->inodes, h.in, &sb), 0);
		assert_true((uint64_t)sb.st_size >= promised * RECORD_BYTES);
		/* Each record is whole, and what follows is no part of one. */
		assert_int_equal(sb.st_size % RECORD_BYTES, 0);
		for (uint64_t n = 0; n < (uint64_t)sb.st_size / RECORD_BYTES;
		     n++) {
			assert_int_equal(handle_read(&h, record, RECORD_BYTES,
						     n * RECORD_BYTES),
					 RECORD_BYTES);
			for (unsigned i = 0; i < RECORD_BYTES / 8; i++)
				assert_int_equal(record[i], n);
		}
		handle_close(&h);
		live_free(&l);
	}
}

static void child_publishes(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct inode *in;

	l->options.hold_drain = true;
	child_open(l, kind);
	live_mkdir(l, "step.tmp");
	live_write(l, "step.tmp/a", data, DATA_BYTES);
	live_write(l, "step.tmp/b", data, 500);
	live_write(l, "later", data, 500);
	assert_int_equal(live_lookup(l, "step.tmp", &in), 0);
	assert_int_equal(drain_sync_tree(l->st->drain, in->ino), 0);
	assert_int_equal(live_rename(l, "step.tmp", "step", 0), 0);
	assert_int_equal(kv_sync(l->st->kv), 0);
}

static void what_was_published_survives_a_power_cut(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "publish", kind);
		live_empty_stage(&l);
		live_open(&l);
		assert_absent(&l, "step.tmp");
		assert_file(&l, "step/a", data, DATA_BYTES);
		assert_file(&l, "step/b", data, 500);
		live_free(&l);
	}
	free(data);
}

/* --- what does not belong to the store
 * ------------------------------------------- */

static void a_stage_of_another_boot_is_not_believed(void **state)
{
	struct live l = live_kind(1);
	char path[4096];
	int fd;

	(void)state;
	live_close(&l);
	live_child_kind(&l, "write", 1);
	/* The boot's id lies behind the magic of 16 bytes. */
	(void)snprintf(path, sizeof(path), "%s/table", l.stage);
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "0", 1, 17), 1);
	close(fd);
	live_open(&l);
	assert_absent(&l, "c0");
	assert_absent(&l, "open");
	live_free(&l);
}

static void a_stage_of_another_store_is_not_believed(void **state)
{
	struct live l = live_kind(1), other = live_kind(1);

	(void)state;
	live_close(&l);
	live_close(&other);
	live_child_kind(&other, "write", 1);
	remove_tree(l.stage);
	free(l.stage);
	l.stage = strdup(other.stage);
	live_open(&l);
	assert_absent(&l, "c0");
	live_close(&l);
	live_free(&l);
	assert_int_equal(mkdir(other.stage, 0700), 0);
	live_free(&other); /* its files are absent now, and it is sound */
}

/* --- a file that is replaced while its older bytes are not durable yet
 * --------- */

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

/* --- links of what is not durable yet, without a wait (publish=async) --------
 */

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

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "write", child_writes_and_is_killed },
		{ "open", child_opens_and_is_killed },
		{ "drain", child_drains_some },
		{ "change", child_changes_durable_files },
		{ "orphan", child_leaves_orphans },
		{ "sync", child_syncs_while_it_appends },
		{ "publish", child_publishes },
		{ "replace", child_replaces },
		{ "link", child_links },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_kill_every_byte_is_there),
		cmocka_unit_test(after_kill_and_kill_again_every_byte_is_there),
		cmocka_unit_test(after_kill_the_order_of_closes_is_kept),
		cmocka_unit_test(
			after_kill_and_power_cut_what_was_not_durable_is_absent),
		cmocka_unit_test(
			a_cut_in_the_middle_of_a_drain_leaves_whole_files_in_order),
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
		cmocka_unit_test(a_sync_covers_all_that_was_written_before_it),
		cmocka_unit_test(what_was_published_survives_a_power_cut),
		cmocka_unit_test(a_stage_of_another_boot_is_not_believed),
		cmocka_unit_test(a_stage_of_another_store_is_not_believed),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
