/* closure_check.c - what was found, and what each kind of it is called. */
#include "store/step/closure_check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/vec.h"

int closure_find(struct check *k, enum closure_kind kind, const char *item,
		 const char *file, const char *format, ...)
{
	struct closure *c = &k->result;
	struct closure_finding *f;
	va_list ap;
	int rc;

	c->totals[kind]++;
	if (c->count == CLOSURE_FINDINGS_MAX)
		return 0;
	rc = vec_grow(&c->findings, c->count, &c->capacity, sizeof(*f));
	if (rc < 0)
		return rc;
	f = &c->findings[c->count++];
	*f = (struct closure_finding){ .kind = kind,
				       .item = item,
				       .file = file };
	va_start(ap, format);
	(void)vsnprintf(f->what, sizeof(f->what), format, ap);
	va_end(ap);
	return 0;
}

void closure_release(struct closure *c)
{
	free(c->findings);
	memset(c, 0, sizeof(*c));
}

bool closure_holds(const struct closure *c)
{
	for (int i = 0; i < CLOSURE_KINDS; i++)
		if (i != CLOSURE_NOT_CHECKED && c->totals[i] > 0)
			return false;
	return true;
}

const char *closure_kind_name(enum closure_kind kind)
{
	static const char *const names[] = {
		[CLOSURE_DANGLING] = "dangling",
		[CLOSURE_PAST_END] = "past_end",
		[CLOSURE_LENGTH] = "length",
		[CLOSURE_OVERLAP] = "overlap",
		[CLOSURE_UNNAMED] = "unnamed",
		[CLOSURE_ORPHAN] = "orphan",
		[CLOSURE_UNSTORED] = "unstored",
		[CLOSURE_UNKNOWN] = "unknown",
		[CLOSURE_OUTSIDE] = "outside",
		[CLOSURE_CHUNKS_OVERLAP] = "chunks_overlap",
		[CLOSURE_NOT_COVERED] = "not_covered",
		[CLOSURE_NOT_CHECKED] = "not_checked",
	};

	return names[kind];
}
