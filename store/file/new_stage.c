/*
 * new_stage.c - a stage that is nobody's yet. It does not count before a file
 * has it: whoever does not want it drops it, and nothing has happened.
 */
#include <errno.h>

#include "store/base/scope.h"
#include "store/drain/drain.h"
#include "store/file/file_private.h"

/*
 * A new stage, which does not count yet; when there are too many, or too many
 * of the file's owner, wait until some are drained, and let caches go.
 */
int file_make_stage(struct files *fs, struct inode *in, uint64_t size,
		    struct stage **ret_stage)
{
	uid_t uid = inode_attr(in).uid;
	int full, rc = stage_create(fs->stages, in->ino, uid, size, ret_stage);

	if (rc != -ENFILE && rc != -EDQUOT)
		return rc;
	stages_free_slots(fs->stages, uid);
	rc = stage_create(fs->stages, in->ino, uid, size, ret_stage);
	if (rc != -ENFILE && rc != -EDQUOT)
		return rc;
	full = rc;
	rc = drain_sync_closed(fs->drain);
	stages_free_slots(fs->stages, uid);
	if (rc == 0 || full == -EDQUOT)
		rc = stage_create(fs->stages, in->ino, uid, size, ret_stage);
	return rc;
}

int file_try_stage(struct files *fs, struct inode *in)
{
	struct stage *s;
	int rc = file_make_stage(fs, in, 0, &s);

	if (rc == 0)
		stage_drop(fs->stages, s);
	return rc;
}
