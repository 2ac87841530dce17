/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transport vfio: a function on vfio-pci, behind an IOMMU that lets it reach nothing but what is
 * mapped here. An ordinary user who owns the file of its IOMMU group may do it.
 *
 * The kernel hands groups out as a whole, to one program. A process opens a group once, for all
 * functions of it that it drives; the processes that it forks share it. The functions of a group
 * have one address space: what is mapped for one of them, all of them reach.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/mmio.h"
#include "base/size.h"
#include "pci/function.h"
#include "pci/owner.h"
#include "transport/transport.h"
#include "vroom_nvme.h"

#define MAX_GROUPS   64
#define MAX_MAPPINGS 1024
/* Interrupt vectors that are used at most: one a queue pair, and the admin queue's. */
#define MAX_VECTORS 1025

/* From above interrupts and devices of 32 bits to the end of what the smallest IOMMUs translate. */
#define FIRST_IOVA (1ull << 32)
#define LAST_IOVA  (1ull << 39)
/* Past an address that the kernel refuses. */
#define REFUSED_STEP (1ull << 30)
/* Of addresses: a huge page, which IOMMUs translate as one. */
#define ALIGNMENT (2ull << 20)

struct mapping {
	uint64_t iova, va;
	uint64_t bytes; /* 0: an unused entry */
	uint64_t users; /* bits of functions; 0: the IOMMU is just being told */
	pid_t creator;	/* VA is an address of this process */
};

/* Shared with forked processes, which map memory, too. */
struct address_space {
	pthread_mutex_t lock;
	uint64_t functions; /* bits of those that are open */
	struct mapping mapping[MAX_MAPPINGS];
};

struct group {
	int number;
	unsigned users; /* functions, in this process; 0: an unused entry */
	int fd, container;
	struct address_space *space;
};

/* Those that this process has open. */
static struct group groups[MAX_GROUPS];
static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;

struct vfio {
	struct vroom_transport base;
	struct vroom_device device;
	const char *name; /* the address as written */
	int lock_fd;
	struct group *group;
	uint64_t bit; /* this function among the group's */
	int fd;
	volatile char *bar0;
	size_t bar0_bytes;
	uint64_t config_offset; /* of configuration space in FD */
};

/* --- memory --------------------------------------------------------------------------------- */

static int iommu_unmap(const struct group *g, const struct mapping *m)
{
	struct vfio_iommu_type1_dma_unmap unmap = {
		.argsz = sizeof(unmap),
		.iova = m->iova,
		.size = m->bytes,
	};

	if (ioctl(g->container, VFIO_IOMMU_UNMAP_DMA, &unmap))
		return -errno;
	/* Before Linux 6.0 only the process that mapped it may; it says so by doing nothing. */
	return unmap.size == m->bytes ? 0 : -EPERM;
}

/* When a process died in the middle of a change, what it was about to map or unmap is unmapped. */
static void lock_space(const struct group *g)
{
	if (!vroom_lock(&g->space->lock))
		return;
	for (struct mapping *m = g->space->mapping; m < g->space->mapping + MAX_MAPPINGS; m++) {
		if (!m->bytes || m->users)
			continue;
		iommu_unmap(g, m);
		m->bytes = 0;
	}
}

static const struct mapping *find_overlap(const struct address_space *s, uint64_t iova,
					  uint64_t bytes)
{
	for (const struct mapping *m = s->mapping; m < s->mapping + MAX_MAPPINGS; m++)
		if (m->bytes && iova < m->iova + m->bytes && m->iova < iova + bytes)
			return m;
	return NULL;
}

/* The lowest free address from IOVA on. */
static uint64_t find_free(const struct address_space *s, uint64_t iova, uint64_t bytes)
{
	const struct mapping *m;

	while ((m = find_overlap(s, iova, bytes)))
		iova = vroom_round_up(m->iova + m->bytes, ALIGNMENT);
	return iova;
}

