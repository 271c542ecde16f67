/*
 * rebuild_staged.c - what the last daemon left staged (stage_table.h) is the
 * next mount's, which finds a stage's file by its inode number. So a rebuild
 * moves no image of a stage, gives no such number to another file, and where
 * its base does not know the inode makes one, in the directory `rebuilt` if no
 * label says what its path was.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "store/base/scope.h"
#include "store/check/check.h"
#include "store/check/rebuild_work.h"
#include "store/check/staged.h"

int rebuild_read_staged(struct rebuild *r)
{
	int rc = stage_table_read(r->dirfd, r->uuid, &r->staged);

	if (rc == 0 && !r->uuid[0])
		memcpy(r->uuid, r->staged.uuid, sizeof(r->uuid));
	return rc;
}

/*
 * A file loses its stage before its records go, so one without records is none
 * that was deleted. What nobody had synced is not in the mark either.
 */
int rebuild_lacks_staged(struct rebuild *r)
{
	for (size_t i = 0; i < r->staged.count; i++) {
		int rc = record_find(r->kv,
				     key_ino('A', r->staged.slots[i].ino));

		if (rc < 0)
			return rc == -ENOENT ? 1 : rc;
	}
	return 0;
}

int rebuild_wait_for_stage(struct rebuild *r, uint64_t ino)
{
	SCOPED(scope_batch) struct kv_batch *b = kv_batch_new();

	record_delete(b, key_ino('F', ino));
	record_delete(b, key_ino('D', ino));
	if (record_find(r->kv, key_ino('O', ino)) != 0)
		record_mark(b, key_ino('U', ino));
	return kv_write(r->kv, b);
}

/* The newest one, whose version cannot be had. NULL: there is none. */
static const struct label *label_of(const struct rebuild *r, uint64_t ino)
{
	for (size_t i = 0; i < r->label_count; i++)
		if (r->labels[i].ino == ino)
			return &r->labels[i];
	return NULL;
}

static int name_slot(struct rebuild *r, const struct stage_slot *slot)
{
	struct label none = { .ino = slot->ino,
			      .mode = S_IFREG | 0600,
			      .mtime_ns = wall_ns() };
	const struct label *l = label_of(r, slot->ino);
	int rc = record_find(r->kv, key_ino('A', slot->ino));

	if (rc != -ENOENT)
		return rc;
	if (slot->kind == STAGE_DISK && rebuild_image(r, slot->number) < 0)
		return 0;
	if (!l) {
		(void)snprintf(none.path, sizeof(none.path),
			       "/" REBUILT_DIR "/%llu-staged",
			       (unsigned long long)slot->ino);
		l = &none;
	}
	rc = rebuild_name(r, l);
	return rc == 0 ? rebuild_wait_for_stage(r, slot->ino) : rc;
}

int rebuild_name_staged(struct rebuild *r)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < r->staged.count; i++)
		rc = name_slot(r, &r->staged.slots[i]);
	return rc;
}

int rebuild_say_staged(struct rebuild *r)
{
	for (size_t i = 0; i < r->staged.count; i++) {
		const struct stage_slot *slot = &r->staged.slots[i];
		char where[STAGED_WHERE_BYTES], path[PATH_MAX];
		int fate = staged_fate(r->kv, &r->staged, i);

		if (fate < 0)
			return fate;
		if (fate == STAGED_TAKEN)
			rebuild_say(r, REBUILD_STAGED,
				    check_path_in(r->kv, slot->ino, path),
				    "was not durable yet; the bytes are in %s, "
				    "and the next mount makes them durable",
				    staged_where(slot, where));
	}
	return 0;
}
