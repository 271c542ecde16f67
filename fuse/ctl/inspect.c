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
#include "fuse/ctl/step.h"
#include "store/base/scope.h"

#define ATTRIBUTE_BYTES 64
/* More extents are counted, but not printed, for people. */
#define EXTENTS_SHOWN 64

struct options {
	bool json, all, digest, diff, structure;
};

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
			(void)printf(
				"    ... and %s more (all with --json)\n",
				ctl_count((uint64_t)(count - EXTENTS_SHOWN)));
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
			     strcmp(kind, "data_parallel") == 0
				     ? "data parallel "
			     : strcmp(kind, "model_parallel") == 0
				     ? "model parallel "
				     : "",
			     (unsigned long long)ctl_number(w, "rank"));
	else
		(void)printf("unknown rank");
	if (ctl_number(w, "world_size") > 0)
		(void)printf(" of %llu",
			     (unsigned long long)ctl_number(w, "world_size"));
	if (*host)
		(void)printf(" on %s", ctl_shown(host));
	if (*job)
		(void)printf(", job %s", ctl_shown(job));
	if (*kind)
		(void)printf(" (%s)", ctl_text(w, "source"));
	(void)printf("\n");
}

static void print_file(const char *path, const cJSON *f)
{
	ctl_print_line(path);
	(void)printf("  %-16s%s\n", "state", ctl_text(f, "state"));
	if (*ctl_text(f, "error"))
		(void)printf("  %-16s%s\n", "error", ctl_text(f, "error"));
	if (*ctl_text(f, "shared"))
		(void)printf("  %-16s%s%s%s\n", "shared",
			     ctl_text(f, "shared"),
			     *ctl_text(f, "shared_node") ? " on " : "",
			     ctl_shown(ctl_text(f, "shared_node")));
	(void)printf("  %-16s%s\n", "size",
		     ctl_bytes(ctl_number(f, "size_bytes")));
	(void)printf("  %-16s%s\n", "physical",
		     ctl_bytes(ctl_number(f, "physical_bytes")));
	(void)printf("  %-16s%s\n", "native",
		     cJSON_IsTrue(ctl_member(f, "native")) ? "yes" : "no");
	(void)printf("  %-16s%s\n", "digest", ctl_text(f, "digest"));
	print_writer(ctl_member(f, "writer"));
	print_extents(ctl_member(f, "extents"));
}

static void complain_errors(const struct step *s)
{
	for (size_t i = 0; i < s->in.error_count; i++)
		ctl_complain("%s%s%s: %s", s->is_folder ? s->path : "",
			     s->is_folder ? "/" : "", s->in.errors[i].file,
			     s->in.errors[i].what);
}

static int inspect_file(const struct step *s, const struct options *o)
{
	cJSON *f;
	int rc = ctl_query(s->fd, CKPTFS_INSPECT, &f);
	bool failed;
	struct stat st;

	if (rc < 0 && rc != -ENOTTY)
		return ctl_complain_query(s->path, rc);
	if (rc < 0) { /* not in a mount: there is less to say */
		if (fstat(s->fd, &st) < 0)
			return ctl_complain_query(s->path, -errno);
		f = cJSON_CreateObject();
		ctl_add_text(f, "path", s->path);
		ctl_add_number(f, "size_bytes", (uint64_t)st.st_size);
	}
	failed = strcmp(ctl_text(f, "state"), "failed") == 0;
	if (o->json) {
		step_print_json(s, f);
	} else {
		if (rc == 0)
			print_file(s->path, f);
		else
			(void)printf("%s\n  %-16s%s\n", ctl_shown(s->path),
				     "size",
				     ctl_bytes(ctl_number(f, "size_bytes")));
		step_print(s, o->all);
		if (s->in.has_dcp && s->in.tensors.count == 0)
			(void)printf("  %-16s%s, in the files beside it: "
				     "inspect their directory\n",
				     "pieces",
				     ctl_count(s->in.dcp.entry_count));
		cJSON_Delete(f);
	}
	return failed || !structure_is_sound(&s->in) ? CTL_PROBLEM : CTL_FINE;
}

