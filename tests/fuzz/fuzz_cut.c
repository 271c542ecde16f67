/*
 * fuzz_cut.c - cut_file() keeps its promises whatever is in the file.
 *
 * The cutter does nothing interesting with payloads that are short, and long
 * ones make slow inputs. So an input is a file from which up to two runs of
 * zeros were taken out; its first eight bytes say where and how long:
 *
 *   u16 at[2]    where in the rest of the input the runs go; little-endian
 *   u8 unit[2]   their lengths are unit << shift
 *   u8 shifts    four bits each, the first one low
 *   u8 fail_at   0, or the number of the read that fails, from 1
 */
#include "store/base/bytes.h"
#include "store/base/scope.h"
#include "store/formats/cut.h"
#include "tests/fuzz/fuzz.h"

#define PREFIX_BYTES 8
/*
 * However the runs of zeros lie, at most so many reads per byte of input and
 * so many besides: those that pass over zeros in windows.
 */
#define READS_PER_BYTE_MAX 1
#define READS_BASE_MAX 4096

struct input {
	const uint8_t *data; /* borrowed */
	size_t len;
	uint64_t hole_at[2]; /* in data, in ascending order */
	uint64_t hole_len[2];
	unsigned reads;
	unsigned fail_at;
};

static uint64_t input_size(const struct input *in)
{
	return in->len + in->hole_len[0] + in->hole_len[1];
}

/* One byte of the file; slow, and plainly right. */
static uint8_t input_byte(const struct input *in, uint64_t off)
{
	for (int i = 0; i < 2; i++) {
		if (off < in->hole_at[i])
			break;
		if (off - in->hole_at[i] < in->hole_len[i])
			return 0;
		off -= in->hole_len[i];
	}
	CHECK(off < in->len);
	return in->data[off];
}

static int input_read(void *self, void *buf, size_t len, uint64_t off)
{
	struct input *in = self;
	uint64_t size = input_size(in);
	uint8_t *out = buf;
	uint64_t i = 0;

	CHECK(len > 0);
	CHECK(len <= size);
	CHECK(off <= size - len);
	if (++in->reads == in->fail_at)
		return -EIO;
	while (i < len) {
		uint64_t at = off + i;
		uint64_t n = 1;

		out[i] = input_byte(in, at);
		/* The rest of a run of zeros goes at once. */
		for (int h = 0; h < 2; h++) {
			uint64_t start =
				in->hole_at[h] + (h == 1 ? in->hole_len[0] : 0);

			if (at >= start && at - start < in->hole_len[h]) {
				n = in->hole_len[h] - (at - start);
				n = n < len - i ? n : len - i;
				memset(out + i, 0, (size_t)n);
			}
		}
		i += n;
	}
	return 0;
}

/* Else all that is read of most inputs are runs of zeros. */
static uint64_t input_data_at(void *self, uint64_t off)
{
	const struct input *in = self;
	uint64_t at = 0;

	for (int h = 0; h < 2; h++) {
		uint64_t start = in->hole_at[h] + at;

		if (off >= start && off - start < in->hole_len[h])
			off = start + in->hole_len[h];
		at += in->hole_len[h];
	}
	return off;
}

static void input_init(struct input *in, const uint8_t *data, size_t len)
{
	struct bytes_reader r = bytes_reader_of(data, PREFIX_BYTES);
	uint8_t shifts;

	*in = (struct input){ .data = data + PREFIX_BYTES,
			      .len = len - PREFIX_BYTES };
	for (int i = 0; i < 2; i++)
		in->hole_at[i] = bytes_take_u16(&r);
	for (int i = 0; i < 2; i++)
		in->hole_len[i] = bytes_take_u8(&r);
	shifts = bytes_take_u8(&r);
	in->fail_at = bytes_take_u8(&r);

	in->hole_len[0] <<= shifts & 15;
	in->hole_len[1] <<= shifts >> 4;
	for (int i = 0; i < 2; i++)
		if (in->hole_at[i] > in->len)
			in->hole_at[i] = in->len;
	if (in->hole_at[1] < in->hole_at[0])
		in->hole_at[1] = in->hole_at[0];
}

/* As cut_file(), by content, but for the holes. */
static int cut_input(struct input *in, const struct cut_source *source,
		     struct cut *ret)
{
	const struct cut_bytes holes = { NULL, input_data_at, in };
	struct cut cut = { .format = "" };
	struct cutter *c;
	int rc = cutter_open(source, &holes, CUT_BY_CONTENT, &c);

	if (rc < 0)
		return rc;
	cut.capacity = (size_t)cutter_count_max(c);
	cut.len = calloc(cut.capacity + 1, sizeof(*cut.len));
	CHECK(cut.len);
	while ((rc = cutter_next(c, &cut.len[cut.count])) > 0)
		CHECK(++cut.count <= cut.capacity);
	cutter_close(c);
	if (rc < 0)
		cut_release(&cut);
	else
		*ret = cut;
	return rc;
}

static void check_cut(const struct cut *c, uint64_t size)
{
	uint64_t sum = 0;

	CHECK(c->count <= c->capacity);
	for (size_t i = 0; i < c->count; i++) {
		CHECK(c->len[i] >= 1);
		CHECK(c->len[i] <= CHUNK_BYTES_MAX);
		sum += c->len[i];
	}
	CHECK(sum == size);
	CHECK(c->format);
	/* Two neighbours are only both short where they would not fit. */
	for (size_t i = 2; i < c->count; i++)
		CHECK(c->len[i - 2] + c->len[i - 1] + c->len[i] >=
		      CHUNK_BYTES_MIN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct input in;
	struct cut_source source = { .read = input_read, .self = &in };
	struct cut c = { .count = 99 };
	int rc;

	if (len < PREFIX_BYTES || len > FUZZ_INPUT_BYTES_MAX)
		return 0;
	input_init(&in, data, len);
	source.size_bytes = input_size(&in);

	rc = cut_input(&in, &source, &c);
	CHECK(in.reads <= in.len * READS_PER_BYTE_MAX + READS_BASE_MAX);
	if (in.fail_at > 0 && in.reads >= in.fail_at) {
		CHECK(rc == -EIO);
		CHECK(in.reads == in.fail_at); /* it stopped there */
		CHECK(c.count == 99);
		return 0;
	}
	CHECK(rc == 0);
	check_cut(&c, source.size_bytes);
	cut_release(&c);
	return 0;
}
