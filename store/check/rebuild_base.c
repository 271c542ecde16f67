/*
 * rebuild_base.c - the database that a rebuild begins with, in
 * STORE/db.rebuild: a copy of the old one as far as its log goes, or the newest
 * backup that is sound, whichever has the later changes; or an empty one. Sound
 * means that it opens, has no gap (kv_look()), is of this store, and that its
 * records agree with each other: an image that is missing is not its fault.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/copy.h"
#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"
#include "store/check/check.h"
#include "store/check/rebuild_work.h"
#include "store/db/identity.h"
#include "store/db/mark.h"

#define OTHER_DIR "db.rebuild.other"

static void full_path(const struct rebuild *r, const char *name, char ret[4352])
{
	(void)snprintf(ret, 4352, "%s/%s", r->path, name);
}

static int remove_one(void *arg, int fd, const char *name)
{
	(void)arg;
	(void)unlinkat(fd, name, 0);
	return 0;
}

/* A directory of files, and nothing below. */
static void remove_dir(const struct rebuild *r, const char *name)
{
	(void)dir_each(r->dirfd, name, remove_one, NULL);
	(void)unlinkat(r->dirfd, name, AT_REMOVEDIR);
}

struct copying {
	int to; /* the directory */
	char newest[64]; /* list of tables */
	int rc;
};

