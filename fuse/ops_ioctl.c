/*
 * ops_ioctl.c - what ckptctl asks of a mount (ckptfs_ioctl.h): status, the
 * inside of a file, flush, gc. Answers are JSON and are made anew for each
 * page, so that no call leaves state behind.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuse/ending.h"
#include "fuse/fs.h"
#include "fuse/opens.h"
#include "fuse/waiting.h"
#include "store/base/ckptfs_ioctl.h"
#include "store/base/scope.h"
#include "store/drain/commit.h"
#include "store/file/file.h"
#include "store/guard/guard_table.h"
#include "store/names/names.h"
#include "store/publish.h"
#include "store/shared/shared.h"

/* How many extents of a file are shown. */
#define INSPECT_EXTENTS_MAX 1024

static void add_number(cJSON *to, const char *name, uint64_t v)
{
	(void)cJSON_AddNumberToObject(to, name, (double)v);
}

static void add_text(cJSON *to, const char *name, const char *text)
{
	(void)cJSON_AddStringToObject(to, name, text);
}

/* As the mount shows it. */
static void path_of(struct store *st, struct inode *in, char *buf, size_t size)
{
	const struct guard_table *t = guard_table(st->guard);

	t->path(t->self, in->ino, buf, size);
}

struct failed_files {
	struct store *st;
	cJSON *list;
	uid_t uid; /* root, or whose they are: names are not for everybody */
};

static void add_failed(void *arg, struct inode *in, int error)
{
	struct failed_files *a = arg;
	char path[4096];
	cJSON *one;

	if (a->uid != 0 && a->uid != inode_attr(in).uid)
		return;
	one = cJSON_CreateObject();
	path_of(a->st, in, path, sizeof(path));
	add_text(one, "path", path);
	add_text(one, "error", strerror(-error));
	cJSON_AddItemToArray(a->list, one);
}

static void add_backup(cJSON *to, struct store *st)
{
	cJSON *one = cJSON_AddObjectToObject(to, "backup");
	struct backup_figures f;

	backup_figures(st, &f);
	add_number(one, "interval_s", st->options.backup_interval_s);
	add_number(one, "made", f.made);
	add_number(one, "failed", f.failed);
	add_number(one, "bytes", f.bytes);
	add_number(one, "took_ms", (uint64_t)f.took_ns / 1000000);
	add_number(one, "at_s", (uint64_t)f.at_ns / 1000000000);
}

/* The last ones first, those of the caller's own steps. */
static void add_refusals(cJSON *to, struct store *st, uid_t uid)
{
	cJSON *list = cJSON_AddArrayToObject(to, "refusals");
	struct guard_refusal r;

	for (unsigned n = 0; guard_refusal(st->guard, n, &r); n++) {
		cJSON *one;

		if (uid != 0 && uid != r.uid)
			continue;
		one = cJSON_CreateObject();
		add_number(one, "at_s", (uint64_t)r.at_ns / 1000000000);
		add_text(one, "path", r.path);
		add_text(one, "why", r.why);
		cJSON_AddItemToArray(list, one);
	}
}

static void add_structure(cJSON *to, struct store *st, uid_t uid)
{
	cJSON *one = cJSON_AddObjectToObject(to, "structure");
	struct guard_figures f;

	guard_figures(st->guard, &f);
	add_text(one, "policy", guard_policy_word(st->options.structure));
	add_number(one, "checked", f.checked);
	add_number(one, "waiting", f.waiting);
	add_number(one, "different", f.different);
	add_number(one, "broken", f.broken);
	add_number(one, "missing", f.missing);
	add_number(one, "gone", f.gone);
	add_number(one, "identical", f.identical);
	add_number(one, "refused", f.refused);
	add_number(one, "overlooked", f.overlooked);
	/* It has names out of files that not everybody may read. */
	add_text(one, "last", uid == 0 ? f.last : "");
	add_refusals(one, st, uid);
}

