/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transport pci: a function without a driver (or on uio_pci_generic) and without an IOMMU in
 * between. Addresses are physical ones, of hugetlbfs pages, which the kernel neither moves nor
 * swaps. The pages have names (core/dma_pool.c): after a kill the controller goes on writing to
 * them, and nobody else gets them before the next owner has disabled the controller.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/pci_regs.h>
#include <pciaccess.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mmio.h"
#include "pci/function.h"
#include "pci/owner.h"
#include "pci/sysfs.h"
#include "transport/transport.h"
#include "vroom_nvme.h"

struct pci {
	struct vroom_transport base;
	struct vroom_device device;
	const char *name; /* the address as written */
	struct pci_device *dev;
	uint16_t found;	  /* the command register, without bus mastering */
	uint16_t command; /* what it is while the device is ours; 0: never written */
	bool enabled;	  /* by us */
	volatile char *bar0;
	size_t bar0_bytes;
	int lock_fd;
	char pool[VROOM_BDF_MAX + 8];
};

static int pci_read(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
		    unsigned timeout_ms)
{
	(void)timeout_ms;
	vroom_mmio_read(((const struct pci *)t)->bar0 + offset, value, width);
	return 0;
}

static int pci_write(struct vroom_transport *t, uint32_t offset, const void *value, unsigned width)
{
	vroom_mmio_write(((const struct pci *)t)->bar0 + offset, value, width);
	return 0;
}

/* Physical addresses, from /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst). */
static int pci_dma_map(struct vroom_transport *t, struct vroom_dma_map *m)
{
	const struct pci *p = (const struct pci *)t;
	const uint64_t frame = (1ull << 55) - 1, page = (uint64_t)sysconf(_SC_PAGESIZE);
	int ret = 0, fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return vroom_fail_on(p->name, errno, "cannot open /proc/self/pagemap: %s",
				     strerror(errno));
	for (size_t i = 0; i < m->bytes >> m->page_shift && !ret; i++) {
		uintptr_t va = (uintptr_t)m->va + (i << m->page_shift);
		uint64_t entry;

		/* Bit 63: present; bits 0-54: the frame, zero without CAP_SYS_ADMIN. */
		if (pread(fd, &entry, sizeof(entry), (off_t)(va / page * sizeof(entry))) !=
			    sizeof(entry) ||
		    !(entry >> 63) || !(entry & frame))
			ret = vroom_fail_on(p->name, EPERM,
					    "physical addresses are shown to root only; run as "
					    "root, or use an IOMMU (vfio-pci)");
		else
			m->page_iova[i] = (entry & frame) * page;
	}
	close(fd);
	m->iova = m->page_iova[0];
	return ret;
}

/* The controller has been disabled: from here on it may use memory that we tell it of. */
static int pci_allow_dma(struct vroom_transport *t)
{
	struct pci *p = (struct pci *)t;
	int err = pci_device_cfg_write_u16(p->dev, p->command | PCI_COMMAND_MASTER, PCI_COMMAND);

	return err ? vroom_fail_on(p->name, err, "cannot enable bus mastering: %s", strerror(err))
		   : 0;
}

/*
 * A function that is not bus master makes no requests, whatever state it is in. The answer to the
 * read comes after all that it wrote before (PCIe, transaction ordering).
 */
static int pci_cut_off(struct vroom_transport *t)
{
	const struct pci *p = (const struct pci *)t;
	uint16_t now = UINT16_MAX;
	int err = pci_device_cfg_write_u16(p->dev, p->command, PCI_COMMAND);

	if (!err)
		err = pci_device_cfg_read_u16(p->dev, &now, PCI_COMMAND);
	return err || now & PCI_COMMAND_MASTER
		       ? vroom_fail_on(p->name, EIO, "cannot disable bus mastering")
		       : 0;
}

