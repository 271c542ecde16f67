/*
 * model_read.c - what a reader may see, and what may be found after a crash.
 */
#include "tests/sim/model_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/check.h"
#include "store/db/records.h"
#include "tests/sim/sim.h"

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

/*
 * Is the file of the version before it changed, for a reader whose open had
 * returned at that point? With O_TRUNC a file that somebody reads gives its
 * name to another one, which has the same bytes, and that one is emptied then:
 * who opens it in between has its old bytes, and the new ones later.
 */
static bool is_in_place(const struct version *v, uint64_t opened)
{
	return v->written && (!v->anew || v->begun <= opened);
}

/* Cut in place while it was read: its first part was read before. */
static bool same_until_cut(const struct path *p, size_t state, size_t to,
			   uint64_t opened, const uint8_t *bytes, size_t size)
{
	const struct version *v = &p->at[state];

	if (!v->bytes || size > v->size || memcmp(v->bytes, bytes, size) != 0)
		return false;
	while (++state <= to && is_in_place(&p->at[state], opened))
		if (p->at[state].size < v->size)
			return true;
	return false;
}

/* Whether O_TRUNC leaves the file of a version its inode. */
static bool keeps_inode(const struct version *v)
{
	return v->size <= model.empty_in_place_bytes;
}

/*
 * What is changed in place keeps its inode, and so does a file that O_TRUNC
 * empties in place: who reads on is given what is there by then, so each
 * byte is one of a version in its place.
 */
static bool same_in_place(const struct path *p, size_t from, size_t to,
			  uint64_t opened, const uint8_t *bytes, size_t size)
{
	size_t last = from;

	while (last < to && p->at[last].bytes &&
	       (keeps_inode(&p->at[last]) ||
		is_in_place(&p->at[last + 1], opened)))
		last++;
	if (last == from)
		return false;
	for (size_t k = 0; k < size; k++) {
		size_t i = from;

		while (i <= last && (!p->at[i].bytes || k >= p->at[i].size ||
				     p->at[i].bytes[k] != bytes[k]))
			i++;
		if (i > last)
			return false;
	}
	return true;
}

/* Where the file that was a path's in that state went by name. */
static const struct path *went_to(const struct path *p, size_t state,
				  size_t *ret)
{
	for (unsigned k = 0; k < model.count; k++)
		for (size_t i = 0; i < model.path[k].count; i++)
			if (model.path[k].at[i].came == p &&
			    model.path[k].at[i].came_state == state) {
				*ret = i;
				return &model.path[k];
			}
	return NULL;
}

/*
 * As same_in_place(), for a file that is at other names by now: what it was
 * there counts too, as long as it is one inode.
 */
static bool same_on_its_way(const struct path *p, size_t state, uint64_t opened,
			    const uint8_t *bytes, size_t size)
{
	bool *found = calloc(size + 1, sizeof(*found));
	size_t left = size;

	CHECK(found);
	while (p && state < p->count && p->at[state].bytes) {
		const struct version *v = &p->at[state];

		for (size_t k = 0; k < size && k < v->size; k++)
			if (!found[k] && v->bytes[k] == bytes[k]) {
				found[k] = true;
				left--;
			}
		/* What was to take its name away, and failed, has not. */
		while (state + 2 < p->count && !p->at[state + 1].bytes &&
		       p->at[state + 1].failed)
			state++;
		if (state + 1 == p->count)
			break;
		if (!p->at[state + 1].bytes)
			p = went_to(p, state, &state);
		else if (keeps_inode(v) ||
			 is_in_place(&p->at[state + 1], opened))
			state++;
		else
			break;
	}
	free(found);
	return left == 0;
}

static bool is_part(const struct path *p, size_t from, size_t to,
		    const uint8_t *bytes, size_t size)
{
	for (size_t i = from; i <= to; i++)
		if (p->at[i].bytes && size <= p->at[i].size &&
		    memcmp(p->at[i].bytes, bytes, size) == 0)
			return true;
	return false;
}

/*
 * The file got this name meanwhile, and was written to, or cut, here; `part`:
 * the bytes are the beginning of what it was.
 */
