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

static bool has_tensor(const struct structure *s, const char *name)
{
	return s->tensors.count > 0 &&
	       bsearch(name, s->tensors.all, s->tensors.count,
		       sizeof(*s->tensors.all), name_of_tensor);
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

static int check_map(struct index *x, const cJSON *map)
{
	const cJSON *one;
	int rc = check_files(x, map);

	cJSON_ArrayForEach(one, map) {
		/* What could not be read may have it. */
		if (rc < 0 || x->s->error_count > 0)
			break;
		if (cJSON_IsString(one) &&
		    text_ends_in(one->valuestring, ".safetensors") &&
		    !has_tensor(x->s, one->string))
			return lacks(x, one->valuestring, one->string);
	}
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
	size_t len = 0, at = 0;
	int rc = read_text(in, x->path, &text, &len);

	if (rc < 0) /* what could not be read was said already, or is large */
		return rc == -ENOMEM ? rc : 0;
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
