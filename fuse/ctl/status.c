/* status.c - ckptctl status: how a mount is doing. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fuse/ctl/ctl.h"
#include "store/base/scope.h"

static void print_line(const char *name, const char *value)
{
	(void)printf("  %-18s%s\n", name, value);
}

/* What waits, for how long; and of what the stage is full. */
static void print_stage(const cJSON *s)
{
	uint64_t files = ctl_number(s, "staged_files");
	char text[128], age[32] = "";

	if (files > 0)
		(void)snprintf(age, sizeof(age), ", unchanged for %.0f s",
			       (double)ctl_number(s, "staged_unchanged_s"));
	(void)snprintf(text, sizeof(text), "%s in %s file%s%s",
		       ctl_bytes(ctl_number(s, "staged_bytes")),
		       ctl_count(files), files == 1 ? "" : "s", age);
	print_line("staged", text);
	(void)snprintf(text, sizeof(text),
		       "%s of %s used; %s allocated ahead, %s clean",
		       ctl_bytes(ctl_number(s, "stage_used_bytes")),
		       ctl_bytes(ctl_number(s, "stage_capacity_bytes")),
		       ctl_bytes(ctl_number(s, "stage_ahead_bytes")),
		       ctl_bytes(ctl_number(s, "stage_clean_bytes")));
	print_line("stage", text);
}

static void print_space(const cJSON *s)
{
	uint64_t logical = ctl_number(s, "logical_bytes");
	uint64_t physical = ctl_number(s, "physical_bytes");
	char text[128];

	print_line("logical", ctl_bytes(logical));
	(void)snprintf(text, sizeof(text), "%s", ctl_bytes(physical));
	if (physical > 0 && logical > physical)
		(void)snprintf(text, sizeof(text), "%s (%.2f times smaller)",
			       ctl_bytes(physical),
			       (double)logical / (double)physical);
	print_line("physical", text);
	print_line("shared", ctl_bytes(ctl_number(s, "shared_bytes")));
	print_stage(s);
	if (ctl_number(s, "segments") == 0)
		return;
	(void)snprintf(text, sizeof(text), "%s of %s clients, %s idle",
		       ctl_bytes(ctl_number(s, "segment_bytes")),
		       ctl_count(ctl_number(s, "segment_clients")),
		       ctl_bytes(ctl_number(s, "segment_idle_bytes")));
	print_line("segments", text);
}

static void print_failed(const cJSON *s)
{
	const cJSON *list = ctl_member(s, "failed_files");
	const cJSON *one;

	cJSON_ArrayForEach(one, list)
		(void)printf("    %s: %s\n", ctl_shown(ctl_text(one, "path")),
			     ctl_text(one, "error"));
}

static void print_opens(const cJSON *s)
{
	static const char *const words[] = { "own", "foreign", "unknown" };
	const cJSON *list = ctl_member(s, "reads");
	const cJSON *one;

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		char name[32], label[32], text[128];
		uint64_t opens = 0, bytes = 0;

		cJSON_ArrayForEach(one, list) {
			(void)snprintf(name, sizeof(name), "%s_opens",
				       words[i]);
			opens += ctl_number(one, name);
			(void)snprintf(name, sizeof(name), "%s_bytes",
				       words[i]);
			bytes += ctl_number(one, name);
		}
		if (opens == 0)
			continue;
		(void)snprintf(label, sizeof(label), "opened %s", words[i]);
		(void)snprintf(text, sizeof(text), "%s (%s)", ctl_count(opens),
			       ctl_bytes(bytes));
		print_line(label, text);
	}
}

/* When, which step and why, the last one first. */
static void print_refusals(const cJSON *list)
{
	const cJSON *one;

	cJSON_ArrayForEach(one, list) {
		time_t at = (time_t)ctl_number(one, "at_s");
		struct tm tm;
		char when[32] = "";

		if (localtime_r(&at, &tm))
			(void)strftime(when, sizeof(when), "%F %T", &tm);
		(void)printf("    refused %s ", when);
		ctl_print_line(ctl_text(one, "path"));
		(void)printf("      ");
		ctl_print_line(ctl_text(one, "why"));
	}
}

