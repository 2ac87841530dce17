/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An IOMMU group and its address space, as the kernel's vfio hands them out: as a whole, to one
 * program. A process opens a group once, for all functions of it that it drives; the processes
 * that it forks share it. What one function of a group reaches, all of it reach.
 */
#ifndef VROOM_VFIO_GROUP_H
#define VROOM_VFIO_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "pci/function.h"
#include "transport/transport.h"

struct vroom_vfio_group;

/* A function that is driven here. */
struct vroom_vfio_function {
	struct vroom_vfio_group *group; /* NULL: not open */
	unsigned member;		/* its number among the group's functions */
	int fd;				/* the device, -1: not open */
};

/*
 * Opens a function, and its group if it is the first of it here. NAME, in error lines, is the
 * address as written. F is closed again by who opened it, also when this fails. Any thread.
 */
int vroom_vfio_open(const struct vroom_device *d, const char *name, struct vroom_vfio_function *f);

/* OWNER: this process opened it, and nobody uses it any more; its memory is taken away. */
void vroom_vfio_close(struct vroom_vfio_function *f, bool owner);

/*
 * Makes memory reachable at an address that the group has free, in M. Memory that another function
 * of the group has mapped already is found there. From any process.
 */
int vroom_vfio_map(struct vroom_vfio_function *f, const char *name, struct vroom_dma_map *m);

/* Ends F's use of what is mapped at IOVA; gone with its last user in the group. */
int vroom_vfio_unmap(struct vroom_vfio_function *f, const char *name, uint64_t iova, size_t bytes);

/* Ends F's use of all memory. True: the IOMMU lets nothing through for this group any more. */
bool vroom_vfio_unmap_all(struct vroom_vfio_function *f);

#endif
