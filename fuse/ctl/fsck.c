/* fsck.c - ckptctl fsck and scrub: check a store that is not mounted. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/ctl/ctl.h"
#include "fuse/ctl/fsck.h"
#include "store/base/scope.h"
#include "store/check/check.h"
#include "store/db/identity.h"
#include "store/db/kv.h"
#include "store/db/layout.h"
#include "store/db/parents.h"
#include "store/db/trust.h"
#include "store/space/stage_table.h"

#define WHY_BYTES 8192
/* More problems are counted, but not listed, in JSON. */
#define PROBLEMS_LISTED_MAX 10000

struct fsck {
	const char *path;
	bool scrub, mend;
	cJSON *json; /* NULL: for people */
	cJSON *problems, *notes; /* in json */
	struct ctl_progress progress;
	char uuid[LAYOUT_UUID_BYTES];
	struct check_result result;
};

static void list_problem(const struct fsck *f, const struct check_problem *p)
{
	cJSON *list = p->note ? f->notes : f->problems;
	cJSON *one, *files;

	if (cJSON_GetArraySize(list) >= PROBLEMS_LISTED_MAX)
		return;
	one = cJSON_CreateObject();
	ctl_add_text(one, "code", p->code);
	ctl_add_text(one, "object", p->object);
	ctl_add_text(one, "text", p->text);
	if (p->file_count > 0) {
		files = cJSON_AddArrayToObject(one, "files");
		for (size_t n = 0; n < p->file_count; n++)
			ctl_add_text(files, NULL, p->files[n]);
	}
	(void)cJSON_AddItemToArray(list, one);
}

static void on_problem(void *self, const struct check_problem *p)
{
	struct fsck *f = self;

	ctl_progress_clear(&f->progress);
	if (f->json) {
		list_problem(f, p);
		return;
	}
	(void)fputs(p->note ? "note: " : "", stdout);
	ctl_print_line(p->text);
}

static void on_progress(void *self, const char *phase, uint64_t done,
			uint64_t total)
{
	struct fsck *f = self;

	ctl_progress_show(&f->progress, phase, done, total,
			  strcmp(phase, "scrub") == 0);
}

static void print_result(const struct fsck *f)
{
	const struct check_result *r = &f->result;

	if (r->problems == 0)
		(void)printf("%s: no problem found\n", ctl_shown(f->path));
	else
		(void)printf("%s: %s problem%s found\n", ctl_shown(f->path),
			     ctl_count(r->problems),
			     r->problems == 1 ? "" : "s");
	(void)printf("  %s files (%s), %s directories, %s images, %s chunks "
		     "(%s)\n",
		     ctl_count(r->files), ctl_bytes(r->logical_bytes),
		     ctl_count(r->directories), ctl_count(r->images),
		     ctl_count(r->chunks), ctl_bytes(r->physical_bytes));
	if (!f->scrub)
		return;
	(void)printf("  %s read and hashed, %s damaged chunk%s",
		     ctl_bytes(r->scrubbed_bytes), ctl_count(r->damaged_chunks),
		     r->damaged_chunks == 1 ? "" : "s");
	if (r->mended_chunks > 0)
		(void)printf(", %s mended", ctl_count(r->mended_chunks));
	(void)putchar('\n');
}

static void print_result_json(struct fsck *f)
{
	const struct check_result *r = &f->result;
	const struct {
		const char *name;
		uint64_t value;
	} numbers[] = {
		{ "problem_count", r->problems },
		{ "note_count", r->notes },
		{ "inodes", r->inodes },
		{ "files", r->files },
		{ "directories", r->directories },
		{ "chunks", r->chunks },
		{ "images", r->images },
		{ "logical_bytes", r->logical_bytes },
		{ "physical_bytes", r->physical_bytes },
		{ "shared_bytes", r->shared_bytes },
		{ "scrubbed_bytes", r->scrubbed_bytes },
		{ "damaged_chunks", r->damaged_chunks },
		{ "mended_chunks", r->mended_chunks },
	};

	ctl_add_text(f->json, "store", f->path);
	ctl_add_text(f->json, "uuid", f->uuid);
	(void)cJSON_AddBoolToObject(f->json, "ok", r->problems == 0);
	(void)cJSON_AddBoolToObject(f->json, "scrub", f->scrub);
	for (size_t n = 0; n < sizeof(numbers) / sizeof(*numbers); n++)
		ctl_add_number(f->json, numbers[n].name, numbers[n].value);
	ctl_print_json(TAKE(f->json));
}

