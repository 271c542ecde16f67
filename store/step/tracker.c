/* tracker.c - see tracker.h. */
#include "store/step/tracker.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "store/base/text.h"
#include "store/step/step_name.h"

#define OF_STEPS "latest"
#define NAME_BYTES_MAX 255
#define DIGITS_MAX 20
/* Megatron's and NeMo's numbers are this wide. */
#define WIDE 7

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* And something before it. */
static bool has_end(const char *name, const char *end)
{
	return strlen(name) > strlen(end) && text_ends_in(name, end);
}

enum tracker tracker_of(const char *name)
{
	if (strstr(name, ".tmp"))
		return TRACKER_NONE;
	if (strncmp(name, OF_STEPS, strlen(OF_STEPS)) == 0)
		return TRACKER_OF_STEPS;
	if (strcmp(name, ".metadata") == 0 || has_end(name, ".index.json"))
		return TRACKER_IN_STEP;
	return TRACKER_NONE;
}

bool tracker_publishes(const char *name)
{
	if (strstr(name, ".tmp"))
		return false;
	return tracker_is(name) || has_end(name, ".ckpt") ||
	       strcmp(name, "checkpoint") == 0 ||
	       strcmp(name, "last_checkpoint") == 0 ||
	       step_name_of(name) == STEP_NAME_SURE;
}

bool tracker_is_of_number(const char *name)
{
	return strcmp(name, "latest_checkpointed_iteration.txt") == 0;
}

/* latest_step, latest_iteration.txt; and not latest_epoch. */
bool tracker_counts_steps(const char *name)
{
	return strcmp(name, OF_STEPS) == 0 || strstr(name, "step") ||
	       strstr(name, "iter");
}

void tracker_word(const void *text, size_t len, char ret[TRACKER_WORD_BYTES])
{
	const char *word = text;

	ret[0] = 0;
	while (len > 0 && isspace((unsigned char)*word)) {
		word++;
		len--;
	}
	while (len > 0 && isspace((unsigned char)word[len - 1]))
		len--;
	if (len >= TRACKER_WORD_BYTES)
		return;
	if (len > 0)
		memcpy(ret, word, len);
	ret[len] = 0; /* at a NUL in it, it is over */
}

int tracker_each_step(const char *word, int (*fn)(void *arg, const char *name),
		      void *arg)
{
	static const char *const before[] = { "iter_",        "step_",
					      "step-",        "global_step",
					      "global_step_", "checkpoint-" };
	size_t len = strlen(word), digits = strspn(word, "0123456789");
	char name[NAME_BYTES_MAX + 1];
	const char *number;
	int rc;

	if (len == 0 || len > NAME_BYTES_MAX || strchr(word, '/') ||
	    strcmp(word, ".") == 0 || strcmp(word, "..") == 0)
		return 0;
	rc = fn(arg, word);
	if (digits != len || len > DIGITS_MAX)
		return rc;
	number = step_name_number(word, &digits);
	for (size_t i = 0; rc == 0 && i < COUNT(before); i++) {
		if (digits < WIDE) {
			(void)snprintf(name, sizeof(name), "%s%0*d%s",
				       before[i], (int)(WIDE - digits), 0,
				       number);
			rc = fn(arg, name);
		}
		if (rc == 0) {
			(void)snprintf(name, sizeof(name), "%s%s", before[i],
				       number);
			rc = fn(arg, name);
		}
	}
	return rc;
}