/* Nothing, as long as no step was published. */
static void print_structure(const cJSON *s)
{
	static const char *const kinds[] = {
		"refused", "different", "gone", "broken", "missing", "identical"
	};
	const cJSON *one = ctl_member(s, "structure");
	const char *last = ctl_text(one, "last");
	char text[256] = "";
	size_t n;

	if (ctl_number(one, "checked") == 0)
		return;
	n = (size_t)snprintf(text, sizeof(text), "%s checked",
			     ctl_count(ctl_number(one, "checked")));
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (i == 0 || ctl_number(one, kinds[i]) > 0)
			n += (size_t)snprintf(
				text + n, sizeof(text) - n, ", %s %s",
				ctl_count(ctl_number(one, kinds[i])), kinds[i]);
	print_line("steps", text);
	if (*last) {
		(void)printf("    ");
		ctl_print_line(last);
	}
	print_refusals(ctl_member(one, "refusals"));
}

static void print_database(const char *health)
{
	if (strcmp(health, "failing") == 0)
		print_line("database", "CANNOT BE WRITTEN: see the log; it is "
				       "tried again every few seconds");
	else if (strcmp(health, "failed") == 0)
		print_line("database", "CANNOT BE WRITTEN: mend the disk, "
				       "unmount and mount again");
}

static void print_status(const char *path, const cJSON *s)
{
	const cJSON *passthrough = ctl_member(s, "passthrough");
	const char *store = ctl_text(s, "store");
	const char *version = ctl_text(s, "version");

	(void)printf("%s: ckptfs%s%s%s%s\n", ctl_shown(path),
		     *version ? " " : "", version, *store ? ", store " : "",
		     ctl_shown(store));
	print_line("files", ctl_count(ctl_number(s, "files")));
	print_space(s);
	print_line("chunks", ctl_count(ctl_number(s, "chunks")));
	print_line("images", ctl_count(ctl_number(s, "images")));
	print_line("passthrough",
		   cJSON_IsTrue(passthrough)
			   ? "yes"
			   : "no: all bytes go through the daemon");
	print_line("worker restarts",
		   ctl_count(ctl_number(s, "worker_restarts")));
	print_line("draining", ctl_count(ctl_number(s, "draining")));
	print_line("failed", ctl_count(ctl_number(s, "failed")));
	print_failed(s);
	if (ctl_number(s, "unknown_images") > 0)
		print_line("unknown images",
			   ctl_count(ctl_number(s, "unknown_images")));
	print_database(ctl_text(s, "database"));
	print_structure(s);
	print_opens(s);
}

static int status_of(const char *path, bool json)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	cJSON *s = NULL;
	bool failed;
	int rc = fd;

	if (fd >= 0)
		rc = ctl_query(fd, CKPTFS_STATUS, &s);
	if (rc == 0)
		rc = ctl_query_opens(fd, cJSON_AddArrayToObject(s, "reads"));
	if (rc < 0) {
		cJSON_Delete(s);
		return ctl_complain_query(path, rc);
	}
	failed = ctl_number(s, "failed") > 0 ||
		 ctl_number(s, "unknown_images") > 0 ||
		 strncmp(ctl_text(s, "database"), "fail", 4) == 0;
	if (json) {
		ctl_print_json(s);
	} else {
		print_status(path, s);
		cJSON_Delete(s);
	}
	return failed ? CTL_PROBLEM : CTL_FINE;
}

const struct ctl_command ctl_status = {
	.name = "status",
	.arguments = "MOUNTPOINT",
	.summary = "how a mount is doing: space, what is staged, what failed",
	.help = "Exit code 1 when a file could not be made durable, the "
		"database cannot be\nwritten, or there are unknown images.\n"
		"  logical   what all files hold together\n"
		"  physical  what they take up in the store\n"
		"  shared    what was saved because the same bytes were there\n"
		"  staged    what was written and is not durable yet; how "
		"long ago the file that\n"
		"            waits longest was changed last\n"
		"  stage     the memory for that: allocated ahead for files "
		"that are written now,\n"
		"            clean: durable, and kept for readers until it is "
		"wanted\n"
		"  segments  memory that clients of the GPU library keep\n"
		"  draining  files on their way to the disk\n"
		"  failed    files that could not be written; it is tried "
		"again\n"
		"  unknown images\n"
		"            files in the store's 'images' that the database "
		"does not know; they are\n"
		"            kept: ckptctl fsck names them\n"
		"  opened own, foreign, unknown\n"
		"            files that processes with a rank opened to read, "
		"and their sizes then:\n"
		"            written by the same rank, by another one, or by "
		"who knows whom;\n"
		"            --json has them for each rank\n"
		"  steps     those that were looked at when they were "
		"published, and the last ten\n"
		"            that were refused: when, which, and why\n\n",
	.takes = "mount point",
	.run_on = status_of,
};
