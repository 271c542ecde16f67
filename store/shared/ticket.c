/*
 * ticket.c - see ticket.h. A folder of tickets is removed by whoever leaves it
 * empty, so that a name without tickets costs who looks for them one look-up;
 * and made again by whoever comes in between.
 */
#include "store/shared/ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/base/sync.h"
#include "store/base/vec.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)
#define NUMBER_DIGITS TICKET_DIGITS
/* G.NODE.N, one that says its kind, and the end. */
#define NAME_BYTES TICKET_NAME_BYTES
#define FOLDER_BYTES (NUMBER_DIGITS + 1)
#define FOLDER_MODE 0700
/* So often its folder may go while a ticket is made, or looked for. */
#define MAKE_TRIES 16
#define MAKE_PAUSE_NS 10000000

/* --- what tickets are called ---------------------------------------------- */

bool ticket_is_number(const char *text)
{
	return strspn(text, "0123456789abcdef") >= NUMBER_DIGITS;
}

size_t ticket_base(const char *name, enum ticket_kind *ret_kind)
{
	size_t len = strlen(name);
	char last = len > 0 ? name[len - 1] : 0;

	*ret_kind = TICKET_OPEN;
	if (last == TICKET_TAKEN || last == TICKET_REMOVES ||
	    last == TICKET_REMOVED) {
		*ret_kind = (enum ticket_kind)last;
		len--;
	}
	if (len < 2 * NUMBER_DIGITS + 3 || len >= NAME_BYTES - 1 ||
	    !ticket_is_number(name) || name[NUMBER_DIGITS] != '.' ||
	    name[len - NUMBER_DIGITS - 1] != '.' ||
	    !ticket_is_number(name + len - NUMBER_DIGITS))
		return 0;
	return len;
}

void ticket_node(const char *name, char ret[SHARED_NODE_MAX + 1])
{
	enum ticket_kind kind;
	size_t len = ticket_base(name, &kind);

	(void)snprintf(ret, SHARED_NODE_MAX + 1, "%.*s",
		       (int)(len - 2 * NUMBER_DIGITS - 2),
		       name + NUMBER_DIGITS + 1);
}

void ticket_path(const char *ticket, enum ticket_kind kind,
		 char ret[TICKET_PATH_BYTES])
{
	(void)snprintf(ret, TICKET_PATH_BYTES, "%.*s%c", TICKET_PATH_BYTES - 2,
		       ticket, (char)kind);
}

static const char *name_in(const char *ticket)
{
	return strrchr(ticket, '/') + 1;
}

static void folder_name(ino_t folder, char ret[FOLDER_BYTES])
{
	(void)snprintf(ret, FOLDER_BYTES, "%016" PRIx64, (uint64_t)folder);
}

/* The folders of a ticket: of the name, and above that of its folder. */
static void folders_of(const char *ticket, char of_name[TICKET_PATH_BYTES],
		       char of_folder[FOLDER_BYTES])
{
	(void)snprintf(of_name, TICKET_PATH_BYTES, "%.*s",
		       (int)(name_in(ticket) - ticket - 1), ticket);
	(void)snprintf(of_folder, FOLDER_BYTES, "%s", ticket);
}

/* --- lists ---------------------------------------------------------------- */

struct list {
	char (*at)[NAME_BYTES];
	size_t count, room;
};

static void list_release(struct list *l)
{
	free(l->at);
}

static int add(void *arg, int fd, const char *name)
{
	struct list *l = arg;
	enum ticket_kind kind;
	int rc;

	(void)fd;
	if (ticket_base(name, &kind) == 0)
		return 0;
	rc = vec_grow(&l->at, l->count, &l->room, sizeof(*l->at));
	if (rc == 0)
		(void)snprintf(l->at[l->count++], sizeof(*l->at), "%s", name);
	return rc;
}

/* In dirfd, of which nothing is remembered then; -errno. */
static int open_anew(int dirfd, const char *name)
{
	int fd, rc = dir_ask_anew(dirfd);

	if (rc < 0)
		return rc;
	fd = openat(dirfd, name, DIR_FLAGS);
	return fd < 0 ? -errno : fd;
}

