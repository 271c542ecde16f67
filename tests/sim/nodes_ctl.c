/*
 * nodes_ctl.c - ckptctl forget-node on a machine that is no node of the run:
 * fuse/ctl/forget.c itself, without what it says.
 */
#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

#include "fuse/ctl/shared.h"
#include "store/base/scope.h"
#include "tests/sim/nodes.h"

void ctl_complain(const char *format, ...)
{
	(void)format;
}

int ctl_misused(const char *format, ...)
{
	(void)format;
	return CTL_USAGE;
}

void ctl_progress_say(struct ctl_progress *p, const char *text)
{
	(void)p;
	(void)text;
}

void ctl_progress_clear(struct ctl_progress *p)
{
	(void)p;
}

/* --yes is all that is ever asked for. */
int ctl_option(struct ctl_options *o, int argc, char **argv)
{
	static bool told;

	(void)o;
	(void)argc;
	(void)argv;
	told = !told;
	optind = 2;
	return told ? 'y' : -1;
}

const char *ctl_shown(const char *text)
{
	return text;
}

const char *ctl_bytes(uint64_t bytes)
{
	(void)bytes;
	return "";
}

const char *ctl_count(uint64_t count)
{
	(void)count;
	return "";
}

void ctl_add_text(cJSON *json, const char *name, const char *text)
{
	(void)json;
	(void)name;
	(void)text;
}

void ctl_add_number(cJSON *json, const char *name, uint64_t value)
{
	(void)json;
	(void)name;
	(void)value;
}

void ctl_print_json(cJSON *json)
{
	cJSON_Delete(json);
}

int ctl_shared_open(const char *dir, struct shared_look *ret)
{
	char why[8192] = "";

	return shared_look_open(dir, ret, why, sizeof(why)) == 0 ? CTL_FINE
								 : CTL_USAGE;
}

int ctl_shared_failed(const char *dir, const char *what, int rc)
{
	(void)dir;
	(void)what;
	(void)rc;
	return CTL_PROBLEM;
}

extern const struct ctl_command ctl_forget_node;

int nodes_forget(unsigned number)
{
	char command[] = "forget-node", yes[] = "--yes", dir[] = ENGINE_PATH;
	char name[16];
	char *argv[] = { command, yes, dir, name, NULL };
	unsigned group = sim_group();
	int rc;

	(void)snprintf(name, sizeof(name), "n%u", number);
	if (group == 0)
		sim_set_group(ENGINE_NODES_MAX - 1);
	rc = ctl_forget_node.run(&ctl_forget_node, 4, argv);
	sim_set_group(group);
	return rc;
}
