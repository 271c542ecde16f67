/*
 * Pending files have a link in own/, called by their number: it leads to them
 * wherever others move them, and goes when they are whole, or nobody wants
 * them.
 */
#include <fcntl.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file.h"
#include "tests/unit/shared_fixture.h"

#define OWN ".ckptfs/nodes/a/own"

static int64_t ahead_ns; /* DIR's clock is ahead of what it is */

#define BYTES "what was saved"

/* The file f is pending, and its bytes are durable here. Its number in DIR. */
static ino_t make_closed(struct mounted *m)
{
	struct store *st = m->live.st;
	struct shared_entry e;
	struct inode *in;
	struct stat sb;

	assert_int_equal(
		shared_create(m->s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		0);
	assert_int_equal(e.stat.st_nlink, 1);
	assert_int_equal(file_write(&st->files, in, BYTES, strlen(BYTES), 0),
			 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m->s, in->ino);
	assert_int_equal(drain_sync_closed(st->drain), 0);
	inode_forget(st->inodes, in, 1);
	inode_put(st->inodes, in, 2);
	assert_int_equal(lstat(at(m->dir, "f"), &sb), 0);
	assert_true(pending_is(m->s, &sb));
	assert_int_equal(sb.st_nlink, 2);
	return sb.st_ino;
}

static const char *link_of(const struct mounted *m, ino_t number)
{
	char name[80];

	(void)snprintf(name, sizeof(name), OWN "/%016llx",
		       (unsigned long long)number);
	return at(m->dir, name);
}

static bool has_link(const struct mounted *m, ino_t number)
{
	struct stat sb;

	return lstat(link_of(m, number), &sb) == 0;
}

static void rename_there(const struct mounted *m, const char *from,
			 const char *to)
{
	char *path = strdup(at(m->dir, from));

	assert_int_equal(rename(path, at(m->dir, to)), 0);
	free(path);
}

/* All is uploaded: `name` has the bytes, and there is no link any more. */
static void end_with(struct mounted *m, const char *name)
{
	char buf[64] = "";
	struct stat sb;

	mounted_start(m);
	assert_int_equal(shared_flush(m->s), 0);
	mounted_stop(m);
	if (name) {
		assert_int_equal(stat(at(m->dir, name), &sb), 0);
		assert_int_equal(sb.st_mode & 07777, 0644);
		assert_int_equal(sb.st_nlink, 1);
		assert_int_equal(dir_read_text(AT_FDCWD, at(m->dir, name), buf,
					       sizeof(buf)),
				 strlen(BYTES));
		assert_string_equal(buf, BYTES);
	}
	assert_true(dir_is_empty(AT_FDCWD, at(m->dir, OWN)));
	mounted_free(m);
}

static void a_file_is_completed_wherever_others_have_moved_it(void **state)
{
	struct mounted m = mounted_open();

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	(void)make_closed(&m);
	rename_there(&m, "f", "sub/g");
	rename_there(&m, "sub", "other");
	end_with(&m, "other/g");
}

static void so_is_one_that_was_moved_while_the_node_was_away(void **state)
{
	struct mounted m = mounted_open();

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	(void)make_closed(&m);
	mounted_die(&m);
	rename_there(&m, "f", "sub/g");
	rename_there(&m, "sub", "other");
	mounted_enter(&m);
	assert_false(m.s->search); /* and nobody has to look for it */
	end_with(&m, "other/g");
}

static void what_others_remove_goes_here_and_its_link(void **state)
{
	(void)state;
	for (unsigned away = 0; away < 2; away++) {
		struct mounted m = mounted_open();

		(void)make_closed(&m);
		if (away)
			mounted_die(&m);
		assert_int_equal(unlink(at(m.dir, "f")), 0);
		if (away)
			mounted_enter(&m);
		end_with(&m, NULL);
	}
}

/* By forget-node: its names, and then the node with its links. */
static void what_was_forgotten_goes_here(void **state)
{
	struct mounted m = mounted_open();

	(void)state;
	(void)make_closed(&m);
	mounted_die(&m);
	assert_int_equal(unlink(at(m.dir, "f")), 0);
	remove_tree(at(m.dir, ".ckptfs/nodes/a"));
	mounted_enter(&m);
	assert_true(TAILQ_EMPTY(&m.s->queue));
	end_with(&m, NULL);
}

/* Its bytes are nowhere else, and nobody has given them up. */
static void what_is_not_found_is_kept(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);

	(void)state;
	mounted_die(&m);
	rename_there(&m, "f", "away");
	assert_int_equal(unlink(link_of(&m, number)), 0);
	for (unsigned starts = 0; starts < 2; starts++) {
		mounted_enter(&m);
		assert_false(TAILQ_EMPTY(&m.s->queue));
		mounted_die(&m);
	}
	rename_there(&m, "away", "f");
	mounted_enter(&m);
	end_with(&m, "f");
}

