/*
 * kv_backup.c - copies of a database with RocksDB's backup engine. Tables are
 * shared between copies, so that a copy costs what changed since the last one;
 * each file has a checksum in its name.
 */
#include <errno.h>
#include <sys/stat.h>

#include "store/db/kv_private.h"

/* Half of what a slow disk can do: a backup is never in a hurry. */
#define BACKUP_BYTES_PER_S (UINT64_C(64) << 20)

static int engine_open(const char *dir, rocksdb_backup_engine_t **ret_engine)
{
	rocksdb_backup_engine_options_t *o =
		rocksdb_backup_engine_options_create(dir);
	rocksdb_env_t *env = rocksdb_create_default_env();
	char *err = NULL;

	rocksdb_backup_engine_options_set_backup_rate_limit(o,
							    BACKUP_BYTES_PER_S);
	*ret_engine = rocksdb_backup_engine_open_opts(o, env, &err);
	rocksdb_backup_engine_options_destroy(o);
	rocksdb_env_destroy(env);
	return kv_error("backup", err);
}

/* Of backups that are there: the engine would make the directory. */
static int engine_open_old(const char *dir,
			   rocksdb_backup_engine_t **ret_engine)
{
	struct stat sb;

	return stat(dir, &sb) < 0 ? -errno : engine_open(dir, ret_engine);
}

/* The one that was made last but `back` ones; -ENOENT: there is none. */
static int info_of(rocksdb_backup_engine_t *be, int back,
		   struct kv_backup_info *ret)
{
	const rocksdb_backup_engine_info_t *info =
		rocksdb_backup_engine_get_backup_info(be);
	int at = rocksdb_backup_engine_info_count(info) - 1 - back;

	if (at >= 0) {
		ret->id = rocksdb_backup_engine_info_backup_id(info, at);
		ret->bytes = rocksdb_backup_engine_info_size(info, at);
		ret->at_ns = rocksdb_backup_engine_info_timestamp(info, at) *
			     INT64_C(1000000000);
	}
	rocksdb_backup_engine_info_destroy(info);
	return at < 0 ? -ENOENT : 0;
}

int kv_backup(struct kv *kv, const char *dir, struct kv_backup_info *ret)
{
	rocksdb_backup_engine_t *be;
	char *err = NULL;
	int rc = kv_calm(kv);

	if (rc == 0)
		rc = engine_open(dir, &be);
	if (rc < 0)
		return rc;
	rc = kv_enter(kv);
	if (rc == 0) {
		/* With what is in memory: then it needs no log. */
		rocksdb_backup_engine_create_new_backup_flush(be, kv->db, 1,
							      &err);
		kv_leave(kv);
		rc = kv_error("backup", err);
	}
	if (rc == 0) {
		rocksdb_backup_engine_purge_old_backups(be, KV_BACKUPS_KEPT,
							&err);
		rc = kv_error("backup", err);
	}
	if (rc == 0)
		rc = info_of(be, 0, ret);
	rocksdb_backup_engine_close(be);
	return rc;
}

int kv_backup_look(const char *dir, struct kv_backup_info *ret)
{
	rocksdb_backup_engine_t *be;
	int rc = engine_open_old(dir, &be);

	if (rc < 0)
		return rc;
	rc = info_of(be, 0, ret);
	rocksdb_backup_engine_close(be);
	return rc;
}

int kv_backup_restore(const char *dir, unsigned back, const char *to,
		      struct kv_backup_info *ret)
{
	rocksdb_restore_options_t *o;
	rocksdb_backup_engine_t *be;
	char *err = NULL;
	int rc = engine_open_old(dir, &be);

	if (rc < 0)
		return rc;
	rc = info_of(be, (int)back, ret);
	if (rc == 0) {
		o = rocksdb_restore_options_create();
		rocksdb_backup_engine_restore_db_from_backup(be, to, to, o,
							     ret->id, &err);
		rocksdb_restore_options_destroy(o);
		rc = kv_error("restore", err);
	}
	rocksdb_backup_engine_close(be);
	return rc;
}
