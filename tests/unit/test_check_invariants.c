/*
 * Each invariant of a store is broken alone in an otherwise sound store, and
 * the check must say so, by its code and with a sentence.
 */
#include "tests/unit/check_fixture.h"

/* With the scrub too: no damage may stop it, or make it crash. */
static void assert_reported(struct fixture *f, const char *name,
			    const char *code)
{
	struct found found = { .f = f };
	int rc = run_check(&found, true, 0);

	if (rc != 1 || !has_code(&found, code)) {
		for (unsigned i = 0; i < found.problems; i++)
			print_message("  found %s\n", found.codes[i]);
		fail_msg("%s: rc %d, expected %s; last text: %s", name, rc,
			 code, found.last_text);
	}
	assert_int_equal(found.result.problems, found.problems);
	fixture_free(f);
}

/* What `damage` does to a new store f is reported under that code. */
#define BREAK(name, code, damage)                  \
	do {                                       \
		struct fixture *f = fixture_new(); \
                                                   \
		damage;                            \
		assert_reported(f, #name, code);   \
	} while (0)

/* Names and inodes. */

static void put_writer(struct fixture *f, uint64_t ino)
{
	struct writer w = { .source = WRITER_NAME, .rank = 3, .host = "n" };
	struct bytes value = { 0 };

	writer_encode(&w, &value);
	fixture_put_bytes(f, key_ino('W', ino), &value);
}

static void break_attr_key(struct fixture *f)
{
	struct key k = key_ino('A', 8);

	k.len--;
	fixture_put(f, k, "", 0);
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

static void break_names(void)
{
	BREAK(attr_cut, "record", fixture_put(f, key_ino('A', 8), "\1\2\3", 3));
	BREAK(attr_type, "record", fixture_inode(f, 8, 0150000, 1, 1, "sym"));
	BREAK(attr_key, "record", break_attr_key(f));
	BREAK(attr_gone, "dangling", fixture_delete(f, key_ino('A', 5)));
	BREAK(root_gone, "root", fixture_delete(f, key_ino('A', 1)));
	BREAK(dirent_cut, "record",
	      fixture_put(f, key_dirent(1, name_hash("sym"), "sym"), "\1", 1));
	BREAK(dirent_hash, "record", break_dirent_hash(f));
	BREAK(dirent_slash, "record", fixture_name(f, 1, "a/b", 8, S_IFLNK));
	BREAK(dirent_dotdot, "record", fixture_name(f, 2, "..", 1, S_IFDIR));
	BREAK(dirent_type, "type", fixture_name(f, 1, "sym", 8, S_IFREG));
	BREAK(dirent_gone, "lost",
	      fixture_delete(f, key_dirent(1, name_hash("sym"), "sym")));
	BREAK(dirent_dangling, "dangling",
	      fixture_name(f, 1, "ghost", 50, S_IFREG));
	BREAK(dirent_no_directory, "no-directory",
	      fixture_name(f, 60, "sym", 8, S_IFLNK));
	BREAK(dirent_in_file, "no-directory",
	      fixture_name(f, 3, "sym", 8, S_IFLNK));
	BREAK(nlink, "nlink", fixture_inode(f, 3, S_IFREG | 0644, 2, 2, "big"));
	BREAK(nlink_dir, "nlink",
	      fixture_inode(f, 2, S_IFDIR | 0755, 4, 1, "d"));
	BREAK(nlink_root, "nlink",
	      fixture_inode(f, 1, S_IFDIR | 0755, 2, 0, ""));
	BREAK(nlink_unlinked, "nlink",
	      fixture_inode(f, 9, S_IFREG | 0644, 1, 0, ""));
	BREAK(first_name, "first-name",
	      fixture_inode(f, 3, S_IFREG | 0644, 1, 2, "other"));
	BREAK(first_parent, "second-name",
	      fixture_inode(f, 10, S_IFDIR | 0755, 2, 1, "sub"));
	BREAK(link_gone, "link", fixture_delete(f, key_link(6, 2, "again")));
	BREAK(link_extra, "link",
	      fixture_put(f, key_link(6, 2, "never"), "", 0));
	BREAK(link_first, "link",
	      fixture_put(f, key_link(6, 1, "small"), "", 0));
	BREAK(link_value, "record",
	      fixture_put(f, key_link(6, 2, "again"), "x", 1));
	BREAK(link_no_inode, "no-inode",
	      fixture_put(f, key_link(50, 1, "small"), "", 0));
	BREAK(dir_two_names, "second-name", break_dir_two_names(f));
	BREAK(ring, "ring", break_ring(f));
	BREAK(orphan_gone, "lost", fixture_delete(f, key_ino('O', 9)));
	BREAK(orphan_named, "unlinked", fixture_put(f, key_ino('O', 3), "", 0));
	BREAK(orphan_no_inode, "no-inode",
	      fixture_put(f, key_ino('O', 50), "", 0));
	BREAK(fresh_no_inode, "no-inode",
	      fixture_put(f, key_ino('U', 50), "", 0));
	BREAK(fresh_committed, "fresh", fixture_put(f, key_ino('U', 3), "", 0));
	BREAK(fresh_dir, "fresh", fixture_put(f, key_ino('U', 2), "", 0));
	BREAK(xattr_no_inode, "no-inode",
	      fixture_put(f, key_xattr(50, "user.x"), "", 0));
	BREAK(xattr_no_name, "record", fixture_put(f, key_ino('X', 3), "", 0));
	BREAK(writer_no_inode, "no-inode", put_writer(f, 50));
	BREAK(writer_of_dir, "record", put_writer(f, 2));
	BREAK(writer_cut, "record", fixture_put(f, key_ino('W', 3), "\2", 1));
	BREAK(next_ino, "next-ino",
	      fixture_u64(f, key_meta(META_NEXT_INO), 10));
	BREAK(next_ino_gone, "next-ino",
	      fixture_delete(f, key_meta(META_NEXT_INO)));
}

/* Contents. */

/* A record of a chunk that has the first bytes of image 1. */
static void put_chunk(struct fixture *f, uint64_t image, uint64_t offset,
		      uint32_t len, uint32_t refs)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, len, refs);

	fixture_chunk(f, image, offset, &k);
}