/* The entry of MAP's memory that other functions use; else an unused one, or NULL. */
static struct mapping *find_entry(const struct vfio *v, const struct vroom_dma_map *map)
{
	struct address_space *s = v->group->space;
	struct mapping *unused = NULL;

	for (struct mapping *m = s->mapping; m < s->mapping + MAX_MAPPINGS; m++) {
		if (!m->bytes)
			unused = m;
		else if (m->va == (uintptr_t)map->va && m->bytes == map->bytes &&
			 m->creator == getpid() && !(m->users & v->bit))
			return m;
	}
	return unused;
}

/*
 * Maps memory where there is room. M is filled before the IOMMU is told, for lock_space(), and
 * valid once it has users. The kernel knows what addresses the IOMMU translates, by -EINVAL.
 */
static int map_new(const struct group *g, struct mapping *m, const struct vroom_dma_map *map)
{
	struct vfio_iommu_type1_dma_map dma = {
		.argsz = sizeof(dma),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)map->va,
		.iova = FIRST_IOVA,
		.size = map->bytes,
	};

	m->va = dma.vaddr;
	m->creator = getpid();
	do {
		dma.iova = find_free(g->space, dma.iova, dma.size);
		m->iova = dma.iova;
		__atomic_store_n(&m->bytes, dma.size, __ATOMIC_RELEASE);
		if (ioctl(g->container, VFIO_IOMMU_MAP_DMA, &dma) == 0)
			return 0;
		m->bytes = 0;
		dma.iova += REFUSED_STEP;
	} while (errno == EINVAL && dma.iova < LAST_IOVA);
	return -errno;
}

static int map_failed(const struct vfio *v, size_t bytes, int err)
{
	unsigned long long need = bytes;
	struct rlimit limit;

	for (unsigned i = 0; i < MAX_MAPPINGS; i++)
		need += v->group->space->mapping[i].bytes;
	if (err == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < need)
		return vroom_fail_on(
			v->name, err,
			"DMA memory of %llu KiB is over the limit for locked memory, %llu KiB; "
			"raise it (ulimit -l %llu, or memlock in /etc/security/limits.conf), or "
			"use a smaller iodepth or bs",
			need >> 10, (unsigned long long)limit.rlim_cur >> 10, need >> 10);
	return vroom_fail_on(v->name, err, "cannot map %zu KiB for DMA: %s", bytes >> 10,
			     strerror(err));
}

static int vfio_dma_map(struct vroom_transport *t, struct vroom_dma_map *map)
{
	const struct vfio *v = (const struct vfio *)t;
	struct mapping *m;
	int ret = 0;

	lock_space(v->group);
	m = find_entry(v, map);
	if (!m)
		ret = -ENOSPC;
	else if (!m->users)
		ret = map_new(v->group, m, map);
	if (ret) {
		ret = map_failed(v, map->bytes, -ret);
	} else {
		m->users |= v->bit;
		map->iova = m->iova;
	}
	vroom_unlock(&v->group->space->lock);
	for (size_t i = 0; !ret && i < map->bytes >> map->page_shift; i++)
		map->page_iova[i] = map->iova + (i << map->page_shift);
	return ret;
}

/* Ends the function's use of what is mapped in BYTES from IOVA on; it goes with its last user. */
static int end_use(const struct vfio *v, uint64_t iova, uint64_t bytes)
{
	struct address_space *s = v->group->space;
	int err, ret = 0;

	lock_space(v->group);
	for (struct mapping *m = s->mapping; m < s->mapping + MAX_MAPPINGS; m++) {
		if (!(m->users & v->bit) || m->iova - iova >= bytes)
			continue;
		m->users &= ~v->bit;
		if (m->users)
			continue;
		err = iommu_unmap(v->group, m);
		if (err) {
			m->users = v->bit;
			ret = err;
		} else {
			m->bytes = 0;
		}
	}
	vroom_unlock(&s->lock);
	return ret;
}