static bool same_elsewhere(const struct path *p, uint64_t since,
			   uint64_t opened, const uint8_t *bytes, size_t size,
			   bool part)
{
	size_t first = p->count;

	/* A rename may have been under way before. */
	while (first > 0 &&
	       (!p->at[first - 1].ended || p->at[first - 1].ended >= since)) {
		const struct version *v = &p->at[--first];

		if (same(v, bytes, size, false, true) ||
		    (part && v->bytes && v->size <= size))
			return true;
	}
	return first < p->count &&
	       same_in_place(p, first, p->count - 1, opened, bytes, size);
}

void model_check_read(struct path *p, uint64_t since, uint64_t opened,
		      size_t from, size_t to, const uint8_t *bytes, size_t size,
		      bool absent)
{
	for (size_t i = from; i <= to; i++)
		if (same(&p->at[i], bytes, size, absent,
			 i > from || !p->at[i].ended || p->at[i].failed) ||
		    (!absent &&
		     (same_until_cut(p, i, to, opened, bytes, size) ||
		      same_in_place(p, i, to, opened, bytes, size) ||
		      same_on_its_way(p, i, opened, bytes, size))))
			return;
	for (unsigned k = 0; !absent && k < model.count; k++)
		if (model.path[k].owner == p->owner &&
		    same_elsewhere(&model.path[k], since, opened, bytes, size,
				   is_part(p, from, to, bytes, size)))
			return;
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
	for (unsigned i = 0; i < model.count; i++) {
		struct version *v = &model.path[i].at[model.path[i].count - 1];

		if (v->closed)
			continue;
		v->partial = v->partial || v->written;
		v->hurried = true;
	}
}

/* What was found after a kill, and of which only less was durable. */
static bool is_less(const struct version *v, const uint8_t *bytes, size_t size)
{
	return v->less && bytes && size < v->size &&
	       memcmp(v->bytes, bytes, size) == 0;
}

void model_check_found(struct path *p, uint8_t *bytes, size_t size, bool cut)
{
	size_t from = cut ? p->floor : model_ended(p), at = p->count;
	bool whole = true;

	/*
	 * A kill loses nothing: it is the last that it can be, and others that
	 * were begun before that may yet become durable, one after the other.
	 */
	while (at-- > from) {
		whole = same(&p->at[at], bytes, size, !bytes, false);
		if (whole ||
		    (!cut && same(&p->at[at], bytes, size, !bytes, true)))
			break;
	}
	if (at + 1 == from && cut) {
		whole = false;
		for (at = p->count; at-- > from;)
			if (is_less(&p->at[at], bytes, size) ||
			    ((p->at[at].partial || p->at[at].of ||
			      (p->at[at].made && size == 0)) &&
			     same_after_cut(&p->at[at], bytes, size)))
				break;
	}
	if (at + 1 == from) {
		fprintf(stderr, "found: %zu bytes%s\n", size,
			bytes ? "" : ", absent");
		model_check_read(p, UINT64_MAX, 0, from, p->count - 1, bytes,
				 size, !bytes);
		sim_fail("found: %s is a part of a version", p->name);
	}
	p->found = at;
	p->found_first = at;
	while (p->found_first > from &&
	       same(&p->at[p->found_first - 1], bytes, size, !bytes, true))
		p->found_first--;
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
		p->at[state].less = !cut;
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
	for (unsigned i = 0; i < model.count; i++) {
		struct path *p = &model.path[i];
		const struct path *to = p->moved_to;

		if (!to || p->count - 1 != p->moved_from ||
		    to->count - 1 < p->moved)
			continue;
		/*
		 * A part, or no file, may as well be what was there before; and
		 * so may an empty file, which a failed write can have left.
		 */
		if (to->found_first >= p->moved && !to->is_part &&
		    to->at[to->found].bytes && p->found < p->moved_from &&
		    p->at[p->found].bytes)
			sim_fail("rename: %s and %s are both there", p->name,
				 to->name);
		if (p->moved_durable && to->found < p->moved &&
		    p->found == p->moved_from)
			sim_fail("rename: neither %s nor %s is there", p->name,
				 to->name);
	}
	for (unsigned i = 0; i < model.count; i++)
		go_on_from_found(&model.path[i], cut);
}
