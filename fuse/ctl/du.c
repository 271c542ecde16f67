/*
 * du.c - ckptctl du: logical bytes (what files hold) against physical bytes
 * (what they take up in the store), for each directory, as du(1) does.
 *
 * The physical bytes of a file are its fair share: what n files have in common
 * counts one n-th for each. So sums are right wherever all who share are in
 * the sum, and never more than what the store takes up.
 *
 * Lines come as du(1) has them, a directory behind what is in it; or, with
 * --sort, all at the end. What could not be looked at is in the JSON, too.
 */
#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <limits.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "fuse/ctl/ctl.h"
#include "store/base/scope.h"
#include "store/base/vec.h"

#define PHYSICAL_ATTRIBUTE "user.ckptfs.physical_bytes"
#define NUMBER_BYTES 32

struct sums {
	uint64_t logical, physical, files;
};

/* A file with several names, which was counted. */
struct seen {
	uint64_t dev, ino;
};

enum order { ORDER_WALK, ORDER_SIZE, ORDER_LOGICAL, ORDER_NAME };

/* A line that waits for its place. */
struct line {
	char *path; /* owned */
	struct sums sums;
};

struct du {
	bool exact;
	int depth_max; /* of what is printed; 0: only what was named */
	enum order order;
	struct line *lines; /* owned; unless ORDER_WALK */
	size_t line_count, line_capacity;
	cJSON *list; /* NULL: print */
	void *seen; /* a tree (tsearch(3)) */
	struct sums *levels; /* of the directories from the top to here */
	size_t level_capacity;
	bool failed;
};

static int seen_order(const void *pa, const void *pb)
{
	const struct seen *a = pa, *b = pb;

	if (a->dev != b->dev)
		return a->dev < b->dev ? -1 : 1;
	return (a->ino > b->ino) - (a->ino < b->ino);
}

/* True at the first name of a file. */
static bool seen_first(struct du *d, const struct stat *st)
{
	SCOPED(scope_free) struct seen *f = NULL;
	struct seen **found;

	if (st->st_nlink < 2)
		return true;
	f = malloc(sizeof(*f));
	CHECK(f); /* out of memory */
	*f = (struct seen){ st->st_dev, st->st_ino };
	found = tsearch(f, &d->seen, seen_order);
	CHECK(found); /* out of memory */
	if (*found != f)
		return false;
	(void)TAKE(f); /* the tree has it */
	return true;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
	return (a < b) - (a > b); /* the largest comes first */
}

static int line_order(const void *pa, const void *pb, void *self)
{
	const struct line *a = pa, *b = pb;
	const struct du *d = self;
	int c = 0;

	if (d->order == ORDER_SIZE)
		c = compare_numbers(a->sums.physical, b->sums.physical);
	if (c == 0 && d->order != ORDER_NAME)
		c = compare_numbers(a->sums.logical, b->sums.logical);
	return c ? c : strcmp(a->path, b->path);
}

static void du_print(struct du *d, const char *path, const struct sums *s)
{
	if (d->list) {
		cJSON *one = cJSON_CreateObject();

		ctl_add_text(one, "path", path);
		ctl_add_number(one, "logical_bytes", s->logical);
		ctl_add_number(one, "physical_bytes", s->physical);
		ctl_add_number(one, "files", s->files);
		(void)cJSON_AddItemToArray(d->list, one);
	} else if (d->exact) {
		(void)printf("%16" PRIu64 " %16" PRIu64 "  ", s->logical,
			     s->physical);
		ctl_print_line(path);
	} else {
		(void)printf("%11s %11s  ", ctl_bytes(s->logical),
			     ctl_bytes(s->physical));
		ctl_print_line(path);
	}
}

static void du_line(struct du *d, const char *path, const struct sums *s)
{
	struct line line = { .sums = *s };

	if (d->order == ORDER_WALK) {
		du_print(d, path, s);
		return;
	}
	line.path = strdup(path);
	CHECK(line.path && vec_grow(&d->lines, d->line_count, &d->line_capacity,
				    sizeof(line)) == 0); /* out of memory */
	d->lines[d->line_count++] = line;
}

