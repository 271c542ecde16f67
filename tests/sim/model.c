/* model.c - see model.h. */
#include "tests/sim/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "store/db/records.h"
#include "tests/sim/kv_model.h"
#include "tests/sim/sim.h"

#define NONE SIZE_MAX
/* drain_wait_released() waits as long for a late RELEASE. */
#define RELEASE_NS INT64_C(1000000000)

struct version {
	uint8_t *bytes; /* NULL: absent */
	size_t size;
	uint64_t begun, ended; /* points; 0: not */
	uint64_t close_begun, closed;
	int64_t begun_ns;
	bool hurried; /* a sync may make it durable out of its turn */
	bool written; /* some first part of it may be there ... */
	bool partial; /* ... and durable, for a sync came meanwhile */
	bool failed;
	bool anew; /* takes the place of a closed version, which keeps its turn
		    */
	/*
	 * Made anew: who opens and closes it to read before the writer's own
	 * open has come makes it durable while it is empty.
	 */
	bool made;
	/*
	 * The file came here by name alone: what it was until this state of
	 * that path may be what is durable of it.
	 */
	const struct path *of;
	size_t of_state;
};

struct path {
	char name[64];
	unsigned owner;
	struct version *at;
	size_t count, room;
	size_t floor; /* this state or a later one is durable */
	unsigned syncing;
	struct path *other; /* a hard link of the same file */
	/* The last state but one went to `moved_to`, as its state `moved`. */
	struct path *moved_to;
	size_t moved_from, moved;
	bool moved_durable;
	size_t found; /* after a crash: this state, or a part of it */
	bool is_part;
	uint8_t *part;
	size_t part_size;
};

static struct {
	struct path path[PATHS_MAX];
	unsigned count;
	bool errors, parts;
} m;

void model_init(void)
{
	memset(&m, 0, sizeof(m));
}

struct path *model_path(const char *name, unsigned owner)
{
	struct path *p = &m.path[m.count];

	CHECK(m.count < PATHS_MAX);
	m.count++;
	p->owner = owner;
	(void)snprintf(p->name, sizeof(p->name), "%s", name);
	(void)model_begin(p, NULL, 0);
	model_end(p, 0);
	return p;
}

const char *model_name(const struct path *p)
{
	return p->name;
}

unsigned model_paths(void)
{
	return m.count;
}

struct path *model_path_at(unsigned i)
{
	return &m.path[i];
}

void model_expect_parts(void)
{
	m.parts = true;
}

void model_expect_errors(void)
{
	m.errors = true;
}

/* --- what is done
 * --------------------------------------------------------------- */

size_t model_begin(struct path *p, uint8_t *bytes, size_t size)
{
	struct version *v;

	CHECK(vec_grow(&p->at, p->count, &p->room, sizeof(*p->at)) == 0);
	v = &p->at[p->count];
	*v = (struct version){ .bytes = bytes,
			       .size = size,
			       .begun = sim_points() + 1,
			       .begun_ns = sim_clock(),
			       .hurried = p->syncing > 0,
			       .partial = p->syncing > 0 };
	return p->count++;
}

void model_is_written(struct path *p, size_t state)
{
	p->at[state].written = true;
	p->at[state].partial = p->at[state].partial || m.parts;
	p->at[state].hurried = p->at[state].hurried || m.parts;
	p->at[state].made = state > 0 && !p->at[state - 1].bytes;
}

void model_is_anew(struct path *p, size_t state)
{
	p->at[state].anew = true;
}

void model_end(struct path *p, size_t state)
{
	p->at[state].ended = sim_points() + 1;
}

void model_close_begin(struct path *p, size_t state)
{
	p->at[state].close_begun = sim_points() + 1;
}

void model_close_end(struct path *p, size_t state)
{
	p->at[state].closed = sim_points() + 1;
}

void model_failed(struct path *p, size_t state)
{
	p->at[state].failed = p->at[state].written = true;
	p->at[state].partial = true;
	p->moved_to = NULL;
	model_end(p, state);
}

void model_moved(struct path *from, size_t from_state, struct path *to,
		 size_t to_state)
{
	struct version *a = &from->at[from_state - 1], *b = &to->at[to_state];

	from->moved_to = to;
	from->moved_from = from_state;
	from->moved = to_state;
	from->moved_durable = from->floor >= from_state - 1;
	b->hurried = b->hurried || a->hurried;
	b->close_begun = a->close_begun;
	b->of = from;
	b->of_state = from_state - 1;
}

