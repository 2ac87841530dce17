/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/function.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
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
	char path[PATH_MAX], text[64];

	memset(out, 0, sizeof(*out));
	snprintf(out->bdf, sizeof(out->bdf), "%s", bdf);
	vroom_device_attribute(bdf, "class", text, sizeof(text));
	if (!text[0])
		return vroom_fail(ENODEV, "%s: no such PCI function; see vroom list", bdf);
	if (strtoul(text, NULL, 16) != VROOM_PCI_CLASS_NVME)
		return vroom_fail(ENODEV, "%s: is not an NVMe controller (PCI class %s)", bdf,
				  text);
	vroom_device_link(bdf, "driver", out->driver, sizeof(out->driver));
	vroom_device_link(bdf, "iommu_group", text, sizeof(text));
	out->iommu_group = text[0] ? atoi(text) : -1;
	if (text[0]) {
		snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%s/type", text);
		vroom_read_line(path, text, sizeof(text));
		out->iommu_translates = strcmp(text, "identity") != 0;
	}
	vroom_device_attribute(bdf, "numa_node", text, sizeof(text));
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

	vroom_device_link(bdf, "driver", driver, sizeof(driver));
	for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
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
	char path[PATH_MAX];

	text[0] = '\0';
	snprintf(path, sizeof(path), "/sys/kernel/iommu_groups/%d/devices", d->iommu_group);
	return vroom_for_entries(path, on_group_member, &g)
		       ? vroom_fail(EBUSY,
				    "%s: IOMMU group %d goes to vfio as a whole, but %s; take that "
				    "one from its driver, or move the drive to another slot",
				    d->bdf, d->iommu_group, g.blocker)
		       : 0;
}

int vroom_device_check_group(const struct vroom_device *d)
{
	char rest[512];
	int ret = vroom_device_group_rest(d, rest, sizeof(rest));

	return ret || !rest[0] ? ret
			       : vroom_fail(EBUSY,
					    "%s: IOMMU group %d goes to vfio as a whole; bind the "
					    "rest of it first: vroom bind %s",
					    d->bdf, d->iommu_group, rest);
}

static pthread_mutex_t pci_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned pci_users;

struct pci_device *vroom_device_get(const char *bdf)
{
	unsigned domain, bus, device, function;
	struct pci_device *dev = NULL;
	int err;

	errno = EINVAL;
	if (sscanf(bdf, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
		return NULL;
	pthread_mutex_lock(&pci_lock);
	err = pci_users ? 0 : pci_system_init();
	if (!err) {
		dev = pci_device_find_by_slot(domain, bus, device, function);
		err = dev ? pci_device_probe(dev) : ENODEV;
		if (!err)
			pci_users++;
		else if (!pci_users)
			pci_system_cleanup();
	}
	pthread_mutex_unlock(&pci_lock);
	errno = err;
	return err ? NULL : dev;
}

void vroom_device_put(void)
{
	pthread_mutex_lock(&pci_lock);
	if (pci_users && --pci_users == 0)
		pci_system_cleanup();
	pthread_mutex_unlock(&pci_lock);
}
