/*
 * fuzz_tensors.c - which tensors a file has. The input is the file: an archive
 * or several, or safetensors. Every tensor must lie in it.
 */
#include <errno.h>
#include <sys/mman.h>

#include "store/base/scope.h"
#include "store/formats/tensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = { "f.pt", "f.distcp",
					     "f.safetensors" };

	for (size_t n = 0; n < 3; n++) {
		SCOPED(scope_close) int fd = memfd_create("f", MFD_CLOEXEC);
		struct tensors l = { .all = NULL };
		int rc;

		CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
		rc = tensors_read(&l, fd, names[n], NULL);
		CHECK(rc == 0 || rc == -EBADMSG || rc == -EFBIG);
		CHECK((rc == 0) == (l.error[0] == 0));
		for (size_t i = 0; i < l.count; i++)
			CHECK(l.all[i].offset <= size &&
			      l.all[i].bytes <= size - l.all[i].offset);
		tensors_release(&l);
	}
	return 0;
}
