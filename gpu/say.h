/*
 * say.h - the sentence that goes with an error, for ckpt_last_error(). All of
 * gpu/ lies above this and knows it; it knows nothing.
 */
#ifndef GPU_SAY_H
#define GPU_SAY_H

/*
 * Set this thread's ckpt_last_error(); returns rc. A printf format, without a
 * newline: "PATH: what is wrong: what to do".
 */
int ckpt_say(int rc, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
