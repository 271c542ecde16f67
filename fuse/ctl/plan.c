/*
 * plan.c - ckptctl plan: which rank reads what, of a JSON text or of a
 * checkpoint. Nothing here needs a mount.
 *
 * Results may have a million lines, so they are printed as they are made.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuse/ctl/ctl.h"
#include "fuse/ctl/plan.h"
#include "store/base/scope.h"
#include "store/formats/dcp.h"

#define READ_BYTES (64u << 10)

struct plan_command {
	bool json, list;
	enum ckpt_plan_policy policy;
	uint32_t cap_permille;
	uint32_t rank_count; /* 0: not given */
};

/* --- Printing ----------------------------------------------------------- */

static int problem(const char *where, const char *what)
{
	ctl_complain("%s: %s", where, what);
	return CTL_PROBLEM;
}

/* --- The plan ----------------------------------------------------------- */

static void print_json(const struct plan_input *in, const uint32_t *ranks,
		       const uint64_t *loads)
{
	(void)printf("{\n\t\"assignment\":\t{");
	for (size_t i = 0; i < in->count; i++) {
		ctl_print_string(i > 0 ? ",\n\t\t" : "\n\t\t",
				 plan_input_label(in, i));
		(void)printf(":\t%" PRIu32, ranks[i]);
	}
	(void)printf("%s}", in->count > 0 ? "\n\t" : "");
	ctl_print_numbers(",\n\t\"load\":\t", loads, in->rank_count);
	(void)printf("\n}\n");
}

static int print_table(const struct plan_input *in, const uint32_t *ranks,
		       const uint64_t *loads)
{
	SCOPED(scope_free) uint64_t *own = NULL;
	SCOPED(scope_free) uint64_t *shards = NULL;
	uint64_t all_own = 0, all = 0, most = 0;

	own = calloc(in->rank_count, sizeof(*own));
	shards = calloc(in->rank_count, sizeof(*shards));
	if (!own || !shards)
		return -ENOMEM;
	for (size_t i = 0; i < in->count; i++) {
		shards[ranks[i]]++;
		if (in->shards[i].source == ranks[i])
			own[ranks[i]] += in->shards[i].bytes;
	}
	(void)printf("%8s %12s %11s %11s %11s\n", "rank", "shards", "bytes",
		     "own file", "others'");
	for (uint32_t r = 0; r < in->rank_count; r++) {
		(void)printf("%8" PRIu32 " %12s %11s %11s %11s\n", r,
			     ctl_count(shards[r]), ctl_bytes(loads[r]),
			     ctl_bytes(own[r]), ctl_bytes(loads[r] - own[r]));
		all += loads[r];
		all_own += own[r];
		most = loads[r] > most ? loads[r] : most;
	}
	(void)printf("%8s %12s %11s %11s %11s\n", "all", ctl_count(in->count),
		     ctl_bytes(all), ctl_bytes(all_own),
		     ctl_bytes(all - all_own));
	if (all > 0)
		(void)printf("\nThe most that one rank reads is %.2f of the "
			     "mean.\n",
			     (double)most * in->rank_count / (double)all);
	return 0;
}

static int plan(const struct plan_command *c, const char *where,
		const struct plan_input *in)
{
	const struct ckpt_plan_options o = { in->rank_count, c->policy,
					     c->cap_permille };
	SCOPED(scope_free) uint32_t *ranks = NULL;
	SCOPED(scope_free) uint64_t *loads = NULL;
	struct ckpt_plan_fault fault = { SIZE_MAX, "" };
	char what[512];
	int rc;

	ranks = calloc(in->count + 1, sizeof(*ranks));
	loads = calloc((size_t)in->rank_count + 1, sizeof(*loads));
	if (!ranks || !loads)
		return problem(where, strerror(ENOMEM));
	rc = ckpt_plan_reads(in->shards, in->count, &o, ranks, loads, &fault);
	if (rc == -ENOMEM)
		return problem(where, strerror(ENOMEM));
	if (rc < 0) {
		if (fault.shard == SIZE_MAX)
			(void)snprintf(what, sizeof(what), "%s", fault.what);
		else
			(void)snprintf(what, sizeof(what),
				       "shards[%zu] '%.200s': %s", fault.shard,
				       plan_input_label(in, fault.shard),
				       fault.what);
		return problem(where, what);
	}
	if (c->json)
		print_json(in, ranks, loads);
	else if (print_table(in, ranks, loads) < 0)
		return problem(where, strerror(ENOMEM));
	return CTL_FINE;
}

