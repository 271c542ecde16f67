/*
 * Each invariant of a store is broken alone in an otherwise sound store, and
 * the check must say so, by its code and with a sentence; a sound store must
 * pass without a word.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/check/check.h"
#include "tests/unit/store_fixture.h"

#define FOUND_MAX 64

struct found {
	struct fixture *f;
	unsigned problems, notes;
	char codes[FOUND_MAX][32];
	char last_text[16384];
	char files[FOUND_MAX][256]; /* of every "damaged" */
	unsigned file_count;
	uint64_t progress_done, progress_total; /* of the scrub */
	struct check_result result;
};

static void on_problem(void *self, const struct check_problem *p)
{
	struct found *found = self;

	assert_true(found->problems < FOUND_MAX);
	assert_true(strlen(p->object) > 0);
	assert_true(strlen(p->text) > strlen(p->object));
	assert_true(strlen(p->text) < sizeof(found->last_text));
	(void)snprintf(found->codes[found->problems++], 32, "%s", p->code);
	strcpy(found->last_text, p->text);
	for (size_t i = 0; i < p->file_count; i++)
		(void)snprintf(found->files[found->file_count++], 256, "%s",
			       p->files[i]);
}

static void on_note(void *self, const struct check_problem *p)
{
	struct found *found = self;

	(void)snprintf(found->codes[found->problems + found->notes++], 32,
		       "%s", p->code);
}

static void on_progress(void *self, const char *phase, uint64_t done,
			uint64_t total)
{
	struct found *found = self;

	if (strcmp(phase, "scrub") != 0)
		return;
	assert_true(done >= found->progress_done);
	found->progress_done = done;
	found->progress_total = total;
}

static int run_check(struct found *found, bool scrub, unsigned threads)
{
	struct check_options options = { .scrub = scrub,
					 .threads = threads,
					 .problem = on_problem,
					 .note = on_note,
					 .progress = on_progress,
					 .self = found };

	fixture_reopen(found->f);
	return check_store(found->f->kv, found->f->images_dirfd, &options,
			   &found->result);
}

static bool has_code(const struct found *found, const char *code)
{
	for (unsigned i = 0; i < found->problems; i++)
		if (strcmp(found->codes[i], code) == 0)
			return true;
	return false;
}

static bool has_file(const struct found *found, const char *path)
{
	for (unsigned i = 0; i < found->file_count; i++)
		if (strcmp(found->files[i], path) == 0)
			return true;
	return false;
}

static void a_sound_store_passes_without_a_word(void **state)
{
	for (unsigned threads = 0; threads < 4; threads++) {
		struct found found = { .f = fixture_new() };

		(void)state;
		assert_int_equal(run_check(&found, true, threads), 0);
		assert_int_equal(found.problems, 0);
		assert_int_equal(found.notes, 0);
		assert_int_equal(found.result.problems, 0);
		assert_int_equal(found.result.inodes, 10);
		assert_int_equal(found.result.files, 5);
		assert_int_equal(found.result.directories, 3);
		assert_int_equal(found.result.chunks, 3);
		assert_int_equal(found.result.images, 2);
		assert_int_equal(found.result.scrubbed_bytes,
				 CHUNK_A + CHUNK_B + CHUNK_C);
		assert_int_equal(found.progress_done,
				 found.result.scrubbed_bytes);
		fixture_free(found.f);
	}
}

/* Names and inodes. */

static void break_attr_cut(struct fixture *f)
{
	fixture_put(f, key_ino('A', 8), "\1\2\3", 3);
}

static void break_attr_type(struct fixture *f)
{
	fixture_inode(f, 8, 0150000, 1, 1, "sym");
}

static void break_attr_key(struct fixture *f)
{
	struct key k = key_ino('A', 8);

	k.len--;
	fixture_put(f, k, "", 0);
}

static void break_attr_gone(struct fixture *f)
{
	fixture_delete(f, key_ino('A', 5));
}

static void break_root_gone(struct fixture *f)
{
	fixture_delete(f, key_ino('A', 1));
}

static void break_dirent_cut(struct fixture *f)
{
	fixture_put(f, key_dirent(1, name_hash("sym"), "sym"), "\1", 1);
}

