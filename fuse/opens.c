/* opens.c - see opens.h. */
#include "fuse/opens.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"

/* More than the text of one rank, with every number at its longest. */
#define ROW_BYTES_MAX 320

struct opens_row {
	uint32_t rank;
	uid_t uid;
	uint64_t opens[OPENS_WHOSE_COUNT], bytes[OPENS_WHOSE_COUNT];
};

struct opens {
	pthread_mutex_t lock; /* guards everything below */
	size_t count;
	struct opens_row rows[OPENS_RANKS_MAX]; /* by rank, uid */
};

struct opens *opens_new(void)
{
	struct opens *r = calloc(1, sizeof(*r));

	if (r)
		CHECK(pthread_mutex_init(&r->lock, NULL) == 0);
	return r;
}

void opens_free(struct opens *r)
{
	if (!r)
		return;
	(void)pthread_mutex_destroy(&r->lock);
	free(r);
}

/* The place of the first row that is not below this one. */
static size_t find_locked(const struct opens *r, uint64_t rank, uid_t uid)
{
	size_t low = 0, high = r->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (r->rows[middle].rank < rank ||
		    (r->rows[middle].rank == rank && r->rows[middle].uid < uid))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void opens_count(struct opens *r, uid_t uid, uint32_t rank,
		 enum opens_whose whose, uint64_t size_bytes)
{
	struct opens_row *row;
	size_t at;

	HOLD(&r->lock);
	at = find_locked(r, rank, uid);
	row = &r->rows[at];
	if (at == r->count || row->rank != rank || row->uid != uid) {
		if (r->count == OPENS_RANKS_MAX)
			return;
		memmove(row + 1, row, (r->count - at) * sizeof(*row));
		memset(row, 0, sizeof(*row));
		row->rank = rank;
		row->uid = uid;
		r->count++;
	}
	row->opens[whose]++;
	row->bytes[whose] += size_bytes;
}

static size_t print_row(const struct opens_row *row, char *text)
{
	static const char *const words[OPENS_WHOSE_COUNT] = {
		[OPENS_OWN] = "own",
		[OPENS_FOREIGN] = "foreign",
		[OPENS_UNKNOWN] = "unknown",
	};
	size_t len = (size_t)snprintf(text, ROW_BYTES_MAX, "{\"rank\":%u",
				      row->rank);

	for (unsigned i = 0; i < OPENS_WHOSE_COUNT; i++)
		len += (size_t)snprintf(
			text + len, ROW_BYTES_MAX - len,
			",\"%s_opens\":%llu,\"%s_bytes\":%llu", words[i],
			(unsigned long long)row->opens[i], words[i],
			(unsigned long long)row->bytes[i]);
	text[len++] = '}';
	CHECK(len < ROW_BYTES_MAX);
	return len;
}

/* All of one rank from *at on, which becomes the next rank's; false: none. */
static bool sum_locked(const struct opens *r, uid_t uid, size_t *at,
		       struct opens_row *ret)
{
	uint32_t rank = r->rows[*at].rank;
	bool any = false;

	*ret = (struct opens_row){ .rank = rank };
	for (; *at < r->count && r->rows[*at].rank == rank; (*at)++) {
		const struct opens_row *row = &r->rows[*at];

		if (uid != 0 && uid != row->uid)
			continue;
		any = true;
		for (unsigned i = 0; i < OPENS_WHOSE_COUNT; i++) {
			ret->opens[i] += row->opens[i];
			ret->bytes[i] += row->bytes[i];
		}
	}
	return any;
}

size_t opens_page(struct opens *r, uid_t uid, uint64_t *cursor, char *text,
		  size_t size)
{
	struct opens_row row;
	size_t len = 0, at;

	CHECK(size > ROW_BYTES_MAX + 2);
	text[len++] = '[';
	HOLD(&r->lock);
	at = find_locked(r, *cursor, 0);
	while (at < r->count && size - len > ROW_BYTES_MAX + 2) {
		if (!sum_locked(r, uid, &at, &row))
			continue;
		if (len > 1)
			text[len++] = ',';
		len += print_row(&row, text + len);
	}
	*cursor = at < r->count ? r->rows[at].rank : 0;
	text[len++] = ']';
	return len;
}