static int list_once(int nextfd, const char *of_folder, const char *name,
		     struct list *ret)
{
	SCOPED(scope_close) int folderfd = open_anew(nextfd, of_folder);
	SCOPED(scope_close) int fd = -1;
	int rc;

	ret->count = 0;
	fd = folderfd < 0 ? folderfd : open_anew(folderfd, name);
	rc = fd < 0 ? fd : dir_ask_anew(fd);
	if (rc == 0)
		rc = dir_each(fd, ".", add, ret);
	return rc == -ENOENT ? 0 : rc;
}

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

/*
 * As it is now, whatever a client of DIR remembers: NFS does for a minute. The
 * lowest first: who is stopped in between has revoked none that would not have
 * gone because of the next one, too.
 */
static int list(int nextfd, const char *of_folder, const char *name,
		struct list *ret)
{
	int rc = -ESTALE;

	/* A folder that has gone may be made again by now. */
	for (int i = 0; rc == -ESTALE && i < MAKE_TRIES; i++)
		rc = list_once(nextfd, of_folder, name, ret);
	if (ret->count > 1)
		qsort(ret->at, ret->count, sizeof(*ret->at), compare);
	return rc;
}

static int list_of(int nextfd, ino_t folder, const char *name, struct list *ret)
{
	char of_folder[FOLDER_BYTES];

	folder_name(folder, of_folder);
	return list(nextfd, of_folder, name, ret);
}

/* Is it the one of that path, of whatever kind? */
static bool is_one(const char *name, const char *ticket)
{
	enum ticket_kind kind;
	size_t len = ticket_base(name, &kind);

	return strncmp(name, name_in(ticket), len) == 0 &&
	       !name_in(ticket)[len];
}

int ticket_any(int nextfd, ino_t folder, const char *name, const char *but)
{
	SCOPED(list_release) struct list l = { 0 };
	int rc = list_of(nextfd, folder, name, &l);

	for (size_t i = 0; rc == 0 && i < l.count; i++)
		if (!but || !is_one(l.at[i], but))
			rc = 1;
	return rc;
}

struct any_in {
	bool (*counts)(const char *name);
	struct list *list;
};

static int any_of_name(void *arg, int fd, const char *name)
{
	const struct any_in *a = arg;
	int rc;

	if (!a->counts(name))
		return 0;
	rc = dir_ask_anew(fd);
	if (rc == 0)
		rc = dir_each(fd, name, add, a->list);
	if (rc < 0)
		return rc == -ENOENT || rc == -ESTALE ? 0 : rc;
	return a->list->count > 0;
}

int ticket_any_in(int nextfd, ino_t folder, bool (*counts)(const char *name),
		  char ret_node[SHARED_NODE_MAX + 1])
{
	SCOPED(list_release) struct list l = { 0 };
	struct any_in any = { counts, &l };
	char of_folder[FOLDER_BYTES];
	SCOPED(scope_close) int fd = -1;
	int rc;

	folder_name(folder, of_folder);
	fd = open_anew(nextfd, of_folder);
	rc = fd < 0 ? fd : dir_ask_anew(fd);
	if (rc == 0)
		rc = dir_each(fd, ".", any_of_name, &any);
	if (rc > 0)
		ticket_node(l.at[0], ret_node);
	return rc == -ENOENT || rc == -ESTALE ? 0 : rc;
}

int ticket_find_taken(int nextfd, ino_t folder, const char *name,
		      char ret[TICKET_NAME_BYTES])
{
	SCOPED(list_release) struct list l = { 0 };
	int rc = list_of(nextfd, folder, name, &l);
	enum ticket_kind kind;

	for (size_t i = 0; rc == 0 && i < l.count; i++) {
		(void)ticket_base(l.at[i], &kind);
		if (kind == TICKET_TAKEN || kind == TICKET_REMOVES) {
			(void)snprintf(ret, TICKET_NAME_BYTES, "%s", l.at[i]);
			return 1;
		}
	}
	return rc;
}

int ticket_look(int nextfd, ino_t folder, const char *name, const char *taken,
		struct ticket_left *ret)
{
	char path[TICKET_PATH_BYTES];
	size_t len = ticket_base(taken, &ret->kind);

