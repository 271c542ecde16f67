/* log.c - see log.h. */
#include "store/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
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

void log_at(int level, const char *format, ...)
{
	char line[LOG_LINE_BYTES_MAX];
	int saved = errno;
	size_t len;
	va_list ap;
	int n;

	if (level > log_level)
		return;
	n = snprintf(line, sizeof(line), "ckptfs: %s: ", log_word(level));
	len = (size_t)n;
	va_start(ap, format);
	n = vsnprintf(line + len, sizeof(line) - len - 1, format, ap);
	va_end(ap);
	if (n > 0)
		len += (size_t)n;
	if (len > sizeof(line) - 2)
		len = sizeof(line) - 2; /* cut, and said so by its length */
	if (log_syslog)
		syslog(level, "%.*s", (int)len, line);
	line[len++] = '\n';
	n = (int)write(STDERR_FILENO, line, len);
	(void)n; /* there is nowhere left to complain to */
	errno = saved;
}