static void break_dirent_hash(struct fixture *f)
{
	struct dirent_rec d = { .ino = 8, .type = S_IFLNK };
	struct bytes value = { 0 };

	fixture_delete(f, key_dirent(1, name_hash("sym"), "sym"));
	dirent_encode(&d, &value);
	fixture_put_bytes(f, key_dirent(1, name_hash("sym") + 1, "sym"),
			  &value);
}

static void break_dirent_slash(struct fixture *f)
{
	fixture_name(f, 1, "a/b", 8, S_IFLNK);
}

static void break_dirent_dotdot(struct fixture *f)
{
	fixture_name(f, 2, "..", 1, S_IFDIR);
}

static void break_dirent_type(struct fixture *f)
{
	fixture_name(f, 1, "sym", 8, S_IFREG);
}

static void break_dirent_gone(struct fixture *f)
{
	fixture_delete(f, key_dirent(1, name_hash("sym"), "sym"));
}

static void break_dirent_dangling(struct fixture *f)
{
	fixture_name(f, 1, "ghost", 50, S_IFREG);
}

static void break_dirent_no_directory(struct fixture *f)
{
	fixture_name(f, 60, "sym", 8, S_IFLNK);
}

static void break_dirent_in_file(struct fixture *f)
{
	fixture_name(f, 3, "sym", 8, S_IFLNK);
}

static void break_nlink(struct fixture *f)
{
	fixture_inode(f, 3, S_IFREG | 0644, 2, 2, "big");
}

static void break_nlink_dir(struct fixture *f)
{
	fixture_inode(f, 2, S_IFDIR | 0755, 4, 1, "d");
}

static void break_nlink_root(struct fixture *f)
{
	fixture_inode(f, 1, S_IFDIR | 0755, 2, 0, "");
}

static void break_nlink_unlinked(struct fixture *f)
{
	fixture_inode(f, 9, S_IFREG | 0644, 1, 0, "");
}

static void break_first_name(struct fixture *f)
{
	fixture_inode(f, 3, S_IFREG | 0644, 1, 2, "other");
}

static void break_first_parent(struct fixture *f)
{
	fixture_inode(f, 10, S_IFDIR | 0755, 2, 1, "sub");
}

static void break_link_gone(struct fixture *f)
{
	fixture_delete(f, key_link(6, 2, "again"));
}

static void break_link_extra(struct fixture *f)
{
	fixture_put(f, key_link(6, 2, "never"), "", 0);
}

static void break_link_first(struct fixture *f)
{
	fixture_put(f, key_link(6, 1, "small"), "", 0);
}

static void break_link_value(struct fixture *f)
{
	fixture_put(f, key_link(6, 2, "again"), "x", 1);
}

static void break_link_no_inode(struct fixture *f)
{
	fixture_put(f, key_link(50, 1, "small"), "", 0);
}

static void break_dir_two_names(struct fixture *f)
{
	fixture_name(f, 1, "sub2", 10, S_IFDIR);
	fixture_inode(f, 1, S_IFDIR | 0755, 4, 0, "");
}

/* 20 and 21 hold each other. */
static void break_ring(struct fixture *f)
{
	fixture_inode(f, 20, S_IFDIR | 0755, 3, 21, "a");
	fixture_inode(f, 21, S_IFDIR | 0755, 3, 20, "b");
	fixture_name(f, 21, "a", 20, S_IFDIR);
	fixture_name(f, 20, "b", 21, S_IFDIR);
}

static void break_orphan_gone(struct fixture *f)
{
	fixture_delete(f, key_ino('O', 9));
}

static void break_orphan_named(struct fixture *f)
{
	fixture_put(f, key_ino('O', 3), "", 0);
}

static void break_orphan_no_inode(struct fixture *f)
{
	fixture_put(f, key_ino('O', 50), "", 0);
}

static void break_fresh_no_inode(struct fixture *f)
{
	fixture_put(f, key_ino('U', 50), "", 0);
}

static void break_fresh_committed(struct fixture *f)
{
	fixture_put(f, key_ino('U', 3), "", 0);
}

static void break_fresh_dir(struct fixture *f)
{
	fixture_put(f, key_ino('U', 2), "", 0);
}

static void break_xattr_no_inode(struct fixture *f)
{
	fixture_put(f, key_xattr(50, "user.x"), "", 0);
}

static void break_xattr_no_name(struct fixture *f)
{
	fixture_put(f, key_ino('X', 3), "", 0);
}

