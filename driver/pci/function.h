/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An NVMe function on a PCI bus of this machine: where it is, which driver has it, and what stands
 * behind it.
 */
#ifndef VROOM_FUNCTION_H
#define VROOM_FUNCTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "0000:04:00.0"; behind Intel's VMD "10000:e1:00.0". A domain has 32 bits at most. */
#define VROOM_BDF_MAX	     24
#define VROOM_PCI_CLASS_NVME 0x010802

struct vroom_device {
	char bdf[VROOM_BDF_MAX];
	char driver[64];       /* "" when it has none */
	int iommu_group;       /* -1: no IOMMU for it */
	bool iommu_translates; /* physical addresses mean nothing to it */
	int numa_node;	       /* -1: one node, or not said */
};

/* Is TEXT a PCI address: 0000:04:00.0, 0000.04.00.0, 04:00.0? BDF gets the first form. */
bool vroom_device_parse(const char *text, char bdf[VROOM_BDF_MAX]);

/* Describes the function. -ENODEV: there is none, or it is no NVMe controller. */
int vroom_device_look(const char *bdf, struct vroom_device *out);

/*
 * vfio hands out IOMMU groups as a whole. What of D's group is still to be bound: TEXT gets the
 * addresses, with blanks in between, of other functions on the kernel's nvme driver. -EBUSY when
 * one is on a driver that vroom does not move, which vroom_error() names.
 */
int vroom_device_group_rest(const struct vroom_device *d, char *text, size_t size);

#endif