__attribute__((format(printf, 4, 5))) static void
problem(struct fsck *f, const char *code, const char *object,
	const char *format, ...)
{
	struct check_problem p = { .code = code, .object = object };
	SCOPED(scope_free) char *text = NULL;
	va_list ap;
	int rc;

	va_start(ap, format);
	rc = vasprintf(&text, format, ap);
	va_end(ap);
	CHECK(rc >= 0); /* out of memory */
	p.text = text;
	f->result.problems++;
	on_problem(f, &p);
}

/* What is beside the database so that its loss can be seen, or survived. */
static void check_copies(struct fsck *f, int dirfd, int mark)
{
	struct identity id;
	int secret = identity_read(dirfd, &id);

	if (layout_is_old(dirfd))
		return; /* the next mount makes them */
	if (secret == 0 && strcmp(id.uuid, f->uuid) != 0)
		secret = -EIO;
	if (mark < 0)
		problem(f, "mark", LAYOUT_MARK_FILE,
			"%s/" LAYOUT_MARK_FILE ": is %s, so that it is not "
			"known whether the database is whole; the next mount "
			"writes it anew",
			f->path, mark == -ENOENT ? "missing" : "damaged");
	if (secret < 0)
		problem(f, "secret-copy", LAYOUT_SECRET_FILE,
			"%s/" LAYOUT_SECRET_FILE ": is %s; the next mount "
			"writes it anew",
			f->path, secret == -ENOENT ? "missing" : "damaged");
}

/* A part of the store that is not there is a problem like another. */
static void missing(struct fsck *f, const char *part, int rc)
{
	problem(f, "missing", part,
		"%s/%s: cannot be opened: %s; put it back from another copy "
		"of this store",
		f->path, part, strerror(-rc));
}

