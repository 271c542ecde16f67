/*
 * What a daemon of an older ckptfs left when it ended at once: the table of its
 * stages, and the records of its files, as it wrote them.
 */
#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"

#define DATA_BYTES (2 * MIB + 777)

static void set_generation(struct live *l, const char *name, uint64_t to)
{
	struct kv_batch *b = kv_batch_new();
	struct content c = live_content(l, name);

	c.generation = to;
	content_save(b, key_ino('F', live_ino(l, name)), &c);
	if (kv_write(l->st->kv, b) < 0)
		_exit(1);
	kv_batch_free(b);
	content_release(&c);
}

/*
 * Its slots say no version, but of what is clean; places are counted from 1,
 * and so are the commits of each file, which are their generations.
 */
static void child_leaves_an_old_table(struct live *l, const char *kind)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct stage_slot *slots;
	uint64_t places = 1;
	struct kv_batch *b;
	struct handle h;

	l->options.hold_drain = true;
	child_open(l, kind);
	live_write(l, "cache", data, DATA_BYTES);
	live_write(l, "changed", data, DATA_BYTES);
	if (live_sync(l, "cache") < 0 || live_sync(l, "changed") < 0)
		_exit(1);
	set_generation(l, "cache", 1);
	set_generation(l, "changed", 1);
	live_write(l, "replaced", data, DATA_BYTES);
	live_write(l, "closed", data + 2, DATA_BYTES - 2);
	live_write(l, "replaced", data + 3, DATA_BYTES - 3);
	h = handle_open(l, "changed", O_WRONLY);
	handle_write(&h, data + 5, 1000, 0);
	h = handle_open(l, "open", O_RDWR | O_CREAT);
	handle_write(&h, data + 4, DATA_BYTES - 4, 0);
	slots = l->st->stages.slots;
	for (uint32_t i = 0; i < l->st->stages.slot_count; i++) {
		struct stage_slot *least = NULL;

		slots[i].version = 0;
		slots[i].old_generation = 1; /* since it was durable last */
		for (uint32_t k = 0; k < l->st->stages.slot_count; k++)
			if (slots[k].ino && slots[k].close_order > places &&
			    (!least ||
			     slots[k].close_order < least->close_order))
				least = &slots[k];
		if (least)
			least->close_order = places++;
	}
	b = kv_batch_new();
	record_delete(b, key_meta(META_NEXT_PLACE));
	if (kv_write(l->st->kv, b) < 0)
		_exit(2);
	kv_batch_free(b);
}

static uint64_t place_of(struct live *l, const char *name)
{
	struct inode *in = NULL;
	uint64_t place;

	assert_int_equal(live_lookup(l, name, &in), 0);
	place = drain_place_of(l->st->drain, in);
	inode_put(l->st->inodes, in, 1);
	return place;
}

static void assert_old_files(struct live *l, const uint8_t *data,
			     const uint8_t *changed)
{
	assert_file(l, "cache", data, DATA_BYTES);
	assert_file(l, "closed", data + 2, DATA_BYTES - 2);
	assert_file(l, "replaced", data + 3, DATA_BYTES - 3);
	assert_file(l, "open", data + 4, DATA_BYTES - 4);
	assert_file(l, "changed", changed, DATA_BYTES);
}

static void what_an_older_ckptfs_left_is_there_in_its_order(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1), *changed;

	(void)state;
	changed = filled(DATA_BYTES, 1);
	memcpy(changed, data + 5, 1000);
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct inode *in = NULL;

		live_close(&l);
		live_child_kind(&l, "old", kind);
		l.options.hold_drain = true;
		live_open(&l);
		assert_int_equal(live_lookup(&l, "cache", &in), 0);
		assert_int_equal(in->file && in->file->stage, kind & 1);
		assert_false(in->file && file_is_dirty(in->file));
		inode_put(l.st->inodes, in, 1);
		/* After what an older ckptfs had in the queue for a DIR. */
		assert_true(place_of(&l, "closed") > PLACES_OF_A_MOUNT / 2);
		assert_true(place_of(&l, "closed") < place_of(&l, "replaced"));
		assert_true(place_of(&l, "replaced") < place_of(&l, "open"));
		assert_true(place_of(&l, "replaced") < place_of(&l, "changed"));
		assert_old_files(&l, data, changed);
		live_sync_all(&l);
		assert_old_files(&l, data, changed);
		assert_true(live_generation(&l, "changed") > PLACES_OF_A_MOUNT);
		live_reopen(&l);
		assert_old_files(&l, data, changed);
		live_free(&l);
	}
	free(changed);
	free(data);
}

/* Its count of commits is no place: nothing says what the file had overtaken.
 */
static void a_publish_of_what_an_older_ckptfs_synced_waits_for_all(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct inode *in = NULL;

		live_close(&l);
		live_child_kind(&l, "old", kind);
		l.options.hold_drain = true;
		live_open(&l);
		assert_int_equal(live_generation(&l, "cache"), 1);
		assert_int_equal(live_lookup(&l, "cache", &in), 0);
		assert_false(committed(&l, live_ino(&l, "closed")));
		assert_int_equal(drain_publish(l.st->drain, in), 0);
		assert_true(committed(&l, live_ino(&l, "closed")));
		inode_put(l.st->inodes, in, 1);
		live_free(&l);
	}
}

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "old", child_leaves_an_old_table },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			what_an_older_ckptfs_left_is_there_in_its_order),
		cmocka_unit_test(
			a_publish_of_what_an_older_ckptfs_synced_waits_for_all),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children,
				       sizeof(children) / sizeof(*children));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