static void du_sorted(struct du *d)
{
	if (d->line_count > 1)
		qsort_r(d->lines, d->line_count, sizeof(*d->lines), line_order,
			d);
	for (size_t n = 0; n < d->line_count; n++)
		du_print(d, d->lines[n].path, &d->lines[n].sums);
}

static void du_header(const struct du *d)
{
	if (!d->list)
		(void)printf(d->exact ? "%16s %16s\n" : "%11s %11s\n",
			     "logical", "physical");
}

static int file_physical(const char *path, uint64_t *ret_bytes)
{
	char text[NUMBER_BYTES];
	ssize_t n = lgetxattr(path, PHYSICAL_ATTRIBUTE, text, sizeof(text) - 1);

	if (n < 0) /* nothing of it is in the store yet: it has none there */
		return errno == ENODATA ? 0 : -errno;
	text[n] = 0;
	*ret_bytes = strtoull(text, NULL, 10);
	return 0;
}

static void du_complain(struct du *d, const char *path, int error)
{
	ctl_complain("%s: %s", path, strerror(error));
	d->failed = true;
	if (d->list) {
		cJSON *one = cJSON_CreateObject();

		ctl_add_text(one, "path", path);
		ctl_add_text(one, "error", strerror(error));
		(void)cJSON_AddItemToArray(d->list, one);
	}
}

static void du_file(struct du *d, const FTSENT *e, struct sums *into)
{
	uint64_t physical = 0;
	int rc;

	if (!S_ISREG(e->fts_statp->st_mode) || !seen_first(d, e->fts_statp))
		return;
	rc = file_physical(e->fts_path, &physical);
	if (rc == -ENOENT)
		return; /* deleted meanwhile, as files are */
	if (rc < 0) {
		du_complain(d, e->fts_path, -rc);
		return;
	}
	into->logical += (uint64_t)e->fts_statp->st_size;
	into->physical += physical;
	into->files++;
}

/* Sums of level n: level 0 is above what was named. */
static struct sums *level(struct du *d, size_t n)
{
	size_t had = d->level_capacity;

	if (n < had)
		return &d->levels[n];
	CHECK(vec_reserve(&d->levels, had, n + 1 - had, &d->level_capacity,
			  sizeof(*d->levels)) == 0); /* out of memory */
	memset(d->levels + had, 0,
	       (d->level_capacity - had) * sizeof(*d->levels));
	return &d->levels[n];
}

static void sums_add(struct sums *to, const struct sums *s)
{
	to->logical += s->logical;
	to->physical += s->physical;
	to->files += s->files;
}

static void du_entry(struct du *d, const FTSENT *e)
{
	size_t depth = (size_t)e->fts_level + 1;
	struct sums *own = level(d, depth), *above = &d->levels[depth - 1];

	switch (e->fts_info) {
	case FTS_D:
		memset(own, 0, sizeof(*own));
		break;
	case FTS_DP:
		if (e->fts_level <= d->depth_max)
			du_line(d, e->fts_path, own);
		sums_add(above, own);
		break;
	case FTS_DNR:
	case FTS_ERR:
	case FTS_NS:
		if (e->fts_errno != ENOENT || e->fts_level == FTS_ROOTLEVEL)
			du_complain(d, e->fts_path, e->fts_errno);
		break;
	case FTS_F:
		du_file(d, e, above);
		if (e->fts_level == FTS_ROOTLEVEL)
			du_line(d, e->fts_path, above);
		break;
	default:
		break;
	}
}

/* What lies under a path, added to *total. */
static int du_path(struct du *d, char *path, struct sums *total)
{
	char *paths[] = { path, NULL };
	FTS *walk =
		fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
	const FTSENT *e;

	if (!walk)
		return ctl_complain_query(path, -errno);
	memset(level(d, 0), 0, sizeof(struct sums));
	for (;;) {
		errno = 0;
		e = fts_read(walk);
		if (!e)
			break;
		du_entry(d, e);
	}
	if (errno != 0)
		du_complain(d, path, errno);
	(void)fts_close(walk);
	sums_add(total, &d->levels[0]);
	return CTL_FINE;
}

