/*
 * ctl.c - options, questions to a mount, and output that is the same for all
 * commands.
 */
#include "fuse/ctl/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "store/base/bytes.h"
#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/db/layout.h"

#define PROGRESS_EVERY_NS 100000000
#define PROGRESS_LINE_BYTES 128
#define PROGRESS_BAR_CELLS 24
#define TEXTS_MAX 8
#define TEXT_BYTES 32
/* An answer longer than this is not one of ours. */
#define ANSWER_BYTES_MAX (UINT64_C(1) << 30)
#define QUERY_TRIES_MAX 5

__attribute__((format(printf, 1, 0))) static void
say(const char *format, va_list ap, const char *end)
{
	(void)fflush(stdout);
	(void)fputs("ckptctl: ", stderr);
	(void)vfprintf(stderr, format, ap);
	(void)fputs(end, stderr);
}

void ctl_complain(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	say(format, ap, "\n");
	va_end(ap);
}

int ctl_misused(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	say(format, ap, " (see ckptctl --help)\n");
	va_end(ap);
	return CTL_USAGE;
}

int ctl_end(int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	ctl_complain("the result could not be written: %s", strerror(errno));
	return CTL_PROBLEM;
}

static void print_help(const struct ctl_command *c)
{
	(void)printf("usage: ckptctl %s %s\n\n%s\n\n%s", c->name, c->arguments,
		     c->summary, c->help);
	(void)printf("  --json   print the result as JSON\n"
		     "  --help   print this\n\n"
		     "exit code: 0 fine; 1 a problem was found; 2 wrong "
		     "usage, or this argument\ncannot be used for that\n");
}

static void misused_option(const struct ctl_command *c, const char *argument)
{
	char letter[3] = { '-', (char)optopt, 0 };

	/* A letter may stand among others, a long option stands alone. */
	(void)ctl_misused("%s: '%s' is not an option of it", c->name,
			  strncmp(argument, "--", 2) == 0 ? argument : letter);
}

int ctl_option(struct ctl_options *o, int argc, char **argv)
{
	struct option names[CTL_OPTION_MAX + 3] = {
		{ "json", no_argument, NULL, 'J' },
		{ "help", no_argument, NULL, 'h' },
	};
	char letters[CTL_OPTION_MAX + 3];
	int option;

	for (size_t n = 0; o->names && o->names[n].name; n++) {
		CHECK(n < CTL_OPTION_MAX);
		names[n + 2] = o->names[n];
	}
	(void)snprintf(letters, sizeof(letters), "h%s",
		       o->letters ? o->letters : "");
	opterr = 0;
	for (;;) {
		option = getopt_long(argc, argv, letters, names, NULL);
		if (option == 'J') {
			o->json = true;
		} else if (option == 'h') {
			print_help(o->command);
			exit(ctl_end(CTL_FINE));
		} else if (option == '?') {
			misused_option(o->command, argv[optind - 1]);
			exit(CTL_USAGE);
		} else {
			return option;
		}
	}
}

/* All pages of an answer, and what they say together. */
static int query_once(int fd, enum ckptfs_what what, cJSON **ret_json)
{
	SCOPED(bytes_release) struct bytes answer = { 0 };
	struct ckptfs_query q = { .what = what };
	cJSON *json;

	do {
		if (ioctl(fd, CKPTFS_IOC_QUERY, &q) < 0)
			return -errno;
		if (q.len > sizeof(q.text) || answer.len > ANSWER_BYTES_MAX ||
		    (q.len == 0 && q.cursor != 0))
			return -EPROTO;
		bytes_put(&answer, q.text, q.len);
	} while (q.cursor != 0);
	if (answer.failed)
		return -ENOMEM;
	json = cJSON_ParseWithLength((const char *)answer.data, answer.len);
	if (!cJSON_IsObject(json)) {
		cJSON_Delete(json);
		return -EPROTO;
	}
	*ret_json = json;
	return 0;
}

int ctl_query(int fd, enum ckptfs_what what, cJSON **ret_json)
{
	int rc = -EPROTO;

	/* A page may be of a newer answer than the one before: ask again. */
	for (int tries = 0; rc == -EPROTO && tries < QUERY_TRIES_MAX; tries++)
		rc = query_once(fd, what, ret_json);
	return rc;
}

int ctl_query_opens(int fd, cJSON *list)
{
	struct ckptfs_query q = { .what = CKPTFS_OPENS };
	uint64_t from;

	do {
		cJSON *page, *one;

		from = q.cursor;
		if (ioctl(fd, CKPTFS_IOC_QUERY, &q) < 0)
			return -errno;
		if (q.len > sizeof(q.text))
			return -EPROTO;
		page = cJSON_ParseWithLength(q.text, q.len);
		if (!cJSON_IsArray(page) ||
		    (q.cursor != 0 && q.cursor <= from)) {
			cJSON_Delete(page);
			return -EPROTO;
		}
		while ((one = cJSON_DetachItemFromArray(page, 0)) != NULL)
			(void)cJSON_AddItemToArray(list, one);
		cJSON_Delete(page);
	} while (q.cursor != 0);
	return 0;
}