/* Its directory was put back from a copy that knows no links, say. */
static void what_has_lost_its_link_is_known_by_its_name(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);

	(void)state;
	mounted_die(&m);
	assert_int_equal(unlink(link_of(&m, number)), 0);
	mounted_enter(&m);
	assert_true(has_link(&m, number));
	end_with(&m, "f");
}

/* From a copy, where each file has another number, and links are files. */
static void
what_is_in_a_copy_of_the_directory_is_known_by_its_name(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);
	struct stat sb;
	int fd;

	(void)state;
	mounted_die(&m);
	rename_there(&m, "f", "the one that was copied");
	fd = open(at(m.dir, "f"), O_CREAT | O_EXCL | O_WRONLY, 0600);
	assert_int_equal(fchmod(fd, shared_pending_mode()), 0);
	assert_int_equal(fstat(fd, &sb), 0);
	close(fd);
	assert_int_not_equal(sb.st_ino, number);
	assert_int_equal(unlink(link_of(&m, number)), 0);
	put_file(m.dir, link_of(&m, number) + strlen(m.dir) + 1, "");
	assert_int_equal(unlink(at(m.dir, "the one that was copied")), 0);
	/* Another node may be just making it. */
	mounted_enter(&m);
	assert_false(has_link(&m, sb.st_ino));
	mounted_die(&m);
	ahead_ns = INT64_C(120) * 1000000000;
	mounted_enter(&m);
	ahead_ns = 0;
	assert_true(has_link(&m, sb.st_ino));
	end_with(&m, "f");
}

/* One that knows links: they have another number, too, and the same name. */
static void so_it_is_by_its_link(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);
	struct stat sb;
	int fd;

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	mounted_die(&m);
	rename_there(&m, "f", "the one that was copied");
	assert_int_equal(unlink(link_of(&m, number)), 0);
	fd = open(at(m.dir, "sub/g"), O_CREAT | O_EXCL | O_WRONLY, 0600);
	assert_int_equal(fchmod(fd, shared_pending_mode()), 0);
	assert_int_equal(fstat(fd, &sb), 0);
	assert_int_equal(dir_link(fd, AT_FDCWD, link_of(&m, number)), 0);
	close(fd);
	assert_int_not_equal(sb.st_ino, number);
	assert_int_equal(unlink(at(m.dir, "the one that was copied")), 0);
	mounted_enter(&m);
	assert_true(has_link(&m, sb.st_ino));
	assert_false(has_link(&m, number));
	end_with(&m, "sub/g");
}

