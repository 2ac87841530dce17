/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernel offers two ways in: the group and its container, and (Linux 6.6) each device's own
 * character device with iommufd; the second is taken where it is there to be opened. In both, the
 * functions of one group must share one address space: a container, or an IOAS of one iommufd.
 */
#include "transport/vfio_group.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "pci/sysfs.h"
#include "transport/iommufd.h"

#define MAX_MAPPINGS 4096
#define MAX_RANGES   16
#define MAX_MEMBERS  64
#define CDEV_MAX     300

/* Addresses below 4 GiB are the last choice: interrupts and old devices have theirs there. */
#define FIRST_IOVA (1ull << 32)
/* More than is ever mapped; keeps sums from running over. */
#define LAST_IOVA ((1ull << 56) - 1)
/* Where the kernel does not say: what the smallest IOMMUs in use translate. */
#define DEFAULT_LAST_IOVA ((1ull << 39) - 1)

struct mapping {
	uint64_t iova, bytes;
	uint64_t members; /* a bit for each function that uses it; 0: a free slot */
	bool ready;	  /* the IOMMU has it; else it is being mapped or unmapped */
	/* What is mapped: VA, and the file behind it, or this process' own memory. */
	uint64_t va, offset;
	dev_t dev;
	ino_t ino;
};

/* Shared with forked processes, which map memory, too. */
struct address_space {
	pthread_mutex_t lock;
	uint64_t members;			  /* a bit for each function that is open */
	struct vfio_iova_range range[MAX_RANGES]; /* that the IOMMU translates */
	unsigned ranges;
	unsigned slots; /* that were ever used */
	struct mapping mapping[MAX_MAPPINGS];
};

struct vroom_vfio_group {
	struct vroom_vfio_group *next;
	int number;
	unsigned users; /* functions, in this process */
	int fd;		/* -1 with iommufd */
	int iommu;	/* container, or iommufd */
	uint32_t ioas;
	struct address_space *space;
};

/* The groups that this process has open. */
static struct vroom_vfio_group *groups;
static pthread_mutex_t groups_lock = PTHREAD_MUTEX_INITIALIZER;

/* --- the IOMMU ------------------------------------------------------------------------------ */

/* Maps M. iommufd chooses the address; a container is told M's. */
static int iommu_map(const struct vroom_vfio_group *g, struct mapping *m)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = m->va,
		.iova = m->iova,
		.size = m->bytes,
	};
	struct iommu_ioas_map ioas_map = {
		.size = sizeof(ioas_map),
		.flags = IOMMU_IOAS_MAP_READABLE | IOMMU_IOAS_MAP_WRITEABLE,
		.ioas_id = g->ioas,
		.user_va = m->va,
		.length = m->bytes,
	};

	if (g->fd >= 0)
		return ioctl(g->iommu, VFIO_IOMMU_MAP_DMA, &map) ? -errno : 0;
	if (ioctl(g->iommu, IOMMU_IOAS_MAP, &ioas_map))
		return -errno;
	m->iova = ioas_map.iova;
	return 0;
}

static int iommu_unmap(const struct vroom_vfio_group *g, const struct mapping *m)
{
	struct vfio_iommu_type1_dma_unmap unmap = { .argsz = sizeof(unmap),
						    .iova = m->iova,
						    .size = m->bytes };
	struct iommu_ioas_unmap ioas_unmap = {
		.size = sizeof(ioas_unmap), .ioas_id = g->ioas, .iova = m->iova, .length = m->bytes
	};

	if (g->fd < 0)
		return ioctl(g->iommu, IOMMU_IOAS_UNMAP, &ioas_unmap) ? -errno : 0;
	if (ioctl(g->iommu, VFIO_IOMMU_UNMAP_DMA, &unmap))
		return -errno;
	/* Before Linux 6.0 only the process that mapped it may; it says so by doing nothing. */
	return unmap.size == m->bytes ? 0 : -EPERM;
}

/* --- the address space ---------------------------------------------------------------------- */