int ctl_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	return fd < 0 ? -errno : fd;
}

int ctl_ask(const char *path, enum ckptfs_what what, cJSON **ret_json)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	int rc = fd < 0 ? fd : ctl_query(fd, what, ret_json);

	return rc < 0 ? ctl_complain_query(path, rc) : CTL_FINE;
}

/* Somebody named the store where its mount point belongs. */
static bool is_store(const char *path)
{
	SCOPED(scope_free) char *name = NULL;

	return asprintf(&name, "%s/" LAYOUT_FORMAT_FILE, path) > 0 &&
	       access(name, F_OK) == 0;
}

/* The mount point of a mount whose daemon is dead: open() tells, not stat(). */
static char *dead_mount(const char *path)
{
	char *mount = strdup(path), *slash;

	CHECK(mount); /* out of memory */
	while ((slash = strrchr(mount, '/')) != NULL && slash > mount) {
		SCOPED(scope_close) int fd = -1;

		*slash = 0;
		fd = ctl_open(mount);
		if (fd != -ENOTCONN) {
			*slash = '/';
			break;
		}
	}
	return mount;
}

int ctl_complain_query(const char *path, int rc)
{
	SCOPED(scope_free) char *mount = NULL;

	switch (rc) {
	case -ENOTTY:
	case -ENOSYS:
	case -EOPNOTSUPP:
		if (is_store(path))
			ctl_complain("%s is a store, not where it is mounted; "
				     "mount it (ckptfs %s MOUNTPOINT) and give "
				     "the mount point",
				     path, path);
		else
			ctl_complain("%s is not in a ckptfs mount", path);
		return CTL_USAGE;
	case -ENOTCONN:
	case -ECONNABORTED:
		mount = dead_mount(path);
		ctl_complain("%s: the ckptfs that was mounted here has ended; "
			     "unmount it (umount %s) and mount it again",
			     path, mount);
		return CTL_PROBLEM;
	case -EACCES:
	case -EPERM:
		ctl_complain("%s: %s; ask as the user who may read it", path,
			     strerror(-rc));
		return CTL_USAGE;
	case -EPROTO:
		ctl_complain("%s: the answer of this mount is not understood; "
			     "is its ckptfs another version than this ckptctl?",
			     path);
		return CTL_PROBLEM;
	default:
		ctl_complain("%s: %s", path, strerror(-rc));
		return rc == -ENOENT || rc == -ENOTDIR ? CTL_USAGE
						       : CTL_PROBLEM;
	}
}

const cJSON *ctl_member(const cJSON *json, const char *name)
{
	return cJSON_GetObjectItemCaseSensitive(json, name);
}

uint64_t ctl_number(const cJSON *json, const char *name)
{
	const cJSON *item = ctl_member(json, name);

	if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) ||
	    item->valuedouble >= 0x1p63)
		return 0;
	return (uint64_t)item->valuedouble;
}

const char *ctl_text(const cJSON *json, const char *name)
{
	const cJSON *item = ctl_member(json, name);

	return cJSON_IsString(item) ? item->valuestring : "";
}

void ctl_print_line(const char *text)
{
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			(void)printf("\\%03o", (unsigned char)*p);
		else
			(void)putchar(*p);
	(void)putchar('\n');
}

/* As UTF-8: U+FFFD for each byte that is not. To be released. */
static struct bytes clean_text(const char *text)
{
	const char *end = text + strlen(text);
	struct bytes clean = { 0 };

	while (text < end) {
		size_t len = utf8_length(text, (size_t)(end - text));

		bytes_put(&clean, len > 0 ? text : "\xef\xbf\xbd",
			  len > 0 ? len : 3);
		text += len > 0 ? len : 1;
	}
	bytes_put_u8(&clean, 0);
	CHECK(!clean.failed); /* out of memory */
	return clean;
}

void ctl_add_text(cJSON *json, const char *name, const char *text)
{
	SCOPED(bytes_release) struct bytes clean = clean_text(text);
	cJSON *string = cJSON_CreateString((const char *)clean.data);

	if (name)
		(void)cJSON_AddItemToObject(json, name, string);
	else
		(void)cJSON_AddItemToArray(json, string);
}

void ctl_print_string(const char *before, const char *text)
{
	SCOPED(bytes_release) struct bytes clean = clean_text(text);

	(void)printf("%s\"", before);
	for (const uint8_t *p = clean.data; *p; p++)
		if (*p == '"' || *p == '\\')
			(void)printf("\\%c", *p);
		else if (*p < ' ')
			(void)printf("\\u%04x", *p);
		else
			(void)putchar(*p);
	(void)putchar('"');
}