/* An attribute of a file in a directory, "-" when it has none. */
static void attribute(const char *dir, const char *name, const char *which,
		      char ret[ATTRIBUTE_BYTES])
{
	SCOPED(scope_free) char *path = NULL;
	ssize_t n = -1;

	if (asprintf(&path, "%s/%s", dir, name) > 0)
		n = lgetxattr(path, which, ret, ATTRIBUTE_BYTES - 1);
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
	ctl_add_number(one, "physical_bytes", strtoull(r->physical, NULL, 10));
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
	attribute(dir, name, "user.ckptfs.state", r.state);
	attribute(dir, name, "user.ckptfs.physical_bytes", r.physical);
	attribute(dir, name, "user.ckptfs.native", r.native);
	if (list)
		row_add(&r, name, list);
	else
		row_print(&r, name);
	return strcmp(r.state, "failed") == 0;
}

static int inspect_folder(const struct step *s, const struct options *o)
{
	cJSON *list = o->json ? cJSON_CreateArray() : NULL;
	struct dirent **names;
	int count = scandir(s->path, &names, NULL, alphasort);
	int failed = 0;

	if (count < 0) {
		cJSON_Delete(list);
		return ctl_complain_query(s->path, -errno);
	}
	if (!o->json)
		(void)printf("%-8s %11s %11s  %-6s  %s\n", "state", "size",
			     "physical", "native", "name");
	for (int n = 0; n < count; n++) {
		if (strcmp(names[n]->d_name, ".") != 0 &&
		    strcmp(names[n]->d_name, "..") != 0)
			failed |= inspect_entry(s->path, s->fd,
						names[n]->d_name, list);
		free(names[n]);
	}
	free(names);
	if (o->json) {
		cJSON *head = cJSON_CreateObject();

		(void)cJSON_AddItemToObject(head, "files", list);
		step_print_json(s, head);
	} else if (s->in.tensors.count > 0 || s->note) {
		step_print(s, o->all);
	}
	if (!o->json && s->megatron) {
		const cJSON *version =
			ctl_member(s->megatron, "sharded_backend_version");

		(void)printf(
			"  %-16s%s, version %g\n", "megatron",
			ctl_shown(ctl_text(s->megatron, "sharded_backend")),
			cJSON_IsNumber(version) ? version->valuedouble : 0.0);
	}
	return failed || !structure_is_sound(&s->in) ? CTL_PROBLEM : CTL_FINE;
}

static int inspect(const char *path, const struct options *o)
{
	SCOPED(step_release) struct step s = { .fd = -1 };
	int fd = ctl_open(path), rc, code;

	if (fd < 0)
		return ctl_complain_query(path, fd);
	rc = step_read(&s, path, fd);
	if (rc == 0 && o->digest && s.is_described)
		return ctl_misused("inspect: --digest reads bytes, and of zarr "
				   "none are read");
	if (rc == 0 && o->digest)
		rc = step_digest(&s);
	if (rc < 0)
		return ctl_complain_query(path, rc);
	code = s.is_folder ? inspect_folder(&s, o) : inspect_file(&s, o);
	complain_errors(&s);
	return code;
}

/* No tensors, and not because there are none: they could not be compared. */
static bool lists_nothing(const struct step *s)
{
	if (s->in.tensors.count > 0 || s->in.error_count > 0 ||
	    !(s->note || strcmp(s->in.format, "plain") == 0 ||
	      strcmp(s->in.format, "zip") == 0))
		return false;
	ctl_complain("%s: no tensors that are understood here%s%s", s->path,
		     s->note ? "; it is " : "", s->note ? s->note : "");
	return true;
}

