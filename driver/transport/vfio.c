/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transport vfio: a function on vfio-pci, behind an IOMMU that lets it reach nothing but what
 * is mapped here. An ordinary user who owns the group's file, or the device's, may do it.
 * The kernel offers two ways in: the group and its container, and (Linux 6.6) the device's
 * own character device with iommufd; the second is taken where it is there to be opened.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mmio.h"
#include "base/size.h"
#include "pci/function.h"
#include "pci/owner.h"
#include "transport/iommufd.h"
#include "transport/transport.h"
#include "vroom_nvme.h"

/* Interrupt vectors that are used at most: one a queue pair, and the admin queue's. */
#define MAX_VECTORS 1025

struct vfio {
	struct vroom_transport base;
	struct vroom_device device;
	const char *name; /* the address as written */
	int lock_fd;
	int iommu; /* container, or iommufd */
	int group; /* -1 with iommufd */
	int fd;	   /* the device */
	uint32_t ioas;
	uint64_t pinned; /* bytes */
	char *bar0;	 /* NULL: not mappable, registers go through FD */
	size_t bar0_bytes;
	uint64_t bar0_offset; /* in FD */
	uint64_t config_offset;
};

static int vfio_read(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
		     unsigned timeout_ms)
{
	const struct vfio *v = (const struct vfio *)t;

	(void)timeout_ms;
	if (v->bar0)
		vroom_mmio_read(v->bar0 + offset, value, width);
	else if (pread(v->fd, value, width, (off_t)(v->bar0_offset + offset)) != (ssize_t)width)
		return vroom_fail(EIO, "%s: cannot read register %xh", v->name, offset);
	return 0;
}

static int vfio_write(struct vroom_transport *t, uint32_t offset, const void *value, unsigned width)
{
	const struct vfio *v = (const struct vfio *)t;

	if (v->bar0)
		vroom_mmio_write(v->bar0 + offset, value, width);
	else if (pwrite(v->fd, value, width, (off_t)(v->bar0_offset + offset)) != (ssize_t)width)
		return vroom_fail(EIO, "%s: cannot write register %xh", v->name, offset);
	return 0;
}

static int map_failed(const struct vfio *v, size_t bytes)
{
	uint64_t need = (v->pinned + bytes) >> 10;
	int err = errno;
	struct rlimit limit;

	if (err == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
	    limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur >> 10 < need)
		return vroom_fail(err,
				  "%s: DMA memory of %llu KiB is over the limit for locked memory, "
				  "%llu KiB; raise it (ulimit -l %llu, or memlock in "
				  "/etc/security/limits.conf), or use a smaller iodepth or bs",
				  v->name, (unsigned long long)need,
				  (unsigned long long)limit.rlim_cur >> 10,
				  (unsigned long long)need);
	return vroom_fail(err, "%s: cannot map %zu KiB for DMA: %s", v->name, bytes >> 10,
			  strerror(err));
}

static int vfio_dma_map(struct vroom_transport *t, struct vroom_dma_map *m)
{
	struct vfio *v = (struct vfio *)t;
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)m->va,
		.iova = m->iova,
		.size = m->bytes,
	};
	struct iommu_ioas_map ioas_map = {
		.size = sizeof(ioas_map),
		.flags = IOMMU_IOAS_MAP_FIXED_IOVA | IOMMU_IOAS_MAP_READABLE |
			 IOMMU_IOAS_MAP_WRITEABLE,
		.ioas_id = v->ioas,
		.user_va = (uintptr_t)m->va,
		.length = m->bytes,
		.iova = m->iova,
	};

	if (v->group >= 0 ? ioctl(v->iommu, VFIO_IOMMU_MAP_DMA, &map)
			  : ioctl(v->iommu, IOMMU_IOAS_MAP, &ioas_map))
		return map_failed(v, m->bytes);
	v->pinned += m->bytes;
	for (size_t i = 0; i < m->bytes >> m->page_shift; i++)
		m->page_iova[i] = m->iova + (i << m->page_shift);
	return 0;
}

/* vfio opens a device without bus mastering, and clears it again when the last user goes. */
static int vfio_allow_dma(struct vroom_transport *t)
{
	const struct vfio *v = (const struct vfio *)t;
	off_t at = (off_t)(v->config_offset + PCI_COMMAND);
	uint16_t command;

	if (pread(v->fd, &command, sizeof(command), at) == sizeof(command)) {
		command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
		if (pwrite(v->fd, &command, sizeof(command), at) == sizeof(command))
			return 0;
	}
	return vroom_fail(EIO, "%s: cannot enable bus mastering", v->name);
}

static int vfio_reset(struct vroom_transport *t)
{
	const struct vfio *v = (const struct vfio *)t;

	return ioctl(v->fd, VFIO_DEVICE_RESET)
		       ? vroom_fail(errno, "%s: the function cannot be reset: %s", v->name,
				    strerror(errno))
		       : 0;
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
	if (ioctl(v->fd, VFIO_DEVICE_SET_IRQS, set))
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
	/* The last descriptor to go resets the device and takes its mappings away. */
	int fds[] = { v->fd, v->group, v->iommu, v->lock_fd };

	(void)owner;
	if (v->bar0)
		munmap(v->bar0, v->bar0_bytes);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	free(v);
}

/* Opens a file of vfio's; CHOWN says which file to give to the user. */
static int open_node(const struct vfio *v, const char *path, int *fd)
{
	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd >= 0)
		return 0;
	if (errno == EACCES || errno == EPERM)
		return vroom_fail(errno,
				  "%s: cannot open %s: %s; give it to this user: "
				  "vroom bind --user NAME %s, as root",
				  v->name, path, strerror(errno), v->device.bdf);
	if (errno == EBUSY)
		return vroom_fail(errno, "%s: another program has %s open; end it first", v->name,
				  path);
	return vroom_fail(errno, "%s: cannot open %s: %s; is the module vfio-pci loaded?", v->name,
			  path, strerror(errno));
}

