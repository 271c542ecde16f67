/*
 * Bytes that other files of the same image do not have are given back as holes:
 * whole blocks, under no reader, and also after the daemon was killed.
 */
#include <sys/syscall.h>

#include "store/formats/gear.h"
#include "tests/unit/live_child.h"
#include "tests/unit/live_store.h"

#define DATA_BYTES (4 * MIB)

static uint64_t blocks(uint64_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

/* Tensors that are shared, at offsets that are no multiples of a block. */
static const struct payload both[] = { { 1, 300001 }, { 2, 500003 } };
static const struct payload only_a[] = { { 1, 300001 },
					 { 2, 500003 },
					 { 3, 400005 } };
static const struct payload only_b[] = { { 4, 200007 },
					 { 1, 300001 },
					 { 2, 500003 } };

static void shared_bytes_stay_as_long_as_one_file_has_them(void **state)
{
	size_t a_len, b_len;
	uint8_t *a = safetensors(only_a, 3, 5, &a_len);
	uint8_t *b = safetensors(only_b, 3, 77, &b_len);
	uint64_t shared = both[0].len + both[1].len;

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		for (unsigned which = 0; which < 2; which++) {
			struct live l = live_kind(kind);
			struct live_images left;

			live_write(&l, "a", a, a_len);
			live_sync_all(&l);
			live_write(&l, "b", b, b_len);
			live_reopen(&l);
			assert_int_equal(live_counter(&l, META_SHARED), shared);
			assert_int_equal(live_unlink(&l, which ? "a" : "b"), 0);
			live_settle(&l);
			assert_int_equal(live_counter(&l, META_SHARED), 0);
			assert_int_equal(live_counter(&l, META_PHYSICAL),
					 which ? b_len : a_len);
			left = live_images(&l);
			/* A block more at each end of what is left. */
			assert_true(left.bytes <=
				    blocks(which ? b_len : a_len) + 4 * 4096);
			if (which)
				assert_file(&l, "b", b, b_len);
			else
				assert_file(&l, "a", a, a_len);
			live_reopen(&l);
			if (which)
				assert_file(&l, "b", b, b_len);
			else
				assert_file(&l, "a", a, a_len);
			assert_int_equal(live_unlink(&l, which ? "b" : "a"), 0);
			live_settle(&l);
			assert_int_equal(live_images(&l).count, 0);
			live_free(&l);
		}
	}
	free(a);
	free(b);
}

/*
 * The shared part of a file is found only when its bytes lie in an image of
 * its own already. Who reads that image as it is must not find holes.
 */
static void a_reader_in_the_kernel_never_sees_a_file_get_holes(void **state)
{
	size_t a_len, b_len;
	uint8_t *a = safetensors(only_a, 3, 5, &a_len);
	uint8_t *b = safetensors(only_b, 3, 77, &b_len);

	(void)state;
	for (unsigned kind = 2; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		struct handle w, r;

		live_write(&l, "a", a, a_len);
		live_sync_all(&l);
		w = handle_open(&l, "b", O_WRONLY | O_CREAT);
		handle_write(&w, b, b_len, 0);
		r = handle_open(&l, "b", O_RDONLY);
		handle_close(&w);
		live_sync_all(&l);
		live_settle(&l);
		assert_int_equal(live_counter(&l, META_SHARED),
				 both[0].len + both[1].len);
		assert_handle_bytes(&r, b, b_len);
		handle_close(&r);
		live_settle(&l);
		assert_file(&l, "b", b, b_len);
		/* Now that nobody reads it the copies are gone. */
		assert_true(live_images(&l).bytes <=
			    blocks(a_len) + blocks(only_b[0].len) + 6 * 4096);
		live_free(&l);
	}
	free(a);
	free(b);
}

/* The chunks in the first half: a file of them alone has just these. */
static size_t half_of(const uint8_t *data)
{
	size_t at = 0, next = 0;

	while (next <= DATA_BYTES / 2) {
		at = next;
		next += gear_cut(data + at, CONTENT_BYTES_MAX);
	}
	return at;
}

