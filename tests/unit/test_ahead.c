/* What is read ahead: for whom, how far, and that it is in memory then. */
#include "store/space/ahead.h"

#include <sys/mman.h>

#include "tests/unit/live_store.h"

#define CALL (UINT64_C(1) << 20)
#define FILE_BYTES (UINT64_C(200) << 20)

/* A read, and what it leads to: how many bytes are read ahead. */
static uint64_t follow(struct ahead_streams *s, uint64_t off, uint64_t len)
{
	uint64_t from = 0, to = 0;

	if (!ahead_follow(s, off, len, FILE_BYTES, &from, &to))
		return 0;
	assert_true(from < to);
	assert_true(to <= FILE_BYTES);
	return to - from;
}

static void who_reads_in_sequence_finds_all_of_it_read(void **state)
{
	struct ahead_streams s = { 0 };
	uint64_t from, to, end = CALL;

	(void)state;
	for (uint64_t off = 0; off < FILE_BYTES; off += CALL) {
		uint64_t next = off + CALL;

		if (!ahead_follow(&s, off, CALL, FILE_BYTES, &from, &to))
			continue;
		assert_int_equal(from, end);
		assert_true(to > from);
		assert_true(to - next <= next); /* not more than was read */
		assert_true(to - next <= AHEAD_BYTES_MAX);
		end = to;
		if (next >= AHEAD_BYTES_MAX && to < FILE_BYTES)
			assert_true(to - next >
				    AHEAD_BYTES_MAX - AHEAD_BLOCK_BYTES);
	}
	assert_int_equal(end, FILE_BYTES);
}

static void who_reads_a_header_gets_nothing_more(void **state)
{
	struct ahead_streams s = { 0 };

	(void)state;
	assert_int_equal(follow(&s, 0, 8), 0);
	assert_int_equal(follow(&s, 8, 4096), 0);
	assert_int_equal(follow(&s, 4104, 100000), 0);
}

static void who_skips_about_gets_nothing_more(void **state)
{
	struct ahead_streams s = { 0 };

	(void)state;
	for (uint64_t off = 5 * CALL; off < FILE_BYTES; off += 9 * CALL)
		assert_int_equal(follow(&s, off, CALL), 0);
}

static void reads_in_the_wrong_order_are_in_sequence(void **state)
{
	struct ahead_streams s = { 0 };
	uint64_t sum = 0;

	(void)state;
	for (uint64_t off = 0; off < FILE_BYTES; off += 2 * CALL) {
		sum += follow(&s, off + CALL, CALL);
		sum += follow(&s, off, CALL);
	}
	assert_int_equal(sum, FILE_BYTES - 2 * CALL);
}

static void each_of_several_readers_is_followed(void **state)
{
	struct ahead_streams s = { 0 };
	uint64_t part = FILE_BYTES / AHEAD_STREAMS_MAX;
	uint64_t sum[AHEAD_STREAMS_MAX] = { 0 };

	(void)state;
	for (uint64_t off = 0; off < part / 2; off += CALL)
		for (unsigned i = 0; i < AHEAD_STREAMS_MAX; i++)
			sum[i] += follow(&s, i * part + off, CALL);
	for (unsigned i = 0; i < AHEAD_STREAMS_MAX; i++)
		assert_true(sum[i] >= part / 2);
}

static void the_reader_who_was_away_longest_is_forgotten(void **state)
{
	struct ahead_streams s = { 0 };
	uint64_t part = FILE_BYTES / (AHEAD_STREAMS_MAX + 1);

	(void)state;
	for (uint64_t off = 0; off < 4 * CALL; off += CALL)
		for (unsigned i = 1; i < AHEAD_STREAMS_MAX; i++)
			(void)follow(&s, i * part + off, CALL);
	for (uint64_t off = 0; off < 4 * CALL; off += CALL)
		(void)follow(&s, off, CALL);
	/* One more than there is room for. */
	assert_int_equal(follow(&s, AHEAD_STREAMS_MAX * part, CALL), 0);
	assert_int_equal(follow(&s, part + 4 * CALL, CALL), 0);
	assert_true(follow(&s, 4 * CALL, CALL) > 0);
}

