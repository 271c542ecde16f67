/*
 * Tickets: who replaces a name of DIR, or removes it, when several nodes do;
 * and what of them is left by a node that died in between.
 */

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/file/file.h"
#include "store/shared/forget.h"
#include "tests/unit/ticket_fixture.h"

#define FOLDER 0x1234

/* --- the rule, without a mount -------------------------------------------- */

struct room {
	char *dir;
};

static struct room room_new(void)
{
	struct room r = { make_tmp() };

	assert_int_equal(mkdir(at(r.dir, "next"), 0700), 0);
	dirfd_ = open(r.dir, O_RDONLY | O_DIRECTORY);
	nextfd = openat(dirfd_, "next", O_RDONLY | O_DIRECTORY);
	assert_true(nextfd >= 0);
	return r;
}

static void room_free(struct room *r)
{
	assert_true(dir_is_empty(dirfd_, "next"));
	close(nextfd);
	close(dirfd_);
	remove_tree(r->dir);
	free(r->dir);
}

/* A ticket of that node for NAME, which has this text. */
static void make_ticket(const char *node, uint64_t n, const char *text,
			char ret[TICKET_PATH_BYTES])
{
	int fd;

	assert_int_equal(ticket_next(nextfd, FOLDER, "f", node, n, ret), 0);
	fd = ticket_make(nextfd, ret, TICKET_OPEN, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void the_later_call_wins(void **state)
{
	char a[TICKET_PATH_BYTES], b[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	assert_int_equal(ticket_any(nextfd, FOLDER, "f", NULL), 0);
	make_ticket("b", 1, "first", b);
	make_ticket("a", 1, "second", a);
	assert_true(strcmp(strrchr(b, '/'), strrchr(a, '/')) < 0);
	assert_int_equal(ticket_any(nextfd, FOLDER, "f", NULL), 1);
	assert_int_equal(ticket_any(nextfd, FOLDER, "f", a), 1);
	assert_int_equal(ticket_any(nextfd, FOLDER + 1, "f", NULL), 0);
	complete(a);
	assert_text("second");
	assert_int_equal(ticket_take(nextfd, b), -ENODATA); /* overtaken */
	assert_int_equal(ticket_any(nextfd, FOLDER, "f", NULL), 0);
	room_free(&r);
}

static void an_earlier_one_leaves_the_later_ones(void **state)
{
	char a[TICKET_PATH_BYTES], b[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	make_ticket("a", 1, "first", a);
	make_ticket("b", 1, "second", b);
	complete(a);
	assert_text("first");
	complete(b);
	assert_text("second");
	room_free(&r);
}

static void what_is_taken_has_its_place_before_a_later_one(void **state)
{
	char a[TICKET_PATH_BYTES], b[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	make_ticket("a.1", 1, "first", a); /* a node's name may have dots */
	make_ticket("b", 1, "second", b);
	assert_int_equal(ticket_take(nextfd, a), 0);
	assert_int_equal(ticket_take(nextfd, a), 0); /* by a second try */
	assert_int_equal(ticket_take(nextfd, b), 0);
	pauses.asked = 0;
	pauses.rc = -EBUSY;
	assert_int_equal(ticket_settle(nextfd, b, NULL, &waits), -EBUSY);
	assert_int_equal(pauses.asked, 1);
	assert_string_equal(pauses.last + strlen(pauses.last) - 1, "!");
	pauses.rc = 0;
	pauses.places = a;
	assert_int_equal(ticket_settle(nextfd, b, NULL, &waits), 0);
	assert_text("first");
	assert_int_equal(ticket_place(nextfd, b, dirfd_, "f"), 0);
	assert_text("second");
	room_free(&r);
}

/* A removal of NAME by node c. */
static void make_removal(char ret[TICKET_PATH_BYTES])
{
	int fd;

	assert_int_equal(ticket_next(nextfd, FOLDER, "f", "c", 1, ret), 0);
	fd = ticket_make(nextfd, ret, TICKET_REMOVES, 0600);
	assert_true(fd >= 0);
	close(fd);
}

static void a_removal_takes_earlier_ones_along(void **state)
{
	char a[TICKET_PATH_BYTES], b[TICKET_PATH_BYTES], c[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	put_file(r.dir, "f", "old");
	make_ticket("a", 1, "first", a);
	make_ticket("b", 1, "second", b);
	assert_int_equal(ticket_take(nextfd, b), 0);
	make_removal(c);
	pauses.asked = 0;
	pauses.places = b;
	assert_int_equal(ticket_settle(nextfd, c, NULL, &waits), 0);
	assert_int_equal(pauses.asked, 1);
	assert_int_equal(ticket_remove(nextfd, c, dirfd_, "f"), 0);
	assert_false(is_there(r.dir, "f"));
	assert_int_equal(ticket_take(nextfd, a), -ENODATA);
	room_free(&r);
}

static struct ticket_left left;

static int note_left(void *arg, const struct ticket_left *t)
{
	(void)arg;
	left = *t;
	return 0;
}

/* As the node would have gone on, or who forgets it. */
static void finish(enum ticket_kind kind)
{
	assert_int_equal(tickets_each(nextfd, note_left, NULL), 0);
	left.name = "f";
	left.kind = kind;
	assert_true(ticket_is_to_finish(&left));
	assert_int_equal(left.folder, FOLDER);
	assert_int_equal(ticket_finish(nextfd, &left, dirfd_, &waits), 0);
}

static void what_a_dead_node_had_taken_is_finished(void **state)
{
	char a[TICKET_PATH_BYTES], c[TICKET_PATH_BYTES], path[600];
	struct room r = room_new();

	(void)state;
	make_ticket("a", 1, "first", a);
	assert_int_equal(ticket_take(nextfd, a), 0);
	finish(TICKET_TAKEN);
	assert_string_equal(left.node, "a");
	assert_text("first");
	make_removal(c);
	finish(TICKET_REMOVES);
	assert_false(is_there(r.dir, "f"));
	/* That it was removed is known: what was made since stays. */
	make_removal(c);
	(void)snprintf(path, sizeof(path), "next/%s=", c);
	put_file(r.dir, path, "what it was");
	put_file(r.dir, "f", "another one");
	finish(TICKET_REMOVES);
	assert_text("another one");
	room_free(&r);
}

/* The caller holds it, so that nobody places it. */
static void what_is_held_goes_last(void **state)
{
	char a[TICKET_PATH_BYTES], b[TICKET_PATH_BYTES], c[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	make_ticket("a", 1, "first", a);
	make_ticket("b", 1, "second", b);
	make_ticket("c", 1, "third", c);
	assert_int_equal(ticket_stands(nextfd, b), 0); /* c is higher */
	assert_int_equal(ticket_take(nextfd, a), 0);
	assert_int_equal(ticket_take(nextfd, b), 0);
	assert_int_equal(ticket_take(nextfd, c), 0);
	pauses.rc = -EBUSY;
	assert_int_equal(ticket_settle(nextfd, c, a, &waits), -EBUSY);
	assert_int_equal(ticket_any(nextfd, FOLDER, "f", c), 1);
	pauses.rc = 0;
	pauses.places = b;
	assert_int_equal(ticket_settle(nextfd, c, a, &waits), 0);
	assert_int_equal(ticket_any(nextfd, FOLDER, "f", c), 0);
	assert_int_equal(ticket_stands(nextfd, c), 1);
	assert_int_equal(ticket_place(nextfd, c, dirfd_, "f"), 0);
	assert_text("third");
	room_free(&r);
}

/* A rename over another name of the same file does nothing. */
static void what_is_at_its_name_already_leaves_no_ticket(void **state)
{
	char a[TICKET_PATH_BYTES], b[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	put_file(r.dir, "f", "same");
	make_ticket("a", 1, "", a);
	assert_int_equal(unlinkat(nextfd, a, 0), 0);
	assert_int_equal(linkat(dirfd_, "f", nextfd, a, 0), 0);
	complete(a);
	assert_text("same");
	make_ticket("b", 1, "new", b); /* the folders are made anew */
	complete(b);
	assert_text("new");
	room_free(&r);
}

static void a_folder_is_not_removed_as_a_file(void **state)
{
	char c[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	assert_int_equal(mkdir(at(r.dir, "f"), 0755), 0);
	put_file(r.dir, "f/inside", "x");
	make_removal(c);
	assert_int_equal(ticket_remove(nextfd, c, dirfd_, "f"), -EISDIR);
	assert_true(is_there(r.dir, "f/inside"));
	room_free(&r);
}

static void a_name_is_as_long_as_names_are(void **state)
{
	char a[TICKET_PATH_BYTES], name[NAME_MAX + 1],
		node[SHARED_NODE_MAX + 1];
	struct room r = room_new();
	int fd;

	(void)state;
	memset(name, 'n', NAME_MAX);
	name[NAME_MAX] = 0;
	memset(node, '.', SHARED_NODE_MAX);
	node[SHARED_NODE_MAX] = 0;
	node[0] = 'n';
	assert_int_equal(
		ticket_next(nextfd, UINT64_MAX, name, node, UINT64_MAX, a), 0);
	fd = ticket_make(nextfd, a, TICKET_OPEN, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(ticket_take(nextfd, a), 0);
	assert_int_equal(ticket_settle(nextfd, a, NULL, &waits), 0);
	assert_int_equal(tickets_each(nextfd, note_left, NULL), 0);
	assert_string_equal(left.node, node);
	assert_string_equal(left.path, a);
	ticket_drop(nextfd, a);
	room_free(&r);
}

static void what_is_no_ticket_stays(void **state)
{
	char a[TICKET_PATH_BYTES];
	struct room r = room_new();

	(void)state;
	make_ticket("a", 1, "first", a);
	put_file(r.dir, "next/0000000000001234/f/x", "x");
	put_file(r.dir, "next/0000000000001234/f/0000000000000000.a.1", "x");
	put_file(r.dir, "next/README", "x");
	complete(a);
	assert_text("first");
	assert_int_equal(ticket_any(nextfd, FOLDER, "f", NULL), 0);
	assert_true(is_there(r.dir, "next/0000000000001234/f/x"));
	left.kind = TICKET_REMOVES;
	assert_int_equal(tickets_each(nextfd, note_left, NULL), 0);
	assert_int_equal(left.kind, TICKET_REMOVES); /* none was found */
	remove_tree(at(r.dir, "next"));
	assert_int_equal(mkdir(at(r.dir, "next"), 0700), 0);
	room_free(&r);
}

/* --- a node, and what others do ------------------------------------------- */

static void an_upload_takes_what_is_earlier_along(void **state)
{
	struct mounted m = mounted_open();
	char b[TICKET_PATH_BYTES];

	(void)state;
	put_file(m.dir, "f", "old");
	make_theirs(&m, "f", b);
	replace(&m, ROOT_INO, "f");
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	assert_text("new");
	assert_int_equal(ticket_take(nextfd, b), -ENODATA);
	mounted_stop(&m);
	assert_no_tickets(&m);
	mounted_free(&m);
}

static void what_is_overtaken_is_given_up(void **state)
{
	struct mounted m = replaced_new();
	char b[TICKET_PATH_BYTES];

	(void)state;
	make_theirs(&m, "f", b);
	complete(b);
	ends_as(&m, "theirs");
}

static void a_removal_here_ends_theirs(void **state)
{
	struct mounted m = replaced_new();
	char b[TICKET_PATH_BYTES];

	(void)state;
	make_theirs(&m, "f", b);
	assert_int_equal(shared_unlink(m.s, &caller, ROOT_INO, "f", false), 0);
	assert_int_equal(ticket_take(nextfd, b), -ENODATA);
	assert_false(is_there(m.dir, "f"));
	mounted_start(&m);
	mounted_stop(&m);
	assert_no_tickets(&m);
	mounted_free(&m);
}

static void a_whole_file_that_is_renamed_over_it_ends_theirs(void **state)
{
	struct mounted m = replaced_new();
	char b[TICKET_PATH_BYTES];

	(void)state;
	make_theirs(&m, "f", b);
	put_file(m.dir, "g", "renamed");
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "g", ROOT_INO,
				       "f", 0, NULL),
			 0);
	assert_int_equal(ticket_take(nextfd, b), -ENODATA);
	assert_false(is_there(m.dir, "g"));
	ends_as(&m, "renamed");
}

static void a_rename_that_cannot_wait_for_theirs_changes_nothing(void **state)
{
	struct mounted m = replaced_new();
	char b[TICKET_PATH_BYTES];

	(void)state;
	make_theirs(&m, "f", b);
	assert_int_equal(ticket_take(nextfd, b), 0);
	m.s->pending_wait_s = 0;
	put_file(m.dir, "g", "renamed");
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "g", ROOT_INO,
				       "f", 0, NULL),
			 -EBUSY);
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "f", ROOT_INO,
				       "h", 0, NULL),
			 -EBUSY);
	assert_int_equal(shared_unlink(m.s, &caller, ROOT_INO, "f", false),
			 -EBUSY);
	assert_true(is_there(m.dir, "g"));
	assert_text("old");
	ticket_drop(nextfd, b);
	assert_int_equal(shared_unlink(m.s, &caller, ROOT_INO, "f", false), 0);
	mounted_start(&m);
	mounted_stop(&m);
	assert_no_tickets(&m);
	mounted_free(&m);
}

static void what_is_made_waits_for_theirs(void **state)
{
	struct mounted m = mounted_open();
	char b[TICKET_PATH_BYTES];
	struct shared_entry e;
	struct inode *in;

	(void)state;
	make_theirs(&m, "f", b); /* somebody has just removed f */
	m.s->pending_wait_s = 0;
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		-EBUSY);
	put_file(m.dir, "f", "old");
	assert_int_equal(
		shared_create(m.s, &caller, ROOT_INO, "f", &as_file, &e, &in),
		-EEXIST);
	ticket_drop(m.s->home.nextfd, b);
	assert_no_tickets(&m);
	mounted_start(&m);
	mounted_free(&m);
}

static void what_is_changed_in_place_waits_for_theirs(void **state)
{
	struct mounted m = mounted_open();
	int fd = -1, backing;
	char b[TICKET_PATH_BYTES];
	struct shared_entry e;
	uint64_t size = 1;

	(void)state;
	put_file(m.dir, "f", "old");
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	make_theirs(&m, "f", b);
	m.s->pending_wait_s = 0;
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "f", 0, &e), 0);
	assert_int_equal(shared_open_file(m.s, &caller, e.id,
					  O_WRONLY | O_APPEND, &as_file, &fd,
					  &backing),
			 -EBUSY);
	assert_int_equal(shared_setattr(m.s, &caller, e.id, 0, NULL, &size),
			 -EBUSY);
	complete(b);
	assert_int_equal(shared_open_file(m.s, &caller, e.id,
					  O_WRONLY | O_APPEND, &as_file, &fd,
					  &backing),
			 0);
	assert_int_equal(write(fd, "+", 1), 1);
	shared_close(m.s, e.id, fd);
	shared_forget(m.s, e.id, 1);
	ends_as(&m, "theirs+");
}

/* It has its ticket for f, by whatever other name it is renamed. */
static void another_name_of_it_waits_until_it_is_whole(void **state)
{
	struct mounted m = replaced_new();
	struct shared_entry e;
	struct stat f, g;

	(void)state;
	assert_int_equal(shared_link(m.s, &caller, look_up_local(&m, "f"),
				     ROOT_INO, "l", &e),
			 0);
	shared_forget(m.s, e.id, 1);
	m.s->pending_wait_s = 0;
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "l", ROOT_INO,
				       "g", 0, NULL),
			 -EBUSY);
	assert_false(is_there(m.dir, "g"));
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "l", ROOT_INO,
				       "g", 0, NULL),
			 0);
	assert_int_equal(stat(at(m.dir, "f"), &f), 0);
	assert_int_equal(stat(at(m.dir, "g"), &g), 0);
	assert_int_equal(f.st_ino, g.st_ino);
	mounted_stop(&m);
	assert_text("new");
	assert_no_tickets(&m);
	mounted_free(&m);
}

