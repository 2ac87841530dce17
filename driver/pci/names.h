/* SPDX-License-Identifier: BSD-3-Clause */
/* What functions are called: by the kernel, and by `vroom bind` that took them from it. */
#ifndef VROOM_NAMES_H
#define VROOM_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pci/function.h"

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

#endif