/* Nor is it another one's that is pending there. */
static void what_another_node_has_at_the_name_is_its(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);
	struct stat sb;
	char own[80];
	int fd;

	(void)state;
	mounted_die(&m);
	assert_int_equal(unlink(at(m.dir, "f")), 0);
	assert_int_equal(unlink(link_of(&m, number)), 0);
	fd = open(at(m.dir, "f"), O_CREAT | O_EXCL | O_WRONLY, 0600);
	assert_int_equal(fchmod(fd, shared_pending_mode()), 0);
	assert_int_equal(fstat(fd, &sb), 0);
	assert_int_equal(mkdir(at(m.dir, ".ckptfs/nodes/b"), 0755), 0);
	assert_int_equal(mkdir(at(m.dir, ".ckptfs/nodes/b/own"), 0700), 0);
	(void)snprintf(own, sizeof(own), ".ckptfs/nodes/b/own/%016llx",
		       (unsigned long long)sb.st_ino);
	assert_int_equal(dir_link(fd, AT_FDCWD, at(m.dir, own)), 0);
	close(fd);
	ahead_ns = INT64_C(120) * 1000000000;
	mounted_enter(&m);
	ahead_ns = 0;
	assert_true(is_there(m.dir, "f"));
	assert_false(has_link(&m, sb.st_ino));
	mounted_die(&m);
	/* It is gone by its node, and this one's is forgotten. */
	assert_int_equal(unlink(at(m.dir, "f")), 0);
	remove_tree(at(m.dir, ".ckptfs/nodes/a"));
	mounted_enter(&m);
	end_with(&m, NULL);
}

static void forget_meta(struct mounted *m, const char *name)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

	record_delete(b, key_meta(name));
	assert_int_equal(kv_write(m->live.st->kv, b), 0);
}

/* One that has no links, and whose files others may have moved. */
static void a_store_of_the_first_form_is_taken_over(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	forget_meta(&m, META_SHARED_OWN);
	mounted_die(&m);
	assert_int_equal(unlink(link_of(&m, number)), 0);
	assert_int_equal(rmdir(at(m.dir, OWN)), 0);
	rename_there(&m, "f", "sub/g");
	mounted_enter(&m);
	assert_true(has_link(&m, number));
	assert_int_equal(record_find(m.live.st->kv, key_meta(META_SHARED_OWN)),
			 0);
	end_with(&m, "sub/g");
}

/* A pending file of this node that the store does not know: its number. */
static ino_t make_unknown(struct mounted *m, const char *name)
{
	struct node n = { .fd = -1 }; /* which knows that it has a link */
	struct stat sb;
	int fd = open(at(m->dir, name), O_CREAT | O_EXCL | O_WRONLY, 0600);

	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, pending_mode(m->s)), 0);
	assert_int_equal(fstat(fd, &sb), 0);
	assert_int_equal(own_link(m->s, &n, fd, sb.st_ino), 0);
	assert_true(n.has_link);
	close(fd);
	return sb.st_ino;
}

/* A power cut took all that the store had of it. */
static void what_was_never_durable_is_taken_away(void **state)
{
	struct mounted m = mounted_open();
	ino_t number;

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	number = make_unknown(&m, "x");
	mounted_die(&m);
	rename_there(&m, "x", "sub/y");
	mounted_enter(&m);
	assert_true(m.s->search);
	assert_true(own_is_lost(m.s, number));
	m.s->search = false; /* as who calls it does */
	local_search(m.s);
	assert_false(m.s->search);
	assert_false(own_is_lost(m.s, number));
	assert_false(is_there(m.dir, "sub/y"));
	end_with(&m, NULL);
}

/* The last mount ended by itself: then it cannot be, and nobody removes it. */
static void after_an_end_what_the_store_does_not_know_stays(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_unknown(&m, "x");

	(void)state;
	mounted_start(&m);
	mounted_stop(&m);
	mounted_die(&m);
	mounted_enter(&m);
	assert_false(own_is_lost(m.s, number));
	local_search(m.s);
	assert_true(is_there(m.dir, "x"));
	assert_true(has_link(&m, number));
	mounted_start(&m);
	mounted_free(&m);
}

/* Another node has put its file at the name just before. */
static void another_file_at_the_name_stays(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_unknown(&m, "x");

	(void)state;
	put_file(m.dir, "f", "another one");
	assert_int_equal(own_take_away(m.s, m.s->home.dirfd, "f", number),
			 -EEXIST);
	assert_true(is_there(m.dir, "f"));
	assert_true(dir_is_empty(AT_FDCWD, at(m.dir, ".ckptfs/new/a")));
	assert_int_equal(own_take_away(m.s, m.s->home.dirfd, "x", number), 0);
	assert_false(is_there(m.dir, "x"));
	mounted_start(&m);
	mounted_free(&m);
}

