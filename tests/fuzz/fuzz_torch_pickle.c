/*
 * fuzz_torch_pickle.c - the data.pkl of a torch.save archive. The input is the
 * pickle; its storages have sizes that their keys decide. What is accepted is
 * true: each tensor lies in a storage, and each name is clean.
 */
#include <errno.h>

#include "store/base/scope.h"
#include "store/base/utf8.h"
#include "store/formats/tensors.h"
#include "store/formats/torch_pickle.h"
#include "tests/fuzz/fuzz.h"

#define STORAGE_BYTES UINT64_C(4096)

static int find(void *self, const char *key, size_t key_len, uint64_t *ret_at,
		uint64_t *ret_bytes)
{
	(void)self;
	if (key_len == 0 || key[0] == '!')
		return -ENOENT;
	*ret_at = (uint64_t)(uint8_t)key[0] * STORAGE_BYTES;
	*ret_bytes = STORAGE_BYTES;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct tensor_storages storages = { find, NULL };
	struct tensors l = { .all = NULL };
	int rc = torch_pickle_read(&l, data, size, &storages, NULL);

	CHECK(rc == 0 || rc == -EBADMSG || rc == -EFBIG || rc == -EOPNOTSUPP);
	CHECK((rc == 0) == (l.error[0] == 0));
	for (size_t i = 0; i < l.count; i++) {
		const struct tensor *t = &l.all[i];

		CHECK(strlen(t->name) <= TENSOR_NAME_BYTES_MAX);
		CHECK(utf8_is(t->name, strlen(t->name)));
		CHECK(t->dtype && t->rank <= TENSOR_RANK_MAX);
		CHECK(t->bytes <= STORAGE_BYTES);
		CHECK(t->offset % STORAGE_BYTES + t->bytes <= STORAGE_BYTES);
	}
	tensors_release(&l);
	return 0;
}
