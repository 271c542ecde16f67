/*
 * diff.c - ckptctl inspect --diff: two steps, tensor by tensor.
 *
 * Bytes are not read where the mount has both in the same place of one image.
 */
#include <errno.h>
#include <sys/stat.h>

#include "fuse/ctl/ctl.h"
#include "fuse/ctl/step.h"
#include "store/base/scope.h"
#include "store/base/vec.h"

#define ROWS_SHOWN 64

enum change {
	CHANGE_ADDED,
	CHANGE_REMOVED,
	CHANGE_RETYPED,
	CHANGE_RESHAPED,
	CHANGE_MOVED,
	CHANGE_BYTES,
	CHANGES
};

static const char *const change_names[] = { "added",    "removed", "retyped",
					    "reshaped", "moved",   "changed" };

struct row {
	enum change change;
	const struct tensor *a, *b; /* NULL: not there */
};

/* The extents of one open file of a mount. */
struct mapped {
	const char *file; /* of which; the tensors' pointer */
	bool tried;
	cJSON *json; /* NULL: not in a mount, or not all of them are known */
	dev_t dev;
};

struct diff {
	struct step *a, *b;
	struct row *rows; /* owned */
	size_t count, capacity;
	size_t tensors_same, tensors_paired; /* of those with bytes */
	uint64_t bytes_not_read;
	bool logical; /* whole tensors, not where they lie */
	bool structure_only, failed;
	struct mapped map_a, map_b;
};

static void diff_release(struct diff *d)
{
	free(d->rows);
	cJSON_Delete(d->map_a.json);
	cJSON_Delete(d->map_b.json);
}

static void add(struct diff *d, enum change change, const struct tensor *a,
		const struct tensor *b)
{
	CHECK(vec_grow(&d->rows, d->count, &d->capacity, sizeof(*d->rows)) ==
	      0); /* out of memory */
	d->rows[d->count++] = (struct row){ change, a, b };
}

/* --- Bytes -------------------------------------------------------------- */

static void map(struct mapped *m, const struct step *s, const struct tensor *t)
{
	SCOPED(scope_close) int fd = -1;
	const cJSON *list;
	struct stat st;

	if (m->tried && m->file == t->file)
		return;
	cJSON_Delete(m->json);
	*m = (struct mapped){ .file = t->file, .tried = true };
	fd = step_open(s, t);
	if (fd < 0 || fstat(fd, &st) < 0 ||
	    ctl_query(fd, CKPTFS_INSPECT, &m->json) < 0) {
		m->json = NULL;
		return;
	}
	m->dev = st.st_dev;
	list = ctl_member(m->json, "extents");
	if (strcmp(ctl_text(m->json, "state"), "durable") != 0 ||
	    (uint64_t)cJSON_GetArraySize(list) !=
		    ctl_number(m->json, "extent_count")) {
		cJSON_Delete(m->json);
		m->json = NULL;
	}
}

/* The extent that has the byte at off; NULL: none. */
static const cJSON *extent_at(const cJSON *e, uint64_t off, uint64_t *ret_left)
{
	for (; e; e = e->next) {
		uint64_t at = ctl_number(e, "offset");
		uint64_t len = ctl_number(e, "len");

		if (off >= at && off - at < len) {
			*ret_left = len - (off - at);
			return e;
		}
	}
	return NULL;
}

static bool in_one_place(struct diff *d, const struct tensor *a,
			 const struct tensor *b)
{
	const cJSON *x, *y;
	uint64_t done = 0;

	map(&d->map_a, d->a, a);
	map(&d->map_b, d->b, b);
	if (!d->map_a.json || !d->map_b.json || d->map_a.dev != d->map_b.dev)
		return false;
	x = ctl_member(d->map_a.json, "extents")->child;
	y = ctl_member(d->map_b.json, "extents")->child;
	while (done < a->bytes) {
		uint64_t i, k, x_left = 0, y_left = 0;

		x = extent_at(x, a->offset + done, &x_left);
		y = extent_at(y, b->offset + done, &y_left);
		if (!x || !y)
			return false;
		i = ctl_number(x, "image_offset") + a->offset + done -
		    ctl_number(x, "offset");
		k = ctl_number(y, "image_offset") + b->offset + done -
		    ctl_number(y, "offset");
		if (i != k || ctl_number(x, "image") != ctl_number(y, "image"))
			return false;
		done += x_left < y_left ? x_left : y_left;
	}
	return true;
}

