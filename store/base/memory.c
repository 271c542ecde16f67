/*
 * memory.c - see memory.h.
 *
 * /proc/self/cgroup names a group for each hierarchy. In a container that path
 * may be the host's while /sys/fs/cgroup begins at the container's own group,
 * or the other way round; what is not there is left out, and the top of the
 * hierarchy is looked at in any case, so one of the two is found.
 */
#include "store/base/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CGROUP_DIR "/sys/fs/cgroup"

/* A hierarchy that limits memory. */
struct hierarchy {
	const char *dir, *file;
};
static const struct hierarchy version_2 = { CGROUP_DIR, "memory.max" };
static const struct hierarchy version_1 = { CGROUP_DIR "/memory",
					    "memory.limit_in_bytes" };

static uint64_t read_limit(const char *path)
{
	unsigned long long limit = 0;
	FILE *f = fopen(path, "re");
	bool known;

	if (!f)
		return UINT64_MAX;
	/* "max" is no number. */
	known = fscanf(f, "%llu", &limit) == 1 && limit > 0;
	(void)fclose(f);
	return known ? limit : UINT64_MAX;
}

/* Of a group and all above it; group is "/a/b", and is cut up. */
static uint64_t limit_of(const char *root, const struct hierarchy *h,
			 char *group)
{
	uint64_t limit = UINT64_MAX;
	char path[PATH_MAX + 64];
	char *slash;

	/* Outside of what this namespace shows. */
	if (strstr(group, "/..") || group[0] != '/')
		group = strcpy(group, "/");
	for (;;) {
		size_t len = strlen(group);
		uint64_t one;

		while (len > 0 && group[len - 1] == '/')
			group[--len] = 0;
		if ((size_t)snprintf(path, sizeof(path), "%s%s%s/%s", root,
				     h->dir, group, h->file) < sizeof(path)) {
			one = read_limit(path);
			limit = one < limit ? one : limit;
		}
		slash = strrchr(group, '/');
		if (!slash)
			return limit;
		*slash = 0;
	}
}

/* Is "memory" one of "cpu,memory,pids"? */
static bool has_memory(const char *controllers)
{
	static const char word[] = "memory";
	const size_t len = sizeof(word) - 1;

	for (const char *at = controllers; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, word, len) == 0 &&
		    (at[len] == 0 || at[len] == ','))
			return true;
	}
	return false;
}

/* "0::/group" of version 2, "N:controllers:/group" of version 1. */
static uint64_t limit_of_line(const char *root, char *line)
{
	char *controllers, *group;

	line[strcspn(line, "\n")] = 0;
	controllers = strchr(line, ':');
	if (!controllers)
		return UINT64_MAX;
	group = strchr(++controllers, ':');
	if (!group)
		return UINT64_MAX;
	*group++ = 0;
	if (*controllers == 0)
		return limit_of(root, &version_2, group);
	if (has_memory(controllers))
		return limit_of(root, &version_1, group);
	return UINT64_MAX;
}

uint64_t memory_cgroup_limit(const char *root)
{
	char path[PATH_MAX], top[2][2] = { "/", "/" };
	uint64_t limit = limit_of(root, &version_2, top[0]);
	uint64_t one = limit_of(root, &version_1, top[1]);
	char *line = NULL;
	size_t size = 0;
	FILE *f;

	limit = one < limit ? one : limit;
	(void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	f = fopen(path, "re");
	while (f && getline(&line, &size, f) > 0) {
		one = limit_of_line(root, line);
		limit = one < limit ? one : limit;
	}
	free(line);
	if (f)
		(void)fclose(f);
	return limit;
}

uint64_t memory_bytes(void)
{
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) *
			 (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t limit = memory_cgroup_limit("");

	return limit < bytes ? limit : bytes;
}
