/*
 * options.c - see options.h. A word that an option takes is a row of the table
 * of its own, so that one that nobody knows is what no row matches.
 */
#include "fuse/options.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/db/records.h"
#include "store/shared/home_text.h"
#include "store/shared/shared.h"

static const struct options options_default = {
	.publish = PUBLISH_STEP,
	.structure = GUARD_WARN,
	.verify = VERIFY_ON,
	.passthrough = true,
	.all = STORE_OPTIONS_DEFAULT,
	.pending_wait_s = SHARED_PENDING_WAIT_S,
	.local_keep_bytes = SHARED_KEEP_ALL,
};

#define OPT(text, member, value)                              \
	{                                                     \
		text, offsetof(struct options, member), value \
	}
static const struct fuse_opt option_table[] = {
	OPT("-f", foreground, 1),
	OPT("-d", debug, 1),
	OPT("debug", debug, 1),
	OPT("-h", help, 1),
	OPT("--help", help, 1),
	OPT("-V", version, 1),
	OPT("--version", version, 1),
	OPT("debug_hold_drain", hold_drain, 1),
	OPT("debug_no_stage_cache", no_stage_cache, 1),
	OPT("debug_release_wait=%u", release_wait_s, 0),
	OPT("debug_stage=auto", stage_all_in_memory, false),
	OPT("debug_stage=memory", stage_all_in_memory, true),
	OPT("allow_other", allow_other, 1),
	OPT("stage=%s", stage, 0),
	OPT("stage_size=%s", stage_size, 0),
	OPT("segments=%s", segments, 0),
	OPT("create=yes", no_create, false),
	OPT("create=no", no_create, true),
	OPT("durable=async", durable_close, false),
	OPT("durable=close", durable_close, true),
	OPT("publish=step", publish, PUBLISH_STEP),
	OPT("publish=wait", publish, PUBLISH_WAIT),
	OPT("publish=async", publish, PUBLISH_ASYNC),
	OPT("structure=off", structure, GUARD_OFF),
	OPT("structure=warn", structure, GUARD_WARN),
	OPT("structure=refuse", structure, GUARD_REFUSE),
	OPT("share=user", share_all, false),
	OPT("share=all", share_all, true),
	OPT("verify=off", verify, VERIFY_OFF),
	OPT("verify=on", verify, VERIFY_ON),
	OPT("verify=open", verify, VERIFY_OPEN),
	OPT("passthrough=off", passthrough, false),
	OPT("passthrough=auto", passthrough, true),
	OPT("dedup_min_saving=%s", saving, 0),
	OPT("dedup_copies=%s", copies, 0),
	OPT("empty_in_place=%s", empty_in_place, 0),
	OPT("drain_threads=%s", threads, 0),
	OPT("drain_interval=%s", interval, 0),
	OPT("backup_interval=%s", backup, 0),
	OPT("shared=%s", shared, 0),
	OPT("node=%s", node, 0),
	OPT("pending_wait=%s", pending_wait, 0),
	OPT("names_timeout=%s", names_timeout, 0),
	OPT("rejoin", rejoin, true),
	OPT("direct=%s", direct, 0),
	OPT("local_keep=%s", local_keep, 0),
	FUSE_OPT_END
};

/* Options of words that come with none of theirs: what to give instead. */
static const struct {
	const char *option, *give;
} wrong_words[] = {
	{ "create=", "yes or no" },
	{ "durable=", "async or close" },
	{ "publish=", "step, wait or async" },
	{ "verify=", "on, open or off" },
	{ "share=", "user or all" },
	{ "passthrough=", "auto or off" },
	{ "structure=", "warn, refuse or off" },
	{ "debug_stage=", "auto or memory" },
};

static const char usage_line[] =
	"usage: ckptfs [-f] [-o option,...] STORE MOUNTPOINT\n";
