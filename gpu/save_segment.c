/*
 * save_segment.c - the way of a save that copies each byte once: into a
 * segment, which then is the file.
 *
 * The mount may be started anew meanwhile. Then it does not know the segment
 * any more, but the bytes are all there: they go to one of the new daemon's.
 */
#include "gpu/save_segment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "gpu/acquire.h"
#include "gpu/copy.h"
#include "gpu/twin.h"
#include "gpu/unchanged.h"
#include "store/base/scope.h"

/* So often may the mount be started anew during one save. */
#define PRIME_TRIES_MAX 4

/* One save's way through a segment. */
struct way {
	struct ckpt *c;
	unsigned flags; /* the save's */
	struct destination *to;
	const struct layout *layout;
};

static int copy_all(const struct way *w, struct mapping *p)
{
	const struct layout *l = w->layout;
	SCOPED(scope_free)
	struct copy_job *jobs = calloc(l->count + 1, sizeof(*jobs));

	if (!jobs)
		return ckpt_say(-ENOMEM, "%s: no memory", w->to->path);
	for (size_t i = 0; i < l->count; i++)
		jobs[i] = (struct copy_job){
			.tensor = &l->tensors[i],
			.bytes = l->tensors[i].bytes,
			.to = p->memory + l->tensors[i].offset,
		};
	p->digests_valid = false;
	return copy_run(w->c, jobs, l->count);
}

/* Everything; or, when asked for, what is not in the segment already. */
static int fill(const struct way *w, struct mapping *p)
{
	uint64_t skipped_bytes = 0;
	int rc = -ENODEV;

	if (w->layout->header)
		memcpy(p->memory, w->layout->header, w->layout->header_bytes);
	if (w->flags & CKPT_SKIP_UNCHANGED)
		rc = unchanged_copy_rest(w->c, p, w->layout, &skipped_bytes);
	/* A library without kernels copies all, and so does one for whose
	 * hashes the device or the host has no memory left. */
	if (rc == -ENODEV || rc == -ENOMEM)
		return copy_all(w, p);
	CKPT_COUNT(w->c, skipped_bytes, skipped_bytes);
	return rc;
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

/* Where most of its bytes come from. */
static int node_of(const struct way *w)
{
	uint64_t bytes[CKPT_DEVICES_MAX] = { 0 };
	int most = -1;

	for (size_t i = 0; i < w->layout->count; i++) {
		const struct layout_tensor *t = &w->layout->tensors[i];

		if (t->device < 0 || t->device >= CKPT_DEVICES_MAX)
			continue;
		bytes[t->device] += t->bytes;
		if (most < 0 || bytes[t->device] > bytes[most])
			most = t->device;
	}
	return most < 0 || !ckpt_driver_opened(w->c)
		       ? -1
		       : gpu_device_node(w->c->gpu, most);
}

/* *ret_refused: it is there, and what the mount says of it is an error. */
static int commit(const struct way *w, struct mapping *p, uint64_t *ret_ino,
		  bool *ret_refused)
{
	struct ckptfs_commit q = {
		.id = p->id,
		.generation = p->generation,
		.size_bytes = p->size_bytes,
		.mode = 0666 & ~read_umask(),
	};
	bool fresh = p->fresh;
	struct stat sb;
	int rc;

	(void)snprintf(q.name, sizeof(q.name), "%s", w->to->name);
	do {
		rc = ioctl(w->to->dirfd, CKPTFS_IOC_COMMIT, &q) < 0 ? -errno
								    : 0;
	} while (rc == -EINTR);
	if (rc < 0)
		return rc;
	*ret_ino = q.ino;
	*ret_refused = q.refused != 0;
	p->dev = fstat(w->to->dirfd, &sb) == 0 ? sb.st_dev : 0;
	p->fresh = false;
	if (fresh)
		twin_prepare(p, w->to->dirfd, node_of(w));
	acquire_committed(p, q.ino, q.mtime_ns);
	return 0;
}

/* A mapping with the save's bytes, copied from `old` when that is there. */
static int prime(const struct way *w, struct mapping *old,
		 struct mapping **ret_mapping)
{
	const struct layout *l = w->layout;
	struct ckpt_mount *m;
	int rc = mapping_find_mount(w->c, w->to->dirfd, &m);

	if (rc < 0)
		return ckpt_say(rc, "%s: the mount gives no segments: %s",
				w->to->path, strerror(-rc));
	if (old) /* or two that have both wait for each other */
		acquire_give_place(old);
	rc = acquire_mapping(m, w->to->dirfd, w->to->path, l->signature,
			     l->file_bytes, node_of(w), ret_mapping);
	if (rc < 0)
		return rc;
	if (l->on_device) /* host memory needs no context of a device */
		mapping_pin(*ret_mapping, w->c->copy_threads);
	if (old) {
		(*ret_mapping)->digests_valid = false;
		memcpy((*ret_mapping)->memory, old->memory, l->file_bytes);
		return 0;
	}
	rc = fill(w, *ret_mapping);
	if (rc < 0)
		acquire_return(*ret_mapping);
	return rc;
}

static bool is_new_daemon(int rc)
{
	return rc == -ESTALE || rc == -ENOTCONN || rc == -ECONNABORTED ||
	       rc == -ECONNREFUSED;
}

int save_through_segment(struct ckpt *c, unsigned flags, struct destination *d,
			 const struct layout *l, uint64_t *ret_ino)
{
	const struct way w = { c, flags, d, l };
	struct mapping *filled = NULL, *next = NULL;
	bool refused = false;
	int rc = 0;

	for (int i = 0; i < PRIME_TRIES_MAX; i++) {
		if (i > 0) {
			rc = destination_reopen(d);
			if (rc < 0)
				break;
		}
		rc = prime(&w, filled, &next);
		if (rc < 0 && !is_new_daemon(rc))
			break;
		if (rc < 0)
			continue;
		if (filled) {
			CKPT_COUNT(c, primed_again, 1);
			acquire_return(filled);
		}
		filled = TAKE(next);
		rc = commit(&w, filled, ret_ino, &refused);
		if (rc == 0 && refused)
			return ckpt_say(-EUCLEAN,
					"%s: it is saved, and no step: "
					"user.ckptfs.refused says why",
					d->path);
		if (rc == 0)
			return 0;
		(void)ckpt_say(rc, "%s: %s", d->path, strerror(-rc));
		if (!is_new_daemon(rc))
			break;
	}
	if (filled)
		acquire_return(filled);
	/* Closed each time: it has too many clients, or the mount is gone. The
	 * file itself will tell. */
	return is_new_daemon(rc) ? -EOPNOTSUPP : rc;
}
