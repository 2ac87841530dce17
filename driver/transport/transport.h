/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the core asks of a way to reach a controller. A transport opens the function behind
 * an address, reads and writes its BAR0, hands out doorbells and makes memory reachable
 * for it. It never builds a command; the core never asks which transport it has.
 */
#ifndef VROOM_TRANSPORT_H
#define VROOM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/address.h"
#include "vroom.h"

struct vroom_transport;

/* A stretch of memory shared with forked processes and, once mapped, with the controller. */
struct vroom_dma_region {
	void *base;
	size_t bytes;		/* a multiple of the granule */
	int fd;			/* what BASE maps from offset 0 */
	unsigned granule_shift; /* log2 of the unit that is contiguous for the device */
	uint64_t *iova;		/* where the controller sees each granule; the region's */
	bool shared;		/* another controller's memory: nothing is allocated from it */
};

/* All return 0 or a negative errno and leave a line in vroom_error(). */
struct vroom_transport_ops {
	const char *name;
	/* Opens ADDR. *OUT embeds struct vroom_transport as its first member. */
	int (*open)(const struct vroom_address *addr, const struct vroom_opts *opts,
		    struct vroom_transport **out);
	/* OWNER: this process opened it and nobody will use it any more. */
	void (*close)(struct vroom_transport *t, bool owner);
	/*
	 * BAR0 registers, 4 or 8 bytes wide. Callable from any process that inherited T.
	 * -ETIMEDOUT when a read takes longer than TIMEOUT_MS (0: the transport's own limit).
	 */
	int (*read)(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
		    unsigned timeout_ms);
	int (*write)(struct vroom_transport *t, uint32_t offset, const void *value, unsigned width);
	/* Makes REGION reachable, at IOVA on if the transport may choose; fills region->iova. */
	int (*dma_map)(struct vroom_transport *t, struct vroom_dma_region *region, uint64_t iova);
	/* The controller has been disabled: from now on it may reach memory. NULL: always may. */
	int (*allow_dma)(struct vroom_transport *t);
	/* Function-level reset: for a controller that cannot be disabled. NULL: there is none. */
	int (*reset)(struct vroom_transport *t);
	/* MSI-X vector VECTOR signals eventfd FD from now on; -1: nothing. NULL: no interrupts. */
	int (*set_irq)(struct vroom_transport *t, unsigned vector, int fd);
	/* Tells a sleeping controller that a mapped doorbell was written. NULL: none sleeps. */
	void (*wake)(struct vroom_transport *t);
	/* 0 while the controller's side is there; cheap enough for ten times a second. */
	int (*alive)(struct vroom_transport *t);
};

struct vroom_transport {
	const struct vroom_transport_ops *ops;
	volatile uint32_t *doorbells; /* BAR0 + 1000h mapped, or NULL: doorbells are messages */
	size_t doorbell_bytes;
	const volatile uint32_t *sleeping; /* the controller's sleep word, or NULL */
	unsigned vectors;		   /* MSI-X vectors, when interrupts were asked for */
	int numa_node;			   /* where the device is, or -1 */
	bool pins;			   /* memory that is mapped is taken at once, and counted */
	/*
	 * Set: addresses are physical. DMA memory is then huge pages in files of this name, which
	 * outlive a killed process until the next owner has disabled the controller.
	 */
	const char *pool;
};

extern const struct vroom_transport_ops vroom_transport_vfio_user;
extern const struct vroom_transport_ops vroom_transport_vfio;
extern const struct vroom_transport_ops vroom_transport_pci;

#endif