static int check_open_store(struct fsck *f, int dirfd)
{
	struct check_options options = { .scrub = f->scrub,
					 .mend = f->mend,
					 .problem = on_problem,
					 .progress = on_progress,
					 .self = f };
	SCOPED(stage_table_release) struct stage_table staged = { 0 };
	SCOPED(scope_close)
	int images = openat(dirfd, LAYOUT_IMAGE_DIR,
			    O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	SCOPED(scope_free) char *db = NULL;
	char why[WHY_BYTES];
	struct trust trust;
	struct kv *kv;
	int rc;

	if (images < 0) {
		missing(f, LAYOUT_IMAGE_DIR, -errno);
		return 1;
	}
	rc = trust_database(f->path, dirfd, &trust, why, sizeof(why));
	if (rc < 0) { /* the sentence that a mount says */
		problem(f, "database", LAYOUT_DB_DIR, "%s", why);
		return 1;
	}
	rc = stage_table_read(dirfd, f->uuid, &staged);
	if (rc < 0) {
		missing(f, LAYOUT_STAGE_DIR, rc);
		return 1;
	}
	options.staged = &staged;
	if (asprintf(&db, "%s/" LAYOUT_DB_DIR, f->path) < 0)
		return -ENOMEM;
	rc = kv_open_readonly(db, &kv);
	if (rc < 0) {
		missing(f, LAYOUT_DB_DIR, rc);
		return 1;
	}
	rc = check_store(kv, images, &options, &f->result);
	kv_close(kv);
	if (rc < 0)
		return rc;
	check_copies(f, dirfd, trust.mark);
	return f->result.problems > 0 ? 1 : 0;
}

static int fsck(const char *path, bool scrub, bool mend, bool json)
{
	struct fsck f = { .path = path, .scrub = scrub, .mend = mend };
	SCOPED(scope_close) int dirfd = -1;
	SCOPED(scope_close) int lockfd = -1;
	SCOPED(scope_free) char *real = NULL;
	struct layout_lock_text said;
	char why[WHY_BYTES];
	int rc;

	rc = ctl_refuse_mount(path);
	if (rc != CTL_FINE)
		return rc;
	rc = parents_check(path, &real, why, sizeof(why));
	if (rc < 0) {
		ctl_complain("%s", why);
		return CTL_USAGE;
	}
	f.path = path = real;
	rc = layout_open(path, LAYOUT_CHECK, &dirfd, &lockfd, f.uuid, why,
			 sizeof(why));
	if (rc < 0 && rc != -EUCLEAN) {
		ctl_complain("%s", why);
		return CTL_USAGE;
	}
	if (json) {
		f.json = cJSON_CreateObject();
		f.problems = cJSON_AddArrayToObject(f.json, "problems");
		f.notes = cJSON_AddArrayToObject(f.json, "notes");
	}
	if (rc < 0) { /* a store that lacks a part */
		problem(&f, "missing", path, "%s", why);
		rc = 1;
	} else {
		layout_say_who(lockfd, &said);
		rc = check_open_store(&f, dirfd);
		layout_unsay(lockfd, &said);
	}
	ctl_progress_clear(&f.progress);
	if (rc < 0) {
		ctl_complain("%s: the check could not be finished: %s", path,
			     strerror(-rc));
		cJSON_Delete(f.json);
		return CTL_PROBLEM;
	}
	if (json)
		print_result_json(&f);
	else
		print_result(&f);
	return rc == 0 ? CTL_FINE : CTL_PROBLEM;
}

static int run_fsck(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "scrub", no_argument, NULL, 's' },
		{ "shared", no_argument, NULL, 'd' },
		{ "read-only", no_argument, NULL, 'r' },
		{ 0 },
	};
	struct ctl_options o = { .command = self, .names = names };
	bool scrub = false, shared = false, read_only = false;
	int option;

	while ((option = ctl_option(&o, argc, argv)) >= 0) {
		scrub |= option == 's';
		shared |= option == 'd';
		read_only |= option == 'r';
	}
	if (scrub && shared)
		return ctl_misused("fsck: --scrub is of a store, not of a "
				   "directory that nodes share");
	if (read_only && !scrub)
		return ctl_misused("fsck: --read-only is of --scrub: nothing "
				   "else changes anything");
	if (argc - optind != 1)
		return ctl_misused("fsck: name one %s",
				   shared ? "directory that nodes share"
					  : "store");
	return shared ? ctl_fsck_shared(argv[optind], o.json)
		      : fsck(argv[optind], scrub, !read_only, o.json);
}

static int run_scrub(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "read-only", no_argument, NULL, 'r' },
		{ 0 },
	};
	struct ctl_options o = { .command = self, .names = names };
	bool mend = true;
	int option;

	while ((option = ctl_option(&o, argc, argv)) >= 0)
		mend &= option != 'r';
	if (argc - optind != 1)
		return ctl_misused("scrub: name one store");
	return fsck(argv[optind], true, mend, o.json);
}

const struct ctl_command ctl_fsck = {
	.name = "fsck",
	.arguments = "[--scrub [--read-only]] STORE | --shared DIR",
	.summary = "check a store that is not mounted",
	.help = "Names, links, contents, reference counts, images, counters: "
		"everything in the\nstore must agree. A store that is mounted "
		"is refused with exit code 2.\nNothing is changed, but that "
		"--scrub mends damaged bytes from another copy.\n\n"
		"  --scrub      also read all bytes and compare them with "
		"their hashes; what is\n"
		"               damaged and has another copy "
		"(dedup_copies) is mended\n"
		"  --read-only  do not mend it\n"
		"  --shared     check a directory that nodes share: is "
		"everything pending somebody's?\n",
	.run = run_fsck,
};

const struct ctl_command ctl_scrub = {
	.name = "scrub",
	.arguments = "[--read-only] STORE",
	.summary = "fsck --scrub: read all bytes as well",
	.help = "Reads all bytes of a store that is not mounted and compares "
		"them with their\nhashes. Damaged bytes that have another copy "
		"(dedup_copies) are mended;\nevery file with others is "
		"named.\n\n"
		"  --read-only  mend nothing, only tell\n",
	.run = run_scrub,
};