static int digest_one(const struct step *s, size_t index)
{
	return s->is_logical ? logical_digest_one(s, index)
			     : step_digest_one(s, index);
}

/* In doubt they are, but that is said. */
static bool digests_equal(struct diff *d, const struct tensor *a,
			  const struct tensor *b)
{
	size_t i = (size_t)(a - d->a->in.tensors.all);
	size_t k = (size_t)(b - d->b->in.tensors.all);
	int rc;

	if (a->bytes == 0)
		return true;
	if (!d->logical && in_one_place(d, a, b)) {
		d->bytes_not_read += a->bytes;
		return true;
	}
	rc = digest_one(d->a, i);
	if (rc == 0)
		rc = digest_one(d->b, k);
	if (rc < 0) {
		ctl_complain("%s: %s", a->name,
			     rc == -EBADMSG
				     ? "its pieces do not make the whole tensor"
				     : strerror(-rc));
		d->failed = true;
		return true;
	}
	return memcmp(d->a->extra[i].digest, d->b->extra[k].digest,
		      STEP_DIGEST_BYTES) == 0;
}

/* --- Pairs -------------------------------------------------------------- */

static void pair(void *arg, const struct tensor *a, const struct tensor *b)
{
	struct diff *d = arg;
	bool same = true;

	if (!a || !b) {
		add(d, a ? CHANGE_REMOVED : CHANGE_ADDED, a, b);
		return;
	}
	if (!structure_same_type(a, b)) {
		add(d, CHANGE_RETYPED, a, b);
		same = false;
	}
	if (!structure_same_shape(a, b)) {
		add(d, CHANGE_RESHAPED, a, b);
		same = false;
	}
	if (!d->logical &&
	    (!structure_same_file(a, b) || a->offset != b->offset))
		add(d, CHANGE_MOVED, a, b);
	if (d->structure_only)
		return;
	if (a->dtype && b->dtype)
		d->tensors_paired++;
	if (a->bytes != b->bytes || !digests_equal(d, a, b))
		add(d, CHANGE_BYTES, a, b);
	else if (same && a->dtype && b->dtype)
		d->tensors_same++;
}

/* --- Printing ----------------------------------------------------------- */

static void print_json(const struct diff *d, bool identical)
{
	ctl_print_string("{\n\t\"a\":\t", d->a->path);
	ctl_print_string(",\n\t\"b\":\t", d->b->path);
	(void)printf(",\n\t\"whole_tensors\":\t%s,\n"
		     "\t\"objects_left_out\":\t%zu",
		     d->logical ? "true" : "false",
		     d->a->objects + d->b->objects);
	(void)printf(",\n\t\"same_structure\":\t%s,\n\t\"identical\":\t%s,\n"
		     "\t\"structure\":\t[\"%s\", \"%s\"],\n"
		     "\t\"unchanged\":\t%zu,\n\t\"bytes_not_read\":\t%llu",
		     strcmp(d->a->in.signature, d->b->in.signature) == 0
			     ? "true"
			     : "false",
		     d->structure_only ? "null"
		     : identical       ? "true"
				       : "false",
		     d->a->in.signature, d->b->in.signature, d->tensors_same,
		     (unsigned long long)d->bytes_not_read);
	for (enum change c = 0; c < CHANGES; c++) {
		bool first = true;

		(void)printf(",\n\t\"%s\":\t[", change_names[c]);
		for (size_t i = 0; i < d->count; i++) {
			const struct row *r = &d->rows[i];
			const struct tensor *t = r->b ? r->b : r->a;

			if (r->change != c)
				continue;
			(void)printf("%s\n\t\t{\"name\": ", first ? "" : ",");
			first = false;
			ctl_print_string("", t->name);
			if (t->place && t->dtype) {
				ctl_print_numbers(", \"place\": ", t->place,
						  t->rank);
			}
			if (r->a) {
				(void)printf(", \"a\": ");
				step_print_side(d->a, r->a);
			}
			if (r->b) {
				(void)printf(", \"b\": ");
				step_print_side(d->b, r->b);
			}
			(void)printf("}");
		}
		(void)printf("]");
	}
	(void)printf("\n}\n");
}