static int write_attribute(const struct pci *p, const char *name, const char *value)
{
	char path[128];
	int fd, ret = 0;

	snprintf(path, sizeof(path), VROOM_PCI_DEVICES "/%s/%s", p->device.bdf, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		ret = -errno;
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Function-level reset, by the kernel, which saves and restores the configuration. */
static int pci_reset(struct vroom_transport *t)
{
	const struct pci *p = (const struct pci *)t;
	int ret = write_attribute(p, "reset", "1");

	return ret ? vroom_fail_on(p->name, -ret, "the function cannot be reset: %s",
				   strerror(-ret))
		   : 0;
}

static int pci_alive(struct vroom_transport *t)
{
	(void)t; /* a removed device reads all ones, which the core looks for */
	return 0;
}

static void pci_close(struct vroom_transport *t, bool owner)
{
	struct pci *p = (struct pci *)t;

	/* Whatever state the controller is in, it reaches no memory from here on. */
	if (owner && p->command)
		pci_device_cfg_write_u16(p->dev, p->found, PCI_COMMAND);
	if (owner && p->enabled)
		write_attribute(p, "enable", "0");
	if (p->bar0)
		pci_device_unmap_range(p->dev, (void *)(uintptr_t)p->bar0, p->bar0_bytes);
	if (p->lock_fd >= 0)
		close(p->lock_fd);
	free(p);
}

static void init_libpciaccess(void)
{
	pci_system_init(); /* where this fails, no function is found */
}

/* libpciaccess' handle of the function, NULL: there is none. */
static struct pci_device *find_function(const char *bdf)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	unsigned domain, bus, device, function;
	struct pci_device *dev;

	pthread_once(&once, init_libpciaccess);
	if (sscanf(bdf, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
		return NULL;
	dev = pci_device_find_by_slot(domain, bus, device, function);
	return dev && pci_device_probe(dev) == 0 ? dev : NULL;
}

static int map_bar0(struct pci *p)
{
	const struct pci_mem_region *bar;
	char enabled[8];
	void *map = NULL;
	int err;

	p->dev = find_function(p->device.bdf);
	if (!p->dev)
		return vroom_fail_on(p->name, ENODEV, "libpciaccess finds no such function");
	bar = &p->dev->regions[0];
	if (bar->is_IO || bar->size < NVME_REG_DOORBELLS + 4096)
		return vroom_fail_on(p->name, ENODEV, "BAR0 is no NVMe register file (%llu bytes)",
				     (unsigned long long)bar->size);
	vroom_read_line(enabled, sizeof(enabled), VROOM_PCI_DEVICES "/%s/enable", p->device.bdf);
	if (!strcmp(enabled, "0")) {
		pci_device_enable(p->dev); /* power state D0, memory decoding */
		p->enabled = true;
	}
	err = pci_device_cfg_read_u16(p->dev, &p->found, PCI_COMMAND);
	if (!err && p->found == UINT16_MAX)
		return vroom_fail_on(p->name, ENODEV,
				     "configuration space reads all ones: the device is gone");
	/* Still bus master after a kill, until the core has disabled it. Nobody serves its INTx. */
	p->command = p->found | PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_DISABLE;
	if (!err)
		err = pci_device_cfg_write_u16(p->dev, p->command, PCI_COMMAND);
	p->found &= (uint16_t)~PCI_COMMAND_MASTER;
	p->command &= (uint16_t)~PCI_COMMAND_MASTER;
	if (!err)
		err = pci_device_map_range(p->dev, bar->base_addr, bar->size,
					   PCI_DEV_MAP_FLAG_WRITABLE, &map);
	if (err)
		return vroom_fail_on(p->name, err,
				     "cannot map BAR0: %s; it takes root and a kernel that is not "
				     "locked down (or vfio-pci, with an IOMMU)",
				     strerror(err));
	p->bar0 = map;
	p->bar0_bytes = bar->size;
	p->base.doorbells = (volatile uint32_t *)(p->bar0 + NVME_REG_DOORBELLS);
	p->base.doorbell_bytes = bar->size - NVME_REG_DOORBELLS;
	return 0;
}

static int pci_open(const struct vroom_address *addr, const struct vroom_transport_opts *opts,
		    struct vroom_transport **out)
{
	struct pci *p = calloc(1, sizeof(*p));
	int ret;

	if (!p)
		return vroom_fail_on(addr->text, ENOMEM, "out of memory");
	p->base.ops = &vroom_transport_pci;
	p->name = addr->text;
	p->lock_fd = -1;
	ret = vroom_device_look(addr->path, &p->device);
	if (!ret && opts->interrupts)
		ret = vroom_fail_on(p->name, ENOTSUP,
				    "interrupts take vfio-pci and an IOMMU; use wait=poll");
	if (!ret && p->device.iommu_translates)
		ret = vroom_fail_on(p->name, ENOTSUP,
				    "an IOMMU translates the device's addresses; give it to "
				    "vfio-pci: vroom bind %s",
				    p->device.bdf);
	if (!ret && geteuid() != 0)
		ret = vroom_fail_on(p->name, EPERM,
				    "without an IOMMU only root may drive a device; run as root, "
				    "or give the device to vfio-pci");
	if (!ret)
		ret = vroom_device_lock(p->device.bdf, &p->lock_fd);
	if (!ret)
		ret = map_bar0(p);
	if (ret) {
		pci_close(&p->base, true);
		return ret;
	}
	snprintf(p->pool, sizeof(p->pool), "vroom-%s", p->device.bdf);
	p->base.pool = p->pool;
	p->base.on_bus = true;
	p->base.numa_node = p->device.numa_node;
	*out = &p->base;
	return 0;
}

const struct vroom_transport_ops vroom_transport_pci = {
	.name = "pci",
	.open = pci_open,
	.close = pci_close,
	.read = pci_read,
	.write = pci_write,
	.dma_map = pci_dma_map,
	.allow_dma = pci_allow_dma,
	.cut_off = pci_cut_off,
	.reset = pci_reset,
	.alive = pci_alive,
};
