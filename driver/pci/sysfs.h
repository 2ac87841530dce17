/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading what the kernel shows as files: sysfs and /proc. */
#ifndef VROOM_SYSFS_H
#define VROOM_SYSFS_H

#include <stdbool.h>
#include <stddef.h>

#define VROOM_PCI_DEVICES "/sys/bus/pci/devices"

/* The first line of the file at PATH without its newline, or "". */
void vroom_read_line(const char *path, char *out, size_t size);

/* The first line of a file below the directory of function BDF, or "". */
void vroom_device_attribute(const char *bdf, const char *name, char *out, size_t size);

/* The last part of what a symbolic link of function BDF points to, or "". */
void vroom_device_link(const char *bdf, const char *link, char *out, size_t size);

/* Calls EACH for the entries of a directory until it returns true, which is then returned. */
bool vroom_for_entries(const char *path, bool (*each)(const char *name, void *arg), void *arg);

#endif
