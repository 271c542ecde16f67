/* series.c - see series.h. */
#include "store/names/series.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "store/base/scope.h"

/* How long the random part of a name is: 6 of mkstemp(3), 8 of Python's. */
#define RANDOM_BYTES_MIN 6u
#define RANDOM_BYTES_MAX 12u
#define MKSTEMP_BYTES 6u

/* text with every run of digits written as one '#'. */
static size_t without_digits(const char *text, size_t len, char *out)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		if (!isdigit((unsigned char)text[i]))
			out[n++] = text[i];
		else if (n == 0 || out[n - 1] != '#')
			out[n++] = '#';
	}
	return n;
}

static bool is_random(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (!isalnum((unsigned char)text[i]) && text[i] != '_')
			return false;
	return len >= RANDOM_BYTES_MIN && len <= RANDOM_BYTES_MAX;
}

/*
 * What stands for the name: itself, the name that a random one is made of, or,
 * when there is none, what comes before the random part (*ret_exact: false).
 */
static const char *lasting_name(const char *name, size_t *len, bool *ret_exact)
{
	static const char *const prefixes[] = { ".tmp", "tmp" };

	*ret_exact = true;
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++) {
		size_t n = strlen(prefixes[i]);

		if (*len > n && strncmp(name, prefixes[i], n) == 0 &&
		    is_random(name + n, *len - n)) {
			*len = n;
			*ret_exact = false;
			return name;
		}
	}
	if (*len > MKSTEMP_BYTES + 2 && name[0] == '.' &&
	    name[*len - MKSTEMP_BYTES - 1] == '.' &&
	    is_random(name + *len - MKSTEMP_BYTES, MKSTEMP_BYTES)) {
		*len -= MKSTEMP_BYTES + 2;
		return name + 1;
	}
	return name;
}

void series_keys(const char *path, uint64_t ret_keys[2])
{
	const char *slash = strrchr(path, '/'), *name;
	size_t dir_len = slash ? (size_t)(slash - path) + 1 : 0;
	size_t name_len = strlen(path) - dir_len;
	SCOPED(scope_free) char *buf = malloc(dir_len + name_len + 1);
	size_t n, m;
	bool exact;

	ret_keys[0] = 0;
	ret_keys[1] = 0;
	if (!buf)
		return;
	name = lasting_name(path + dir_len, &name_len, &exact);
	n = without_digits(path, dir_len, buf);
	memcpy(buf + n, name, name_len);
	if (exact)
		ret_keys[0] = XXH3_64bits(buf, n + name_len) | 1;
	m = without_digits(name, name_len, buf + n);
	ret_keys[1] = XXH3_64bits(buf, n + m) & ~UINT64_C(1);
}

/* What is known of the more exact one. false: of none. */
static bool find(struct kv *kv, const uint64_t keys[2], struct series_rec *ret)
{
	for (int i = 0; i < 2; i++)
		if (keys[i] != 0 &&
		    series_load(kv, key_series(keys[i]), ret) == 0)
			return true;
	return false;
}

bool series_is_known(struct kv *kv, const uint64_t keys[2])
{
	struct series_rec s;

	return find(kv, keys, &s);
}

uint64_t series_size(struct kv *kv, const uint64_t keys[2])
{
	struct series_rec s;

	return find(kv, keys, &s) ? s.size_bytes : 0;
}

uint64_t series_expects(uint64_t size_bytes, uint64_t hole_bytes)
{
	return hole_bytes > size_bytes / SERIES_HOLES_MAX ? 0 : size_bytes;
}

void series_put(struct kv *kv, struct kv_batch *b, struct inode *in,
		uint64_t size_bytes)
{
	uint64_t keys[2];

	{
		HOLD(&in->lock);
		keys[0] = in->file->series[0];
		keys[1] = in->file->series[1];
	}
	for (int i = 0; i < 2; i++) {
		struct series_rec s = { 0 };
		struct key k = key_series(keys[i]);

		if (keys[i] == 0)
			continue;
		(void)series_load(kv, k, &s);
		s.size_bytes = size_bytes;
		s.count++;
		series_save(b, k, &s);
	}
}
