/* rebuild.c - ckptctl rebuild: a new database for a store that lost its own. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fuse/ctl/ctl.h"
#include "store/check/rebuild.h"

#define WHY_BYTES 8192

struct listing {
	cJSON *json; /* NULL: for people */
	cJSON *list[REBUILD_ASIDE + 1]; /* in json */
};

static const char *const words[] = { "note", "recovered", "lost", "staged",
				     "aside" };

static void on_say(void *self, enum rebuild_kind kind, const char *object,
		   const char *text)
{
	struct listing *l = self;
	cJSON *one;

	if (!l->json) {
		(void)printf("%-10s%s: ", words[kind], ctl_shown(object));
		ctl_print_line(text);
		return;
	}
	one = cJSON_CreateObject();
	ctl_add_text(one, "object", object);
	ctl_add_text(one, "text", text);
	(void)cJSON_AddItemToArray(l->list[kind], one);
}

static void date_of(int64_t ns, char ret[32])
{
	time_t s = (time_t)(ns / 1000000000);
	struct tm tm;

	ret[0] = 0;
	if (gmtime_r(&s, &tm))
		(void)strftime(ret, 32, "%Y-%m-%d %H:%M:%S UTC", &tm);
}

static void print_result(const char *path, const struct rebuild_result *r)
{
	char date[32];

	date_of(r->base_ns, date);
	(void)printf("%s: rebuilt from ", ctl_shown(path));
	switch (r->base) {
	case REBUILD_WHOLE:
		(void)printf("its old database, which lacked nothing\n");
		break;
	case REBUILD_PART:
		(void)printf("its old database as far as that goes, and "
			     "labels\n");
		break;
	case REBUILD_BACKUP:
		(void)printf("the backup of %s, and labels\n", date);
		break;
	case REBUILD_NOTHING:
		(void)printf("labels alone: there is no backup\n");
		break;
	}
	if (r->base != REBUILD_WHOLE)
		(void)printf("  what was changed after that and is in no "
			     "label is lost: small files (up to 32 KiB),\n  "
			     "files that share all of their bytes, names, "
			     "links, owners and attributes\n");
	(void)printf("  %s files; %s recovered from labels, %s lost, %s "
		     "images put aside\n",
		     ctl_count(r->files), ctl_count(r->recovered),
		     ctl_count(r->lost), ctl_count(r->aside));
	if (*r->kept_as)
		(void)printf("  the old database is kept as %s/%s\n",
			     ctl_shown(path), r->kept_as);
}

static void print_result_json(struct listing *l, const char *path,
			      const struct rebuild_result *r)
{
	static const char *const bases[] = { "whole", "part", "backup",
					     "nothing" };

	ctl_add_text(l->json, "store", path);
	ctl_add_text(l->json, "base", bases[r->base]);
	ctl_add_number(l->json, "base_s", (uint64_t)r->base_ns / 1000000000);
	ctl_add_number(l->json, "files", r->files);
	ctl_add_text(l->json, "kept_as", r->kept_as);
	ctl_print_json(l->json);
}

static int rebuild(const char *path, bool json)
{
	struct listing l = { 0 };
	const struct rebuild_options options = { .say = on_say, .self = &l };
	struct rebuild_result result;
	char why[WHY_BYTES] = "";
	int rc = ctl_refuse_mount(path);

	if (rc != CTL_FINE)
		return rc;
	if (json) {
		l.json = cJSON_CreateObject();
		for (size_t i = 0; i <= REBUILD_ASIDE; i++)
			l.list[i] = cJSON_AddArrayToObject(l.json, words[i]);
	}
	rc = rebuild_store(path, &options, &result, why, sizeof(why));
	if (rc < 0) {
		cJSON_Delete(l.json);
		ctl_complain("%s", why);
		return rc == -EINVAL || rc == -ENOENT || rc == -ENOTDIR ||
				       rc == -EBUSY
			       ? CTL_USAGE
			       : CTL_PROBLEM;
	}
	if (json)
		print_result_json(&l, path, &result);
	else
		print_result(path, &result);
	return rc == 0 ? CTL_FINE : CTL_PROBLEM;
}

const struct ctl_command ctl_rebuild = {
	.name = "rebuild",
	.arguments = "STORE",
	.summary = "a new database for a store that lost its own",
	.help = "For a store that does not mount because its database is lost "
		"or damaged. The new\none is put together from the old one as "
		"far as it goes, or the last backup, and\nfrom what images say "
		"about themselves; all bytes that are not known to be right\n"
		"are read. Nothing is deleted: the old database is kept as "
		"db.damaged-N, and an\nimage of which no file can be made is "
		"moved to STORE/lost. Exit code 1 when\nsomething is lost, or "
		"may be; it is listed:\n"
		"  recovered  a file that only its image's label knew\n"
		"  lost       a file, or a version of it, that cannot be had\n"
		"  aside      an image of which no file can be made\n"
		"And, without a loss:\n"
		"  staged     a file that was not durable when its daemon "
		"ended; the next mount makes\n"
		"             it so\n\n",
	.takes = "store",
	.run_on = rebuild,
};