/* DIR fails, or another client has it just then: nobody is to wait for it. */
static void a_ticket_that_cannot_be_removed_is_tried_again(void **state)
{
	struct mounted m = replaced_new();
	int fd;

	(void)state;
	assert_int_equal(tickets_each(nextfd, note_left, NULL), 0);
	assert_int_equal(unlinkat(nextfd, left.path, 0), 0);
	assert_int_equal(mkdirat(nextfd, left.path, 0700), 0);
	assert_int_equal(shared_unlink(m.s, &caller, ROOT_INO, "f", false), 0);
	drops_flush(m.s);
	assert_int_equal(unlinkat(nextfd, left.path, AT_REMOVEDIR), 0);
	fd = ticket_make(nextfd, left.path, TICKET_TAKEN, 0600);
	assert_true(fd >= 0);
	close(fd);
	drops_flush(m.s);
	assert_no_tickets(&m);
	mounted_free(&m);
}

/* --- after a daemon that died --------------------------------------------- */

static void enter_again(struct mounted *m)
{
	mounted_die(m);
	mounted_enter(m);
	nextfd = m->s->home.nextfd;
	dirfd_ = m->s->home.dirfd;
}

static void a_ticket_is_found_by_the_next_daemon(void **state)
{
	struct mounted m = replaced_new();
	char ticket[TICKET_PATH_BYTES];

	(void)state;
	assert_int_equal(tickets_each(nextfd, note_left, NULL), 0);
	(void)snprintf(ticket, sizeof(ticket), "%s", left.path);
	assert_int_equal(ticket_take(nextfd, ticket), 0); /* and it died */
	enter_again(&m);
	ends_as(&m, "new");
}