void model_linked(struct path *a, struct path *b, size_t state)
{
	a->other = b;
	b->other = a;
	b->at[state].of = a;
	b->at[state].of_state = a->count - 1;
}

static void hurry(struct path *p, int by)
{
	struct version *v = &p->at[p->count - 1];

	p->syncing += (unsigned)by;
	if (by < 0)
		return;
	/* Whose name changes meanwhile: either may be what is synced. */
	if (p->moved_to)
		p->moved_to->at[p->moved].hurried = true;
	v->hurried = true;
	v->partial = v->partial || !v->ended;
	if (!v->ended && p->count > 1)
		p->at[p->count - 2].hurried = true;
}

size_t model_sync_begin(struct path *p)
{
	hurry(p, 1);
	if (p->other)
		hurry(p->other, 1);
	return model_ended(p);
}

void model_promise(struct path *p, size_t promised)
{
	if (promised > p->floor)
		p->floor = promised;
	model_durable();
}

void model_sync_end(struct path *p, size_t promised, bool ok)
{
	hurry(p, -1);
	if (p->other)
		hurry(p->other, -1);
	if (ok)
		model_promise(p, promised);
}

size_t model_promise_begin(const struct path *p)
{
	return model_ended(p);
}

size_t model_last(const struct path *p)
{
	return p->count - 1;
}

size_t model_ended(const struct path *p)
{
	size_t i = p->count - 1;

	while (!p->at[i].ended || p->at[i].failed)
		i--;
	return i;
}

bool model_known(const struct path *p)
{
	return !p->at[p->count - 1].failed;
}

const uint8_t *model_bytes(const struct path *p, size_t state, size_t *ret_size)
{
	*ret_size = p->at[state].size;
	return p->at[state].bytes;
}

bool model_has_size(const struct path *p, size_t size)
{
	for (size_t i = 0; i < p->count; i++)
		if (p->at[i].bytes && p->at[i].size == size)
			return true;
	return false;
}

/* --- what is said
 * --------------------------------------------------------------- */

static void say_path(const struct path *p)
{
	fprintf(stderr, "  %s (durable from state %zu):\n", p->name, p->floor);
	for (size_t i = 0; i < p->count; i++) {
		const struct version *v = &p->at[i];

		fprintf(stderr, "    %zu: ", i);
		if (v->bytes)
			fprintf(stderr, "%zu bytes", v->size);
		else
			fprintf(stderr, "absent");
		fprintf(stderr, ", points %llu-%llu",
			(unsigned long long)v->begun,
			(unsigned long long)v->ended);
		if (v->close_begun)
			fprintf(stderr, ", closed %llu-%llu",
				(unsigned long long)v->close_begun,
				(unsigned long long)v->closed);
		fprintf(stderr, "%s%s%s\n", v->hurried ? ", synced" : "",
			v->partial ? ", in parts" : "",
			v->failed ? ", failed" : "");
	}
}

void model_say(void)
{
	for (unsigned i = 0; i < m.count; i++)
		say_path(&m.path[i]);
}

/* --- what is durable
 * ------------------------------------------------------------ */

/* 0, or -ENOENT: a power cut now would leave no such path. */
static int durable_size(const char *name, size_t *ret_size)
{
	struct dirent_rec e = { .ino = ROOT_INO };
	struct content c;
	struct kv_slice value;
	struct key key;
	int rc = 0;

	while (rc == 0 && *name) {
		const char *slash = strchrnul(name, '/');
		char part[64];

		(void)snprintf(part, sizeof(part), "%.*s", (int)(slash - name),
			       name);
		key = key_dirent(e.ino, name_hash(part), part);
		rc = kv_model_durable(key.data, key.len, &value);
		if (rc == 0)
			rc = dirent_decode(value.data, value.len, &e);
		name = *slash ? slash + 1 : slash;
	}
	if (rc < 0)
		return rc;
	key = key_ino('F', e.ino);
	rc = kv_model_durable(key.data, key.len, &value);
	if (rc < 0)
		return rc;
	if (content_decode(value.data, value.len, &c) < 0)
		sim_fail("%s: the record of its content is damaged", name);
	*ret_size = (size_t)c.size_bytes;
	content_release(&c);
	return 0;
}

