/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/sysfs.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void vroom_read_line(char *out, size_t size, const char *path, ...)
{
	char real[PATH_MAX];
	va_list args;
	FILE *f;

	va_start(args, path);
	vsnprintf(real, sizeof(real), path, args);
	va_end(args);
	out[0] = '\0';
	f = fopen(real, "re");
	if (f && fgets(out, (int)size, f))
		out[strcspn(out, "\n")] = '\0';
	if (f)
		fclose(f);
}

void vroom_read_link(char *out, size_t size, const char *path, ...)
{
	char real[PATH_MAX], target[PATH_MAX];
	va_list args;
	ssize_t n;

	va_start(args, path);
	vsnprintf(real, sizeof(real), path, args);
	va_end(args);
	n = readlink(real, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = '\0';
	snprintf(out, size, "%s", basename(target));
}

bool vroom_for_entries(bool (*each)(const char *name, void *arg), void *arg, const char *path, ...)
{
	char real[PATH_MAX];
	struct dirent *entry;
	bool stop = false;
	va_list args;
	DIR *dir;

	va_start(args, path);
	vsnprintf(real, sizeof(real), path, args);
	va_end(args);
	dir = opendir(real);
	while (dir && !stop && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			stop = each(entry->d_name, arg);
	if (dir)
		closedir(dir);
	return stop;
}
