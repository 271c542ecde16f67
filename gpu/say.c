/* say.c - each thread's last sentence. See say.h. */
#include "gpu/say.h"

#include <stdarg.h>
#include <stdio.h>

#include "gpu/ckpt_gpu.h"

static _Thread_local char last_error[4608] = "no error";

int ckpt_say(int rc, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	(void)vsnprintf(last_error, sizeof(last_error), format, ap);
	va_end(ap);
	return rc;
}

const char *ckpt_last_error(void)
{
	return last_error;
}
