/*
 * log.h - one line per event, on stderr and, when the process runs in the
 * background, in the system log as well.
 *
 * Rule: library code logs at LOG_DEBUG only; the edge (fuse/ and the drain,
 * which has no caller to answer) logs once, and names the object.
 * Threads: any thread may log; a line is written with one write(2).
 */
#ifndef STORE_BASE_LOG_H
#define STORE_BASE_LOG_H

#include <stdbool.h>
#include <syslog.h>

/* Lines above this level are dropped; LOG_INFO from the start. */
void log_set_level(int level);

/* Send lines to syslog too (a daemon's stderr is /dev/null). */
void log_to_syslog(bool on);

void log_at(int level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#define log_error(...) log_at(LOG_ERR, __VA_ARGS__)
#define log_warning(...) log_at(LOG_WARNING, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)

#endif