static void its_folder_may_be_renamed_meanwhile(void **state)
{
	struct mounted m = mounted_open();
	char *from = strdup(at(m.dir, "sub")), text[16] = "";
	struct shared_entry e;

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	put_file(m.dir, "sub/f", "old");
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "sub", 0, &e), 0);
	replace(&m, e.id, "f");
	mounted_die(&m);
	assert_int_equal(rename(from, at(m.dir, "other")), 0);
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	mounted_enter(&m);
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	mounted_stop(&m);
	assert_int_equal(
		dir_read_text(AT_FDCWD, at(m.dir, "other/f"), text, 16), 3);
	assert_string_equal(text, "new");
	assert_false(is_there(m.dir, "sub/f"));
	assert_false(is_there(m.dir, "f"));
	assert_no_tickets(&m);
	mounted_free(&m);
	free(from);
}

/* While the node is there, too, which has it open. */
static void its_folder_may_be_removed(void **state)
{
	struct mounted m = mounted_open();
	struct shared_entry e;

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	put_file(m.dir, "sub/f", "old");
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "sub", 0, &e), 0);
	replace(&m, e.id, "f");
	remove_tree(at(m.dir, "sub"));
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	mounted_stop(&m);
	assert_no_tickets(&m);
	mounted_free(&m);
}

