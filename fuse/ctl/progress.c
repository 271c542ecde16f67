/*
 * progress.c - the line that shows on a terminal how far a command is.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fuse/ctl/ctl.h"
#include "store/base/scope.h"

#define PROGRESS_EVERY_NS 100000000
#define PROGRESS_LINE_BYTES 128
#define PROGRESS_BAR_CELLS 24

bool ctl_progress_wanted(void)
{
	return isatty(STDERR_FILENO) == 1;
}

static void progress_bar(double part, char ret[PROGRESS_BAR_CELLS + 1])
{
	int full = (int)(part * PROGRESS_BAR_CELLS);

	for (int n = 0; n < PROGRESS_BAR_CELLS; n++)
		ret[n] = n < full ? '#' : '.';
	ret[PROGRESS_BAR_CELLS] = 0;
}

static void progress_rate(double seconds, uint64_t done, uint64_t total,
			  char *ret, size_t size)
{
	double rate = seconds > 0 ? (double)done / seconds : 0;

	ret[0] = 0;
	if (rate >= 1)
		(void)snprintf(ret, size, "  %s/s, %.0f s left",
			       ctl_bytes((uint64_t)rate),
			       (double)(total - done) / rate);
}

void ctl_progress_say(struct ctl_progress *p, const char *text)
{
	if (!ctl_progress_wanted())
		return;
	(void)fprintf(stderr, "\r%s\033[K", text);
	(void)fflush(stderr);
	p->shown = true;
}

void ctl_progress_show(struct ctl_progress *p, const char *phase, uint64_t done,
		       uint64_t total, bool bytes)
{
	char line[PROGRESS_LINE_BYTES], bar[PROGRESS_BAR_CELLS + 1];
	char rate[PROGRESS_LINE_BYTES / 2] = "";
	int64_t now = mono_ns();

	if (!ctl_progress_wanted())
		return;
	if (strcmp(p->phase, phase) != 0) {
		(void)snprintf(p->phase, sizeof(p->phase), "%s", phase);
		p->begin_ns = now;
		p->last_ns = 0;
	}
	if (p->last_ns != 0 && now - p->last_ns < PROGRESS_EVERY_NS)
		return;
	p->last_ns = now;
	if (done > total && total > 0)
		done = total;
	if (bytes && total > 0)
		progress_rate((double)(now - p->begin_ns) / 1e9, done, total,
			      rate, sizeof(rate));
	if (total > 0) {
		double part = (double)done / (double)total;

		progress_bar(part, bar);
		(void)snprintf(line, sizeof(line), "%-8s [%s] %3.0f %%%s",
			       phase, bar, 100 * part, rate);
	} else {
		(void)snprintf(line, sizeof(line), "%-8s %s", phase,
			       bytes ? ctl_bytes(done) : ctl_count(done));
	}
	ctl_progress_say(p, line);
}

void ctl_progress_clear(struct ctl_progress *p)
{
	if (!p->shown)
		return;
	(void)fputs("\r\033[K", stderr);
	(void)fflush(stderr);
	p->shown = false;
	p->last_ns = 0;
}
