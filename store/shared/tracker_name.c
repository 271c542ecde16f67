/*
 * tracker_name.c - which names are those of trackers: what trainers write last,
 * to say that a step is there.
 */
#include <string.h>

#include "store/shared/shared_private.h"

static bool ends(const char *name, const char *end)
{
	size_t n = strlen(name), e = strlen(end);

	return n >= e && strcmp(name + n - e, end) == 0;
}

bool tracker_names_step(const char *name)
{
	return strncmp(name, "latest", 6) == 0 && !strstr(name, ".tmp");
}

bool tracker_is(const char *name)
{
	return tracker_names_step(name) || strcmp(name, ".metadata") == 0 ||
	       ends(name, ".index.json");
}
