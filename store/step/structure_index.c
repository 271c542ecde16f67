/* structure_index.c - see structure_index.h; the tree is asked by its paths. */
#include "store/step/structure_index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/json_text.h"
#include "store/base/scope.h"
#include "store/base/text.h"

#define INDEX_SUFFIX ".index.json"

struct index {
	struct structure *s;
	const char *path; /* of the index, and of the folder it is in */
	const char *folder;
	const char **files; /* owned; paths of the whole tree, sorted */
	size_t file_count;
};

static void scope_json(cJSON **j)
{
	cJSON_Delete(*j);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int name_of_tensor(const void *name, const void *tensor)
{
	return strcmp(name, ((const struct tensor *)tensor)->name);
}

static bool has_file(const struct index *x, const char *path)
{
	return bsearch(&path, x->files, x->file_count, sizeof(*x->files),
		       by_name);
}

/* Where the tensors of this name begin, and how many there are. */
static size_t tensors_named(const struct structure *s, const char *name,
			    const struct tensor **ret)
{
	const struct tensor *all = s->tensors.all, *hit;
	size_t count = s->tensors.count, at, n = 0;

	hit = count > 0
		      ? bsearch(name, all, count, sizeof(*all), name_of_tensor)
		      : NULL;
	if (!hit)
		return 0;
	for (at = (size_t)(hit - all);
	     at > 0 && strcmp(all[at - 1].name, name) == 0;)
		at--;
	while (at + n < count && strcmp(all[at + n].name, name) == 0)
		n++;
	*ret = &all[at];
	return n;
}

enum where { NOWHERE, ELSEWHERE, THERE };

/* Is a tensor of this name in the file that the index says, or beside it? */
static enum where where_is(const struct index *x, const char *name,
			   const char *file)
{
	const struct tensor *t;
	size_t n = tensors_named(x->s, name, &t), below = strlen(x->folder);
	enum where where = NOWHERE;

	for (size_t i = 0; i < n; i++) {
		const char *path = t[i].file;

		if (!path || strncmp(path, x->folder, below) != 0 ||
		    (below > 0 && path[below] != '/'))
			continue;
		path += below + (below > 0);
		if (strcmp(path, file) == 0)
			return THERE;
		where = strchr(path, '/') ? where : ELSEWHERE;
	}
	return where;
}

static int lacks(struct index *x, const char *file, const char *tensor)
{
	char what[512];

	(void)snprintf(what, sizeof(what),
		       "%s%.300s%s named by %.150s is not there",
		       tensor ? "tensor '" : "the file that is",
		       tensor ? tensor : "", tensor ? "'" : "", x->path);
	return structure_add_fault(x->s, STRUCTURE_MISSING, file, what);
}

static int not_named(struct index *x, const char *file, const char *tensor)
{
	char what[512];

	(void)snprintf(what, sizeof(what),
		       "tensor '%.300s' is not named by %.150s", tensor,
		       x->path);
	return structure_add_fault(x->s, STRUCTURE_MISSING, file, what);
}

/* The files that it names, each once. */
static int check_files(struct index *x, const cJSON *map)
{
	size_t n = 0, count = (size_t)cJSON_GetArraySize(map);
	SCOPED(scope_free)
	const char **named = calloc(count + 1, sizeof(*named));
	const cJSON *one;
	int rc = named ? 0 : -ENOMEM;

	if (rc < 0)
		return rc;
	cJSON_ArrayForEach(one, map)
		if (cJSON_IsString(one))
			named[n++] = one->valuestring;
	qsort(named, n, sizeof(*named), by_name);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		SCOPED(scope_free) char *path = NULL;

		if (i > 0 && strcmp(named[i], named[i - 1]) == 0)
			continue;
		path = tree_join(x->folder, named[i]);
		if (!path)
			return -ENOMEM;
		if (!has_file(x, path))
			rc = lacks(x, path, NULL);
	}
	return rc;
}

/* Each tensor that it names, in the file that it says. */
static int check_tensors(struct index *x, const cJSON *map)
{
	const cJSON *one;

	cJSON_ArrayForEach(one, map) {
		const char *file = one->valuestring;
		enum where where;

		if (!cJSON_IsString(one))
			continue;
		where = where_is(x, one->string, file);
		/* What a pickle has may be called otherwise. */
		if (where == ELSEWHERE ||
		    (where == NOWHERE && text_ends_in(file, ".safetensors")))
			return lacks(x, file, one->string);
	}
	return 0;
}