static const char help_text[] =
	"\n"
	"Mount the checkpoint store in the directory STORE on MOUNTPOINT. An empty\n"
	"directory becomes a new store, but not with create=no. Unmount with umount or\n"
	"fusermount3 -u; the process ends when everything is durable. \"ckptctl status\n"
	"MOUNTPOINT\" tells how a mount is doing.\n"
	"\n"
	"  -f                   stay in the foreground\n"
	"  -d                   the same, and show every request\n"
	"  -h, --help           this text\n"
	"  -V, --version        the version\n"
	"\n"
	"options (-o):\n"
	"  create=yes|no        an empty STORE becomes a new store; or it is refused, as\n"
	"                       that of a disk that is not mounted would be (yes)\n"
	"  stage=DIR            stage in DIR (default: an own tmpfs, STORE/stage)\n"
	"  stage_size=SIZE      size of that tmpfs, e.g. 64G (half of the memory)\n"
	"  segments=SIZE|off    how much of it a user of the GPU library may keep\n"
	"                       (all of it)\n"
	"  durable=async|close  close returns at once, or when durable (async)\n"
	"  publish=step|wait|async\n"
	"                       which renames wait until all under the name is\n"
	"                       durable: those of a step, of what makes one whole and\n"
	"                       of what was fsynced; all; none. link waits but with\n"
	"                       async (step)\n"
	"  structure=warn|refuse|off\n"
	"                       when a step is published: log how its tensors differ\n"
	"                       from the step before, or that it is broken; or let\n"
	"                       the call fail with EUCLEAN (warn)\n"
	"  share=user|all       bytes are stored once for each owner of files, or once\n"
	"                       for all; then who takes up less space than he wrote\n"
	"                       learns that another user's file has those bytes (user)\n"
	"  verify=on|open|off   on: compare bytes before sharing them; open: and\n"
	"                       check a file's hashes at its first open, and mend\n"
	"                       what has another copy; off: share by the 128-bit\n"
	"                       keyed hash alone (on)\n"
	"  dedup_min_saving=P   share parts of a file only if that saves P percent\n"
	"                       of it; a file that shares parts is read through the\n"
	"                       daemon (3)\n"
	"  dedup_copies=N       so many files with the same bytes each store them, 1 to\n"
	"                       4; further ones share with those (1)\n"
	"  empty_in_place=SIZE  up to this size a file that is opened with O_TRUNC\n"
	"                       while it is read is emptied under its readers, as\n"
	"                       a log must be; those of a larger one keep what they\n"
	"                       opened, and the name gets another inode (64M)\n"
	"  drain_threads=N      workers that hash and write (one for each\n"
	"                       processor, 2 to 8)\n"
	"  drain_interval=S     seconds after which a file that stays open and grows\n"
	"                       is made durable as it stands, 0: never (30)\n"
	"  backup_interval=S    seconds from one backup of the database, after a\n"
	"                       rename, to the next, 0: none is made (600)\n"
	"  shared=DIR           names lie in DIR, on the cluster file system that all\n"
	"                       nodes have, and what is closed is copied there; see\n"
	"                       ckptctl init --shared\n"
	"  node=NAME            what this node is called there (the host's name)\n"
	"  pending_wait=S       seconds that an open waits for a file that is not yet\n"
	"                       in DIR, but on another node (60)\n"
	"  names_timeout=S      seconds for which the kernel may go on with names and\n"
	"                       attributes of DIR that other nodes have changed (0)\n"
	"  rejoin               a node that was forgotten there (ckptctl forget-node)\n"
	"                       joins again, with what is pending of it yet\n"
	"  direct=GLOB          files of such names, or paths where it has a slash, are\n"
	"                       written in DIR itself; several between colons\n"
	"  local_keep=SIZE      of what is in DIR no more is kept here; by default as\n"
	"                       much as leaves a tenth of the store's disk free\n"
	"  passthrough=auto|off let the kernel move the bytes where it can (auto)\n"
	"  allow_other          let other users in (default for root)\n"
	"  and those of mount(8): ro, noexec, nosuid, ...\n"
	"\n"
	"exit code: 0 fine; 1 could not mount, or something could not be made\n"
	"durable; 2 wrong usage\n";

