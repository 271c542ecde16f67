/*
 * stage.h - where a file's bytes are while it is written and until it is
 * durable (and after that, as a read cache, until the memory is wanted).
 *
 * A stage in memory is a file on the store's private tmpfs with huge pages; it
 * is used when the size is known to fit, and that size is allocated before
 * the trainer's first write, so that neither ENOSPC nor SIGBUS can meet him. A
 * stage on disk *is* an image: the bytes go through the page cache to where
 * they will stay, and the kernel's own throttling holds the writer back. It
 * is used for a file whose size is not known, is small, or does not fit.
 * Measured: 2 GiB are allocated on huge-page tmpfs in 4 ms, so the allocation
 * is done while the file is created. Small files go to disk too: with huge
 * pages each would take 2 MiB of memory until it is drained.
 *
 * The stage table is a file on the tmpfs with one slot for each stage: what is
 * staged where, whether it differs from what is committed, and in which order
 * it was closed. A slot is written before the
 * operation is answered, so that another daemon can go on after a kill -9.
 * It is believed only if it carries this boot's id: after a power cut the
 * stages are gone, or, in a directory on a disk, not to be trusted.
 *
 * A file that outgrows its series cannot be moved while the kernel writes to
 * it. So the tmpfs is larger than what is admitted: by half of the memory
 * that is left; and clean stages are given up as soon as more is used.
 *
 * A stage that a client has mapped for writing (a segment, segment.h) is
 * *sealed*: it can neither be cut short nor punched, by anybody. tmpfs has no
 * seals (fcntl's are for memfd, which has no name to survive this process),
 * but it knows the append-only flag, and an append-only file refuses just
 * that: ftruncate, FALLOC_FL_PUNCH_HOLE and MADV_REMOVE give EPERM, and a new
 * writable mapping EACCES, while the mapping that is there stays (tried on
 * 6.18; fs/open.c, mm/mmap.c). What is sealed is never mapped by the drain:
 * it is copied before it is hashed, because its owner could still change it;
 * and for the same reason it is no cache of a durable file.
 *
 * A stage has no descriptor of its own: one file more that is staged must not
 * take one from all others. Who has a reference can open it until he puts it;
 * stage_fd.h caches a few that are in use.
 *
 * Threads: any thread. Locks: stages.admit, then inode.lock (to give clean
 * stages up); stages.lock is a leaf.
 */
#ifndef STORE_STAGE_H
#define STORE_STAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>

#include "store/base/sync.h"
#include "store/space/image.h"
#include "store/space/shares.h"
#include "store/space/slot.h"
#include "store/space/stage_fd.h"

/* Smaller files are staged on disk: a huge page would hold little of them. */
#define STAGE_MEMORY_BYTES_MIN (UINT64_C(1) << 20)

struct stage {
	/* Of a kept one: the last file's that had it. See stage_ino(). */
	uint64_t ino;
	enum stage_kind kind;
	uint64_t number;
	struct image *image; /* STAGE_DISK: the image, a reference */
	atomic_uint refs;
	struct stage_slot *slot; /* NULL: dropped, see stage_drop() */
	uint32_t slot_index;
	/* Whose share the slot is of, if any's (stages.shares); stages.lock */
	bool shared;
	uid_t uid;
	/*
	 * What it was allocated in memory, but for a segment's, and whether
	 * that counts as the user's: when it is clean it can go at any time.
	 * stages.lock
	 */
	uint64_t memory_bytes;
	bool counted;
	bool sealed; /* see above; nobody opens it for writing */
	/*
	 * Somebody may go on to write to it unseen: of an earlier connection,
	 * and it could not be copied (held.h), or by a mapping, and it was
	 * replaced. Set before there are threads, or under inode.lock.
	 */
	bool unseen_writer;
	/* Somebody of an earlier connection may have it open to read, or
	 * mapped: held.h. Set when it is taken over, cleared by who asked,
	 * under the file's inode.changing. */
	bool unseen_reader;
	/*
	 * A segment has it: stage_drop() takes it from its file and leaves the
	 * bytes. Changed under stages.lock.
	 */
	atomic_bool kept;
	uint64_t clean_image; /* see image_set_clean(); 0: none; images.lock */
	TAILQ_ENTRY(stage) by_use; /* in stages.clean, or zero; stages.lock */
};
TAILQ_HEAD(stage_list, stage);

/*
 * Called with a reference to the oldest clean stage: true when it was given
 * up (the inode let go of it).
 */
typedef bool (*stage_evict_fn)(void *arg, struct stage *s);

