/*
 * plan_input.c - shards from a JSON text or from .metadata.
 *
 * A million shards as one tree of cJSON would take more than a gigabyte, so
 * the outer object is taken apart here, and cJSON gets one shard at a time.
 */
#include "fuse/ctl/plan.h"

#include <inttypes.h>
#include <stdio.h>

#include "fuse/ctl/ctl.h"
#include "store/base/scope.h"
#include "store/base/text.h"
#include "store/base/utf8.h"
#include "store/base/vec.h"
#include "store/formats/dcp.h"

#define NUMBER_END 9007199254740992.0 /* 2^53: doubles are exact below it */
#define ID_SHOWN 80

struct parse {
	struct plan_input *in;
	const char *text;
	size_t at, len;
	size_t capacity; /* of shards */
	bool has_ranks, has_shards;
};

#define refuse(p, ...) \
	text_refuse((p)->in->error, sizeof((p)->in->error), __VA_ARGS__)

/* "shards[12]: ..." or, once its id is known, "shards[12] 'id': ...". */
#define BAD(p, id, format, ...)                                               \
	refuse(p, "shards[%zu]%s%.*s%s: " format, (p)->in->count,             \
	       (id) ? " '" : "", ID_SHOWN, (id) ? (id) : "", (id) ? "'" : "", \
	       ##__VA_ARGS__)

/* --- Text --------------------------------------------------------------- */

/* What cJSON lets pass and we do not: it would cut strings short. */
static int text_check(struct parse *p)
{
	for (size_t at = 0, step; at < p->len; at += step) {
		step = utf8_length(p->text + at, p->len - at);
		if (step == 0 || p->text[at] == 0)
			return refuse(p, "offset %zu: not UTF-8", at);
		if (p->text[at] != '\\')
			continue;
		if (p->len - at >= 6 && memcmp(p->text + at, "\\u0000", 6) == 0)
			return refuse(p, "offset %zu: a NUL in a string", at);
		/* What is escaped is ASCII, else cJSON refuses it. */
		if (p->len - at >= 2 && (p->text[at + 1] & 0x80) == 0)
			step = 2;
	}
	return 0;
}

static char peek(struct parse *p)
{
	while (p->at < p->len && p->text[p->at] != 0 &&
	       strchr(" \t\r\n", p->text[p->at]))
		p->at++;
	return p->at < p->len ? p->text[p->at] : '\0';
}

static int expect(struct parse *p, char c)
{
	if (peek(p) != c)
		return refuse(p, "offset %zu: '%c' is missing: no JSON", p->at,
			      c);
	p->at++;
	return 0;
}

/* The value that comes next; the caller's. NULL: refused. */
static cJSON *take_value(struct parse *p)
{
	const char *end = NULL;
	cJSON *j = cJSON_ParseWithLengthOpts(p->text + p->at, p->len - p->at,
					     &end, 0);

	if (!j || !end) {
		(void)refuse(p, "offset %zu: no JSON",
			     end ? (size_t)(end - p->text) : p->at);
		cJSON_Delete(j);
		return NULL;
	}
	p->at = (size_t)(end - p->text);
	return j;
}

/* After a value: 1: a comma, so another one follows; 0: the end. */
static int more(struct parse *p, char end)
{
	char c = peek(p);

	if (c != ',' && c != end)
		return refuse(p, "offset %zu: ',' or '%c' is missing: no JSON",
			      p->at, end);
	p->at++;
	return c == ',';
}

static bool natural(const cJSON *j, double end, uint64_t *ret)
{
	double v = j ? j->valuedouble : -1;

	/* In this order: a NaN fails the second. */
	if (!cJSON_IsNumber(j) || !(v >= 0) || v >= end)
		return false;
	*ret = (uint64_t)v;
	return (double)*ret == v;
}

/* --- Shards ------------------------------------------------------------- */

static int take_ranks(struct parse *p, const cJSON *ranks, const char *id,
		      struct ckpt_plan_shard *s)
{
	const cJSON *j;
	uint64_t v;

	if (cJSON_IsNull(ranks))
		return 0; /* all of them */
	if (!cJSON_IsArray(ranks))
		return BAD(p, id, "its ranks are neither a list nor null");
	cJSON_ArrayForEach(j, ranks) {
		uint32_t rank;

		if (!natural(j, CKPT_PLAN_RANKS_MAX, &v))
			return BAD(p, id, "one of its ranks is no rank");
		rank = (uint32_t)v;
		bytes_put(&p->in->ranks, &rank, sizeof(rank));
		s->rank_count++;
	}
	/* Not NULL: an empty set is not the set of all. */
	s->ranks = &p->in->rank_count;
	return 0;
}

/* Pointers are set when nothing moves any more; until then all is counted. */
static int take_shard(struct parse *p, const cJSON *one)
{
	const cJSON *id = ctl_member(one, "id");
	const cJSON *bytes = ctl_member(one, "bytes");
	const cJSON *ranks = ctl_member(one, "ranks");
	const cJSON *source = ctl_member(one, "source");
	const cJSON *cross = ctl_member(one, "cross");
	struct ckpt_plan_shard s = { .source = CKPT_PLAN_NO_SOURCE };
	const char *name = NULL;
	uint64_t v;
	int rc;

	if (!cJSON_IsObject(one))
		return BAD(p, name, "no object");
	if (!cJSON_IsString(id))
		return BAD(p, name, "it has no id, or that is no string");
	name = id->valuestring;
	if (!natural(bytes, NUMBER_END, &s.bytes))
		return BAD(p, name,
			   "its bytes are not a number from 0 to "
			   "2^53 - 1");
	if (!ranks)
		return BAD(p, name, "it has no ranks");
	if (source && !cJSON_IsNull(source)) {
		if (!natural(source, CKPT_PLAN_RANKS_MAX, &v))
			return BAD(p, name,
				   "its source is neither a rank nor "
				   "null");
		s.source = (uint32_t)v;
	}
	if (cross && !cJSON_IsBool(cross))
		return BAD(p, name, "its cross is neither true nor false");
	s.cross = cJSON_IsTrue(cross);
	rc = take_ranks(p, ranks, name, &s);
	if (rc < 0)
		return rc;
	s.id_bytes = strlen(name);
	bytes_put(&p->in->ids, name, s.id_bytes + 1);
	rc = vec_grow(&p->in->shards, p->in->count, &p->capacity,
		      sizeof(*p->in->shards));
	if (rc < 0 || p->in->ids.failed || p->in->ranks.failed)
		return -ENOMEM;
	p->in->shards[p->in->count++] = s;
	return 0;
}

static int take_shards(struct parse *p)
{
	int rc = expect(p, '[');

	if (rc < 0)
		return rc;
	if (peek(p) == ']') {
		p->at++;
		return 0;
	}
	do {
		cJSON *one = take_value(p);

		rc = one ? take_shard(p, one) : -EBADMSG;
		cJSON_Delete(one);
		if (rc == 0)
			rc = more(p, ']');
	} while (rc == 1);
	return rc;
}

static int take_member(struct parse *p, const char *name)
{
	cJSON *v;
	uint64_t number;
	int rc = 0;

	if (strcmp(name, "shards") == 0) {
		if (p->has_shards)
			return refuse(p, "offset %zu: shards twice", p->at);
		p->has_shards = true;
		return take_shards(p);
	}
	v = take_value(p);
	if (!v)
		return -EBADMSG;
	if (strcmp(name, "num_ranks") == 0) {
		p->has_ranks = natural(v, CKPT_PLAN_RANKS_MAX + 1.0, &number) &&
			       number > 0;
		if (p->has_ranks)
			p->in->rank_count = (uint32_t)number;
		else
			rc = refuse(p, "num_ranks is not a number from 1 to %u",
				    CKPT_PLAN_RANKS_MAX);
	}
	cJSON_Delete(v);
	return rc;
}

static int take_document(struct parse *p)
{
	int rc = expect(p, '{');

	if (rc < 0)
		return rc;
	if (peek(p) == '}')
		return refuse(p, "it has no num_ranks");
	do {
		cJSON *name;

		if (peek(p) != '"')
			return refuse(p, "offset %zu: no name: no JSON", p->at);
		name = take_value(p);
		if (!name)
			return -EBADMSG;
		rc = expect(p, ':');
		if (rc == 0)
			rc = take_member(p, name->valuestring);
		cJSON_Delete(name);
		if (rc == 0)
			rc = more(p, '}');
	} while (rc == 1);
	if (rc < 0)
		return rc;
	if (peek(p) != '\0')
		return refuse(p, "offset %zu: something after the end", p->at);
	if (!p->has_ranks)
		return refuse(p, "it has no num_ranks");
	return p->has_shards ? 0 : refuse(p, "it has no shards");
}

int plan_input_json(struct plan_input *in, const char *text, size_t len)
{
	struct parse p = { .in = in, .text = text, .len = len };
	const uint32_t *ranks;
	const char *id;
	int rc;

	memset(in, 0, sizeof(*in));
	rc = text_check(&p);
	if (rc == 0)
		rc = take_document(&p);
	if (rc < 0)
		return rc;
	id = (const char *)in->ids.data;
	ranks = (const void *)in->ranks.data;
	for (size_t i = 0; i < in->count; i++) {
		struct ckpt_plan_shard *s = &in->shards[i];

		s->id = id;
		id += s->id_bytes + 1;
		if (s->rank_count > 0) {
			s->ranks = ranks;
			ranks += s->rank_count;
		}
	}
	return 0;
}

/* --- A checkpoint ------------------------------------------------------- */

/* "name@(0, 8)", "name@(8,)", or without a place the name. */
static int put_label(struct bytes *b, const char *name, const uint64_t *offsets,
		     unsigned dimensions)
{
	char number[32];

	bytes_put(b, name, strlen(name));
	if (offsets) {
		bytes_put(b, "@(", 2);
		for (unsigned i = 0; i < dimensions; i++) {
			int n = snprintf(number, sizeof(number), "%s%" PRIu64,
					 i > 0 ? ", " : "", offsets[i]);

			bytes_put(b, number, (size_t)n);
		}
		bytes_put(b, dimensions == 1 ? ",)" : ")",
			  dimensions == 1 ? 2 : 1);
	}
	bytes_put_u8(b, 0);
	return b->failed ? -ENOMEM : 0;
}

static uint32_t entry_rank(const struct dcp *d, uint32_t i, uint32_t rank_count)
{
	uint32_t rank = d->files[d->entries[i].file].rank;

	return rank < rank_count ? rank : CKPT_PLAN_NO_SOURCE;
}

/* Of each item, the rank of the first entry that has one. */
static int item_sources(const struct dcp *d, uint32_t rank_count,
			uint32_t **ret_sources)
{
	uint32_t *sources = calloc((size_t)d->item_count + 1, sizeof(*sources));

	if (!sources)
		return -ENOMEM;
	memset(sources, 0xff, d->item_count * sizeof(*sources));
	for (uint32_t i = 0; i < d->entry_count; i++) {
		uint32_t item = d->entries[i].item;

		if (item != DCP_NONE && sources[item] == CKPT_PLAN_NO_SOURCE)
			sources[item] = entry_rank(d, i, rank_count);
	}
	*ret_sources = sources;
	return 0;
}

/* An id and a label, one behind the other. */
static int put_names(struct plan_input *in, const struct dcp_entry *e,
		     struct ckpt_plan_shard *s)
{
	char id[DCP_NAME_BYTES_MAX + 1 + 8 * DCP_DIMENSIONS_MAX];

	s->id_bytes = ckpt_plan_id(id, sizeof(id), e->name, strlen(e->name),
				   e->offsets, e->dimensions);
	CHECK(s->id_bytes <= sizeof(id));
	bytes_put(&in->ids, id, s->id_bytes);
	return put_label(&in->ids, e->name, e->offsets, e->dimensions);
}

int plan_input_dcp(struct plan_input *in, const struct dcp *d,
		   uint32_t rank_count, enum ckpt_plan_policy policy)
{
	SCOPED(scope_free) uint32_t *sources = NULL;
	const char *at;
	int rc = 0;

	memset(in, 0, sizeof(*in));
	in->rank_count = rank_count;
	in->shards = calloc((size_t)d->entry_count + 1, sizeof(*in->shards));
	in->labels = calloc((size_t)d->entry_count + 1, sizeof(*in->labels));
	if (!in->shards || !in->labels)
		return -ENOMEM;
	if (policy == CKPT_PLAN_PR3392)
		rc = item_sources(d, rank_count, &sources);
	for (uint32_t i = 0; i < d->entry_count && rc == 0; i++) {
		const struct dcp_entry *e = &d->entries[i];
		struct ckpt_plan_shard *s = &in->shards[i];

		s->bytes = e->length;
		s->source = sources && e->item != DCP_NONE
				    ? sources[e->item]
				    : entry_rank(d, i, rank_count);
		rc = put_names(in, e, s);
	}
	if (rc < 0)
		return rc;
	in->count = d->entry_count;
	at = (const char *)in->ids.data;
	for (size_t i = 0; i < in->count; i++) {
		in->shards[i].id = at;
		in->labels[i] = at + in->shards[i].id_bytes;
		at = in->labels[i] + strlen(in->labels[i]) + 1;
	}
	return 0;
}

void plan_input_release(struct plan_input *in)
{
	free(in->shards);
	free(in->labels);
	bytes_release(&in->ids);
	bytes_release(&in->ranks);
	memset(in, 0, sizeof(*in));
}

const char *plan_input_label(const struct plan_input *in, size_t i)
{
	return in->labels ? in->labels[i] : in->shards[i].id;
}