static int vfio_dma_unmap(struct vroom_transport *t, uint64_t iova, size_t bytes)
{
	const struct vfio *v = (const struct vfio *)t;
	int ret = end_use(v, iova, bytes);

	return ret ? vroom_fail_on(v->name, -ret, "cannot unmap %zu KiB at %llxh: %s", bytes >> 10,
				   (unsigned long long)iova, strerror(-ret))
		   : 0;
}

/* --- registers and interrupts --------------------------------------------------------------- */

static int vfio_read(struct vroom_transport *t, uint32_t offset, void *value, unsigned width,
		     unsigned timeout_ms)
{
	(void)timeout_ms;
	vroom_mmio_read(((const struct vfio *)t)->bar0 + offset, value, width);
	return 0;
}

static int vfio_write(struct vroom_transport *t, uint32_t offset, const void *value, unsigned width)
{
	vroom_mmio_write(((const struct vfio *)t)->bar0 + offset, value, width);
	return 0;
}

static int vfio_alive(struct vroom_transport *t)
{
	(void)t; /* a removed device reads all ones, which the core looks for */
	return 0;
}

/* Sets the bits SET of the command register and clears the bits CLEAR. Does it have them so now? */
static bool change_command(const struct vfio *v, uint16_t set, uint16_t clear)
{
	off_t at = (off_t)(v->config_offset + PCI_COMMAND);
	uint16_t command;

	if (pread(v->fd, &command, sizeof(command), at) != sizeof(command))
		return false;
	command = (uint16_t)((command | set) & ~clear);
	return pwrite(v->fd, &command, sizeof(command), at) == sizeof(command) &&
	       pread(v->fd, &command, sizeof(command), at) == sizeof(command) &&
	       (command & (set | clear)) == set;
}

/* vfio opens a device without bus mastering, and clears it again when the last user goes. */
static int vfio_allow_dma(struct vroom_transport *t)
{
	const struct vfio *v = (const struct vfio *)t;

	return change_command(v, PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER, 0)
		       ? 0
		       : vroom_fail_on(v->name, EIO, "cannot enable bus mastering");
}

static int vfio_reset(struct vroom_transport *t)
{
	const struct vfio *v = (const struct vfio *)t;

	return ioctl(v->fd, VFIO_DEVICE_RESET)
		       ? vroom_fail_on(v->name, errno, "the function cannot be reset: %s",
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
	const struct vfio *v = (const struct vfio *)t;
	bool nothing_mapped, no_master = change_command(v, 0, PCI_COMMAND_MASTER);

	end_use(v, 0, UINT64_MAX);
	lock_space(v->group);
	nothing_mapped = !find_overlap(v->group->space, 0, UINT64_MAX);
	vroom_unlock(&v->group->space->lock);
	return nothing_mapped || no_master ? 0 : vfio_reset(t);
}

/* Connects COUNT vectors from FIRST on to eventfd FD; -1: to nothing. */
static int set_irqs(const struct vfio *v, unsigned first, unsigned count, int fd)
{
	struct {
		struct vfio_irq_set set;
		int fds[MAX_VECTORS];
	} irqs = {
		.set.argsz = sizeof(irqs.set) + count * sizeof(fd),
		.set.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
		.set.index = VFIO_PCI_MSIX_IRQ_INDEX,
		.set.start = first,
		.set.count = count,
	};

	for (unsigned i = 0; i < count; i++)
		irqs.fds[i] = fd;
	return ioctl(v->fd, VFIO_DEVICE_SET_IRQS, &irqs)
		       ? vroom_fail_on(v->name, errno, "cannot set up MSI-X interrupts: %s",
				       strerror(errno))
		       : 0;
}

static int vfio_set_irq(struct vroom_transport *t, unsigned vector, int fd)
{
	return set_irqs((const struct vfio *)t, vector, 1, fd);
}

/* --- opening -------------------------------------------------------------------------------- */

static int open_node(const struct vfio *v, const char *path, int *fd)
{
	const char *hint = "is the module vfio-pci loaded?";

	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd >= 0)
		return 0;
	if (errno == EACCES || errno == EPERM)
		hint = "give it to this user: vroom bind --user NAME ADDRESS, as root";
	if (errno == EBUSY)
		hint = "another program has the IOMMU group, which goes to one at a time";
	return vroom_fail_on(v->name, errno, "cannot open %s: %s; %s", path, strerror(errno), hint);
}

