/* rebuild_work.c - what all parts of the rebuild need: rebuild_work.h. */
#include "store/check/rebuild_work.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/space/image.h"

#define TEXT_BYTES 1024

void rebuild_say(struct rebuild *r, enum rebuild_kind kind, const char *object,
		 const char *format, ...)
{
	char text[TEXT_BYTES];
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (kind == REBUILD_RECOVERED)
		r->result->recovered++;
	else if (kind == REBUILD_LOST)
		r->result->lost++;
	else if (kind == REBUILD_ASIDE)
		r->result->aside++;
	r->options->say(r->options->self, kind, object, text);
}

int rebuild_image(struct rebuild *r, uint64_t id)
{
	char name[LAYOUT_IMAGE_NAME_BYTES];

	if (id == r->open_image)
		return r->open_fd;
	if (r->open_fd >= 0)
		close(r->open_fd);
	layout_image_name(id, name);
	r->open_image = id;
	r->open_fd = openat(r->images_dirfd, name,
			    O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	return r->open_fd;
}

struct each {
	struct rebuild *r;
	int (*fn)(struct rebuild *r, uint64_t id);
	int rc;
};

static int each_one(void *arg, const char *path, uint64_t id,
		    const char *suffix)
{
	struct each *e = arg;

	(void)path;
	if (id != 0 && *suffix == 0)
		e->rc = e->fn(e->r, id);
	return e->rc;
}

int rebuild_each_image(struct rebuild *r,
		       int (*fn)(struct rebuild *r, uint64_t id))
{
	struct each e = { .r = r, .fn = fn };

	/* A directory that cannot be listed is as lost as what is in it. */
	(void)image_each_file(r->images_dirfd, each_one, &e);
	return e.rc;
}