int ctl_print_numbers(const char *before, const uint64_t *numbers, size_t count)
{
	int width = printf("%s[", before);

	for (size_t i = 0; i < count; i++)
		width += printf("%s%" PRIu64, i > 0 ? ", " : "", numbers[i]);
	return width + printf("]");
}

void ctl_print_open(cJSON *json)
{
	char *text = cJSON_Print(json);
	char *end;

	CHECK(text); /* out of memory */
	end = strrchr(text, '}');
	CHECK(end);
	while (end > text && (end[-1] == '\n' || end[-1] == '\t'))
		end--;
	*end = 0;
	(void)fputs(text, stdout);
	cJSON_free(text);
	cJSON_Delete(json);
}

void ctl_print_json(cJSON *json)
{
	char *text = cJSON_Print(json);

	CHECK(text); /* out of memory */
	(void)puts(text);
	cJSON_free(text);
	cJSON_Delete(json);
}

void ctl_add_number(cJSON *json, const char *name, uint64_t value)
{
	(void)cJSON_AddNumberToObject(json, name, (double)value);
}

static char *next_text(void)
{
	static char texts[TEXTS_MAX][TEXT_BYTES];
	static unsigned next;

	return texts[next++ % TEXTS_MAX];
}

const char *ctl_bytes(uint64_t bytes)
{
	static const char *const units[] = { "B",   "KiB", "MiB", "GiB",
					     "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	char *text = next_text();
	unsigned unit = 0;

	while (value >= 1023.5 && unit < 6) {
		value /= 1024;
		unit++;
	}
	(void)snprintf(text, TEXT_BYTES, "%.*f %s",
		       unit > 0 && value < 99.95 ? 1 : 0, value, units[unit]);
	return text;
}

const char *ctl_count(uint64_t count)
{
	char *text = next_text();
	char digits[TEXT_BYTES];
	size_t len, at = 0;

	(void)snprintf(digits, sizeof(digits), "%" PRIu64, count);
	len = strlen(digits);
	for (size_t n = 0; n < len && at < TEXT_BYTES - 2; n++) {
		if (n > 0 && (len - n) % 3 == 0)
			text[at++] = ',';
		text[at++] = digits[n];
	}
	text[at] = 0;
	return text;
}

bool ctl_progress_wanted(void)
{
	return isatty(STDERR_FILENO) == 1;
}

static void progress_bar(double part, char ret[PROGRESS_BAR_CELLS + 1])
{
	int full = (int)(part * PROGRESS_BAR_CELLS);

	for (int n = 0; n < PROGRESS_BAR_CELLS; n++)
		ret[n] = n < full ? '#' : '.';
	ret[PROGRESS_BAR_CELLS] = 0;
}

static void progress_rate(double seconds, uint64_t done, uint64_t total,
			  char *ret, size_t size)
{
	double rate = seconds > 0 ? (double)done / seconds : 0;

	ret[0] = 0;
	if (rate >= 1)
		(void)snprintf(ret, size, "  %s/s, %.0f s left",
			       ctl_bytes((uint64_t)rate),
			       (double)(total - done) / rate);
}

void ctl_progress_say(struct ctl_progress *p, const char *text)
{
	if (!ctl_progress_wanted())
		return;
	(void)fprintf(stderr, "\r%s\033[K", text);
	(void)fflush(stderr);
	p->shown = true;
}

void ctl_progress_show(struct ctl_progress *p, const char *phase, uint64_t done,
		       uint64_t total, bool bytes)
{
	char line[PROGRESS_LINE_BYTES], bar[PROGRESS_BAR_CELLS + 1];
	char rate[PROGRESS_LINE_BYTES / 2] = "";
	int64_t now = mono_ns();

	if (!ctl_progress_wanted())
		return;
	if (strcmp(p->phase, phase) != 0) {
		(void)snprintf(p->phase, sizeof(p->phase), "%s", phase);
		p->begin_ns = now;
		p->last_ns = 0;
	}
	if (p->last_ns != 0 && now - p->last_ns < PROGRESS_EVERY_NS)
		return;
	p->last_ns = now;
	if (done > total && total > 0)
		done = total;
	if (bytes && total > 0)
		progress_rate((double)(now - p->begin_ns) / 1e9, done, total,
			      rate, sizeof(rate));
	if (total > 0) {
		double part = (double)done / (double)total;

		progress_bar(part, bar);
		(void)snprintf(line, sizeof(line), "%-8s [%s] %3.0f %%%s",
			       phase, bar, 100 * part, rate);
	} else {
		(void)snprintf(line, sizeof(line), "%-8s %s", phase,
			       bytes ? ctl_bytes(done) : ctl_count(done));
	}
	ctl_progress_say(p, line);
}

void ctl_progress_clear(struct ctl_progress *p)
{
	if (!p->shown)
		return;
	(void)fputs("\r\033[K", stderr);
	(void)fflush(stderr);
	p->shown = false;
	p->last_ns = 0;
}
