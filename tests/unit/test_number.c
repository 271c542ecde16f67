/*
 * Places and numbers that a damaged store has: a setting, a record or a slot of
 * the stage table says what nobody has given. What is there is not lost, the
 * check says what to do, and that helps.
 */
#include <sched.h>

#include "store/drain/drain_private.h"
#include "store/recover.h"
#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"

#define FILE_BYTES (2 * MIB + 77)

struct found {
	unsigned settings, numbers, others;
};

static void note_problem(void *self, const struct check_problem *p)
{
	struct found *found = self;

	if (strcmp(p->code, "next-place") == 0)
		found->settings++;
	else if (strcmp(p->code, "number") == 0)
		found->numbers++;
	else
		found->others++;
}

/* Of a closed store. */
static struct found look(const struct live *l)
{
	struct found found = { 0 };
	const struct check_options options = { .problem = note_problem,
					       .self = &found };
	char db[4096], images[4096];
	struct check_result result;
	struct kv *kv;
	int fd;

	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, l->path);
	(void)snprintf(images, sizeof(images), "%s/" LAYOUT_IMAGE_DIR, l->path);
	assert_int_equal(kv_open_readonly(db, &kv), 0);
	fd = open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_true(check_store(kv, fd, &options, &result) >= 0);
	close(fd);
	kv_close(kv);
	assert_int_equal(found.others, 0);
	return found;
}

static void rebuild(const struct live *l)
{
	const struct rebuild_options options = { .say = live_rebuilt };
	struct rebuild_result result;
	char why[512] = "";
	int rc = rebuild_store(l->path, &options, &result, why, sizeof(why));

	if (rc != 0)
		fail_msg("rebuild_store: %d: %s", rc, why);
	assert_int_equal(result.base, REBUILD_WHOLE);
}

static void set_next_place(struct live *l, uint64_t next)
{
	struct kv_batch *b = kv_batch_new();

	if (next == 0) /* it is an older ckptfs's, or it is lost */
		record_delete(b, key_meta(META_NEXT_PLACE));
	else
		u64_save(b, key_meta(META_NEXT_PLACE), next);
	assert_int_equal(kv_write(l->st->kv, b), 0);
	kv_batch_free(b);
}

static void cut_next_place(struct live *l)
{
	struct kv_batch *b = kv_batch_new();
	struct key k = key_meta(META_NEXT_PLACE);

	kv_put(b, k.data, k.len, "1234", 4);
	assert_int_equal(kv_write(l->st->kv, b), 0);
	kv_batch_free(b);
}

static void set_generation(struct live *l, const char *path, uint64_t to)
{
	struct kv_batch *b = kv_batch_new();
	struct content c = live_content(l, path);

	c.generation = to;
	content_save(b, key_ino('F', live_ino(l, path)), &c);
	assert_int_equal(kv_write(l->st->kv, b), 0);
	kv_batch_free(b);
	content_release(&c);
}

static void a_setting_that_is_damaged_is_named_and_written_anew(void **state)
{
	static const uint64_t wrong[] = { UINT64_MAX, PLACE_MAX + 1, 0 };
	uint8_t *data = filled(FILE_BYTES + 1, 1);
	char why[512] = "";

	(void)state;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct live l = live_kind(1);
		uint64_t generation;

		live_write(&l, "f", data, FILE_BYTES);
		live_sync_all(&l);
		generation = live_generation(&l, "f");
		if (wrong[i])
			set_next_place(&l, wrong[i]);
		else
			cut_next_place(&l);
		live_close(&l);
		assert_int_equal(live_try_open(&l, why), -EUCLEAN);
		assert_non_null(strstr(why, "fsck"));
		assert_int_equal(look(&l).settings, 1);
		rebuild(&l);
		assert_int_equal(look(&l).settings, 0);
		live_open(&l);
		assert_file(&l, "f", data, FILE_BYTES);
		live_write(&l, "f", data + 1, FILE_BYTES);
		live_sync_all(&l);
		assert_true(live_generation(&l, "f") > generation);
		live_free(&l);
	}
	free(data);
}

