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
	const char *dir, *file, *used;
	/* Of memory.stat: with what is below, files and not tmpfs. */
	const char *files[2];
};
static const struct hierarchy version_2 = {
	CGROUP_DIR,
	"memory.max",
	"memory.current",
	{ "inactive_file", "active_file" },
};
static const struct hierarchy version_1 = {
	CGROUP_DIR "/memory",
	"memory.limit_in_bytes",
	"memory.usage_in_bytes",
	{ "total_inactive_file", "total_active_file" },
};

/* Version 1 has a number near this where there is no limit. */
#define NO_LIMIT (UINT64_MAX / 4)

/* What is asked of a group: its limit, or what is left below it. */
typedef uint64_t (*group_fn)(const struct hierarchy *h, const char *group);

static FILE *open_in(const char *group, const char *name)
{
	char path[PATH_MAX + 128];

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", group, name) >=
	    sizeof(path))
		return NULL;
	return fopen(path, "re");
}

static uint64_t read_number(const char *group, const char *name)
{
	unsigned long long n = 0;
	FILE *f = open_in(group, name);
	bool known;

	if (!f)
		return UINT64_MAX;
	/* "max" is no number. */
	known = fscanf(f, "%llu", &n) == 1;
	(void)fclose(f);
	return known ? n : UINT64_MAX;
}

static uint64_t group_limit(const struct hierarchy *h, const char *group)
{
	uint64_t limit = read_number(group, h->file);

	return limit > 0 ? limit : UINT64_MAX;
}

/* What the kernel takes back from a group before it kills somebody. */
static uint64_t read_reclaimable(const struct hierarchy *h, const char *group)
{
	FILE *f = open_in(group, "memory.stat");
	unsigned long long n;
	uint64_t sum = 0;
	char name[64];

	while (f && fscanf(f, "%63s %llu", name, &n) == 2)
		if (strcmp(name, h->files[0]) == 0 ||
		    strcmp(name, h->files[1]) == 0)
			sum += n;
	if (f)
		(void)fclose(f);
	return sum;
}

static uint64_t group_room(const struct hierarchy *h, const char *group)
{
	uint64_t limit = group_limit(h, group), used, files;

	if (limit >= NO_LIMIT)
		return UINT64_MAX;
	used = read_number(group, h->used);
	if (used == UINT64_MAX)
		return UINT64_MAX;
	files = read_reclaimable(h, group);
	used -= files < used ? files : used;
	return used < limit ? limit - used : 0;
}

/* The least of a group and all above it; group is "/a/b", and is cut up. */
static uint64_t least_of(const char *root, const struct hierarchy *h,
			 char *group, group_fn ask)
{
	uint64_t least = UINT64_MAX;
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
		if ((size_t)snprintf(path, sizeof(path), "%s%s%s", root, h->dir,
				     group) < sizeof(path)) {
			one = ask(h, path);
			least = one < least ? one : least;
		}
		slash = strrchr(group, '/');
		if (!slash)
			return least;
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
static uint64_t least_of_line(const char *root, char *line, group_fn ask)
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
		return least_of(root, &version_2, group, ask);
	if (has_memory(controllers))
		return least_of(root, &version_1, group, ask);
	return UINT64_MAX;
}

/* Of the groups of a process ("self", or its number) and of what is on top. */
static uint64_t least_of_process(const char *root, const char *process,
				 group_fn ask)
{
	char path[PATH_MAX], top[2][2] = { "/", "/" };
	uint64_t least = least_of(root, &version_2, top[0], ask);
	uint64_t one = least_of(root, &version_1, top[1], ask);
	char *line = NULL;
	size_t size = 0;
	FILE *f;

	least = one < least ? one : least;
	(void)snprintf(path, sizeof(path), "%s/proc/%s/cgroup", root, process);
	f = fopen(path, "re");
	while (f && getline(&line, &size, f) > 0) {
		one = least_of_line(root, line, ask);
		least = one < least ? one : least;
	}
	free(line);
	if (f)
		(void)fclose(f);
	return least;
}

uint64_t memory_cgroup_limit(const char *root)
{
	return least_of_process(root, "self", group_limit);
}

uint64_t memory_cgroup_room(const char *root, pid_t pid)
{
	char process[16];

	(void)snprintf(process, sizeof(process), "%d", (int)pid);
	return least_of_process(root, process, group_room);
}

uint64_t memory_bytes(void)
{
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) *
			 (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t limit = memory_cgroup_limit("");

	return limit < bytes ? limit : bytes;
}