static bool fits(const struct version *v, bool absent, size_t size)
{
	for (size_t i = 0; v->of && i <= v->of_state; i++)
		if (fits(&v->of->at[i], absent, size))
			return true;
	if (absent || !v->bytes)
		return absent && !v->bytes;
	return v->size == size || (v->partial && size < v->size) ||
	       (v->made && size == 0);
}

/* The last state, or the first, that this can be; NONE. */
static size_t last_fit(const struct path *p, bool absent, size_t size)
{
	for (size_t i = p->count; i-- > 0;)
		if (fits(&p->at[i], absent, size))
			return i;
	return NONE;
}

static size_t first_fit(const struct path *p, bool absent, size_t size)
{
	for (size_t i = 0; i < p->count; i++)
		if (fits(&p->at[i], absent, size))
			return i;
	return NONE;
}

/*
 * The last version that was closed before this point, and kept its turn since:
 * who changes it in place, or removes it, takes it out. NONE: there is none.
 */
static size_t last_closed(const struct path *p, uint64_t before)
{
	for (size_t i = p->count; i-- > 0;) {
		const struct version *v = &p->at[i];

		/* Closed without a byte, it gets its turn when released. */
		if (!v->bytes || v->size == 0 || v->failed)
			return NONE;
		if (v->closed && v->closed < before)
			return i;
		/* A RELEASE that takes longer is not waited for. */
		if (!v->anew || sim_clock() - v->begun_ns >= RELEASE_NS)
			return NONE;
	}
	return NONE;
}

/* b is durable: what was closed before it has to be. */
static void check_order(const struct path *b, size_t b_state, size_t size,
			const size_t last[PATHS_MAX])
{
	const struct version *v = &b->at[b_state];

	if (!v->bytes || v->hurried || !v->close_begun || v->failed ||
	    v->size != size)
		return;
	for (unsigned i = 0; i < m.count; i++) {
		const struct path *a = &m.path[i];
		size_t elder = last_closed(a, v->close_begun);

		if (a == b || elder == NONE || last[i] >= elder)
			continue;
		sim_fail("order: %s (state %zu) is durable, and %s (state "
			 "%zu), which was closed before it, is not",
			 b->name, b_state, a->name, elder);
	}
}

void model_durable(void)
{
	size_t first[PATHS_MAX], last[PATHS_MAX], sizes[PATHS_MAX];

	for (unsigned i = 0; i < m.count; i++) {
		const struct path *p = &m.path[i];
		size_t size = 0;
		bool absent = durable_size(p->name, &size) < 0;

		last[i] = last_fit(p, absent, size);
		first[i] = first_fit(p, absent, size);
		sizes[i] = size;
		if (last[i] == NONE)
			sim_fail("torn: %s is durable with %zu bytes, which no "
				 "version has",
				 p->name, size);
		if (last[i] < p->floor)
			sim_fail("promise: %s was made durable as state %zu, "
				 "and is state %zu",
				 p->name, p->floor, last[i]);
	}
	for (unsigned i = 0; i < m.count && !m.errors; i++)
		check_order(&m.path[i], first[i], sizes[i], last);
}

void model_check_drained(void)
{
	for (unsigned i = 0; i < m.count; i++) {
		struct path *p = &m.path[i];

		p->floor = model_ended(p);
	}
	model_durable();
}

/* --- what is read
 * --------------------------------------------------------------- */

static bool same(const struct version *v, const uint8_t *bytes, size_t size,
		 bool absent, bool part)
{
	if (absent || !v->bytes)
		return absent && !v->bytes;
	if (v->size != size && !(part && v->written && size < v->size))
		return false;
	return size == 0 || memcmp(v->bytes, bytes, size) == 0;
}

/* What a power cut may leave: also what the file was before it came here. */
static bool same_after_cut(const struct version *v, const uint8_t *bytes,
			   size_t size)
{
	for (size_t i = 0; v->of && i <= v->of_state; i++)
		if (same_after_cut(&v->of->at[i], bytes, size))
			return true;
	return same(v, bytes, size, !bytes, true);
}

/* Cut in place while it was read: its first part was read before. */
static bool same_until_cut(const struct path *p, size_t state, size_t to,
			   const uint8_t *bytes, size_t size)
{
	const struct version *v = &p->at[state];

	if (!v->bytes || size > v->size || memcmp(v->bytes, bytes, size) != 0)
		return false;
	while (++state <= to && p->at[state].written && !p->at[state].anew)
		if (p->at[state].size < v->size)
			return true;
	return false;
}

