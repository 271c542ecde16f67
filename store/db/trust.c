/*
 * trust.c - see trust.h. Four things are looked at:
 *
 *   what must be there   db/, db/CURRENT and the list that it names: without
 *                        them RocksDB would say "does not exist"
 *   can it be read       RocksDB opens it read-only, with its log
 *   is it whole          its changes have no gap (kv_look()), and reach to the
 *                        last one that was durable (mark.h)
 *   is it this store's   its secret is the one of STORE/secret (identity.h)
 */
#include "store/db/trust.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/db/identity.h"
#include "store/db/kv.h"
#include "store/db/layout.h"
#include "store/db/mark.h"
#include "store/db/records.h"

#define CURRENT LAYOUT_DB_DIR "/CURRENT"
#define TEXT_BYTES 1024

struct look {
	const char *path;
	int dirfd;
	char *why;
	size_t why_size;
};

/* One sentence: what is wrong, and what to do about it. */
__attribute__((format(printf, 2, 3))) static int refuse(const struct look *l,
							const char *format, ...)
{
	char text[2 * TEXT_BYTES];
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	(void)snprintf(l->why, l->why_size,
		       "%s: %s; nothing was changed: put the database back "
		       "from a copy of this store, or run 'ckptctl rebuild %s'",
		       l->path, text, l->path);
	return -EUCLEAN;
}

/* db/CURRENT must name a list of tables that is there. */
static int look_current(const struct look *l)
{
	char name[64], list[128];
	struct stat sb;
	ssize_t n = dir_read_text(l->dirfd, CURRENT, name, sizeof(name));

	if (n == -ENOENT)
		return refuse(l, "its database is damaged: the file " CURRENT
				 " is missing");
	if (n < 0)
		return refuse(l,
			      "its database is damaged: " CURRENT
			      " cannot be read: %s",
			      strerror((int)-n));
	name[strcspn(name, "\n")] = 0;
	(void)snprintf(list, sizeof(list), LAYOUT_DB_DIR "/%s", name);
	if (strncmp(name, "MANIFEST-", 9) != 0 || strchr(name, '/'))
		return refuse(l, "its database is damaged: what is in " CURRENT
				 " is not a file's name");
	if (fstatat(l->dirfd, list, &sb, 0) < 0)
		return refuse(l,
			      "its database is damaged: the file %s is "
			      "missing",
			      list);
	return 0;
}

static int look_directory(const struct look *l)
{
	struct stat sb;

	if (fstatat(l->dirfd, LAYOUT_DB_DIR, &sb, 0) < 0)
		return refuse(
			l, "its database is gone: the directory " LAYOUT_DB_DIR
			   " is missing");
	if (!S_ISDIR(sb.st_mode))
		return refuse(l, "its database is gone: " LAYOUT_DB_DIR
				 " is not a directory");
	if (dir_is_empty(l->dirfd, LAYOUT_DB_DIR))
		return refuse(
			l, "its database is gone: the directory " LAYOUT_DB_DIR
			   " is empty");
	return look_current(l);
}

static int look_sequence(const struct look *l, const struct trust *t)
{
	struct mark mark;

	if (mark_read(l->dirfd, &mark) < 0 || t->sequence >= mark.sequence)
		return 0;
	return refuse(l,
		      "its database lacks the last %llu changes that were "
		      "durable%s: the log in " LAYOUT_DB_DIR
		      " ends too early, or a part of it is missing",
		      (unsigned long long)(mark.sequence - t->sequence),
		      mark.clean ? " when the store was closed" : "");
}

static int read_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	(void)arg;
	(void)key;
	(void)value;
	return 0;
}

/*
 * What a start reads before it knows whether the store can be mounted:
 * settings, files that are to be deleted, files that are absent, bytes to be
 * given back.
 */
static int look_kinds(const struct look *l, struct kv *kv)
{
	for (const char *kind = "MOUP"; *kind; kind++)
		if (records_each(kv, key_kind(*kind), read_one, NULL) < 0)
			return refuse(l, "its database is damaged: some of its "
					 "records cannot be read");
	return 0;
}

/* With the files of another one it would give a file another one's bytes. */
static int look_identity(const struct look *l, struct kv *kv)
{
	struct format format = { .uuid = "" };
	int rc = format_read(l->dirfd, &format);

	rc = identity_is_foreign(l->dirfd, rc < 0 ? "" : format.uuid, kv);
	if (rc == 1)
		return refuse(l, "its database is of another store: the secret "
				 "of its hashes is not the one in "
				 "the file " LAYOUT_SECRET_FILE);
	if (rc < 0)
		return refuse(l,
			      "its database is damaged: the secret of its "
			      "hashes cannot be read: %s",
			      strerror(-rc));
	return 0;
}

/* Each database has these from the day it is made. */
static int look_records(const struct look *l, struct kv *kv)
{
	const struct key keys[] = { key_meta(META_SECRET),
				    key_ino('A', ROOT_INO) };
	static const char *const words[] = { "the secret of its hashes",
					     "its root directory" };

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		int rc = record_find(kv, keys[i]);

		if (rc == -ENOENT)
			return refuse(l, "its database is damaged: it lacks %s",
				      words[i]);
		if (rc < 0)
			return refuse(l,
				      "its database is damaged: %s cannot "
				      "be read",
				      words[i]);
	}
	return look_kinds(l, kv);
}

int trust_database(const char *path, int store_dirfd, struct trust *ret,
		   char *why, size_t why_size)
{
	const struct look l = { .path = path,
				.dirfd = store_dirfd,
				.why = why,
				.why_size = why_size };
	SCOPED(scope_free) char *db = NULL;
	char text[TEXT_BYTES] = "";
	struct kv *kv;
	struct mark mark;
	int rc;

	ret->mark = mark_read(store_dirfd, &mark);
	ret->durable = ret->mark < 0 ? 0 : mark.sequence;
	rc = look_directory(&l);
	if (rc < 0)
		return rc;
	if (asprintf(&db, "%s/" LAYOUT_DB_DIR, path) < 0) {
		(void)snprintf(why, why_size, "%s: out of memory", path);
		return -ENOMEM;
	}
	rc = kv_look(db, &kv, &ret->sequence, text, sizeof(text));
	if (rc == -EUCLEAN || rc == -EIO)
		return refuse(&l, "its database is damaged (%s)", text);
	if (rc < 0) {
		(void)snprintf(why, why_size,
			       "%s: its database cannot be opened: %s (%s)",
			       path, strerror(-rc), text);
		return rc;
	}
	rc = look_sequence(&l, ret);
	if (rc == 0)
		rc = look_records(&l, kv);
	if (rc == 0)
		rc = look_identity(&l, kv);
	kv_close(kv);
	return rc;
}
