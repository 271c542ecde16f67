/*
 * nodes_model.c - see nodes.h.
 *
 * The bytes of a version say its number, so what is read, or lies in the shared
 * directory, says what it is, and whether it is whole. The directory is looked
 * at in each call that changes it: engine_on_change().
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/scope.h"
#include "store/base/vec.h"
#include "tests/sim/nodes.h"

#define MAGIC UINT64_C(0xc4b7)
#define TEXT_BITS 16
#define PATH_BYTES 100
#define WRITES_MAX 8
#define OWN_MAX 64

struct version {
	unsigned node, step;
	enum file_kind kind;
	char path[PATH_BYTES];
	size_t size;
	size_t written[WRITES_MAX]; /* where a write of it ended */
	unsigned writes;
	uint64_t began, closing, closed; /* points; 0: not yet */
	int64_t began_ns, released_ns; /* 0: not yet */
	bool changes; /* in the place of another one */
	bool synced, torn, is_void, failed;
	bool in_place; /* in the directory's own file: no upload brings it */
	bool plain; /* it was whole in the directory */
	bool is_lost; /* it was not, and its node was forgotten */
	bool superseded; /* its path is another one's since */
};

/* A file of the directory, by its number. */
struct known {
	uint64_t ino;
	bool plain;
	bool asked; /* somebody waits for it, since it is pending */
	unsigned version; /* when it was plain last */
	unsigned done; /* this version was completed here */
	unsigned by; /* which node changed it last */
	struct einode *in_place; /* it was opened in place, by this node: */
	unsigned in_place_by;
	int64_t at_ns;
};

/* A path that one client has for himself. */
struct own {
	char path[PATH_BYTES];
	unsigned node;
	unsigned now; /* 0: nothing */
	unsigned least, most; /* after a death; 0: may not be there */
	unsigned opened; /* open now */
	bool unsure;
	bool busy; /* a call that changes its name is on its way */
};

/* A call about a name that all nodes are at. */
struct common {
	char path[PATH_BYTES];
	enum common_call what;
	unsigned node, id;
	uint64_t began, ended; /* points; 0: it never returned */
	bool failed;
};

static struct {
	struct version *v; /* [0] is none */
	size_t count, room;
	struct known *k;
	size_t known, known_room;
	struct own own[OWN_MAX];
	unsigned owns;
	int64_t lost_ns[NODES_MAX + 1]; /* until then it may have lost bytes */
	bool given_up[STEPS_MAX + 1]; /* somebody removed what was lost there */
	unsigned common_opens; /* to write: perhaps in place */
	struct common *c;
	size_t commons, common_room;
	bool common_linked;
	unsigned latest; /* the last one that was whole */
} m;

static struct version *version_of(unsigned id)
{
	CHECK(id > 0 && id < m.count);
	return &m.v[id];
}

static struct known *known_of(uint64_t ino)
{
	for (size_t i = m.known; i-- > 0;)
		if (m.k[i].ino == ino)
			return &m.k[i];
	CHECK(vec_grow(&m.k, m.known, &m.known_room, sizeof(*m.k)) == 0);
	m.k[m.known] = (struct known){ .ino = ino };
	return &m.k[m.known++];
}

static bool is_pending_mode(mode_t mode)
{
	return S_ISREG(mode) &&
	       (mode & 07777) == (geteuid() == 0 ? 01000 : 01600);
}

/* --- bytes ---------------------------------------------------------------- */

