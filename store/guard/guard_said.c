/*
 * guard_said.c - what people said of a step, in attributes of it or of a folder
 * above it, and what the words and patterns in them mean.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/guard/guard_private.h"

/* Folders above a step that are asked. */
#define DEPTH_MAX 64

static const char *const words[] = { "off", "warn", "refuse" };

int guard_policy_of(const char *word, size_t len, enum guard_policy *ret)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
		if (len == strlen(words[i]) &&
		    memcmp(word, words[i], len) == 0) {
			*ret = (enum guard_policy)i;
			return 0;
		}
	return -EINVAL;
}

int guard_ignore_check(const char *text, size_t len)
{
	unsigned count = 0;

	if (memchr(text, 0, len))
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		count += text[i] != '\n' && text[i] != '\r' &&
			 (i == 0 || text[i - 1] == '\n' || text[i - 1] == '\r');
	return count > GUARD_IGNORE_MAX ? -E2BIG : 0;
}

const char *guard_policy_word(enum guard_policy policy)
{
	return words[policy];
}

int guard_said(struct guard_visit *v, const struct guard_step *step,
	       const char *attribute, bool own_only, char **ret)
{
	uint64_t dir = step->dir;

	for (unsigned depth = 0; dir != 0 && depth < DEPTH_MAX; depth++) {
		SCOPED(scope_free) void *value = NULL;
		struct guard_attr a;
		size_t len;

		a.parent = step->parent;
		if (visit_getxattr(v, dir, attribute, &value, &len) == 0) {
			*ret = strndup(value, len);
			return *ret ? 0 : -ENOMEM;
		}
		if (own_only || (depth > 0 && visit_attr(v, dir, &a) < 0))
			break;
		dir = a.parent;
	}
	return -ENODATA;
}

enum guard_policy guard_policy(struct guard_visit *v,
			       const struct guard_step *step)
{
	enum guard_policy policy = v->g->use.policy;
	SCOPED(scope_free) char *word = NULL;

	if (guard_said(v, step, GUARD_POLICY_XATTR, false, &word) == 0)
		(void)guard_policy_of(word, strlen(word), &policy);
	return policy;
}

/* --- what is passed over --- */

int guard_ignored_read(struct guard_visit *v, const struct guard_step *step,
		       struct guard_ignored *ret)
{
	char *save = NULL, *line;
	int rc = guard_said(v, step, GUARD_IGNORE_XATTR, false, &ret->text);

	if (rc < 0)
		return rc == -ENODATA ? 0 : rc;
	for (line = strtok_r(ret->text, "\r\n", &save);
	     line && ret->count < GUARD_IGNORE_MAX;
	     line = strtok_r(NULL, "\r\n", &save))
		ret->pattern[ret->count++] = line;
	return 0;
}

/* Not fnmatch(3): a pattern is a user's, and must not cost more than this. */
static bool matches(const char *name, const char *pattern)
{
	const char *star = NULL, *from = NULL;

	while (*name) {
		if (*pattern == '*') {
			star = ++pattern;
			from = name;
		} else if (*pattern == '?' || *pattern == *name) {
			pattern++;
			name++;
		} else if (star) {
			pattern = star;
			name = ++from;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return *pattern == 0;
}

bool guard_is_ignored(const struct guard_ignored *i, const char *name)
{
	for (unsigned n = 0; n < i->count; n++)
		if (matches(name, i->pattern[n]))
			return true;
	return false;
}
