/*
 * inode.h - the inodes that somebody knows of: kernel, open handle or drain.
 *
 * A node id *is* the persistent inode number, so a look-up needs no pointer
 * from the kernel and means the same to the next daemon. An inode stays in the
 * table while it is referenced: by the kernel's look-ups (given back by
 * FORGET), by operations in progress, and once while its file is staged.
 *
 * What a regular file's bytes are:
 *
 *   stage set            the stage (it may equal what is committed)
 *   else content set     the committed content
 *   else                 nothing yet: it was created and has no stage
 *
 * How its opens are served is fixed while it is open anywhere, because the
 * kernel allows one backing file for each inode (fs/fuse/iomode.c).
 *
 * Locks (their order: store/README.md):
 *   inode.changing  serialises what changes an inode's backing: open, release,
 *                   truncate, copy-up. I/O on that same inode is done under it.
 *                   Drain workers and the committer never take it.
 *   inode.lock      the fields below; no I/O under it.
 */
#ifndef STORE_INODE_H
#define STORE_INODE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "store/base/sync.h"
#include "store/db/records.h"
#include "store/names/versions.h"
#include "store/space/ahead.h"
#include "store/space/stage.h"

/* The parts of a regular file's state; file/state.h says what they mean. */
enum file_bytes {
	BYTES_COMMITTED,
	BYTES_DIRTY,
	BYTES_CLEAN,
	BYTES_FROZEN,
	BYTES_SEALED,
	BYTES_SEALED_CLEAN,
	BYTES_SEALED_WANTED,
	BYTES_GONE,
	FILE_BYTES_COUNT,
};
enum io_mode {
	IO_CLOSED,
	IO_BACKED, /* reads and writes go to `backing` in the kernel */
	IO_DAEMON, /* they come to us (direct_io) */
};
enum file_left {
	LEFT_NOBODY,
	LEFT_READERS,
	LEFT_WRITERS,
};
enum file_name {
	NAME_OWN,
	NAME_AWAITED,
	NAME_MOVED,
};
struct file_state {
	enum file_bytes bytes;
	enum io_mode mode;
	enum file_left left;
	enum file_name name;
	unsigned opens, writers; /* handles, and of these, for writing */
	/*
	 * Who is about to open or change the file, but is not counted above
	 * yet. While there is one, no job may take the file for closed.
	 */
	unsigned changing;
};

/* Committed content, shared by those who read it; immutable. */
struct content_ref {
	atomic_uint refs;
	struct content c;
};
struct content_ref *content_ref_new(struct content *c); /* takes c over */
/* One more reference, or NULL when there is none. */
struct content_ref *content_ref_get(struct content_ref *r);
void content_ref_put(struct content_ref *r);

struct inode {
	uint64_t ino;
	struct inode *next; /* in its bucket; shard lock */
	atomic_uint_fast64_t refs; /* the last one: shard lock */
	uint64_t lookups; /* of these, the kernel's; shard lock */
	/* It has no security.capability: set and unset by names_xattr.c. */
	atomic_bool no_caps;

	struct lock changing; /* see above */
	struct lock lock; /* guards everything below */
	struct attr attr;
	struct file *file; /* regular files only; set on first use, then kept */
	/*
	 * No name, no handle, and the kernel has forgotten it: its records and
	 * bytes go. Who got here by a name that was still there keeps the
	 * inode, but reads nothing more of it: -ESTALE.
	 */
	bool deleted;
};

struct file {
	struct content_ref *content; /* NULL: never committed */
	bool content_loaded;
	bool verified; /* verify=open has passed for this content */
	bool unsynced; /* somebody opened it to write, and no fsync since */
	struct stage *stage; /* as state.bytes says */
	/* Read under inode.lock; changed by file_move() alone. */
	struct file_state state;
	/*
	 * What may change its bytes, counted as it begins: opens to write, and
	 * changes without an open. Whoever sees the same number twice, and no
	 * writer, and no change under way the first time, has seen one content.
	 */
	uint64_t changes;

	int backing_id; /* of the kernel, 0: none (IO_BACKED only) */
	struct stage *backing_stage; /* what backs it: a stage ... */
	struct image *backing_image; /* ... or an image; a reference */
	/* Partly shared by now: punched when its last reader is gone. 0: none.
	 */
	uint64_t punch_image, punch_size;