/* When a process died in the middle of a change, what it was about to map or unmap is unmapped. */
static void lock_space(const struct vroom_vfio_group *g)
{
	struct address_space *s = g->space;

	if (!vroom_lock(&s->lock))
		return;
	for (unsigned i = 0; i < s->slots; i++) {
		struct mapping *m = &s->mapping[i];

		if (!m->members || m->ready)
			continue;
		iommu_unmap(g, m);
		m->members = 0;
	}
}

static bool same_memory(const struct mapping *a, const struct mapping *b)
{
	return a->va == b->va && a->bytes == b->bytes && a->dev == b->dev && a->ino == b->ino &&
	       a->offset == b->offset;
}

/* The lowest address of R from FROM on that has BYTES free; 0: there is none. */
static uint64_t place_in(const struct address_space *s, const struct vfio_iova_range *r,
			 uint64_t from, uint64_t bytes, uint64_t align)
{
	uint64_t at = vroom_round_up(VROOM_MAX(r->start, from), align);
	unsigned i = 0;

	while (i < s->slots && at <= r->end) {
		const struct mapping *m = &s->mapping[i++];

		if (!m->members || m->iova >= at + bytes || at >= m->iova + m->bytes)
			continue;
		at = vroom_round_up(m->iova + m->bytes, align);
		i = 0;
	}
	return at <= r->end && r->end - at >= bytes - 1 ? at : 0;
}

/* Above 4 GiB if there is room, else anywhere but at 0, which says that there is none. */
static uint64_t choose_iova(const struct address_space *s, uint64_t bytes, uint64_t align)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < s->ranges && !at; i++)
		at = place_in(s, &s->range[i], FIRST_IOVA, bytes, align);
	for (unsigned i = 0; i < s->ranges && !at; i++)
		at = place_in(s, &s->range[i], 1, bytes, align);
	return at;
}

static int map_failed(const struct address_space *s, const char *name, size_t bytes, int err)
{
	uint64_t need = bytes;
	struct rlimit limit;

	for (unsigned i = 0; i < s->slots; i++)
		need += s->mapping[i].members ? s->mapping[i].bytes : 0;
	need >>= 10;
	if (err == ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
	    limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur >> 10 < need)
		return vroom_fail(err,
				  "%s: DMA memory of %llu KiB is over the limit for locked memory, "
				  "%llu KiB; raise it (ulimit -l %llu, or memlock in "
				  "/etc/security/limits.conf), or use a smaller iodepth or bs",
				  name, (unsigned long long)need,
				  (unsigned long long)limit.rlim_cur >> 10,
				  (unsigned long long)need);
	return vroom_fail(err, "%s: cannot map %zu KiB for DMA: %s", name, bytes >> 10,
			  strerror(err));
}

/* Maps WANT. Its slot is taken before the IOMMU is told, so that no address gets lost. */
static int add_locked(const struct vroom_vfio_function *f, const char *name, struct mapping *want,
		      uint64_t align)
{
	struct address_space *s = f->group->space;
	struct mapping *m = s->mapping;
	int ret;

	while (m < s->mapping + s->slots && m->members)
		m++;
	if (f->group->fd >= 0)
		want->iova = choose_iova(s, want->bytes, align);
	if (m == s->mapping + MAX_MAPPINGS || (f->group->fd >= 0 && !want->iova))
		return map_failed(s, name, want->bytes, ENOSPC);
	want->members = 1ull << f->member;
	*m = *want;
	s->slots = VROOM_MAX(s->slots, (unsigned)(m - s->mapping) + 1);
	ret = iommu_map(f->group, m);
	if (ret) {
		m->members = 0;
		return map_failed(s, name, want->bytes, -ret);
	}
	m->ready = true;
	want->iova = m->iova;
	return 0;
}

