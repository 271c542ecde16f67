/*
 * save_segment.c - the way of a save that copies each byte once: into a
 * segment, which then is the file.
 *
 * The mount may be started anew meanwhile. Then it does not know the segment
 * any more, but the bytes are all there: they go to one of the new daemon's.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "gpu/save.h"
#include "gpu/segment.h"
#include "gpu/unchanged.h"
#include "store/base/scope.h"

/* So often may the mount be started anew during one save. */
#define PRIME_TRIES_MAX 4

/* Everything; or, when asked for, what is not in the segment already. */
static int copy_all(struct ckpt_save *s, struct segment *to)
{
	const struct layout *l = &s->layout;
	SCOPED(scope_free) struct copy_job *jobs =
		calloc(l->count + 1, sizeof(*jobs));

	if (!jobs)
		return ckpt_say(-ENOMEM, "%s: no memory", s->path);
	for (size_t i = 0; i < l->count; i++)
		jobs[i] = (struct copy_job){
			.tensor = &l->tensors[i],
			.bytes = l->tensors[i].bytes,
			.to = to->memory + l->tensors[i].offset,
		};
	to->digests_valid = false;
	return copy_run(s->c, jobs, l->count);
}

static int copy_changed(struct ckpt_save *s, struct segment *to)
{
	struct unchanged u;
	int rc = unchanged_find(s->c, to, &s->layout, &u);

	if (rc < 0)
		return rc;
	to->digests_valid = false;
	rc = copy_run(s->c, u.jobs, u.job_count);
	if (rc == 0) {
		for (size_t i = 0; i < u.twin_count; i++) {
			memcpy(u.twins[i].to, u.twins[i].from,
			       u.twins[i].bytes);
			CKPT_COUNT(s->c, host_bytes, u.twins[i].bytes);
		}
		CKPT_COUNT(s->c, skipped_bytes, u.skipped_bytes);
		unchanged_remember(&u, to);
	}
	unchanged_release(&u);
	return rc;
}

static int fill(struct ckpt_save *s, struct segment *to)
{
	int rc;

	memcpy(to->memory, s->layout.header, s->layout.header_bytes);
	if (s->c->flags & CKPT_SKIP_UNCHANGED) {
		rc = copy_changed(s, to);
		if (rc != -ENODEV) /* a library without kernels copies all */
			return rc;
	}
	return copy_all(s, to);
}

/* The umask, which can be read without changing it only here. */
static uint32_t read_umask(void)
{
	SCOPED(scope_free) char *line = NULL;
	FILE *f = fopen("/proc/thread-self/status", "re");
	unsigned mask = 022;
	size_t room = 0;

	while (f && getline(&line, &room, f) > 0)
		if (sscanf(line, "Umask: %o", &mask) == 1)
			break;
	if (f)
		fclose(f);
	return mask;
}

static int commit(struct ckpt_save *s, struct segment *from)
{
	struct ckptfs_commit q = {
		.id = from->id,
		.generation = from->generation,
		.size_bytes = from->size_bytes,
		.mode = 0666 & ~read_umask(),
	};
	bool fresh = from->fresh;
	int rc;

	(void)snprintf(q.name, sizeof(q.name), "%s", s->name);
	do {
		rc = ioctl(s->dirfd, CKPTFS_IOC_COMMIT, &q) < 0 ? -errno : 0;
	} while (rc == -EINTR);
	if (rc < 0)
		return rc;
	s->ino = q.ino;
	from->fresh = false;
	if (fresh)
		segment_prepare_twin(from, s->dirfd);
	segment_committed(from, q.ino, q.mtime_ns);
	return 0;
}

/* A segment with the save's bytes, copied from `old` when that is there. */
static int prime(struct ckpt_save *s, struct segment *old,
		 struct segment **ret_segment)
{
	const struct layout *l = &s->layout;
	struct ckpt_mount *m;
	int rc = mount_find(s->c, s->dirfd, &m);

	if (rc < 0)
		return ckpt_say(rc, "%s: the mount gives no segments: %s",
				s->path, strerror(-rc));
	if (old) /* or two that have both wait for each other */
		segment_give_place(old);
	rc = segment_acquire(m, s->dirfd, s->path, l->signature,
			     l->file_bytes, ret_segment);
	if (rc < 0)
		return rc;
	if (old) {
		(*ret_segment)->digests_valid = false;
		memcpy((*ret_segment)->memory, old->memory, l->file_bytes);
		return 0;
	}
	rc = fill(s, *ret_segment);
	if (rc < 0)
		segment_return(*ret_segment);
	return rc;
}

static bool is_new_daemon(int rc)
{
	return rc == -ESTALE || rc == -ENOTCONN || rc == -ECONNABORTED ||
	       rc == -ECONNREFUSED;
}

int save_through_segment(struct ckpt_save *s)
{
	struct segment *segment = NULL, *next = NULL;
	int rc = 0;

	for (int i = 0; i < PRIME_TRIES_MAX; i++) {
		if (i > 0) {
			rc = save_reopen(s);
			if (rc < 0)
				break;
		}
		rc = prime(s, segment, &next);
		if (rc < 0 && !is_new_daemon(rc))
			break;
		if (rc < 0)
			continue;
		if (segment) {
			CKPT_COUNT(s->c, primed_again, 1);
			segment_return(segment);
		}
		segment = TAKE(next);
		rc = commit(s, segment);
		if (rc == 0)
			return 0;
		(void)ckpt_say(rc, "%s: %s", s->path, strerror(-rc));
		if (!is_new_daemon(rc))
			break;
	}
	if (segment)
		segment_return(segment);
	/* Closed each time: it has too many clients, or the mount is gone. The
	 * file itself will tell. */
	return is_new_daemon(rc) ? -EOPNOTSUPP : rc;
}