/* Every number that there is says so, and one rebuild is enough. */
static void a_setting_that_is_too_small_is_said_once(void **state)
{
	uint8_t *data = filled(FILE_BYTES + 1, 1);

	(void)state;
	for (int gone = 0; gone < 2; gone++) {
		struct live l = live_kind(1);
		uint64_t generation;

		live_write(&l, "f", data, FILE_BYTES);
		live_write(&l, "g", data, FILE_BYTES);
		live_sync_all(&l);
		generation = live_generation(&l, "f");
		set_next_place(&l, gone ? 0 : generation / 2);
		live_close(&l);
		assert_int_equal(look(&l).settings, 1);
		assert_int_equal(look(&l).numbers, 0);
		rebuild(&l);
		assert_int_equal(look(&l).settings, 0);
		live_open(&l);
		live_write(&l, "f", data + 1, FILE_BYTES);
		live_sync_all(&l);
		assert_true(live_generation(&l, "f") > generation);
		live_free(&l);
	}
	free(data);
}

/* A damaged number keeps nothing from being durable. */
static void a_number_that_no_store_gives_ends_with_the_next_save(void **state)
{
	static const uint64_t wrong[] = { GENERATION_MAX + 1, UINT64_MAX };
	uint8_t *data = filled(FILE_BYTES + 1, 1);

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct live l = live_kind(1);

		live_write(&l, "f", data, FILE_BYTES);
		live_sync_all(&l);
		set_generation(&l, "f", wrong[i]);
		live_close(&l);
		assert_int_equal(look(&l).numbers, 1);
		live_open(&l);
		assert_file(&l, "f", data, FILE_BYTES);
		live_write(&l, "f", data + 1, FILE_BYTES);
		live_write(&l, "later", data, 1000);
		live_reopen(&l);
		assert_file(&l, "f", data + 1, FILE_BYTES);
		assert_file(&l, "later", data, 1000);
		live_free(&l);
	}
	free(data);
}

/* What a time was set with, too: it would be that of all that is saved. */
static void a_time_of_a_number_that_no_store_gives(void **state)
{
	const struct attr by_hand = { .mtime_ns = 1234567890 };
	struct live l = live_kind(1);
	struct kv_batch *b = kv_batch_new();
	struct inode *in;
	struct attr a;

	(void)state;
	live_write(&l, "f", "f", 1);
	live_sync_all(&l);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	a = inode_attr(in);
	a.mtime_gen = GENERATION_MAX + 1;
	attr_save(b, key_ino('A', in->ino), &a);
	inode_put(l.st->inodes, in, 1);
	assert_int_equal(kv_write(l.st->kv, b), 0);
	kv_batch_free(b);
	live_close(&l);
	assert_int_equal(look(&l).numbers, 1);
	live_open(&l);
	assert_int_equal(live_lookup(&l, "f", &in), 0);
	assert_int_equal(names_setattr(l.st->names, in, SET_MTIME, &by_hand),
			 0);
	inode_put(l.st->inodes, in, 1);
	live_free(&l);
}

/* Closed in this order; the table says what cannot be of the first two. */
static void child_damages_places(struct live *l, const char *kind)
{
	struct inode *in;

	l->options.hold_drain = true;
	child_open(l, kind);
	live_write(l, "a", "a", 1);
	live_write(l, "b", "bb", 2);
	live_write(l, "c", "ccc", 3);
	for (int i = 0; i < 2; i++) {
		if (live_lookup(l, i == 0 ? "a" : "b", &in) < 0)
			_exit(1);
		in->file->stage->slot->close_order =
			i == 0 ? UINT64_MAX - 3 : PLACE_MAX;
	}
}

static uint64_t place_of(struct live *l, const char *name)
{
	struct inode *in;
	uint64_t place;

	assert_int_equal(live_lookup(l, name, &in), 0);
	place = drain_place_of(l->st->drain, in);
	inode_put(l->st->inodes, in, 1);
	return place;
}