struct stages {
	/* Set before any other thread runs: */
	bool (*evict)(void *arg, struct stage *s);
	/* No clean stage is left, and this much is wanted; never waits. */
	void (*pressure)(void *arg, uint64_t want);
	void (*abandon)(void *arg, struct image *i);
	void *hook_arg, *pressure_arg;
	int dirfd; /* the tmpfs, or the directory given by stage= */
	bool own_tmpfs; /* we mounted it: unmount it at the end */
	bool no_cache; /* clean stages are given up at once: for tests */
	char path[4096];
	struct images *images;
	struct stage_slot *slots; /* the table, mapped */
	uint32_t slot_count;
	uint64_t capacity; /* what is admitted; the tmpfs itself holds more */
	/*
	 * Held while room is looked for and taken. An allocation that is tried
	 * and fails would cost other files theirs: the kernel then takes huge
	 * pages back that lie beyond the end of a file (mm/shmem.c).
	 */
	struct lock admit;
	struct lock lock;
	uint32_t *free_slot; /* stack of free slots */
	uint32_t free_count;
	struct shares shares; /* of the slots, and of the memory */
	uint64_t clean_bytes; /* memory_bytes of those in the list */
	uint64_t next_number;
	struct stage_list clean; /* those that were not used longest first */
	struct stage_fds fds; /* has a lock of its own */
	struct cond returned; /* a kept stage is not used any more */
	atomic_uint_fast64_t memory_count;
};

static inline uint64_t stage_ino(const struct stage *s)
{
	return __atomic_load_n(&s->ino, __ATOMIC_ACQUIRE);
}

/* Where to stage when `dir` is not given, and how much. */
struct stages_config {
	const char *store_path;
	int store_dirfd;
	const char *dir; /* stage=, or NULL */
	uint64_t size_bytes; /* stage_size=, or 0: half of the memory */
	const char *uuid; /* of the store */
	bool no_cache; /* see struct stages */
};

/*
 * Set up the stage. *ret_adopted: a daemon of this boot left stages behind;
 * look at them with stages_adopt().
 * `why` gets a sentence on failure.
 */
int stages_init(struct stages *st, const struct stages_config *config,
		struct images *images, bool *ret_adopted, char *why,
		size_t why_size);
/* Unmounts the tmpfs when nothing dirty is left on it. */
void stages_release(struct stages *st);

/*
 * Calls fn for every slot that is in use, with the stage opened (one
 * reference for fn to keep), or with NULL when its bytes are gone.
 */
int stages_adopt(struct stages *st,
		 int (*fn)(void *arg, const struct stage_slot *slot,
			   struct stage *s),
		 void *arg);
/*
 * Was the database last mounted by the daemon that left this table? It was not
 * if its counter (META_NEXT_PLACE; 0: there is none) is greater than the
 * table's: then an older ckptfs, which writes no versions, or a mount with
 * another stage has had it since, and no version in the table is believed.
 */
bool stages_had_last(const struct stages *st, uint64_t next_place);
/* Before the database is told so: this daemon gives no place up to there. */
void stages_have(struct stages *st, uint64_t next_place);
/* Remove files on the tmpfs that no slot names. */
void stages_sweep(struct stages *st);

/*
 * A new, empty, dirty stage for ino, one reference. size_bytes: what the file
 * is expected to become, 0 when that is not known. It is on the disk when it
 * does not fit into memory, or the user has his share of that (shares.h). Its
 * slot does not count yet:
 * nobody finds the stage, nor would another daemon, until stage_show().
 * -ENFILE: there is no slot. -EDQUOT: uid has his share of them (shares.h).
 */
int stage_create(struct stages *st, uint64_t ino, uid_t uid,
		 uint64_t size_bytes, struct stage **ret_stage);
/*
 * The same in memory, for what is nobody's yet and will be a clean one: nobody
 * is asked for room, and as much again is left. -ENOSPC: there is no room, or
 * there are to be no clean stages.
 */
int stage_create_cache(struct stages *st, uint64_t ino, uint64_t size_bytes,
		       struct stage **ret_stage);
/* One of the last daemon is of this user's share. */
void stage_own(struct stages *st, struct stage *s, uid_t uid);
void stage_show(struct stage *s);
/*
 * A descriptor of the caller's own, O_RDONLY or O_RDWR; a sealed one is only
 * read (-EPERM).
 */
int stage_open(struct stages *st, const struct stage *s, int flags);
/* All of one stage to another, empty one, with its times. */
int stage_copy(struct stages *st, const struct stage *from, struct stage *to);
/* fstat(2) without a descriptor. */
int stage_stat(struct stages *st, const struct stage *s, struct stat *ret);
/*
 * How much of it is no hole, when stage_stat() said *sb. What was allocated
 * ahead in memory, and not written to yet, is one.
 */
uint64_t stage_data_bytes(struct stages *st, const struct stage *s,
			  const struct stat *sb);
/*
 * lease_ask() of its file: give the backing id back, and what stage_fd.h has,
 * before. A mapping of stage_map() is none of a writer.
 */
