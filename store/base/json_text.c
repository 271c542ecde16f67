/*
 * json_text.c - JSON that comes from anybody, as a tree of cJSON.
 *
 * cJSON does the parsing, but keeps strings as C strings and lets pass what
 * serde, with which safetensors reads, does not. So the text is looked over
 * first (scan): its nesting and the number of its values are bounded, so that
 * a tree of it needs bounded stack and memory, and it is UTF-8 without a NUL
 * anywhere, so that no name is cut short.
 */
#include "store/base/json_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "store/base/utf8.h"

#define DEPTH_MAX 64
#define VALUE_BYTES 80 /* of a tree, with what malloc() adds */
#define STRING_BYTES 32 /* the same, beside the text itself */
#define VALUES_MAX (UINT64_C(16) << 20)

/* What is wrong with the text, or NULL; *ret_at says where. */
static const char *scan(const char *json, size_t len, size_t *ret_at)
{
	uint64_t values = 0;
	unsigned depth = 0;
	bool quoted = false;
	size_t step;

	for (size_t at = 0; at < len; at += step) {
		*ret_at = at;
		step = utf8_length(json + at, len - at);
		if (step == 0)
			return "not UTF-8";
		if (json[at] == '\0' ||
		    (quoted && json[at] > 0 && json[at] < ' '))
			return "a control character";
		switch (json[at]) {
		case '"':
			quoted = !quoted;
			break;
		case '\\':
			if (!quoted)
				return "a backslash outside of a string";
			if (len - at >= 6 &&
			    memcmp(json + at, "\\u0000", 6) == 0)
				return "a NUL in a string";
			/* What is escaped is ASCII, else cJSON refuses it. */
			if (len - at >= 2 && (json[at + 1] & 0x80) == 0)
				step = 2;
			break;
		case '{':
		case '[':
			if (!quoted && ++depth > DEPTH_MAX)
				return "nested too deeply";
			values += !quoted;
			break;
		case '}':
		case ']':
			if (!quoted && depth-- == 0)
				return "a bracket that closes nothing";
			break;
		case ',':
			values += !quoted;
			break;
		default:
			break;
		}
		if (values > VALUES_MAX)
			return "too many values";
	}
	return NULL;
}

size_t json_text_memory(const char *json, size_t len)
{
	size_t values = 1, quotes = 0;

	for (size_t at = 0; at < len; at++) {
		values += json[at] == ',' || json[at] == '[' || json[at] == '{';
		quotes += json[at] == '"';
	}
	return len + values * VALUE_BYTES + quotes / 2 * STRING_BYTES;
}

static bool only_spaces(const char *at, const char *end)
{
	for (; at < end; at++)
		if (!strchr(" \t\r\n", *at))
			return false;
	return true;
}

const char *json_text_parse(const char *json, size_t len, cJSON **ret_root,
			    size_t *ret_at)
{
	const char *end = NULL, *wrong = scan(json, len, ret_at);
	cJSON *root;

	if (wrong)
		return wrong;
	root = cJSON_ParseWithLengthOpts(json, len, &end, 0);
	if (root && only_spaces(end, json + len)) {
		*ret_root = root;
		return NULL;
	}
	cJSON_Delete(root);
	*ret_at = end ? (size_t)(end - json) : 0;
	return "not JSON";
}