static void or_removed(void **state)
{
	struct mounted m = mounted_open();
	struct shared_entry e;

	(void)state;
	assert_int_equal(mkdir(at(m.dir, "sub"), 0755), 0);
	put_file(m.dir, "sub/f", "old");
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "sub", 0, &e), 0);
	replace(&m, e.id, "f");
	mounted_die(&m);
	remove_tree(at(m.dir, "sub"));
	mounted_enter(&m);
	mounted_start(&m);
	assert_int_equal(shared_flush(m.s), 0);
	mounted_stop(&m);
	assert_false(is_there(m.dir, "f"));
	assert_no_tickets(&m);
	mounted_free(&m);
}

/* A call of a daemon that died: a rename over f, or a removal. */
static void leave_call(const struct mounted *m, enum ticket_kind kind)
{
	char ticket[TICKET_PATH_BYTES];
	int fd;

	assert_int_equal(ticket_next(m->s->home.nextfd, m->s->root->engine, "f",
				     "a", m->s->next_ticket++, ticket),
			 0);
	fd = ticket_make(m->s->home.nextfd, ticket, kind, 0644);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "renamed", 7), 7);
	close(fd);
}

static void a_call_that_had_begun_is_ended(void **state)
{
	static const enum ticket_kind kinds[] = { TICKET_TAKEN,
						  TICKET_REMOVES };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct mounted m = mounted_open();

		put_file(m.dir, "f", "old");
		leave_call(&m, kinds[i]);
		enter_again(&m);
		assert_text("old");
		local_search(m.s);
		assert_text(kinds[i] == TICKET_TAKEN ? "renamed" : "");
		assert_int_equal(is_there(m.dir, "f"),
				 kinds[i] == TICKET_TAKEN);
		assert_no_tickets(&m);
		/* Not what this daemon itself is at. */
		leave_call(&m, kinds[i]);
		m.s->unfinished = true;
		local_search(m.s);
		assert_false(dir_is_empty(m.s->home.homefd, SHARED_NEXT_DIR));
		mounted_start(&m);
		mounted_free(&m);
	}
}

