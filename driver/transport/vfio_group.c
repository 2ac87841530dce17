/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/vfio_group.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"

#define MAX_GROUPS   64
#define MAX_RANGES   16
#define MAX_MAPPINGS 1024

/* Below are interrupts, and what devices of 32 bits need. */
#define FIRST_IOVA (1ull << 32)
/* Where the kernel does not say (before Linux 5.4): what the smallest IOMMUs in use translate. */
#define DEFAULT_LAST_IOVA ((1ull << 39) - 1)
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

struct vroom_vfio_group {
	int number;
	unsigned users; /* functions, in this process; 0: an unused entry */
	int fd, container;
	struct vfio_iova_range range[MAX_RANGES]; /* that the IOMMU translates */
	unsigned ranges;
	struct address_space *space;
};

/* Those that this process has open. */
static struct vroom_vfio_group groups[MAX_GROUPS];
static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;

/* --- the address space ---------------------------------------------------------------------- */

static int iommu_unmap(const struct vroom_vfio_group *g, const struct mapping *m)
{
	struct vfio_iommu_type1_dma_unmap unmap = { .argsz = sizeof(unmap),
						    .iova = m->iova,
						    .size = m->bytes };

	if (ioctl(g->container, VFIO_IOMMU_UNMAP_DMA, &unmap))
		return -errno;
	/* Before Linux 6.0 only the process that mapped it may; it says so by doing nothing. */
	return unmap.size == m->bytes ? 0 : -EPERM;
}

/* When a process died in the middle of a change, what it was about to map or unmap is unmapped. */
static void lock_space(const struct vroom_vfio_group *g)
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

static const struct mapping *find_overlap(const struct address_space *s, uint64_t at,
					  uint64_t bytes)
{
	for (const struct mapping *m = s->mapping; m < s->mapping + MAX_MAPPINGS; m++)
		if (m->bytes && at < m->iova + m->bytes && m->iova < at + bytes)
			return m;
	return NULL;
}

/* The lowest free address; 0: there is none. */
static uint64_t find_iova(const struct vroom_vfio_group *g, uint64_t bytes)
{
	for (const struct vfio_iova_range *r = g->range; r < g->range + g->ranges; r++) {
		uint64_t at = vroom_round_up(VROOM_MAX(r->start, FIRST_IOVA), ALIGNMENT);
		const struct mapping *m;

		while ((m = find_overlap(g->space, at, bytes)))
			at = vroom_round_up(m->iova + m->bytes, ALIGNMENT);
		if (at <= r->end && r->end - at >= bytes - 1)
			return at;
	}
	return 0;
}

/* The entry of MAP's memory that others of the group use; else an unused one, or NULL. */
static struct mapping *find_entry(const struct vroom_vfio_function *f,
				  const struct vroom_dma_map *map)
{
	struct address_space *s = f->group->space;
	struct mapping *unused = NULL;

	for (struct mapping *m = s->mapping; m < s->mapping + MAX_MAPPINGS; m++) {
		if (!m->bytes)
			unused = m;
		else if (m->va == (uintptr_t)map->va && m->bytes == map->bytes &&
			 m->creator == getpid() && !(m->users & f->bit))
			return m;
	}
	return unused;
}

/* The entry is there before the IOMMU is told, for lock_space(), and valid once it has users. */
static int fill_entry(const struct vroom_vfio_function *f, struct mapping *m,
		      const struct vroom_dma_map *map)
{
	struct vfio_iommu_type1_dma_map dma = {
		.argsz = sizeof(dma),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)map->va,
		.iova = find_iova(f->group, map->bytes),
		.size = map->bytes,
	};

	if (!dma.iova)
		return -ENOSPC;
	m->iova = dma.iova;
	m->va = dma.vaddr;
	m->creator = getpid();
	__atomic_store_n(&m->bytes, map->bytes, __ATOMIC_RELEASE);
	if (ioctl(f->group->container, VFIO_IOMMU_MAP_DMA, &dma) == 0)
		return 0;
	m->bytes = 0;
	return -errno;
}