/* What cannot be read is left out. */
static int copy_one(void *arg, int fd, const char *name)
{
	struct copying *c = arg;
	SCOPED(scope_close) int from = -1;
	SCOPED(scope_close) int to = -1;

	if (name[0] == '.' || strncmp(name, "LO", 2) == 0)
		return 0; /* LOCK, LOG */
	if (strncmp(name, "MANIFEST-", 9) == 0 &&
	    strlen(name) < sizeof(c->newest) && strcmp(name, c->newest) > 0)
		strcpy(c->newest, name);
	from = openat(fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	to = openat(c->to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	c->rc = from < 0 || to < 0 ? -errno : copy_file(from, to);
	if (c->rc == -EIO)
		c->rc = 0;
	return c->rc;
}

/* Without CURRENT, or with a wrong one: the list of tables made last. */
static int mend_current(int dirfd, const char *newest)
{
	SCOPED(scope_close) int fd = -1;
	char name[64] = "", list[72];
	struct stat sb;
	int len;

	fd = openat(dirfd, "CURRENT", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || read(fd, name, sizeof(name) - 1) < 0)
		return -errno;
	name[strcspn(name, "\n")] = 0;
	if (strncmp(name, "MANIFEST-", 9) == 0 && !strchr(name, '/') &&
	    fstatat(dirfd, name, &sb, 0) == 0)
		return 0;
	len = snprintf(list, sizeof(list), "%s\n", newest);
	if (ftruncate(fd, 0) < 0)
		return -errno;
	return io_write_full(fd, list, (size_t)len, 0);
}

/* The old database's files. */
static int copy_old(const struct rebuild *r)
{
	SCOPED(scope_close)
	int to = openat(r->dirfd, REBUILD_DIR,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct copying c = { .to = to };

	if (to < 0)
		return -ENOENT;
	(void)dir_each(r->dirfd, LAYOUT_DB_DIR, copy_one, &c);
	return c.rc < 0           ? c.rc
	       : c.newest[0] == 0 ? -ENOENT
				  : mend_current(to, c.newest);
}

/* --- is it sound? */

static void count_problem(void *self, const struct check_problem *p)
{
	/*
	 * What is wrong with images, and not with the records of them; and what
	 * a rebuild writes anew.
	 */
	static const char *const mended[] = { "image-missing", "image-short",
					      "image-size",    "unknown-image",
					      "native",        "damaged",
					      "next-place",    "number" };
	uint64_t *count = self;

	if (p->note)
		return;
	for (size_t i = 0; i < sizeof(mended) / sizeof(*mended); i++)
		if (strcmp(p->code, mended[i]) == 0)
			return;
	(*count)++;
}

/* 0 and its last change; else why not. */
static int look(const struct rebuild *r, const char *name, uint64_t *ret,
		char *text, size_t text_size)
{
	uint64_t problems = 0;
	const struct check_options options = { .problem = count_problem,
					       .self = &problems };
	struct check_result result;
	char path[4352];
	struct kv *kv;
	int rc;

	full_path(r, name, path);
	rc = kv_look(path, &kv, ret, text, text_size);
	if (rc < 0)
		return rc;
	rc = identity_is_foreign(r->dirfd, r->uuid, kv);
	if (rc == 1)
		(void)snprintf(text, text_size, "it is of another store");
	if (rc == 0)
		rc = check_store(kv, r->images_dirfd, &options, &result);
	else if (rc > 0)
		rc = -EUCLEAN;
	kv_close(kv);
	if (rc < 0)
		return rc;
	(void)snprintf(text, text_size, "%llu of its records are damaged",
		       (unsigned long long)problems);
	return problems > 0 ? -EUCLEAN : 0;
}

/* The newest sound backup, in OTHER_DIR. */
static int restore_backup(struct rebuild *r, uint64_t *ret_sequence,
			  int64_t *ret_ns)
{
	struct kv_backup_info info;
	char from[4352], to[4352], text[512];
	int rc = -ENOENT;

	full_path(r, LAYOUT_BACKUP_DIR, from);
	full_path(r, OTHER_DIR, to);
	for (unsigned back = 0; back < KV_BACKUPS_KEPT; back++) {
		remove_dir(r, OTHER_DIR);
		if (mkdirat(r->dirfd, OTHER_DIR, 0700) < 0)
			return -errno;
		rc = kv_backup_restore(from, back, to, &info);
		if (rc == -ENOENT)
			break;
		if (rc == 0)
			rc = look(r, OTHER_DIR, ret_sequence, text,
				  sizeof(text));
		if (rc == 0) {
			*ret_ns = info.at_ns;
			return 0;
		}
		rebuild_say(
			r, REBUILD_NOTE, LAYOUT_BACKUP_DIR,
			"a backup of the database is damaged, and not used");
	}
	remove_dir(r, OTHER_DIR);
	return rc;
}

/* A database with nothing but a root. */
static int make_empty(struct rebuild *r)
{
	struct identity id;
	char path[4352];
	int rc;

	remove_dir(r, REBUILD_DIR);
	full_path(r, REBUILD_DIR, path);
	rc = kv_open(path, true, &r->kv);
	if (rc < 0)
		return rc;
	if (identity_read(r->dirfd, &id) == 0 &&
	    (!r->uuid[0] || strcmp(id.uuid, r->uuid) == 0)) {
		memcpy(r->secret, id.secret, sizeof(r->secret));
	} else {
		r->secret_is_new = true;
		rc = identity_make_secret(r->secret);
	}
	return rc < 0 ? rc : identity_begin(r->kv, r->secret);
}

static int open_base(struct rebuild *r)
{
	char path[4352];
	int rc;

	full_path(r, REBUILD_DIR, path);
	rc = kv_open(path, false, &r->kv);
	return rc < 0 ? rc : identity_load(r->kv, r->secret);
}

int rebuild_base(struct rebuild *r, char *why, size_t why_size)
{
	uint64_t old = 0, backup = 0;
	struct mark mark = { 0 };
	bool marked = mark_read(r->dirfd, &mark) == 0;
	char text[512] = "it is missing";
	int old_rc, backup_rc;

	remove_dir(r, REBUILD_DIR);
	if (mkdirat(r->dirfd, REBUILD_DIR, 0700) < 0) {
		(void)snprintf(why, why_size, "%s/" REBUILD_DIR ": %s", r->path,
			       strerror(errno));
		return -errno;
	}
	old_rc = copy_old(r);
	if (old_rc == 0)
		old_rc = look(r, REBUILD_DIR, &old, text, sizeof(text));
	if (old_rc < 0 && old_rc != -EUCLEAN && old_rc != -EIO &&
	    old_rc != -ENOENT) { /* the disk is full, no memory */
		(void)snprintf(why, why_size,
			       "%s: the database cannot be copied: %s", r->path,
			       strerror(-old_rc));
		return old_rc;
	}
	if (old_rc < 0)
		rebuild_say(r, REBUILD_NOTE, LAYOUT_DB_DIR,
			    "the old database cannot be used: %s", text);
	r->result->base = REBUILD_WHOLE;
	r->lossy = old_rc < 0 || !marked || old < mark.sequence;
	if (!r->lossy)
		return open_base(r);
	r->result->base = REBUILD_PART;
	backup_rc = restore_backup(r, &backup, &r->result->base_ns);
	if (backup_rc == 0 && (old_rc < 0 || backup > old)) {
		r->result->base = REBUILD_BACKUP;
		remove_dir(r, REBUILD_DIR);
		if (renameat(r->dirfd, OTHER_DIR, r->dirfd, REBUILD_DIR) < 0)
			return -errno;
		return open_base(r);
	}
	remove_dir(r, OTHER_DIR);
	if (old_rc == 0)
		return open_base(r);
	r->result->base = REBUILD_NOTHING;
	return make_empty(r);
}