/* A daemon of an older ckptfs has it in new/. */
static void what_an_older_daemon_was_to_replace_is_replaced(void **state)
{
	struct mounted m = replaced_new();
	char old[40], ticket[TICKET_PATH_BYTES];
	struct local_record r = { 0 };
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	SCOPED(scope_free) void *value = NULL;
	struct node *n = LIST_FIRST(&m.s->replacing);
	struct key k = local_key(LOCAL_FILE_KEY, n->id);
	size_t len;

	(void)state;
	assert_true(node_ticket(m.s, n, ticket));
	(void)snprintf(old, sizeof(old), "%016llx", (unsigned long long)n->id);
	assert_int_equal(renameat(nextfd, ticket, m.s->home.newfd, old), 0);
	ticket_drop(nextfd, ticket);
	/* Its record has that number in the place where none is since. */
	assert_int_equal(record_load(m.live.st->kv, k, &value, &len), 0);
	for (int i = 0; i < 8; i++)
		((uint8_t *)value)[34 + i] = (uint8_t)(n->id >> 8 * i);
	assert_int_equal(
		local_record_decode((struct kv_slice){ value, len }, &r), 0);
	assert_int_equal(r.new_id, n->id);
	local_record_release(&r);
	record_save(b, k, value, len);
	assert_int_equal(kv_write(m.live.st->kv, b), 0);
	enter_again(&m);
	ends_as(&m, "new");
}

