/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/sysfs.h"

#include <dirent.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void vroom_read_line(const char *path, char *out, size_t size)
{
	FILE *f = fopen(path, "re");

	out[0] = '\0';
	if (!f)
		return;
	if (fgets(out, (int)size, f))
		out[strcspn(out, "\n")] = '\0';
	fclose(f);
}

void vroom_device_attribute(const char *bdf, const char *name, char *out, size_t size)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), VROOM_PCI_DEVICES "/%s/%s", bdf, name);
	vroom_read_line(path, out, size);
}

void vroom_device_link(const char *bdf, const char *link, char *out, size_t size)
{
	char path[PATH_MAX], target[PATH_MAX];
	ssize_t n;

	snprintf(path, sizeof(path), VROOM_PCI_DEVICES "/%s/%s", bdf, link);
	n = readlink(path, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = '\0';
	snprintf(out, size, "%s", n > 0 ? basename(target) : "");
}

bool vroom_for_entries(const char *path, bool (*each)(const char *name, void *arg), void *arg)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	bool stop = false;

	if (!dir)
		return false;
	while (!stop && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			stop = each(entry->d_name, arg);
	closedir(dir);
	return stop;
}
