#include "tests/crash/lossy_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/base/scope.h"

#define LOG_MAGIC UINT64_C(0x31676f6c79736c6f) /* "olsylog1" */
#define LOG_TEXT_MAX 4096u
#define LOG_DATA_MAX (64u << 20)

/* As in the file; name, name2 and data follow, names with their 0 byte. */
struct lossy_entry {
	uint32_t kind, flags, mode, uid, gid;
	uint32_t name_len, name2_len, data_len; /* 0: none */
	uint64_t node, other, off, size, rdev;
	char tail[];
};

_Static_assert(sizeof(struct lossy_entry) == 72, "the file's format");

static void scope_fclose(FILE **f)
{
	if (*f)
		(void)fclose(*f);
}

static size_t tail_len(const struct lossy_entry *e)
{
	return (size_t)e->name_len + e->name2_len + e->data_len;
}

void lossy_log_clear(struct lossy_log *log)
{
	for (size_t i = 0; i < log->count; i++)
		free(log->entries[i]);
	free(log->entries);
	memset(log, 0, sizeof(*log));
}

/* Takes over e. */
static int log_append(struct lossy_log *log, struct lossy_entry *e)
{
	SCOPED(scope_free) struct lossy_entry *owned = e;
	size_t room = log->room ? log->room * 2 : 1024;
	struct lossy_entry **entries;

	if (log->count >= LOSSY_LOG_OPS_MAX)
		return -ENOSPC;
	if (log->count == log->room) {
		entries = realloc(log->entries,
				  room * sizeof(struct lossy_entry *));
		if (!entries)
			return -ENOMEM;
		log->entries = entries;
		log->room = room;
	}
	log->entries[log->count++] = TAKE(owned);
	return 0;
}

static uint32_t text_len(const char *text)
{
	return text ? (uint32_t)strlen(text) + 1 : 0;
}

int lossy_log_add(struct lossy_log *log, const struct lossy_op *op)
{
	struct lossy_entry head = {
		.kind = (uint32_t)op->kind,
		.flags = op->flags,
		.mode = op->mode,
		.uid = op->uid,
		.gid = op->gid,
		.name_len = text_len(op->name),
		.name2_len = text_len(op->name2),
		.data_len = (uint32_t)op->data_len,
		.node = op->node,
		.other = op->other,
		.off = op->off,
		.size = op->size,
		.rdev = op->rdev,
	};
	struct lossy_entry *e;
	char *at;

	CHECK(op->data_len <= LOG_DATA_MAX);
	e = malloc(sizeof(*e) + tail_len(&head));
	if (!e)
		return -ENOMEM;
	*e = head;
	at = e->tail;
	if (op->name)
		memcpy(at, op->name, head.name_len);
	at += head.name_len;
	if (op->name2)
		memcpy(at, op->name2, head.name2_len);
	at += head.name2_len;
	if (op->data_len > 0)
		memcpy(at, op->data, op->data_len);
	return log_append(log, e);
}

static void entry_op(const struct lossy_entry *e, struct lossy_op *ret_op)
{
	const char *name2 = e->tail + e->name_len;
	const char *data = name2 + e->name2_len;

	*ret_op = (struct lossy_op){
		.kind = (enum lossy_kind)e->kind,
		.flags = e->flags,
		.mode = e->mode,
		.uid = e->uid,
		.gid = e->gid,
		.node = e->node,
		.other = e->other,
		.off = e->off,
		.size = e->size,
		.rdev = e->rdev,
		.name = e->name_len ? e->tail : NULL,
		.name2 = e->name2_len ? name2 : NULL,
		.data = data,
		.data_len = e->data_len,
	};
}

int lossy_log_play(const struct lossy_log *log, size_t count,
		   struct lossy_fs *fs)
{
	struct lossy_op op;
	int rc = 0;

	if (count > log->count)
		return -ERANGE;
	for (size_t i = 0; i < count && rc == 0; i++) {
		entry_op(log->entries[i], &op);
		rc = lossy_do(fs, &op, NULL);
	}
	return rc;
}

