/* step.c - see step.h. */
#include "fuse/ctl/step.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "fuse/ctl/ctl.h"
#include "fuse/ctl/folder.h"
#include "store/base/io.h"
#include "store/base/scope.h"

#define READ_BYTES (size_t)(1 << 20)
#define MEGATRON_NAME "metadata.json"
#define MEGATRON_BYTES_MAX (1 << 20)

void step_hex(const uint8_t digest[STEP_DIGEST_BYTES],
	      char ret[2 * STEP_DIGEST_BYTES + 1])
{
	for (size_t i = 0; i < STEP_DIGEST_BYTES; i++)
		(void)sprintf(ret + 2 * i, "%02x", digest[i]);
}

void step_print_name(const struct tensor *t)
{
	SCOPED(scope_free) char *line = NULL;

	if (asprintf(&line, "%s%s%s", t->file ? t->file : "",
		     t->file ? ": " : "", t->name) < 0)
		line = NULL;
	CHECK(line); /* out of memory */
	ctl_print_line(line);
}

static void add_error(struct step *s, const char *file, const char *what)
{
	struct step_error *e;

	s->errors = reallocarray(s->errors, s->error_count + 1, sizeof(*e));
	CHECK(s->errors); /* out of memory */
	e = &s->errors[s->error_count++];
	e->file = strdup(file);
	CHECK(e->file); /* out of memory */
	(void)snprintf(e->what, sizeof(e->what), "%s", what);
}

/* --- Comparing -------------------------------------------------------------
 */

