/*
 * live_store.h - a store that runs without a mount: opened, written to, closed
 * and checked.
 */
#ifndef TESTS_UNIT_LIVE_STORE_H
#define TESTS_UNIT_LIVE_STORE_H

#include <stdatomic.h>

#include "tests/unit/live_bytes.h"
#include "tests/unit/live_commits.h"
#include "tests/unit/live_files.h"
#include "tests/unit/live_life.h"
#include "tests/unit/live_records.h"

#endif
