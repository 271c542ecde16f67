/*
 * structure_megatron.c - a rank's state is an item of its own, that says of how
 * many it is one.
 */
#include "store/step/structure_megatron.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/formats/torch_archive.h"
#include "store/step/structure_tree.h"

#define RERUNS "rerun_state_machine_state"
#define COMMON_ITEM "common_state/shard_0_1"
/* A larger number of ranks is none. */
#define RANKS_MAX (UINT32_C(1) << 24)

/* Ranks that have one, once each, as names are unique; *ret_of: of how many. */
static uint32_t ranks_of(const struct dcp *d, uint32_t *ret_of)
{
	uint32_t count = 0;

	*ret_of = 0;
	for (uint32_t i = 0; i < d->item_count; i++) {
		uint32_t rank, of;
		char end;

		if (sscanf(d->items[i].name, RERUNS "/shard_%8u_%8u%c", &rank,
			   &of, &end) != 2 ||
		    of > RANKS_MAX || rank >= of)
			continue;
		count++;
		*ret_of = of > *ret_of ? of : *ret_of;
	}
	return count;
}

int structure_check_reruns(struct structure *s, const struct dcp *d,
			   const char *below, const char *where)
{
	SCOPED(scope_free) char *path = tree_join(below, DCP_METADATA_NAME);
	uint32_t of, count = ranks_of(d, &of);
	char what[256];

	if (!path)
		return -ENOMEM;
	if (count > 0 && count >= of)
		return 0;
	if (count == 0)
		(void)snprintf(
			what, sizeof(what),
			"%.100s says that a rerun is under way, and " RERUNS
			" of no rank is in it",
			where);
	else
		(void)snprintf(
			what, sizeof(what),
			"%.100s says that a rerun is under way, and " RERUNS
			" of %u of %u ranks is in it",
			where, count, of);
	return structure_add_fault(s, STRUCTURE_MISSING, path, what);
}

/* An item of a file, as a file. */
struct part {
	const struct cut_source *file;
	uint64_t at;
};

static int part_read(void *self, void *buf, size_t len, uint64_t off)
{
	const struct part *p = self;

	return p->file->read(p->file->self, buf, len, p->at + off);
}

static const struct dcp_entry *find_common(const struct dcp *d)
{
	for (uint32_t i = 0; i < d->item_count; i++)
		if (strcmp(d->items[i].name, COMMON_ITEM) == 0)
			return d->items[i].entry == DCP_NONE ||
					       d->items[i].dtype
				       ? NULL
				       : &d->entries[d->items[i].entry];
	return NULL;
}

int structure_check_common(struct structure *s,
			   const struct structure_source *in,
			   const struct dcp *d, const char *below)
{
	const struct dcp_entry *e = find_common(d);
	SCOPED(tensors_release) struct tensors read = { .all = NULL };
	SCOPED(scope_free) char *path = NULL;
	struct cut_source file;
	int rc;

	if (!e || e->transformed)
		return 0;
	path = tree_join(below, d->files[e->file].name);
	if (!path)
		return -ENOMEM;
	if (in->open(in->self, path, &file) < 0)
		return 0; /* it is not there, and that was said */
	read.bytes_max = in->memory_bytes_max;
	read.budget = in->budget;
	rc = 0;
	if (e->offset + e->length <= file.size_bytes) {
		struct part part = { &file, e->offset };
		const struct cut_source source = { .read = part_read,
						   .self = &part,
						   .size_bytes = e->length };

		rc = torch_archives_read(&read, &source, false, NULL);
	}
	in->close(in->self, &file);
	if (rc < 0 || !read.reruns)
		return rc == -ENOMEM ? rc : 0;
	return structure_check_reruns(s, d, below, "common_state");
}