int stage_ask(struct stages *st, const struct stage *s, enum lease what);
/* One more reference, or NULL when there is no stage. */
struct stage *stage_ref(struct stage *s);
/* Bytes and slot stay after the last put, too: see stage_drop(). */
void stage_put(struct stages *st, struct stage *s);
/* The clean stage that has the image's bytes, with a reference, or NULL. */
struct stage *stage_of_image(struct images *im, struct image *i);
/*
 * Give the bytes up, and the caller's reference: the slot is freed at once, the
 * file with the last reference. NULL: nothing. An image that was not committed
 * (it is still `building`) is removed.
 */
void stage_drop(struct stages *st, struct stage *s);

/*
 * The file is to become this large: allocate its memory, if there is room and
 * it is staged there.
 */
void stage_allocate(struct stages *st, struct stage *s, uint64_t size_bytes);

/*
 * A stage for a segment: exactly size_bytes of memory, allocated, and of no
 * file yet; kept. -ENOSPC: there is no room, and no segment was asked back for
 * it. -EOPNOTSUPP: it could not be sealed (see above) on this file system.
 */
int stage_create_kept(struct stages *st, uint64_t size_bytes,
		      struct stage **ret_stage);
/* -ESTALE: it is not as long as it was made. */
int stage_seal(struct stages *st, struct stage *s, uint64_t size_bytes);
/* How much a kept one has more than it was made with; 0 also when not known. */
uint64_t stage_beyond(struct stages *st, const struct stage *s,
		      uint64_t size_bytes);
/* Take that back, sealed or not. Waits for who writes to it. */
int stage_cut(struct stages *st, struct stage *s, uint64_t size_bytes);
/* futimens(2), sealed or not. */
void stage_set_times(struct stages *st, struct stage *s,
		     const struct timespec times[2]);
/*
 * A kept stage becomes the (dirty) stage of an inode, with a reference for it:
 * the slot counts from stage_show() on.
 */
void stage_lend(struct stages *st, struct stage *s, uint64_t ino);
/* A kept stage that no file has: is anybody else using it still? */
bool stage_is_idle(struct stage *s);
/* Wait until it is idle, or no file has it; false: not before the deadline. */
bool stage_wait_idle(struct stages *st, struct stage *s, int64_t deadline_ns);
/*
 * No segment has it any more: a file that has it keeps it, else its bytes are
 * given up. The caller's reference stays his.
 */
void stage_unkeep(struct stages *st, struct stage *s);

/*
 * All of a memory stage, mapped for reading, for stage_unmap(); NULL: read it
 * instead. As long as it is, a lease says that somebody has it.
 */
const uint8_t *stage_map(struct stages *st, const struct stage *s,
			 uint64_t size);
void stage_unmap(const uint8_t *map, uint64_t size);

/* Clean stages are given up oldest first; dirty ones are not in the list. */
void stage_list(struct stages *st, struct stage *s);
void stage_unlist(struct stages *st, struct stage *s);
void stage_touch(struct stages *st, struct stage *s);
/*
 * Called with the image (a reference to take over) of a stage on disk that is
 * dropped uncommitted: chunks of it may be committed, so only the committer
 * can say whether it goes.
 */
typedef void (*stage_abandon_fn)(void *arg, struct image *i);
void stages_set_hooks(struct stages *st, stage_evict_fn evict,
		      stage_abandon_fn abandon, void *arg);
void stages_set_pressure(struct stages *st,
			 void (*pressure)(void *arg, uint64_t want), void *arg);
/*
 * A slot is wanted for this user: some caches are given up, his own if there
 * are slots for others.
 */
void stages_free_slots(struct stages *st, uid_t uid);
/* Give clean stages up until `want` bytes are free; false: there are none. */
bool stages_make_room(struct stages *st, uint64_t want);

/* What there is now; each file is looked at by itself, so nothing is exact. */
struct stages_figures {
	uint64_t memory_bytes, disk_bytes; /* what the dirty ones hold */
	uint64_t dirty_files;
	uint64_t ahead_bytes; /* of memory that dirty ones have and do not fill
			       */
	uint64_t clean_bytes, clean_files; /* in memory, for who reads */
	int64_t oldest_ns; /* of the dirty ones' last changes (wall); 0: none */
	uint32_t slots, slots_used;
	uint64_t slots_refused; /* to users who had their share */
	uid_t slots_refused_uid; /* the last one */
};
void stages_figures(struct stages *st, struct stages_figures *ret);
void stages_usage(struct stages *st, uint64_t *ret_used, uint64_t *ret_total);
/*
 * Is there room on the disk for all that is staged in memory? When not, a close
 * waits for its drain, so that the trainer hears of it.
 */
bool stages_have_room(struct stages *st);

#endif