	ret->folder = folder;
	ret->name = name;
	ticket_node(taken, ret->node);
	(void)snprintf(ret->path, sizeof(ret->path), "%016" PRIx64 "/%s/%.*s",
		       (uint64_t)folder, name, (int)len, taken);
	ticket_path(ret->path, ret->kind, path);
	return fstatat(nextfd, path, &ret->st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno
									: 0;
}

int ticket_next(int nextfd, ino_t folder, const char *name, const char *node,
		uint64_t n, char ret[TICKET_PATH_BYTES])
{
	SCOPED(list_release) struct list l = { 0 };
	uint64_t highest = 0;
	int rc = list_of(nextfd, folder, name, &l);

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < l.count; i++) {
		uint64_t g = strtoull(l.at[i], NULL, 16);

		highest = g > highest ? g : highest;
	}
	(void)snprintf(ret, TICKET_PATH_BYTES,
		       "%016" PRIx64 "/%s/%016" PRIx64 ".%s.%016" PRIx64,
		       (uint64_t)folder, name, highest + 1, node, n);
	return 0;
}

/* --- tickets that come and go --------------------------------------------- */

/* A client that remembers a folder that has gone forgets it soon. */
static void pause_to_make(int nextfd, int tries)
{
	const struct timespec pause = { .tv_nsec = MAKE_PAUSE_NS * tries };

	if (tries > 0 && dir_ask_anew(nextfd) == 0)
		(void)nanosleep(&pause, NULL);
}

static int make_folders(int nextfd, const char *ticket, int tries)
{
	char of_name[TICKET_PATH_BYTES], of_folder[FOLDER_BYTES];

	pause_to_make(nextfd, tries);
	folders_of(ticket, of_name, of_folder);
	if (mkdirat(nextfd, of_folder, FOLDER_MODE) < 0 && errno != EEXIST)
		return -errno;
	/* It may have gone already: then this is done again. */
	return mkdirat(nextfd, of_name, FOLDER_MODE) < 0 && errno != EEXIST &&
			       errno != ENOENT
		       ? -errno
		       : 0;
}

/* Those that others use are not empty: false. */
static bool leave_folders(int nextfd, const char *ticket)
{
	char of_name[TICKET_PATH_BYTES], of_folder[FOLDER_BYTES];

	folders_of(ticket, of_name, of_folder);
	if (unlinkat(nextfd, of_name, AT_REMOVEDIR) < 0)
		return false;
	(void)unlinkat(nextfd, of_folder, AT_REMOVEDIR);
	return true;
}

int ticket_make(int nextfd, const char *ticket, enum ticket_kind kind,
		mode_t mode)
{
	char path[TICKET_PATH_BYTES];
	int fd, rc = 0;

	ticket_path(ticket, kind, path);
	for (int i = 0; i < MAKE_TRIES; i++) {
		rc = make_folders(nextfd, ticket, i);
		if (rc < 0)
			return rc;
		fd = openat(nextfd, path,
			    O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			    mode);
		if (fd >= 0)
			return fd;
		rc = -errno;
		if (rc != -ENOENT)
			break;
	}
	leave_folders(nextfd, ticket);
	return rc;
}

int ticket_move(int nextfd, const char *ticket, enum ticket_kind kind,
		int fromfd, const char *from)
{
	char path[TICKET_PATH_BYTES];
	int rc = 0;

	ticket_path(ticket, kind, path);
	for (int i = 0; i < MAKE_TRIES; i++) {
		struct stat sb;

		rc = make_folders(nextfd, ticket, i);
		if (rc < 0)
			return rc;
		if (renameat(fromfd, from, nextfd, path) == 0)
			return 0;
		rc = -errno;
		if (rc != -ENOENT ||
		    fstatat(fromfd, from, &sb, AT_SYMLINK_NOFOLLOW) < 0)
			break;
	}
	leave_folders(nextfd, ticket);
	return rc;
}

static int list_beside(int nextfd, const char *ticket, struct list *ret)
{
	char of_name[TICKET_PATH_BYTES], of_folder[FOLDER_BYTES];

	folders_of(ticket, of_name, of_folder);
	return list(nextfd, of_folder, of_name + NUMBER_DIGITS + 1, ret);
}

