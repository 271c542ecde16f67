/*
 * fuzz_tensors.c - which tensors a file has. The input is the file: an archive
 * or several, or safetensors. Every tensor must lie in it.
 */
#include <errno.h>
#include <string.h>

#include "store/base/check.h"
#include "store/formats/chunks.h"
#include "store/formats/tensors.h"
#include "tests/fuzz/fuzz.h"

struct input {
	const uint8_t *data;
	size_t size;
};

static int read_at(void *self, void *buf, size_t len, uint64_t off)
{
	const struct input *in = self;

	CHECK(off <= in->size && len <= in->size - off);
	if (len > 0)
		memcpy(buf, in->data + off, len);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = { "f.pt", "f.distcp",
					     "f.safetensors" };

	struct input in = { data, size };
	const struct cut_source source = { read_at, &in, size };

	for (size_t n = 0; n < 3; n++) {
		struct tensors l = { .all = NULL };
		int rc = tensors_read(&l, &source, names[n], NULL);

		CHECK(rc == 0 || rc == -EBADMSG || rc == -EFBIG ||
		      rc == -EOPNOTSUPP);
		CHECK((rc == 0) == (l.error[0] == 0));
		for (size_t i = 0; i < l.count; i++)
			CHECK(l.all[i].offset <= size &&
			      l.all[i].bytes <= size - l.all[i].offset);
		tensors_release(&l);
	}
	return 0;
}
