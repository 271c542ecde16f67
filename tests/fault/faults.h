/*
 * faults.h - calls that fail on the files of a store's database.
 *
 * The library stands before libc: what RocksDB calls is counted here and, as
 * the plan says, answered with an error. A unit test links it and sets the plan
 * by faults_plan(); a daemon has it preloaded, and CKPTFS_FAULTS names a file
 * that holds one struct fault_plan, which whoever maps it changes at any time.
 * Nothing of the store's own is touched but through the database's directory,
 * `db`.
 */
#ifndef TESTS_FAULT_FAULTS_H
#define TESTS_FAULT_FAULTS_H

#include <stdatomic.h>

enum {
	FAULT_LOG = 1, /* which files: NNNNNN.log */
	FAULT_TABLE = 2, /* NNNNNN.sst */
	FAULT_LIST = 4, /* MANIFEST-NNNNNN, and all others in it */
	FAULT_FILES = 7,
	FAULT_WRITE = 8, /* which calls */
	FAULT_SYNC = 16,
	FAULT_MAKE = 32, /* to make a file, or give it its name */
	FAULT_CALLS = 56,
};

/* 32-bit numbers only, which Python writes as well. */
struct fault_plan {
	atomic_uint what; /* FAULT_..., files and calls; 0: nothing fails */
	atomic_uint error; /* an errno */
	atomic_uint after; /* that many such calls go through first */
	atomic_uint count; /* and that many fail then */
	atomic_uint torn; /* a write that fails has written its first half */
	atomic_uint seen; /* such calls, counted here */
	atomic_uint failed;
};

struct fault_plan *faults_plan(void);

#endif