static void break_content_of_dir(struct fixture *f)
{
	struct extent e;
	struct content c = fixture_gone(f, &e);

	fixture_content(f, 2, &c);
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
	struct content c = fixture_big(f, &e);

	e.len = CHUNK_A + CHUNK_B + 4 + CHUNK_C;
	c.size_bytes = c.data_bytes = e.len;
	c.native = false;
	fixture_content(f, 3, &c);
	put_chunk(f, 1, CHUNK_A + CHUNK_B + 4, CHUNK_C, 1);
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

static void break_contents(void)
{
	BREAK(content_gone, "no-content", fixture_delete(f, key_ino('F', 3)));
	BREAK(content_cut, "record",
	      fixture_put(f, key_ino('F', 3), "\1\0\0", 3));
	BREAK(content_of_dir, "no-inode", break_content_of_dir(f));
	BREAK(extent_no_image, "extent", break_extent_no_image(f));
	BREAK(extent_start, "extent", break_extent_start(f));
	BREAK(extent_end, "extent", break_extent_end(f));
	BREAK(extent_gap, "extent", break_extent_gap(f));
	BREAK(data_bytes, "data-bytes", break_data_bytes(f));
	BREAK(data_bytes_small, "data-bytes", break_data_bytes_small(f));
	BREAK(native_moved, "native", break_native_moved(f));
	BREAK(native_size, "native", break_native_size(f));
	BREAK(native_empty, "native", break_native_empty(f));
	BREAK(small_gone, "small", fixture_delete(f, key_ino('D', 6)));
	BREAK(small_short, "small",
	      fixture_put(f, key_ino('D', 6), f->bytes, SMALL_LEN - 1));
	BREAK(small_long, "record",
	      fixture_put(f, key_ino('D', 6), f->bytes, SMALL_BYTES_MAX + 1));
	BREAK(small_of_big, "small",
	      fixture_put(f, key_ino('D', 3), f->bytes, SMALL_LEN));
	BREAK(small_no_inode, "no-inode",
	      fixture_put(f, key_ino('D', 50), f->bytes, SMALL_LEN));
	BREAK(digest, "digest", break_digest(f));
	BREAK(digest_small, "digest", break_digest_small(f));
}

/* Chunks, hashes, images. */

/* Where the first chunk of image 1 is said to be. */
static void put_loc(struct fixture *f, uint64_t offset, uint32_t len)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);
	struct chunk_loc l = { 1, offset, len };

	fixture_loc(f, k.hash, &l);
}

static void break_chunk_large(struct fixture *f)
{
	struct chunk_rec k = { .len = 2u << 20,
			       .refs = 1,
			       .domain = DOMAIN_ALL };

	fixture_chunk(f, 1, 1u << 20, &k);
}