static int open_group(struct vfio *v)
{
	char path[64];
	int ret;

	if (v->device.iommu_group < 0)
		return vroom_fail(ENODEV,
				  "%s: there is no IOMMU for it (enable VT-d or AMD-Vi in the "
				  "firmware, and intel_iommu=on); without one: vroom bind "
				  "--driver none %s",
				  v->name, v->device.bdf);
	snprintf(path, sizeof(path), "/dev/vfio/%d", v->device.iommu_group);
	ret = vroom_device_check_group(&v->device);
	if (!ret)
		ret = open_node(v, path, &v->group);
	if (!ret)
		ret = open_node(v, "/dev/vfio/vfio", &v->iommu);
	if (ret)
		return ret;
	if (ioctl(v->iommu, VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
	    ioctl(v->iommu, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1)
		return vroom_fail(ENOTSUP,
				  "%s: the kernel's vfio has no type 1 IOMMU; load the "
				  "module vfio_iommu_type1",
				  v->name);
	if (ioctl(v->group, VFIO_GROUP_SET_CONTAINER, &v->iommu) ||
	    ioctl(v->iommu, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
		return vroom_fail(errno, "%s: cannot use IOMMU group %d: %s", v->name,
				  v->device.iommu_group, strerror(errno));
	v->fd = ioctl(v->group, VFIO_GROUP_GET_DEVICE_FD, v->device.bdf);
	return v->fd >= 0 ? 0
			  : vroom_fail(errno, "%s: cannot open the device of group %d: %s", v->name,
				       v->device.iommu_group, strerror(errno));
}

/* The function's own character device, "" when the kernel has none for it. */
static void find_cdev(const struct vfio *v, char *path, size_t size)
{
	char dir[128];
	struct dirent *entry;
	DIR *d;

	path[0] = '\0';
	snprintf(dir, sizeof(dir), "/sys/bus/pci/devices/%s/vfio-dev", v->device.bdf);
	d = opendir(dir);
	while (d && (entry = readdir(d)))
		if (entry->d_name[0] != '.')
			snprintf(path, size, "/dev/vfio/devices/%s", entry->d_name);
	if (d)
		closedir(d);
	if (path[0] && (access(path, R_OK | W_OK) || access("/dev/iommu", R_OK | W_OK)))
		path[0] = '\0';
}

static int open_cdev(struct vfio *v, const char *path)
{
	struct vfio_device_bind_iommufd bind = { .argsz = sizeof(bind) };
	struct vfio_device_attach_iommufd_pt attach = { .argsz = sizeof(attach) };
	struct iommu_ioas_alloc alloc = { .size = sizeof(alloc) };
	int ret = open_node(v, path, &v->fd);

	if (!ret)
		ret = open_node(v, "/dev/iommu", &v->iommu);
	if (ret)
		return ret;
	bind.iommufd = v->iommu;
	if (ioctl(v->fd, VFIO_DEVICE_BIND_IOMMUFD, &bind) ||
	    ioctl(v->iommu, IOMMU_IOAS_ALLOC, &alloc))
		return vroom_fail(errno, "%s: cannot bind %s to iommufd: %s", v->name, path,
				  strerror(errno));
	attach.pt_id = v->ioas = alloc.out_ioas_id;
	if (ioctl(v->fd, VFIO_DEVICE_ATTACH_IOMMUFD_PT, &attach))
		return vroom_fail(errno, "%s: cannot attach %s to an address space: %s", v->name,
				  path, strerror(errno));
	return 0;
}

static int map_bar0(struct vfio *v)
{
	struct vfio_region_info config = { .argsz = sizeof(config),
					   .index = VFIO_PCI_CONFIG_REGION_INDEX };
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };
	void *map;

	if (ioctl(v->fd, VFIO_DEVICE_GET_REGION_INFO, &config) ||
	    ioctl(v->fd, VFIO_DEVICE_GET_REGION_INFO, &bar))
		return vroom_fail(errno, "%s: cannot look at BAR0: %s", v->name, strerror(errno));
	if (bar.size < NVME_REG_DOORBELLS + 4096)
		return vroom_fail(ENODEV, "%s: BAR0 is no NVMe register file (%llu bytes)", v->name,
				  (unsigned long long)bar.size);
	v->config_offset = config.offset;
	v->bar0_offset = bar.offset;
	if (!(bar.flags & VFIO_REGION_INFO_FLAG_MMAP))
		return 0;
	map = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, (off_t)bar.offset);
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

	if (ioctl(v->fd, VFIO_DEVICE_GET_IRQ_INFO, &info) || info.count < 2)
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
	char cdev[300];
	int ret;

	if (!v)
		return vroom_fail(ENOMEM, "%s: out of memory", addr->text);
	v->base.ops = &vroom_transport_vfio;
	v->name = addr->text;
	v->lock_fd = v->iommu = v->group = v->fd = -1;
	ret = vroom_device_look(addr->path, &v->device);
	if (!ret)
		ret = vroom_device_lock(v->device.bdf, &v->lock_fd);
	if (!ret) {
		find_cdev(v, cdev, sizeof(cdev));
		ret = cdev[0] ? open_cdev(v, cdev) : open_group(v);
	}
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
	.allow_dma = vfio_allow_dma,
	.reset = vfio_reset,
	.set_irq = vfio_set_irq,
	.alive = vfio_alive,
};
