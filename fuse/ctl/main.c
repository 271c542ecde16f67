/*
 * main.c - ckptctl: look at a ckptfs mount and at a store.
 *
 * The mount's answers come through ioctl(2), the store's through its own code.
 * Nothing here changes a store but `rebuild`, and `init` makes one; `flush` and
 * `gc` ask the mount to. In a directory that nodes share `forget-node` removes
 * what is pending of one.
 */
#include <stdio.h>
#include <string.h>

#include "fuse/ctl/ctl.h"

static const struct ctl_command *const commands[] = {
	&ctl_status, &ctl_flush,   &ctl_inspect, &ctl_du,
	&ctl_gc,     &ctl_fsck,    &ctl_scrub,   &ctl_plan,
	&ctl_init,   &ctl_rebuild, &ctl_nodes,   &ctl_forget_node,
};
#define COMMANDS (sizeof(commands) / sizeof(*commands))

static int help(void)
{
	(void)puts("usage: ckptctl COMMAND [OPTION...] ARGUMENT...\n");
	for (size_t n = 0; n < COMMANDS; n++) {
		(void)printf("  %-11s %-22s", commands[n]->name,
			     commands[n]->arguments);
		if (strlen(commands[n]->arguments) > 22)
			(void)printf("\n%36s", "");
		(void)printf(" %s\n", commands[n]->summary);
	}
	(void)puts("\nEvery command knows --json, and --help to say more.\n"
		   "Exit code: 0 fine; 1 a problem was found; 2 wrong usage, "
		   "or this argument\ncannot be used for that.");
	return CTL_FINE;
}

static int run(const struct ctl_command *c, int argc, char **argv)
{
	struct ctl_options o = { .command = c };

	ctl_runs(c->name);
	if (c->run)
		return c->run(c, argc, argv);
	(void)ctl_option(&o, argc, argv);
	if (argc - optind != 1)
		return ctl_misused("%s: name one %s", c->name, c->takes);
	return c->run_on(argv[optind], o.json);
}

/* For what goes wrong before its option is reached. */
static void look_for_json(char **argv)
{
	for (char **a = argv; *a && strcmp(*a, "--") != 0; a++)
		if (strcmp(*a, "--json") == 0)
			ctl_want_json();
}

int main(int argc, char **argv)
{
	static char help_option[] = "--help";

	look_for_json(argv);
	if (argc < 2)
		return ctl_end(ctl_misused("name a command"));
	if (strcmp(argv[1], "help") == 0 && argc == 3) {
		argv[1] = argv[2];
		argv[2] = help_option;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
	    strcmp(argv[1], "help") == 0)
		return ctl_end(help());
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		(void)puts("ckptctl " CKPTFS_VERSION);
		return ctl_end(CTL_FINE);
	}
	for (size_t n = 0; n < COMMANDS; n++)
		if (strcmp(argv[1], commands[n]->name) == 0)
			return ctl_end(run(commands[n], argc - 1, argv + 1));
	return ctl_end(ctl_misused("'%s' is not a command", argv[1]));
}