static void put_writer(struct fixture *f, uint64_t ino)
{
	struct writer w = { .source = WRITER_NAME, .rank = 3, .host = "n" };
	struct bytes value = { 0 };

	writer_encode(&w, &value);
	fixture_put_bytes(f, key_ino('W', ino), &value);
}

static void break_writer_no_inode(struct fixture *f)
{
	put_writer(f, 50);
}

static void break_writer_of_dir(struct fixture *f)
{
	put_writer(f, 2);
}

static void break_writer_cut(struct fixture *f)
{
	fixture_put(f, key_ino('W', 3), "\2", 1);
}

static void break_next_ino(struct fixture *f)
{
	fixture_u64(f, key_meta(META_NEXT_INO), 10);
}

static void break_next_ino_gone(struct fixture *f)
{
	fixture_delete(f, key_meta(META_NEXT_INO));
}

/* Contents. */

static void break_content_gone(struct fixture *f)
{
	fixture_delete(f, key_ino('F', 3));
}

static void break_content_cut(struct fixture *f)
{
	fixture_put(f, key_ino('F', 3), "\1\0\0", 3);
}

static void break_content_of_dir(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_gone(f, &e);

	fixture_content(f, 2, &c);
}

static void break_content_generation(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_big(f, &e);

	c.generation = 0;
	fixture_content(f, 3, &c);
}

static void break_extent_no_image(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_big(f, &e);

	c.native = false;
	e.image = 7;
	fixture_content(f, 3, &c);
}

static void break_extent_start(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_big(f, &e);

	c.native = false;
	e.image_offset = 1;
	e.len--;
	c.data_bytes--;
	fixture_content(f, 3, &c);
}

static void break_extent_end(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_big(f, &e);

	c.native = false;
	e.len--;
	c.data_bytes--;
	fixture_content(f, 3, &c);
}

static void break_extent_gap(struct fixture *f)
{
	struct extent e = { 0, CHUNK_A + CHUNK_B + 4, 1, 0 };
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_C, 1);
	struct content c = fixture_big(f, &e);

	e.len = CHUNK_A + CHUNK_B + 4 + CHUNK_C;
	c.size_bytes = c.data_bytes = e.len;
	c.native = false;
	fixture_content(f, 3, &c);
	fixture_chunk(f, 1, CHUNK_A + CHUNK_B + 4, &k);
}

static void break_data_bytes(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_big(f, &e);

	c.data_bytes--;
	fixture_content(f, 3, &c);
}

static void break_data_bytes_small(struct fixture *f)
{
	struct content c = fixture_small(f);

	c.data_bytes = 0;
	fixture_content(f, 6, &c);
}

static void break_native_moved(struct fixture *f)
{
	struct extent e[2];
	struct content c = fixture_part(f, e);

	c.native = true;
	fixture_content(f, 5, &c);
}

static void break_native_size(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_big(f, &e);

	c.size_bytes++;
	fixture_content(f, 3, &c);
}

static void break_native_empty(struct fixture *f)
{
	struct content c = { .generation = 1,
			     .size_bytes = 100000,
			     .kind = CONTENT_EXTENTS,
			     .native = true };

	fixture_content(f, 3, &c);
}

static void break_small_gone(struct fixture *f)
{
	fixture_delete(f, key_ino('D', 6));
}

static void break_small_short(struct fixture *f)
{
	fixture_put(f, key_ino('D', 6), f->bytes, SMALL_LEN - 1);
}

static void break_small_long(struct fixture *f)
{
	fixture_put(f, key_ino('D', 6), f->bytes, SMALL_BYTES_MAX + 1);
}

static void break_small_of_big(struct fixture *f)
{
	fixture_put(f, key_ino('D', 3), f->bytes, SMALL_LEN);
}

static void break_small_no_inode(struct fixture *f)
{
	fixture_put(f, key_ino('D', 50), f->bytes, SMALL_LEN);
}

/* Sound chunks, but another file's. */
static void break_digest(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_gone(f, &e);

	e = (struct extent){ 0, CHUNK_C, 2, CHUNK_A };
	c.digest[0] ^= 1;
	fixture_content(f, 9, &c);
}

static void break_digest_small(struct fixture *f)
{
	uint8_t bytes[SMALL_LEN] = { 0 };

	fixture_put(f, key_ino('D', 6), bytes, sizeof(bytes));
}

/* Chunks, hashes, images. */

static void break_chunk_cut(struct fixture *f)
{
	fixture_put(f, key_chunk(1, 0), "\1", 1);
}