void options_help(void)
{
	printf("%s%s", usage_line, help_text);
}

void options_usage(void)
{
	fprintf(stderr, "%ssee ckptfs --help\n", usage_line);
}

/* With less the table of stages and a huge page for a few files fill it. */
#define STAGE_SIZE_MIN (UINT64_C(64) << 20)

/* False, for who goes on to say so. */
static bool wrong(const char *option, const char *value, const char *give)
{
	fprintf(stderr, "ckptfs: %s=%s: give %s\n", option, value, give);
	return false;
}

/* Options of fstab that mount(8) hands on, and that mean nothing to us. */
static bool is_for_mount8(const char *arg)
{
	static const char *const words[] = {
		"auto",        "noauto",   "user",       "nouser",
		"users",       "owner",    "group",      "defaults",
		"nofail",      "_netdev",  "relatime",   "norelatime",
		"strictatime", "lazytime", "nolazytime", "nodiratime",
	};

	if (strncmp(arg, "x-", 2) == 0 || strncmp(arg, "comment=", 8) == 0)
		return true;
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (strcmp(arg, words[i]) == 0)
			return true;
	return false;
}

static bool is_wrong_word(const char *arg)
{
	for (size_t i = 0; i < sizeof(wrong_words) / sizeof(*wrong_words); i++)
		if (strncmp(arg, wrong_words[i].option,
			    strlen(wrong_words[i].option)) == 0) {
			fprintf(stderr, "ckptfs: %s: give %s\n", arg,
				wrong_words[i].give);
			return true;
		}
	return false;
}

/* What is not in the table. */
static int on_option(void *data, const char *arg, int key,
		     struct fuse_args *out)
{
	struct options *o = data;

	(void)out;
	if (strcmp(arg, "ro") == 0)
		o->read_only = 1; /* and libfuse is told */
	if (key != FUSE_OPT_KEY_NONOPT && is_wrong_word(arg))
		return -1;
	if (key != FUSE_OPT_KEY_NONOPT) /* else libfuse knows it, or says not */
		return is_for_mount8(arg) ? 0 : 1;
	if (o->bare++ == 0)
		o->store = strdup(arg);
	else if (o->bare == 2)
		o->mountpoint = strdup(arg);
	return 0;
}

/* "64G" in bytes; false: not a size. */
static bool parse_size(const char *text, uint64_t *ret)
{
	static const char units[] = "kmgt";
	unsigned shift = 0;
	const char *unit;
	char *end;
	uint64_t v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (end == text || errno != 0 || *text == '-')
		return false;
	unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
	if (unit) {
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
	}
	if (*end != 0 || v == 0 || v > (UINT64_MAX >> 1) >> shift)
		return false;
	*ret = v << shift;
	return true;
}

static bool parse_number(const char *text, unsigned max, unsigned *ret)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (end == text || *end != 0 || errno != 0 || v > max || *text == '-')
		return false;
	*ret = (unsigned)v;
	return true;
}

/* What cannot be had of a shared directory; the rest is set aside. */
static bool set_shared(struct options *o)
{
	if (o->node && !shared_node_is_name(o->node))
		return wrong("node", o->node,
			     "up to 63 letters, digits, '.', '_' and '-'");
	return true;
}