/* Node b died, long ago, when it had taken its ticket: it is helped. */
static void what_a_dead_node_has_taken_holds_up_nobody(void **state)
{
	struct mounted m = mounted_open();
	char b[TICKET_PATH_BYTES];
	struct shared_home home;
	char why[WHY_BYTES];

	(void)state;
	put_file(m.dir, "f", "old");
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	assert_int_equal(shared_home_open(m.dir, "b",
					  "11111111-1111-4111-8111-"
					  "111111111111",
					  false, &home, why, sizeof(why)),
			 0);
	make_theirs(&m, "f", b);
	assert_int_equal(ticket_take(nextfd, b), 0);
	m.s->pending_wait_s = 2;
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "f", ROOT_INO,
				       "g", 0, NULL),
			 -EBUSY); /* it lives */
	shared_home_release(&home);
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "f", ROOT_INO,
				       "g", 0, NULL),
			 0);
	assert_false(is_there(m.dir, "f"));
	assert_int_equal(renameat(dirfd_, "g", dirfd_, "f"), 0);
	assert_text("theirs");
	assert_no_tickets(&m);
	mounted_start(&m);
	mounted_free(&m);
}

/* --- steps -----------------------------------------------------------------
 */

static struct mounted with_step(uint64_t *ret_step)
{
	struct mounted m = mounted_open();
	struct shared_entry e;