static int compare_numbers(const uint64_t *a, const uint64_t *b, unsigned n)
{
	if (!a || !b)
		return (a != NULL) - (b != NULL);
	for (unsigned i = 0; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

int step_compare_place(const struct tensor *a, const struct tensor *b)
{
	int c = strcmp(a->name, b->name);

	if (c == 0 && a->place && b->place && a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return c ? c : compare_numbers(a->place, b->place, a->rank);
}

int step_compare(const struct tensor *a, const struct tensor *b)
{
	int c = step_compare_place(a, b);

	if (c == 0)
		c = strcmp(a->file ? a->file : "", b->file ? b->file : "");
	if (c == 0)
		c = (a->offset > b->offset) - (a->offset < b->offset);
	return c;
}

static int compare(const void *a, const void *b)
{
	return step_compare(a, b);
}

/*
 * The order in a file, and where things lie in it, do not count: what is no
 * tensor changes its length from step to step and moves all that follows it.
 */
static void structure(struct step *s)
{
	XXH3_state_t *x = XXH3_createState();
	XXH128_canonical_t digest;

	CHECK(x && XXH3_128bits_reset(x) == XXH_OK);
	for (size_t i = 0; i < s->tensors.count; i++) {
		const struct tensor *t = &s->tensors.all[i];
		const char *texts[] = { t->file ? t->file : "", t->name,
					t->dtype ? t->dtype : "" };
		const uint64_t *lists[] = { t->shape, t->strides, t->place,
					    t->whole };
		uint64_t bytes = t->dtype ? t->bytes : 0;

		for (size_t k = 0; k < 3; k++)
			(void)XXH3_128bits_update(x, texts[k],
						  strlen(texts[k]) + 1);
		(void)XXH3_128bits_update(x, &t->rank, sizeof(t->rank));
		for (size_t k = 0; k < 4; k++) {
			uint8_t is = lists[k] != NULL;

			(void)XXH3_128bits_update(x, &is, 1);
			if (is)
				(void)XXH3_128bits_update(
					x, lists[k],
					t->rank * sizeof(*lists[k]));
		}
		(void)XXH3_128bits_update(x, &bytes, sizeof(bytes));
	}
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(x));
	(void)XXH3_freeState(x);
	step_hex(digest.digest, s->structure);
}

/* --- Reading ---------------------------------------------------------------
 */

static int read_file(struct step *s, int dirfd, const char *name)
{
	SCOPED(scope_close)
	int fd = openat(dirfd, name,
			O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	size_t before = s->tensors.count;
	struct stat st;
	char *kept;
	int rc;

	if (fd < 0 || fstat(fd, &st) < 0) {
		add_error(s, name, strerror(errno));
		return 0;
	}
	if (!S_ISREG(st.st_mode))
		return 0;
	if (s->name_count == STEP_FILES_MAX)
		return -E2BIG;
	s->names = reallocarray(s->names, s->name_count + 1, sizeof(*s->names));
	kept = strdup(name);
	CHECK(s->names && kept); /* out of memory */
	s->names[s->name_count++] = kept;
	s->tensors.error[0] = 0;
	rc = tensors_read(&s->tensors, fd, name, kept);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		add_error(s, name,
			  s->tensors.error[0] ? s->tensors.error
					      : strerror(-rc));
	if (s->tensors.count > before && !s->format)
		s->format = s->tensors.format;
	else if (s->tensors.count > before &&
		 strcmp(s->format, s->tensors.format) != 0 && !s->has_dcp)
		s->format = "mixed";
	return 0;
}

static bool ends_in(const char *text, const char *suffix)
{
	size_t n = strlen(text), m = strlen(suffix);

	return n >= m && strcmp(text + n - m, suffix) == 0;
}

static int read_folder_files(struct step *s, const char *below)
{
	SCOPED(scope_free) char *path = NULL;
	struct dirent **names;
	int count, rc = 0;

	if (asprintf(&path, "%s/%s", s->path, below) < 0)
		return -ENOMEM;
	count = scandir(path, &names, NULL, alphasort);
	if (count < 0)
		return -errno;
	for (int i = 0; i < count; i++) {
		const char *name = names[i]->d_name;
		SCOPED(scope_free) char *full = NULL;
		struct stat st;

		if (asprintf(&full, "%s%s%s", below, *below ? "/" : "", name) <
		    0)
			rc = -ENOMEM;
		else if (rc < 0 || name[0] == '.' ||
			 fstatat(s->fd, full, &st, AT_SYMLINK_NOFOLLOW) < 0)
			;
		else if (S_ISREG(st.st_mode) &&
			 !(s->has_dcp && ends_in(name, ".distcp")))
			rc = read_file(s, s->fd, full);
		else if (S_ISDIR(st.st_mode) && !*below &&
			 strncmp(name, "mp_rank_", 8) == 0)
			rc = read_folder_files(s, full);
		free(names[i]);
	}
	free(names);
	return rc;
}

static int add_entry(struct step *s, const struct dcp_item *item,
		     const struct dcp_chunk *c, const struct dcp_entry *e)
{
	struct tensor t = { .name = item ? item->name : e->name,
			    .file = s->dcp.files[e->file].name,
			    .offset = e->offset,
			    .bytes = e->length };

	if (item && c) {
		t.dtype = item->dtype->name;
		t.rank = item->dimensions;
		t.shape = c->sizes;
		t.place = c->offsets;
		t.whole = item->shape;
	}
	return tensors_add(&s->tensors, &t);
}

static int read_dcp(struct step *s)
{
	SCOPED(folder_release) struct folder f = { 0 };
	struct dcp_error error;
	int rc = dcp_read_file(s->fd, DCP_METADATA_NAME, &s->dcp, &error);

	if (rc == -ENOENT)
		return 0;
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0) {
		add_error(s, DCP_METADATA_NAME,
			  error.what[0] ? error.what : strerror(-rc));
		return 0;
	}
	s->has_dcp = true;
	s->format = "dcp";
	for (uint32_t i = 0; rc == 0 && i < s->dcp.entry_count; i++) {
		const struct dcp_entry *e = &s->dcp.entries[i];

		rc = add_entry(
			s, e->item == DCP_NONE ? NULL : &s->dcp.items[e->item],
			e->chunk == DCP_NONE ? NULL : &s->dcp.chunks[e->chunk],
			e);
	}
	if (rc == 0)
		rc = folder_read(&f, s->path, s->fd, &s->dcp);
	if (rc == 0)
		rc = closure_check(&s->dcp, f.files, f.count, &s->closure);
	/* Findings may point to the folder's names. */
	for (size_t i = 0; rc == 0 && i < s->closure.count; i++)
		if (s->closure.findings[i].file) {
			char *kept = strdup(s->closure.findings[i].file);

			s->names = reallocarray(s->names, s->name_count + 1,
						sizeof(*s->names));
			CHECK(s->names && kept); /* out of memory */
			s->names[s->name_count++] = kept;
			s->closure.findings[i].file = kept;
		}
	return rc;
}

static void read_megatron(struct step *s)
{
	SCOPED(scope_close)
	int fd =
		openat(s->fd, MEGATRON_NAME, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	SCOPED(scope_free) char *text = NULL;
	size_t len = 0;

	if (fd < 0)
		return;
	text = malloc(MEGATRON_BYTES_MAX + 1);
	CHECK(text); /* out of memory */
	if (io_read(fd, text, MEGATRON_BYTES_MAX, 0, &len) == 0) {
		text[len] = 0;
		s->megatron = cJSON_ParseWithLength(text, len);
	}
	if (!cJSON_IsObject(s->megatron)) {
		cJSON_Delete(s->megatron);
		s->megatron = NULL;
		add_error(s, MEGATRON_NAME, "not a JSON object");
	}
}

/* Names for the pieces of a .distcp file, from the .metadata beside it. */
static int name_pieces(struct step *s)
{
	const char *slash = strrchr(s->path, '/');
	const char *base = slash ? slash + 1 : s->path;
	SCOPED(scope_free) char *metadata = NULL;
	struct dcp_error error;
	int rc;

	if (asprintf(&metadata, "%.*s%s", (int)(base - s->path), s->path,
		     DCP_METADATA_NAME) < 0)
		return -ENOMEM;
	rc = dcp_read_file(AT_FDCWD, metadata, &s->dcp, &error);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0; /* then they have no names */
	s->has_dcp = true;
	for (uint32_t i = 0; i < s->dcp.entry_count; i++) {
		const struct dcp_entry *e = &s->dcp.entries[i];
		size_t lo = 0, hi = s->tensors.count;

		if (strcmp(s->dcp.files[e->file].name, base) != 0)
			continue;
		while (lo < hi) {
			size_t mid = lo + (hi - lo) / 2;

			if (s->tensors.all[mid].offset < e->offset)
				lo = mid + 1;
			else
				hi = mid;
		}
		if (lo == s->tensors.count ||
		    s->tensors.all[lo].offset != e->offset)
			continue;
		s->tensors.all[lo].name = e->name;
		if (s->tensors.all[lo].rank == e->dimensions && e->offsets)
			s->tensors.all[lo].place = e->offsets;
	}
	return 0;
}

int step_read(struct step *s, const char *path, int fd)
{
	struct stat st;
	int rc;

	memset(s, 0, sizeof(*s));
	s->path = path;
	s->fd = fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	s->is_folder = S_ISDIR(st.st_mode);
	if (s->is_folder) {
		rc = read_dcp(s);
		if (rc == 0)
			read_megatron(s);
		if (rc == 0)
			rc = read_folder_files(s, "");
	} else {
		rc = tensors_read(&s->tensors, fd, path, NULL);
		s->format = s->tensors.format;
		if (rc < 0 && rc != -ENOMEM) {
			add_error(s, path,
				  s->tensors.error[0] ? s->tensors.error
						      : strerror(-rc));
			rc = 0;
		}
		if (rc == 0 && s->format && strcmp(s->format, "distcp") == 0)
			rc = name_pieces(s);
	}
	if (!s->format)
		s->format = "plain";
	if (s->tensors.count > 1)
		qsort(s->tensors.all, s->tensors.count, sizeof(*s->tensors.all),
		      compare);
	structure(s);
	return rc;
}

void step_release(struct step *s)
{
	for (size_t i = 0; i < s->name_count; i++)
		free(s->names[i]);
	for (size_t i = 0; i < s->error_count; i++)
		free(s->errors[i].file);
	free(s->names);
	free(s->errors);
	free(s->extra);
	closure_release(&s->closure);
	dcp_release(&s->dcp);
	tensors_release(&s->tensors);
	cJSON_Delete(s->megatron);
	if (s->fd >= 0)
		(void)close(s->fd);
}

/* --- Digests ---------------------------------------------------------------
 */

int step_open(const struct step *s, const struct tensor *t)
{
	int fd = t->file && s->is_folder
			 ? openat(s->fd, t->file,
				  O_RDONLY | O_CLOEXEC | O_NONBLOCK)
			 : fcntl(s->fd, F_DUPFD_CLOEXEC, 0);

	return fd < 0 ? -errno : fd;
}

int step_digest_begin(struct step *s)
{
	if (!s->extra)
		s->extra = calloc(s->tensors.count + 1, sizeof(*s->extra));
	return s->extra ? 0 : -ENOMEM;
}

int step_digest_one(const struct step *s, size_t index)
{
	const struct tensor *t = &s->tensors.all[index];
	SCOPED(scope_close) int fd = step_open(s, t);
	SCOPED(scope_free) uint8_t *buf = malloc(READ_BYTES);
	XXH3_state_t *x;
	XXH128_canonical_t digest;
	int rc = fd < 0 ? fd : 0;

	if (s->extra[index].digested)
		return 0;
	if (rc < 0 || !buf)
		return rc < 0 ? rc : -ENOMEM;
	x = XXH3_createState();
	CHECK(x && XXH3_128bits_reset(x) == XXH_OK);
	for (uint64_t done = 0; rc == 0 && done < t->bytes;) {
		size_t n = t->bytes - done < READ_BYTES
				   ? (size_t)(t->bytes - done)
				   : READ_BYTES;

		rc = io_read_full(fd, buf, n, t->offset + done);
		if (rc == 0)
			(void)XXH3_128bits_update(x, buf, n);
		done += n;
	}
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(x));
	(void)XXH3_freeState(x);
	if (rc < 0)
		return rc;
	memcpy(s->extra[index].digest, digest.digest, STEP_DIGEST_BYTES);
	s->extra[index].digested = true;
	return 0;
}

static int compare_digests(const void *a, const void *b, void *self)
{
	const struct step *s = self;
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
	int c = memcmp(s->extra[i].digest, s->extra[j].digest,
		       STEP_DIGEST_BYTES);

	return c ? c : (i > j) - (i < j);
}

static bool same_bytes(const struct step *s, uint32_t i, uint32_t j)
{
	return s->extra[i].digested && s->extra[j].digested &&
	       s->tensors.all[i].bytes > 0 &&
	       s->tensors.all[i].bytes == s->tensors.all[j].bytes &&
	       memcmp(s->extra[i].digest, s->extra[j].digest,
		      STEP_DIGEST_BYTES) == 0;
}

int step_digest(struct step *s)
{
	SCOPED(scope_free) uint32_t *order = NULL;
	size_t count = s->tensors.count, lo = 0;
	int rc = step_digest_begin(s);

	order = calloc(count + 1, sizeof(*order));
	if (rc < 0 || !order)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		order[i] = (uint32_t)i;
		s->extra[i].next = (uint32_t)i;
		rc = step_digest_one(s, i);
		if (rc < 0)
			add_error(s,
				  s->tensors.all[i].file
					  ? s->tensors.all[i].file
					  : s->path,
				  strerror(-rc));
	}
	qsort_r(order, count, sizeof(*order), compare_digests, s);
	for (size_t i = 1; i <= count; i++) {
		if (i < count && same_bytes(s, order[lo], order[i])) {
			s->extra[order[i - 1]].next = order[i];
			s->extra[order[i]].next = order[lo];
		} else {
			lo = i;
		}
	}
	return 0;
}
