/*
 * home_private.h - what look.c, home.c and home_probe.c share: the sentence
 * that says why a directory is refused, and the opening of what lies in
 * .ckptfs.
 */
#ifndef STORE_SHARED_HOME_PRIVATE_H
#define STORE_SHARED_HOME_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* For who has a lock for a moment, and who just starts. */
#define LOCK_WAIT_NS (INT64_C(1) * 1000000000)
#define LOCK_POLL_NS 10000000

struct home_why {
	const char *dir; /* as the user named it */
	char *text;
	size_t size;
};

/* Says the sentence, and returns rc. */
__attribute__((format(printf, 3, 4))) int
home_refuse(const struct home_why *w, int rc, const char *format, ...);
/* errno says the reason; what: "open it". */
int home_refuse_call(const struct home_why *w, const char *what);

/* DIR itself. */
int home_open_dir(const struct home_why *w, int *ret_dirfd);
/*
 * The directory `name` in `at`, of which shown is the path below DIR; a link is
 * not followed, and what others can change is refused. -ENOENT: it is not
 * there, and nothing was said.
 */
int home_open_part(const struct home_why *w, int at, const char *name,
		   const char *shown, int *ret_fd);
/* It is made with just this mode when it is not there. */
int home_make_part(const struct home_why *w, int at, const char *name,
		   const char *shown, mode_t mode, int *ret_fd);
/* Its format, or the sentence that says why not. */
int home_refuse_format(const struct home_why *w, int rc, unsigned number);

/* Can it do all that is needed? newfd: new/NAME, which is ours alone. */
int home_probe(const struct home_why *w, int newfd);

#endif