/* How full the stage is, and of what. */
static void add_stage(cJSON *to, struct stages *st,
		      const struct stages_figures *f)
{
	int64_t age_ns = wall_ns() - f->oldest_ns;
	uint64_t used, total;

	stages_usage(st, &used, &total);
	add_number(to, "staged_bytes", f->memory_bytes + f->disk_bytes);
	add_number(to, "staged_memory_bytes", f->memory_bytes);
	add_number(to, "staged_files", f->dirty_files);
	if (f->oldest_ns > 0)
		(void)cJSON_AddNumberToObject(to, "staged_unchanged_s",
					      age_ns > 0 ? (double)age_ns / 1e9
							 : 0);
	else
		(void)cJSON_AddNullToObject(to, "staged_unchanged_s");
	add_number(to, "stage_used_bytes", used);
	add_number(to, "stage_capacity_bytes", total);
	add_number(to, "stage_ahead_bytes", f->ahead_bytes);
	add_number(to, "stage_clean_bytes", f->clean_bytes);
	add_number(to, "stage_clean_files", f->clean_files);
	add_number(to, "stage_files_max", f->slots);
	add_number(to, "stage_files_used", f->slots_used);
	add_number(to, "stage_files_refused", f->slots_refused);
	if (f->slots_refused > 0)
		add_number(to, "stage_files_refused_uid", f->slots_refused_uid);
	add_text(to, "stage", st->path);
}

static double seconds(int64_t ns)
{
	return (double)ns / 1e9;
}

#define WAITS_MAX 64

/* What waits for files of others, of which more are not told. */
static void add_waits(cJSON *to, struct shared *sh)
{
	static const char *const words[] = {
		[SHARED_WAIT_UNKNOWN] = "unknown",
		[SHARED_WAIT_ALIVE] = "alive",
		[SHARED_WAIT_AWAY] = "away",
		[SHARED_WAIT_LOST] = "lost",
	};
	SCOPED(scope_free)
	struct shared_wait *waits = calloc(WAITS_MAX, sizeof(*waits));
	size_t count = waits ? shared_waits(sh, waits, WAITS_MAX) : 0;
	cJSON *list = cJSON_AddArrayToObject(to, "waits");

	for (size_t i = 0; i < count; i++) {
		cJSON *one = cJSON_CreateObject();

		add_text(one, "path", waits[i].path);
		add_text(one, "file", waits[i].file);
		add_text(one, "node", waits[i].node);
		add_text(one, "node_is", words[waits[i].state]);
		(void)cJSON_AddNumberToObject(one, "for_s",
					      seconds(waits[i].for_ns));
		(void)cJSON_AddItemToArray(list, one);
	}
}

static void add_shared(cJSON *to, struct shared *sh)
{
	cJSON *one = cJSON_AddObjectToObject(to, "shared_directory");
	struct shared_figures f;

	shared_figures(sh, &f);
	add_text(one, "dir", shared_dir(sh));
	add_text(one, "node", shared_node_name(sh));
	add_number(one, "pending", f.pending);
	add_number(one, "pending_bytes", f.pending_bytes);
	(void)cJSON_AddNumberToObject(one, "oldest_pending_s",
				      seconds(f.oldest_ns));
	add_number(one, "failing", f.failing);
	add_text(one, "error", f.error < 0 ? strerror(-f.error) : "");
	add_number(one, "kept", f.kept);
	add_number(one, "uploaded", f.uploaded);
	add_number(one, "uploaded_bytes", f.uploaded_bytes);
	(void)cJSON_AddNumberToObject(one, "silent_s",
				      seconds(f.engine_silent_ns));
	add_waits(one, sh);
}

/* Can anything be made durable at all? */
static const char *const health_words[] = {
	[KV_FINE] = "fine",
	[KV_FAILING] = "failing",
	[KV_CONDEMNED] = "failed",
};