static void a_slot_with_a_damaged_place_is_closed_last(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < 2; kind++) {
		struct live l = live_kind(kind);

		live_close(&l);
		live_child_kind(&l, "damage", kind);
		l.options.hold_drain = true;
		live_open(&l);
		recover_close_open(l.st);
		assert_true(place_of(&l, "c") < place_of(&l, "a"));
		assert_true(place_of(&l, "c") < place_of(&l, "b"));
		assert_true(place_of(&l, "b") < PLACE_MAX / 2);
		live_sync_all(&l);
		live_reopen(&l);
		assert_file(&l, "a", "a", 1);
		assert_file(&l, "b", "bb", 2);
		assert_file(&l, "c", "ccc", 3);
		live_free(&l);
	}
}

/* Of a closed store; set: to this, and else it is only read. */
static uint64_t next_place(const struct live *l, uint64_t set)
{
	struct kv_batch *b = kv_batch_new();
	uint64_t next = 0;
	char db[4096];
	struct kv *kv;

	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, l->path);
	assert_int_equal(kv_open(db, false, &kv), 0);
	assert_int_equal(u64_load(kv, key_meta(META_NEXT_PLACE), &next), 0);
	if (set) {
		u64_save(b, key_meta(META_NEXT_PLACE), set);
		assert_int_equal(kv_write(kv, b), 0);
	}
	kv_batch_free(b);
	kv_close(kv);
	return next;
}

static void child_saves(struct live *l, const char *kind)
{
	l->options.hold_drain = true;
	child_open(l, kind);
	live_write(l, "f", "f", 1);
	if (live_sync(l, "f") < 0)
		_exit(1);
}

/* The database is from before the last mount, which may have left stages. */
static void a_rebuild_believes_what_the_last_daemon_left(void **state)
{
	struct live l = live_kind(1);
	uint64_t next;

	(void)state;
	live_close(&l);
	live_child_kind(&l, "saves", 1);
	next = next_place(&l, PLACES_OF_A_MOUNT);
	rebuild(&l);
	assert_int_equal(next_place(&l, 0), next);
	live_open(&l);
	assert_file(&l, "f", "f", 1);
	live_free(&l);
}

static void child_leaves(struct live *l, const char *kind)
{
	l->options.hold_drain = true;
	child_open(l, kind);
	live_write(l, "a", "old", 3);
	live_write(l, "b", "old", 3);
	if (live_sync(l, "a") < 0 || live_sync(l, "b") < 0)
		_exit(1);
	live_write(l, "a", "newer", 5);
	live_write(l, "b", "newer", 5);
}

/* Of a closed store; back: what *old was before. */
static void damage_content(const struct live *l, uint64_t ino, bool back,
			   void **old, size_t *len)
{
	struct kv_batch *b = kv_batch_new();
	struct key k = key_ino('F', ino);
	char db[4096];
	struct kv *kv;

	(void)snprintf(db, sizeof(db), "%s/" LAYOUT_DB_DIR, l->path);
	assert_int_equal(kv_open(db, false, &kv), 0);
	if (!back)
		assert_int_equal(kv_get(kv, k.data, k.len, old, len), 0);
	kv_put(b, k.data, k.len, back ? *old : "?", back ? *len : 1);
	assert_int_equal(kv_write(kv, b), 0);
	kv_batch_free(b);
	kv_close(kv);
	if (back)
		free(*old);
}

/* What cannot be judged is not taken over, and nothing else is, either. */
static void a_record_that_is_damaged_costs_no_stage(void **state)
{
	char why[512] = "";

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		uint64_t ino;
		void *old;
		size_t len;

		live_write(&l, "b", "first", 5);
		ino = live_ino(&l, "b");
		live_close(&l);
		live_child_kind(&l, "leaves", kind);
		damage_content(&l, ino, false, &old, &len);
		assert_int_equal(live_try_open(&l, why), -EIO);
		assert_non_null(strstr(why, "fsck"));
		damage_content(&l, ino, true, &old, &len);
		live_open(&l);
		assert_file(&l, "a", "newer", 5);
		assert_file(&l, "b", "newer", 5);
		live_free(&l);
	}
}

/* Has a worker frozen what it drains of it? */
static bool has_work(struct live *l, const char *name)
{
	struct drain *d = l->st->drain;
	struct version *v;
	struct inode *in;
	bool yes;

	assert_int_equal(live_lookup(l, name, &in), 0);
	{
		HOLD(&in->lock);
		HOLD(&d->lock);
		v = in->file->versions.in_flight;
		yes = v && job_of(v)->work;
	}
	inode_put(l->st->inodes, in, 1);
	return yes;
}