int vroom_vfio_map(struct vroom_vfio_function *f, const char *name, struct vroom_dma_map *map)
{
	struct address_space *s = f->group->space;
	uint64_t align = VROOM_MAX(1ull << map->page_shift, (uint64_t)sysconf(_SC_PAGESIZE));
	struct mapping want = { .va = (uintptr_t)map->va, .bytes = map->bytes }, *m = s->mapping;
	struct stat st;
	int ret = 0;

	if (map->fd >= 0 && fstat(map->fd, &st) == 0) {
		want.dev = st.st_dev;
		want.ino = st.st_ino;
		want.offset = map->fd_offset;
	} else {
		want.ino = (ino_t)getpid();
	}
	lock_space(f->group);
	while (m < s->mapping + s->slots &&
	       !(same_memory(m, &want) && m->members && !(m->members >> f->member & 1)))
		m++;
	if (m < s->mapping + s->slots) {
		m->members |= 1ull << f->member;
		want.iova = m->iova;
	} else {
		ret = add_locked(f, name, &want, align);
	}
	vroom_unlock(&s->lock);
	map->iova = want.iova;
	for (size_t i = 0; !ret && i < map->bytes >> map->page_shift; i++)
		map->page_iova[i] = map->iova + (i << map->page_shift);
	return ret;
}

/* Ends F's use of M, and M with its last user. */
static int drop_locked(const struct vroom_vfio_function *f, struct mapping *m)
{
	uint64_t others = m->members & ~(1ull << f->member);
	int ret = 0;

	if (!others) {
		m->ready = false;
		ret = iommu_unmap(f->group, m);
	}
	if (!ret) {
		m->members = others;
		return 0;
	}
	m->ready = true;
	return ret;
}

int vroom_vfio_unmap(struct vroom_vfio_function *f, const char *name, uint64_t iova, size_t bytes)
{
	struct address_space *s = f->group->space;
	int ret = 0; /* where nothing is mapped there is nothing to take away */

	lock_space(f->group);
	for (unsigned i = 0; i < s->slots; i++) {
		struct mapping *m = &s->mapping[i];

		if (m->iova != iova || !(m->members >> f->member & 1))
			continue;
		ret = m->bytes == bytes ? drop_locked(f, m) : -EINVAL;
		break;
	}
	vroom_unlock(&s->lock);
	return ret ? vroom_fail(-ret, "%s: cannot unmap %zu KiB at %llxh: %s", name, bytes >> 10,
				(unsigned long long)iova, strerror(-ret))
		   : 0;
}

bool vroom_vfio_unmap_all(struct vroom_vfio_function *f)
{
	struct address_space *s = f->group->space;
	bool empty = true;

	lock_space(f->group);
	for (unsigned i = 0; i < s->slots; i++) {
		struct mapping *m = &s->mapping[i];

		if (m->members >> f->member & 1)
			drop_locked(f, m);
		empty = empty && !m->members;
	}
	vroom_unlock(&s->lock);
	return empty;
}

/* --- opening -------------------------------------------------------------------------------- */

/* Opens a file of vfio's for D. */
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

