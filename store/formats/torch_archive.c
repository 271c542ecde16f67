/*
 * torch_archive.c - an archive's members by name, then its data.pkl, which says
 * which member is the storage of which tensor. Members that no tensor has are
 * listed as well.
 */
#include "store/formats/torch_archive.h"

#include <inttypes.h>

#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/base/vec.h"
#include "store/formats/dcp_names.h"
#include "store/formats/npy_array.h"
#include "store/formats/torch_pickle.h"
#include "store/formats/torch_zip.h"

/* No longer data.pkl is read. */
#define PICKLE_BYTES_MAX (UINT64_C(256) << 20)
/* Members of one archive. */
#define MEMBERS_MAX (UINT32_C(1) << 24)

struct member {
	char *name; /* owned by the blocks */
	size_t name_len;
	uint64_t at, bytes;
	bool packed, used;
};

struct archive {
	struct walk *w;
	struct tensors *list;
	struct dcp_block *blocks; /* of the members' names */
	struct member *members; /* owned; by name once all are there */
	size_t count, capacity;
	uint64_t bytes; /* that these take */
	size_t prefix_len; /* of "archive/" in data.pkl's name */
	struct member *pickle;
};

static void archive_release(struct archive *a)
{
	free(a->members);
	dcp_blocks_release(&a->blocks);
}

static int read_member(struct archive *a, const struct zip_archive *z,
		       const struct zip_entry *e)
{
	struct member m = { .name_len = e->name_bytes, .packed = e->packed };
	int rc = zip_payload_at(a->w, e, &m.at);
	bool found = rc > 0;

	if (rc < 0)
		return rc;
	m.bytes = e->payload_bytes;
	/* Twice, while their array grows. */
	a->bytes += 2 * sizeof(m) + m.name_len + 16;
	rc = tensors_afford(a->list, a->bytes, "its directory");
	if (rc < 0)
		return rc;
	m.name = dcp_alloc(&a->blocks, m.name_len + 1);
	if (!m.name)
		return -ENOMEM;
	if (m.name_len > 0 &&
	    walk_read(a->w, m.name, m.name_len, e->name_at) < 0)
		return -EIO;
	m.name[m.name_len] = 0;
	if (!utf8_is(m.name, m.name_len) || memchr(m.name, 0, m.name_len))
		return tensors_refuse(a->list,
				      "the archive at %" PRIu64
				      ": the name of member %zu has a NUL in "
				      "it, or is not UTF-8",
				      z->at, a->count);
	if (!found || m.at > z->dir_at || m.bytes > z->dir_at - m.at)
		return tensors_refuse(a->list,
				      "member '%.200s' of %" PRIu64
				      " bytes does not lie in the archive",
				      m.name, m.bytes);
	rc = vec_grow(&a->members, a->count, &a->capacity, sizeof(m));
	if (rc < 0)
		return rc;
	a->members[a->count++] = m;
	return 0;
}

static int member_compare(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	size_t n = x->name_len < y->name_len ? x->name_len : y->name_len;
	int c = memcmp(x->name, y->name, n);

	return c ? c
		 : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

static int read_members(struct archive *a, const struct zip_archive *z)
{
	static const char suffix[] = "data.pkl";
	uint64_t at = z->dir_at;
	struct zip_entry e;
	int rc;

	while ((rc = zip_entry_read(a->w, z, at, &e)) > 0) {
		if (a->count == MEMBERS_MAX)
			return tensors_refuse(a->list, "more than %u members",
					      MEMBERS_MAX);
		rc = read_member(a, z, &e);
		if (rc < 0)
			return rc;
		at = e.next_at;
	}
	if (rc < 0)
		return rc;
	if (at != z->dir_at + z->dir_bytes)
		return tensors_refuse(a->list,
				      "the archive's directory is damaged at "
				      "%" PRIu64,
				      at);
	if (a->count > 1)
		qsort(a->members, a->count, sizeof(*a->members),
		      member_compare);
	for (size_t i = 0; i < a->count; i++) {
		struct member *m = &a->members[i];
		size_t n = sizeof(suffix) - 1;

		if (i > 0 && member_compare(m - 1, m) == 0)
			return tensors_refuse(a->list,
					      "member '%.200s' is there twice",
					      m->name);
		if (!a->pickle && m->name_len > n &&
		    m->name[m->name_len - n - 1] == '/' &&
		    strcmp(m->name + m->name_len - n, suffix) == 0 &&
		    !memchr(m->name, '/', m->name_len - n - 1)) {
			a->pickle = m;
			a->prefix_len = m->name_len - n;
		}
	}
	return 0;
}

static int find_storage(void *self, const char *key, size_t key_len,
			uint64_t *ret_at, uint64_t *ret_bytes)
{
	struct archive *a = self;
	size_t len = a->prefix_len + 5 + key_len;
	SCOPED(scope_free) char *name = NULL;
	struct member wanted, *m;

	if (key_len > UINT16_MAX)
		return -ENOENT;
	name = malloc(len + 1);
	if (!name)
		return -ENOENT;
	memcpy(name, a->pickle->name, a->prefix_len);
	memcpy(name + a->prefix_len, "data/", 5);
	memcpy(name + a->prefix_len + 5, key, key_len);
	wanted = (struct member){ .name = name, .name_len = len };
	m = bsearch(&wanted, a->members, a->count, sizeof(*m), member_compare);
	if (!m || m->packed)
		return -ENOENT;
	m->used = true;
	*ret_at = m->at;
	*ret_bytes = m->bytes;
	return 0;
}

/* Storages that no tensor was seen to have: they shall not go unseen. */
static int add_unused(struct archive *a, const char *file)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < a->count; i++) {
		const struct member *m = &a->members[i];
		struct tensor t = { .file = file,
				    .offset = m->at,
				    .bytes = m->bytes };

		if (m->used || m->name_len < a->prefix_len + 5 ||
		    memcmp(m->name + a->prefix_len, "data/", 5) != 0)
			continue;
		t.name = m->name + a->prefix_len;
		rc = tensors_add(a->list, &t);
	}
	return rc;
}

