/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "pci/names.h"
#include "pci/sysfs.h"

bool cli_fact(const char *bdf, const char *key, char *out, size_t size)
{
	struct vroom_device_name names[VROOM_NAMES_MAX];
	int count = vroom_device_names(bdf, names, VROOM_NAMES_MAX);
	unsigned long long sectors = 0;

	if (!count)
		return vroom_device_record(bdf, key, 0, out, size);
	if (strcmp(key, "bytes")) {
		vroom_read_line(out, size, "/sys/class/nvme/%s/%s", names[0].name, key);
		for (size_t end = strlen(out); end && out[end - 1] == ' '; end--)
			out[end - 1] = '\0';
		return out[0];
	}
	for (int i = 0; i < count; i++) {
		vroom_read_line(out, size, "/sys/class/block/%s/size", names[i].name);
		sectors += strtoull(out, NULL, 10);
	}
	snprintf(out, size, "%llu", sectors * 512); /* whatever the size of the LBAs */
	return true;
}