static cJSON *status(struct fs *fs, uid_t uid)
{
	static const char *const counters[] = { META_LOGICAL, META_PHYSICAL,
						META_FILES,   META_IMAGES,
						META_CHUNKS,  META_SHARED };
	struct store *st = fs->store;
	cJSON *s = cJSON_CreateObject();
	struct failed_files failed = { .st = st, .uid = uid };
	struct drain_figures d;
	struct segment_figures g;
	struct stages_figures f;

	add_text(s, "version", CKPTFS_VERSION);
	add_text(s, "store", st->path);
	add_text(s, "mountpoint", fs->mountpoint);
	(void)cJSON_AddBoolToObject(s, "passthrough", fs->passthrough);
	stages_figures(&st->stages, &f);
	for (size_t i = 0; i < sizeof(counters) / sizeof(*counters); i++) {
		uint64_t v = store_counter(st, counters[i]);

		if (i == 0) /* what is staged is there for who looks */
			v += f.memory_bytes + f.disk_bytes;
		add_number(s, counters[i], v);
	}
	add_number(s, "unknown_images", atomic_load(&st->unknown_images));
	add_text(s, "database", health_words[kv_health(st->kv)]);
	drain_figures(st->drain, &d);
	add_stage(s, &st->stages, &f);
	segment_figures(&st->segments, &g);
	add_number(s, "segment_clients", g.clients);
	add_number(s, "segments", g.segments);
	add_number(s, "segment_bytes", g.bytes);
	add_number(s, "segment_idle_bytes", g.idle_bytes);
	add_number(s, "draining", d.draining);
	add_number(s, "failed", d.failed);
	add_number(s, "left_native", d.left_native);
	add_number(s, "left_native_bytes", d.left_native_bytes);
	add_number(s, "worker_restarts", 0);
	add_text(s, "share", st->options.share_all ? "all" : "user");
	add_text(s, "hash", chunk_hash_variant());
	add_backup(s, st);
	add_structure(s, st, uid);
	if (fs->shared)
		add_shared(s, fs->shared);
	failed.list = cJSON_AddArrayToObject(s, "failed_files");
	drain_each_failed(st->drain, add_failed, &failed);
	return s;
}

/* What is not known is left out; null: nothing is. */
static void add_writer(cJSON *to, struct store *st, uint64_t ino)
{
	struct writer w;
	cJSON *one;

	if (names_get_writer(st->names, ino, &w) < 0) {
		(void)cJSON_AddNullToObject(to, "writer");
		return;
	}
	one = cJSON_AddObjectToObject(to, "writer");
	if (w.source != WRITER_NOWHERE) {
		add_number(one, "rank", w.rank);
		add_text(one, "rank_kind", writer_kind_word(&w));
	}
	if (w.world_size > 0)
		add_number(one, "world_size", w.world_size);
	if (w.host[0])
		add_text(one, "host", w.host);
	if (w.job[0])
		add_text(one, "job", w.job);
	if (w.source != WRITER_NOWHERE)
		add_text(one, "source", writer_source_word(&w));
}

static void add_extents(cJSON *to, const struct content *c)
{
	size_t count = c ? c->extent_count : 0;
	cJSON *list;

	add_number(to, "extent_count", count);
	list = cJSON_AddArrayToObject(to, "extents");
	/* The first ones will do: the text is made anew for every page. */
	for (size_t i = 0; i < count && i < INSPECT_EXTENTS_MAX; i++) {
		cJSON *one = cJSON_CreateObject();

		add_number(one, "offset", c->extents[i].offset);
		add_number(one, "len", c->extents[i].len);
		add_number(one, "image", c->extents[i].image);
		add_number(one, "image_offset", c->extents[i].image_offset);
		cJSON_AddItemToArray(list, one);
	}
}

static void add_where(cJSON *to, const struct shared_where *where)
{
	add_text(to, "shared", shared_word(where->is));
	if (where->node[0])
		add_text(to, "shared_node", where->node);
}

/* A file of DIR: who could open it may know what stat(2) tells of it. */
static int inspect_plain(struct shared *s, fuse_ino_t ino, cJSON **ret)
{
	struct shared_where where;
	struct stat sb;
	cJSON *json;
	int rc = shared_stat(s, ino, &sb);

	if (rc == 0 && !S_ISREG(sb.st_mode))
		rc = S_ISDIR(sb.st_mode) ? -EISDIR : -EINVAL;
	if (rc == 0)
		rc = shared_where(s, ino, &where);
	if (rc < 0)
		return rc;
	json = cJSON_CreateObject();
	add_text(json, "state", shared_state(where.is));
	add_where(json, &where);
	add_number(json, "size_bytes", (uint64_t)sb.st_size);
	add_number(json, "physical_bytes", 0);
	(void)cJSON_AddBoolToObject(json, "native", false);
	add_text(json, "digest", "");
	(void)cJSON_AddNullToObject(json, "writer");
	add_extents(json, NULL);
	*ret = json;
	return 0;
}