static void close_group(const struct group *g)
{
	/* With the last descriptor of all processes the mappings go. */
	if (g->fd >= 0)
		close(g->fd);
	if (g->container >= 0)
		close(g->container);
	if (g->space)
		munmap(g->space, sizeof(*g->space));
}

static int open_group(const struct vfio *v, struct group *g)
{
	void *space;
	char path[64];
	int ret = vroom_share(v->name, sizeof(*g->space), &space);

	*g = (struct group){
		.number = v->device.iommu_group, .fd = -1, .container = -1, .space = space
	};
	snprintf(path, sizeof(path), "/dev/vfio/%d", g->number);
	if (!ret)
		ret = vroom_lock_init(&g->space->lock);
	if (!ret)
		ret = open_node(v, path, &g->fd);
	if (!ret)
		ret = open_node(v, "/dev/vfio/vfio", &g->container);
	if (!ret && (ioctl(g->fd, VFIO_GROUP_SET_CONTAINER, &g->container) ||
		     ioctl(g->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU)))
		ret = vroom_fail_on(v->name, errno,
				    "cannot use IOMMU group %d: %s; is the module vfio_iommu_type1 "
				    "loaded?",
				    g->number, strerror(errno));
	if (ret)
		close_group(g);
	return ret;
}

/* The group if it is open, else an unused entry, or NULL. */
static struct group *find_group(int number)
{
	struct group *unused = NULL;

	for (struct group *g = groups; g < groups + MAX_GROUPS; g++) {
		if (!g->users)
			unused = g;
		else if (g->number == number)
			return g;
	}
	return unused;
}

static int join_group(struct vfio *v)
{
	struct address_space *s;
	struct group *g;
	int ret = 0;

	pthread_mutex_lock(&groups_lock);
	g = find_group(v->device.iommu_group);
	if (!g)
		ret = vroom_fail_on(v->name, EMFILE, "%d IOMMU groups are in use", MAX_GROUPS);
	else if (!g->users)
		ret = open_group(v, g);
	if (g && !ret) {
		g->users++;
		v->group = g;
	}
	pthread_mutex_unlock(&groups_lock);
	if (ret)
		return ret;
	lock_space(v->group);
	s = v->group->space;
	v->bit = ~s->functions & (s->functions + 1); /* the lowest that is free */
	s->functions |= v->bit;
	vroom_unlock(&s->lock);
	return v->bit ? 0 : vroom_fail_on(v->name, EMFILE, "64 functions of the group are in use");
}

static void leave_group(const struct vfio *v, bool owner)
{
	struct group *g = v->group;

	if (owner) {
		end_use(v, 0, UINT64_MAX);
		lock_space(g);
		g->space->functions &= ~v->bit;
		vroom_unlock(&g->space->lock);
	}
	pthread_mutex_lock(&groups_lock);
	if (--g->users == 0)
		close_group(g);
	pthread_mutex_unlock(&groups_lock);
}

