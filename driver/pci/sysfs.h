/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading what the kernel shows as files: sysfs and /proc. Paths are formats of printf(). */
#ifndef VROOM_SYSFS_H
#define VROOM_SYSFS_H

#include <stdbool.h>
#include <stddef.h>

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

#endif
