/*
 * rebuild_names.c - names of files in a database that is being rebuilt. Each
 * change is one batch, so that names, inodes and link counts always agree.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/check/check.h"
#include "store/check/rebuild_work.h"
#include "store/names/names.h"

#define OLDER_SUFFIX ".before-rebuild"

static struct key name_key(uint64_t parent, const char *name)
{
	return key_dirent(parent, name_hash(name), name);
}

/* A directory of this name, made when there is none. -ENOTDIR: a file is. */
static int need_dir(struct rebuild *r, uint64_t parent, const char *name,
		    uint64_t *ret_ino)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct attr dir = { .mode = S_IFDIR | 0755, .nlink = 2 }, up;
	struct dirent_rec d;
	int rc = dirent_load(r->kv, name_key(parent, name), &d);

	if (rc == 0) {
		*ret_ino = d.ino;
		return S_ISDIR(d.type) ? 0 : -ENOTDIR;
	}
	if (rc == -ENOENT)
		rc = attr_load(r->kv, key_ino('A', parent), &up);
	if (rc < 0)
		return rc;
	dir.uid = up.uid;
	dir.gid = up.gid;
	dir.atime_ns = dir.mtime_ns = dir.ctime_ns = wall_ns();
	dir.parent = parent;
	(void)snprintf(dir.name, sizeof(dir.name), "%s", name);
	up.nlink++;
	*ret_ino = r->next_ino++;
	attr_save(b, key_ino('A', *ret_ino), &dir);
	attr_save(b, key_ino('A', parent), &up);
	names_put_entry(b, parent, name, *ret_ino, S_IFDIR);
	attr_release(&up);
	return kv_write(r->kv, b);
}

/* What has this name gets another one. -EISDIR: it is a directory. */
static int make_way(struct rebuild *r, uint64_t parent, const char *name)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	char other[STORE_NAME_MAX + 1];
	struct dirent_rec d, taken;
	struct attr a;
	int rc = dirent_load(r->kv, name_key(parent, name), &d);

	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	if (S_ISDIR(d.type))
		return -EISDIR;
	(void)snprintf(other, sizeof(other), "%.200s" OLDER_SUFFIX, name);
	for (unsigned n = 2;
	     dirent_load(r->kv, name_key(parent, other), &taken) == 0; n++)
		(void)snprintf(other, sizeof(other),
			       "%.200s" OLDER_SUFFIX "-%u", name, n);
	rc = attr_load(r->kv, key_ino('A', d.ino), &a);
	if (rc < 0)
		return rc;
	record_delete(b, name_key(parent, name));
	names_put_entry(b, parent, other, d.ino, d.type);
	if (a.parent == parent && strcmp(a.name, name) == 0) {
		strcpy(a.name, other);
		attr_save(b, key_ino('A', d.ino), &a);
	} else {
		record_delete(b, key_link(d.ino, parent, name));
		record_mark(b, key_link(d.ino, parent, other));
	}
	attr_release(&a);
	rc = kv_write(r->kv, b);
	if (rc == 0)
		rebuild_say(r, REBUILD_NOTE, name,
			    "an older file of this name is now %s", other);
	return rc;
}

static int put_file(struct rebuild *r, const struct label *l, uint64_t parent,
		    const char *name)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	struct attr a = { .mode = l->mode,
			  .uid = l->uid,
			  .gid = l->gid,
			  .nlink = 1,
			  .atime_ns = l->mtime_ns,
			  .mtime_ns = l->mtime_ns,
			  .ctime_ns = l->mtime_ns,
			  .parent = parent };

	(void)snprintf(a.name, sizeof(a.name), "%s", name);
	attr_save(b, key_ino('A', l->ino), &a);
	names_put_entry(b, parent, name, l->ino, l->mode);
	return kv_write(r->kv, b);
}

static int put_path(struct rebuild *r, const struct label *l, const char *path)
{
	uint64_t parent = ROOT_INO;
	char name[STORE_NAME_MAX + 1];
	int rc = 0;

	for (;;) {
		size_t len;

		path += strspn(path, "/");
		len = strcspn(path, "/");
		if (len == 0 || len > STORE_NAME_MAX)
			return -EINVAL;
		memcpy(name, path, len);
		name[len] = 0;
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
			return -EINVAL;
		path += len;
		if (*path == 0)
			break;
		rc = need_dir(r, parent, name, &parent);
		if (rc < 0)
			return rc;
	}
	rc = make_way(r, parent, name);
	return rc < 0 ? rc : put_file(r, l, parent, name);
}

int rebuild_name(struct rebuild *r, const struct label *l)
{
	char path[LABEL_PATH_MAX + 64];
	const char *base = strrchr(l->path, '/');
	struct attr a;
	int rc = attr_load(r->kv, key_ino('A', l->ino), &a);

	if (rc == 0)
		attr_release(&a);
	if (rc != -ENOENT)
		return rc;
	/* A path that is not whole says no more than its last name. */
	rc = l->path[0] == '/' ? put_path(r, l, l->path) : -EINVAL;
	if (rc != -EINVAL && rc != -ENOTDIR && rc != -EISDIR)
		return rc;
	(void)snprintf(path, sizeof(path), "/" REBUILT_DIR "/%llu-%.200s",
		       (unsigned long long)l->ino,
		       base && base[1] ? base + 1 : "file");
	rebuild_say(r, REBUILD_NOTE, l->path, "it is put at %s", path);
	return put_path(r, l, path);
}

/* --- removal --- */

/* A record of an inode; those of L lead to a name each. */
static int delete_one(void *arg, struct kv_slice key, struct kv_slice value)
{
	const uint8_t *p = key.data;
	struct kv_batch *b = arg;
	char name[STORE_NAME_MAX + 1];

	(void)value;
	kv_delete(b, key.data, key.len);
	if (p[0] == 'L' && key.len > 17 && key.len - 17 <= STORE_NAME_MAX) {
		memcpy(name, p + 17, key.len - 17);
		name[key.len - 17] = 0;
		record_delete(b, name_key(get_be64(p + 9), name));
	}
	return 0;
}

int rebuild_remove(struct rebuild *r, uint64_t ino, const char *reason)
{
	static const char kinds[] = "AFDOUWXL";
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();
	char buf[PATH_MAX];
	const char *path = check_path_in(r->kv, ino, buf);
	struct attr a;
	int rc = attr_load(r->kv, key_ino('A', ino), &a);

	if (rc == 0) {
		if (a.parent != 0)
			record_delete(b, name_key(a.parent, a.name));
		attr_release(&a);
	}
	if (rc == -ENOENT)
		rc = 0;
	for (const char *k = kinds; rc == 0 && *k; k++)
		rc = records_each(r->kv, key_ino(*k, ino), delete_one, b);
	if (rc == 0)
		rc = kv_write(r->kv, b);
	if (rc == 0 && reason)
		rebuild_say(r, REBUILD_LOST, path, "%s", reason);
	return rc;
}
