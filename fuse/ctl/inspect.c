/* inspect.c - ckptctl inspect: what a file consists of, or a list of files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "fuse/ctl/ctl.h"
#include "store/base/scope.h"

#define ATTRIBUTE_BYTES 64
/* More extents are counted, but not printed, for people. */
#define EXTENTS_SHOWN 64

static void print_extents(const cJSON *list)
{
	int count = cJSON_GetArraySize(list);
	const cJSON *e;
	int shown = 0;

	(void)printf("  %-16s%s\n", "extents", ctl_count((uint64_t)count));
	if (count == 0)
		return;
	(void)printf("    %16s %12s  %16s %16s\n", "offset", "length", "image",
		     "image offset");
	cJSON_ArrayForEach(e, list) {
		if (++shown > EXTENTS_SHOWN) {
			(void)printf("    ... and %s more (all with --json)\n",
				     ctl_count((uint64_t)(count -
							  EXTENTS_SHOWN)));
			return;
		}
		(void)printf("    %16llu %12llu  %016llx %16llu\n",
			     (unsigned long long)ctl_number(e, "offset"),
			     (unsigned long long)ctl_number(e, "len"),
			     (unsigned long long)ctl_number(e, "image"),
			     (unsigned long long)ctl_number(e, "image_offset"));
	}
}

/* "rank 3 of 8 on node1, job 17 (environment)"; nothing: not known. */
static void print_writer(const cJSON *w)
{
	const char *kind = ctl_text(w, "rank_kind");
	const char *host = ctl_text(w, "host"), *job = ctl_text(w, "job");

	if (!cJSON_IsObject(w))
		return;
	(void)printf("  %-16s", "writer");
	if (*kind)
		(void)printf("%srank %llu",
			     strcmp(kind, "data_parallel") == 0 ?
				     "data parallel " :
			     strcmp(kind, "model_parallel") == 0 ?
				     "model parallel " :
				     "",
			     (unsigned long long)ctl_number(w, "rank"));
	else
		(void)printf("unknown rank");
	if (ctl_number(w, "world_size") > 0)
		(void)printf(" of %llu",
			     (unsigned long long)ctl_number(w, "world_size"));
	if (*host)
		(void)printf(" on %s", host);
	if (*job)
		(void)printf(", job %s", job);
	if (*kind)
		(void)printf(" (%s)", ctl_text(w, "source"));
	(void)printf("\n");
}

static void print_file(const char *path, const cJSON *f)
{
	const cJSON *native = cJSON_GetObjectItemCaseSensitive(f, "native");
	const cJSON *error = cJSON_GetObjectItemCaseSensitive(f, "error");
	const cJSON *extents = cJSON_GetObjectItemCaseSensitive(f, "extents");

	(void)printf("%s\n", path);
	(void)printf("  %-16s%s\n", "state", ctl_text(f, "state"));
	if (cJSON_IsString(error))
		(void)printf("  %-16s%s\n", "error", error->valuestring);
	(void)printf("  %-16s%s\n", "size",
		     ctl_bytes(ctl_number(f, "size_bytes")));
	(void)printf("  %-16s%s\n", "physical",
		     ctl_bytes(ctl_number(f, "physical_bytes")));
	(void)printf("  %-16s%s\n", "native",
		     cJSON_IsTrue(native) || ctl_number(f, "native") == 1 ?
			     "yes" :
			     "no");
	(void)printf("  %-16s%s\n", "digest", ctl_text(f, "digest"));
	if (*ctl_text(f, "format"))
		(void)printf("  %-16s%s\n", "format", ctl_text(f, "format"));
	print_writer(cJSON_GetObjectItemCaseSensitive(f, "writer"));
	print_extents(extents);
}

static int inspect_file(const char *path, int fd, bool json)
{
	cJSON *f;
	int rc = ctl_query(fd, CKPTFS_INSPECT, &f);
	bool failed;

	if (rc < 0)
		return ctl_complain_query(path, rc);
	failed = strcmp(ctl_text(f, "state"), "failed") == 0;
	if (json) {
		ctl_print_json(f);
	} else {
		print_file(path, f);
		cJSON_Delete(f);
	}
	return failed ? CTL_PROBLEM : CTL_FINE;
}

/* An attribute of a file in a directory, "-" when it has none. */
static void attribute(const char *dir, const char *name, const char *which,
		      char ret[ATTRIBUTE_BYTES])
{
	SCOPED(scope_free) char *path = NULL;
	char full[ATTRIBUTE_BYTES];
	ssize_t n = -1;

	(void)snprintf(full, sizeof(full), "user.ckptfs.%s", which);
	if (asprintf(&path, "%s/%s", dir, name) > 0)
		n = lgetxattr(path, full, ret, ATTRIBUTE_BYTES - 1);
	if (n < 0)
		(void)snprintf(ret, ATTRIBUTE_BYTES, "-");
	else
		ret[n] = 0;
}

