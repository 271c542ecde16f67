/*
 * status.c - ckptctl status: how a mount is doing.
 *
 * It ends in time also when the daemon does not answer, stopped or waiting for
 * a disk. The kernel lets nobody go who waits for an answer to what the daemon
 * has read, not even killed; so a child asks, and is left behind.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fuse/ctl/ctl.h"
#include "store/base/bytes.h"
#include "store/base/scope.h"
#include "store/base/sync.h"

#define TIMEOUT_S 2
#define TIMEOUT_S_MAX 86400
/* A call to the shared directory that takes longer is one that hangs. */
#define SILENT_S 10

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
	if (ctl_number(s, "stage_files_refused") == 0)
		return;
	(void)snprintf(text, sizeof(text),
		       "%s times, last to user %s: he had his share",
		       ctl_count(ctl_number(s, "stage_files_refused")),
		       ctl_count(ctl_number(s, "stage_files_refused_uid")));
	print_line("refused files", text);
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

/* "run/latest, for 12 s: run/step_2/a.pt of node b, which is not there". */
static void print_wait(const cJSON *w)
{
	const char *is = ctl_text(w, "node_is"), *node = ctl_text(w, "node");
	const char *file = ctl_text(w, "file");

	(void)printf("  %-18s%s, for %s s: ", "  waits",
		     ctl_shown(ctl_text(w, "path")),
		     ctl_count(ctl_number(w, "for_s")));
	(void)printf("%s",
		     *file ? ctl_shown(file) : "what is to replace a file");
	if (strcmp(is, "lost") == 0)
		(void)printf(" IS LOST with node %s: remove it, or write it "
			     "again",
			     node);
	else if (strcmp(node, "?") == 0)
		(void)printf(" is of no node: see ckptctl fsck --shared");
	else if (*node)
		(void)printf(" of node %s%s", node,
			     strcmp(is, "away") == 0 ? ", WHICH IS NOT THERE"
						     : "");
	(void)printf("\n");
}

/* Nothing, of a mount without a shared directory. */
static void print_shared(const cJSON *s)
{
	const cJSON *d = ctl_member(s, "shared_directory");
	uint64_t pending = ctl_number(d, "pending");
	uint64_t silent_s = ctl_number(d, "silent_s");
	const cJSON *wait;
	char text[512];

	if (!d)
		return;
	(void)printf("  %-18s%s, as node %s\n", "shared directory",
		     ctl_shown(ctl_text(d, "dir")), ctl_text(d, "node"));
	(void)snprintf(text, sizeof(text), "%s file%s", ctl_count(pending),
		       pending == 1 ? "" : "s");
	if (pending > 0)
		(void)snprintf(text, sizeof(text),
			       "%s file%s, %s, for %s s at most",
			       ctl_count(pending), pending == 1 ? "" : "s",
			       ctl_bytes(ctl_number(d, "pending_bytes")),
			       ctl_count(ctl_number(d, "oldest_pending_s")));
	print_line("  pending here", text);
	(void)snprintf(text, sizeof(text), "%s files, %s",
		       ctl_count(ctl_number(d, "uploaded")),
		       ctl_bytes(ctl_number(d, "uploaded_bytes")));
	print_line("  uploaded", text);
	(void)snprintf(text, sizeof(text), "%s files",
		       ctl_count(ctl_number(d, "kept")));
	print_line("  kept here", text);
	cJSON_ArrayForEach(wait, ctl_member(d, "waits"))
		print_wait(wait);
	if (silent_s >= SILENT_S) {
		(void)snprintf(text, sizeof(text),
			       "DOES NOT ANSWER, since %s s",
			       ctl_count(silent_s));
		print_line("  it", text);
	}
	if (ctl_number(d, "failing") > 0) {
		(void)snprintf(text, sizeof(text),
			       "%s files cannot be written there: %s; it is "
			       "tried again",
			       ctl_count(ctl_number(d, "failing")),
			       ctl_text(d, "error"));
		print_line("  FAILING", text);
	}
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
	print_shared(s);
	print_structure(s);
	print_opens(s);
}

static int ask(const char *path, cJSON **ret)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	cJSON *s = NULL;
	int rc = fd;

	if (fd >= 0)
		rc = ctl_query(fd, CKPTFS_STATUS, &s);
	if (rc == 0)
		rc = ctl_query_opens(fd, cJSON_AddArrayToObject(s, "reads"));
	if (rc < 0)
		cJSON_Delete(s);
	else
		*ret = s;
	return rc < 0 ? rc : 0;
}

/* The child: the result and the answer into the pipe, nothing anywhere else. */
static void ask_for_parent(const char *path, int to)
{
	SCOPED(scope_free) char *text = NULL;
	cJSON *s = NULL;
	FILE *out = fdopen(to, "w");
	int rc;

	/* Who reads our parent's output does not wait for us. */
	(void)close(STDIN_FILENO);
	(void)close(STDOUT_FILENO);
	(void)close(STDERR_FILENO);
	rc = ask(path, &s);
	if (rc == 0)
		text = cJSON_PrintUnformatted(s);
	if (!out || (rc == 0 && !text))
		_exit(1);
	(void)fwrite(&rc, sizeof(rc), 1, out);
	if (text)
		(void)fputs(text, out);
	_exit(fclose(out) == 0 ? 0 : 1);
}

