/* io.h - whole reads and writes at an offset, and times in nanoseconds. */
#ifndef STORE_BASE_IO_H
#define STORE_BASE_IO_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Up to len bytes; *ret_len is less only at the end of the file. */
static inline int io_read(int fd, void *buf, size_t len, uint64_t off,
			  size_t *ret_len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(fd, (uint8_t *)buf + done, len - done,
				  (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	*ret_len = done;
	return 0;
}

/* Exactly len bytes. -ESTALE: the file ends before. */
static inline int io_read_full(int fd, void *buf, size_t len, uint64_t off)
{
	size_t got = 0;
	int rc = io_read(fd, buf, len, off, &got);

	return rc < 0 ? rc : got < len ? -ESTALE : 0;
}

/* All of buf. After an error some of it may have been written. */
static inline int io_write_full(int fd, const void *buf, size_t len,
				uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pwrite(fd, (const uint8_t *)buf + done, len - done,
				   (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return 0;
}

/*
 * -errno of a read or write: the disk cannot read it. EIO, or as the kernel's
 * block layer says it where a file system hands that on (O_DIRECT does):
 * blk_errors in block/blk-core.c.
 */
static inline bool io_is_medium(int rc)
{
	return rc == -EIO || rc == -ENODATA || rc == -EILSEQ ||
	       rc == -EREMOTEIO || rc == -EBADMSG;
}

/*
 * `share` hundredths of the descriptors that this process may have, `max` at
 * most: who keeps some is bounded so that those who need one to go on get it.
 */
static inline unsigned io_fd_share(unsigned share, unsigned max)
{
	struct rlimit r = { .rlim_cur = 1024 };

	(void)getrlimit(RLIMIT_NOFILE, &r);
	return r.rlim_cur < (rlim_t)max * 100 / share
		       ? (unsigned)(r.rlim_cur * share / 100)
		       : max;
}

/* One for each processor, but not fewer than `least` nor more than `most`. */
static inline unsigned io_cpus(unsigned least, unsigned most)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n < (long)least ? least : n > (long)most ? most : (unsigned)n;
}

/* What is too far away for 64 bits (the years 1677, 2262) is cut off there. */
static inline int64_t io_ns(const struct timespec *t)
{
	int64_t ns;

	if (__builtin_mul_overflow((int64_t)t->tv_sec, 1000000000, &ns) ||
	    __builtin_add_overflow(ns, (int64_t)t->tv_nsec, &ns))
		return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
	return ns;
}

/* Before 1970 too the nanoseconds count forward: tv_nsec is never negative. */
static inline struct timespec io_timespec(int64_t ns)
{
	struct timespec t = { .tv_sec = ns / 1000000000,
			      .tv_nsec = ns % 1000000000 };

	if (t.tv_nsec < 0) {
		t.tv_nsec += 1000000000;
		t.tv_sec--;
	}
	return t;
}

#endif
