/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transport vfio: a function on vfio-pci, behind an IOMMU that lets it reach nothing but what
 * is mapped here. An ordinary user who owns the group's file, or the device's, may do it.
 * How it is opened, and where its memory goes, is the group's: vfio_group.c.
 */
#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mmio.h"
#include "base/size.h"
#include "pci/function.h"
#include "pci/owner.h"
#include "transport/transport.h"
#include "transport/vfio_group.h"
#include "vroom_nvme.h"

/* Interrupt vectors that are used at most: one a queue pair, and the admin queue's. */
#define MAX_VECTORS 1025

struct vfio {
	struct vroom_transport base;
	struct vroom_device device;
	const char *name; /* the address as written */
	int lock_fd;
	struct vroom_vfio_function function;
	char *bar0; /* NULL: not mappable, registers go through the device's file */
	size_t bar0_bytes;
	uint64_t bar0_offset; /* in the device's file */
	uint64_t config_offset;
};

static int vfio_read(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
		     unsigned timeout_ms)
{
	const struct vfio *v = (const struct vfio *)t;

	(void)timeout_ms;
	if (v->bar0)
		vroom_mmio_read(v->bar0 + offset, value, width);
	else if (pread(v->function.fd, value, width, (off_t)(v->bar0_offset + offset)) !=
		 (ssize_t)width)
		return vroom_fail(EIO, "%s: cannot read register %xh", v->name, offset);
	return 0;
}

static int vfio_write(struct vroom_transport *t, uint32_t offset, const void *value, unsigned width)
{
	const struct vfio *v = (const struct vfio *)t;

	if (v->bar0)
		vroom_mmio_write(v->bar0 + offset, value, width);
	else if (pwrite(v->function.fd, value, width, (off_t)(v->bar0_offset + offset)) !=
		 (ssize_t)width)
		return vroom_fail(EIO, "%s: cannot write register %xh", v->name, offset);
	return 0;
}

static int vfio_dma_map(struct vroom_transport *t, struct vroom_dma_map *m)
{
	struct vfio *v = (struct vfio *)t;

	return vroom_vfio_map(&v->function, v->name, m);
}

static int vfio_dma_unmap(struct vroom_transport *t, uint64_t iova, size_t bytes)
{
	struct vfio *v = (struct vfio *)t;

	return vroom_vfio_unmap(&v->function, v->name, iova, bytes);
}

/* Sets the bits SET of the command register and clears the bits CLEAR. Does it have them so now? */
static bool change_command(const struct vfio *v, uint16_t set, uint16_t clear)
{
	off_t at = (off_t)(v->config_offset + PCI_COMMAND);
	uint16_t command;

	if (pread(v->function.fd, &command, sizeof(command), at) != sizeof(command))
		return false;
	command = (uint16_t)((command | set) & ~clear);
	return pwrite(v->function.fd, &command, sizeof(command), at) == sizeof(command) &&
	       pread(v->function.fd, &command, sizeof(command), at) == sizeof(command) &&
	       (command & (set | clear)) == set;
}

/* vfio opens a device without bus mastering, and clears it again when the last user goes. */
static int vfio_allow_dma(struct vroom_transport *t)
{
	const struct vfio *v = (const struct vfio *)t;

	return change_command(v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER, 0)
		       ? 0
		       : vroom_fail(EIO, "%s: cannot enable bus mastering", v->name);
}

static int vfio_reset(struct vroom_transport *t)
{
	const struct vfio *v = (const struct vfio *)t;

	return ioctl(v->function.fd, VFIO_DEVICE_RESET)
		       ? vroom_fail(errno, "%s: the function cannot be reset: %s", v->name,
				    strerror(errno))
		       : 0;
}

/*
 * The IOMMU's word is the surest, but where another function of the group works on, its memory must
 * stay. Then the function must not be bus master: the answer to the read that says so comes after
 * all that it wrote before (PCIe, transaction ordering). Last, a reset forgets all queues.
 */
static int vfio_cut_off(struct vroom_transport *t)
{
	struct vfio *v = (struct vfio *)t;
	bool no_master = change_command(v, 0, PCI_COMMAND_MASTER);

	return vroom_vfio_unmap_all(&v->function) || no_master ? 0 : vfio_reset(t);
}

/* Connects COUNT vectors from FIRST on to the eventfds FDS; -1: to nothing. */
static int set_irqs(const struct vfio *v, unsigned first, const int *fds, unsigned count)
{
	size_t bytes = sizeof(struct vfio_irq_set) + count * sizeof(int);
	struct vfio_irq_set *set = calloc(1, bytes);
	int ret = 0;

	if (!set)
		return vroom_fail(ENOMEM, "%s: out of memory", v->name);
	*set = (struct vfio_irq_set){
		.argsz = (uint32_t)bytes,
		.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
		.index = VFIO_PCI_MSIX_IRQ_INDEX,
		.start = first,
		.count = count,
	};
	memcpy(set->data, fds, count * sizeof(int));
	if (ioctl(v->function.fd, VFIO_DEVICE_SET_IRQS, set))
		ret = vroom_fail(errno, "%s: cannot set up MSI-X interrupts: %s", v->name,
				 strerror(errno));
	free(set);
	return ret;
}