/* False: a value is wrong, which was said. */
static bool set_all(struct options *o)
{
	struct store_options *s = &o->all;

	if (o->stage_size && !parse_size(o->stage_size, &s->stage_bytes))
		return wrong("stage_size", o->stage_size, "a size such as 64G");
	if (o->stage_size && s->stage_bytes < STAGE_SIZE_MIN)
		return wrong("stage_size", o->stage_size,
			     "64M or more, with its unit, such as 64G");
	if (o->saving &&
	    !parse_number(o->saving, 100, &s->dedup_min_saving_percent))
		return wrong("dedup_min_saving", o->saving,
			     "0 to 100 (percent)");
	if (o->copies &&
	    (!parse_number(o->copies, CHUNK_COPIES_MAX, &s->dedup_copies) ||
	     s->dedup_copies == 0))
		return wrong("dedup_copies", o->copies, "1 to 4");
	if (o->threads && (!parse_number(o->threads, 8, &s->drain_threads) ||
			   s->drain_threads == 0))
		return wrong("drain_threads", o->threads, "1 to 8");
	if (o->backup && !parse_number(o->backup, 86400, &s->backup_interval_s))
		return wrong("backup_interval", o->backup,
			     "0 to 86400 seconds");
	if (o->interval &&
	    !parse_number(o->interval, 86400, &s->drain_interval_s))
		return wrong("drain_interval", o->interval,
			     "0 to 86400 seconds");
	if (o->empty_in_place && strcmp(o->empty_in_place, "0") == 0)
		s->empty_in_place_bytes = 0;
	else if (o->empty_in_place &&
		 !parse_size(o->empty_in_place, &s->empty_in_place_bytes))
		return wrong("empty_in_place", o->empty_in_place,
			     "a size such as 64M, or 0");
	if (o->segments && strcmp(o->segments, "off") == 0)
		s->no_segments = true;
	else if (o->segments && !parse_size(o->segments, &s->segment_bytes))
		return wrong("segments", o->segments,
			     "a size such as 16G, or off");
	if (o->pending_wait &&
	    !parse_number(o->pending_wait, 86400, &o->pending_wait_s))
		return wrong("pending_wait", o->pending_wait,
			     "0 to 86400 seconds");
	if (o->names_timeout &&
	    !parse_number(o->names_timeout, 86400, &o->names_timeout_s))
		return wrong("names_timeout", o->names_timeout,
			     "0 to 86400 seconds");
	if (o->local_keep && strcmp(o->local_keep, "0") == 0)
		o->local_keep_bytes = 0;
	else if (o->local_keep &&
		 !parse_size(o->local_keep, &o->local_keep_bytes))
		return wrong("local_keep", o->local_keep,
			     "a size such as 500G, or 0");
	if (o->shared && !set_shared(o))
		return false;
	s->no_create = o->no_create;
	s->stage_dir = o->stage;
	s->hold_drain = o->hold_drain;
	s->no_stage_cache = o->no_stage_cache;
	s->release_wait_s = o->release_wait_s;
	s->durable_close = o->durable_close;
	s->publish = (enum publish_mode)o->publish;
	s->stage_all_in_memory = o->stage_all_in_memory;
	s->share_all = o->share_all;
	s->structure = (enum guard_policy)o->structure;
	s->verify = (enum verify_mode)o->verify;
	return true;
}

int options_parse(struct fuse_args *args, struct options *o)
{
	bool right;

	*o = options_default;
	right = fuse_opt_parse(args, o, option_table, on_option) == 0;
	if (right && (o->help || o->version))
		return 0;
	if (right && o->bare != 2) {
		right = false;
		fprintf(stderr, "ckptfs: %s\n",
			o->bare < 2 ? "give a STORE and a MOUNTPOINT"
				    : "give one STORE and one MOUNTPOINT, "
				      "nothing else");
	}
	if (right && set_all(o))
		return 0;
	options_usage();
	return -EINVAL;
}

void options_release(struct options *o)
{
	char *const texts[] = { o->store,        o->mountpoint,    o->stage,
				o->stage_size,   o->segments,      o->saving,
				o->copies,       o->threads,       o->interval,
				o->backup,       o->shared,        o->node,
				o->pending_wait, o->names_timeout, o->direct,
				o->local_keep,   o->empty_in_place };

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
		free(texts[i]);
}