/* --- A JSON text -------------------------------------------------------- */

static int read_all(int fd, struct bytes *b)
{
	char part[READ_BYTES];
	ssize_t n;

	while ((n = read(fd, part, sizeof(part))) > 0 && !b->failed)
		bytes_put(b, part, (size_t)n);
	if (n < 0)
		return -errno;
	bytes_put_u8(b, 0);
	return b->failed ? -ENOMEM : 0;
}

static int plan_text(const struct plan_command *c, const char *where, int fd)
{
	struct plan_input in = { 0 };
	struct bytes text = { 0 };
	int rc = read_all(fd, &text), code;

	if (rc == 0)
		rc = plan_input_json(&in, (const char *)text.data,
				     text.len - 1);
	bytes_release(&text);
	if (rc == 0)
		code = plan(c, where, &in);
	else
		code = problem(where,
			       rc == -EBADMSG ? in.error : strerror(-rc));
	plan_input_release(&in);
	return code;
}

/* --- A checkpoint ------------------------------------------------------- */

/* A plan that sends ranks to a file that is not there is a problem. */
static int files_look(const char *path, int dirfd, const struct dcp *d)
{
	struct stat st;
	uint32_t gone = 0;

	for (uint32_t i = 0; i < d->file_count; i++) {
		if (fstatat(dirfd, d->files[i].name, &st, 0) == 0)
			continue;
		if (gone++ == 0)
			ctl_complain("%s: %s, which .metadata names: %s", path,
				     d->files[i].name, strerror(errno));
	}
	if (gone > 1)
		ctl_complain("%s: %" PRIu32 " files are missing (see --list)",
			     path, gone);
	return gone > 0 ? CTL_PROBLEM : CTL_FINE;
}

static int plan_folder(const struct plan_command *c, const char *path,
		       int dirfd)
{
	struct plan_input in = { 0 };
	struct dcp_error error;
	char what[512];
	struct dcp d;
	bool holds;
	int rc = dcp_read_file(dirfd, DCP_METADATA_NAME, &d, &error), code;

	if (rc < 0) {
		(void)snprintf(what, sizeof(what), "%s: %s", DCP_METADATA_NAME,
			       error.what[0] ? error.what : strerror(-rc));
		return problem(path, what);
	}
	if (c->list) {
		rc = plan_list(dirfd, &d, c->json, &holds);
		code = rc < 0  ? problem(path, strerror(-rc))
		       : holds ? CTL_FINE
			       : CTL_PROBLEM;
	} else {
		rc = plan_input_dcp(&in, &d, c->rank_count, c->policy);
		code = rc < 0 ? problem(path, strerror(-rc))
			      : plan(c, path, &in);
		plan_input_release(&in);
		if (code == CTL_FINE)
			code = files_look(path, dirfd, &d);
	}
	dcp_release(&d);
	return code;
}

/* --- The command -------------------------------------------------------- */

/* "1.25" is 1250; at most three digits count. */
static bool cap_of(const char *text, uint32_t *ret)
{
	char *end;
	double v;

	errno = 0;
	v = strtod(text, &end);
	if (end == text || *end || !(v >= 1) || v > 1e6)
		return false;
	*ret = (uint32_t)(v * 1000 + 0.5);
	return true;
}

