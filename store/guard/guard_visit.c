/*
 * guard_visit.c - one call of the guard, or one look of its thread: what it
 * holds of the table, and its turn to look.
 *
 * One looks at a step at a time, as looking takes memory. Where a call of the
 * table may hang, who has been in one for HUNG_NS lets the next one begin, and
 * has its memory still: all of them have one budget. So a file server that does
 * not answer holds up those alone who ask it.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/base/interrupt.h"
#include "store/base/vec.h"
#include "store/guard/guard_private.h"

#define HUNG_NS (INT64_C(5) * 1000000000)
/* So often who waits looks whether he is to end. */
#define ASK_NS (INT64_C(100) * 1000000)

void visit_begin(struct guard_visit *v, struct guard *g)
{
	*v = (struct guard_visit){ .g = g };
}

void visit_end(struct guard_visit *v)
{
	const struct guard_table *t = &v->g->table;

	visit_turn_end(v);
	for (size_t i = 0; i < v->got_count; i++)
		t->put(t->self, v->got[i]);
	free(v->got);
	free(v->cached);
}

/* --- the turn --- */

static bool is_to_end(void)
{
	const struct interrupt *i = interrupt_of_thread();

	return i && atomic_load(&i->signalled) && i->ends(i);
}

/* Does somebody look, who goes on? */
static bool is_looked_locked(struct guard *g)
{
	const struct guard_visit *v;
	int64_t now = g->table.hangs ? mono_ns() : 0;

	LIST_FOREACH(v, &g->looks, next) {
		int64_t since = atomic_load(&v->calling_ns);

		if (!g->table.hangs || since == 0 || now - since < HUNG_NS)
			return true;
	}
	return false;
}

int visit_turn(struct guard_visit *v)
{
	struct guard *g = v->g;

	for (;;) {
		{
			HOLD(&g->lock);
			while (is_looked_locked(g)) {
				if (!g->table.hangs) {
					cond_wait(&g->turn, &g->lock);
					continue;
				}
				(void)cond_wait_until(&g->turn, &g->lock,
						      mono_ns() + ASK_NS);
				break;
			}
			if (!is_looked_locked(g)) {
				LIST_INSERT_HEAD(&g->looks, v, next);
				v->looks = true;
				return 0;
			}
		}
		if (is_to_end())
			return -EINTR;
	}
}

void visit_turn_end(struct guard_visit *v)
{
	if (!v->looks)
		return;
	HOLD(&v->g->lock);
	LIST_REMOVE(v, next);
	v->looks = false;
	cond_broadcast(&v->g->turn);
}

/* --- the table's calls --- */

static const struct guard_table *call(struct guard_visit *v)
{
	v->calls++;
	if (v->g->table.hangs)
		atomic_store(&v->calling_ns, mono_ns());
	return &v->g->table;
}

static int called(struct guard_visit *v, int rc)
{
	v->calls--; /* a listing calls what calls */
	atomic_store(&v->calling_ns,
		     v->g->table.hangs && v->calls > 0 ? mono_ns() : 0);
	return rc;
}

/* The visit has one more number, which is the table's to take back. */
static int keep(struct guard_visit *v, uint64_t id)
{
	const struct guard_table *t = &v->g->table;
	int rc;

	if (!t->put)
		return 0;
	rc = vec_grow(&v->got, v->got_count, &v->got_capacity, sizeof(*v->got));
	if (rc < 0)
		t->put(t->self, id);
	else
		v->got[v->got_count++] = id;
	return rc;
}

int visit_find(struct guard_visit *v, uint64_t parent, const char *name,
	       uint64_t *ret_id)
{
	const struct guard_table *t = call(v);
	int rc = called(v, t->find(t->self, parent, name, ret_id));

	return rc < 0 ? rc : keep(v, *ret_id);
}

int visit_hold(struct guard_visit *v, uint64_t id)
{
	const struct guard_table *t = &v->g->table;
	int rc = t->hold ? t->hold(t->self, id) : 0;

	return rc < 0 ? rc : keep(v, id);
}

