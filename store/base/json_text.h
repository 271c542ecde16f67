/* json_text.h - JSON that comes from anybody, as a tree of cJSON. */
#ifndef STORE_BASE_JSON_TEXT_H
#define STORE_BASE_JSON_TEXT_H

#include <cjson/cJSON.h>
#include <stddef.h>

/*
 * The tree of the text, which must be all of it: *ret_root is the caller's to
 * delete. json[len] must be a NUL: some versions of cJSON look at it. Returns
 * NULL, or what is wrong with the text, and *ret_at says at which byte.
 */
const char *json_text_parse(const char *json, size_t len, cJSON **ret_root,
			    size_t *ret_at);
/*
 * What a tree of the text takes at the most, in bytes: a list of numbers takes
 * forty times its text.
 */
size_t json_text_memory(const char *json, size_t len);

#endif
