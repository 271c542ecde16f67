/*
 * file.c - open a file and, when it is safetensors, say what is in it.
 *
 * The header is read and checked once, here. The descriptor stays open: in a
 * mount it keeps this version, whatever happens to the name.
 */
#include "gpu/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/crew.h"
#include "gpu/map.h"
#include "store/base/io.h"
#include "store/base/scope.h"

static int say_read(const struct ckpt_file *f, int rc)
{
	if (rc == -ESTALE)
		return ckpt_say(rc, "%s: it became shorter while it was opened",
				f->path);
	return ckpt_say(rc, "%s: read: %s", f->path, strerror(-rc));
}

static int say_header(const struct ckpt_file *f, int rc,
		      const struct safetensors_error *e)
{
	return ckpt_say(rc, "%s: %s", f->path,
			rc == -EBADMSG ? e->what : "no memory for its header");
}

_Static_assert(SAFETENSORS_RANK_MAX == CKPT_RANK_MAX, "one limit for both");

/* What the store's reader found, in the words of the public header. */
static int make_entries(struct ckpt_file *f)
{
	f->entries = calloc(f->header.count + 1, sizeof(*f->entries));
	if (!f->entries)
		return -ENOMEM;
	for (size_t i = 0; i < f->header.count; i++) {
		const struct safetensors_tensor *t = &f->header.entries[i];

		f->entries[i] = (struct ckpt_entry){
			.name = t->name,
			.dtype = t->dtype,
			.shape = t->shape,
			.rank = t->rank,
			.offset = t->offset,
			.bytes = t->bytes,
		};
	}
	return 0;
}

static int read_header(struct ckpt_file *f)
{
	struct safetensors_error error = { .newer = false };
	uint8_t prefix[SAFETENSORS_PREFIX_BYTES] = { 0 };
	SCOPED(scope_free) char *json = NULL;
	size_t len = 0;
	int rc;

	if (f->bytes >= sizeof(prefix)) {
		rc = io_read_full(f->fd, prefix, sizeof(prefix), 0);
		if (rc < 0)
			return say_read(f, rc);
	}
	rc = safetensors_header_length(prefix, f->bytes, &len, &error);
	if (rc < 0)
		return say_header(f, rc, &error);
	/* Read, not taken from the map: what is checked must not change. */
	json = malloc(len + 1);
	if (!json)
		return ckpt_say(-ENOMEM, "%s: no memory for its header",
				f->path);
	rc = io_read_full(f->fd, json, len, sizeof(prefix));
	if (rc < 0)
		return say_read(f, rc);
	json[len] = '\0';
	rc = safetensors_header_parse(json, len, f->bytes, &f->header, &error);
	if (rc == 0)
		rc = make_entries(f);
	return rc < 0 ? say_header(f, rc, &error) : 0;
}

static int open_file(struct ckpt_file *f, bool any)
{
	int rc;

	f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &f->stat) < 0) {
		rc = -errno;
		return ckpt_say(rc, "%s: %s", f->path, strerror(-rc));
	}
	if (S_ISDIR(f->stat.st_mode))
		return ckpt_say(-EISDIR, "%s: a directory, not a file",
				f->path);
	if (!S_ISREG(f->stat.st_mode))
		return ckpt_say(-EINVAL, "%s: not a regular file", f->path);
	f->bytes = (uint64_t)f->stat.st_size;
	rc = any ? 0 : read_header(f);
	if (rc < 0)
		return rc;
	/* Only ckpt_file_map() needs it: where it fails all else works. */
	f->map = map_aligned(f->fd, f->bytes, PROT_READ, MAP_SHARED);
	return 0;
}

static int file_new(struct ckpt *c, const char *path, bool any,
		    struct ckpt_file **ret_file)
{
	struct ckpt_file *f;
	int rc = ckpt_check_process(c);

	if (rc < 0)
		return rc;
	f = calloc(1, sizeof(*f));
	if (!f)
		return ckpt_say(-ENOMEM, "%s: no memory", path);
	f->c = c;
	f->fd = -1;
	f->path = strdup(path);
	rc = f->path ? open_file(f, any)
		     : ckpt_say(-ENOMEM, "%s: no memory", path);
	if (rc < 0)
		ckpt_file_close(f);
	else
		*ret_file = f;
	return rc;
}