static void break_chunk_gone(struct fixture *f)
{
	fixture_delete(f, key_chunk(1, CHUNK_A));
}

static void break_chunk_overlap(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);

	fixture_chunk(f, 1, CHUNK_A - 10, &k);
}

static void break_chunk_large(struct fixture *f)
{
	struct chunk_rec k = { .len = 2u << 20,
			       .refs = 1,
			       .domain = DOMAIN_ALL };

	fixture_chunk(f, 1, 1u << 20, &k);
}

static void break_chunk_unused(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, 10, 1);

	fixture_chunk(f, 2, 0, &k);
}

static void break_refs_many(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 4);

	fixture_chunk(f, 1, 0, &k);
}

static void break_refs_few(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 2);

	fixture_chunk(f, 1, 0, &k);
}

static void break_refs_none(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, 10, 0);

	fixture_chunk(f, 2, 0, &k);
}

static void break_hash_cut(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);

	fixture_put(f, key_hash(k.hash, DOMAIN_ALL), "\1", 1);
}

static void break_hash_place(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);
	struct chunk_loc l = { 1, 4096, CHUNK_A };

	fixture_loc(f, k.hash, &l);
}

static void break_hash_len(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);
	struct chunk_loc l = { 1, 0, CHUNK_A - 1 };

	fixture_loc(f, k.hash, &l);
}

static void break_hash_other(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);
	struct chunk_loc l = { 1, 0, CHUNK_A };

	k.hash[15] ^= 1;
	fixture_loc(f, k.hash, &l);
}

static void break_image_gone(struct fixture *f)
{
	fixture_delete(f, key_ino('I', 1));
}

static void break_image_value(struct fixture *f)
{
	fixture_put(f, key_ino('I', 1), "\1", 1);
}

static void break_image_size(struct fixture *f)
{
	fixture_u64(f, key_ino('I', 1), CHUNK_A);
}

static void break_image_empty(struct fixture *f)
{
	fixture_u64(f, key_ino('I', 3), 0);
}

static void break_image_number(struct fixture *f)
{
	fixture_u64(f, key_meta(META_NEXT_IMAGE), 2);
}

static void break_image_number_gone(struct fixture *f)
{
	fixture_delete(f, key_meta(META_NEXT_IMAGE));
}

static void break_file_missing(struct fixture *f)
{
	assert_int_equal(unlinkat(f->images_dirfd, "01/0000000000000001", 0),
			 0);
}

static void break_file_short(struct fixture *f)
{
	int fd = openat(f->images_dirfd, "01/0000000000000001", O_WRONLY);

	assert_int_equal(ftruncate(fd, CHUNK_A + CHUNK_B - 1), 0);
	close(fd);
}

static void break_punch(struct fixture *f)
{
	fixture_u64(f, key_ino('P', 1), 0); /* and the key is too short */
}

/* Settings. */

static void break_kind(struct fixture *f)
{
	fixture_put(f, key_ino('Z', 1), "", 0);
}

static void break_series(struct fixture *f)
{
	fixture_put(f, key_series(77), "\1", 1);
}

static void break_secret(struct fixture *f)
{
	fixture_put(f, key_meta(META_SECRET), f->secret, 10);
}

static void break_secret_gone(struct fixture *f)
{
	fixture_delete(f, key_meta(META_SECRET));
}

static void break_counter_value(struct fixture *f)
{
	fixture_put(f, key_meta(META_FILES), "\1", 1);
}

static void break_counter_files(struct fixture *f)
{
	fixture_u64(f, key_meta(META_FILES), 6);
}

static void break_counter_logical(struct fixture *f)
{
	fixture_u64(f, key_meta(META_LOGICAL), 0);
}

static void break_counter_physical(struct fixture *f)
{
	fixture_u64(f, key_meta(META_PHYSICAL), 0);
}

static void break_counter_chunks(struct fixture *f)
{
	fixture_u64(f, key_meta(META_CHUNKS), 4);
}

static void break_counter_shared(struct fixture *f)
{
	fixture_delete(f, key_meta(META_SHARED));
}

static void break_counter_images(struct fixture *f)
{
	fixture_u64(f, key_meta(META_IMAGES), 3);
}

#define BREAK(name, code) { #name, break_##name, code }