static int vfio_set_irq(struct vroom_transport *t, unsigned vector, int fd)
{
	return set_irqs((const struct vfio *)t, vector, &fd, 1);
}

static int vfio_alive(struct vroom_transport *t)
{
	(void)t; /* a removed device reads all ones, which the core looks for */
	return 0;
}

static void vfio_close(struct vroom_transport *t, bool owner)
{
	struct vfio *v = (struct vfio *)t;

	if (v->bar0)
		munmap(v->bar0, v->bar0_bytes);
	vroom_vfio_close(&v->function, owner);
	if (v->lock_fd >= 0)
		close(v->lock_fd);
	free(v);
}

static int map_bar0(struct vfio *v)
{
	struct vfio_region_info config = { .argsz = sizeof(config),
					   .index = VFIO_PCI_CONFIG_REGION_INDEX };
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };
	void *map;

	if (ioctl(v->function.fd, VFIO_DEVICE_GET_REGION_INFO, &config) ||
	    ioctl(v->function.fd, VFIO_DEVICE_GET_REGION_INFO, &bar))
		return vroom_fail(errno, "%s: cannot look at BAR0: %s", v->name, strerror(errno));
	if (bar.size < NVME_REG_DOORBELLS + 4096)
		return vroom_fail(ENODEV, "%s: BAR0 is no NVMe register file (%llu bytes)", v->name,
				  (unsigned long long)bar.size);
	v->config_offset = config.offset;
	v->bar0_offset = bar.offset;
	if (!(bar.flags & VFIO_REGION_INFO_FLAG_MMAP))
		return 0;
	map = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, v->function.fd,
		   (off_t)bar.offset);
	if (map == MAP_FAILED) /* kernels that keep the page of the MSI-X table to themselves */
		return 0;
	v->bar0 = map;
	v->bar0_bytes = bar.size;
	v->base.doorbells = (volatile uint32_t *)(void *)(v->bar0 + NVME_REG_DOORBELLS);
	v->base.doorbell_bytes = bar.size - NVME_REG_DOORBELLS;
	return 0;
}

/* MSI-X is enabled for all vectors at once; later each gets its eventfd. */
static int enable_vectors(struct vfio *v)
{
	struct vfio_irq_info info = { .argsz = sizeof(info), .index = VFIO_PCI_MSIX_IRQ_INDEX };
	int nothing[MAX_VECTORS];

	if (ioctl(v->function.fd, VFIO_DEVICE_GET_IRQ_INFO, &info) || info.count < 2)
		return vroom_fail(ENOTSUP,
				  "%s: the device has no MSI-X interrupts for its queues; "
				  "use wait=poll",
				  v->name);
	v->base.vectors = VROOM_MIN(info.count, (uint32_t)MAX_VECTORS);
	memset(nothing, 0xff, sizeof(nothing));
	return set_irqs(v, 0, nothing, v->base.vectors);
}

static int vfio_open(const struct vroom_address *addr, const struct vroom_transport_opts *opts,
		     struct vroom_transport **out)
{
	struct vfio *v = calloc(1, sizeof(*v));
	int ret;

	if (!v)
		return vroom_fail(ENOMEM, "%s: out of memory", addr->text);
	v->base.ops = &vroom_transport_vfio;
	v->name = addr->text;
	v->lock_fd = v->function.fd = -1;
	ret = vroom_device_look(addr->path, &v->device);
	if (!ret)
		ret = vroom_device_lock(v->device.bdf, &v->lock_fd);
	if (!ret)
		ret = vroom_vfio_open(&v->device, v->name, &v->function);
	if (!ret)
		ret = map_bar0(v);
	if (!ret && opts->interrupts)
		ret = enable_vectors(v);
	if (ret) {
		vfio_close(&v->base, true);
		return ret;
	}
	v->base.on_bus = v->base.pins = true;
	v->base.numa_node = v->device.numa_node;
	*out = &v->base;
	return 0;
}

const struct vroom_transport_ops vroom_transport_vfio = {
	.name = "vfio",
	.open = vfio_open,
	.close = vfio_close,
	.read = vfio_read,
	.write = vfio_write,
	.dma_map = vfio_dma_map,
	.dma_unmap = vfio_dma_unmap,
	.allow_dma = vfio_allow_dma,
	.cut_off = vfio_cut_off,
	.reset = vfio_reset,
	.set_irq = vfio_set_irq,
	.alive = vfio_alive,
};