	assert_int_equal(mkdir(at(m.dir, "step_1"), 0755), 0);
	put_file(m.dir, "step_1/shard", "old");
	assert_int_equal(shared_lookup(m.s, ROOT_INO, "step_1", 0, &e), 0);
	*ret_step = e.id;
	nextfd = m.s->home.nextfd;
	dirfd_ = m.s->home.dirfd;
	return m;
}

/* A ticket of node b in the folder. */
static void make_in(struct mounted *m, uint64_t folder, const char *name,
		    char ret[TICKET_PATH_BYTES])
{
	struct node *n = node_get(m->s, folder);
	int fd;

	assert_int_equal(ticket_next(nextfd, n->engine, name, "b", 1, ret), 0);
	fd = ticket_make(nextfd, ret, TICKET_OPEN, S_ISVTX);
	assert_true(fd >= 0);
	close(fd);
	node_put(m->s, n);
}

static void a_tracker_waits_for_tickets_of_its_step(void **state)
{
	struct mounted m;
	char shard[TICKET_PATH_BYTES], other[TICKET_PATH_BYTES];
	struct store *st;
	struct shared_entry e;
	struct inode *in;
	struct node *n;
	uint64_t step;

	(void)state;
	m = with_step(&step);
	st = m.live.st;
	make_in(&m, step, "shard", shard);
	make_in(&m, ROOT_INO, "config", other); /* of no step */
	assert_int_equal(shared_create(m.s, &caller, ROOT_INO, "latest",
				       &as_file, &e, &in),
			 0);
	assert_int_equal(file_write(&st->files, in, "step_1", 6, 0), 0);
	assert_int_equal(drain_closed(st->drain, in), 0);
	shared_change_end(m.s, in->ino);
	assert_int_equal(drain_sync_closed(st->drain), 0);
	n = node_get(m.s, e.id);
	assert_int_equal(tracker_waits(m.s, n), 1);
	assert_int_equal(ticket_drop(nextfd, shard), 0);
	assert_int_equal(tracker_waits(m.s, n), 0);
	assert_int_equal(ticket_drop(nextfd, other), 0);
	node_put(m.s, n);
	inode_forget(st->inodes, in, 1);
	inode_put(st->inodes, in, 2);
	mounted_start(&m);
	mounted_free(&m);
}

/* Node b was never there, for all that is known. */
static void a_step_of_a_dead_node_is_not_published(void **state)
{
	char shard[TICKET_PATH_BYTES], why[WHY_BYTES];
	struct shared_home home;
	struct mounted m;
	uint64_t step;

	(void)state;
	m = with_step(&step);
	assert_int_equal(shared_home_open(m.dir, "b",
					  "11111111-1111-4111-8111-"
					  "111111111111",
					  false, &home, why, sizeof(why)),
			 0);
	shared_home_release(&home);
	make_in(&m, step, "shard", shard);
	m.s->pending_wait_s = 0;
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "step_1",
				       ROOT_INO, "step_2", 0, NULL),
			 -EIO);
	assert_true(is_there(m.dir, "step_1"));
	assert_int_equal(ticket_drop(nextfd, shard), 0);
	assert_int_equal(shared_rename(m.s, &caller, ROOT_INO, "step_1",
				       ROOT_INO, "step_2", 0, NULL),
			 0);
	mounted_start(&m);
	mounted_free(&m);
}

