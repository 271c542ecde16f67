/*
 * fuzz_records.c - the decoders of the database's values. The first byte
 * chooses one, the rest is the value. Damage must be answered with -EIO; what
 * is accepted must encode to something that is accepted again and then stays
 * as it is.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "store/base/scope.h"
#include "store/db/records.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int recode_attr(const void *p, size_t len, struct bytes *out)
{
	struct attr a;
	int rc = attr_decode(p, len, &a);

	if (rc == 0) {
		CHECK(strlen(a.name) <= STORE_NAME_MAX);
		attr_encode(&a, out);
		attr_release(&a);
	}
	return rc;
}

static int recode_dirent(const void *p, size_t len, struct bytes *out)
{
	struct dirent_rec d;
	int rc = dirent_decode(p, len, &d);

	if (rc == 0)
		dirent_encode(&d, out);
	return rc;
}

static int recode_content(const void *p, size_t len, struct bytes *out)
{
	struct content c;
	int rc = content_decode(p, len, &c);
	uint64_t end = 0;

	if (rc < 0)
		return rc;
	for (size_t n = 0; n < c.extent_count; n++) {
		CHECK(c.extents[n].len > 0);
		CHECK(c.extents[n].offset >= end);
		end = c.extents[n].offset + c.extents[n].len;
		CHECK(end <= c.size_bytes);
	}
	content_encode(&c, out);
	content_release(&c);
	return 0;
}

static int recode_chunk(const void *p, size_t len, struct bytes *out)
{
	struct chunk_rec k;
	int rc = chunk_decode(p, len, &k);

	if (rc == 0)
		chunk_encode(&k, out);
	return rc;
}

static int recode_loc(const void *p, size_t len, struct bytes *out)
{
	struct chunk_locs l;
	int rc = locs_decode(p, len, &l);

	if (rc == 0)
		locs_encode(&l, out);
	return rc;
}

static int recode_series(const void *p, size_t len, struct bytes *out)
{
	struct series_rec s;
	int rc = series_decode(p, len, &s);

	if (rc == 0)
		series_encode(&s, out);
	return rc;
}

static int recode_u64(const void *p, size_t len, struct bytes *out)
{
	uint64_t v;
	int rc = u64_decode(p, len, &v);

	if (rc == 0)
		bytes_put_u64(out, v);
	return rc;
}

static int recode_writer(const void *p, size_t len, struct bytes *out)
{
	struct writer w;
	int rc = writer_decode(p, len, &w);

	if (rc < 0)
		return rc;
	CHECK(strlen(w.host) <= WRITER_HOST_MAX);
	CHECK(strlen(w.job) <= WRITER_JOB_MAX);
	CHECK(w.rank <= WRITER_RANK_MAX);
	writer_encode(&w, out);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int (*const recode[])(const void *, size_t, struct bytes *) = {
		recode_attr, recode_dirent, recode_content, recode_chunk,
		recode_loc,  recode_series, recode_u64,     recode_writer,
	};
	struct bytes once = { 0 }, twice = { 0 };
	unsigned which;
	int rc;

	if (size == 0)
		return 0;
	which = data[0] % (sizeof(recode) / sizeof(*recode));
	rc = recode[which](data + 1, size - 1, &once);
	CHECK(rc == 0 || rc == -EIO || rc == -ENOMEM);
	if (rc == 0) {
		CHECK(recode[which](once.data, once.len, &twice) == 0);
		CHECK(once.len == twice.len);
		CHECK(memcmp(once.data, twice.data, once.len) == 0);
	}
	bytes_release(&once);
	bytes_release(&twice);
	return 0;
}