static const struct {
	const char *name;
	void (*apply)(struct fixture *f);
	const char *code;
} damages[] = {
	BREAK(attr_cut, "record"),
	BREAK(attr_type, "record"),
	BREAK(attr_key, "record"),
	BREAK(attr_gone, "dangling"),
	BREAK(root_gone, "root"),
	BREAK(dirent_cut, "record"),
	BREAK(dirent_hash, "record"),
	BREAK(dirent_slash, "record"),
	BREAK(dirent_dotdot, "record"),
	BREAK(dirent_type, "type"),
	BREAK(dirent_gone, "lost"),
	BREAK(dirent_dangling, "dangling"),
	BREAK(dirent_no_directory, "no-directory"),
	BREAK(dirent_in_file, "no-directory"),
	BREAK(nlink, "nlink"),
	BREAK(nlink_dir, "nlink"),
	BREAK(nlink_root, "nlink"),
	BREAK(nlink_unlinked, "nlink"),
	BREAK(first_name, "first-name"),
	BREAK(first_parent, "second-name"),
	BREAK(link_gone, "link"),
	BREAK(link_extra, "link"),
	BREAK(link_first, "link"),
	BREAK(link_value, "record"),
	BREAK(link_no_inode, "no-inode"),
	BREAK(dir_two_names, "second-name"),
	BREAK(ring, "ring"),
	BREAK(orphan_gone, "lost"),
	BREAK(orphan_named, "unlinked"),
	BREAK(orphan_no_inode, "no-inode"),
	BREAK(fresh_no_inode, "no-inode"),
	BREAK(fresh_committed, "fresh"),
	BREAK(fresh_dir, "fresh"),
	BREAK(xattr_no_inode, "no-inode"),
	BREAK(xattr_no_name, "record"),
	BREAK(writer_no_inode, "no-inode"),
	BREAK(writer_of_dir, "record"),
	BREAK(writer_cut, "record"),
	BREAK(next_ino, "next-ino"),
	BREAK(next_ino_gone, "next-ino"),
	BREAK(content_gone, "no-content"),
	BREAK(content_cut, "record"),
	BREAK(content_of_dir, "no-inode"),
	BREAK(content_generation, "generation"),
	BREAK(extent_no_image, "extent"),
	BREAK(extent_start, "extent"),
	BREAK(extent_end, "extent"),
	BREAK(extent_gap, "extent"),
	BREAK(data_bytes, "data-bytes"),
	BREAK(data_bytes_small, "data-bytes"),
	BREAK(native_moved, "native"),
	BREAK(native_size, "native"),
	BREAK(native_empty, "native"),
	BREAK(small_gone, "small"),
	BREAK(small_short, "small"),
	BREAK(small_long, "record"),
	BREAK(small_of_big, "small"),
	BREAK(small_no_inode, "no-inode"),
	BREAK(digest, "digest"),
	BREAK(digest_small, "digest"),
	BREAK(chunk_cut, "record"),
	BREAK(chunk_gone, "extent"),
	BREAK(chunk_overlap, "overlap"),
	BREAK(chunk_large, "record"),
	BREAK(chunk_unused, "unused"),
	BREAK(refs_many, "refs"),
	BREAK(refs_few, "refs"),
	BREAK(refs_none, "refs"),
	BREAK(hash_cut, "record"),
	BREAK(hash_place, "hash"),
	BREAK(hash_len, "hash"),
	BREAK(hash_other, "hash"),
	BREAK(image_gone, "unrecorded-image"),
	BREAK(image_value, "record"),
	BREAK(image_size, "image-size"),
	BREAK(image_empty, "empty-image"),
	BREAK(image_number, "next-image"),
	BREAK(image_number_gone, "next-image"),
	BREAK(file_missing, "image-missing"),
	BREAK(file_short, "image-short"),
	BREAK(punch, "record"),
	BREAK(kind, "kind"),
	BREAK(series, "record"),
	BREAK(secret, "secret"),
	BREAK(secret_gone, "secret"),
	BREAK(counter_value, "record"),
	BREAK(counter_files, "counter"),
	BREAK(counter_logical, "counter"),
	BREAK(counter_physical, "counter"),
	BREAK(counter_chunks, "counter"),
	BREAK(counter_shared, "counter"),
	BREAK(counter_images, "counter"),
};

