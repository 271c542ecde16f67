/*
 * stage_kept.c - stages that a segment keeps: they are lent to one file after
 * the other, and come back instead of being dropped. While a file has one its
 * slot counts; a kept one without a file has a slot whose ino is 0, so that the
 * next daemon, whose segments are gone, does not find it.
 */
#include "store/space/stage_private.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "store/base/scope.h"

/* The file gets its size. Can it be sealed, once the client has mapped it? */
static int stage_prepare_kept(struct stages *st, struct stage *s,
			      uint64_t size_bytes)
{
	SCOPED(scope_close) int fd = stage_open(st, s, O_RDWR);

	if (fd < 0)
		return fd;
	if (ftruncate(fd, (off_t)size_bytes) < 0)
		return -errno;
	if (stage_set_sealed(fd, true) < 0 || stage_set_sealed(fd, false) < 0)
		return -EOPNOTSUPP;
	return 0;
}

int stage_create_kept(struct stages *st, uint64_t size_bytes,
		      struct stage **ret_stage)
{
	struct stage *s;
	int rc;

	/* Segments have a quota of their own. */
	rc = stage_new_slot(st, 0, 0, &s);
	if (rc < 0)
		return rc;
	atomic_store(&s->kept, true);
	rc = stage_make_memory(st, s, size_bytes, false);
	if (rc == 0)
		rc = stage_prepare_kept(st, s, size_bytes);
	atomic_fetch_add(&st->memory_count, 1);
	if (rc < 0) {
		atomic_store(&s->kept, false);
		stage_drop(st, s);
		return rc;
	}
	*ret_stage = s;
	return 0;
}

void stage_lend(struct stages *st, struct stage *s, uint64_t ino)
{
	char name[24];
	struct stat sb;

	CHECK(atomic_load(&s->kept) && s->sealed &&
	      SLOT_GET(s->slot, ino) == 0);
	__atomic_store_n(&s->ino, ino, __ATOMIC_RELEASE);
	/*
	 * A mapping's writes leave no time. Since Linux 6.13 a time is finer
	 * than a tick where somebody has seen the last one within it (multigrain
	 * timestamps), so who knows versions by their times sees each of those
	 * that follow quickly.
	 */
	stage_file_name(s->number, name);
	(void)utimensat(st->dirfd, name, NULL, AT_SYMLINK_NOFOLLOW);
	(void)stage_stat(st, s, &sb);
	(void)utimensat(st->dirfd, name, NULL, AT_SYMLINK_NOFOLLOW);
	stage_ref(s);
	stage_write_slot(s);
}

bool stage_is_idle(struct stage *s)
{
	return SLOT_GET(s->slot, ino) == 0 && atomic_load(&s->refs) == 1;
}

bool stage_wait_idle(struct stages *st, struct stage *s, int64_t deadline_ns)
{
	HOLD(&st->lock);
	while (!stage_is_idle(s))
		if (!cond_wait_until(&st->returned, &st->lock, deadline_ns))
			return stage_is_idle(s);
	return true;
}

void stage_unkeep(struct stages *st, struct stage *s)
{
	bool lent;

	{
		HOLD(&st->lock);
		atomic_store(&s->kept, false);
		lent = SLOT_GET(s->slot, ino) != 0;
	}
	if (!lent)
		stage_drop(st, stage_ref(s));
}