/*
 * For who may read the file: a descriptor for writing lets him ask as well.
 * Its path and what it shares are for its owner.
 */
static int inspect(fuse_req_t req, fuse_ino_t ino, cJSON **ret)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	SCOPED(fs_state_release) struct fs_state state = { 0 };
	const struct content *shown = NULL;
	char path[4096] = "";
	struct stat sb;
	struct shared *s = fs_of(req)->shared;
	struct shared_where where;
	bool own;
	int rc;

	if (s && shared_is_node(ino))
		return inspect_plain(s, ino, ret);
	rc = fs_get(req, ino, &i);
	if (rc < 0)
		return rc;
	own = fs_is_own(req, i.in);
	rc = own ? 0 : fs_may(req, i.in, 04);
	if (rc == 0)
		rc = fs_file_state(&i, own, &state);
	if (rc == 0)
		rc = inode_stat(i.st->inodes, i.in, &sb);
	if (rc < 0)
		return rc;
	if (own)
		path_of(i.st, i.in, path, sizeof(path));
	if (state.shares_shown)
		shown = &state.content->c;
	*ret = cJSON_CreateObject();
	add_text(*ret, "path", path);
	add_text(*ret, "state", state.word);
	if (s && shared_where(s, ino, &where) == 0)
		add_where(*ret, &where);
	if (state.error < 0)
		add_text(*ret, "error", strerror(-state.error));
	add_number(*ret, "size_bytes", (uint64_t)sb.st_size);
	add_number(*ret, "physical_bytes", state.physical_bytes);
	(void)cJSON_AddBoolToObject(*ret, "native",
				    state.content && state.content->c.native);
	add_text(*ret, "digest", state.digest);
	add_writer(*ret, i.st, ino);
	add_extents(*ret, shown);
	return 0;
}

/* Give up the clean stages of one user's files that nobody has open. */
static void give_up_of(struct store *st, uid_t uid)
{
	for (uint32_t i = 0; i < st->stages.slot_count; i++) {
		const struct stage_slot *slot = &st->stages.slots[i];
		struct stage *stage = NULL;
		struct inode *in = NULL;

		if (!SLOT_GET(slot, dirty))
			in = inode_of_slot(st->inodes, slot);
		if (!in)
			continue;
		{
			HOLD(&in->lock);
			if (in->attr.uid == uid && in->file)
				stage = in->file->stage;
			if (stage)
				stage_ref(stage);
		}
		if (stage)
			(void)file_evict(&st->files, stage);
		stage_put(&st->stages, stage);
		inode_put(st->inodes, in, 1);
	}
	segments_ask_back(&st->segments, uid);
}

/*
 * Give up every clean stage that nobody has open, a user's own if it is not
 * root who asks; finish all deletions and punching.
 */
static cJSON *gc(struct store *st, uid_t uid)
{
	uint64_t before, after, total, freed_before = 0, freed = 0;
	cJSON *g = cJSON_CreateObject();

	stages_usage(&st->stages, &before, &total);
	reclaim_freed(st->reclaim, &freed_before);
	if (uid == 0)
		(void)stages_make_room(&st->stages, total);
	else
		give_up_of(st, uid);
	commit_wait(st->drain);
	reclaim_drain(st->reclaim, &freed);
	stages_usage(&st->stages, &after, &total);
	add_number(g, "stage_freed_bytes", before > after ? before - after : 0);
	add_number(g, "freed_bytes", freed - freed_before);
	return g;
}

/* One page of the text into q; makes no text where cursor is past the end. */
static void page(struct ckptfs_query *q, const char *text)
{
	size_t len = strlen(text);
	size_t at = q->cursor < len ? (size_t)q->cursor : len;

	q->len = (uint32_t)(len - at < sizeof(q->text) ? len - at
						       : sizeof(q->text));
	memcpy(q->text, text + at, q->len);
	at += q->len;
	q->cursor = at < len ? at : 0;
}