int ckpt_file_open(struct ckpt *c, const char *path,
		   struct ckpt_file **ret_file)
{
	return file_new(c, path, false, ret_file);
}

int ckpt_file_open_any(struct ckpt *c, const char *path,
		       struct ckpt_file **ret_file)
{
	return file_new(c, path, true, ret_file);
}

void ckpt_file_close(struct ckpt_file *f)
{
	if (!f)
		return;
	if (f->pinned && f->c->pid == getpid()) {
		gpu_unregister(f->c->gpu, f->map);
		(void)atomic_fetch_sub(&f->c->counters.pinned_bytes, f->bytes);
	}
	if (f->map)
		(void)munmap(f->map, f->bytes);
	if (f->fd >= 0)
		(void)close(f->fd);
	safetensors_header_release(&f->header);
	free(f->entries);
	free(f->path);
	free(f);
}

size_t ckpt_file_count(const struct ckpt_file *f)
{
	return f->header.count;
}

const struct ckpt_entry *ckpt_file_entry(const struct ckpt_file *f,
					 size_t index)
{
	return index < f->header.count ? &f->entries[index] : NULL;
}

const struct ckpt_entry *ckpt_file_find(const struct ckpt_file *f,
					const char *name)
{
	const struct safetensors_tensor *t =
		safetensors_header_find(&f->header, name);

	return t ? &f->entries[t - f->header.entries] : NULL;
}

int ckpt_file_metadata(const struct ckpt_file *f, size_t index,
		       const char **ret_key, const char **ret_value)
{
	if (index >= f->header.metadata_count)
		return -ENOENT; /* how a loop ends: nothing to say */
	*ret_key = f->header.metadata[index].key;
	*ret_value = f->header.metadata[index].value;
	return 0;
}

const void *ckpt_file_map(const struct ckpt_file *f, uint64_t *ret_len)
{
	/* What a driver has pinned a child may not have. */
	bool is_here = f->map && (!f->pinned || f->c->pid == getpid());

	*ret_len = is_here ? f->bytes : 0;
	return is_here ? f->map : NULL;
}

int ckpt_file_map_private(const struct ckpt_file *f, void **ret_memory,
			  uint64_t *ret_len)
{
	void *memory = map_aligned(f->fd, f->bytes, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE);

	if (!memory)
		return ckpt_say(-EOPNOTSUPP, "%s: it cannot be mapped",
				f->path);
	*ret_memory = memory;
	*ret_len = f->bytes;
	return 0;
}

static int touch_part(void *arg, size_t index)
{
	const struct ckpt_file *f = arg;
	int rc = map_advise_part(f->map, f->bytes, index, MADV_POPULATE_READ);

	return rc == -EINVAL ? 0 : rc; /* an older kernel: the driver touches */
}

/* By several threads, and in parts: the driver then only has to count. */
static int touch(struct ckpt_file *f)
{
	int rc = crew_once(f->c->copy_threads, map_parts(f->bytes), touch_part,
			   f);

	if (rc == -EFAULT)
		return ckpt_say(-ESTALE,
				"%s: it is shorter now than when it was opened",
				f->path);
	return rc < 0 ? ckpt_say(rc, "%s: it cannot be pinned: %s", f->path,
				 strerror(-rc))
		      : 0;
}

int ckpt_file_pin(struct ckpt_file *f)
{
	int rc = ckpt_check_process(f->c);

	if (rc < 0 || f->pinned)
		return rc;
	if (!ckpt_driver(f->c))
		return ckpt_say(-ENODEV, "%s: nothing to pin it for: %s",
				f->path, f->c->gpu_state);
	if (!f->map)
		return ckpt_say(-EOPNOTSUPP, "%s: it cannot be mapped",
				f->path);
	rc = touch(f);
	if (rc == 0)
		rc = gpu_register(f->c->gpu, f->map, f->bytes, true);
	if (rc < 0) {
		CKPT_COUNT(f->c, pin_failures, 1);
		return rc;
	}
	f->pinned = true;
	CKPT_COUNT(f->c, pinned_bytes, f->bytes);
	return 0;
}