static int open_container(struct vroom_vfio_group *g, const struct vroom_device *d,
			  const char *name)
{
	char path[64];
	int ret;

	snprintf(path, sizeof(path), "/dev/vfio/%d", g->number);
	ret = open_node(d, name, path, &g->fd);
	if (!ret)
		ret = open_node(d, name, "/dev/vfio/vfio", &g->iommu);
	if (ret)
		return ret;
	if (ioctl(g->iommu, VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
	    ioctl(g->iommu, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1)
		return vroom_fail(ENOTSUP,
				  "%s: the kernel's vfio has no type 1 IOMMU; load the "
				  "module vfio_iommu_type1",
				  name);
	if (ioctl(g->fd, VFIO_GROUP_SET_CONTAINER, &g->iommu) ||
	    ioctl(g->iommu, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
		return vroom_fail(errno, "%s: cannot use IOMMU group %d: %s", name, g->number,
				  strerror(errno));
	return 0;
}

static int open_ioas(struct vroom_vfio_group *g, const struct vroom_device *d, const char *name)
{
	struct iommu_ioas_alloc alloc = { .size = sizeof(alloc) };
	int ret = open_node(d, name, "/dev/iommu", &g->iommu);

	if (ret)
		return ret;
	if (ioctl(g->iommu, IOMMU_IOAS_ALLOC, &alloc))
		return vroom_fail(errno, "%s: iommufd gives no address space: %s", name,
				  strerror(errno));
	g->ioas = alloc.out_ioas_id;
	return 0;
}

/* What the IOMMU translates; old kernels do not say. iommufd chooses addresses by itself. */
static void find_ranges(const struct vroom_vfio_group *g)
{
	union {
		struct vfio_iommu_type1_info info;
		char room[4096]; /* for its capabilities, each with the offset of the next */
	} u = { .info.argsz = sizeof(u) };
	struct vfio_iommu_type1_info_cap_iova_range cap;
	struct address_space *s = g->space;
	bool told = g->fd >= 0 && ioctl(g->iommu, VFIO_IOMMU_GET_INFO, &u) == 0 &&
		    u.info.flags & VFIO_IOMMU_INFO_CAPS && u.info.argsz <= sizeof(u);

	/* Copied: the kernel does not align them. */
	for (uint32_t at = told ? u.info.cap_offset : 0; at; at = cap.header.next) {
		const char *range = u.room + at + sizeof(cap);

		memcpy(&cap, u.room + at, sizeof(cap));
		if (cap.header.id != VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE)
			continue;
		for (uint32_t i = 0; i < cap.nr_iovas && s->ranges < MAX_RANGES; i++) {
			struct vfio_iova_range *r = &s->range[s->ranges++];

			memcpy(r, range + i * sizeof(*r), sizeof(*r));
			r->end = VROOM_MIN(r->end, (uint64_t)LAST_IOVA);
		}
	}
	if (!s->ranges)
		s->range[s->ranges++] =
			(struct vfio_iova_range){ .start = FIRST_IOVA, .end = DEFAULT_LAST_IOVA };
}

static void group_put_locked(struct vroom_vfio_group *g)
{
	struct vroom_vfio_group **at = &groups;

	if (--g->users)
		return;
	while (*at && *at != g)
		at = &(*at)->next;
	if (*at)
		*at = g->next;
	/* With the last descriptor of all processes the mappings go. */
	if (g->fd >= 0)
		close(g->fd);
	if (g->iommu >= 0)
		close(g->iommu);
	munmap(g->space, sizeof(*g->space));
	free(g);
}

/* The address space, which processes that are forked later share. */
static struct address_space *new_space(void)
{
	struct address_space *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (s == MAP_FAILED)
		return NULL;
	if (vroom_lock_init(&s->lock)) {
		munmap(s, sizeof(*s));
		return NULL;
	}
	return s;
}

static int group_get_locked(const struct vroom_device *d, const char *name, bool iommufd,
			    struct vroom_vfio_group **out)
{
	struct vroom_vfio_group *g = groups;
	int ret;

	while (g && g->number != d->iommu_group)
		g = g->next;
	*out = g;
	if (g) {
		g->users++;
		return 0;
	}
	g = calloc(1, sizeof(*g));
	if (!g)
		return vroom_fail(ENOMEM, "%s: out of memory", name);
	g->number = d->iommu_group;
	g->users = 1;
	g->fd = g->iommu = -1;
	g->space = new_space();
	if (!g->space) {
		free(g);
		return vroom_fail(ENOMEM, "%s: out of memory", name);
	}
	ret = iommufd ? open_ioas(g, d, name) : open_container(g, d, name);
	if (ret) {
		group_put_locked(g);
		return ret;
	}
	find_ranges(g);
	g->next = groups;
	groups = *out = g;
	return 0;
}

static bool on_cdev(const char *name, void *path)
{
	snprintf(path, CDEV_MAX, "/dev/vfio/devices/%s", name);
	return true;
}

/* The function's own character device, "" when the kernel has none for it that can be opened. */
static void find_cdev(const struct vroom_device *d, char path[CDEV_MAX])
{
	char directory[128];

	path[0] = '\0';
	snprintf(directory, sizeof(directory), VROOM_PCI_DEVICES "/%s/vfio-dev", d->bdf);
	if (vroom_for_entries(directory, on_cdev, path) &&
	    (access(path, R_OK | W_OK) || access("/dev/iommu", R_OK | W_OK)))
		path[0] = '\0';
}

static int open_cdev(const struct vroom_vfio_group *g, const struct vroom_device *d,
		     const char *name, const char *path, int *fd)
{
	struct vfio_device_bind_iommufd bind = { .argsz = sizeof(bind), .iommufd = g->iommu };
	struct vfio_device_attach_iommufd_pt attach = { .argsz = sizeof(attach), .pt_id = g->ioas };
	int ret = open_node(d, name, path, fd);

	if (ret)
		return ret;
	if (ioctl(*fd, VFIO_DEVICE_BIND_IOMMUFD, &bind))
		return vroom_fail(errno, "%s: cannot bind %s to iommufd: %s", name, path,
				  strerror(errno));
	if (ioctl(*fd, VFIO_DEVICE_ATTACH_IOMMUFD_PT, &attach))
		return vroom_fail(errno, "%s: cannot attach %s to an address space: %s", name, path,
				  strerror(errno));
	return 0;
}

/* The lowest number that no function of the group has. */
static int join(struct vroom_vfio_function *f, const char *name)
{
	struct address_space *s = f->group->space;
	int ret = 0;

	lock_space(f->group);
	f->member = 0;
	while (f->member < MAX_MEMBERS && s->members >> f->member & 1)
		f->member++;
	if (f->member < MAX_MEMBERS)
		s->members |= 1ull << f->member;
	else
		ret = vroom_fail(ENOSPC, "%s: %d functions of IOMMU group %d are in use", name,
				 MAX_MEMBERS, f->group->number);
	vroom_unlock(&s->lock);
	return ret;
}

int vroom_vfio_open(const struct vroom_device *d, const char *name, struct vroom_vfio_function *f)
{
	struct vroom_vfio_group *g = NULL;
	char cdev[CDEV_MAX];
	int ret;

	*f = (struct vroom_vfio_function){ .fd = -1 };
	if (d->iommu_group < 0)
		return vroom_fail(ENODEV,
				  "%s: there is no IOMMU for it (enable VT-d or AMD-Vi in the "
				  "firmware, and intel_iommu=on); without one: vroom bind "
				  "--driver none %s",
				  name, d->bdf);
	ret = vroom_device_check_group(d);
	if (ret)
		return ret;
	find_cdev(d, cdev);
	pthread_mutex_lock(&groups_lock);
	ret = group_get_locked(d, name, cdev[0], &g);
	pthread_mutex_unlock(&groups_lock);
	if (ret)
		return ret;
	f->group = g;
	f->member = MAX_MEMBERS;
	ret = join(f, name);
	if (ret)
		return ret;
	if (g->fd < 0)
		return open_cdev(g, d, name, cdev, &f->fd);
	f->fd = ioctl(g->fd, VFIO_GROUP_GET_DEVICE_FD, d->bdf);
	return f->fd >= 0 ? 0
			  : vroom_fail(errno, "%s: cannot open the device of group %d: %s", name,
				       g->number, strerror(errno));
}

void vroom_vfio_close(struct vroom_vfio_function *f, bool owner)
{
	struct vroom_vfio_group *g = f->group;

	if (f->fd >= 0) /* the last descriptor to go resets the device */
		close(f->fd);
	if (!g)
		return;
	if (owner && f->member < MAX_MEMBERS) {
		vroom_vfio_unmap_all(f);
		lock_space(g);
		g->space->members &= ~(1ull << f->member);
		vroom_unlock(&g->space->lock);
	}
	pthread_mutex_lock(&groups_lock);
	group_put_locked(g);
	pthread_mutex_unlock(&groups_lock);
	f->group = NULL;
}
