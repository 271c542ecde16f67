/*
 * parents.h - nobody else can put another directory in the place of a store.
 *
 * Who may change the names in a directory may rename what is in it, whoever it
 * belongs to: a store in a folder of another user can be exchanged at any
 * moment for one with links in it, through which a daemon of root writes to any
 * file. With every directory above it looked at, from / down, that cannot be,
 * and its path means the same directory for as long as the daemon runs.
 */
#ifndef STORE_PARENTS_H
#define STORE_PARENTS_H

#include <stddef.h>

/*
 * The path without symbolic links, by which the store is opened and RocksDB
 * opens its files: each directory above it belongs to root or to this user, and
 * nobody else can write to it, or it is sticky. The store itself need not be
 * there yet. -EPERM, and a sentence in `why` that names the directory; -ENOENT,
 * ... as realpath(3) says. *ret_path is the caller's to free.
 */
int parents_check(const char *path, char **ret_path, char *why,
		  size_t why_size);

#endif
