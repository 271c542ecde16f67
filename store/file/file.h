/*
 * file.h - regular files as handles see them: open, read, write, release.
 *
 * What an open may do is decided here (see the modes in inode.h); the kernel
 * moves the bytes of IO_BACKED files, file_read() and file_write() those of
 * IO_DAEMON ones. A handle carries nothing but its open flags, so it means
 * the same to another daemon.
 *
 * All functions may block on I/O of their own file; file_sync() and an
 * open for writing of a file that is being adopted wait for the drain.
 */
#ifndef STORE_FILE_H
#define STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "store/names/inode.h"
#include "store/space/reclaim.h"

struct names_new;
struct store;

/*
 * For names_create(): give a new file its first stage, n->stage if it is set.
 * Nobody finds that before file_created(): a sync of all that is staged would
 * make bytes durable whose name is not written yet.
 */
int file_prepare(struct store *st, struct inode *in, const struct names_new *n);
/* The name is written. */
void file_created(struct inode *in);
/*
 * The file's content is this kept stage's from now on, as if it had been
 * opened with O_TRUNC, written and closed; the old one stays committed until
 * the new one is durable. Readers keep what they have. -ESTALE: as
 * file_open(). The caller calls drain_closed().
 */
int file_replace(struct store *st, struct inode *in, struct stage *fresh);
enum give_back {
	GIVEN_BACK, /* no file has it */
	GIVEN_LATER, /* not before the file is durable */
	GIVEN_NEVER, /* somebody reads it, or has it mapped */
};
/*
 * The segment of this stage wants it back. When the kernel only remembers the
 * file it was asked to forget it, and GIVEN_NEVER may become GIVEN_BACK soon.
 */
enum give_back file_give_back(struct store *st, struct stage *s);

struct file_opened {
	int backing_id; /* > 0: passthrough to this; 0: direct_io */
};
/*
 * -ESTALE: the file's name means another inode now: look it up again.
 * -EIO: damaged, or an earlier drain failed (said once).
 */
int file_open(struct store *st, struct inode *in, int flags,
	      struct file_opened *ret);
void file_release(struct store *st, struct inode *in, int flags);
/*
 * The rank that wrote the file has it open to read: what it comes to next is
 * read ahead before what is read of other files, until the last release.
 */
void file_read_by_owner(struct inode *in);
/* fsync(2): drain_sync(), and whoever asked was told of an error. */
int file_sync(struct store *st, struct inode *in);
/* close(2) of a handle opened with flags. */
int file_flush(struct store *st, struct inode *in, int flags);

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
int file_read_begin(struct store *st, struct inode *in, size_t len,
		    uint64_t off, struct file_read *r);
void file_read_end(struct store *st, struct file_read *r);

int file_write(struct store *st, struct inode *in, const void *buf, size_t len,
	       uint64_t off);
/* Set the size. -ESTALE as file_open(). */
int file_truncate(struct store *st, struct inode *in, uint64_t size);
int file_fallocate(struct store *st, struct inode *in, int mode, uint64_t off,
		   uint64_t len);
/* SEEK_DATA and SEEK_HOLE. */
int file_seek(struct store *st, struct inode *in, uint64_t off, int whence,
	      uint64_t *ret_off);
/* Times set by hand reach the stage too. */
void file_set_times(struct store *st, struct inode *in, unsigned valid,
		    const struct attr *to);
/*
 * A name, a handle or the kernel's last look-up is gone: when none of them
 * is left, delete the inode and its bytes.
 */
void file_unlinked(struct store *st, struct inode *in);
/* The kernel has dropped look-ups; when it has none left, nothing is mapped. */
void file_forgotten(struct store *st, struct inode *in);
/*
 * The kernel is gone, and with it every handle and mapping: it forgets and
 * releases nothing more, not even what close(2) had promised already.
 */
void files_abandoned(struct store *st);

/* The stage of an earlier daemon becomes this inode's. Takes the reference. */
int file_adopt(struct store *st, struct inode *in, struct stage *s, bool dirty,
	       uint64_t order);

/* Give this clean stage up, if nobody keeps it: for stages_on_pressure(). */
bool file_evict(void *store, struct stage *s);

/*
 * Compare the committed content with its hashes, with several threads.
 * -EIO: it differs; the log names the file. See verify=open.
 */
int file_verify(struct store *st, struct inode *in,
		const struct content *content);

#endif