static int do_query(fuse_req_t req, fuse_ino_t ino, struct ckptfs_query *q)
{
	struct fs *fs = fs_of(req);
	uid_t uid = fuse_req_ctx(req)->uid;
	cJSON *json = NULL;
	char *text;
	int rc = 0;

	if (q->what == CKPTFS_OPENS) {
		q->len = (uint32_t)opens_page(fs->opens, uid, &q->cursor,
					      q->text, sizeof(q->text));
		return 0;
	}
	switch (q->what) {
	case CKPTFS_STATUS:
		json = status(fs, uid);
		break;
	case CKPTFS_INSPECT:
		rc = inspect(req, ino, &json);
		break;
	case CKPTFS_GC:
		json = gc(fs->store, uid);
		break;
	default:
		rc = -EINVAL;
	}
	if (rc < 0)
		return rc;
	text = cJSON_PrintUnformatted(json);
	cJSON_Delete(json);
	if (!text)
		return -ENOMEM;
	page(q, text);
	free(text);
	return 0;
}

static int do_flush(fuse_req_t req, fuse_ino_t ino)
{
	SCOPED(fs_put) struct fs_inode i = { 0 };
	struct shared *s = fs_of(req)->shared;
	uint32_t mode;
	int rc;

	/* Of the whole mount, whatever it was asked of in DIR. */
	if (s && shared_is_node(ino))
		ino = FUSE_ROOT_ID;
	rc = fs_get(req, ino, &i);

	if (rc < 0)
		return rc;
	mode = inode_attr(i.in).mode;
	if (S_ISDIR(mode) || S_ISREG(mode))
		rc = publish(i.st, i.in);
	else
		rc = kv_sync(i.st->kv);
	if (rc != -EINTR &&
	    ino == FUSE_ROOT_ID) /* then the status says what was found */
		guard_wait_idle(i.st->guard);
	if (rc == 0 && ino == FUSE_ROOT_ID)
		ending_flushed(fs_of(req)->ending, fuse_req_ctx(req)->pid,
			       fuse_req_ctx(req)->uid);
	return rc;
}

static int do_flush_shared(fuse_req_t req)
{
	struct shared *s = fs_of(req)->shared;

	return s ? shared_flush(s) : -EOPNOTSUPP;
}

/*
 * chattr(1), lsattr(1) and their kin: no file has any of those flags, so asking
 * for them is answered, and setting none succeeds. true: it was one of them.
 */
static bool flags_ioctl(fuse_req_t req, unsigned cmd, const void *in_buf,
			size_t in_size, size_t out_size)
{
	static const struct fsxattr none;
	bool get = cmd == FS_IOC_GETFLAGS || cmd == FS_IOC_FSGETXATTR;
	bool set = cmd == FS_IOC_SETFLAGS || cmd == FS_IOC_FSSETXATTR;

	if (get && out_size <= sizeof(none))
		fuse_reply_ioctl(req, 0, &none, out_size);
	else if (set && in_size <= sizeof(none) &&
		 memcmp(in_buf, &none, in_size) == 0)
		fuse_reply_ioctl(req, 0, NULL, 0);
	else if (set)
		fuse_reply_err(req, EOPNOTSUPP);
	else
		return false;
	return true;
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	      struct fuse_file_info *fi, unsigned flags, const void *in_buf,
	      size_t in_size, size_t out_size)
{
	struct ckptfs_query q;
	struct waiting w;
	int rc;

	(void)arg;
	(void)fi;
	(void)flags;
	if (cmd == CKPTFS_IOC_FLUSH || cmd == CKPTFS_IOC_FLUSH_SHARED) {
		waiting_begin(&w, req);
		rc = cmd == CKPTFS_IOC_FLUSH ? do_flush(req, ino)
					     : do_flush_shared(req);
		waiting_end(&w);
		fs_reply_ioctl(req, rc, NULL, 0);
		return;
	}
	if (flags_ioctl(req, cmd, in_buf, in_size, out_size))
		return;
	if (op_segment_ioctl(req, ino, cmd, in_buf, in_size, out_size))
		return;
	if (cmd != CKPTFS_IOC_QUERY || in_size != sizeof(q) ||
	    out_size != sizeof(q)) {
		fuse_reply_err(req, ENOTTY);
		return;
	}
	memcpy(&q, in_buf, sizeof(q));
	fs_reply_ioctl(req, do_query(req, ino, &q), &q, sizeof(q));
}