/* With the scrub too: no damage may stop it, or make it crash. */
static void every_broken_invariant_is_reported(void **state)
{
	(void)state;
	for (size_t n = 0; n < sizeof(damages) / sizeof(*damages); n++) {
		struct found found = { .f = fixture_new() };
		int rc;

		damages[n].apply(found.f);
		rc = run_check(&found, true, 0);
		if (rc != 1 || !has_code(&found, damages[n].code)) {
			for (unsigned i = 0; i < found.problems; i++)
				print_message("  found %s\n", found.codes[i]);
			fail_msg("%s: rc %d, expected %s; last text: %s",
				 damages[n].name, rc, damages[n].code,
				 found.last_text);
		}
		assert_int_equal(found.result.problems, found.problems);
		fixture_free(found.f);
	}
}

static void flip(struct fixture *f, const char *name, off_t at)
{
	int fd = openat(f->images_dirfd, name, O_RDWR);
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

static void scrub_names_every_file_with_a_flipped_byte(void **state)
{
	static const struct {
		off_t at;
		unsigned files;
	} flips[] = {
		{ 0, 3 },
		{ 4096, 3 },
		{ CHUNK_A - 1, 3 },
		{ CHUNK_A, 2 },
		{ CHUNK_A + CHUNK_B - 1, 2 },
	};

	(void)state;
	for (size_t n = 0; n < sizeof(flips) / sizeof(*flips); n++) {
		struct found found = { .f = fixture_new() };

		flip(found.f, "01/0000000000000001", flips[n].at);
		assert_int_equal(run_check(&found, true, 2), 1);
		assert_int_equal(found.problems, 1);
		assert_string_equal(found.codes[0], "damaged");
		assert_int_equal(found.result.damaged_chunks, 1);
		assert_int_equal(found.file_count, flips[n].files);
		assert_true(has_file(&found, "/d/big"));
		assert_true(has_file(&found, "/d/copy"));
		assert_int_equal(has_file(&found, "/part"),
				 flips[n].files == 3);
		assert_non_null(strstr(found.last_text, "/d/copy"));
		fixture_free(found.f);
	}
}

static void a_flipped_byte_is_not_seen_without_scrub(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	flip(found.f, "01/0000000000000001", 0);
	assert_int_equal(run_check(&found, false, 0), 0);
	fixture_free(found.f);
}

static void bytes_that_no_chunk_covers_do_not_matter(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	flip(found.f, "02/0000000000000002", 0);
	assert_int_equal(run_check(&found, true, 0), 0);
	fixture_free(found.f);
}

static void a_short_image_names_its_files_without_scrub(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	break_file_short(found.f);
	assert_int_equal(run_check(&found, false, 0), 1);
	assert_true(has_code(&found, "image-short"));
	assert_true(has_code(&found, "damaged"));
	/* Only the second chunk is cut, which /part does not use. */
	assert_int_equal(found.file_count, 2);
	assert_true(has_file(&found, "/d/big"));
	assert_true(has_file(&found, "/d/copy"));
	fixture_free(found.f);
}

static void a_missing_image_names_its_files(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	break_file_missing(found.f);
	assert_int_equal(run_check(&found, true, 0), 1);
	assert_int_equal(found.file_count, 3);
	assert_true(has_file(&found, "/part"));
	fixture_free(found.f);
}

static void an_image_whose_bytes_are_being_given_back_is_fine(void **state)
{
	struct found found = { .f = fixture_new() };
	struct key k = key_chunk(3, 4096);

	(void)state;
	break_image_empty(found.f);
	fixture_u64(found.f, key_meta(META_IMAGES), 3);
	k.data[0] = 'P';
	fixture_u64(found.f, k, 4096);
	/* And one that is in use gives back some of its bytes. */
	k = key_chunk(2, 0);
	k.data[0] = 'P';
	fixture_u64(found.f, k, CHUNK_A);
	assert_int_equal(run_check(&found, true, 0), 0);
	assert_int_equal(found.notes, 0);
	fixture_free(found.f);
}

static void what_a_killed_daemon_left_is_only_remarked_on(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	assert_int_equal(mkdirat(found.f->images_dirfd, "08", 0700), 0);
	write_file(found.f->images_dirfd, "08/0000000000000008", "x", 1);
	write_file(found.f->images_dirfd, "02/0000000000000102", "", 0);
	write_file(found.f->images_dirfd, "02/README", "x", 1);
	fixture_u64(found.f, key_meta(META_UNFINISHED), 8);
	fixture_u64(found.f, key_meta("later"), 1);
	assert_int_equal(run_check(&found, true, 0), 0);
	assert_int_equal(found.problems, 0);
	assert_int_equal(found.notes, 4);
	assert_int_equal(found.result.notes, 4);
	fixture_free(found.f);
}

/* Nobody had begun it: the database may be what is wrong. */
static void an_image_that_the_database_does_not_know_is_a_problem(void **state)
{
	static const char *const names[] = { "02/0000000000000102",
					     "07/0000000000000007" };

	(void)state;
	for (size_t n = 0; n < 2; n++) {
		struct found found = { .f = fixture_new() };

		assert_int_equal(mkdirat(found.f->images_dirfd, "07", 0700), 0);
		write_file(found.f->images_dirfd, names[n], "x", 1);
		fixture_u64(found.f, key_meta(META_UNFINISHED), 8);
		assert_int_equal(run_check(&found, true, 0), 1);
		assert_int_equal(found.problems, 1);
		fixture_free(found.f);
	}
}

/* Many records between those of the store, so that there are table files. */
static void fill(struct fixture *f)
{
	for (uint64_t i = 0; i < 2000; i++) {
		struct series_rec s = { .size_bytes = i * i, .count = i };
		struct bytes value = { 0 };

		series_encode(&s, &value);
		fixture_put_bytes(f, key_series(1000 + i), &value);
	}
}

static void damage_tables(const char *db_path)
{
	char *command = NULL;

	/* In the first block of every table file. */
	assert_true(asprintf(&command,
			     "for f in '%s'/*.sst; do printf 'broken bytes' | "
			     "dd of=\"$f\" bs=1 seek=200 conv=notrunc "
			     "status=none || exit 1; done",
			     db_path) > 0);
	assert_int_equal(system(command), 0);
	free(command);
}

static void a_damaged_database_is_a_problem_not_a_crash(void **state)
{
	struct found found = { .f = fixture_new() };

	(void)state;
	fill(found.f);
	/* Opening again moves the log into a table file. */
	kv_close(found.f->kv);
	assert_int_equal(kv_open(found.f->db_path, false, &found.f->kv), 0);
	kv_close(found.f->kv);
	damage_tables(found.f->db_path);
	assert_int_equal(kv_open_readonly(found.f->db_path, &found.f->kv), 0);
	assert_int_equal(run_check(&found, true, 0), 1);
	assert_true(has_code(&found, "database"));
	fixture_free(found.f);
}

/* Deep, and with every length up to the longest name. */
static void paths_are_told_at_any_depth(void **state)
{
	struct found found = { .f = fixture_new() };
	char name[STORE_NAME_MAX + 1];
	struct fixture *f = found.f;

	(void)state;
	fixture_inode(f, 1, S_IFDIR | 0755, 4, 0, "");
	for (uint64_t i = 0; i < 40; i++) {
		uint64_t parent = i == 0 ? 1 : 20 + i - 1;

		memset(name, 'n', sizeof(name));
		name[STORE_NAME_MAX - i] = 0;
		fixture_inode(f, 20 + i, S_IFDIR | 0755, i == 39 ? 5 : 3,
			      parent, name);
		fixture_name(f, parent, name, 20 + i, S_IFDIR);
	}
	/* Longer than a path can be: told by its number. */
	assert_int_equal(run_check(&found, false, 0), 1);
	assert_true(has_code(&found, "nlink"));
	assert_non_null(strstr(found.last_text, "inode 59"));
	fixture_free(found.f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_store_passes_without_a_word),
		cmocka_unit_test(every_broken_invariant_is_reported),
		cmocka_unit_test(scrub_names_every_file_with_a_flipped_byte),
		cmocka_unit_test(a_flipped_byte_is_not_seen_without_scrub),
		cmocka_unit_test(bytes_that_no_chunk_covers_do_not_matter),
		cmocka_unit_test(a_short_image_names_its_files_without_scrub),
		cmocka_unit_test(a_missing_image_names_its_files),
		cmocka_unit_test(
			an_image_whose_bytes_are_being_given_back_is_fine),
		cmocka_unit_test(what_a_killed_daemon_left_is_only_remarked_on),
		cmocka_unit_test(
			an_image_that_the_database_does_not_know_is_a_problem),
		cmocka_unit_test(a_damaged_database_is_a_problem_not_a_crash),
		cmocka_unit_test(paths_are_told_at_any_depth),
	};

	return cmocka_run_group_tests_name("check", tests, NULL, NULL);
}