/* It is whole, and its node is just about to take its link away. */
static void a_link_that_is_going_is_no_name(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_unknown(&m, "x");
	struct stat sb;
	int fd = open(at(m.dir, "x"), O_RDONLY);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, 0644), 0);
	assert_int_equal(fstat(fd, &sb), 0);
	assert_int_equal(sb.st_nlink, 2);
	assert_true(own_is_only_name(m.s, fd, &sb));
	own_unlink(m.s, number);
	assert_true(own_is_only_name(m.s, fd, &sb)); /* as it is now */
	assert_int_equal(dir_link(fd, m.s->home.dirfd, "y"), 0);
	assert_int_equal(fstat(fd, &sb), 0);
	assert_false(own_is_only_name(m.s, fd, &sb));
	close(fd);
	mounted_start(&m);
	mounted_free(&m);
}

static struct {
	struct mounted *m; /* NULL: nothing is looked at */
	uint64_t id; /* of a local file, of which the record said ... */
	char synced[64], renamed[64]; /* ... this name, just then */
} seen;

int __real_kv_sync(struct kv *kv);
int __wrap_kv_sync(struct kv *kv);
int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);

static void note_name(char ret[64])
{
	SCOPED(scope_free) void *value = NULL;
	struct local_record r;
	struct kv_slice v;
	int rc =
		record_load(seen.m->live.st->kv,
			    local_key(LOCAL_FILE_KEY, seen.id), &value, &v.len);

	assert_int_equal(rc, 0);
	v.data = value;
	assert_int_equal(local_record_decode(v, &r), 0);
	(void)snprintf(ret, 64, "%s", r.name);
	local_record_release(&r);
}

/* DIR's client loses all names when the mount has begun. */
static const struct mounted *loses;

int __wrap_kv_sync(struct kv *kv)
{
	if (loses && is_there(loses->dir, OWN)) {
		rename_there(loses, ".ckptfs/nodes/a", ".ckptfs/nodes/away");
		loses = NULL;
	}
	if (seen.m)
		note_name(seen.synced);
	return __real_kv_sync(kv);
}

int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	if (seen.m)
		strcpy(seen.renamed, seen.synced);
	return __real_renameat(from_fd, from, to_fd, to);
}

/* What is not there may be there: its bytes are nowhere else. */
static void what_is_not_found_by_a_client_that_lost_all_is_kept(void **state)
{
	struct mounted m = mounted_open();
	char why[WHY_BYTES];

	(void)state;
	(void)make_closed(&m);
	mounted_die(&m);
	rename_there(&m, "f", "away");
	/* It was forgotten with its links, and is made anew. */
	remove_tree(at(m.dir, ".ckptfs/nodes/a"));
	loses = &m;
	assert_int_equal(mounted_try_enter(&m, why), -EIO);
	assert_null(loses);
	rename_there(&m, ".ckptfs/nodes/away", ".ckptfs/nodes/a");
	rename_there(&m, "away", "f");
	mounted_enter(&m);
	end_with(&m, "f");
}

/* A daemon that was away: what it has gets whole, and it makes nothing more. */
static void who_was_forgotten_makes_nothing(void **state)
{
	struct mounted m = mounted_open();
	struct shared_entry e;
	struct inode *in;

	(void)state;
	(void)make_closed(&m);
	put_file(m.dir, "old", "x");
	assert_int_equal(mkdir(at(m.dir, ".ckptfs/lost"), 0755), 0);
	rename_there(&m, ".ckptfs/nodes/a",
		     ".ckptfs/lost/a.01234567-89ab-4def-8123-456789abcdea");
	assert_int_equal(shared_say_alive(m.s), -ESHUTDOWN);
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "g", &as_file, &e, &in),
		-EIO);
	assert_false(is_there(m.dir, "g"));
	/* Nor anything that is to replace a file. */
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "f", ROOT_INO,
				       "old", 0, NULL),
			 -EIO);
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	mounted_stop(&m);
	assert_true(is_there(m.dir, "f"));
	assert_true(dir_is_empty(AT_FDCWD,
				 at(m.dir, ".ckptfs/lost/a.01234567-89ab-4def-"
					   "8123-456789abcdea/own")));
	mounted_free(&m);
}