static void print_what(const struct tensor *t)
{
	(void)printf("%s", t->dtype ? ctl_shown(t->dtype) : "bytes");
	if (t->dtype)
		ctl_print_numbers("", t->shape, t->rank);
}

static void print_table(const struct diff *d, bool all)
{
	size_t shown[CHANGES] = { 0 };

	for (size_t i = 0; i < d->count; i++) {
		const struct row *r = &d->rows[i];
		const struct tensor *t = r->b ? r->b : r->a;

		if (shown[r->change]++ >= ROWS_SHOWN && !all)
			continue;
		(void)printf("%-9s ", change_names[r->change]);
		if (r->change == CHANGE_MOVED)
			(void)printf("%s%s%llu -> %s%s%llu",
				     r->a->file ? ctl_shown(r->a->file) : "",
				     r->a->file ? ":" : "",
				     (unsigned long long)r->a->offset,
				     r->b->file ? ctl_shown(r->b->file) : "",
				     r->b->file ? ":" : "",
				     (unsigned long long)r->b->offset);
		else if (r->a)
			print_what(r->a);
		if (r->change == CHANGE_RETYPED || r->change == CHANGE_RESHAPED)
			(void)printf(" -> ");
		if (r->b && r->change != CHANGE_MOVED &&
		    r->change != CHANGE_BYTES)
			print_what(r->b);
		(void)printf("  ");
		step_print_name(t);
	}
	for (enum change c = 0; c < CHANGES; c++)
		if (shown[c] > ROWS_SHOWN && !all)
			(void)printf("%-9s ... and %s more (all with --all)\n",
				     change_names[c],
				     ctl_count(shown[c] - ROWS_SHOWN));
}

static void print_result(const struct diff *d, bool all, bool same,
			 bool identical)
{
	const char *a = ctl_shown(d->a->path), *b = ctl_shown(d->b->path);
	size_t objects = d->a->objects + d->b->objects;

	print_table(d, all);
	if (d->logical)
		(void)printf("%s and %s: compared are whole tensors, not where "
			     "they lie\n",
			     d->a->in.format, d->b->in.format);
	if (objects > 0)
		(void)printf("%s objects that are no tensors are left out\n",
			     ctl_count(objects));
	(void)printf("structure %s: %s %s %s\n",
		     same ? "the same" : "DIFFERENT", d->a->in.signature,
		     same ? "=" : "!=", d->b->in.signature);
	if (!d->structure_only)
		(void)printf("%s of %s tensors that both have are "
			     "unchanged\n",
			     ctl_count(d->tensors_same),
			     ctl_count(d->tensors_paired));
	if (identical && d->logical)
		(void)printf("%s has all tensors of %s, with the same bytes\n",
			     b, a);
	else if (identical)
		(void)printf("%s is byte-identical to %s: were stale "
			     "weights saved?\n",
			     b, a);
}

int diff_steps(struct step *a, struct step *b, bool json, bool all,
	       bool structure_only)
{
	SCOPED(diff_release)
	struct diff d = { .a = a,
			  .b = b,
			  .logical = logical_wanted(a, b),
			  .structure_only = structure_only };
	bool same, identical;

	if (d.logical && (logical_make(a) < 0 || logical_make(b) < 0)) {
		ctl_complain("%s", strerror(ENOMEM));
		return CTL_PROBLEM;
	}
	if (step_digest_begin(a) < 0 || step_digest_begin(b) < 0) {
		ctl_complain("%s", strerror(ENOMEM));
		return CTL_PROBLEM;
	}
	d.failed = a->in.error_count > 0 || b->in.error_count > 0;
	CHECK(structure_pair(&a->in, &b->in, pair, &d) == 0);
	same = strcmp(a->in.signature, b->in.signature) == 0;
	identical = same && !d.failed && d.tensors_paired > 0 &&
		    d.tensors_same == d.tensors_paired;
	if (json)
		print_json(&d, identical);
	else
		print_result(&d, all, same, identical);
	return same && !d.failed ? CTL_FINE : CTL_PROBLEM;
}
