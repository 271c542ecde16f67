/*
 * say.c - what ckptctl prints: names of files, JSON, amounts.
 *
 * A name may hold any byte, and who made it may mean harm to a terminal. So
 * nothing gets out but through the two spellings here, both of which can be
 * undone: for people, and in JSON.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/ctl/ctl.h"
#include "store/base/bytes.h"
#include "store/base/scope.h"
#include "store/base/utf8.h"

#define TEXTS_MAX 8
#define TEXT_BYTES 32

/* --- Names -------------------------------------------------------------- */

/* Control characters, those of 8 bits too: terminals obey both. */
static bool is_control(const uint8_t *p, size_t len)
{
	return (len == 1 && (*p < ' ' || *p == 0x7f)) ||
	       (len == 2 && p[0] == 0xc2 && p[1] < 0xa0);
}

/* The text as it is printed for people, with its NUL. */
static void show(struct bytes *to, const char *text)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);
	char octal[5];

	while (p < end) {
		size_t len = utf8_length(p, (size_t)(end - p));

		if (len > 0 && !is_control(p, len)) {
			bytes_put(to, "\\", *p == '\\');
			bytes_put(to, p, len);
			p += len;
		} else {
			(void)snprintf(octal, sizeof(octal), "\\%03o", *p++);
			bytes_put(to, octal, 4);
		}
	}
	bytes_put_u8(to, 0);
	CHECK(!to->failed); /* out of memory */
}

const char *ctl_shown(const char *text)
{
	static struct bytes texts[TEXTS_MAX];
	static unsigned next;
	struct bytes *to = &texts[next++ % TEXTS_MAX];

	to->len = 0;
	show(to, text);
	return (const char *)to->data;
}

void ctl_print_line(const char *text)
{
	(void)puts(ctl_shown(text));
}

/* --- Complaints --------------------------------------------------------- */

/* What was complained of, for --json; and is there a result already? */
static struct bytes complaints;
static bool wants_json, has_result;
/* " NAME" of the command that runs, "" before one is known. */
static char command[16];

__attribute__((format(printf, 1, 0))) static void
complain(const char *format, va_list ap, bool misused)
{
	SCOPED(scope_free) char *text = NULL;

	CHECK(vasprintf(&text, format, ap) >= 0); /* out of memory */
	(void)fflush(stdout);
	(void)fprintf(stderr, "ckptctl: %s", ctl_shown(text));
	if (misused)
		(void)fprintf(stderr, " (see ckptctl%s --help)", command);
	(void)fputc('\n', stderr);
	bytes_put(&complaints, "\n", complaints.len > 0);
	bytes_put(&complaints, text, strlen(text));
}

void ctl_complain(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	complain(format, ap, false);
	va_end(ap);
}

int ctl_misused(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	complain(format, ap, true);
	va_end(ap);
	return CTL_USAGE;
}

void ctl_runs(const char *name)
{
	(void)snprintf(command, sizeof(command), " %s", name);
}

void ctl_want_json(void)
{
	wants_json = true;
}

void ctl_result_begun(void)
{
	has_result = true;
}

/* --json has one value, whatever happened: this one when there is no result. */
static void print_error(int code)
{
	cJSON *json = cJSON_CreateObject();
	cJSON *error = cJSON_AddObjectToObject(json, "error");

	bytes_put_u8(&complaints, 0);
	CHECK(!complaints.failed); /* out of memory */
	ctl_add_text(error, "message", (const char *)complaints.data);
	ctl_add_number(error, "exit_code", (uint64_t)code);
	ctl_print_json(json);
}

int ctl_end(int code)
{
	if (wants_json && code != CTL_FINE && !has_result)
		print_error(code);
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	ctl_complain("the result could not be written: %s", strerror(errno));
	return CTL_PROBLEM;
}

/* --- JSON --------------------------------------------------------------- */

/*
 * Text of JSON that may hold bytes that are not UTF-8, all of them in strings:
 * such a byte becomes \udc80 to \udcff, as Python's surrogateescape has it.
 */
static void put_json(const char *text)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + strlen(text);

	ctl_result_begun();
	while (p < end) {
		size_t len = utf8_length(p, (size_t)(end - p));

		if (len == 0)
			(void)printf("\\udc%02x", *p++);
		else if (is_control(p, len) && *p != '\n' && *p != '\t')
			(void)printf("\\u00%02x", p[len - 1]);
		else
			(void)fwrite(p, 1, len, stdout);
		p += len;
	}
}

void ctl_print_string(const char *before, const char *text)
{
	cJSON *string = cJSON_CreateString(text);
	char *quoted = string ? cJSON_PrintUnformatted(string) : NULL;

	CHECK(quoted); /* out of memory */
	(void)fputs(before, stdout);
	put_json(quoted);
	cJSON_free(quoted);
	cJSON_Delete(string);
}

int ctl_print_numbers(const char *before, const uint64_t *numbers, size_t count)
{
	int width = printf("%s[", before);

	ctl_result_begun();
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
	put_json(text);
	cJSON_free(text);
	cJSON_Delete(json);
}

void ctl_print_json(cJSON *json)
{
	char *text = cJSON_Print(json);

	CHECK(text); /* out of memory */
	put_json(text);
	(void)putchar('\n');
	cJSON_free(text);
	cJSON_Delete(json);
}

void ctl_add_text(cJSON *json, const char *name, const char *text)
{
	cJSON *string = cJSON_CreateString(text);

	if (name)
		(void)cJSON_AddItemToObject(json, name, string);
	else
		(void)cJSON_AddItemToArray(json, string);
}

void ctl_add_number(cJSON *json, const char *name, uint64_t value)
{
	(void)cJSON_AddNumberToObject(json, name, (double)value);
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

/* --- Amounts ------------------------------------------------------------ */

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