int ticket_stands(int nextfd, const char *ticket)
{
	SCOPED(list_release) struct list l = { 0 };
	int rc = list_beside(nextfd, ticket, &l), stands = 0;

	for (size_t i = 0; i < l.count; i++) {
		if (is_one(l.at[i], ticket))
			stands = 1;
		else if (strcmp(l.at[i], name_in(ticket)) > 0)
			return 0;
	}
	return rc < 0 ? rc : stands;
}

/*
 * When the rename fails, as another node was quicker, its destination is not to
 * be looked up: it is listed.
 */
int ticket_take(int nextfd, const char *ticket)
{
	SCOPED(list_release) struct list l = { 0 };
	char taken[TICKET_PATH_BYTES];
	int rc;

	ticket_path(ticket, TICKET_TAKEN, taken);
	if (renameat(nextfd, ticket, nextfd, taken) == 0)
		return 0;
	if (errno != ENOENT)
		return -errno;
	rc = list_beside(nextfd, ticket, &l);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < l.count; i++)
		if (strcmp(l.at[i], name_in(taken)) == 0)
			return 0; /* by a try that did not come to its end */
	return -ENODATA;
}

static int unlink_in(int nextfd, const char *ticket, enum ticket_kind kind)
{
	char path[TICKET_PATH_BYTES];

	ticket_path(ticket, kind, path);
	return unlinkat(nextfd, path, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* `name` lies beside the ticket. 1: it is just being taken. */
static int unlink_beside(int nextfd, const char *ticket, const char *name)
{
	char path[TICKET_PATH_BYTES];

	(void)snprintf(path, sizeof(path), "%.*s%s",
		       (int)(name_in(ticket) - ticket), ticket, name);
	if (unlinkat(nextfd, path, 0) == 0)
		return 0;
	return errno == ENOENT ? 1 : -errno;
}

int ticket_untake(int nextfd, const char *ticket)
{
	char taken[TICKET_PATH_BYTES];

	ticket_path(ticket, TICKET_TAKEN, taken);
	return renameat(nextfd, taken, nextfd, ticket) < 0 ? -errno : 0;
}

int ticket_drop(int nextfd, const char *ticket)
{
	SCOPED(list_release) struct list l = { 0 };
	int rc = list_beside(nextfd, ticket, &l);

	for (size_t i = 0; rc >= 0 && i < l.count; i++)
		if (is_one(l.at[i], ticket))
			rc = unlink_beside(nextfd, ticket, l.at[i]);
	(void)leave_folders(nextfd, ticket);
	return rc < 0 ? rc : 0;
}

/* A lower one than the ticket, which is not held. */
static bool is_lower(const char *name, const char *ticket, const char *held)
{
	return !is_one(name, ticket) && !(held && is_one(name, held)) &&
	       strcmp(name, name_in(ticket)) < 0;
}

/* One that is to be waited for; NULL: there is none. */
static const char *find_taken(const char *ticket, const char *held,
			      const struct list *l)
{
	enum ticket_kind kind;

	for (size_t i = 0; i < l->count; i++) {
		(void)ticket_base(l->at[i], &kind);
		if ((kind == TICKET_TAKEN || kind == TICKET_REMOVES) &&
		    is_lower(l->at[i], ticket, held))
			return l->at[i];
	}
	return NULL;
}

static bool is_listed(const char *ticket, const struct list *l)
{
	for (size_t i = 0; i < l->count; i++)
		if (is_one(l->at[i], ticket))
			return true;
	return false;
}

/* What is open goes; 1: one of those is just being taken. */
static int revoke_open(int nextfd, const char *ticket, const char *held,
		       const struct list *l, const char **ret_taken)
{
	enum ticket_kind kind;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < l->count; i++) {
		(void)ticket_base(l->at[i], &kind);
		*ret_taken = l->at[i];
		if (kind == TICKET_OPEN && is_lower(l->at[i], ticket, held))
			rc = unlink_beside(nextfd, ticket, l->at[i]);
	}
	for (size_t i = 0; rc == 0 && held && i < l->count; i++)
		if (is_one(l->at[i], held))
			rc = unlink_beside(nextfd, ticket, l->at[i]);
	return rc;
}

/* Nothing goes while something is to be waited for, as that may fail. */
static int settle(int nextfd, const char *ticket, const char *held,
		  const struct list *l, const char **ret_taken)
{
	if (!is_listed(ticket, l))
		return -ENODATA;
	*ret_taken = find_taken(ticket, held, l);
	return *ret_taken ? 1 : revoke_open(nextfd, ticket, held, l, ret_taken);
}

int ticket_settle(int nextfd, const char *ticket, const char *held,
		  const struct ticket_wait *w)
{
	for (;;) {
		SCOPED(list_release) struct list l = { 0 };
		const char *waits = NULL;
		int rc = list_beside(nextfd, ticket, &l);

		if (rc == 0)
			rc = settle(nextfd, ticket, held, &l, &waits);
		if (rc <= 0)
			return rc;
		rc = w->pause(w->arg, waits);
		if (rc != 0)
			return rc;
	}
}

int ticket_place(int nextfd, const char *ticket, int dirfd, const char *name)
{
	char taken[TICKET_PATH_BYTES];
	int rc;

	ticket_path(ticket, TICKET_TAKEN, taken);
	if (renameat(nextfd, taken, dirfd, name) < 0)
		return -errno;
	if (leave_folders(nextfd, ticket))
		return 0;
	/* A rename over another name of the same file does nothing. */
	rc = unlink_in(nextfd, ticket, TICKET_TAKEN);
	(void)leave_folders(nextfd, ticket);
	return rc;
}

/* That it has removed it is known until it is gone itself. */
static int end_removal(int nextfd, const char *ticket)
{
	int rc = unlink_in(nextfd, ticket, TICKET_REMOVES);

	if (rc == 0)
		rc = unlink_in(nextfd, ticket, TICKET_REMOVED);
	(void)leave_folders(nextfd, ticket);
	return rc;
}

int ticket_remove(int nextfd, const char *ticket, int dirfd, const char *name)
{
	char removed[TICKET_PATH_BYTES];
	struct stat sb;
	int rc, ended;

	ticket_path(ticket, TICKET_REMOVED, removed);
	rc = renameat(dirfd, name, nextfd, removed) < 0 ? -errno : 0;
	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (rc == 0 &&
	    fstatat(nextfd, removed, &sb, AT_SYMLINK_NOFOLLOW) == 0 &&
	    S_ISDIR(sb.st_mode))
		rc = renameat(nextfd, removed, dirfd, name) < 0 ? -errno
								: -EISDIR;
	if (rc < 0 && rc != -ENOENT && rc != -EISDIR)
		return rc;
	ended = end_removal(nextfd, ticket);
	return rc < 0 ? rc : ended;
}

/* --- what its node had taken, and did not do ------------------------------ */

int ticket_finish(int nextfd, const struct ticket_left *t, int dirfd,
		  const struct ticket_wait *w)
{
	char removed[TICKET_PATH_BYTES];
	struct stat sb;
	int rc;

	ticket_path(t->path, TICKET_REMOVED, removed);
	if (t->kind == TICKET_REMOVED && S_ISDIR(t->st.st_mode))
		return renameat2(nextfd, removed, dirfd, t->name,
				 RENAME_NOREPLACE) < 0
			       ? -errno
			       : end_removal(nextfd, t->path);
	if (t->kind == TICKET_REMOVED ||
	    (t->kind == TICKET_REMOVES &&
	     fstatat(nextfd, removed, &sb, AT_SYMLINK_NOFOLLOW) == 0))
		return end_removal(nextfd, t->path);
	rc = t->kind == TICKET_OPEN ? ticket_take(nextfd, t->path) : 0;
	if (rc == 0)
		rc = ticket_settle(nextfd, t->path, NULL, w);
	if (rc < 0)
		return rc == -ENODATA ? 0 : rc;
	if (t->kind != TICKET_REMOVES)
		rc = ticket_place(nextfd, t->path, dirfd, t->name);
	else
		rc = ticket_remove(nextfd, t->path, dirfd, t->name);
	if (rc == -EISDIR)
		return ticket_drop(nextfd, t->path);
	return rc == -ENOENT && t->kind == TICKET_REMOVES ? 0 : rc;
}
