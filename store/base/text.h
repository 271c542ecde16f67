/* text.h - how a text ends, and the sentence that says what is wrong. */
#ifndef STORE_BASE_TEXT_H
#define STORE_BASE_TEXT_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* NULL ends in nothing. */
static inline bool text_ends_in(const char *text, const char *suffix)
{
	size_t n = text ? strlen(text) : 0, m = strlen(suffix);

	return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* The sentence into the size bytes at ret; returns -EBADMSG. */
__attribute__((format(printf, 3, 4))) static inline int
text_refuse(char *ret, size_t size, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(ret, size, format, ap);
	va_end(ap);
	return -EBADMSG;
}

#endif
