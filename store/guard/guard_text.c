/*
 * guard_text.c - the one line that says what is wrong with a step: names out
 * of files as text that can be shown, and what a step says of itself.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "store/base/utf8.h"
#include "store/guard/guard_private.h"

/*
 * Names come out of files: no control character gets into a log, and nothing
 * that is not UTF-8, a character that was cut in two included.
 */
void guard_clean(char *text, size_t len)
{
	for (size_t at = 0; at < len;) {
		size_t n = utf8_length(text + at, len - at);

		if (n == 0 || iscntrl((unsigned char)text[at])) {
			text[at] = '?';
			n = 1;
		}
		at += n;
	}
}

void guard_put(struct guard_text *t, const char *format, ...)
{
	size_t from = t->len;
	va_list ap;
	int n;

	va_start(ap, format);
	n = vsnprintf(t->at + t->len, t->size - t->len, format, ap);
	va_end(ap);
	if (n > 0)
		t->len += (size_t)n < t->size - t->len ? (size_t)n
						       : t->size - t->len - 1;
	guard_clean(t->at + from, t->len - from);
}

void guard_put_next(struct guard_text *t)
{
	if (t->len < 2 || strcmp(t->at + t->len - 2, ": ") != 0)
		guard_put(t, "; ");
}

/* --- what a step says of itself --- */

static enum guard_fault fault_of_error(const struct structure_error *e)
{
	switch (e->fault) {
	case STRUCTURE_TORN:
		return GUARD_FAULT_BROKEN;
	case STRUCTURE_MISSING:
		return GUARD_FAULT_MISSING;
	case STRUCTURE_NOT_READ:
	case STRUCTURE_ELSEWHERE:
	default:
		return GUARD_FAULT_REPORTED;
	}
}

/*
 * A file that .metadata names nothing of may be left over from a larger world;
 * what it has that should be there is gone, or not covered.
 */
static enum guard_fault fault_of_finding(enum closure_kind kind)
{
	return kind == CLOSURE_DANGLING ? GUARD_FAULT_MISSING
	       : kind == CLOSURE_ORPHAN ? GUARD_FAULT_REPORTED
					: GUARD_FAULT_BROKEN;
}

/*
 * With dcp_only what .metadata does not name may still be written; and what is
 * not here yet is looked at when it is.
 */
static bool error_counts(const struct guard_step *step,
			 const struct structure_error *e)
{
	if (e->fault == STRUCTURE_ELSEWHERE)
		return false;
	return !step->dcp_only || strcmp(e->file, DCP_METADATA_NAME) == 0;
}

bool guard_put_faults(struct guard_text *t, const struct guard_step *step,
		      const struct structure *s, enum guard_fault fault)
{
	static const char *const heads[] = {
		[GUARD_FAULT_BROKEN] = "it is damaged: ",
		[GUARD_FAULT_MISSING] = "it is not complete: ",
		[GUARD_FAULT_REPORTED] = "not looked at: ",
	};
	size_t n = 0;

	for (size_t i = 0; i < s->error_count; i++) {
		const struct structure_error *e = &s->errors[i];

		if (fault_of_error(e) != fault || !error_counts(step, e) ||
		    n++ >= GUARD_NAMES_TOLD)
			continue;
		if (n == 1)
			guard_put_next(t);
		guard_put(t, "%s%.200s: %.200s", n > 1 ? ", " : heads[fault],
			  e->file, e->what);
	}
	for (size_t i = 0; i < s->closure.count; i++) {
		const struct closure_finding *f = &s->closure.findings[i];

		if (f->kind == CLOSURE_NOT_CHECKED ||
		    fault_of_finding(f->kind) != fault ||
		    n++ >= GUARD_NAMES_TOLD)
			continue;
		if (n == 1)
			guard_put_next(t);
		guard_put(t, "%s%s: %.200s%s%.200s %.200s",
			  n > 1 ? ", " : ".metadata does not fit the files: ",
			  closure_kind_name(f->kind), f->file ? f->file : "",
			  f->file && f->item ? " " : "", f->item ? f->item : "",
			  f->what);
	}
	if (n > GUARD_NAMES_TOLD)
		guard_put(t, ", ... %zu in all", n);
	return n > 0;
}