static int open_function(struct vfio *v)
{
	char rest[512];
	int ret;

	if (v->device.iommu_group < 0)
		return vroom_fail_on(v->name, ENODEV,
				     "there is no IOMMU for it (enable VT-d or AMD-Vi in the "
				     "firmware, and intel_iommu=on); without one: vroom bind "
				     "--driver none %s",
				     v->device.bdf);
	ret = vroom_device_group_rest(&v->device, rest, sizeof(rest));
	if (!ret && rest[0])
		ret = vroom_fail_on(v->name, EBUSY,
				    "IOMMU group %d goes to vfio as a whole; bind the rest of it "
				    "first: vroom bind %s",
				    v->device.iommu_group, rest);
	if (!ret)
		ret = join_group(v);
	if (ret)
		return ret;
	v->fd = ioctl(v->group->fd, VFIO_GROUP_GET_DEVICE_FD, v->device.bdf);
	return v->fd >= 0 ? 0
			  : vroom_fail_on(v->name, errno, "cannot open the device of group %d: %s",
					  v->group->number, strerror(errno));
}

static int map_bar0(struct vfio *v)
{
	struct vfio_region_info config = {
		.argsz = sizeof(config),
		.index = VFIO_PCI_CONFIG_REGION_INDEX,
	};
	struct vfio_region_info bar = { .argsz = sizeof(bar), .index = VFIO_PCI_BAR0_REGION_INDEX };
	void *map;

	if (ioctl(v->fd, VFIO_DEVICE_GET_REGION_INFO, &config) ||
	    ioctl(v->fd, VFIO_DEVICE_GET_REGION_INFO, &bar))
		return vroom_fail_on(v->name, errno, "cannot look at BAR0: %s", strerror(errno));
	if (bar.size < NVME_REG_DOORBELLS + 4096)
		return vroom_fail_on(v->name, ENODEV, "BAR0 is no NVMe register file (%llu bytes)",
				     (unsigned long long)bar.size);
	map = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, (off_t)bar.offset);
	if (map == MAP_FAILED)
		return vroom_fail_on(v->name, errno, "cannot map BAR0 (it takes Linux 4.16): %s",
				     strerror(errno));
	v->config_offset = config.offset;
	v->bar0 = map;
	v->bar0_bytes = bar.size;
	v->base.doorbells = (volatile uint32_t *)(v->bar0 + NVME_REG_DOORBELLS);
	v->base.doorbell_bytes = bar.size - NVME_REG_DOORBELLS;
	return 0;
}

/* MSI-X is enabled for all vectors at once; later each gets its eventfd. */
static int enable_vectors(struct vfio *v)
{
	struct vfio_irq_info info = { .argsz = sizeof(info), .index = VFIO_PCI_MSIX_IRQ_INDEX };

	if (ioctl(v->fd, VFIO_DEVICE_GET_IRQ_INFO, &info) || info.count < 2)
		return vroom_fail_on(v->name, ENOTSUP,
				     "the device has no MSI-X interrupts for its queues; "
				     "use wait=poll");
	v->base.vectors = VROOM_MIN(info.count, (uint32_t)MAX_VECTORS);
	return set_irqs(v, 0, v->base.vectors, -1);
}

static void vfio_close(struct vroom_transport *t, bool owner)
{
	struct vfio *v = (struct vfio *)t;

	if (v->bar0)
		munmap((void *)(uintptr_t)v->bar0, v->bar0_bytes);
	if (v->fd >= 0) /* the last descriptor to go resets the device */
		close(v->fd);
	if (v->group)
		leave_group(v, owner);
	if (v->lock_fd >= 0)
		close(v->lock_fd);
	free(v);
}

static int vfio_open(const struct vroom_address *addr, const struct vroom_transport_opts *opts,
		     struct vroom_transport **out)
{
	struct vfio *v = calloc(1, sizeof(*v));
	int ret;

	if (!v)
		return vroom_fail_on(addr->text, ENOMEM, "out of memory");
	v->base.ops = &vroom_transport_vfio;
	v->name = addr->text;
	v->lock_fd = v->fd = -1;
	ret = vroom_device_look(addr->path, &v->device);
	if (!ret)
		ret = vroom_device_lock(v->device.bdf, &v->lock_fd);
	if (!ret)
		ret = open_function(v);
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