/* Or a node that dies would not know that it has to wait for its step. */
static void a_trackers_name_is_noted_before_it_is_there(void **state)
{
	struct mounted m = mounted_open();
	struct node *n = node_of_engine(m.s, make_closed(&m));

	(void)state;
	assert_non_null(n);
	seen.m = &m;
	seen.id = n->id;
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "f", ROOT_INO,
				       "latest", 0, NULL),
			 0);
	seen.m = NULL;
	assert_string_equal(seen.renamed, "latest");
	node_put(m.s, n);
	end_with(&m, "latest");
}

int __real_shared_look_now(int homefd, int64_t *ret_ns);
int __wrap_shared_look_now(int homefd, int64_t *ret_ns);

int __wrap_shared_look_now(int homefd, int64_t *ret_ns)
{
	int rc = __real_shared_look_now(homefd, ret_ns);

	*ret_ns += ahead_ns;
	return rc;
}

/* A node died between the two calls that make a file. */
static void what_was_left_half_made_goes_after_a_minute(void **state)
{
	struct mounted m = mounted_open();
	int dirfd = m.s->home.dirfd;
	int fd = open(at(m.dir, "left"), O_CREAT | O_EXCL | O_WRONLY, 0600);

	(void)state;
	assert_int_equal(fchmod(fd, pending_mode(m.s)), 0);
	(void)make_unknown(&m, "anothers");
	put_file(m.dir, "plain", "");
	assert_int_equal(shared_home_alive(&m.s->home), 0);
	ahead_ns = INT64_C(59) * 1000000000;
	assert_false(own_take_left(m.s, dirfd, "left"));
	ahead_ns = INT64_C(120) * 1000000000;
	assert_false(own_take_left(m.s, dirfd, "anothers"));
	assert_false(own_take_left(m.s, dirfd, "plain"));
	assert_false(own_take_left(m.s, dirfd, "nothing"));
	/* It has bytes: of an older ckptfs, whose node has not come back. */
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_false(own_take_left(m.s, dirfd, "left"));
	assert_int_equal(ftruncate(fd, 0), 0);
	/* A node has not been there since, and may know of it. */
	assert_false(own_take_left(m.s, dirfd, "left"));
	assert_int_equal(shared_home_alive(&m.s->home), 0);
	assert_int_equal(mkdir(at(m.dir, ".ckptfs/nodes/b"), 0755), 0);
	assert_false(own_take_left(m.s, dirfd, "left"));
	assert_int_equal(rmdir(at(m.dir, ".ckptfs/nodes/b")), 0);
	assert_true(own_take_left(m.s, dirfd, "left"));
	assert_false(is_there(m.dir, "left"));
	assert_true(is_there(m.dir, "anothers"));
	assert_true(is_there(m.dir, "plain"));
	ahead_ns = 0;
	close(fd);
	mounted_start(&m);
	mounted_free(&m);
}

/*
 * Whose number is given to another file at once, as some do: nobody takes the
 * link of that one away.
 */
static void a_link_is_removed_once(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);
	struct node *n = node_of_engine(m.s, number);

	(void)state;
	assert_non_null(n);
	{
		HOLD(&m.s->lock);
		assert_int_equal(own_take_locked(n), number);
		assert_int_equal(own_take_locked(n), 0);
	}
	own_unlink(m.s, number);
	put_file(m.dir, link_of(&m, number) + strlen(m.dir) + 1, "another's");
	local_drop(m.s, n);
	own_flush(m.s);
	assert_true(has_link(&m, number));
	node_put(m.s, n);
	mounted_start(&m);
	mounted_free(&m);
}

