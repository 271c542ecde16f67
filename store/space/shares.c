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

int shares_add(struct shares *s, uid_t uid)
{
	struct share *one = find(s, uid);
	int rc;

	if (!one) {
		rc = vec_grow(&s->at, s->count, &s->capacity, sizeof(*s->at));
		if (rc < 0)
			return rc;
		one = &s->at[s->count++];
		*one = (struct share){ .uid = uid };
	}
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
	if (one->slots == 0)
		*one = s->at[--s->count];
}

void shares_release(struct shares *s)
{
	free(s->at);
	memset(s, 0, sizeof(*s));
}