/* --- a node that is forgotten --------------------------------------------- */

static int count(void *arg, const struct ticket_left *t)
{
	(void)t;
	++*(unsigned *)arg;
	return 1;
}

static void who_is_forgotten_leaves_no_ticket(void **state)
{
	struct mounted m = replaced_new();
	char b[TICKET_PATH_BYTES];
	unsigned counted = 0;

	(void)state;
	make_theirs(&m, "f", b);
	assert_int_equal(fchmodat(nextfd, b, S_ISVTX, 0), 0); /* pending */
	assert_int_equal(
		shared_node_tickets(m.s->home.homefd, "b", count, &counted), 0);
	assert_int_equal(counted, 1);
	assert_int_equal(ticket_take(nextfd, b), -ENODATA);
	make_theirs(&m, "f", b);
	assert_int_equal(ticket_take(nextfd, b), 0); /* whole, and it died */
	counted = 0;
	assert_int_equal(
		shared_node_tickets(m.s->home.homefd, "b", count, &counted), 0);
	assert_int_equal(counted, 0);
	assert_int_equal(shared_node_finish(dirfd_, m.s->home.homefd, "b"), 0);
	assert_text("theirs");
	ends_as(&m, "theirs"); /* node a's was an earlier one */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_later_call_wins),
		cmocka_unit_test(an_earlier_one_leaves_the_later_ones),
		cmocka_unit_test(
			what_is_taken_has_its_place_before_a_later_one),
		cmocka_unit_test(a_removal_takes_earlier_ones_along),
		cmocka_unit_test(what_a_dead_node_had_taken_is_finished),
		cmocka_unit_test(what_is_held_goes_last),
		cmocka_unit_test(what_is_at_its_name_already_leaves_no_ticket),
		cmocka_unit_test(a_folder_is_not_removed_as_a_file),
		cmocka_unit_test(a_name_is_as_long_as_names_are),
		cmocka_unit_test(what_is_no_ticket_stays),
		cmocka_unit_test(an_upload_takes_what_is_earlier_along),
		cmocka_unit_test(what_is_overtaken_is_given_up),
		cmocka_unit_test(a_removal_here_ends_theirs),
		cmocka_unit_test(
			a_whole_file_that_is_renamed_over_it_ends_theirs),
		cmocka_unit_test(
			a_rename_that_cannot_wait_for_theirs_changes_nothing),
		cmocka_unit_test(what_is_made_waits_for_theirs),
		cmocka_unit_test(what_is_changed_in_place_waits_for_theirs),
		cmocka_unit_test(another_name_of_it_waits_until_it_is_whole),
		cmocka_unit_test(
			a_ticket_that_cannot_be_removed_is_tried_again),
		cmocka_unit_test(a_ticket_is_found_by_the_next_daemon),
		cmocka_unit_test(its_folder_may_be_renamed_meanwhile),
		cmocka_unit_test(or_removed),
		cmocka_unit_test(its_folder_may_be_removed),
		cmocka_unit_test(a_call_that_had_begun_is_ended),
		cmocka_unit_test(
			what_an_older_daemon_was_to_replace_is_replaced),
		cmocka_unit_test(what_a_dead_node_has_taken_holds_up_nobody),
		cmocka_unit_test(a_tracker_waits_for_tickets_of_its_step),
		cmocka_unit_test(a_step_of_a_dead_node_is_not_published),
		cmocka_unit_test(who_is_forgotten_leaves_no_ticket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