static struct stage *stage_of(struct live *l, const char *name)
{
	struct inode *in;
	struct stage *s;

	assert_int_equal(live_lookup(l, name, &in), 0);
	s = in->file->stage;
	inode_put(l->st->inodes, in, 1);
	return s;
}

/*
 * A daemon of an older ckptfs has had the table, which says of versions what it
 * said before: "f" is what was durable, and is not any more.
 */
static void child_is_older(struct live *l, const char *kind)
{
	uint8_t *data = filled(FILE_BYTES, 1);
	struct kv_batch *b = kv_batch_new();
	struct stage_slot *slot;
	uint64_t next, version;
	struct handle h;

	child_open(l, kind);
	live_write(l, "f", data, FILE_BYTES);
	live_sync_all(l);
	drain_stop(l->st->drain);
	slot = stage_of(l, "f")->slot;
	version = slot->version;
	h = handle_open(l, "f", O_WRONLY);
	handle_write(&h, data + 1, 1000, 0);
	handle_close(&h);
	slot->version = version;
	if (version == 0 ||
	    u64_load(l->st->kv, key_meta(META_NEXT_PLACE), &next) < 0)
		_exit(1);
	u64_save(b, key_meta(META_NEXT_PLACE), next + PLACES_OF_A_MOUNT);
	if (kv_write(l->st->kv, b) < 0)
		_exit(2);
}

static void a_version_that_an_older_ckptfs_left_is_not_believed(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1), *changed;
	struct live l = live_kind(1);

	(void)state;
	changed = filled(FILE_BYTES, 1);
	memcpy(changed, data + 1, 1000);
	live_close(&l);
	live_child_kind(&l, "older", 1);
	live_open(&l);
	assert_file(&l, "f", changed, FILE_BYTES);
	live_reopen(&l);
	assert_file(&l, "f", changed, FILE_BYTES);
	live_free(&l);
	free(changed);
	free(data);
}

/*
 * What was replaced is no bytes of its file any more, also when somebody of an
 * earlier connection may write to it: it has its number until it ends.
 */
static void what_was_replaced_keeps_its_number(void **state)
{
	uint8_t *data = filled(FILE_BYTES, 1);
	struct live l = live_kind(1);
	struct commits_paused paused;
	struct stage *old;
	uint64_t version;

	(void)state;
	drain_stop(l.st->drain);
	live_write(&l, "f", data, FILE_BYTES);
	old = stage_ref(stage_of(&l, "f"));
	old->unseen_writer = true;
	live_write(&l, "f", data, 100);
	version = SLOT_GET(old->slot, version);
	assert_true(version != 0);
	assert_int_equal(SLOT_GET(old->slot, earlier), 1);
	commits_pause(&paused, &l);
	assert_int_equal(drain_start(l.st->drain), 0);
	while (!has_work(&l, "f"))
		(void)sched_yield();
	assert_int_equal(SLOT_GET(old->slot, version), version);
	commits_go_on(&paused);
	stage_put(&l.st->stages, old);
	live_sync_all(&l);
	live_free(&l);
	free(data);
}

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "damage", child_damages_places },
		{ "older", child_is_older },
		{ "saves", child_saves },
		{ "leaves", child_leaves },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_setting_that_is_damaged_is_named_and_written_anew),
		cmocka_unit_test(a_setting_that_is_too_small_is_said_once),
		cmocka_unit_test(
			a_number_that_no_store_gives_ends_with_the_next_save),
		cmocka_unit_test(a_time_of_a_number_that_no_store_gives),
		cmocka_unit_test(a_slot_with_a_damaged_place_is_closed_last),
		cmocka_unit_test(
			a_version_that_an_older_ckptfs_left_is_not_believed),
		cmocka_unit_test(what_was_replaced_keeps_its_number),
		cmocka_unit_test(a_rebuild_believes_what_the_last_daemon_left),
		cmocka_unit_test(a_record_that_is_damaged_costs_no_stage),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