static int read_pickle(struct archive *a, const char *file)
{
	const struct tensor_storages storages = { find_storage, a };
	SCOPED(scope_free) uint8_t *data = NULL;
	int rc;

	if (a->pickle->packed) {
		(void)tensors_refuse(a->list, "its data.pkl is compressed");
		return -EOPNOTSUPP;
	}
	if (a->pickle->bytes > PICKLE_BYTES_MAX) {
		(void)tensors_refuse(a->list,
				     "a data.pkl of %" PRIu64
				     " bytes; at most %" PRIu64 " are read",
				     a->pickle->bytes, PICKLE_BYTES_MAX);
		return -EFBIG;
	}
	rc = tensors_afford(a->list, a->pickle->bytes, "its data.pkl");
	if (rc < 0)
		return rc;
	data = malloc((size_t)a->pickle->bytes + 1);
	if (!data)
		return -ENOMEM;
	rc = walk_read(a->w, data, (size_t)a->pickle->bytes, a->pickle->at);
	if (rc < 0)
		return rc;
	rc = torch_pickle_read(a->list, data, (size_t)a->pickle->bytes,
			       &storages, file);
	return rc < 0 ? rc : add_unused(a, file);
}

/*
 * One archive of many: a tensor by itself is listed with all bytes of the
 * archive, as .metadata has it; anything else is just bytes.
 */
static int read_piece(struct tensors *l, struct walk *w,
		      const struct zip_archive *z, const char *file)
{
	SCOPED(tensors_release) struct tensors inside = { .all = NULL };
	SCOPED(archive_release) struct archive a = { .w = w, .list = &inside };
	struct tensor t = { .rank = 0 };
	char name[32];
	int rc;

	inside.budget = l->budget;
	if (l->bytes_max) /* what is left of it */
		inside.bytes_max =
			l->bytes < l->bytes_max ? l->bytes_max - l->bytes : 1;
	rc = read_members(&a, z);
	if (rc == 0 && a.pickle)
		rc = read_pickle(&a, file);
	if (rc == -EBADMSG || rc == -EFBIG || rc == -EOPNOTSUPP) {
		int kept = rc;

		(void)tensors_refuse(l, "the archive at %" PRIu64 ": %.400s",
				     z->at, inside.error);
		return kept;
	}
	if (rc < 0)
		return rc;
	if (inside.count == 1 && inside.all[0].name[0] == 0)
		t = inside.all[0];
	(void)snprintf(name, sizeof(name), "@%" PRIu64, z->at);
	t.name = name;
	t.file = file;
	t.offset = z->at;
	t.bytes = z->dir_at + z->dir_bytes + z->tail_bytes - z->at;
	return tensors_add(l, &t);
}

/* What numpy.savez makes: one member NAME.npy for each array. */
static int read_arrays(struct archive *a, const char *file)
{
	int rc = 0;

	a->list->format = "zip";
	for (size_t i = 0; rc == 0 && i < a->count; i++) {
		const struct member *m = &a->members[i];
		struct tensor packed = { .file = file,
					 .offset = m->at,
					 .bytes = m->bytes };
		SCOPED(scope_free) char *name = NULL;

		if (!text_ends_in(m->name, ".npy"))
			continue;
		a->list->format = "npz";
		name = strndup(m->name, m->name_len - strlen(".npy"));
		if (!name)
			return -ENOMEM;
		packed.name = name;
		if (m->packed)
			a->list->note = "numpy.savez_compressed: its arrays "
					"are compressed, and not looked into";
		rc = m->packed ? tensors_add(a->list, &packed)
			       : npy_array_add(a->list, a->w->source, m->at,
					       m->bytes, name, file);
	}
	return rc;
}

static int read_archive(struct tensors *l, struct walk *w,
			const struct zip_archive *z, const char *file)
{
	SCOPED(archive_release) struct archive a = { .w = w, .list = l };
	size_t first = l->count;
	int rc = read_members(&a, z);

	if (rc < 0)
		return rc;
	if (!a.pickle)
		return read_arrays(&a, file);
	rc = read_pickle(&a, file);
	/* All that was saved is one tensor: it has no name. */
	for (size_t i = first; i < l->count; i++)
		if (l->all[i].name[0] == 0)
			l->all[i].name = TENSOR_NAMELESS;
	return rc;
}

int torch_archives_read(struct tensors *l, const struct cut_source *source,
			bool is_distcp, const char *file)
{
	SCOPED(scope_free) struct walk *w = calloc(1, sizeof(*w));
	SCOPED(scope_free) struct zip_archive *archives = NULL;
	size_t count = 0;
	bool many;
	int rc;

	if (!w)
		return -ENOMEM;
	w->source = source;
	rc = torch_zip_archives(w, &archives, &count);
	if (rc < 0)
		return rc;
	if (count == 0)
		return tensors_refuse(l, "an archive without a directory at "
					 "its end: it was cut off");
	many = count > 1 || is_distcp;
	if (many)
		l->format = "distcp";
	for (size_t i = 0; rc == 0 && i < count; i++)
		rc = many ? read_piece(l, w, &archives[i], file)
			  : read_archive(l, w, &archives[i], file);
	return rc;
}
