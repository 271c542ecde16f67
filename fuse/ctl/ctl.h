/*
 * ctl.h - what the subcommands of ckptctl share: talking to a mount, units,
 * JSON, and the line that shows progress on a terminal.
 *
 * A subcommand prints its result on standard output and everything else on
 * standard error; it returns one of the exit codes below. --json prints one
 * JSON value on standard output, whatever happened: of a command that came to
 * no result {"error": {"message": "...", "exit_code": 2}}, besides what it
 * says on standard error.
 */
#ifndef FUSE_CTL_CTL_H
#define FUSE_CTL_CTL_H

#include <cjson/cJSON.h>
#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/base/ckptfs_ioctl.h"

/* People script against these. */
enum ctl_exit {
	CTL_FINE = 0,
	CTL_PROBLEM = 1,
	CTL_USAGE = 2, /* also: that cannot be done with this argument */
	CTL_SILENT = 3, /* the mount did not answer in time */
};

struct ctl_command {
	const char *name;
	const char *arguments; /* for the usage line */
	const char *summary; /* one line, for the list */
	const char *help; /* the rest of --help; ends with a newline */
	/* One of these; run_on() is for a command with one argument. */
	int (*run)(const struct ctl_command *self, int argc, char **argv);
	int (*run_on)(const char *argument, bool json);
	const char *takes; /* of run_on(): "store" */
};

extern const struct ctl_command ctl_status, ctl_flush, ctl_inspect, ctl_du,
	ctl_gc, ctl_fsck, ctl_scrub, ctl_plan, ctl_init, ctl_rebuild,
	ctl_nodes, ctl_forget_node;

/* "ckptctl: ..." on standard error, as ctl_shown() has it. */
void ctl_complain(const char *format, ...)
	__attribute__((format(printf, 1, 2)));
/* The same, and where to read on; returns CTL_USAGE. */
int ctl_misused(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Which command runs: where to read on, its --help or the whole one's. */
void ctl_runs(const char *name);
/* --json was given. */
void ctl_want_json(void);
/* A command prints JSON by itself: nothing else may come on standard output. */
void ctl_result_begun(void);
/*
 * All was printed, but the error for --json: the exit code, CTL_PROBLEM instead
 * when the output did not get where it should, which is said.
 */
int ctl_end(int code);

/*
 * The next option, as getopt_long() says it; -1: no more. --json is done here.
 * --help, and what is no option of the command, end the process.
 */
struct ctl_options {
	const struct ctl_command *command;
	const char *letters; /* further ones, as in getopt() */
	const struct option *names; /* further ones, ended by zeros */
	bool json; /* out */
};
#define CTL_OPTION_MAX 8
int ctl_option(struct ctl_options *o, int argc, char **argv);

/*
 * Ask the mount that fd lies in. *ret_json is the caller's (cJSON_Delete()).
 * -ENOTTY: not a ckptfs mount. -EPROTO: the answer is no JSON object.
 */
int ctl_query(int fd, enum ckptfs_what what, cJSON **ret_json);
/* Add what CKPTFS_OPENS answers to the array. Errors as above. */
int ctl_query_opens(int fd, cJSON *list);
/* Open for asking; never blocks on a fifo. -errno, as open(2). */
int ctl_open(const char *path);
/*
 * Say why `path` could not be asked, with what to do instead; the exit code
 * that goes with it.
 */
int ctl_complain_query(const char *path, int rc);
/* Open, ask and, if need be, complain: the exit code. */
int ctl_ask(const char *path, enum ckptfs_what what, cJSON **ret_json);

/*
 * For who wants a store: say so when it is a mount, with the store to name, or
 * one that is dead. CTL_FINE: it is none.
 */
int ctl_refuse_mount(const char *path);

/* A member of an answer, which keeps it; NULL when it has none. */
const cJSON *ctl_member(const cJSON *json, const char *name);
/* A number of an answer; 0 when it has none of that name. */
uint64_t ctl_number(const cJSON *json, const char *name);
/* A text of an answer; "" when it has none of that name. */
const char *ctl_text(const cJSON *json, const char *name);

/*
 * Names of files may hold anything. For people a text is shown as one line:
 * control characters and bytes that are not UTF-8 as \ooo, a backslash as two,
 * valid until the eighth call after this one. In JSON a byte that is not UTF-8
 * is \udc80 to \udcff, where it is printed; texts are added as they are.
 */
const char *ctl_shown(const char *text);
void ctl_print_line(const char *text);
/* To a JSON object, or to an array (name NULL). */
void ctl_add_text(cJSON *json, const char *name, const char *text);

/* Print what stands before it and a JSON string; too long for a tree. */
void ctl_print_string(const char *before, const char *text);
/* The same with "[2, 3]"; how many characters that were. */
int ctl_print_numbers(const char *before, const uint64_t *numbers,
		      size_t count);
/* Print a JSON object but its end, and release it; members may follow. */
void ctl_print_open(cJSON *json);

/* Print a JSON value on standard output and release it. */
void ctl_print_json(cJSON *json);
void ctl_add_number(cJSON *json, const char *name, uint64_t value);

/* "1.5 GiB"; valid until the fourth call after this one. */
const char *ctl_bytes(uint64_t bytes);
/* "1,234,567"; likewise. */
const char *ctl_count(uint64_t count);

/*
 * One line on standard error that is written over again and again; nothing at
 * all when that is no terminal. At most ten times in a second.
 */
struct ctl_progress {
	bool shown; /* it is on the screen */
	int64_t last_ns, begin_ns;
	char phase[32];
};
bool ctl_progress_wanted(void);
/* total 0: not known. `bytes`: they are bytes, so show a rate too. */
void ctl_progress_show(struct ctl_progress *p, const char *phase, uint64_t done,
		       uint64_t total, bool bytes);
/* The same line, with a text of one's own. */
void ctl_progress_say(struct ctl_progress *p, const char *text);
/* Take the line off the screen, before something else is printed. */
void ctl_progress_clear(struct ctl_progress *p);

/*
 * In a mount with shared=DIR: does another node have the file's bytes? Then who
 * opens it waits, and while it is written there its size is 0 here.
 */
bool ctl_is_elsewhere(int dirfd, const char *name);

#endif
