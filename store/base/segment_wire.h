/*
 * segment_wire.h - what a client and a mount say to each other on the mount's
 * socket (SOCK_SEQPACKET; one message, one packet; this machine's byte order).
 *
 * The client finds the socket, and the token that shows that it can reach the
 * mount, by CKPTFS_IOC_SEGMENTS (ckptfs_ioctl.h). Each request has one reply;
 * SEGMENT_RELEASE is the mount's own and may come at any time before one.
 *
 *   ACQUIRE    -> a segment to fill; a new one comes with a descriptor
 *   MAPPED     a new one is mapped for writing: it is sealed from now on
 *   RETURN     it will not be filled after all; it stays for the next save
 *   DROP       it is unmapped: the memory goes back
 *   <- RELEASE memory is wanted: unmap the segment and DROP it
 *
 * A segment becomes a file by CKPTFS_IOC_COMMIT, not here. Closing the socket
 * (or the death of the process that connected it) gives everything back.
 */
#ifndef STORE_BASE_SEGMENT_WIRE_H
#define STORE_BASE_SEGMENT_WIRE_H

#include <stdint.h>

#define SEGMENT_WIRE_VERSION 1u
#define SEGMENT_TOKEN_BYTES 16
#define SEGMENT_SIGNATURE_BYTES 16
/* So many of one structure has a client: he must not fill more at a time. */
#define SEGMENTS_PER_SET 2

enum segment_op {
	SEGMENT_ACQUIRE = 1, /* signature, size_bytes */
	SEGMENT_MAPPED = 2, /* id, generation */
	SEGMENT_RETURN = 3, /* id, generation */
	SEGMENT_DROP = 4, /* id */
	SEGMENT_RELEASE = 5, /* id */
};

struct segment_request {
	uint32_t version;
	uint32_t op; /* enum segment_op */
	uint8_t token[SEGMENT_TOKEN_BYTES];
	uint8_t signature[SEGMENT_SIGNATURE_BYTES]; /* of the structure */
	uint64_t size_bytes;
	uint64_t id;
	/* ACQUIRE: 1 + the NUMA node that the memory is for, 0: any. */
	uint64_t generation;
};

struct segment_reply {
	uint32_t op; /* that of the request, or SEGMENT_RELEASE */
	/*
	 * 0 or -errno. -EAGAIN: all of this structure's are in use: wait until
	 * the file busy_ino is durable (CKPTFS_IOC_WAIT), or, when that is 0,
	 * for the releases that were sent before this; then ask again.
	 * -EBUSY: the client fills all that there is room for.
	 * -ENOSPC: no memory for it. -EDQUOT: the user has his share.
	 * -EOPNOTSUPP: this mount has no segments. -EACCES: wrong token.
	 */
	int32_t error;
	uint64_t id;
	/* Random, new for each ACQUIRE: who knows it may commit the segment. */
	uint64_t generation;
	uint64_t size_bytes;
	uint64_t busy_ino;
	uint32_t fresh; /* a descriptor came with it: map it, say MAPPED */
	uint32_t reserved;
};

#endif