static void child_deletes_and_ends(struct live *l, const char *argument)
{
	static struct reclaim_ticket reader; /* until the process has ended */

	(void)argument;
	live_open(l);
	reclaim_enter(l->st->reclaim, &reader); /* nothing is punched */
	assert_int_equal(live_unlink(l, "f"), 0);
	commit_wait(l->st->drain);
	assert_int_equal(kv_sync(l->st->kv), 0);
}

static void holes_that_were_decided_are_punched_by_the_next_daemon(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_new(NULL);
	size_t half = half_of(data);

	(void)state;
	live_write(&l, "f", data, DATA_BYTES);
	live_write(&l, "other", data, half);
	live_close(&l);
	live_child(&l, "delete", NULL);
	assert_true(live_images(&l).bytes >= DATA_BYTES);
	live_open(&l);
	assert_absent(&l, "f");
	live_settle(&l);
	assert_int_equal(live_records(&l, 'P'), 0);
	assert_true(live_images(&l).bytes <= half + 2 * 4096);
	assert_file(&l, "other", data, half);
	live_free(&l);
	free(data);
}

/*
 * Two tensors share a block. The second one is given up before somebody begins
 * to read the first, which is given up meanwhile: the block stays until he is
 * done.
 */
static void
a_reader_keeps_the_block_that_he_shares_with_older_holes(void **state)
{
	static const struct payload all[] = { { 1, 500003 }, { 2, 500005 } };
	size_t all_len, one_len, two_len;
	uint8_t *whole = safetensors(all, 2, 0, &all_len);
	uint8_t *one = safetensors(all, 1, 0, &one_len);
	uint8_t *two = safetensors(all + 1, 1, 0, &two_len);
	struct live l = live_kind(1);
	struct reclaim_ticket before;
	struct inode *in = NULL;
	struct file_read r;
	uint64_t freed;
	size_t at = 0;

	(void)state;
	live_write(&l, "both", whole, all_len);
	live_sync_all(&l);
	live_write(&l, "one", one, one_len);
	live_write(&l, "two", two, two_len);
	live_reopen(&l); /* no stage: the bytes come from the images */
	assert_int_equal(live_counter(&l, META_SHARED), 500003 + 500005);
	assert_int_equal(live_unlink(&l, "both"), 0);
	live_settle(&l);
	reclaim_enter(l.st->reclaim, &before);
	assert_int_equal(live_unlink(&l, "two"), 0);
	commit_wait(l.st->drain);
	assert_int_equal(live_lookup(&l, "one", &in), 0);
	assert_int_equal(file_read_begin(&l.st->files, in, one_len, 0, &r), 0);
	live_write(&l, "one", "x", 1);
	live_sync_all(&l);
	commit_wait(l.st->drain);
	reclaim_leave(l.st->reclaim, &before);
	reclaim_drain(l.st->reclaim, &freed);
	for (int i = 0; i < r.count; i++) {
		assert_memory_equal(r.iov[i].iov_base, one + at,
				    r.iov[i].iov_len);
		at += r.iov[i].iov_len;
	}
	assert_int_equal(at, one_len);
	file_read_end(&l.st->files, &r);
	reclaim_drain(l.st->reclaim, &freed);
	assert_int_equal(live_images(&l).count, 0);
	inode_put(l.st->inodes, in, 1);
	live_free(&l);
	free(whole);
	free(one);
	free(two);
}

/*
 * Three tensors go one after the other, and each shares a block with the next:
 * a block whose last byte is given up must be given back with it.
 */
