/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * `vroom fio`: runs fio on a job that names its engine, with vroom in that engine's place.
 *
 * fio lets a job's own ioengine= win over the command line without a word. So the job is
 * read here, its ioengine= lines are left out, and fio gets the rest from memory; the
 * user's file is not touched. Engines that do no storage I/O keep their lines.
 */
#include <ctype.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"

#define MAX_INCLUDES 16

#ifndef VROOM_LIBDIR
#define VROOM_LIBDIR "/usr/local/lib"
#endif

static const char *const kept_engines[] = { "cpuio",	  "exec", "filecreate", "filestat",
					    "filedelete", "net",  "netsplice" };
/* fio's options that take no argument: what follows them is not their value. */
static const char *const flags[] = { "--minimal",  "--append-terse",	"--help",
				     "--version",  "--cpuclock-test",	"--bandwidth-log",
				     "--showcmd",  "--readonly",	"--parse-only",
				     "--thread",   "--group_reporting", "--time_based",
				     "--stonewall" };

static bool listed(const char *word, size_t len, const char *const *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strlen(list[i]) == len && !strncmp(list[i], word, len))
			return true;
	return false;
}

#define LISTED(word, len, list) listed(word, len, list, sizeof(list) / sizeof((list)[0]))

/* The engine, beside this program or where it was installed. */
static int find_engine(char *path, size_t size)
{
	char here[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", here, sizeof(here) - 1);

	if (n > 0) {
		here[n] = '\0';
		snprintf(path, size, "%s/vroom.so", dirname(here));
		if (access(path, R_OK) == 0)
			return 0;
	}
	snprintf(path, size, "%s/vroom.so", VROOM_LIBDIR);
	if (access(path, R_OK) == 0)
		return 0;
	fprintf(stderr,
		"vroom: the fio engine vroom.so is neither beside this program nor in %s; "
		"build it with make\n",
		VROOM_LIBDIR);
	return -1;
}

/* The value of an "ioengine = x" line, or NULL when LINE is another one. */
static const char *engine_of(const char *line, size_t *len)
{
	while (isspace((unsigned char)*line))
		line++;
	if (strncmp(line, "ioengine", 8))
		return NULL;
	line += 8;
	while (isspace((unsigned char)*line))
		line++;
	if (*line++ != '=')
		return NULL;
	while (isspace((unsigned char)*line))
		line++;
	*len = strcspn(line, " \t\r\n;#");
	return line;
}

static int copy_job(FILE *in, const char *name, FILE *out, int depth);

/* "include FILE", relative to the directory that fio runs in, as fio has it. */
static int copy_include(const char *line, const char *name, FILE *out, int depth)
{
	char path[PATH_MAX];
	FILE *in;
	int ret;

	if (sscanf(line, " include %4095s", path) != 1)
		return 1;
	if (depth == MAX_INCLUDES) {
		fprintf(stderr, "vroom: %s: includes are nested more than %d deep\n", name,
			MAX_INCLUDES);
		return -1;
	}
	in = fopen(path, "r");
	if (!in && path[0] != '/') { /* or to the directory of the including file */
		char beside[2 * PATH_MAX], *copy = strdup(name);

		snprintf(beside, sizeof(beside), "%s/%s", copy ? dirname(copy) : ".", path);
		free(copy);
		in = fopen(beside, "r");
	}
	if (!in) {
		fprintf(stderr, "vroom: %s: cannot include %s: %s\n", name, path, strerror(errno));
		return -1;
	}
	ret = copy_job(in, path, out, depth + 1);
	fclose(in);
	return ret;
}

static int copy_job(FILE *in, const char *name, FILE *out, int depth)
{
	char *line = NULL;
	size_t capacity = 0, len;
	int ret = 0;

	while (!ret && getline(&line, &capacity, in) >= 0) {
		const char *engine = engine_of(line, &len);

		if (engine && !LISTED(engine, len, kept_engines)) {
			fprintf(stderr, "vroom: %s: ioengine=%.*s: running on vroom instead\n",
				name, (int)len, engine);
			continue;
		}
		if (strncmp(line + strspn(line, " \t"), "include ", 8) == 0) {
			ret = copy_include(line, name, out, depth);
			if (ret <= 0)
				continue;
			ret = 0;
		}
		fputs(line, out);
	}
	free(line);
	return ret;
}

/* The job file PATH ("-": standard input) without its engines, as a path that fio can open. */
static char *rewrite_job(const char *path)
{
	FILE *in = strcmp(path, "-") ? fopen(path, "r") : stdin, *out;
	char *name = NULL;
	int fd, ret;

	if (!in) {
		fprintf(stderr, "vroom: %s: %s\n", path, strerror(errno));
		return NULL;
	}
	fd = memfd_create("job", 0); /* inherited by fio */
	out = fd >= 0 ? fdopen(dup(fd), "w") : NULL;
	if (!out) {
		fprintf(stderr, "vroom: %s: %s\n", path, strerror(errno));
		return NULL;
	}
	ret = copy_job(in, path, out, 0);
	fclose(out);
	if (in != stdin)
		fclose(in);
	if (ret || asprintf(&name, "/proc/self/fd/%d", fd) < 0)
		return NULL;
	return name;
}

static bool is_job_file(const char *arg, const char *before)
{
	struct stat st;

	if (arg[0] == '-')
		return !arg[1];
	/* The value of an option that stands apart from it is no job file. */
	if (before && !strncmp(before, "--", 2) && !strchr(before, '=') &&
	    !LISTED(before, strlen(before), flags))
		return false;
	return stat(arg, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* What fio is to be called with; false when a job file cannot be read. */
static bool build_arguments(int argc, char **argv, char **args)
{
	int n = 0;

	while (args[n])
		n++;
	for (int i = 1; i < argc; i++) {
		bool engine = !strncmp(argv[i], "--ioengine=", 11);
		bool apart = !strcmp(argv[i], "--ioengine") && i + 1 < argc;
		const char *name = apart ? argv[i + 1] : engine ? argv[i] + 11 : "";

		if ((engine || apart) && !LISTED(name, strlen(name), kept_engines)) {
			i += apart;
			continue;
		}
		args[n] = argv[i];
		if (is_job_file(argv[i], i > 1 ? argv[i - 1] : NULL))
			args[n] = rewrite_job(argv[i]);
		if (!args[n++])
			return false;
	}
	return true;
}

int cli_fio(int argc, char **argv)
{
	char engine[PATH_MAX], option[PATH_MAX + 32], *fio = getenv("FIO"), **args;

	if (argc < 2 || !strcmp(argv[1], "--help")) {
		fprintf(argc < 2 ? stderr : stdout,
			"Usage: vroom fio [fio arguments] job.fio\n"
			"Runs fio (or $FIO) with vroom in the place of every storage engine that "
			"the\n"
			"job, or the arguments, name. The job file is not changed.\n");
		return argc < 2;
	}
	if (find_engine(engine, sizeof(engine)))
		return 1;
	args = calloc((size_t)argc + 3, sizeof(*args));
	if (!args)
		return 1;
	snprintf(option, sizeof(option), "--ioengine=external:%s", engine);
	args[0] = fio ? fio : "fio";
	args[1] = option;
	if (build_arguments(argc, argv, args)) {
		execvp(args[0], args);
		fprintf(stderr, "vroom: cannot run %s: %s; install fio, or set FIO=\n", args[0],
			strerror(errno));
	}
	free(args);
	return 1;
}