/* The kernel looks a name up again once: it has to be the new file then. */
static void who_empties_what_was_given_up_looks_again_once(void **state)
{
	struct mounted m = mounted_open();
	ino_t number = make_closed(&m);
	struct node *n = node_of_engine(m.s, number);
	struct shared_entry e;
	struct inode *in;
	uint64_t id = n->id;

	(void)state;
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	while (node_state(m.s, n) != NODE_KEPT)
		(void)sched_yield();
	local_give_up(m.s, n);
	node_put(m.s, n);
	assert_int_equal(shared_change_begin(m.s, id, O_WRONLY, &as_file),
			 -ESTALE);
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", 0, &e), 0);
	assert_true(shared_is_node(e.id)); /* it is DIR's, to be changed */
	shared_forget(m.s, e.id, 1);
	assert_int_equal(
		shared_change_begin(m.s, id, O_WRONLY | O_TRUNC, &as_file),
		-ESTALE);
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", 0, &e), 0);
	assert_false(shared_is_node(e.id));
	assert_int_equal(
		shared_change_begin(m.s, e.id, O_WRONLY | O_TRUNC, &as_file),
		0);
	shared_change_end(m.s, e.id);
	assert_int_equal(shared_unlink(m.s, &caller, ROOT_INO, "f", false), 0);
	assert_int_equal(inode_get(m.live.st->inodes, e.id, &in), 0);
	inode_forget(m.live.st->inodes, in, 1);
	inode_put(m.live.st->inodes, in, 2);
	mounted_free(&m);
}

/* The last daemon died, or DIR forgot that it was removed. */
static void what_was_moved_aside_goes_with_the_next_start(void **state)
{
	struct mounted m = mounted_open();
	char lost[64], other[64];
	struct stat sb;

	(void)state;
	put_file(m.dir, ".ckptfs/new/a/x", "");
	assert_int_equal(fstatat(m.s->home.newfd, "x", &sb, 0), 0);
	(void)snprintf(lost, sizeof(lost), ".lost-%016llx",
		       (unsigned long long)sb.st_ino);
	(void)snprintf(other, sizeof(other), ".lost-%016llx",
		       (unsigned long long)sb.st_ino + 100000);
	assert_int_equal(linkat(m.s->home.newfd, "x", m.s->home.newfd, lost, 0),
			 0);
	/* A user's, of which the name was taken in that moment. */
	assert_int_equal(renameat(m.s->home.newfd, "x", m.s->home.newfd, other),
			 0);
	mounted_die(&m);
	mounted_enter(&m);
	assert_int_equal(fstatat(m.s->home.newfd, lost, &sb, 0), -1);
	assert_int_equal(fstatat(m.s->home.newfd, other, &sb, 0), 0);
	mounted_free(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			what_is_not_found_by_a_client_that_lost_all_is_kept),
		cmocka_unit_test(who_was_forgotten_makes_nothing),
		cmocka_unit_test(
			who_empties_what_was_given_up_looks_again_once),
		cmocka_unit_test(
			what_is_in_a_copy_of_the_directory_is_known_by_its_name),
		cmocka_unit_test(what_another_node_has_at_the_name_is_its),
		cmocka_unit_test(so_it_is_by_its_link),
		cmocka_unit_test(what_is_not_found_is_kept),
		cmocka_unit_test(what_was_left_half_made_goes_after_a_minute),
		cmocka_unit_test(a_link_is_removed_once),
		cmocka_unit_test(a_trackers_name_is_noted_before_it_is_there),
		cmocka_unit_test(
			a_file_is_completed_wherever_others_have_moved_it),
		cmocka_unit_test(
			so_is_one_that_was_moved_while_the_node_was_away),
		cmocka_unit_test(what_others_remove_goes_here_and_its_link),
		cmocka_unit_test(what_was_forgotten_goes_here),
		cmocka_unit_test(what_has_lost_its_link_is_known_by_its_name),
		cmocka_unit_test(what_was_moved_aside_goes_with_the_next_start),
		cmocka_unit_test(a_store_of_the_first_form_is_taken_over),
		cmocka_unit_test(what_was_never_durable_is_taken_away),
		cmocka_unit_test(
			after_an_end_what_the_store_does_not_know_stays),
		cmocka_unit_test(another_file_at_the_name_stays),
		cmocka_unit_test(a_link_that_is_going_is_no_name),
	};

	return cmocka_run_group_tests_name("shared_own", tests, NULL, NULL);
}