static void break_hash_cut(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);

	fixture_put(f, key_hash(k.hash, DOMAIN_ALL), "\1", 1);
}

static void break_hash_other(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);
	struct chunk_loc l = { 1, 0, CHUNK_A };

	k.hash[15] ^= 1;
	fixture_loc(f, k.hash, &l);
}

/* The second of two copies is not there. */
static void break_hash_copy(struct fixture *f)
{
	struct chunk_rec k = fixture_chunk_of(f, 0, CHUNK_A, 1);
	struct chunk_locs l = { 2, { { 1, 0, CHUNK_A }, { 2, 0, CHUNK_A } } };
	struct bytes value = { 0 };

	locs_encode(&l, &value);
	fixture_put_bytes(f, key_hash(k.hash, DOMAIN_ALL), &value);
}

static void break_chunks(void)
{
	BREAK(chunk_cut, "record", fixture_put(f, key_chunk(1, 0), "\1", 1));
	BREAK(chunk_gone, "extent", fixture_delete(f, key_chunk(1, CHUNK_A)));
	BREAK(chunk_overlap, "overlap",
	      put_chunk(f, 1, CHUNK_A - 10, CHUNK_A, 1));
	BREAK(chunk_large, "record", break_chunk_large(f));
	BREAK(chunk_unused, "unused", put_chunk(f, 2, 0, 10, 1));
	BREAK(refs_many, "refs", put_chunk(f, 1, 0, CHUNK_A, 4));
	BREAK(refs_few, "refs", put_chunk(f, 1, 0, CHUNK_A, 2));
	BREAK(refs_none, "refs", put_chunk(f, 2, 0, 10, 0));
	BREAK(hash_cut, "record", break_hash_cut(f));
	BREAK(hash_place, "hash", put_loc(f, 4096, CHUNK_A));
	BREAK(hash_len, "hash", put_loc(f, 0, CHUNK_A - 1));
	BREAK(hash_other, "hash", break_hash_other(f));
	BREAK(hash_copy, "hash", break_hash_copy(f));
	BREAK(image_gone, "unrecorded-image",
	      fixture_delete(f, key_ino('I', 1)));
	BREAK(image_value, "record", fixture_put(f, key_ino('I', 1), "\1", 1));
	BREAK(image_size, "image-size",
	      fixture_u64(f, key_ino('I', 1), CHUNK_A));
	BREAK(image_empty, "empty-image", fixture_u64(f, key_ino('I', 3), 0));
	BREAK(image_number, "next-image",
	      fixture_u64(f, key_meta(META_NEXT_IMAGE), 2));
	BREAK(image_number_gone, "next-image",
	      fixture_delete(f, key_meta(META_NEXT_IMAGE)));
	BREAK(file_missing, "image-missing", lose_image_file(f));
	BREAK(file_short, "image-short", cut_image_file(f));
	/* The key is too short, too. */
	BREAK(punch, "record", fixture_u64(f, key_ino('P', 1), 0));
}

/* Settings. */

static void break_settings(void)
{
	BREAK(kind, "kind", fixture_put(f, key_ino('Z', 1), "", 0));
	BREAK(series, "record", fixture_put(f, key_series(77), "\1", 1));
	BREAK(secret, "secret",
	      fixture_put(f, key_meta(META_SECRET), f->secret, 10));
	BREAK(secret_gone, "secret", fixture_delete(f, key_meta(META_SECRET)));
	BREAK(counter_value, "record",
	      fixture_put(f, key_meta(META_FILES), "\1", 1));
	BREAK(counter_files, "counter",
	      fixture_u64(f, key_meta(META_FILES), 6));
	BREAK(counter_logical, "counter",
	      fixture_u64(f, key_meta(META_LOGICAL), 0));
	BREAK(counter_physical, "counter",
	      fixture_u64(f, key_meta(META_PHYSICAL), 0));
	BREAK(counter_chunks, "counter",
	      fixture_u64(f, key_meta(META_CHUNKS), 4));
	BREAK(counter_shared, "counter",
	      fixture_delete(f, key_meta(META_SHARED)));
	BREAK(counter_images, "counter",
	      fixture_u64(f, key_meta(META_IMAGES), 3));
}

static void every_broken_invariant_is_reported(void **state)
{
	(void)state;
	break_names();
	break_contents();
	break_chunks();
	break_settings();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_broken_invariant_is_reported),
	};

	return cmocka_run_group_tests_name("check_invariants", tests, NULL,
					   NULL);
}