static void a_block_goes_with_the_last_of_its_bytes(void **state)
{
	static const struct payload all[] = { { 1, 500003 },
					      { 2, 500005 },
					      { 3, 500007 } };
	static const struct payload first_third[] = { { 1, 500003 },
						      { 3, 500007 } };
	size_t all_len, two_len, one_len;
	uint8_t *three = safetensors(all, 3, 0, &all_len);
	uint8_t *two = safetensors(first_third, 2, 0, &two_len);
	uint8_t *one = safetensors(all, 1, 0, &one_len);

	(void)state;
	for (unsigned kind = 0; kind < LIVE_KINDS; kind++) {
		struct live l = live_kind(kind);
		/* The image of all three, to the end of the first. */
		uint64_t left = all_len - all[1].len - all[2].len;

		live_write(&l, "three", three, all_len);
		live_sync_all(&l);
		live_write(&l, "two", two, two_len);
		live_sync_all(&l);
		live_write(&l, "one", one, one_len);
		live_sync_all(&l);
		assert_int_equal(live_unlink(&l, "three"), 0);
		live_settle(&l);
		assert_int_equal(live_unlink(&l, "two"), 0);
		live_settle(&l);
		assert_file(&l, "one", one, one_len);
		assert_int_equal(live_counter(&l, META_PHYSICAL), one_len);
		/* And the header of the one that is left; labels. */
		assert_true(live_images(&l).bytes <=
			    blocks(left) + 4096 + live_images(&l).count * 4096);
		live_free(&l);
	}
	free(three);
	free(two);
	free(one);
}

/* What happens while the reclaimer is in the middle of a punch; once. */
static void (*_Atomic while_punching)(void);

int fallocate(int fd, int mode, off_t offset, off_t len)
{
	void (*act)(void) = NULL;

	if (mode & FALLOC_FL_PUNCH_HOLE)
		act = atomic_exchange(&while_punching, NULL);
	if (act)
		act();
	return (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

static struct live *punched;
static struct reclaim_ticket late_reader;

static void delete_the_rest(void)
{
	reclaim_enter(punched->st->reclaim, &late_reader);
	assert_int_equal(live_unlink(punched, "rest"), 0);
	commit_wait(punched->st->drain);
}

/*
 * Else a daemon that ends now would leave the image's record, and nothing that
 * says why.
 */
static void
what_is_decided_during_a_punch_is_not_forgotten_with_it(void **state)
{
	uint8_t *data = filled(DATA_BYTES, 1);
	struct live l = live_new(NULL);
	struct reclaim_ticket reader;
	struct image *i = NULL;
	struct content c;
	uint64_t freed;

	(void)state;
	live_write(&l, "all", data, DATA_BYTES);
	live_sync_all(&l);
	live_write(&l, "rest", data, half_of(data));
	live_sync_all(&l);
	c = live_content(&l, "all");
	assert_int_equal(image_get(&l.st->images, c.extents[0].image, &i), 0);
	content_release(&c);
	/* Two ranges at once: the half that goes, and all of the image. */
	reclaim_enter(l.st->reclaim, &reader);
	assert_int_equal(live_unlink(&l, "all"), 0);
	commit_wait(l.st->drain);
	commit_abandon(l.st->drain, i, DATA_BYTES);
	commit_wait(l.st->drain);
	punched = &l;
	atomic_store(&while_punching, delete_the_rest);
	reclaim_leave(l.st->reclaim, &reader);
	reclaim_drain(l.st->reclaim, &freed);
	assert_null(atomic_load(&while_punching));
	assert_int_equal(live_counter(&l, META_CHUNKS), 0);
	assert_int_equal(live_counter(&l, META_IMAGES), 1);
	assert_true(live_records(&l, 'P') > 0);
	reclaim_leave(l.st->reclaim, &late_reader);
	live_settle(&l);
	assert_int_equal(live_images(&l).count, 0);
	assert_int_equal(live_counter(&l, META_IMAGES), 0);
	assert_int_equal(live_records(&l, 'P'), 0);
	live_free(&l);
	free(data);
}

int main(int argc, char **argv)
{
	static const struct live_child_entry children[] = {
		{ "delete", child_deletes_and_ends },
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			shared_bytes_stay_as_long_as_one_file_has_them),
		cmocka_unit_test(
			a_reader_in_the_kernel_never_sees_a_file_get_holes),
		cmocka_unit_test(
			holes_that_were_decided_are_punched_by_the_next_daemon),
		cmocka_unit_test(
			a_reader_keeps_the_block_that_he_shares_with_older_holes),
		cmocka_unit_test(a_block_goes_with_the_last_of_its_bytes),
		cmocka_unit_test(
			what_is_decided_during_a_punch_is_not_forgotten_with_it),
	};

	if (argc > 1)
		return live_child_main(argc, argv, children, 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