/* All that comes until its other end is closed. -ETIME: not before then. */
static int read_until(int fd, int64_t deadline_ns, struct bytes *ret)
{
	char piece[4096];
	ssize_t n;

	do {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int64_t left_ns = deadline_ns - mono_ns();

		if (left_ns <= 0 ||
		    poll(&p, 1, (int)(left_ns / 1000000) + 1) == 0)
			return -ETIME;
		n = read(fd, piece, sizeof(piece));
		if (n > 0)
			bytes_put(ret, piece, (size_t)n);
	} while (n > 0);
	return n < 0 ? -errno : ret->failed ? -ENOMEM : 0;
}

/* As ask(). -ETIME: there was no answer for so long. */
static int ask_within(const char *path, unsigned timeout_s, cJSON **ret)
{
	SCOPED(bytes_release) struct bytes answer = { 0 };
	int64_t deadline_ns = mono_ns() + timeout_s * INT64_C(1000000000);
	int ends[2], said, rc;
	pid_t pid;

	if (pipe(ends) < 0)
		return -errno;
	pid = fork();
	if (pid < 0)
		rc = -errno;
	if (pid == 0) {
		(void)close(ends[0]);
		ask_for_parent(path, ends[1]);
	}
	(void)close(ends[1]);
	if (pid > 0)
		rc = read_until(ends[0], deadline_ns, &answer);
	(void)close(ends[0]);
	if (pid > 0 && rc < 0)
		(void)kill(pid, SIGKILL); /* it need not heed that */
	else if (pid > 0)
		(void)waitpid(pid, NULL, 0);
	if (rc < 0)
		return rc;
	if (answer.len < sizeof(said))
		return -EPROTO;
	memcpy(&said, answer.data, sizeof(said));
	if (said < 0)
		return said;
	*ret = cJSON_ParseWithLength((const char *)answer.data + sizeof(said),
				     answer.len - sizeof(said));
	return *ret ? 0 : -EPROTO;
}

static int status_of(const char *path, bool json, unsigned timeout_s)
{
	cJSON *s = NULL;
	bool failed;
	int rc = ask_within(path, timeout_s, &s);

	if (rc == -ETIME) {
		ctl_complain("%s: no answer for %u s; its ckptfs is stopped, "
			     "or waits for its disk",
			     path, timeout_s);
		return CTL_SILENT;
	}
	if (rc < 0)
		return ctl_complain_query(path, rc);
	failed = ctl_number(s, "failed") > 0 ||
		 ctl_number(s, "unknown_images") > 0 ||
		 ctl_number(ctl_member(s, "shared_directory"), "failing") > 0 ||
		 strncmp(ctl_text(s, "database"), "fail", 4) == 0;
	if (json) {
		ctl_print_json(s);
	} else {
		print_status(path, s);
		cJSON_Delete(s);
	}
	return failed ? CTL_PROBLEM : CTL_FINE;
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "timeout", required_argument, NULL, 't' },
		{ NULL, 0, NULL, 0 },
	};
	struct ctl_options o = { .command = self, .names = names };
	unsigned long timeout_s = TIMEOUT_S;

	while (ctl_option(&o, argc, argv) == 't') {
		char *end;

		timeout_s = strtoul(optarg, &end, 10);
		if (*end != 0 || timeout_s == 0 || timeout_s > TIMEOUT_S_MAX)
			return ctl_misused("status: --timeout is 1 to %d "
					   "seconds, not '%s'",
					   TIMEOUT_S_MAX, optarg);
	}
	if (argc - optind != 1)
		return ctl_misused("status: name one mount point");
	return status_of(argv[optind], o.json, (unsigned)timeout_s);
}

const struct ctl_command ctl_status = {
	.name = "status",
	.arguments = "[--timeout S] MOUNTPOINT",
	.summary = "how a mount is doing: space, what is staged, what failed",
	.help = "Exit code 1 when a file could not be made durable, the "
		"database cannot be\nwritten, or there are unknown images; 3 when the mount "
		"did not answer in time.\n"
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
		"  refused files\n"
		"            a user who had as many open, or not durable yet, as "
		"were left for others\n"
		"            got no more (EDQUOT)\n"
		"  segments  memory that clients of the GPU library keep\n"
		"  draining  files on their way to the disk\n"
		"  failed    files that could not be written; it is tried "
		"again\n"
		"  unknown images\n"
		"            files in the store's 'images' that the database "
		"does not know; they are\n"
		"            kept: ckptctl fsck names them\n"
		"  shared directory\n"
		"            where names lie, with shared=DIR, and what this node is called there;\n"
		"            pending here: what is not there yet, kept here: files of it that are\n"
		"            read from this node; exit code 1 when one cannot be written there\n"
		"  opened own, foreign, unknown\n"
		"            files that processes with a rank opened to read, "
		"and their sizes then:\n"
		"            written by the same rank, by another one, or by "
		"who knows whom;\n"
		"            --json has them for each rank\n"
		"  steps     those that were looked at when they were "
		"published, and the last ten\n"
		"            that were refused: when, which, and why\n\n"
		"  --timeout S\n"
		"           give up when there was no answer for so many "
		"seconds (2)\n",
	.run = run,
};