int lossy_log_say(const struct lossy_log *log, size_t index, char *buf,
		  size_t len)
{
	static const char *const kinds[LOSSY_KIND_COUNT] = {
		[LOSSY_CREATE] = "create",     [LOSSY_LINK] = "link",
		[LOSSY_UNLINK] = "unlink",     [LOSSY_RMDIR] = "rmdir",
		[LOSSY_RENAME] = "rename",     [LOSSY_WRITE] = "write",
		[LOSSY_TRUNCATE] = "truncate", [LOSSY_FALLOCATE] = "fallocate",
		[LOSSY_ATTR] = "attr",         [LOSSY_SYNC] = "sync",
	};
	struct lossy_op op;

	if (index >= log->count)
		return -ERANGE;
	entry_op(log->entries[index], &op);
	return snprintf(buf, len,
			"%zu %s node %llu other %llu '%s' '%s' "
			"off %llu size %llu len %zu flags %#x",
			index + 1, kinds[op.kind], (unsigned long long)op.node,
			(unsigned long long)op.other, op.name ? op.name : "",
			op.name2 ? op.name2 : "", (unsigned long long)op.off,
			(unsigned long long)op.size, op.data_len, op.flags);
}

int lossy_log_save(const struct lossy_log *log, const char *path)
{
	const uint64_t head[2] = { LOG_MAGIC, log->count };
	SCOPED(scope_fclose) FILE *f = fopen(path, "wbe");
	FILE *closing;

	if (!f)
		return -errno;
	if (fwrite(head, sizeof(head), 1, f) != 1)
		return -EIO;
	for (size_t i = 0; i < log->count; i++) {
		const struct lossy_entry *e = log->entries[i];

		if (fwrite(e, sizeof(*e) + tail_len(e), 1, f) != 1)
			return -EIO;
	}
	closing = TAKE(f);
	return fclose(closing) == 0 ? 0 : -errno;
}

/* Each name ends in its only 0 byte, and the operation has what it needs. */
static bool entry_is_sound(const struct lossy_entry *e)
{
	const char *name2 = e->tail + e->name_len;
	bool one = e->kind <= LOSSY_RENAME;
	bool two = e->kind == LOSSY_RENAME;

	if (one != (e->name_len > 0) || two != (e->name2_len > 0))
		return false;
	if (one && strnlen(e->tail, e->name_len) + 1 != e->name_len)
		return false;
	return !two || strnlen(name2, e->name2_len) + 1 == e->name2_len;
}

static int entry_load(struct lossy_log *log, FILE *f)
{
	SCOPED(scope_free) struct lossy_entry *e = NULL;
	struct lossy_entry head;
	size_t len;

	if (fread(&head, sizeof(head), 1, f) != 1)
		return -EBADMSG;
	if (head.kind < LOSSY_CREATE || head.kind >= LOSSY_KIND_COUNT ||
	    head.name_len > LOG_TEXT_MAX || head.name2_len > LOG_TEXT_MAX ||
	    head.data_len > LOG_DATA_MAX)
		return -EBADMSG;
	len = tail_len(&head);
	e = malloc(sizeof(*e) + len);
	if (!e)
		return -ENOMEM;
	*e = head;
	if (len > 0 && fread(e->tail, len, 1, f) != 1)
		return -EBADMSG;
	if (!entry_is_sound(e))
		return -EBADMSG;
	return log_append(log, TAKE(e));
}

int lossy_log_load(struct lossy_log *log, const char *path)
{
	SCOPED(scope_fclose) FILE *f = fopen(path, "rbe");
	uint64_t head[2];
	int rc = 0;

	lossy_log_clear(log);
	if (!f)
		return -errno;
	if (fread(head, sizeof(head), 1, f) != 1 || head[0] != LOG_MAGIC ||
	    head[1] > LOSSY_LOG_OPS_MAX)
		return -EBADMSG;
	for (uint64_t i = 0; i < head[1] && rc == 0; i++)
		rc = entry_load(log, f);
	if (rc < 0)
		lossy_log_clear(log);
	return rc;
}
