/*
 * opens.h - which ranks open whose files to read them: counted since the mount
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
#ifndef FUSE_OPENS_H
#define FUSE_OPENS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define OPENS_RANKS_MAX 4096 /* of all users; those that come first */

enum opens_whose {
	OPENS_OWN,
	OPENS_FOREIGN,
	OPENS_UNKNOWN,
	OPENS_WHOSE_COUNT,
};

struct opens;

/* NULL: out of memory. */
struct opens *opens_new(void);
void opens_free(struct opens *r);

void opens_count(struct opens *r, uid_t uid, uint32_t rank,
		 enum opens_whose whose, uint64_t size_bytes);

/*
 * For root of everybody, else of this user's processes:
 * a JSON array with the ranks from *cursor on, as many as fit into size bytes,
 * in order; its length is returned. *cursor becomes the rank to go on with, or
 * 0 when there are no more.
 */
size_t opens_page(struct opens *r, uid_t uid, uint64_t *cursor, char *text,
		  size_t size);

#endif