struct row {
	char state[ATTRIBUTE_BYTES], physical[ATTRIBUTE_BYTES];
	char native[ATTRIBUTE_BYTES];
	uint64_t size;
};

static void row_print(const struct row *r, const char *name)
{
	const char *physical = "-";

	if (strcmp(r->physical, "-") != 0)
		physical = ctl_bytes(strtoull(r->physical, NULL, 10));
	(void)printf("%-8s %11s %11s  %-6s  ", r->state, ctl_bytes(r->size),
		     physical, strcmp(r->native, "1") == 0 ? "native" : "-");
	ctl_print_line(name);
}

static void row_add(const struct row *r, const char *name, cJSON *list)
{
	cJSON *one = cJSON_CreateObject();

	ctl_add_text(one, "name", name);
	ctl_add_text(one, "state", r->state);
	ctl_add_number(one, "size_bytes", r->size);
	ctl_add_number(one, "physical_bytes",
		       strtoull(r->physical, NULL, 10));
	(void)cJSON_AddBoolToObject(one, "native", r->native[0] == '1');
	(void)cJSON_AddItemToArray(list, one);
}

/* 1: the file failed, else 0. */
static int inspect_entry(const char *dir, int dirfd, const char *name,
			 cJSON *list)
{
	struct stat st;
	struct row r;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0; /* it has just been deleted */
	if (S_ISDIR(st.st_mode) && !list) {
		(void)printf("%-8s %11s %11s  %-6s  ", "dir", "-", "-", "-");
		ctl_print_line(name);
	}
	if (!S_ISREG(st.st_mode))
		return 0;
	r.size = (uint64_t)st.st_size;
	attribute(dir, name, "state", r.state);
	attribute(dir, name, "physical_bytes", r.physical);
	attribute(dir, name, "native", r.native);
	if (list)
		row_add(&r, name, list);
	else
		row_print(&r, name);
	return strcmp(r.state, "failed") == 0;
}

static int inspect_names(const char *path, int fd, bool json)
{
	cJSON *list = json ? cJSON_CreateArray() : NULL;
	struct dirent **names;
	int count = scandir(path, &names, NULL, alphasort);
	int failed = 0;

	if (count < 0) {
		cJSON_Delete(list);
		return ctl_complain_query(path, -errno);
	}
	if (!json)
		(void)printf("%-8s %11s %11s  %-6s  %s\n", "state", "size",
			     "physical", "native", "name");
	for (int n = 0; n < count; n++) {
		if (strcmp(names[n]->d_name, ".") != 0 &&
		    strcmp(names[n]->d_name, "..") != 0)
			failed |= inspect_entry(path, fd, names[n]->d_name,
						list);
		free(names[n]);
	}
	free(names);
	if (json)
		ctl_print_json(list);
	return failed ? CTL_PROBLEM : CTL_FINE;
}

static int inspect(const char *path, bool json)
{
	SCOPED(scope_close) int fd = ctl_open(path);
	cJSON *status;
	struct stat st;
	int rc;

	if (fd < 0)
		return ctl_complain_query(path, fd);
	if (fstat(fd, &st) < 0)
		return ctl_complain_query(path, -errno);
	if (!S_ISDIR(st.st_mode))
		return inspect_file(path, fd, json);
	rc = ctl_query(fd, CKPTFS_STATUS, &status);
	if (rc < 0)
		return ctl_complain_query(path, rc);
	cJSON_Delete(status);
	return inspect_names(path, fd, json);
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	struct ctl_options o = { .command = self };
	int option = ctl_option(&o, argc, argv);

	if (option != CTL_OPTION_DONE)
		return ctl_option_exit(option);
	if (argc - optind != 1)
		return ctl_misused("inspect: name one file or directory");
	return inspect(argv[optind], o.json);
}

const struct ctl_command ctl_inspect = {
	.name = "inspect",
	.arguments = "PATH",
	.summary = "what a file consists of; or all files of a directory",
	.help = "  state     staged (not durable yet), durable or failed\n"
		"  physical  its part of the space: what n files share counts "
		"one n-th\n"
		"  native    one image is the whole file: it is read without "
		"the daemon\n"
		"  writer    who created it or began it anew, from the "
		"environment of that\n"
		"            process or from the file's name\n\n"
		"Exit code 1 when a file could not be made durable.\n\n",
	.run = run,
};