static int map_failed(const struct vroom_vfio_function *f, size_t bytes, int err)
{
	const struct address_space *s = f->group->space;
	uint64_t need = bytes;
	struct rlimit limit;

	for (unsigned i = 0; i < MAX_MAPPINGS; i++)
		need += s->mapping[i].bytes;
	if (err == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < need)
		return vroom_fail(err,
				  "%s: DMA memory of %llu KiB is over the limit for locked memory, "
				  "%llu KiB; raise it (ulimit -l %llu, or memlock in "
				  "/etc/security/limits.conf), or use a smaller iodepth or bs",
				  f->name, (unsigned long long)need >> 10,
				  (unsigned long long)limit.rlim_cur >> 10,
				  (unsigned long long)need >> 10);
	return vroom_fail(err, "%s: cannot map %zu KiB for DMA: %s", f->name, bytes >> 10,
			  strerror(err));
}

int vroom_vfio_map(struct vroom_vfio_function *f, struct vroom_dma_map *map)
{
	struct mapping *m;
	int ret = 0;

	lock_space(f->group);
	m = find_entry(f, map);
	if (!m)
		ret = -ENOSPC;
	else if (!m->bytes)
		ret = fill_entry(f, m, map);
	if (ret) {
		ret = map_failed(f, map->bytes, -ret);
	} else {
		m->users |= f->bit;
		map->iova = m->iova;
	}
	vroom_unlock(&f->group->space->lock);
	for (size_t i = 0; !ret && i < map->bytes >> map->page_shift; i++)
		map->page_iova[i] = map->iova + (i << map->page_shift);
	return ret;
}

/* Ends F's use of M, and M with its last user. */
static int drop(const struct vroom_vfio_function *f, struct mapping *m)
{
	int ret;

	m->users &= ~f->bit;
	if (m->users)
		return 0;
	ret = iommu_unmap(f->group, m);
	if (ret)
		m->users = f->bit;
	else
		m->bytes = 0;
	return ret;
}

int vroom_vfio_unmap(struct vroom_vfio_function *f, uint64_t iova, size_t bytes)
{
	struct address_space *s = f->group->space;
	int ret = 0; /* where nothing is mapped there is nothing to take away */

	lock_space(f->group);
	for (struct mapping *m = s->mapping; m < s->mapping + MAX_MAPPINGS; m++)
		if (m->iova == iova && m->bytes == bytes && m->users & f->bit)
			ret = drop(f, m);
	vroom_unlock(&s->lock);
	return ret ? vroom_fail(-ret, "%s: cannot unmap %zu KiB at %llxh: %s", f->name, bytes >> 10,
				(unsigned long long)iova, strerror(-ret))
		   : 0;
}

bool vroom_vfio_unmap_all(struct vroom_vfio_function *f)
{
	struct address_space *s = f->group->space;
	bool empty = true;

	lock_space(f->group);
	for (struct mapping *m = s->mapping; m < s->mapping + MAX_MAPPINGS; m++) {
		if (m->users & f->bit)
			drop(f, m);
		empty = empty && !m->bytes;
	}
	vroom_unlock(&s->lock);
	return empty;
}

/* --- opening -------------------------------------------------------------------------------- */

static int open_node(const struct vroom_device *d, const char *name, const char *path, int *fd)
{
	*fd = open(path, O_RDWR | O_CLOEXEC);
	if (*fd >= 0)
		return 0;
	if (errno == EACCES || errno == EPERM)
		return vroom_fail(errno,
				  "%s: cannot open %s: %s; give it to this user: "
				  "vroom bind --user NAME %s, as root",
				  name, path, strerror(errno), d->bdf);
	if (errno == EBUSY)
		return vroom_fail(errno,
				  "%s: another program has %s open, and an IOMMU group goes to one "
				  "at a time; end it first",
				  name, path);
	return vroom_fail(errno, "%s: cannot open %s: %s; is the module vfio-pci loaded?", name,
			  path, strerror(errno));
}

/* What the IOMMU translates. */
static void find_ranges(struct vroom_vfio_group *g)
{
	union {
		struct vfio_iommu_type1_info info;
		char room[4096]; /* for its capabilities, each with the offset of the next */
	} u = { .info.argsz = sizeof(u) };
	struct vfio_iommu_type1_info_cap_iova_range cap;
	bool told = ioctl(g->container, VFIO_IOMMU_GET_INFO, &u) == 0 &&
		    u.info.flags & VFIO_IOMMU_INFO_CAPS && u.info.argsz <= sizeof(u);

	g->ranges = 0;
	/* Copied: the kernel does not align them. */
	for (uint32_t at = told ? u.info.cap_offset : 0; at; at = cap.header.next) {
		memcpy(&cap, u.room + at, sizeof(cap));
		if (cap.header.id != VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE)
			continue;
		g->ranges = VROOM_MIN(cap.nr_iovas, (uint32_t)MAX_RANGES);
		memcpy(g->range, u.room + at + sizeof(cap), g->ranges * sizeof(g->range[0]));
	}
	if (!g->ranges)
		g->range[g->ranges++] =
			(struct vfio_iova_range){ .start = FIRST_IOVA, .end = DEFAULT_LAST_IOVA };
}

