/*
 * reads.h - which ranks open whose files to read them: counted since the mount
 * began, for each reading rank.
 *
 * A file is the reader's own when its writer had the reader's rank, whatever
 * the job; foreign when it had another one; of an unknown writer when no rank
 * in the job is known of it (writer.h). Bytes are the sizes of the files when
 * they were opened: what is read of them is not seen where the kernel moves the
 * bytes. Processes without a rank are not counted.
 *
 * Threads: any thread.
 */
#ifndef FUSE_READS_H
#define FUSE_READS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define READS_RANKS_MAX 4096 /* of all users; those that come first */

enum reads_whose {
	READS_OWN,
	READS_FOREIGN,
	READS_UNKNOWN,
	READS_WHOSE_COUNT,
};

struct reads;

/* NULL: out of memory. */
struct reads *reads_new(void);
void reads_free(struct reads *r);

void reads_count(struct reads *r, uid_t uid, uint32_t rank,
		 enum reads_whose whose, uint64_t size_bytes);

/*
 * For root of everybody, else of this user's processes:
 * a JSON array with the ranks from *cursor on, as many as fit into size bytes,
 * in order; its length is returned. *cursor becomes the rank to go on with, or
 * 0 when there are no more.
 */
size_t reads_page(struct reads *r, uid_t uid, uint64_t *cursor, char *text,
		  size_t size);

#endif