static int inspect_diff(const char *a, const char *b, const struct options *o)
{
	SCOPED(step_release) struct step s = { .fd = -1 };
	SCOPED(step_release) struct step t = { .fd = -1 };
	struct step *both[] = { &s, &t };
	const char *paths[] = { a, b };

	for (size_t i = 0; i < 2; i++) {
		int fd = ctl_open(paths[i]);
		int rc = fd < 0 ? fd : step_read(both[i], paths[i], fd);

		if (rc < 0)
			return ctl_complain_query(paths[i], rc);
		complain_errors(both[i]);
	}
	if ((!s.is_folder && s.in.has_dcp && s.in.tensors.count == 0) ||
	    (!t.is_folder && t.in.has_dcp && t.in.tensors.count == 0))
		return ctl_misused("inspect: --diff of .metadata takes the "
				   "two directories");
	if (lists_nothing(&s) || lists_nothing(&t))
		return CTL_USAGE;
	if ((s.is_described || t.is_described) && !o->structure)
		return ctl_misused("inspect: the bytes of zarr are not read: "
				   "give --structure");
	return diff_steps(&s, &t, o->json, o->all, o->structure);
}

static int run(const struct ctl_command *self, int argc, char **argv)
{
	static const struct option names[] = {
		{ "all", no_argument, NULL, 'a' },
		{ "digest", no_argument, NULL, 'd' },
		{ "diff", no_argument, NULL, 'D' },
		{ "structure", no_argument, NULL, 's' },
		{ 0 },
	};
	struct ctl_options c = { .command = self,
				 .letters = "ad",
				 .names = names };
	struct options o = { .diff = false };
	int option;

	while ((option = ctl_option(&c, argc, argv)) >= 0) {
		o.all |= option == 'a';
		o.digest |= option == 'd';
		o.diff |= option == 'D';
		o.structure |= option == 's';
	}
	o.json = c.json;
	if (o.structure && !o.diff)
		return ctl_misused("inspect: --structure is for --diff");
	if (o.diff && o.digest)
		return ctl_misused("inspect: --diff reads the bytes anyway");
	if (argc - optind != (o.diff ? 2 : 1))
		return ctl_misused(o.diff ? "inspect: name two files or two "
					    "directories"
					  : "inspect: name one file or "
					    "directory");
	if (o.diff)
		return inspect_diff(argv[optind], argv[optind + 1], &o);
	return inspect(argv[optind], &o);
}

const struct ctl_command ctl_inspect = {
	.name = "inspect",
	.arguments = "[OPTION...] PATH | --diff [OPTION...] A B",
	.summary = "what a file or directory consists of, and its tensors",
	.help = "PATH need not be in a mount. Tensors are listed of "
		"safetensors, of what torch.save\nwrites, of .npy, .npz and zarr, and "
		"of .distcp files; of a checkpoint with .metadata also\n"
		"whether it holds together. What is not listed is named: "
		"HDF5, OCDBT, ...\n\n"
		"  state     staged (not durable yet), durable or failed\n"
		"  physical  its part of the space: what n files share counts "
		"one n-th\n"
		"  native    one image is the whole file: it is read without "
		"the daemon\n"
		"  writer    who created it or began it anew, from the "
		"environment of that\n"
		"            process or from the file's name\n\n"
		"  structure XXH3-128 of all tensors' files, names, dtypes, "
		"shapes and lengths\n\n"
		"--diff says what was added, removed, retyped, reshaped, moved "
		"or changed from A to B;\nexit code 1 when the structure "
		"differs. Bytes are read, unless the mount knows\nthat they are "
		"the same. Of different formats, or numbers of ranks, whole "
		"tensors are\ncompared.\n\n"
		"  -a, --all    print all tensors, not the first 64\n"
		"  -d, --digest print a digest of every tensor (reads all), and "
		"with --json who\n               shares its bytes (* without)\n"
		"  --diff       compare A with B\n"
		"  --structure  with --diff: compare no bytes\n\n"
		"Exit code 1 also when a file could not be made durable, is "
		"damaged, or a checkpoint\ndoes not hold together.\n\n",
	.run = run,
};
