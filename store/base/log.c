/* log.c - see log.h. */
#include "store/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_LINE_BYTES_MAX 2048

static int log_level = LOG_INFO;
static bool log_syslog;

void log_set_level(int level)
{
	log_level = level;
}

void log_to_syslog(bool on)
{
	log_syslog = on;
	if (on)
		openlog("ckptfs", LOG_PID, LOG_DAEMON);
}

static const char *log_word(int level)
{
	switch (level) {
	case LOG_ERR:
		return "ERROR";
	case LOG_WARNING:
		return "WARNING";
	case LOG_INFO:
		return "info";
	default:
		return "debug";
	}
}

/*
 * systemd(1) gives the journal as standard error, says so in JOURNAL_STREAM,
 * and takes <N> at the start of a line for its level: see sd-daemon(3).
 */
static bool is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat sb;

	return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
	       fstat(STDERR_FILENO, &sb) == 0 && sb.st_dev == (dev_t)dev &&
	       sb.st_ino == (ino_t)ino;
}

/*
 * `text` without bytes that end a line or steer a terminal: a name may have
 * them, and would be taken for a message of ours. Returns the length.
 */
static size_t put_clean(char *to, size_t room, const char *text)
{
	size_t len = 0;

	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		char one[8];
		int n = snprintf(one, sizeof(one),
				 c == '\n'               ? "\\n"
				 : c < 0x20 || c == 0x7f ? "\\x%02x"
							 : "%c",
				 c);

		if (len + (size_t)n > room)
			break;
		memcpy(to + len, one, (size_t)n);
		len += (size_t)n;
	}
	return len;
}

void log_at(int level, const char *format, ...)
{
	char text[LOG_LINE_BYTES_MAX], line[LOG_LINE_BYTES_MAX];
	int saved = errno;
	size_t len = 0, head = 0;
	va_list ap;
	int n;

	if (level > log_level)
		return;
	va_start(ap, format);
	n = vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (n < 0)
		text[0] = 0;
	if (is_journal())
		head = (size_t)snprintf(line, sizeof(line), "<%d>", level);
	len = head + (size_t)snprintf(line + head, sizeof(line) - head,
				      "ckptfs: %s: ", log_word(level));
	/* What is too long is cut, and said so by its length. */
	len += put_clean(line + len, sizeof(line) - 1 - len, text);
	if (log_syslog)
		syslog(level, "%.*s", (int)(len - head), line + head);
	line[len++] = '\n';
	n = (int)write(STDERR_FILENO, line, len);
	(void)n; /* there is nowhere left to complain to */
	errno = saved;
}
