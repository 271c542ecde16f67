/*
 * zarr.c - the arrays of a zarr store in a folder: zarr.json of version 3,
 * .zarray and .zgroup of version 2. A group is a folder that has groups and
 * arrays; an array's folder has its chunks, and is not gone into.
 *
 * Of an array its type and shape are listed. Its bytes are not in one place,
 * and nearly always compressed: they are not read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "fuse/ctl/step.h"
#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/json_text.h"
#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/formats/dtype.h"

#define DESCRIPTION_BYTES_MAX (1u << 20)
#define DEPTH_MAX 16
/* Groups and arrays that are looked into. */
#define NODES_MAX 65536
/* A larger number is not the one that the JSON has. */
#define EXACT_MAX 0x1p53

struct walk {
	struct step *s;
	const char *name; /* of this folder, below the first; "": it is */
	unsigned depth, *nodes;
};

static int note(struct walk *w, const char *file, const char *what)
{
	return structure_add_error(&w->s->in, file, what);
}

/*
 * What a file of the folder says. -ENOENT: it is not there. Another error was
 * noted, and NULL is what it says.
 */
static int describe(struct walk *w, int folder, const char *name, cJSON **ret)
{
	SCOPED(scope_close)
	int fd = openat(folder, name,
			O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	SCOPED(scope_free) char *text = malloc(DESCRIPTION_BYTES_MAX + 2);
	SCOPED(scope_free) char *path = NULL;
	const char *wrong = NULL;
	size_t len = 0, at = 0;
	int rc;

	*ret = NULL;
	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	rc = fd < 0 ? -errno : 0;
	CHECK(text && asprintf(&path, "%s%s%s", w->name, *w->name ? "/" : "",
			       name) >= 0); /* out of memory */
	if (rc == 0)
		rc = io_read(fd, text, DESCRIPTION_BYTES_MAX + 1, 0, &len);
	if (rc < 0) {
		wrong = strerror(-rc);
	} else if (len > DESCRIPTION_BYTES_MAX) {
		wrong = "it is too long to describe an array";
	} else {
		text[len] = 0;
		wrong = json_text_parse(text, len, ret, &at);
	}
	if (!wrong && !cJSON_IsObject(*ret))
		wrong = "it is no JSON object";
	if (!wrong)
		return 0;
	cJSON_Delete(*ret);
	*ret = NULL;
	return note(w, path, wrong);
}

static bool shape_of(const cJSON *list, struct tensor *t,
		     uint64_t shape[TENSOR_RANK_MAX])
{
	const cJSON *one;

	if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > TENSOR_RANK_MAX)
		return false;
	cJSON_ArrayForEach(one, list) {
		if (!cJSON_IsNumber(one) || !(one->valuedouble >= 0) ||
		    one->valuedouble > EXACT_MAX)
			return false;
		shape[t->rank++] = (uint64_t)one->valuedouble;
	}
	t->shape = shape;
	return true;
}

/* Version 3 has "float32", or an object with a name; 2 has numpy's "<f4". */
static const char *type_of(const cJSON *array)
{
	const cJSON *type = cJSON_GetObjectItem(array, "data_type");
	size_t bytes;

	if (cJSON_IsObject(type))
		type = cJSON_GetObjectItem(type, "name");
	if (cJSON_IsString(type))
		return type->valuestring;
	type = cJSON_GetObjectItem(array, "dtype");
	return cJSON_IsString(type) ? dtype_of_numpy(type->valuestring, &bytes)
				    : NULL;
}

static int add_array(struct walk *w, const char *file, const cJSON *array)
{
	uint64_t shape[TENSOR_RANK_MAX];
	struct tensor t = { .name = *w->name ? w->name : TENSOR_NAMELESS,
			    .dtype = type_of(array) };
	SCOPED(scope_free) char *path = NULL;

	CHECK(asprintf(&path, "%s%s%s", w->name, *w->name ? "/" : "", file) >=
	      0); /* out of memory */
	if (!shape_of(cJSON_GetObjectItem(array, "shape"), &t, shape))
		return note(w, path, "it has no shape of an array");
	t.file = structure_keep_name(&w->s->in, path);
	return t.file ? tensors_add(&w->s->in.tensors, &t) : -ENOMEM;
}

static int look(struct walk *w, int folder);

static int look_below(void *arg, int fd, const char *name)
{
	struct walk *w = arg;
	struct walk next = *w;
	SCOPED(scope_close) int folder = -1;
	SCOPED(scope_free) char *path = NULL;
	struct stat st;

	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISDIR(st.st_mode) || !utf8_is(name, strlen(name)))
		return 0;
	CHECK(asprintf(&path, "%s%s%s", w->name, *w->name ? "/" : "", name) >=
	      0); /* out of memory */
	if (w->depth == DEPTH_MAX || ++*w->nodes > NODES_MAX)
		return note(w, path, "too many groups and arrays");
	folder = openat(fd, name,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (folder < 0)
		return note(w, path, strerror(errno));
	next.name = path;
	next.depth++;
	return look(&next, folder);
}

/* One folder: an array, or what may have some. */
static int look(struct walk *w, int folder)
{
	static const char *const files[] = { "zarr.json", ".zarray" };

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		cJSON *said, *kind;
		bool is_array;
		int rc = describe(w, folder, files[i], &said);

		if (rc == -ENOENT)
			continue;
		if (rc < 0 || !said)
			return rc;
		kind = cJSON_GetObjectItem(said, "node_type");
		is_array = i == 1 || (cJSON_IsString(kind) &&
				      strcmp(kind->valuestring, "array") == 0);
		if (is_array)
			rc = add_array(w, files[i], said);
		cJSON_Delete(said);
		if (is_array)
			return rc;
	}
	return dir_each(folder, ".", look_below, w);
}

bool zarr_is(int folder)
{
	static const char *const files[] = { "zarr.json", ".zarray",
					     ".zgroup" };

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		if (faccessat(folder, files[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0)
			return true;
	return false;
}

int zarr_read(struct step *s)
{
	unsigned nodes = 0;
	struct walk w = { .s = s, .name = "", .nodes = &nodes };
	int rc = look(&w, s->fd);

	s->in.format = "zarr";
	s->note = "of its arrays type and shape are listed, bytes are not read";
	s->is_described = true;
	return rc == 0 ? structure_finish(&s->in) : rc;
}
