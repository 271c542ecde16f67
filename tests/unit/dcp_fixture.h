/*
 * dcp_fixture.h - the .metadata files that tests read: real ones of torch, and
 * look-alikes of what other versions write. They lie with the fuzzer's corpus.
 */
#ifndef TESTS_UNIT_DCP_FIXTURE_H
#define TESTS_UNIT_DCP_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <fcntl.h>

#include "store/base/scope.h"
#include "store/formats/dcp.h"

static inline int dcp_fixture_try(const char *name, struct dcp *d,
				  struct dcp_error *e)
{
	char path[1024];

	(void)snprintf(path, sizeof(path), "%s/%s", DCP_CORPUS, name);
	return dcp_read_file(AT_FDCWD, path, d, e);
}

static inline struct dcp dcp_fixture(const char *name)
{
	struct dcp_error e;
	struct dcp d;
	int rc = dcp_fixture_try(name, &d, &e);

	if (rc < 0)
		fail_msg("%s: %d: %s", name, rc, e.what);
	return d;
}

static inline struct dcp_item *dcp_fixture_item(const struct dcp *d,
						const char *name)
{
	for (uint32_t i = 0; i < d->item_count; i++)
		if (strcmp(d->items[i].name, name) == 0)
			return &d->items[i];
	fail_msg("there is no '%s'", name);
	abort(); /* for those who do not know that a failure does not return */
}

#endif