static uint64_t word_of(unsigned id, uint64_t at)
{
	uint64_t z = ((uint64_t)id << 32) + at;

	if (at == 0)
		return MAGIC << 48 | id;
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* "step_3", and the number of the version as white space. */
static size_t text_of(unsigned step, unsigned id, char ret[64])
{
	int n = snprintf(ret, 64, "step_%u\n", step);

	for (int bit = 0; bit < TEXT_BITS; bit++)
		ret[n++] = id >> bit & 1 ? '\n' : ' ';
	return (size_t)n;
}

void model_bytes(unsigned id, void *buf, size_t len, uint64_t off)
{
	const struct version *v = version_of(id);
	uint8_t *out = buf;
	char text[64];

	if (v->kind == FILE_LATEST) {
		(void)text_of(v->step, id, text);
		memcpy(buf, text + off, len);
		return;
	}
	for (size_t i = 0; i < len; i++) {
		uint64_t w = word_of(id, (off + i) / 8);

		out[i] = (uint8_t)(w >> (off + i) % 8 * 8);
	}
}

/* The number that the bytes say; 0: none. */
static unsigned id_of(const uint8_t *bytes, size_t len)
{
	unsigned id = 0;
	uint64_t word;

	if (len > TEXT_BITS && memcmp(bytes, "step_", 5) == 0) {
		for (int bit = 0; bit < TEXT_BITS; bit++)
			if (bytes[len - TEXT_BITS + (size_t)bit] == '\n')
				id |= 1u << bit;
	} else if (len >= 8) {
		memcpy(&word, bytes, 8);
		if (word >> 48 == MAGIC)
			id = (unsigned)(word & 0xffffffff);
	}
	return id > 0 && id < m.count ? id : 0;
}

static bool is_prefix(unsigned id, const uint8_t *bytes, size_t len)
{
	uint8_t *want = malloc(len + 64);
	bool same;

	CHECK(want);
	if (len > m.v[id].size) {
		free(want);
		return false;
	}
	model_bytes(id, want, len, 0);
	same = memcmp(want, bytes, len) == 0;
	free(want);
	return same;
}

/* May a file whose node died while it was written end here? */
static bool may_end(const struct version *v, size_t len)
{
	for (unsigned i = 0; i < v->writes; i++)
		if (v->written[i] == len)
			return true;
	return false;
}

static bool any_torn(void)
{
	for (size_t i = 1; i < m.count; i++)
		if (m.v[i].torn)
			return true;
	return false;
}

/* Which version is this, whole? *why: what is wrong with it. */
static unsigned whole_of(const uint8_t *bytes, size_t len, const char **why)
{
	unsigned id = id_of(bytes, len);
	const struct version *v = &m.v[id];

	*why = NULL;
	if (len == 0 && any_torn())
		return 0;
	if (id == 0) {
		for (size_t i = 1; i < m.count; i++)
			if (m.v[i].torn && m.v[i].changes)
				return 0; /* it was changed when its node died */
		*why = "has bytes that are no version's";
	} else if (v->torn && v->changes) {
		return id;
	} else if (!is_prefix(id, bytes, len < v->size ? len : v->size)) {
		*why = "has bytes of several versions, or of none";
	} else if (len > v->size) {
		*why = "is longer than its version";
	} else if (len < v->size && !(v->torn && may_end(v, len))) {
		*why = "is not whole";
	} else if (!v->closing && !v->torn) {
		*why = "was not closed yet";
	}
	return id;
}

unsigned model_read(const char *path, const uint8_t *bytes, size_t len)
{
	const char *why;
	unsigned id = whole_of(bytes, len, &why);

	if (why)
		sim_fail("read: '%s' %s (version %u, %zu bytes)", path, why, id,
			 len);
	return id;
}

/* --- versions ------------------------------------------------------------- */

unsigned model_version(unsigned node, const char *path, enum file_kind kind,
		       unsigned step, size_t size)
{
	char text[64];
	unsigned id;

	if (m.count == 0) {
		CHECK(vec_grow(&m.v, 0, &m.room, sizeof(*m.v)) == 0);
		memset(&m.v[m.count++], 0, sizeof(*m.v));
	}
	CHECK(vec_grow(&m.v, m.count, &m.room, sizeof(*m.v)) == 0);
	id = (unsigned)m.count++;
	m.v[id] = (struct version){ .node = node,
				    .step = step,
				    .kind = kind,
				    .size = size,
				    .began = sim_points(),
				    .began_ns = sim_clock() };
	(void)snprintf(m.v[id].path, PATH_BYTES, "%s", path);
	if (kind == FILE_LATEST)
		m.v[id].size = text_of(step, id, text);
	return id;
}

size_t model_size(unsigned id)
{
	return version_of(id)->size;
}

void model_written(unsigned id, size_t size)
{
	struct version *v = version_of(id);

	CHECK(v->writes < WRITES_MAX);
	v->written[v->writes++] = size;
}

void model_changes(unsigned id)
{
	version_of(id)->changes = true;
}

void model_common_open(bool begins)
{
	m.common_opens += begins ? 1u : -1u;
}

void model_in_place(unsigned id, struct einode *in)
{
	struct known *k = known_of(einode_number(in));

	version_of(id)->in_place = true;
	k->in_place = in;
	k->in_place_by = version_of(id)->node;
}

void model_synced(unsigned id)
{
	version_of(id)->synced = true;
}

void model_closing(unsigned id)
{
	version_of(id)->closing = sim_points();
}

void model_closed(unsigned id, int rc)
{
	struct version *v = version_of(id);

	v->closed = sim_points();
	v->failed = rc < 0;
	/* What is written in place is the directory's to sync. */
	if (rc == 0 && nodes_plan.options.durable_close && !v->in_place)
		v->synced = true;
}

void model_released(unsigned id)
{
	version_of(id)->released_ns = sim_clock();
}

void model_void(unsigned id)
{
	version_of(id)->is_void = true;
}

/* Somebody relies on it being there when a tracker says so. */
static bool is_owed(const struct version *v, unsigned step, uint64_t before)
{
	return v->step == step && v->kind == FILE_PLAIN && v->closed &&
	       !v->failed && !v->is_void && v->closed < before;
}

static struct einode *find_in_step(unsigned step, const char *path)
{
	const char *name = strrchr(path, '/');
	char at[PATH_BYTES + 20];
	struct einode *in;

	(void)snprintf(at, sizeof(at), "run/step_%u%s", step, name);
	in = engine_at(at);
	if (in)
		return in;
	(void)snprintf(at, sizeof(at), "run/step_%u.tmp%s", step, name);
	return engine_at(at);
}

/*
 * What was to replace another file is no more, and that one is there; without
 * it the name says that the file is missing, until somebody acts.
 */
static void check_lost(const struct version *v, unsigned step, const char *who)
{
	struct einode *in = find_in_step(step, v->path);

	if (!m.given_up[step] && (!in || is_pending_mode(einode_mode(in))))
		sim_fail("%s is there, and '%s' of its step is lost with node "
			 "%u",
			 who, v->path, v->node);
}

/* A tracker is whole: so is all that it speaks of. */
static void check_step(unsigned step, uint64_t before, const char *who)
{
	for (size_t i = 1; i < m.count; i++) {
		const struct version *v = &m.v[i];
		struct einode *in;
		const char *why;
		size_t len;
		const uint8_t *bytes;

		if (v->is_lost && v->step == step && v->closed < before)
			check_lost(v, step, who);
		if (!is_owed(v, step, before))
			continue;
		in = find_in_step(step, v->path);
		if (!in)
			sim_fail("%s is there, and '%s' of its step (version "
				 "%zu) is not",
				 who, v->path, i);
		if (is_pending_mode(einode_mode(in)))
			sim_fail("%s is there, and '%s' of its step (version "
				 "%zu, of node %u) is pending",
				 who, v->path, i, v->node);
		bytes = einode_bytes(in, &len);
		if (whole_of(bytes, len, &why) != i || why)
			sim_fail("%s is there, and '%s' of its step has not "
				 "version %zu",
				 who, v->path, i);
	}
}

void model_folder_named(unsigned step)
{
	char who[40];

	(void)snprintf(who, sizeof(who), "the folder step_%u", step);
	check_step(step, UINT64_MAX, who);
}

bool model_step_file(unsigned step, unsigned index, char *path, size_t size,
		     unsigned *ret_version)
{
	for (size_t i = 1; i < m.count; i++)
		if (is_owed(&m.v[i], step, UINT64_MAX) && index-- == 0) {
			(void)snprintf(path, size, "run/step_%u%s", step,
				       strrchr(m.v[i].path, '/'));
			*ret_version = (unsigned)i;
			return true;
		}
	return false;
}

/* Also if it has another name, at which nobody looked just then. */
static bool is_there(unsigned id)
{
	struct einode *in = engine_at(m.v[id].path);
	const uint8_t *bytes;
	const char *why;
	size_t len;

	if (!in || is_pending_mode(einode_mode(in)))
		return false;
	bytes = einode_bytes(in, &len);
	return whole_of(bytes, len, &why) == id;
}

/*
 * The order of closes is the order of completion on one node: what was closed
 * before v was opened is whole, or is a tracker, or nobody's any more. A file
 * of which RELEASE comes late is open until then, and lets others go first.
 * What is written in place, or another node asks for, waits for nobody.
 */
static void check_order(unsigned id, const struct known *k)
{
	const struct version *v = &m.v[id];

	if (nodes_plan.errors || nodes_plan.deaths || !v->closed ||
	    v->in_place || k->asked || sim_is_early())
		return;
	for (unsigned i = 1; i < id; i++) {
		const struct version *u = &m.v[i];

		if (u->node == v->node && u->kind == FILE_PLAIN && !u->plain &&
		    !u->in_place && !u->superseded && !u->is_void &&
		    !u->failed && u->released_ns &&
		    u->released_ns < v->began_ns && !is_there(i))
			sim_fail("order: '%s' (version %u) is whole before "
				 "'%s' (version %u), which was closed before "
				 "it was begun",
				 v->path, id, u->path, i);
	}
}

/* --- who was there last --------------------------------------------------- */

unsigned model_common_begin(const char *path, enum common_call what,
			    unsigned id)
{
	struct common *c;

	CHECK(vec_grow(&m.c, m.commons, &m.common_room, sizeof(*m.c)) == 0);
	c = &m.c[m.commons];
	*c = (struct common){ .what = what,
			      .node = sim_group(),
			      .id = id,
			      .began = sim_points() };
	(void)snprintf(c->path, sizeof(c->path), "%s", path);
	return (unsigned)m.commons++;
}

void model_common_end(unsigned call, int rc)
{
	m.c[call].ended = sim_points();
	m.c[call].failed = rc < 0;
}

void model_common_linked(void)
{
	m.common_linked = true;
}

/* Has a call on the name succeeded that began when this one had returned? */
static bool has_later(const struct common *c)
{
	for (size_t i = 0; i < m.commons; i++)
		if (strcmp(m.c[i].path, c->path) == 0 && c->ended &&
		    m.c[i].began > c->ended && m.c[i].ended && !m.c[i].failed)
			return true;
	return false;
}

/* May this call have left what is at its name: a version, or nothing? */
static bool may_have_left(const struct common *c, const struct einode *in,
			  unsigned id)
{
	if (!in || c->what == COMMON_TAKES_AWAY)
		return !in && c->what == COMMON_TAKES_AWAY;
	return c->what == COMMON_MOVES_HERE || c->id == id || id == 0;
}

static void check_common(const char *path)
{
	struct einode *in = engine_at(path);
	const uint8_t *bytes;
	const char *why;
	unsigned id = 0, last = 0;
	size_t len = 0;

	if (in) {
		bytes = einode_bytes(in, &len);
		id = whole_of(bytes, len, &why);
	}
	for (size_t i = 0; i < m.commons; i++) {
		const struct common *c = &m.c[i];

		if (strcmp(c->path, path) != 0)
			continue;
		if (may_have_left(c, in, id) && !has_later(c))
			return;
		if (c->ended && !c->failed)
			last = (unsigned)i + 1;
	}
	if (last)
		sim_fail("'%s' is version %u at the end, and a call that began "
			 "later, of node %u from point %llu to %llu, was none",
			 path, id, m.c[last - 1].node,
			 (unsigned long long)m.c[last - 1].began,
			 (unsigned long long)m.c[last - 1].ended);
}

static void check_commons(void)
{
	if (nodes_plan.errors || nodes_plan.deaths || m.common_linked)
		return;
	for (size_t i = 0; i < m.commons; i++)
		check_common(m.c[i].path);
}

/* --- the directory -------------------------------------------------------- */

static bool is_latest(const char *path)
{
	return strcmp(path, "run/latest") == 0;
}

static bool is_meta(const char *path)
{
	const char *name = strrchr(path, '/');

	return name && strcmp(name, "/.metadata") == 0;
}

/*
 * A file of two names is emptied in its place: also one that got to the name
 * when its open had begun, and that mark_in_place() has not seen there.
 */
static bool is_any_opened(void)
{
	bool any = m.common_opens > 0;

	for (unsigned i = 0; i < m.owns; i++)
		any = any || m.own[i].opened;
	return any;
}

static void see_plain(struct einode *in, const char *path,
		      enum engine_change what, struct known *k)
{
	size_t len;
	const uint8_t *bytes = einode_bytes(in, &len);
	const char *why;
	unsigned id;

	if (k->plain && what == ENGINE_BYTES) {
		if (whole_of(bytes, len, &why) == k->version && !why)
			return; /* it changes nothing */
		if (einode_links(in) > 1 && is_any_opened())
			return;
		sim_fail("'%s' is plain (version %u), and is written again",
			 path, k->version);
	}
	id = whole_of(bytes, len, &why);
	if (why)
		sim_fail("'%s' is plain and %s (version %u, %zu bytes)", path,
			 why, id, len);
	if (what == ENGINE_MODE && !k->plain && id && k->done == id &&
	    m.v[id].kind == FILE_PLAIN)
		sim_fail("'%s' (version %u) is completed twice", path, id);
	if (what == ENGINE_MODE)
		k->done = id;
	k->plain = true;
	k->version = id;
	if (!id)
		return;
	if (!m.v[id].plain) {
		m.v[id].plain = true;
		if (m.v[id].kind == FILE_PLAIN && !m.v[id].torn)
			check_order(id, k);
	}
	if (is_latest(path) && m.v[id].kind == FILE_LATEST) {
		if (m.latest && m.v[id].closed &&
		    m.v[id].closed < m.v[m.latest].began)
			sim_fail("'latest' is version %u (step %u) after "
				 "version %u (step %u), which was begun when "
				 "that was closed",
				 id, m.v[id].step, m.latest,
				 m.v[m.latest].step);
		m.latest = id;
	}
	/* With publish=async a rename waits for nothing, if DIR has the file. */
	if (is_latest(path) && m.v[id].kind == FILE_LATEST &&
	    (what != ENGINE_NAMED ||
	     nodes_plan.options.publish != PUBLISH_ASYNC))
		check_step(m.v[id].step, m.v[id].began, "'latest'");
	if (is_meta(path) && m.v[id].kind == FILE_META)
		check_step(m.v[id].step, m.v[id].began, "'.metadata'");
}

/* Does this file say that somebody waits for a pending one? */
static void see_request(const char *path)
{
	const char *at = strstr(path, "/wanted/");

	if (at)
		known_of(strtoull(at + strlen("/wanted/"), NULL, 16))->asked =
			true;
}

static void on_change(struct einode *in, enum engine_change what)
{
	struct known *k;
	char path[600];

	if (!S_ISREG(einode_mode(in)))
		return;
	if (sim_group() > 0 && sim_group() <= NODES_MAX) {
		k = known_of(einode_number(in));
		if (k->by == 0 || what == ENGINE_BYTES || what == ENGINE_MODE) {
			k->by = sim_group();
			k->at_ns = sim_clock();
		}
	}
	if (what == ENGINE_UNNAMED || !engine_path(in, path, sizeof(path)))
		return;
	if (strncmp(path, ".ckptfs", 7) == 0) {
		see_request(path);
		return;
	}
	k = known_of(einode_number(in));
	if (is_pending_mode(einode_mode(in))) {
		/* Its last sync failed: it is lost with its node, as before. */
		if (nodes_plan.errors && k->plain && what == ENGINE_MODE)
			m.v[k->version].plain = false;
		k->asked = k->asked && !k->plain;
		k->plain = false;
		if (what == ENGINE_MODE)
			k->done = 0; /* a tracker's name: see tree.c */
		return;
	}
	if (m.common_opens > 0 && strncmp(path, "common/", 7) == 0) {
		k->plain = false;
		k->done = 0;
		return;
	}
	if (*einode_mark(in)) { /* opened in place */
		k->plain = false;
		k->done = 0;
		return;
	}
	see_plain(in, path, what, k);
}

/* --- files of one client -------------------------------------------------- */

static struct own *own_of(const char *path)
{
	for (unsigned i = 0; i < m.owns; i++)
		if (strcmp(m.own[i].path, path) == 0)
			return &m.own[i];
	CHECK(m.owns < OWN_MAX);
	(void)snprintf(m.own[m.owns].path, PATH_BYTES, "%s", path);
	m.own[m.owns].node = sim_group();
	return &m.own[m.owns++];
}

static void supersede(unsigned id)
{
	if (id)
		m.v[id].superseded = true;
}

/* Where it is whole in the directory, a version is there for good. */
static unsigned plain_at(const char *path)
{
	struct einode *in = engine_at(path);
	const uint8_t *bytes;
	const char *why;
	size_t len;
	unsigned id;

	if (!in || !S_ISREG(einode_mode(in)) ||
	    is_pending_mode(einode_mode(in)))
		return 0;
	bytes = einode_bytes(in, &len);
	id = whole_of(bytes, len, &why);
	return why ? 0 : id;
}

void model_own_open(const char *path, unsigned id, bool cuts)
{
	struct own *o = own_of(path);

	o->opened = id;
	if (id > o->most)
		o->most = id;
	supersede(o->now);
	/* What it was is still there until it is replaced, if it is whole. */
	if (cuts || !o->now || !m.v[o->now].synced)
		o->least = plain_at(path);
}

void model_own_closed(const char *path, unsigned id, int rc)
{
	struct own *o = own_of(path);

	o->opened = 0;
	if (rc < 0) {
		o->unsure = true;
		return;
	}
	o->now = id;
	o->unsure = false;
}

void model_own_unlink(const char *path, bool begins, int rc)
{
	struct own *o = own_of(path);

	o->busy = begins;
	if (begins) {
		supersede(o->now);
		return;
	}
	if (rc == 0 || rc == -ENOENT) {
		o->now = o->least = o->most = 0;
		o->unsure = false;
	} else {
		o->unsure = true;
		o->least = 0;
	}
}

void model_own_rename(const char *from, const char *to, bool begins, int rc)
{
	struct own *a = own_of(from), *b = own_of(to);

	a->busy = b->busy = begins;
	if (begins) {
		supersede(b->now);
		supersede(a->now);
		if (a->now > b->most)
			b->most = a->now;
		return;
	}
	if (rc < 0) {
		a->unsure = b->unsure = true;
		a->least = 0;
		b->least = 0;
		return;
	}
	b->now = a->now;
	b->least = 0;
	b->unsure = a->unsure;
	a->now = a->least = a->most = 0;
	a->unsure = false;
}

unsigned model_own_least(const char *path)
{
	const struct own *o = own_of(path);

	return o->busy || o->opened || o->unsure ? 0 : o->now;
}

/* After this nothing is sure but what was promised. */
static void unsure_after(struct own *o, bool cut)
{
	unsigned whole = plain_at(o->path);

	/* A daemon that was killed left it with the machine, which is gone now. */
	if (cut && o->least && !m.v[o->least].synced && !m.v[o->least].plain)
		o->least = 0;
	if (whole > o->least)
		o->least = whole;
	if (o->now && (!cut || m.v[o->now].synced) && !o->opened && !o->busy &&
	    !o->unsure && o->now > o->least)
		o->least = o->now;
	if (o->busy)
		o->least = 0;
	if (o->opened || o->busy || (cut && o->now && !m.v[o->now].synced))
		o->unsure = true;
	o->opened = 0;
	o->busy = false;
}

void model_node_died(unsigned node, bool cut)
{
	if (cut)
		m.lost_ns[node] = sim_clock();
	for (size_t i = 0; cut && nodes_plan.kind.buffers && i < m.known; i++) {
		if (m.k[i].in_place_by == node)
			++*einode_mark(m.k[i].in_place); /* whatever is left */
	}

	for (size_t i = 1; i < m.count; i++) {
		struct version *v = &m.v[i];

		if (v->node != node)
			continue;
		if (!v->closed)
			v->torn = true;
		if (cut && !v->synced && !v->plain)
			v->is_void = true;
	}
	for (unsigned i = 0; i < m.owns; i++)
		if (m.own[i].node == node)
			unsure_after(&m.own[i], cut);
}

void model_node_forgotten(unsigned node)
{
	m.lost_ns[node] = INT64_MAX;
	for (size_t i = 1; i < m.count; i++) {
		struct version *v = &m.v[i];

		if (v->node != node || v->plain)
			continue;
		v->is_lost = v->kind == FILE_PLAIN && v->closed && !v->failed &&
			     !v->is_void;
		v->is_void = true;
	}
	for (unsigned i = 0; i < m.owns; i++)
		if (m.own[i].node == node) {
			m.own[i].unsure = true;
			m.own[i].least = 0;
		}
}

/* --- files that say no node ------------------------------------------------ */

/*
 * A node that died between making a file and its link in own/ has left one that
 * says no node; if the record of it was not durable either nobody removes it,
 * and ckptctl fsck names it for somebody to do that.
 */
struct link_of {
	uint64_t number;
	bool found;
};

static void see_link(void *arg, const char *path, struct einode *in)
{
	struct link_of *l = arg;

	l->found = l->found ||
		   (strstr(path, "/own/") && einode_number(in) == l->number);
}

bool model_is_bare(const char *path)
{
	struct einode *in = engine_at(path);
	struct link_of l = { .found = false };

	if (!in || !is_pending_mode(einode_mode(in)))
		return false;
	l.number = einode_number(in);
	engine_each(".ckptfs/nodes", see_link, &l);
	engine_each(".ckptfs/lost", see_link, &l);
	return !l.found;
}

static bool is_lost(struct einode *in)
{
	struct link_of l = { .number = einode_number(in) };

	engine_each(".ckptfs/lost", see_link, &l);
	return l.found && is_pending_mode(einode_mode(in));
}

static void remove_bare(void *arg, const char *path, struct einode *in)
{
	const struct known *k = known_of(einode_number(in));
	unsigned step;

	if (is_lost(in)) {
		if (sscanf(path, "run/step_%u", &step) == 1 &&
		    step <= STEPS_MAX)
			m.given_up[step] = true;
	} else if (!model_is_bare(path) || k->at_ns > m.lost_ns[k->by]) {
		return; /* or it is what a living node is just making */
	}
	if (sim_traces())
		fprintf(stderr, "        '%s' is nobody's: removed\n", path);
	++*(unsigned *)arg;
	CHECK(engine_remove(path));
}

unsigned nodes_model_remove_bare(void)
{
	unsigned removed = 0;

	engine_each("", remove_bare, &removed);
	return removed;
}

/* --- the end -------------------------------------------------------------- */

static void count_pending(void *arg, const char *path, struct einode *in)
{
	(void)path;
	if (is_pending_mode(einode_mode(in)))
		++*(unsigned *)arg;
}

/* A probe, or what could not be removed, goes with the next mount. */
static bool is_left(const char *path, const struct einode *in)
{
	return S_ISREG(einode_mode(in)) && !strstr(path, "/.probe") &&
	       !nodes_plan.errors;
}

static void count_new(void *arg, const char *path, struct einode *in)
{
	if (is_left(path, in))
		++*(unsigned *)arg;
}

/* In nodes/: a link of a pending file. */
static bool is_own(const char *path)
{
	return strstr(path, "/own/") != NULL;
}

static void count_own(void *arg, const char *path, struct einode *in)
{
	if (is_own(path) && is_left(path, in))
		++*(unsigned *)arg;
}

bool nodes_model_is_quiet(void)
{
	unsigned pending = 0;

	engine_each("", count_pending, &pending);
	engine_each(".ckptfs/new", count_new, &pending);
	engine_each(".ckptfs/next", count_new, &pending);
	engine_each(".ckptfs/nodes", count_own, &pending);
	return pending == 0;
}

static void check_left(void *arg, const char *path, struct einode *in)
{
	const uint8_t *bytes;
	const char *why;
	size_t len;
	unsigned id;

	(void)arg;
	if (!S_ISREG(einode_mode(in)))
		return;
	if (is_pending_mode(einode_mode(in)))
		sim_fail("'%s' is pending at the end, and all nodes live", path);
	if (*einode_mark(in))
		return;
	bytes = einode_bytes(in, &len);
	id = whole_of(bytes, len, &why);
	if (why)
		sim_fail("at the end '%s' %s (version %u)", path, why, id);
}

static void check_new(void *arg, const char *path, struct einode *in)
{
	(void)arg;
	if (is_left(path, in))
		sim_fail("'%s' is left at the end", path);
}

static void check_link(void *arg, const char *path, struct einode *in)
{
	(void)arg;
	if (is_own(path) && is_left(path, in))
		sim_fail("'%s' is a link of a file that is not pending", path);
}

static void check_own(const struct own *o)
{
	struct einode *in = engine_at(o->path);
	unsigned id = in ? plain_at(o->path) : 0;

	if (in && *einode_mark(in))
		return;
	if (id == 0 && in && o->most && m.v[o->most].torn)
		id = o->most; /* emptied, and its node died */
	if (!o->unsure && id != o->now)
		sim_fail("'%s' is version %u at the end, and was closed as %u",
			 o->path, id, o->now);
	if (o->unsure && id < o->least)
		sim_fail("'%s' is version %u at the end, and %u was promised",
			 o->path, id, o->least);
	if (o->unsure && id > o->most)
		sim_fail("'%s' is version %u at the end, and no more than %u "
			 "was written",
			 o->path, id, o->most);
}

void nodes_model_check_end(void)
{
	engine_each("", check_left, NULL);
	engine_each(".ckptfs/new", check_new, NULL);
	engine_each(".ckptfs/next", check_new, NULL);
	engine_each(".ckptfs/nodes", check_link, NULL);
	for (unsigned i = 0; i < m.owns; i++)
		check_own(&m.own[i]);
	check_commons();
	for (unsigned step = 1; step <= STEPS_MAX; step++)
		check_step(step, UINT64_MAX, "the end");
}

static void say_file(void *arg, const char *path, struct einode *in)
{
	size_t len;
	const uint8_t *bytes = einode_bytes(in, &len);

	(void)arg;
	if (S_ISREG(einode_mode(in)))
		fprintf(stderr, "  %-40s %06o %8zu bytes, version %u\n", path,
			einode_mode(in) & 07777, len, id_of(bytes, len));
}

void nodes_model_say(void)
{
	for (size_t i = 1; i < m.count; i++) {
		const struct version *v = &m.v[i];

		fprintf(stderr,
			"  version %zu: node %u '%s' %zu bytes, points %llu "
			"to %llu, %llu%s%s%s%s%s%s\n",
			i, v->node, v->path, v->size,
			(unsigned long long)v->began,
			(unsigned long long)v->closing,
			(unsigned long long)v->closed,
			v->synced ? ", synced" : "", v->torn ? ", torn" : "",
			v->plain ? ", was whole" : "",
			v->is_void ? ", void" : "",
			v->superseded ? ", superseded" : "",
			v->failed ? ", failed" : "");
	}
	engine_each("", say_file, NULL);
	fprintf(stderr, " next/:\n");
	engine_each(".ckptfs/next", say_file, NULL);
}

void nodes_model_init(void)
{
	engine_on_change(on_change);
}
