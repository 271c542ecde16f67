/*
 * cut.c - ask the formats, one after the other, where the pieces of a file
 * start; what none of them knows is one piece. See cut.h for the rule.
 */
#include "store/formats/cut.h"

#include "store/base/check.h"
#include "store/formats/npy.h"
#include "store/formats/safetensors.h"
#include "store/formats/torch_zip.h"
#include "store/formats/walk.h"

/* Tried in this order; the first that knows the file wins. */
static const struct {
	const char *name;
	int (*walk)(struct walk *w); /* 1: known, 0: not mine, or -errno */
} cut_formats[] = {
	{ "npy", npy_walk },
	{ "safetensors", safetensors_walk },
	/* Last: it looks at the end of the file too, the others do not. */
	{ "torch_zip", torch_zip_walk },
};

/* Ask one format after the other; the name of the one that knew the file. */
static int cut_recognise(struct walk *w, const char **ret_format)
{
	for (size_t i = 0; i < sizeof(cut_formats) / sizeof(*cut_formats);
	     i++) {
		int rc = cut_formats[i].walk(w);

		if (rc < 0)
			return rc;
		if (rc > 0) {
			*ret_format = cut_formats[i].name;
			return 0;
		}
		CHECK(w->piece_at == 0);
	}
	*ret_format = "plain";
	return 0;
}

static void cut_check(const struct cut *c, uint64_t size_bytes)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < c->count; i++) {
		CHECK(c->len[i] > 0);
		CHECK(c->len[i] <= CHUNK_BYTES_MAX);
		sum += c->len[i];
	}
	CHECK(sum == size_bytes);
}

int cut_file(const struct cut_source *source, struct cut *ret_cut)
{
	struct walk *w;
	int rc;

	if (source->size_bytes > CUT_FILE_BYTES_MAX)
		return -EFBIG;
	w = malloc(sizeof(*w));
	if (!w)
		return -ENOMEM;
	/* All but the window itself, which costs more to clear than to use. */
	memset(w, 0, offsetof(struct walk, window));
	w->source = source;

	rc = cut_recognise(w, &w->cut.format);
	if (rc == 0)
		rc = walk_end(w);
	if (rc == 0) {
		cut_check(&w->cut, source->size_bytes);
		*ret_cut = w->cut;
	} else {
		cut_release(&w->cut);
	}
	free(w);
	return rc;
}
