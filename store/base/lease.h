/*
 * lease.h - who has a file open, asked of the kernel.
 *
 * A lease (fcntl(2), F_SETLEASE) is granted only when nobody has the file open
 * in a way that it excludes; it is asked for and given back at once. The
 * answer covers handles and mappings of FUSE passthrough: the kernel has the
 * backing file open for them, also when the daemon that opened it is gone. It
 * covers them only when that daemon's mount is unmounted, lazily is enough:
 * until then its connection has every registered backing file open itself.
 * Our own descriptors and backing ids count too.
 *
 * "Nobody" is true for good when nobody can open the file: a stage or an image
 * that the daemon lets nobody open meanwhile.
 */
#ifndef STORE_LEASE_H
#define STORE_LEASE_H

enum lease {
	LEASE_NO_WRITER, /* no descriptor for writing, no shared mapping of one */
	LEASE_NOBODY, /* no descriptor and no mapping at all */
};

/*
 * 1: it is so. 0: it is not, or somebody opens it in this moment. -errno: it
 * could not be asked, such as -EINVAL where the file system has no leases:
 * then somebody may.
 */
int lease_ask(int dirfd, const char *name, enum lease what);

#endif
