/*
 * step.c - look into a file or a folder through the system's calls, and hash
 * tensors, each with the bytes that it has in its file.
 */
#include "fuse/ctl/step.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "fuse/ctl/ctl.h"
#include "store/base/dir.h"
#include "store/base/io.h"
#include "store/base/scope.h"

#define READ_BYTES (size_t)(1 << 20)
#define MEGATRON_NAME "metadata.json"
#define MEGATRON_BYTES_MAX (1 << 20)
#define OCDBT_NOTE                                             \
	"of orbax, in OCDBT: orbax.checkpoint or tensorstore " \
	"reads it"

/* --- Reading ------------------------------------------------------------ */

struct listing {
	int (*fn)(void *arg, const char *name, bool folder,
		  uint64_t size_bytes);
	void *arg;
};

static int list_one(void *arg, int fd, const char *name)
{
	const struct listing *l = arg;
	uint64_t size_bytes;
	struct stat st;

	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
		return 0;
	size_bytes = (uint64_t)st.st_size;
	if (S_ISREG(st.st_mode) && size_bytes == 0 &&
	    ctl_is_elsewhere(fd, name))
		size_bytes = CLOSURE_SIZE_UNKNOWN;
	return l->fn(l->arg, name, S_ISDIR(st.st_mode), size_bytes);
}

/* A folder as files see it; self is its descriptor. */
static int list_folder(void *self, const char *below,
		       int (*fn)(void *arg, const char *name, bool folder,
				 uint64_t size_bytes),
		       void *arg)
{
	struct listing l = { fn, arg };

	return dir_each((int)(intptr_t)self, *below ? below : ".", list_one,
			&l);
}

static int open_file(void *self, const char *name, struct cut_source *ret)
{
	SCOPED(scope_close) int fd = -1;
	struct stat st;

	if (ctl_is_elsewhere((int)(intptr_t)self, name))
		return -EINPROGRESS;
	fd = openat((int)(intptr_t)self, name,
		    O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	*ret = (struct cut_source){ cut_read_fd, (void *)(intptr_t)fd,
				    (uint64_t)st.st_size };
	fd = -1; /* close_file() closes it */
	return 0;
}

static void close_file(void *self, struct cut_source *source)
{
	(void)self;
	(void)close((int)(intptr_t)source->self);
}

static struct structure_source folder_source(int fd)
{
	return (struct structure_source){
		.self = (void *)(intptr_t)fd,
		.list = list_folder,
		.open = open_file,
		.close = close_file,
		.metadata_bytes_max = DCP_FILE_BYTES_MAX,
	};
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
		CHECK(structure_add_error(&s->in, MEGATRON_NAME,
					  "not a JSON object") == 0);
	}
}

/* It has no tensors of its own, but says where they are. */
static void read_metadata(struct step *s, int folder)
{
	struct dcp_error error;
	int rc = dcp_read_file(folder, DCP_METADATA_NAME, &s->in.dcp, &error);

	s->in.format = "dcp";
	s->in.has_dcp = rc == 0;
	if (rc < 0)
		CHECK(structure_add_error(&s->in, s->path,
					  error.what[0] ? error.what
							: strerror(-rc)) == 0);
}

static int read_one_file(struct step *s)
{
	struct cut_source file = { cut_read_fd, (void *)(intptr_t)s->fd, 0 };
	const char *slash = strrchr(s->path, '/');
	SCOPED(scope_free) char *folder = NULL;
	struct structure_source beside;
	SCOPED(scope_close) int fd = -1;
	struct stat st;
	int rc;

	if (fstat(s->fd, &st) < 0)
		return -errno;
	file.size_bytes = (uint64_t)st.st_size;
	folder = slash ? strndup(s->path, (size_t)(slash - s->path) + 1)
		       : strdup(".");
	CHECK(folder); /* out of memory */
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	beside = folder_source(fd);
	rc = structure_of_file(&s->in, &file, s->path, fd < 0 ? NULL : &beside);
	if (rc == 0 && fd >= 0 &&
	    strcmp(slash ? slash + 1 : s->path, DCP_METADATA_NAME) == 0)
		read_metadata(s, fd);
	return rc;
}

/* A folder in which no tensors were found: whose is it? */
static void tell_folder(struct step *s)
{
	static const struct {
		const char *name, *format, *note;
	} known[] = {
		{ "manifest.ocdbt", "ocdbt", OCDBT_NOTE },
		{ "_CHECKPOINT_METADATA", "orbax", OCDBT_NOTE },
		{ "saved_model.pb", "tensorflow",
		  "a SavedModel of TensorFlow: saved_model_cli lists it" },
	};

	if (s->in.tensors.count > 0)
		return;
	s->note = s->in.tensors.note;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (faccessat(s->fd, known[i].name, F_OK, 0) == 0) {
			s->in.format = known[i].format;
			s->note = known[i].note;
			return;
		}
}

int step_read(struct step *s, const char *path, int fd)
{
	struct structure_source in = folder_source(fd);
	struct stat st;
	int rc;

	memset(s, 0, sizeof(*s));
	s->path = path;
	s->fd = fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	s->is_folder = S_ISDIR(st.st_mode);
	if (!s->is_folder) {
		rc = read_one_file(s);
		s->note = s->in.tensors.note;
		return rc;
	}
	if (zarr_is(fd))
		return zarr_read(s);
	rc = structure_of_folder(&s->in, &in);
	read_megatron(s);
	tell_folder(s);
	return rc;
}

void step_release(struct step *s)
{
	free(s->extra);
	tensors_release(&s->pieces);
	structure_release(&s->in);
	cJSON_Delete(s->megatron);
	if (s->fd >= 0)
		(void)close(s->fd);
}

/* --- Digests ------------------------------------------------------------ */

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
		s->extra = calloc(s->in.tensors.count + 1, sizeof(*s->extra));
	return s->extra ? 0 : -ENOMEM;
}

int step_digest_one(const struct step *s, size_t index)
{
	const struct tensor *t = &s->in.tensors.all[index];
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
	       s->in.tensors.all[i].bytes > 0 &&
	       s->in.tensors.all[i].bytes == s->in.tensors.all[j].bytes &&
	       memcmp(s->extra[i].digest, s->extra[j].digest,
		      STEP_DIGEST_BYTES) == 0;
}

int step_digest(struct step *s)
{
	SCOPED(scope_free) uint32_t *order = NULL;
	size_t count = s->in.tensors.count, lo = 0;
	int rc = step_digest_begin(s);

	order = calloc(count + 1, sizeof(*order));
	if (rc < 0 || !order)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		order[i] = (uint32_t)i;
		s->extra[i].next = (uint32_t)i;
		rc = step_digest_one(s, i);
		if (rc < 0)
			CHECK(structure_add_error(
				      &s->in,
				      s->in.tensors.all[i].file
					      ? s->in.tensors.all[i].file
					      : s->path,
				      strerror(-rc)) == 0);
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
