/*
 * model_disk.c - what is durable of a path, down to its bytes: what a reader
 * would be given if the power was cut now.
 */
#include "tests/sim/model_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/db/records.h"
#include "tests/sim/disk.h"
#include "tests/sim/kv_model.h"
#include "tests/sim/sim.h"

static int get(struct key key, struct kv_slice *ret_value)
{
	return kv_model_durable(key.data, key.len, ret_value);
}

int durable_find(const char *name, struct durable *ret)
{
	struct dirent_rec e = { .ino = ROOT_INO };
	const char *at = name;
	struct kv_slice value;
	struct content c;
	int rc = 0;

	*ret = (struct durable){ .absent = true };
	while (rc == 0 && *at) {
		const char *slash = strchrnul(at, '/');
		char part[64];

		(void)snprintf(part, sizeof(part), "%.*s", (int)(slash - at),
			       at);
		rc = get(key_dirent(e.ino, name_hash(part), part), &value);
		if (rc == 0)
			rc = dirent_decode(value.data, value.len, &e);
		at = *slash ? slash + 1 : slash;
	}
	if (rc == 0)
		rc = get(key_ino('F', e.ino), &value);
	if (rc < 0)
		return rc;
	if (content_decode(value.data, value.len, &c) < 0)
		sim_fail("%s: the record of its content is damaged", name);
	*ret = (struct durable){ .ino = e.ino,
				 .size = (size_t)c.size_bytes,
				 .record = value };
	content_release(&c);
	return 0;
}

/* NULL, or what is wrong. */
static const char *read_durable(const struct durable *d,
				const struct content *c, uint8_t *bytes)
{
	const char *wrong = NULL;
	struct kv_slice value;

	if (c->kind == CONTENT_SMALL && d->size > 0) {
		if (get(key_ino('D', d->ino), &value) < 0 ||
		    value.len != d->size)
			return "its bytes are not in the database";
		memcpy(bytes, value.data, d->size);
	}
	for (size_t i = 0; !wrong && i < c->extent_count; i++) {
		const struct extent *e = &c->extents[i];

		wrong = disk_read_durable(e->image, e->image_offset,
					  (size_t)e->len, bytes + e->offset);
	}
	return wrong;
}

static bool holds(const struct version *v, const uint8_t *bytes, size_t size)
{
	for (size_t i = 0; v->of && i <= v->of_state; i++)
		if (holds(&v->of->at[i], bytes, size))
			return true;
	return v->bytes && version_has_size(v, size) &&
	       (size == 0 || memcmp(v->bytes, bytes, size) == 0);
}

/* So that what has not changed is not read again. */
static uint64_t sum_of(const struct durable *d)
{
	const uint8_t *p = d->record.data;
	uint64_t sum = 0xcbf29ce484222325 ^ d->ino;

	for (size_t i = 0; i < d->record.len; i++)
		sum = (sum ^ p[i]) * 0x100000001b3;
	return sum;
}

void durable_check(struct path *p, const struct durable *d)
{
	const char *wrong;
	struct content c;
	uint8_t *bytes;
	uint64_t sum;
	bool found;

	if (d->absent)
		return;
	sum = sum_of(d);
	if (sum == p->durable_sum)
		return;
	p->durable_sum = sum;
	CHECK(content_decode(d->record.data, d->record.len, &c) == 0);
	bytes = calloc(1, d->size + 1);
	CHECK(bytes);
	wrong = read_durable(d, &c, bytes);
	if (wrong)
		sim_fail("torn: %s is durable, and %s", p->name, wrong);
	found = false;
	for (size_t i = p->count; !found && i-- > 0;)
		found = holds(&p->at[i], bytes, d->size);
	if (!found)
		sim_fail("torn: %s is durable with %zu bytes that no version "
			 "has",
			 p->name, d->size);
	content_release(&c);
	free(bytes);
}

/* --- what must stay as it is
 * ---------------------------------------------------- */

struct range {
	uint64_t image, off, len;
};

static bool has_range(void *arg, struct kv_slice record)
{
	const struct range *r = arg;
	struct content c;
	bool has = false;

	if (content_decode(record.data, record.len, &c) < 0)
		return false;
	for (size_t i = 0; !has && i < c.extent_count; i++)
		has = c.extents[i].image == r->image &&
		      c.extents[i].image_offset < r->off + r->len &&
		      r->off < c.extents[i].image_offset + c.extents[i].len;
	content_release(&c);
	return has;
}

bool model_uses(uint64_t image, uint64_t off, uint64_t len)
{
	struct range r = { image, off, len };

	return kv_model_any_value('F', has_range, &r);
}