int visit_attr(struct guard_visit *v, uint64_t id, struct guard_attr *ret)
{
	const struct guard_table *t = call(v);

	return called(v, t->attr(t->self, id, ret));
}

int visit_list(struct guard_visit *v, uint64_t dir, guard_list_fn fn, void *arg)
{
	const struct guard_table *t = call(v);

	return called(v, t->list(t->self, dir, fn, arg));
}

int visit_target(struct guard_visit *v, uint64_t id, struct bytes *out)
{
	const struct guard_table *t = call(v);

	return called(v, t->target(t->self, id, out));
}

bool visit_digest(struct guard_visit *v, uint64_t id, uint64_t *ret_bytes,
		  uint8_t ret[HASH_BYTES])
{
	const struct guard_table *t = call(v);

	return called(v, t->digest(t->self, id, ret_bytes, ret));
}

uint32_t visit_world(struct guard_visit *v, uint64_t id)
{
	const struct guard_table *t = &v->g->table;

	return t->world(t->self, id);
}

int visit_getxattr(struct guard_visit *v, uint64_t id, const char *name,
		   void **ret_value, size_t *ret_len)
{
	const struct guard_table *t = call(v);

	return called(v, t->getxattr(t->self, id, name, ret_value, ret_len));
}

int visit_setxattr(struct guard_visit *v, uint64_t id, const char *name,
		   const void *value, size_t len)
{
	const struct guard_table *t = call(v);

	return called(v, t->setxattr(t->self, id, name, value, len));
}

int visit_removexattr(struct guard_visit *v, uint64_t id, const char *name)
{
	const struct guard_table *t = call(v);

	return called(v, t->removexattr(t->self, id, name));
}

int visit_replaced(struct guard_visit *v, uint64_t id, void *buf, size_t size,
		   size_t *ret_len)
{
	const struct guard_table *t = call(v);

	return called(v, t->replaced(t->self, id, buf, size, ret_len));
}

/* --- reading --- */

struct visit_source {
	struct guard_visit *v;
	struct cut_source source; /* the table's */
};

static int read_source(void *self, void *buf, size_t len, uint64_t off)
{
	struct visit_source *s = self;

	(void)call(s->v);
	return called(s->v, s->source.read(s->source.self, buf, len, off));
}

/* Without memory for it what is read counts. */
static void note_cached(struct guard_visit *v, uint64_t id)
{
	const struct guard_table *t = &v->g->table;

	if (t->is_cached && t->is_cached(t->self, id) &&
	    vec_grow(&v->cached, v->cached_count, &v->cached_capacity,
		     sizeof(*v->cached)) == 0)
		v->cached[v->cached_count++] = id;
}

int visit_open(struct guard_visit *v, uint64_t id, struct cut_source *ret)
{
	SCOPED(scope_free) struct visit_source *s = malloc(sizeof(*s));
	const struct guard_table *t = call(v);
	int rc;

	if (!s)
		return called(v, -ENOMEM);
	s->v = v;
	rc = called(v, t->open(t->self, id, &s->source));
	v->elsewhere = v->elsewhere || rc == -EINPROGRESS;
	if (rc < 0)
		return rc;
	*ret = (struct cut_source){ read_source, s, s->source.size_bytes };
	(void)TAKE(s);
	note_cached(v, id);
	return 0;
}

void visit_write_back(struct guard_visit *v)
{
	const struct guard_table *t = &v->g->table;

	CHECK(!v->looks);
	for (size_t i = 0; i < v->cached_count; i++)
		t->write_back(t->self, v->cached[i]);
	v->cached_count = 0;
}

void visit_close(struct guard_visit *v, struct cut_source *source)
{
	const struct guard_table *t = &v->g->table;
	struct visit_source *s = source->self;

	t->close(t->self, &s->source);
	free(s);
}

int visit_read(struct guard_visit *v, uint64_t id, void *buf, size_t len)
{
	struct cut_source source;
	int rc = visit_open(v, id, &source);

	if (rc < 0)
		return rc;
	rc = source.read(source.self, buf, len, 0);
	visit_close(v, &source);
	return rc;
}