static bool ranks_of(const char *text, uint32_t *ret)
{
	unsigned long v;
	char *end;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno != 0 || v == 0 ||
	    v > CKPT_PLAN_RANKS_MAX)
		return false;
	*ret = (uint32_t)v;
	return true;
}

static int take_option(struct plan_command *c, int option)
{
	switch (option) {
	case 'p':
		if (!ckpt_plan_policy_of(optarg, &c->policy))
			return ctl_misused("plan: '%s' is none of per_shard, "
					   "pr3392, greedy",
					   optarg);
		break;
	case 'c':
		if (!cap_of(optarg, &c->cap_permille))
			return ctl_misused("plan: the cap '%s' is no number "
					   "from 1 on",
					   optarg);
		break;
	case 'n':
		if (!ranks_of(optarg, &c->rank_count))
			return ctl_misused("plan: '%s' is no number of ranks "
					   "from 1 to %u",
					   optarg, CKPT_PLAN_RANKS_MAX);
		break;
	case 'l':
		c->list = true;
		break;
	default:
		break;
	}
	return CTL_FINE;
}

static int plan_path(const struct plan_command *c, const char *path)
{
	SCOPED(scope_close) int fd = -1;
	struct stat st;

	if (strcmp(path, "-") == 0) {
		if (c->list || c->rank_count > 0)
			return ctl_misused("plan: --ranks and --list are for a "
					   "checkpoint's folder");
		return plan_text(c, "standard input", STDIN_FILENO);
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0)
		return ctl_complain_query(path, -errno);
	if (!S_ISDIR(st.st_mode)) {
		if (c->list || c->rank_count > 0)
			return ctl_misused("plan: %s is no folder", path);
		return plan_text(c, path, fd);
	}
	if (!c->list && c->rank_count == 0)
		return ctl_misused("plan: how many ranks? give --ranks N");
	return plan_folder(c, path, fd);
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "policy", required_argument, NULL, 'p' },
		{ "cap", required_argument, NULL, 'c' },
		{ "ranks", required_argument, NULL, 'n' },
		{ "list", no_argument, NULL, 'l' },
		{ 0 },
	};
	struct ctl_options o = { .command = self,
				 .letters = "p:c:n:l",
				 .names = names };
	struct plan_command c = { 0 };
	int option, code;

	while ((option = ctl_option(&o, argc, argv)) >= 0) {
		code = take_option(&c, option);
		if (code != CTL_FINE)
			return code;
	}
	if (argc - optind != 1)
		return ctl_misused("plan: name one folder or file, or -");
	c.json = o.json;
	return plan_path(&c, argv[optind]);
}

const struct ctl_command ctl_plan = {
	.name = "plan",
	.arguments = "[OPTION...] DIR|FILE|-",
	.summary = "which rank reads what, so that each reads its own file",
	.help = "DIR is a checkpoint of torch.distributed.checkpoint: every "
		"rank may read\nevery piece, and a piece's source is the rank "
		"that its file's name says. A\nfile that is not there is a "
		"problem, but the plan is made. FILE, or standard\ninput, is "
		"JSON:\n\n"
		"  {\"num_ranks\": 2, \"shards\": [{\"id\": \"w\", \"bytes\": "
		"8, \"ranks\": [0, 1],\n   \"source\": 0, \"cross\": false}]}\n\n"
		"ranks null are all ranks, source null is none. With --json "
		"the answer is\n\n"
		"  {\"assignment\": {\"w\": 0}, \"load\": [8, 0]}\n\n"
		"  -p POLICY  per_shard: what is in a rank's own file goes "
		"there (default);\n"
		"             pr3392: all of one file together; greedy: by "
		"load (--policy)\n"
		"  -c CAP     no rank gets more than CAP times the mean, if "
		"others may read it:\n"
		"             largest first to the least loaded (--cap)\n"
		"  -n N       how many ranks read DIR (--ranks)\n"
		"  -l         print what DIR holds, and whether its files "
		"match (--list)\n",
	.run = run,
};