/* Each tensor of a .safetensors file that it names. */
static int check_named(struct index *x, const cJSON *map)
{
	size_t n = 0, count = (size_t)cJSON_GetArraySize(map);
	SCOPED(scope_free)
	const char **tensors = calloc(count + 1, sizeof(*tensors));
	SCOPED(scope_free)
	const char **files = calloc(count + 1, sizeof(*files));
	const cJSON *one;

	if (!tensors || !files)
		return -ENOMEM;
	cJSON_ArrayForEach(one, map)
		if (cJSON_IsString(one)) {
			tensors[n] = one->string;
			files[n++] = one->valuestring;
		}
	qsort(tensors, n, sizeof(*tensors), by_name);
	qsort(files, n, sizeof(*files), by_name);
	for (size_t i = 0; i < x->s->tensors.count; i++) {
		const struct tensor *t = &x->s->tensors.all[i];
		size_t below = strlen(x->folder);
		const char *file = t->file;

		if (!file || !text_ends_in(file, ".safetensors") ||
		    strncmp(file, x->folder, below) != 0 ||
		    (below > 0 && file[below] != '/'))
			continue;
		file += below + (below > 0);
		if (bsearch(&file, files, n, sizeof(*files), by_name) &&
		    !bsearch(&t->name, tensors, n, sizeof(*tensors), by_name))
			return not_named(x, t->file, t->name);
	}
	return 0;
}

static int check_map(struct index *x, const cJSON *map)
{
	int rc = check_files(x, map);

	/* What could not be read may have it. */
	if (rc == 0 && x->s->error_count == 0)
		rc = check_tensors(x, map);
	if (rc == 0 && x->s->error_count == 0)
		rc = check_named(x, map);
	return rc;
}

static int read_text(const struct structure_source *in, const char *path,
		     char **ret_text, size_t *ret_len)
{
	SCOPED(scope_free) char *text = NULL;
	struct cut_source file;
	int rc = in->open(in->self, path, &file);

	if (rc < 0)
		return rc;
	if (file.size_bytes > STRUCTURE_INDEX_BYTES_MAX)
		rc = -EFBIG;
	if (rc == 0) {
		text = malloc((size_t)file.size_bytes + 1);
		rc = text ? file.read(file.self, text, (size_t)file.size_bytes,
				      0)
			  : -ENOMEM;
	}
	in->close(in->self, &file);
	if (rc < 0)
		return rc;
	*ret_len = (size_t)file.size_bytes;
	text[*ret_len] = 0;
	*ret_text = TAKE(text);
	return 0;
}

static int check_index(struct index *x, const struct structure_source *in)
{
	SCOPED(scope_free) char *text = NULL;
	SCOPED(scope_json) cJSON *root = NULL;
	const char *wrong;
	const cJSON *map;
	size_t len = 0, at = 0, memory;
	int rc = read_text(in, x->path, &text, &len);

	if (rc < 0) /* what could not be read was said already, or is large */
		return rc == -ENOMEM ? rc : 0;
	memory = len + json_text_memory(text, len);
	if ((in->memory_bytes_max && memory > in->memory_bytes_max) ||
	    memory > memory_left(in->budget))
		return structure_add_fault(x->s, STRUCTURE_NOT_READ, x->path,
					   "too large to be checked");
	memory_note(in->budget, 0, memory);
	wrong = json_text_parse(text, len, &root, &at);
	if (wrong)
		return structure_add_fault(x->s, STRUCTURE_TORN, x->path,
					   wrong);
	map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
	return cJSON_IsObject(map) ? check_map(x, map) : 0;
}

int structure_check_indexes(struct structure *s,
			    const struct structure_source *in,
			    const struct tree *t)
{
	SCOPED(scope_free)
	const char **files = calloc(t->count + 1, sizeof(*files));
	struct index x = { .s = s, .files = files };
	int rc = files ? 0 : -ENOMEM;

	for (size_t i = 0; rc == 0 && i < t->count; i++)
		if (!t->all[i].folder)
			files[x.file_count++] = t->all[i].path;
	if (rc == 0)
		qsort(files, x.file_count, sizeof(*files), by_name);
	for (size_t i = 0; rc == 0 && i < t->count; i++) {
		const struct tree_entry *e = &t->all[i];
		SCOPED(scope_free) char *one = NULL;

		if (e->folder || !text_ends_in(e->name, INDEX_SUFFIX))
			continue;
		one = strndup(e->path, strlen(e->path) - strlen(INDEX_SUFFIX));
		if (!one)
			return -ENOMEM;
		x.path = e->path;
		x.folder = t->all[e->in].path;
		if (!has_file(&x, one))
			rc = check_index(&x, in);
	}
	return rc;
}