static void a_file_that_is_read_again_is_read_ahead_again(void **state)
{
	struct ahead_streams s = { 0 };
	uint64_t sum[2] = { 0 };

	(void)state;
	for (unsigned pass = 0; pass < 2; pass++)
		for (uint64_t off = 0; off < FILE_BYTES; off += CALL)
			sum[pass] += follow(&s, off, CALL);
	assert_int_equal(sum[0], FILE_BYTES - CALL);
	assert_true(sum[1] >= FILE_BYTES - 2 * AHEAD_BLOCK_BYTES);
}

static void a_read_at_the_end_or_behind_it_leads_nowhere(void **state)
{
	struct ahead_streams s = { 0 };

	(void)state;
	assert_int_equal(follow(&s, FILE_BYTES - CALL, CALL), 0);
	assert_int_equal(follow(&s, FILE_BYTES, CALL), 0);
	assert_int_equal(follow(&s, FILE_BYTES + CALL, CALL), 0);
	assert_int_equal(follow(&s, INT64_MAX - CALL, CALL), 0);
	assert_int_equal(follow(&s, INT64_MAX, CALL), 0);
}

/* --- what is in memory -------------------------------------------------- */

/* How many pages of [off, off + len) of an image are in the page cache. */
static size_t pages_in_memory(struct live *l, uint64_t id, uint64_t off,
			      uint64_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), count = 0;
	uint64_t start = off - off % page;
	size_t size = (size_t)(off + len - start);
	unsigned char *pages = calloc(size / page + 1, 1);
	struct image *i = NULL;
	void *map;
	int fd;

	assert_non_null(pages);
	assert_int_equal(image_get(&l->st->images, id, &i), 0);
	fd = image_open_fd(&l->st->images, i, O_RDONLY);
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, (off_t)start);
	close(fd);
	assert_true(map != MAP_FAILED);
	assert_int_equal(mincore(map, size, pages), 0);
	for (size_t n = 0; n < (size + page - 1) / page; n++)
		count += pages[n] & 1;
	munmap(map, size);
	image_put(&l->st->images, i);
	free(pages);
	return count;
}

static size_t pages_of(uint64_t off, uint64_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (size_t)((off + len + page - 1) / page - off / page);
}

/* False: this file system's files are always in memory. */
static bool drop(struct live *l, uint64_t id, uint64_t size)
{
	struct image *i = NULL;
	int fd;

	assert_int_equal(image_get(&l->st->images, id, &i), 0);
	fd = image_open_fd(&l->st->images, i, O_RDONLY);
	assert_int_equal(fsync(fd), 0);
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	image_put(&l->st->images, i);
	return pages_in_memory(l, id, 0, size) == 0;
}

#define PIECE (3u * MIB / 2)
#define PIECES 16u
#define PIECED_BYTES ((size_t)PIECES * PIECE)

/* Two files of which the second has every other piece of the first. */
static uint8_t *write_pieced(struct live *l)
{
	uint8_t *data = filled(PIECED_BYTES, 1), *other;

	live_write(l, "first", data, PIECED_BYTES);
	live_sync_all(l);
	other = filled(PIECED_BYTES, 2);
	for (unsigned i = 0; i < PIECES; i += 2)
		memcpy(data + (size_t)i * PIECE, other + (size_t)i * PIECE,
		       PIECE);
	free(other);
	live_write(l, "pieced", data, PIECED_BYTES);
	live_sync_all(l);
	live_reopen(l); /* nothing of it is mapped any more */
	return data;
}

static void what_a_reader_comes_to_next_is_in_memory(void **state)
{
	struct store_options options = live_options();
	const struct content *c;
	bool dropped = true;
	struct handle h;
	struct live l;
	uint8_t *data, *buf = malloc(MIB);
	uint64_t next = 0, reach;

	(void)state;
	assert_non_null(buf);
	options.no_stage_cache = true;
	l = live_new(&options);
	if (!l.st->files.ahead) {
		live_free(&l);
		free(buf);
		print_message("SKIP: Linux 5.18 is needed to read ahead\n");
		skip();
	}
	data = write_pieced(&l);
	h = handle_open(&l, "pieced", O_RDONLY);
	c = &h.in->file->content->c;
	assert_true(c->extent_count >= PIECES);
	for (size_t i = 0; i < c->extent_count; i++)
		dropped =
			drop(&l, c->extents[i].image,
			     c->extents[i].image_offset + c->extents[i].len) &&
			dropped;
	for (; next < 6 * MIB; next += MIB)
		assert_int_equal(handle_read(&h, buf, MIB, next), MIB);
	ahead_settle(l.st->files.ahead);
	reach = 2 * next; /* as much again */
	for (size_t i = 0; i < c->extent_count; i++) {
		const struct extent *e = &c->extents[i];
		size_t found =
			pages_in_memory(&l, e->image, e->image_offset, e->len);

		if (e->offset + e->len <= reach)
			assert_int_equal(found,
					 pages_of(e->image_offset, e->len));
		if (e->offset >= reach + 2 * AHEAD_BLOCK_BYTES && dropped)
			assert_int_equal(found, 0);
	}
	assert_handle_bytes(&h, data, PIECED_BYTES);
	handle_close(&h);
	live_free(&l);
	free(data);
	free(buf);
}

