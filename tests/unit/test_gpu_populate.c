/*
 * A new segment is touched in parts, by all threads, and then pinned: the
 * kernel holds the lock of the process's memory for as long as one call lasts,
 * and a driver that has to touch gigabytes would stop every other thread's
 * mmap(2) and page fault meanwhile. With the fake driver.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/crew.h"
#include "gpu/driver.h"
#include "gpu/handle.h"
#include "gpu/map.h"
#include "gpu/mapping.h"
#include "store/base/scope.h"

#define PAGE 4096u
#define BYTES (5 * MAP_PART_BYTES + 3 * PAGE)
#define THREADS 3u

static struct {
	pthread_mutex_t lock;
	unsigned threads; /* that were asked for */
	size_t touched, longest; /* bytes, of all calls and of one */
	size_t present; /* pages that the process had when it pinned */
} seen = { .lock = PTHREAD_MUTEX_INITIALIZER };

int __real_crew_once(unsigned threads, size_t count, crew_work *work,
		     void *arg);
int __wrap_crew_once(unsigned threads, size_t count, crew_work *work,
		     void *arg);
int __real_madvise(void *memory, size_t bytes, int advice);
int __wrap_madvise(void *memory, size_t bytes, int advice);
int __real_gpu_register(struct gpu *g, void *memory, size_t bytes,
			bool read_only);
int __wrap_gpu_register(struct gpu *g, void *memory, size_t bytes,
			bool read_only);

int __wrap_crew_once(unsigned threads, size_t count, crew_work *work, void *arg)
{
	seen.threads = threads;
	return __real_crew_once(threads, count, work, arg);
}

int __wrap_madvise(void *memory, size_t bytes, int advice)
{
	if (advice == MADV_POPULATE_WRITE) {
		HOLD(&seen.lock);
		seen.touched += bytes;
		if (bytes > seen.longest)
			seen.longest = bytes;
	}
	return __real_madvise(memory, bytes, advice);
}

/* Documentation/admin-guide/mm/pagemap.rst: bit 63 says that it is present. */
static size_t pages_present(const void *memory, size_t bytes)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t found = 0;

	assert_true(fd >= 0);
	for (size_t i = 0; i < bytes / PAGE; i++) {
		uint64_t entry;
		off_t at = (off_t)((uintptr_t)memory / PAGE + i) * 8;

		assert_int_equal(pread(fd, &entry, 8, at), 8);
		found += entry >> 63;
	}
	(void)close(fd);
	return found;
}

int __wrap_gpu_register(struct gpu *g, void *memory, size_t bytes,
			bool read_only)
{
	seen.present = pages_present(memory, bytes);
	return __real_gpu_register(g, memory, bytes, read_only);
}

static void a_segment_is_touched_in_parts_before_it_is_pinned(void **state)
{
	struct ckpt_mount mount = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct mapping p = { .mount = &mount, .size_bytes = BYTES };
	int fd = memfd_create("segment", MFD_CLOEXEC);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, BYTES), 0);
	assert_int_equal(ckpt_open(NULL, &mount.c), 0);
	assert_non_null(ckpt_driver(mount.c));
	assert_non_null(mount.c->gpu);
	p.memory = map_aligned(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED);
	assert_non_null(p.memory);
	assert_int_equal(pages_present(p.memory, BYTES), 0);
	mapping_pin(&p, THREADS);
	assert_true(p.pinned);
	assert_int_equal(seen.threads, THREADS);
	assert_int_equal(seen.touched, BYTES);
	assert_int_equal(seen.longest, MAP_PART_BYTES);
	assert_int_equal(seen.present, BYTES / PAGE);
	gpu_unregister(mount.c->gpu, p.memory);
	assert_int_equal(munmap(p.memory, BYTES), 0);
	(void)close(fd);
	ckpt_close(mount.c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_segment_is_touched_in_parts_before_it_is_pinned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
