/*
 * shares.c - see shares.h. An array of those who have slots, which are few:
 * each user who stages a file is in it as long as he does.
 */
#include "store/space/shares.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/base/check.h"
#include "store/base/vec.h"

static struct share *find(struct shares *s, uid_t uid)
{
	for (size_t i = 0; i < s->count; i++)
		if (s->at[i].uid == uid)
			return &s->at[i];
	return NULL;
}

/* NULL: out of memory. */
static struct share *find_or_add(struct shares *s, uid_t uid)
{
	struct share *one = find(s, uid);

	if (one || vec_grow(&s->at, s->count, &s->capacity, sizeof(*s->at)) < 0)
		return one;
	one = &s->at[s->count++];
	*one = (struct share){ .uid = uid };
	return one;
}

/* Who has nothing and wants nothing is not kept. */
static void forget_empty(struct shares *s, struct share *one)
{
	if (one->slots == 0 && one->bytes == 0 && one->wants_ns == 0)
		*one = s->at[--s->count];
}

int shares_add(struct shares *s, uid_t uid)
{
	struct share *one = find_or_add(s, uid);

	if (!one)
		return -ENOMEM;
	one->slots++;
	return 0;
}

int shares_take(struct shares *s, uid_t uid, uint32_t free, uint32_t *ret_slots)
{
	struct share *one = find(s, uid);

	if (uid == 0 || uid == geteuid() || !one || one->slots < free)
		return shares_add(s, uid);
	s->refused++;
	s->refused_uid = uid;
	*ret_slots = one->told > 0 ? 0 : one->slots;
	one->told = one->slots;
	return -EDQUOT;
}

void shares_give(struct shares *s, uid_t uid)
{
	struct share *one = find(s, uid);

	CHECK(one && one->slots > 0);
	one->slots--;
	if (one->slots < one->told / 2)
		one->told = 0;
	forget_empty(s, one);
}

/* Is anybody but uid in want? */
static bool others_want(struct shares *s, uid_t uid, int64_t now_ns)
{
	bool found = false;

	for (size_t i = s->count; i-- > 0;) {
		struct share *one = &s->at[i];

		if (one->wants_ns == 0)
			continue;
		if (now_ns - one->wants_ns > SHARES_WANT_NS) {
			one->wants_ns = 0;
			forget_empty(s, one);
		} else if (one->uid != uid) {
			found = true;
		}
	}
	return found;
}

bool shares_take_bytes(struct shares *s, uid_t uid, uint64_t bytes,
		       uint64_t free, int64_t now_ns)
{
	bool limited =
		others_want(s, uid, now_ns) && uid != 0 && uid != geteuid();
	struct share *one = find_or_add(s, uid);

	if (!one)
		return false;
	if (limited && (bytes > free || one->bytes + bytes > free - bytes)) {
		one->wants_ns = now_ns;
		return false;
	}
	if (one->wants_ns > 0) /* who comes again is in want yet */
		one->wants_ns = now_ns;
	one->bytes += bytes;
	return true;
}

void shares_add_bytes(struct shares *s, uid_t uid, uint64_t bytes)
{
	struct share *one = find_or_add(s, uid);

	if (one)
		one->bytes += bytes;
}

void shares_give_bytes(struct shares *s, uid_t uid, uint64_t bytes)
{
	struct share *one = find(s, uid);

	if (!one)
		return;
	one->bytes -= bytes < one->bytes ? bytes : one->bytes;
	forget_empty(s, one);
}

void shares_want(struct shares *s, uid_t uid, int64_t now_ns)
{
	struct share *one = find_or_add(s, uid);

	if (one)
		one->wants_ns = now_ns > 0 ? now_ns : 1;
}

void shares_release(struct shares *s)
{
	free(s->at);
	memset(s, 0, sizeof(*s));
}