/* Who reads it is said at each open that is a rank's own: see reads.h. */
static void a_file_is_an_owners_as_long_as_it_is_open(void **state)
{
	struct live l = live_new(NULL);
	struct handle first, second;

	(void)state;
	live_write(&l, "f", "x", 1);
	first = handle_open(&l, "f", O_RDONLY);
	assert_false(first.in->file->read_by_owner);
	file_read_by_owner(first.in);
	second = handle_open(&l, "f", O_RDONLY); /* another rank's */
	handle_close(&first);
	assert_true(second.in->file->read_by_owner);
	handle_close(&second);
	first = handle_open(&l, "f", O_RDONLY);
	assert_false(first.in->file->read_by_owner);
	handle_close(&first);
	live_free(&l);
}

static void a_store_can_be_closed_in_the_middle_of_it(void **state)
{
	struct store_options options = live_options();
	struct handle h;
	struct live l;
	uint8_t *data, *buf = malloc(MIB);

	(void)state;
	assert_non_null(buf);
	options.no_stage_cache = true;
	l = live_new(&options);
	data = write_pieced(&l);
	for (unsigned n = 0; n < 20; n++) {
		h = handle_open(&l, "pieced", O_RDONLY);
		for (uint64_t off = 0; off < 4 * MIB; off += MIB)
			assert_int_equal(handle_read(&h, buf, MIB, off), MIB);
		handle_close(&h);
		live_reopen(&l);
	}
	live_free(&l);
	free(data);
	free(buf);
}

/* Blocks of images that are removed meanwhile are dropped like others. */
static void a_file_can_be_removed_in_the_middle_of_it(void **state)
{
	struct store_options options = live_options();
	struct handle h;
	struct live l;
	uint8_t *buf = malloc(MIB);

	(void)state;
	assert_non_null(buf);
	options.no_stage_cache = true;
	l = live_new(&options);
	for (unsigned n = 0; n < 4; n++) {
		uint64_t freed;

		free(write_pieced(&l));
		h = handle_open(&l, "pieced", O_RDONLY);
		for (uint64_t off = 0; off < 4 * MIB; off += MIB)
			assert_int_equal(handle_read(&h, buf, MIB, off), MIB);
		handle_close(&h);
		assert_int_equal(live_unlink(&l, "first"), 0);
		assert_int_equal(live_unlink(&l, "pieced"), 0);
		live_sync_all(&l);
		reclaim_drain(l.st->reclaim, &freed);
	}
	live_free(&l);
	free(buf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_reads_in_sequence_finds_all_of_it_read),
		cmocka_unit_test(who_reads_a_header_gets_nothing_more),
		cmocka_unit_test(who_skips_about_gets_nothing_more),
		cmocka_unit_test(reads_in_the_wrong_order_are_in_sequence),
		cmocka_unit_test(each_of_several_readers_is_followed),
		cmocka_unit_test(the_reader_who_was_away_longest_is_forgotten),
		cmocka_unit_test(a_file_that_is_read_again_is_read_ahead_again),
		cmocka_unit_test(a_read_at_the_end_or_behind_it_leads_nowhere),
		cmocka_unit_test(what_a_reader_comes_to_next_is_in_memory),
		cmocka_unit_test(a_file_is_an_owners_as_long_as_it_is_open),
		cmocka_unit_test(a_store_can_be_closed_in_the_middle_of_it),
		cmocka_unit_test(a_file_can_be_removed_in_the_middle_of_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
