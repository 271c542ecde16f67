/*
 * file.h - regular files as handles see them: open, read, write, release.
 *
 * What an open may do is decided here (see the modes in inode.h); the kernel
 * moves the bytes of IO_BACKED files, file_read() and file_write() those of
 * IO_DAEMON ones. A handle carries nothing but its open flags, so it means
 * the same to another daemon.
 *
 * All functions may block on I/O of their own file; file_sync() waits for the
 * drain, and so may what changes the bytes (change.c).
 */
#ifndef STORE_FILE_H
#define STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "store/names/inode.h"
#include "store/space/reclaim.h"

struct ahead;
struct drain;
struct names;
struct names_new;

/* What the side of the kernel does, set by who mounts; each may be NULL. */
struct kernel_hooks {
	void *arg; /* of all of them; they are called without a lock of ours */
	/* Passthrough: register a descriptor (an id > 0, or -errno), give it
	 * up. */
	int (*backing_open)(void *arg, int fd);
	void (*backing_close)(void *arg, int id);
	/* The kernel is to forget a name, which means another inode now ... */
	void (*on_renamed)(void *arg, uint64_t parent, const char *name);
	/* ... or the attributes of an inode. */
	void (*on_changed)(void *arg, uint64_t ino);
	/* The kernel is to write back what it has of a mapping of the file. */
	void (*write_back)(void *arg, uint64_t ino);
	/* Does anybody hold a lock on the file? */
	bool (*is_locked)(void *arg, uint64_t ino);
};

/* What files are made of: all is borrowed, and set before there are threads. */
struct files {
	struct kv *kv;
	struct images *images;
	struct stages *stages;
	struct inode_table *inodes;
	struct names *names;
	struct reclaim *reclaim;
	struct drain *drain;
	struct ahead *ahead; /* NULL: nothing is read ahead */
	const uint8_t *secret; /* HASH_SECRET_BYTES */
	bool durable_close; /* close waits until the file is durable */
	bool verify_at_open; /* a file is hashed again at its first open */
	bool stage_all_in_memory; /* whatever the size: for tests */
	/* O_TRUNC under readers empties files up to this size in place. */
	uint64_t empty_in_place_bytes;
	struct kernel_hooks kernel;
};

/*
 * For names_create(): give a new file its first stage, n->stage if it is set.
 * Nobody finds that before file_created(): a sync of all that is staged would
 * make bytes durable whose name is not written yet.
 */
int file_prepare(struct files *fs, struct inode *in, const struct names_new *n);
/* The name is written. */
void file_created(struct inode *in);
/*
 * The file's content is this kept stage's from now on, as if it had been
 * opened with O_TRUNC, written and closed; the old one stays committed until
 * the new one is durable. Readers keep what they have. -ESTALE: as
 * file_open(). The caller calls drain_closed().
 */
int file_replace(struct files *fs, struct inode *in, struct stage *fresh);
enum give_back {
	GIVEN_BACK, /* no file has it */
	GIVEN_LATER, /* not before the file is durable */
	GIVEN_NEVER, /* somebody reads it, or has it mapped */
};
/*
 * The segment of this stage wants it back. When the kernel only remembers the
 * file it was asked to forget it, and GIVEN_NEVER may become GIVEN_BACK soon.
 */
enum give_back file_give_back(struct files *fs, struct stage *s);

struct file_opened {
	int backing_id; /* > 0: passthrough to this; 0: direct_io */
};
/*
 * How who changes a file came to it. Where readers must keep what it was, its
 * names get another inode, which a change by name alone finds.
 */
enum file_way {
	FILE_BY_ANY, /* not known yet: nothing is changed then, but -ESTALE */
	FILE_BY_NAME, /* the names go, and -ESTALE */
	FILE_BY_LOOKUP, /* the same, in the middle of a look-up of its name */
	FILE_BY_HANDLE, /* the file itself is changed; where not, -EBUSY */
	FILE_BY_WRITER, /* the same, also of one whose names have moved */
};
struct file_opener {
	enum file_way way;
	pid_t pid; /* its memory may be limited: names_new.pid; 0: not known */
};
/*
 * -ESTALE: look its name up again (file_renumber() comes before that where the
 * file is the same), or its names mean another inode now. -EBUSY: somebody
 * reads it, and it cannot be changed under him. -EIO: damaged, or an earlier
 * drain failed (said once).
 */
int file_open_for(struct files *fs, struct inode *in, int flags,
		  const struct file_opener *by, struct file_opened *ret);
/* The same by any way. */
int file_open(struct files *fs, struct inode *in, int flags,
	      struct file_opened *ret);