	struct versions versions; /* inode.lock and drain.lock */
	/* version_rank() of what is durable; 0: since before it was loaded. */
	uint64_t durable_place;
	/*
	 * When its first writer opened it, or it was looked at since
	 * (monotonic). OPEN_REPLACES: what the writers put there takes the
	 * place of something, and in the middle of it the file is neither the
	 * old nor the new one. So it is drained when it is closed, or for who
	 * asks for it, but not because it stays open for long.
	 */
	int64_t open_since_ns;
	/*
	 * When a handle was closed with something in the file, if none was
	 * released, or opened to write, since: its release is on its way. 0:
	 * there is none.
	 */
	int64_t flushed_ns;
	int sticky_error; /* of the last drain, 0 when it succeeded */
	bool error_told; /* an open has reported sticky_error */
	int64_t drained_mtime_ns; /* the stage as the last drain saw it */
	uint64_t drained_size;
	struct ahead_streams ahead; /* what is read of its content */
	bool read_by_owner; /* as long as it is open: it is read ahead first */
	uint64_t series[2]; /* keys: exact and general; 0: unknown */
	/* See file/tail.c. */
	bool was_read; /* through us, so that the kernel may have pages of it */
	uint64_t tail_from, tail_to;
};

#define OPEN_REPLACES INT64_MAX

/* Can its stage's bytes change while nobody looks? in->lock is held. */
static inline bool file_may_change(const struct file *f)
{
	const struct file_state *s = &f->state;

	return s->writers > 0 || s->changing > 0 || s->left == LEFT_WRITERS;
}

/* May its stage differ from what is committed? in->lock is held. */
static inline bool file_is_dirty(const struct file *f)
{
	enum file_bytes b = f->state.bytes;

	return b == BYTES_DIRTY || b == BYTES_FROZEN || b == BYTES_SEALED;
}

#define INODE_SHARDS 64
#ifndef INODE_BUCKETS /* a simulator has few files */
#define INODE_BUCKETS 4096 /* in each shard */
#endif
/* The inodes that are known, and from where others are read: all borrowed. */
struct inode_table {
	struct kv *kv;
	struct images *images;
	struct stages *stages;
	struct inode_shard {
		struct lock lock;
		struct inode *bucket[INODE_BUCKETS];
		uint64_t removed; /* how often one was taken out */
	} shard[INODE_SHARDS];
	/* Held while a number is taken, and while the next are recorded. */
	struct lock numbering;
	uint64_t next_ino, next_ino_recorded; /* numbering */
};

int inodes_new(struct kv *kv, struct images *images, struct stages *stages,
	       struct inode_table **ret_table);
/* With all that are in it. NULL: nothing. */
void inodes_free(struct inode_table *t);

/* The inode with one more reference; read from the database when needed. */
int inode_get(struct inode_table *t, uint64_t ino, struct inode **ret_inode);
/* Only when it is in the table already; else NULL. */
struct inode *inode_peek(struct inode_table *t, uint64_t ino);
/* The same of the file whose stage the slot is of. */
struct inode *inode_of_slot(struct inode_table *t,
			    const struct stage_slot *slot);
/* Who has a reference takes more; the last that is put ends the inode. */
void inode_ref(struct inode *in, uint64_t count);
void inode_put(struct inode_table *t, struct inode *in, uint64_t count);
/*
 * One of the caller's references becomes the kernel's (a look-up), or `count`
 * of the kernel's become the caller's (to put). As long as the kernel has one,
 * it can open the inode, whether it has a name or not.
 */
void inode_remember(struct inode_table *t, struct inode *in);
void inode_forget(struct inode_table *t, struct inode *in, uint64_t count);
uint64_t inode_lookups(struct inode_table *t, struct inode *in);
/* A new inode in the table, one reference, not in the database yet. */
int inode_new(struct inode_table *t, const struct attr *attr,
	      struct inode **ret_inode);

/*
 * Make in->file be there, with its content read; regular files only. -ESTALE:
 * it was deleted before anybody used it.
 */
int inode_load_file(struct inode_table *t, struct inode *in);

/* A copy; its target stays the inode's: do not release it. */
struct attr inode_attr(struct inode *in);
/* Those of an inode by its number, without a target. -ENOENT and the like. */
int inode_attr_of(struct inode_table *t, uint64_t ino, struct attr *ret);
/* What stat(2) shows. Blocks on fstat() of the stage at most. */
int inode_stat(struct inode_table *t, struct inode *in, struct stat *ret_stat);

/* The path of an inode's first name, for messages: "?" when there is none. */
void inode_path(struct inode_table *t, struct inode *in, char *buf,
		size_t size);

/* Is ino `dir`, or below it? */
bool inode_is_under(struct inode_table *t, struct inode *in, uint64_t dir);

#endif