static int open_group(struct vroom_vfio_group *g, const struct vroom_device *d, const char *name)
{
	char path[64];
	int ret;

	g->space = mmap(NULL, sizeof(*g->space), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	if (g->space == MAP_FAILED || vroom_lock_init(&g->space->lock))
		return vroom_fail(ENOMEM, "%s: out of memory", name);
	snprintf(path, sizeof(path), "/dev/vfio/%d", g->number);
	ret = open_node(d, name, path, &g->fd);
	if (!ret)
		ret = open_node(d, name, "/dev/vfio/vfio", &g->container);
	if (!ret && (ioctl(g->fd, VFIO_GROUP_SET_CONTAINER, &g->container) ||
		     ioctl(g->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU)))
		ret = vroom_fail(errno,
				 "%s: cannot use IOMMU group %d: %s; is the module "
				 "vfio_iommu_type1 loaded?",
				 name, g->number, strerror(errno));
	if (!ret)
		find_ranges(g);
	return ret;
}

static void put_group_locked(struct vroom_vfio_group *g)
{
	if (--g->users)
		return;
	/* With the last descriptor of all processes the mappings go. */
	if (g->fd >= 0)
		close(g->fd);
	if (g->container >= 0)
		close(g->container);
	if (g->space != MAP_FAILED)
		munmap(g->space, sizeof(*g->space));
}

static int get_group_locked(const struct vroom_device *d, const char *name,
			    struct vroom_vfio_group **out)
{
	struct vroom_vfio_group *unused = NULL;
	int ret;

	for (struct vroom_vfio_group *g = groups; g < groups + MAX_GROUPS; g++) {
		if (!g->users) {
			unused = g;
		} else if (g->number == d->iommu_group) {
			g->users++;
			*out = g;
			return 0;
		}
	}
	if (!unused)
		return vroom_fail(EMFILE, "%s: %d IOMMU groups are in use", name, MAX_GROUPS);
	unused->number = d->iommu_group;
	unused->users = 1;
	unused->fd = unused->container = -1;
	ret = open_group(unused, d, name);
	if (ret)
		put_group_locked(unused);
	else
		*out = unused;
	return ret;
}

int vroom_vfio_open(const struct vroom_device *d, struct vroom_vfio_function *f)
{
	int ret;

	if (d->iommu_group < 0)
		return vroom_fail(ENODEV,
				  "%s: there is no IOMMU for it (enable VT-d or AMD-Vi in the "
				  "firmware, and intel_iommu=on); without one: vroom bind "
				  "--driver none %s",
				  f->name, d->bdf);
	ret = vroom_device_check_group(d);
	if (ret)
		return ret;
	pthread_mutex_lock(&groups_lock);
	ret = get_group_locked(d, f->name, &f->group);
	pthread_mutex_unlock(&groups_lock);
	if (ret)
		return ret;
	lock_space(f->group);
	f->bit = ~f->group->space->functions & (f->group->space->functions + 1);
	f->group->space->functions |= f->bit;
	vroom_unlock(&f->group->space->lock);
	if (f->bit)
		f->fd = ioctl(f->group->fd, VFIO_GROUP_GET_DEVICE_FD, d->bdf);
	else
		errno = EMFILE;
	return f->fd >= 0 ? 0
			  : vroom_fail(errno, "%s: cannot open the device of group %d: %s", f->name,
				       f->group->number, strerror(errno));
}

void vroom_vfio_close(struct vroom_vfio_function *f, bool owner)
{
	struct vroom_vfio_group *g = f->group;

	if (f->fd >= 0) /* the last descriptor to go resets the device */
		close(f->fd);
	if (!g)
		return;
	if (owner) {
		vroom_vfio_unmap_all(f);
		lock_space(g);
		g->space->functions &= ~f->bit;
		vroom_unlock(&g->space->lock);
	}
	pthread_mutex_lock(&groups_lock);
	put_group_locked(g);
	pthread_mutex_unlock(&groups_lock);
}