/*
 * Who is to change the file was told -ESTALE, and looks one of its names up: if
 * it is as it was, its names mean a fresh inode with the same content from now
 * on. empties: it was an open with O_TRUNC. Waits for the drain, copies no image.
 * An error, and nothing was changed: who is to change it is told that.
 * names_tell_moved() follows, as after file_open_for() and file_replace().
 */
int file_renumber(struct files *fs, struct inode *in, bool empties);
void file_release(struct files *fs, struct inode *in, int flags);
/*
 * The rank that wrote the file has it open to read: what it comes to next is
 * read ahead before what is read of other files, until the last release.
 */
void file_read_by_owner(struct inode *in);
/* fsync(2): drain_sync(), and whoever asked was told of an error. */
int file_sync(struct files *fs, struct inode *in);
/* close(2) of a handle opened with flags. */
int file_flush(struct files *fs, struct inode *in, int flags);

/*
 * [off, off + len) as memory to answer from, ended at the file's end. The
 * vectors may point into mappings: for system calls only, see image_map().
 */
#define FILE_READ_VECTORS 64
struct file_read {
	struct iovec iov[FILE_READ_VECTORS];
	int count;
	/* private: */
	struct reclaim_ticket ticket;
	struct content_ref *content;
	struct image *image[FILE_READ_VECTORS];
	int images;
	void *buffer;
	bool entered;
};
int file_read_begin(struct files *fs, struct inode *in, size_t len,
		    uint64_t off, struct file_read *r);
/*
 * A system call that was handed the vectors answered EFAULT: the disk cannot
 * read what is mapped. What has another copy is mended, for who reads next.
 * The same len and off; before file_read_end(). Returns -EIO.
 */
int file_read_failed(struct files *fs, struct inode *in,
		     const struct file_read *r, size_t len, uint64_t off);
void file_read_end(struct files *fs, struct file_read *r);

/*
 * These change what it holds, for who has it open to write: of what nobody has
 * open a drain believes that it stays as it is. -EFBIG: it would be longer than
 * what can be made durable (CUT_FILE_BYTES_MAX).
 */
int file_write(struct files *fs, struct inode *in, const void *buf, size_t len,
	       uint64_t off);
/* The same of what a mapping has changed: whole pages, up to the file's end. */
int file_write_pages(struct files *fs, struct inode *in, const void *buf,
		     size_t len, uint64_t off);
/*
 * The file is about to reach `end` without a change of its size by the kernel:
 * true when that has a page of it which goes over the end, *ret_at; it has to
 * be forgotten first.
 */
bool file_has_tail(struct files *fs, struct inode *in, uint64_t end,
		   uint64_t *ret_at);
/* Set the size, by a handle. Errors as file_open_for(). */
int file_truncate(struct files *fs, struct inode *in, uint64_t size);
/*
 * The same without a handle, as if one were closed: who publishes it afterwards
 * waits for it, also while a RELEASE is late.
 */
int file_truncate_path(struct files *fs, struct inode *in, uint64_t size,
		       enum file_way way);
int file_fallocate(struct files *fs, struct inode *in, int mode, uint64_t off,
		   uint64_t len);
/* SEEK_DATA and SEEK_HOLE. */
int file_seek(struct files *fs, struct inode *in, uint64_t off, int whence,
	      uint64_t *ret_off);
/* Times set by hand reach the stage too. */
void file_set_times(struct files *fs, struct inode *in, unsigned valid,
		    const struct attr *to);
/*
 * A name, a handle or the kernel's last look-up is gone: when none of them
 * is left, delete the inode and its bytes.
 */
void file_unlinked(struct files *fs, struct inode *in);
/* The kernel has dropped look-ups; when it has none left, nothing is mapped. */
void file_forgotten(struct files *fs, struct inode *in);
/*
 * The kernel is gone, and with it every handle and mapping: it forgets and
 * releases nothing more, not even what close(2) had promised already.
 */
void files_abandoned(struct files *fs);

/*
 * Ask the kernel about files whose last writer is gone but maybe not his
 * mapping: what nobody can write to any more is drained. True when some are
 * left that have to be asked again.
 */
bool files_ask_left(struct files *fs);
/* Has anybody the file open or mapped, as far as the kernel says now? */
bool file_is_used(struct files *fs, struct inode *in);

/*
 * The stage of an earlier daemon becomes this inode's. Takes the reference. A
 * dirty one is drained in its place; place 0: it was not closed, and is not.
 */
int file_adopt(struct files *fs, struct inode *in, struct stage *s, bool dirty,
	       uint64_t place);

/* Give this clean stage up, if nobody keeps it: a stage_evict_fn. */
bool file_evict(struct files *fs, struct stage *s);

#endif