void model_check_read(struct path *p, uint64_t since, size_t from, size_t to,
		      const uint8_t *bytes, size_t size, bool absent)
{
	for (size_t i = from; i <= to; i++)
		if (same(&p->at[i], bytes, size, absent,
			 i > from || !p->at[i].ended || p->at[i].failed) ||
		    (!absent && same_until_cut(p, i, to, bytes, size)))
			return;
	/* Its file got another name meanwhile, and was written to there. */
	for (unsigned k = 0; !absent && k < m.count; k++)
		for (size_t i = m.path[k].count; i-- > 0;) {
			const struct version *v = &m.path[k].at[i];

			if (m.path[k].owner == p->owner && v->begun >= since &&
			    same(v, bytes, size, false, true))
				return;
		}
	if (absent)
		sim_fail("read: %s is absent, between states %zu and %zu",
			 p->name, from, to);
	for (size_t i = from; i <= to; i++) {
		const struct version *v = &p->at[i];
		size_t k = 0;

		while (v->bytes && k < size && k < v->size &&
		       v->bytes[k] == bytes[k])
			k++;
		fprintf(stderr, "  state %zu: %zu of %zu bytes are the same\n",
			i, k, v->size);
	}
	sim_fail("read: %s has %zu bytes that are no version from state %zu to "
		 "%zu",
		 p->name, size, from, to);
}

/* --- after a crash
 * --------------------------------------------------------------- */

void model_killed(void)
{
	for (unsigned i = 0; i < m.count; i++) {
		struct version *v = &m.path[i].at[m.path[i].count - 1];

		if (v->closed)
			continue;
		v->partial = v->partial || v->written;
		v->hurried = true;
	}
}

void model_check_found(struct path *p, uint8_t *bytes, size_t size, bool cut)
{
	size_t from = cut ? p->floor : model_ended(p), at = p->count;
	bool whole = true;

	while (at-- > from)
		if (same(&p->at[at], bytes, size, !bytes, false))
			break;
	if (at + 1 == from) {
		whole = false;
		for (at = p->count; at-- > from;)
			if (cut ? (p->at[at].partial || p->at[at].of ||
				   (p->at[at].made && size == 0)) &&
					    same_after_cut(&p->at[at], bytes,
							   size)
				: same(&p->at[at], bytes, size, !bytes, true))
				break;
	}
	if (at + 1 == from) {
		fprintf(stderr, "found: %zu bytes%s\n", size,
			bytes ? "" : ", absent");
		model_check_read(p, UINT64_MAX, from, p->count - 1, bytes, size,
				 !bytes);
		sim_fail("found: %s is a part of a version", p->name);
	}
	p->found = at;
	p->syncing = 0;
	p->is_part = !whole;
	p->part = bytes;
	p->part_size = size;
}

/* What was found is the last state now, a part of a version as one of its own.
 */
static void go_on_from_found(struct path *p, bool cut)
{
	size_t state = p->found;

	p->moved_to = NULL;
	/* After a kill older versions may be durable still. */
	for (size_t i = 0; cut && i < p->count; i++)
		p->at[i].of = NULL;
	p->at[p->found].failed = false;
	if (p->is_part) {
		p->count = p->found > 0 ? p->found : 1;
		state = model_begin(p, p->part, p->part_size);
		p->at[state].hurried = true;
	} else {
		free(p->part);
		p->count = p->found + 1;
	}
	p->part = NULL;
	model_end(p, state);
	if (p->floor > state)
		p->floor = state;
}

/* A rename is there as a whole or not at all; then what was found is all. */
void model_check_found_all(bool cut)
{
	for (unsigned i = 0; i < m.count; i++) {
		struct path *p = &m.path[i];
		const struct path *to = p->moved_to;

		if (!to || p->count - 1 != p->moved_from ||
		    to->count - 1 < p->moved)
			continue;
		if (to->found >= p->moved && p->found < p->moved_from &&
		    p->at[p->found].bytes)
			sim_fail("rename: %s and %s are both there", p->name,
				 to->name);
		if (p->moved_durable && to->found < p->moved &&
		    p->found == p->moved_from)
			sim_fail("rename: neither %s nor %s is there", p->name,
				 to->name);
	}
	for (unsigned i = 0; i < m.count; i++)
		go_on_from_found(&m.path[i], cut);
}
