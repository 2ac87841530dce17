/* SPDX-License-Identifier: BSD-3-Clause */
/* `vroom`: picks the subcommand. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "vroom.h"

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} commands[] = {
	{ "list", cli_list, "show the NVMe controllers of this machine" },
	{ "id", cli_id, "show a controller, its namespaces, formats and limits" },
	{ "perf", cli_perf, "measure the driver alone, without fio" },
	{ "emulate", cli_emulate, "serve an emulated NVMe controller on a socket" },
	{ "bind", cli_bind, "take an NVMe device from the kernel's driver" },
	{ "unbind", cli_unbind, "give it back" },
	{ "hugepages", cli_hugepages, "show and reserve huge pages" },
	{ "fio", cli_fio, "run fio with vroom in the place of a job's ioengine=" },
};

static int usage(FILE *to)
{
	fprintf(to, "Usage: vroom COMMAND [ARGUMENTS]\n"
		    "A userspace NVMe driver, its emulated controller and its fio engine.\n\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
	fprintf(to,
		"\n`vroom COMMAND --help` explains a command; addresses are a file, a vfio-user\n"
		"socket, emu-mem or emu-null, with options behind commas (/tmp/disk,lba=4096), a "
		"PCI\n"
		"function (0000:04:00.0) or its name (/dev/nvme0n1).\n");
	return to == stderr;
}

int cli_fail(void)
{
	fprintf(stderr, "vroom: %s\n", vroom_error());
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return usage(stderr);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return usage(stdout);
	if (!strcmp(argv[1], "--version")) {
		printf("vroom %s\n", VROOM_VERSION);
		return 0;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		char name[32];

		if (strcmp(argv[1], commands[i].name))
			continue;
		snprintf(name, sizeof(name), "vroom %s", argv[1]);
		argv[1] = name; /* what argp calls the program */
		return commands[i].run(argc - 1, argv + 1);
	}
	fprintf(stderr, "vroom: '%s' is not a command; see vroom --help\n", argv[1]);
	return 2;
}
