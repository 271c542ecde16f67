/*
 * between.h - fstat(2) of the store is a test's: the drain asks for a stage's
 * size between choosing a job and freezing what it is about, and something can
 * be made to happen just there, once, when nobody changes the file. For a test
 * that is linked with --wrap=stage_stat.
 */
#ifndef TESTS_UNIT_BETWEEN_H
#define TESTS_UNIT_BETWEEN_H

#include "store/base/scope.h"
#include "store/names/inode.h"
#include "store/space/stage.h"

static struct between {
	struct inode *in;
	void (*fn)(void *arg);
	void *arg;
} between;

int __real_stage_stat(struct stages *st, const struct stage *s,
		      struct stat *ret);
int __wrap_stage_stat(struct stages *st, const struct stage *s,
		      struct stat *ret);

int __wrap_stage_stat(struct stages *st, const struct stage *s,
		      struct stat *ret)
{
	struct between b = between;
	bool now = false;

	if (b.fn && lock_try(&b.in->changing)) {
		now = b.in->file->stage == s;
		lock_give(&b.in->changing);
	}
	if (now) {
		between.fn = NULL;
		b.fn(b.arg);
	}
	return __real_stage_stat(st, s, ret);
}

#endif
