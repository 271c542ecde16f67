/*
 * tensors_fixture.h - safetensors files as a test wants them, good and bad, of
 * bytes that are known by their place in the file; what ckpt_file_open() says
 * of them, and room for all that they hold.
 */
#ifndef TESTS_UNIT_TENSORS_FIXTURE_H
#define TESTS_UNIT_TENSORS_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/handle.h"
#include "store/base/bytes.h"
#include "store/base/io.h"
#include "store/base/scope.h"

#define MIB (UINT64_C(1) << 20)
#define TENSORS_MAX 3000

static char dir[] = "/tmp/test_gpu_tensors.XXXXXX";
static char path[sizeof(dir) + 32];
static struct ckpt *host; /* without a driver */

/* Bytes of every file here, behind its header: again and again, with a period
 * that no size and no buffer has. */
#define PERIOD 65521u
static uint8_t pattern[PERIOD];

static inline void make_pattern(void)
{
	for (uint64_t i = 0; i < PERIOD; i++)
		pattern[i] =
			(uint8_t)((i + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

/* Of the pattern, from an offset of the file on: at most len bytes. */
static inline size_t pattern_at(uint64_t offset, uint64_t len,
				const uint8_t **ret)
{
	uint64_t left = PERIOD - offset % PERIOD;

	*ret = pattern + offset % PERIOD;
	return (size_t)(left < len ? left : len);
}

static inline void put_data(struct bytes *b, uint64_t count)
{
	const uint8_t *p;

	for (size_t n; count > 0; count -= n) {
		n = pattern_at(b->len, count, &p);
		bytes_put(b, p, n);
	}
}

static inline void put_file(const struct bytes *b)
{
	SCOPED(scope_close)
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_false(b->failed);
	assert_int_equal(io_write_full(fd, b->data, b->len, 0), 0);
}

/* A header of json[len], and so many bytes of data. */
static inline void put_json_len(const char *json, size_t len,
				uint64_t data_bytes)
{
	struct bytes b = { 0 };

	bytes_put_u64(&b, len);
	bytes_put(&b, json, len);
	put_data(&b, data_bytes);
	put_file(&b);
	bytes_release(&b);
}

static inline void put_json(const char *json, uint64_t data_bytes)
{
	put_json_len(json, strlen(json), data_bytes);
}

/* Tensors "0", "1", ... of so many bytes, one after the other. */
static inline void put_tensors(const uint64_t *sizes, size_t count)
{
	struct bytes json = { 0 };
	uint64_t at = 0;

	bytes_put(&json, "{", 1);
	for (size_t i = 0; i < count; i++) {
		char entry[160];
		int n = snprintf(entry, sizeof(entry),
				 "%s\"%zu\":{\"dtype\":\"U8\",\"shape\":[%llu],"
				 "\"data_offsets\":[%llu,%llu]}",
				 i ? "," : "", i, (unsigned long long)sizes[i],
				 (unsigned long long)at,
				 (unsigned long long)(at + sizes[i]));

		bytes_put(&json, entry, (size_t)n);
		at += sizes[i];
	}
	bytes_put(&json, "}", 1);
	put_json_len((const char *)json.data, json.len, at);
	bytes_release(&json);
}

static inline struct ckpt_file *open_good(struct ckpt *c)
{
	struct ckpt_file *f;
	int rc = ckpt_file_open(c, path, &f);

	if (rc != 0)
		fail_msg("%d: %s", rc, ckpt_last_error());
	return f;
}

static inline void assert_says(const char *words)
{
	if (!strstr(ckpt_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", ckpt_last_error(),
			 words);
}

/* Not such a file; the message names the path and says `words`. */
static inline void assert_refused(const char *words)
{
	struct ckpt_file *f;

	assert_int_equal(ckpt_file_open(host, path, &f), -EBADMSG);
	assert_says(path);
	assert_says(words);
}

static inline void assert_bytes(const uint8_t *got, const struct ckpt_entry *e)
{
	const uint8_t *p;
	size_t n;

	for (uint64_t at = 0; at < e->bytes; at += n) {
		n = pattern_at(e->offset + at, e->bytes - at, &p);
		if (memcmp(got + at, p, n) != 0)
			fail_msg("tensor '%s' differs at byte %llu or behind",
				 e->name, (unsigned long long)at);
	}
}

#define TENSOR(dtype, shape, from, to)              \
	"{\"dtype\":\"" dtype "\",\"shape\":" shape \
	",\"data_offsets\":[" #from "," #to "]}"

/* More than a slice, less, nothing; neighbours that share a slice. */
static const uint64_t some_sizes[] = {
	9 * MIB + 5, 0, 1, 4096, 4 * MIB, 3, 4 * MIB - 1, 700000, 17, 12 * MIB,
};
#define SOME (sizeof(some_sizes) / sizeof(*some_sizes))

struct reads {
	struct ckpt_target targets[TENSORS_MAX];
	size_t count;
};

/* Room on the host for every entry, the last one first. */
static inline void want_all(struct reads *r, const struct ckpt_file *f)
{
	size_t count = ckpt_file_count(f);

	assert_true(count <= TENSORS_MAX);
	r->count = count;
	for (size_t i = 0; i < count; i++) {
		const struct ckpt_entry *e = ckpt_file_entry(f, count - 1 - i);

		r->targets[i] = (struct ckpt_target){
			.entry = e,
			.data = e->bytes ? malloc(e->bytes) : NULL,
			.device = CKPT_DEVICE_HOST,
		};
	}
}

static inline void assert_have_all(const struct reads *r)
{
	for (size_t i = 0; i < r->count; i++)
		assert_bytes(r->targets[i].data, r->targets[i].entry);
}

static inline void reads_release(struct reads *r)
{
	for (size_t i = 0; i < r->count; i++)
		free(r->targets[i].data);
}

static inline int set_up(void **state)
{
	struct ckpt_options o = { .flags = CKPT_NO_GPU };

	(void)state;
	make_pattern();
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/a.safetensors", dir);
	return ckpt_open(&o, &host);
}

static inline int tear_down(void **state)
{
	(void)state;
	ckpt_close(host);
	(void)unlink(path);
	return rmdir(dir);
}

#endif