static int du(struct du *d, int count, char **paths)
{
	struct sums total = { 0 };
	cJSON *status;
	int code;

	for (int n = 0; n < count; n++) { /* elsewhere there are no figures */
		code = ctl_ask(paths[n], CKPTFS_STATUS, &status);
		if (code != CTL_FINE)
			return code;
		cJSON_Delete(status);
	}
	du_header(d);
	for (int n = 0; n < count; n++) {
		code = du_path(d, paths[n], &total);
		if (code != CTL_FINE)
			return code;
	}
	du_sorted(d);
	if (count > 1)
		du_print(d, "total", &total);
	return d->failed ? CTL_PROBLEM : CTL_FINE;
}

static bool depth_of(const char *text, int *ret)
{
	unsigned long v;
	char *end;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno != 0 || v > INT_MAX)
		return false;
	*ret = (int)v;
	return true;
}

static bool order_of(const char *text, enum order *ret)
{
	static const char *const words[] = { [ORDER_SIZE] = "size",
					     [ORDER_LOGICAL] = "logical",
					     [ORDER_NAME] = "name" };

	for (enum order n = ORDER_SIZE; n <= ORDER_NAME; n++)
		if (strcmp(text, words[n]) == 0) {
			*ret = n;
			return true;
		}
	return false;
}

static int take_option(struct du *d, int option)
{
	switch (option) {
	case 's':
		d->depth_max = 0;
		break;
	case 'b':
		d->exact = true;
		break;
	case 'd':
		if (!depth_of(optarg, &d->depth_max))
			return ctl_misused("du: the depth '%s' is no number "
					   "from 0 on",
					   optarg);
		break;
	default:
		if (!order_of(optarg, &d->order))
			return ctl_misused("du: '%s' is none of size, logical, "
					   "name",
					   optarg);
		break;
	}
	return CTL_FINE;
}

static void du_release(struct du *d)
{
	for (size_t n = 0; n < d->line_count; n++)
		free(d->lines[n].path);
	free(d->lines);
	tdestroy(d->seen, free);
	free(d->levels);
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "summarize", no_argument, NULL, 's' },
		{ "depth", required_argument, NULL, 'd' },
		{ "sort", required_argument, NULL, 'S' },
		{ "bytes", no_argument, NULL, 'b' },
		{ 0 },
	};
	struct ctl_options o = { .command = self,
				 .letters = "sd:b",
				 .names = names };
	SCOPED(du_release) struct du d = { .depth_max = INT_MAX };
	int option, code;

	while ((option = ctl_option(&o, argc, argv)) >= 0) {
		code = take_option(&d, option);
		if (code != CTL_FINE)
			return code;
	}
	if (optind == argc)
		return ctl_misused("du: name a file or a directory");
	d.list = o.json ? cJSON_CreateArray() : NULL;
	code = du(&d, argc - optind, argv + optind);
	if (d.list && code != CTL_USAGE)
		ctl_print_json(d.list);
	else
		cJSON_Delete(d.list);
	return code;
}

const struct ctl_command ctl_du = {
	.name = "du",
	.arguments = "[OPTION...] PATH...",
	.summary = "logical against physical bytes of each directory",
	.help = "A file's physical bytes are its fair share: what n files "
		"have in common counts\none n-th for each. A file with several "
		"names counts once. A directory comes\nbehind what is in it, "
		"as du(1) has it, unless they are sorted.\n\n"
		"  -s       only what was named, not what is below "
		"(--summarize)\n"
		"  -d N     only what is at most N levels below what was named "
		"(--depth)\n"
		"  --sort ORDER\n"
		"           size: the largest in the store first; logical: by "
		"what files hold;\n"
		"           name\n"
		"  -b       exact numbers (--bytes)\n",
	.run = run,
};
