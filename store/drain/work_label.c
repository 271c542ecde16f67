/*
 * work_label.c - the label (label.h) of a work's image: what the committer will
 * write of the file, as far as it is known when the image is synced.
 *
 * A file system that takes no label is no error: it costs a way back, not the
 * bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/log.h"
#include "store/base/scope.h"
#include "store/db/label.h"
#include "store/drain/drain_private.h"
#include "store/drain/work.h"

/* As much of the end of the path as there is room for. */
static void label_path(struct drain *d, struct inode *in, struct label *l)
{
	char path[4096];
	size_t len, skip;

	inode_path(d->inodes, in, path, sizeof(path));
	len = strlen(path);
	skip = len > LABEL_PATH_MAX ? len - LABEL_PATH_MAX : 0;
	memcpy(l->path, path + skip, len - skip + 1);
}

static int label_of_work(struct drain *d, const struct work *w,
			 struct bytes *out)
{
	struct label l = { .image = w->image->id,
			   .ino = w->in->ino,
			   .generation = w->number,
			   .size_bytes = w->size_bytes,
			   .mtime_ns = w->mtime_ns,
			   .domain = w->domain,
			   .by_content = w->by_content,
			   .identity = true };

	l.extents = calloc((size_t)w->chunk_count + 1, sizeof(*l.extents));
	if (!l.extents)
		return -ENOMEM;
	memcpy(l.uuid, d->options.uuid, sizeof(l.uuid));
	memcpy(l.digest, w->digest, sizeof(l.digest));
	for (uint32_t i = 0; i < w->chunk_count; i++) {
		struct extent e;

		if (!work_place(w, &w->chunks[i], &e))
			continue;
		l.identity = l.identity && e.image == l.image &&
			     e.image_offset == e.offset;
		extent_append(l.extents, &l.listed, &e);
	}
	l.extent_count = l.listed;
	{
		HOLD(&w->in->lock);
		l.mode = w->in->attr.mode;
		l.uid = w->in->attr.uid;
		l.gid = w->in->attr.gid;
	}
	label_path(d, w->in, &l);
	label_encode(&l, out);
	free(l.extents);
	return out->failed ? -ENOMEM : 0;
}

void work_label(struct drain *d, const struct work *w, int fd)
{
	struct bytes text = { 0 };
	int rc = label_of_work(d, w, &text);

	if (rc == 0)
		rc = label_set(fd, &text);
	if (rc < 0 && !atomic_exchange(&d->label_failed, true))
		log_info("images are stored without labels: %s; 'ckptctl "
			 "rebuild' has the backups of the database alone",
			 strerror(-rc));
	bytes_release(&text);
}
