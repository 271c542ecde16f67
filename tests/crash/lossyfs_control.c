#include "tests/crash/lossyfs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COMMAND_BYTES_MAX 4096u

void control_stat(fuse_ino_t ino, struct stat *ret_st)
{
	memset(ret_st, 0, sizeof(*ret_st));
	ret_st->st_ino = ino;
	ret_st->st_mode = ino == CONTROL_DIR ? S_IFDIR | 0700 : S_IFREG | 0600;
	ret_st->st_nlink = ino == CONTROL_DIR ? 2 : 1;
}

fuse_ino_t control_find(fuse_ino_t parent, const char *name)
{
	if (parent == FUSE_ROOT_ID && strcmp(name, ".lossy") == 0)
		return CONTROL_DIR;
	if (parent == CONTROL_DIR && strcmp(name, "control") == 0)
		return CONTROL_FILE;
	if (parent == CONTROL_DIR && strcmp(name, "state") == 0)
		return CONTROL_STATE;
	return 0;
}

void control_read(fuse_req_t req, size_t size, off_t off)
{
	const struct lossyfs *l = self_of(req);
	char text[1024];
	int len = snprintf(text, sizeof(text), "%" PRIu64 " %d %zu %s\n",
			   lossy_count(l->fs), lossy_is_cut(l->fs),
			   l->log.count, l->said);
	size_t left = off < len ? (size_t)(len - off) : 0;

	fuse_reply_buf(req, text + (off < len ? off : 0),
		       left < size ? left : size);
}

static int control_rewind(struct lossyfs *l, uint64_t count, uint64_t seed)
{
	int rc;

	l->logging = false;
	l->epoch++;
	lossy_erase(l->fs);
	rc = lossy_log_play(&l->log, count, l->fs);
	if (rc == 0)
		lossy_reboot(l->fs, seed);
	return rc;
}

static int control_say(struct lossyfs *l, uint64_t n)
{
	int rc;

	if (n == 0)
		return -ERANGE;
	rc = lossy_log_say(&l->log, n - 1, l->said, sizeof(l->said));
	return rc < 0 ? rc : 0;
}

static int control_word(struct lossyfs *l, const char *word)
{
	if (strcmp(word, "record") == 0) {
		l->epoch++;
		lossy_erase(l->fs);
		lossy_log_clear(&l->log);
		l->logging = true;
	} else if (strcmp(word, "freeze") == 0) {
		l->logging = false;
	} else if (strcmp(word, "cut") == 0) {
		lossy_cut(l->fs, 0);
	} else {
		return -EINVAL;
	}
	return 0;
}

static int control_with(struct lossyfs *l, const char *word, const char *arg)
{
	if (strcmp(word, "save") == 0)
		return lossy_log_save(&l->log, arg);
	if (strcmp(word, "load") == 0) {
		l->logging = false;
		return lossy_log_load(&l->log, arg);
	}
	if (strcmp(word, "lie") == 0) {
		bool all = strcmp(arg, "all") == 0;

		l->lie_files = all || strcmp(arg, "files") == 0;
		l->lie_dirs = all || strcmp(arg, "dirs") == 0;
		return 0;
	}
	return -EINVAL;
}

static int control_do(struct lossyfs *l, const char *command)
{
	char word[16] = "", arg[COMMAND_BYTES_MAX] = "";
	uint64_t a = 0, b = 0;
	int got = sscanf(command, "%15s %" SCNu64 " %" SCNu64, word, &a, &b);

	if (got == 1 && sscanf(command, "%*s %4095s", arg) == 1)
		return control_with(l, word, arg);
	if (got == 1)
		return control_word(l, word);
	if (got == 2 && strcmp(word, "arm") == 0 && a > 0) {
		lossy_cut(l->fs, a);
		return 0;
	}
	if (got == 2 && strcmp(word, "reboot") == 0) {
		l->epoch++;
		lossy_reboot(l->fs, a);
		return 0;
	}
	if (got == 2 && strcmp(word, "say") == 0)
		return control_say(l, a);
	if (got == 3 && strcmp(word, "rewind") == 0)
		return control_rewind(l, a, b);
	if (got == 3 && strcmp(word, "spoil") == 0) {
		l->spoilt = a;
		l->spoilt_block = b;
		return 0;
	}
	return -EINVAL;
}

void control_write(fuse_req_t req, const char *buf, size_t size)
{
	char command[COMMAND_BYTES_MAX];
	int rc;

	if (size >= sizeof(command)) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	memcpy(command, buf, size);
	command[size] = '\0';
	rc = control_do(self_of(req), command);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_write(req, size);
}
