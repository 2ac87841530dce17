/* SPDX-License-Identifier: BSD-3-Clause */
/* The NVMe functions of this machine: where they are, what they are called, who uses them. */
#ifndef VROOM_PCI_H
#define VROOM_PCI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* Reading what the kernel shows as files: sysfs and /proc. Paths are formats of printf(). */
#define VROOM_PCI_DEVICES  "/sys/bus/pci/devices"
#define VROOM_IOMMU_GROUPS "/sys/kernel/iommu_groups"

/* The first line of a file without its newline, or "". */
void vroom_read_line(char *out, size_t size, const char *path, ...)
	__attribute__((format(printf, 3, 4)));

/* The last part of what a symbolic link points to, or "". */
void vroom_read_link(char *out, size_t size, const char *path, ...)
	__attribute__((format(printf, 3, 4)));

/* Calls EACH for the entries of a directory until it returns true, which is then returned. */
bool vroom_for_entries(bool (*each)(const char *name, void *arg), void *arg, const char *path, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * An NVMe function on a PCI bus of this machine: where it is, which driver has it, and what stands
 * behind it.
 */

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

/* What functions are called: by the kernel, and by `vroom bind` that took them from it. */

/* What `vroom bind` wrote down of a device: its driver and its names. Gone after a reboot. */
#define VROOM_RECORDS "/run/vroom"

#define VROOM_NAMES_MAX 256

/*
 * The function behind NAME, a PCI address or a kernel name like /dev/nvme0n1, also one that
 * the kernel has no more because of `vroom bind`. *NSID: the namespace that the name is of,
 * or 0. Returns 0; -ENODEV or -EINVAL, with vroom_error() set.
 */
int vroom_device_resolve(const char *name, char bdf[VROOM_BDF_MAX], uint32_t *nsid);

/* The kernel's names of the function's namespaces and controller, each with its NSID or 0. */
struct vroom_device_name {
	char name[64];
	uint32_t nsid;
};
int vroom_device_names(const char *bdf, struct vroom_device_name *names, int max);

/* The same as it was when `vroom bind` took the function: it goes on to be called so. */
int vroom_device_recorded_names(const char *bdf, struct vroom_device_name *names, int max);

/* The value of the NTH line "KEY value" of the function's record; false: there is none. */
bool vroom_device_record(const char *bdf, const char *key, int nth, char *out, size_t size);

/* Who uses a drive through the kernel. */

/*
 * Who uses the function through the kernel's nvme driver: writes "mounted on /mnt", "held
 * open by fio (pid 12)", ... to TEXT. False, and "" in TEXT, when nobody does.
 */
bool vroom_device_holder(const char *bdf, char *text, size_t size);

/* One owner a function: a lock file names the process that drives it. */

/*
 * Makes this process, and those that it forks, the owner of the function: *FD holds the lock
 * until it is closed everywhere. -EBUSY names the owner's pid.
 */
int vroom_device_lock(const char *bdf, int *fd);

/* 0 when nobody owns the function; -EBUSY, and vroom_error() names the pid. */
int vroom_device_owner(const char *bdf);

#endif
