/* SPDX-License-Identifier: BSD-3-Clause */
/* Who uses a drive through the kernel. */
#ifndef VROOM_HOLDER_H
#define VROOM_HOLDER_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Who uses the function through the kernel's nvme driver: writes "mounted on /mnt", "held
 * open by fio (pid 12)", ... to TEXT. False, and "" in TEXT, when nobody does.
 */
bool vroom_device_holder(const char *bdf, char *text, size_t size);

#endif
