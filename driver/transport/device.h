/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An NVMe function of this machine as the system shows it: where it is, which driver has it,
 * what stands behind it, and who uses it. Reads sysfs and /proc; changes nothing but the
 * lock file that makes one process its owner.
 */
#ifndef VROOM_DEVICE_H
#define VROOM_DEVICE_H

#include <pciaccess.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VROOM_BDF_MAX 16 /* "0000:04:00.0" */
/* What `vroom bind` wrote down of a device: its driver and its names. Gone after a reboot. */
#define VROOM_RECORDS	     "/run/vroom"
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

/*
 * The function behind NAME, a PCI address or a kernel name like /dev/nvme0n1, also one that
 * the kernel has no more because of `vroom bind`. *NSID: the namespace that the name is of,
 * or 0. Returns 0; -ENODEV or -EINVAL, with vroom_error() set.
 */
int vroom_device_resolve(const char *name, char bdf[VROOM_BDF_MAX], uint32_t *nsid);

/* Describes the function. -ENODEV: there is none, or it is no NVMe controller. */
int vroom_device_look(const char *bdf, struct vroom_device *out);

/*
 * Who uses the function through the kernel's nvme driver: writes "mounted on /mnt", "held
 * open by fio (pid 12)", ... to TEXT. False, and "" in TEXT, when nobody does.
 */
bool vroom_device_holder(const char *bdf, char *text, size_t size);

/*
 * Makes this process, and those that it forks, the owner of the function: *FD holds the lock
 * until it is closed everywhere. -EBUSY names the owner's pid.
 */
int vroom_device_lock(const char *bdf, int *fd);

/* 0 when nobody owns the function; -EBUSY, and vroom_error() names the pid. */
int vroom_device_owner(const char *bdf);

/* The kernel's names of the function's namespaces and controller, each with its NSID or 0. */
struct vroom_device_name {
	char name[64];
	uint32_t nsid;
};
int vroom_device_names(const char *bdf, struct vroom_device_name *names, int max);

/* The same as it was when `vroom bind` took the function: it goes on to be called so. */
int vroom_device_recorded_names(const char *bdf, struct vroom_device_name *names, int max);

/*
 * What the kernel's driver knows of the device, or knew when `vroom bind` took it: "model",
 * "serial", "firmware_rev", "bytes" (of all namespaces). False, and "" in OUT: unknown.
 */
bool vroom_device_fact(const char *bdf, const char *key, char *out, size_t size);

/* A line "KEY value" of the function's record; false: there is none. */
bool vroom_device_record(const char *bdf, const char *key, char *out, size_t size);

/*
 * vfio hands out IOMMU groups as a whole. 0, or -EBUSY when another function of the group is
 * on a driver of the kernel, which vroom_error() names.
 */
int vroom_device_check_group(const struct vroom_device *d);

/*
 * The libpciaccess handle of a function, probed; libpciaccess stays initialised until as
 * many vroom_device_put() follow. NULL: no such function (errno says why).
 */
struct pci_device *vroom_device_get(const char *bdf);
void vroom_device_put(void);

/* Reads the first line of a file below the function's directory in sysfs, or "". */
void vroom_device_attribute(const char *bdf, const char *name, char *out, size_t size);

#endif
