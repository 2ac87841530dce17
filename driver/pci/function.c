/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/function.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "pci/sysfs.h"

bool vroom_device_parse(const char *text, char bdf[VROOM_BDF_MAX])
{
	unsigned domain = 0, bus, device, function;
	char end;

	if (sscanf(text, "%8x%*1[.:]%2x%*1[.:]%2x.%1x%c", &domain, &bus, &device, &function,
		   &end) != 4) {
		domain = 0;
		if (sscanf(text, "%2x:%2x.%1x%c", &bus, &device, &function, &end) != 3)
			return false;
	}
	snprintf(bdf, VROOM_BDF_MAX, "%04x:%02x:%02x.%x", domain, bus & 0xff, device & 0xff,
		 function & 0xf);
	return true;
}

int vroom_device_look(const char *bdf, struct vroom_device *out)
{
	char text[64];

	memset(out, 0, sizeof(*out));
	snprintf(out->bdf, sizeof(out->bdf), "%s", bdf);
	vroom_read_line(text, sizeof(text), VROOM_PCI_DEVICES "/%s/class", bdf);
	if (!text[0])
		return vroom_fail_on(bdf, ENODEV, "no such PCI function; see vroom list");
	if (strtoul(text, NULL, 16) != VROOM_PCI_CLASS_NVME)
		return vroom_fail_on(bdf, ENODEV, "is not an NVMe controller (PCI class %s)", text);
	vroom_read_link(out->driver, sizeof(out->driver), VROOM_PCI_DEVICES "/%s/driver", bdf);
	vroom_read_link(text, sizeof(text), VROOM_PCI_DEVICES "/%s/iommu_group", bdf);
	out->iommu_group = text[0] ? atoi(text) : -1;
	vroom_read_line(text, sizeof(text), VROOM_IOMMU_GROUPS "/%d/type", out->iommu_group);
	out->iommu_translates = out->iommu_group >= 0 && strcmp(text, "identity") != 0;
	vroom_read_line(text, sizeof(text), VROOM_PCI_DEVICES "/%s/numa_node", bdf);
	out->numa_node = text[0] ? atoi(text) : -1;
	return 0;
}

struct group {
	const struct vroom_device *d;
	char blocker[128];
	char *rest; /* addresses, with blanks in between */
	size_t size;
};

static bool on_group_member(const char *bdf, void *arg)
{
	static const char *const harmless[] = { "", "vfio-pci", "pcieport", "pci-stub" };
	struct group *g = arg;
	size_t length = strlen(g->rest);
	char driver[64];

	vroom_read_link(driver, sizeof(driver), VROOM_PCI_DEVICES "/%s/driver", bdf);
	for (size_t i = 0; i < VROOM_LENGTH(harmless); i++)
		if (!strcmp(driver, harmless[i]) || !strcmp(bdf, g->d->bdf))
			return false;
	if (!strcmp(driver, "nvme")) {
		snprintf(g->rest + length, g->size - length, "%s%s", length ? " " : "", bdf);
		return false;
	}
	snprintf(g->blocker, sizeof(g->blocker), "%.32s is on %.63s", bdf, driver);
	return true;
}

int vroom_device_group_rest(const struct vroom_device *d, char *text, size_t size)
{
	struct group g = { .d = d, .rest = text, .size = size };

	text[0] = '\0';
	return vroom_for_entries(on_group_member, &g, VROOM_IOMMU_GROUPS "/%d/devices",
				 d->iommu_group)
		       ? vroom_fail_on(d->bdf, EBUSY,
				       "IOMMU group %d goes to vfio as a whole, but %s; take that "
				       "one from its driver, or move the drive to another slot",
				       d->iommu_group, g.blocker)
		       : 0;
}
