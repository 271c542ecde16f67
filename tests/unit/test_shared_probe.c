/*
 * What a file system cannot do is said when the directory is mounted, each
 * thing in its own words: here calls fail as they do there, or succeed and do
 * nothing, which is worse.
 */
#include <time.h>

#include "store/base/dir.h"
#include "tests/unit/home_fixture.h"

enum call {
	NONE,
	OPENAT,
	FCHMOD,
	FCHOWN,
	FTRUNCATE,
	FSYNC,
	FUTIMENS,
	RENAMEAT,
	LINKAT,
	UNLINKAT,
	FLOCK,
	STICKY, /* a mode, which fstat() does not show */
};
/* What is wrong there, with which errno; 0: nothing is said, nothing done. */
static enum call wrong;
static int wrong_errno;

/* true: *ret_rc is the answer. */
static bool goes_wrong(enum call call, int *ret_rc)
{
	if (call != wrong)
		return false;
	errno = wrong_errno;
	*ret_rc = wrong_errno ? -1 : 0;
	return true;
}

#define WRAP(call, name, parameters, arguments)                              \
	int __real_##name parameters;                                        \
	int __wrap_##name parameters;                                        \
	int __wrap_##name parameters                                         \
	{                                                                    \
		int rc;                                                      \
                                                                             \
		return goes_wrong(call, &rc) ? rc : __real_##name arguments; \
	}
WRAP(FCHMOD, fchmod, (int fd, mode_t mode), (fd, mode))
WRAP(FCHOWN, fchown, (int fd, uid_t uid, gid_t gid), (fd, uid, gid))
WRAP(FTRUNCATE, ftruncate64, (int fd, off_t size), (fd, size))
WRAP(FSYNC, fsync, (int fd), (fd))
WRAP(FUTIMENS, futimens, (int fd, const struct timespec t[2]), (fd, t))
WRAP(LINKAT, linkat,
     (int at_fd, const char *a, int to_fd, const char *b, int flags),
     (at_fd, a, to_fd, b, flags))
WRAP(FLOCK, flock, (int fd, int operation), (fd, operation))

/* Only of the probe: the rest of the directory is as it should be. */
static bool is_probe(const char *name)
{
	return strncmp(name, ".probe", 6) == 0;
}

int __real_openat64(int fd, const char *name, int flags, mode_t mode);
int __wrap_openat64(int fd, const char *name, int flags, mode_t mode);
int __real_renameat(int at_fd, const char *a, int to_fd, const char *b);
int __wrap_renameat(int at_fd, const char *a, int to_fd, const char *b);
int __real_unlinkat(int fd, const char *name, int flags);
int __wrap_unlinkat(int fd, const char *name, int flags);
int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);

int __wrap_openat64(int fd, const char *name, int flags, mode_t mode)
{
	int rc;

	/* Where O_EXCL is not known a second one opens the file. */
	if (wrong == OPENAT && wrong_errno == 0)
		return __real_openat64(fd, name, flags & ~O_EXCL, mode);
	return is_probe(name) && goes_wrong(OPENAT, &rc)
		       ? rc
		       : __real_openat64(fd, name, flags, mode);
}

int __wrap_renameat(int at_fd, const char *a, int to_fd, const char *b)
{
	int rc;

	return is_probe(a) && goes_wrong(RENAMEAT, &rc)
		       ? rc
		       : __real_renameat(at_fd, a, to_fd, b);
}

int __wrap_unlinkat(int fd, const char *name, int flags)
{
	int rc;

	return is_probe(name) && goes_wrong(UNLINKAT, &rc)
		       ? rc
		       : __real_unlinkat(fd, name, flags);
}

int __wrap_fstat64(int fd, struct stat *st)
{
	int rc = __real_fstat64(fd, st);

	if (rc == 0 && wrong == STICKY && S_ISREG(st->st_mode))
		st->st_mode &= ~(mode_t)S_ISVTX;
	return rc;
}

static void each_thing_that_is_missing_is_said(void **state)
{
	static const struct {
		enum call call;
		int errno_there, rc;
		const char *said;
		bool of_root;
	} cases[] = {
		{ OPENAT, EACCES, -EOPNOTSUPP, "make a file in", false },
		{ OPENAT, ENOSPC, -ENOSPC, "No space left", false },
		{ OPENAT, EDQUOT, -EDQUOT, "make a file in", false },
		{ OPENAT, 0, -EOPNOTSUPP, "only where there is none", false },
		{ STICKY, 0, -EOPNOTSUPP, "keep the sticky bit", false },
		{ FCHMOD, EPERM, -EOPNOTSUPP, "change the mode", false },
		{ FCHMOD, 0, -EOPNOTSUPP, "change the mode", false },
		{ FCHOWN, EPERM, -EOPNOTSUPP, "root_squash", true },
		{ FCHOWN, 0, -EOPNOTSUPP, "give a file to its owner", true },
		{ FSYNC, EIO, -EIO, "make a directory durable", false },
		{ FTRUNCATE, EPERM, -EOPNOTSUPP, "cut the end", false },
		{ FTRUNCATE, 0, -EOPNOTSUPP, "cut the end", false },
		{ FUTIMENS, EPERM, -EOPNOTSUPP, "set the times", false },
		{ FUTIMENS, 0, -EOPNOTSUPP, "set the times", false },
		{ RENAMEAT, EXDEV, -EOPNOTSUPP, "rename a file", false },
		{ RENAMEAT, 0, -EOPNOTSUPP, "rename a file", false },
		{ LINKAT, EPERM, -EOPNOTSUPP, "hard links", false },
		{ LINKAT, 0, -EOPNOTSUPP, "hard links", false },
		{ UNLINKAT, EPERM, -EOPNOTSUPP, "remove a file", false },
		{ UNLINKAT, 0, -EOPNOTSUPP, "remove a file", false },
		{ FLOCK, ENOSYS, -ENOSYS, "cannot be locked", false },
	};
	char *dir = make_tmp();
	struct opened_home o;

	(void)state;
	assert_int_equal(make_home(dir, ""), 0);
	o = open_home(dir, "a", STORE_A);
	close_home(&o);
	for (size_t n = 0; n < sizeof(cases) / sizeof(*cases); n++) {
		if (cases[n].of_root && geteuid() != 0)
			continue;
		wrong = cases[n].call;
		wrong_errno = cases[n].errno_there;
		o = open_home(dir, "a", STORE_A);
		wrong = NONE;
		assert_int_equal(o.rc, cases[n].rc);
		if (!strstr(o.why, cases[n].said))
			print_error("%zu: %s\n", n, o.why);
		assert_non_null(strstr(o.why, cases[n].said));
		if (cases[n].call != UNLINKAT)
			assert_true(dir_is_empty(AT_FDCWD,
						 at(dir, ".ckptfs/new/a")));
		/* And nothing is in the way of the next. */
		o = open_home(dir, "a", STORE_A);
		close_home(&o);
	}
	remove_tree(dir);
	free(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_thing_that_is_missing_is_said),
	};

	return cmocka_run_group_tests_name("shared_probe", tests, NULL, NULL);
}
