/*
 * plan_list.c - ckptctl plan --list: what a checkpoint's .metadata says it
 * holds, and whether the files of its folder match.
 */
#include <inttypes.h>
#include <sys/stat.h>

#include "fuse/ctl/ctl.h"
#include "fuse/ctl/plan.h"
#include "fuse/ctl/step.h"
#include "store/base/dir.h"
#include "store/base/scope.h"
#include "store/base/vec.h"

/* Sizes of what the folder has, and of what entries name in folders below. */
struct folder {
	struct closure_file *files; /* owned, with their names */
	size_t count, capacity;
};

static void folder_release(struct folder *f)
{
	for (size_t i = 0; i < f->count; i++) {
		char *name;

		memcpy(&name, &f->files[i].name, sizeof(name));
		free(name);
	}
	free(f->files);
}

static int folder_add(void *arg, int dirfd, const char *name)
{
	struct folder *f = arg;
	struct stat st;

	if (fstatat(dirfd, name, &st, 0) < 0 || !S_ISREG(st.st_mode))
		return 0;
	CHECK(vec_grow(&f->files, f->count, &f->capacity, sizeof(*f->files)) ==
	      0); /* out of memory */
	f->files[f->count].name = strdup(name);
	f->files[f->count].size_bytes =
		st.st_size == 0 && ctl_is_elsewhere(dirfd, name)
			? CLOSURE_SIZE_UNKNOWN
			: (uint64_t)st.st_size;
	CHECK(f->files[f->count].name); /* out of memory */
	f->count++;
	return 0;
}

static int folder_read(struct folder *f, int dirfd, const struct dcp *d)
{
	int rc = dir_each(dirfd, ".", folder_add, f);

	for (uint32_t i = 0; rc == 0 && i < d->file_count; i++)
		if (strchr(d->files[i].name, '/'))
			rc = folder_add(f, dirfd, d->files[i].name);
	return rc;
}

static void list_place(const struct dcp *d, uint32_t number)
{
	const struct dcp_entry *e;

	if (number == DCP_NONE) {
		(void)printf("\"file\": null}");
		return;
	}
	e = &d->entries[number];
	ctl_print_string("\"file\": ", d->files[e->file].name);
	(void)printf(", \"offset\": %" PRIu64 ", \"length\": %" PRIu64
		     ", \"transformed\": %s}",
		     e->offset, e->length, e->transformed ? "true" : "false");
}

static void list_item(const struct dcp *d, const struct dcp_item *item)
{
	ctl_print_string("\n\t\t{\"name\": ", item->name);
	if (!item->dtype) {
		(void)printf(", \"dtype\": null, ");
		list_place(d, item->entry);
		return;
	}
	(void)printf(", \"dtype\": \"%s\", \"shape\": ", item->dtype->name);
	ctl_print_numbers("", item->shape, item->dimensions);
	(void)printf(", \"chunks\": [");
	for (uint32_t i = 0; i < item->chunk_count; i++) {
		const struct dcp_chunk *c = &d->chunks[item->chunk_at + i];

		(void)printf("%s\n\t\t\t{\"offsets\": ", i > 0 ? "," : "");
		ctl_print_numbers("", c->offsets, item->dimensions);
		ctl_print_numbers(", \"sizes\": ", c->sizes, item->dimensions);
		(void)printf(", ");
		list_place(d, c->entry);
	}
	(void)printf("]}");
}

static void list_json(const struct dcp *d, const struct closure *found)
{
	ctl_result_begun();
	(void)printf("{\n\t\"items\":\t[");
	for (uint32_t i = 0; i < d->item_count; i++) {
		(void)printf("%s", i > 0 ? "," : "");
		list_item(d, &d->items[i]);
	}
	(void)printf("],\n\t\"entries\":\t%" PRIu32, d->entry_count);
	step_print_findings_json(found);
	(void)printf("\n}\n");
}

static void list_table(const struct dcp *d, const struct closure *found)
{
	(void)printf("%-16s %8s  %-24s %s\n", "dtype", "chunks", "shape",
		     "name");
	for (uint32_t i = 0; i < d->item_count; i++) {
		const struct dcp_item *item = &d->items[i];

		(void)printf("%-16s %8" PRIu32 "  ",
			     item->dtype ? item->dtype->name : "bytes",
			     item->chunk_count);
		step_print_shape(item->dtype ? item->shape : NULL,
				 item->dimensions, 24);
		(void)putchar(' ');
		ctl_print_line(item->name);
	}
	if (found->count > 0)
		(void)putchar('\n');
	step_print_findings(found, "");
}

int plan_list(int dirfd, const struct dcp *d, bool json, bool *ret_holds)
{
	SCOPED(closure_release) struct closure found = { 0 };
	SCOPED(folder_release) struct folder f = { 0 };
	int rc = folder_read(&f, dirfd, d);

	if (rc == 0)
		rc = closure_check(d, f.files, f.count, &found);
	if (rc < 0)
		return rc;
	if (json)
		list_json(d, &found);
	else
		list_table(d, &found);
	*ret_holds = closure_holds(&found);
	return 0;
}
