/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * DMA memory: a few large shared regions that the controller can reach, and a first-fit
 * allocator over them whose bookkeeping forked processes share.
 *
 * A region is hugetlbfs memory where enough huge pages are free, else an anonymous file.
 * Neither has a name, so nothing is left behind however the process ends. Only where addresses
 * are physical (vroom_ctrlr.pool) must the pages outlive the process: a controller that nobody
 * has disabled yet may write to them. Then a region is a named file in hugetlbfs, and the
 * controller's next owner removes it.
 */
#include <errno.h>
#include <fcntl.h>
#include <hugetlbfs.h>
#include <numaif.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/internal.h"

/* Memory is taken page by page as it is touched, so that a generous size costs nothing. */
#define REGION_BYTES (256ul << 20)
/* Each region is twice the one before, up to this: controllers allow only so many. */
#define REGION_BYTES_MAX (16ul << 30)
/* The first region, where memory is locked as it is mapped. */
#define PINNED_REGION_BYTES (4ul << 20)

static size_t round_up(size_t value, size_t to)
{
	return (value + to - 1) / to * to;
}

static int map_region(struct vroom_ctrlr *c, struct vroom_dma_region *r, uint64_t iova)
{
	struct vroom_dma_map m = { .va = r->base,
				   .bytes = r->bytes,
				   .fd = r->fd,
				   .page_shift = r->granule_shift,
				   .iova = iova,
				   .page_iova = r->iova };

	return c->transport->ops->dma_map(c->transport, &m);
}

/* Maps BYTES of FD, which is closed when that fails. hugetlbfs reserves all pages at once. */
static void *map_fd(int fd, size_t bytes)
{
	void *base = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (ftruncate(fd, (off_t)bytes) == 0)
		base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base != MAP_FAILED)
		return base;
	close(fd);
	return NULL;
}

/* BYTES of huge pages, or NULL when there are not enough free ones. */
static void *map_huge(size_t bytes, int *fd)
{
	if (gethugepagesize() != (long)VROOM_GRANULE)
		return NULL;
	*fd = hugetlbfs_unlinked_fd();
	return map_fd(*fd, bytes);
}

static void *map_ordinary(size_t bytes, int *fd)
{
	*fd = memfd_create("vroom-dma", MFD_CLOEXEC);
	return map_fd(*fd, bytes);
}

/* Of huge pages, the sizes that are used: the smaller first. */
static const unsigned page_shifts[] = { 21, 30 };

/* The directory of hugetlbfs pages of 2^SHIFT bytes, or NULL when none is mounted. */
static const char *pool_directory(unsigned shift)
{
	return hugetlbfs_find_path_for_size(1l << shift);
}

static void pool_path(const struct vroom_ctrlr *c, const char *dir, uint32_t index, char *path)
{
	snprintf(path, PATH_MAX, "%s/%s.%u", dir, c->pool, index);
}

/*
 * Touches every page, so that it has its place; on the device's NUMA node if there is room. To
 * touch what was reserved cannot fail.
 */
static void populate(const struct vroom_ctrlr *c, const struct vroom_dma_region *r)
{
	unsigned long node = c->transport->numa_node >= 0 ? 1ul << c->transport->numa_node : 0;

	if (node)
		mbind(r->base, r->bytes, MPOL_PREFERRED, &node, sizeof(node) * 8, 0);
	for (size_t at = 0; at < r->bytes; at += 1ul << r->granule_shift)
		((volatile char *)r->base)[at] = 0;
}

/* A file of the pool with at least BYTES of huge pages, in R. */
static int map_pool(struct vroom_ctrlr *c, size_t bytes, struct vroom_dma_region *r)
{
	char path[PATH_MAX] = "";

	for (size_t i = 0; i < sizeof(page_shifts) / sizeof(page_shifts[0]); i++) {
		const char *dir = pool_directory(page_shifts[i]);

		if (!dir)
			continue;
		pool_path(c, dir, c->shared->regions, path);
		r->granule_shift = page_shifts[i];
		r->bytes = round_up(bytes, 1ul << r->granule_shift);
		r->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		r->base = map_fd(r->fd, r->bytes);
		if (r->base) {
			populate(c, r);
			return 0;
		}
		unlink(path);
	}
	if (!path[0])
		return vroom_fail(ENOENT,
				  "%s: no hugetlbfs is mounted, which DMA without an IOMMU needs: "
				  "vroom hugepages 64M, as root",
				  c->address.text);
	return vroom_fail(ENOMEM,
			  "%s: not enough free huge pages for %zu MiB of DMA memory; reserve more: "
			  "vroom hugepages %zuM, as root",
			  c->address.text, round_up(bytes, VROOM_GRANULE) >> 20,
			  round_up(bytes, VROOM_GRANULE) >> 19);
}

/* Removes file INDEX of the pool. Bytes that it had. */
static uint64_t remove_pool_file(const struct vroom_ctrlr *c, uint32_t index)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < sizeof(page_shifts) / sizeof(page_shifts[0]); i++) {
		const char *dir = pool_directory(page_shifts[i]);
		char path[PATH_MAX];
		struct stat st;

		if (!dir)
			continue;
		pool_path(c, dir, index, path);
		if (stat(path, &st) == 0 && unlink(path) == 0)
			bytes += (uint64_t)st.st_size;
	}
	return bytes;
}

uint64_t vroom_dma_remove_pool(const struct vroom_ctrlr *c)
{
	uint64_t bytes = 0;

	for (uint32_t index = 0; c->pool[0] && index < VROOM_MAX_REGIONS; index++)
		bytes += remove_pool_file(c, index);
	return bytes;
}

/* Huge pages where there are enough, else ordinary memory. */
static int map_any(struct vroom_ctrlr *c, size_t bytes, struct vroom_dma_region *r)
{
	/* What is taken as it is touched may be generous; what is pinned at once may not. */
	size_t least = c->transport->pins ? PINNED_REGION_BYTES : REGION_BYTES;

	r->granule_shift = VROOM_GRANULE_SHIFT;
	r->bytes = round_up(bytes, VROOM_GRANULE);
	r->base = map_huge(r->bytes, &r->fd);
	if (r->base)
		return 0;
	r->bytes = VROOM_MAX(r->bytes, VROOM_MIN(least << c->shared->regions, REGION_BYTES_MAX));
	if (c->transport->pins) /* but not more than twice what is needed */
		r->bytes = VROOM_MIN(r->bytes, 2 * round_up(bytes, VROOM_GRANULE));
	r->base = map_ordinary(r->bytes, &r->fd);
	return r->base ? 0
		       : vroom_fail(ENOMEM, "%s: cannot map %zu bytes of DMA memory: %s",
				    c->address.text, r->bytes, strerror(errno));
}

/* Adds a region of at least BYTES. The lock is held. */
static int add_region_locked(struct vroom_ctrlr *c, size_t bytes)
{
	struct vroom_shared *s = c->shared;
	struct vroom_dma_region r = { .fd = -1 };
	int ret;

	if (s->regions == VROOM_MAX_REGIONS)
		return vroom_fail(ENOMEM, "%s: all %d regions of DMA memory are in use",
				  c->address.text, VROOM_MAX_REGIONS);
	ret = c->pool[0] ? map_pool(c, bytes, &r) : map_any(c, bytes, &r);
	if (ret)
		return ret;
	r.iova = calloc(VROOM_MAX(r.bytes >> r.granule_shift, 1ul), sizeof(*r.iova));
	if (!r.iova) {
		ret = vroom_fail(ENOMEM, "%s: out of memory", c->address.text);
		goto out_unmap;
	}
	ret = map_region(c, &r, s->next_iova);
	if (ret)
		goto out_free;
	s->next_iova += r.bytes;
	c->region[s->regions++] = r;
	return 0;

out_free:
	free(r.iova);
out_unmap:
	munmap(r.base, r.bytes);
	close(r.fd);
	if (c->pool[0])
		remove_pool_file(c, s->regions);
	return ret;
}

/* First extent of region INDEX in the sorted table. */
static uint32_t first_extent(const struct vroom_shared *s, uint32_t index)
{
	uint32_t low = 0, high = s->extents;

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (s->extent[mid].region < index)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static void *try_alloc_locked(struct vroom_ctrlr *c, size_t bytes, size_t align)
{
	struct vroom_shared *s = c->shared;

	if (s->extents == VROOM_MAX_EXTENTS)
		return NULL;
	for (uint32_t index = 0; index < s->regions; index++) {
		struct vroom_dma_region *r = &c->region[index];
		uint64_t offset = 0;
		uint32_t at;

		if (!r->base || r->shared)
			continue;
		for (at = first_extent(s, index); at < s->extents; at++) {
			const struct vroom_extent *e = &s->extent[at];

			if (e->region != index || offset + bytes <= e->offset)
				break;
			offset = round_up(e->offset + e->bytes, align);
		}
		if (offset + bytes > r->bytes)
			continue;
		memmove(&s->extent[at + 1], &s->extent[at],
			(s->extents - at) * sizeof(s->extent[0]));
		s->extent[at] = (struct vroom_extent){
			.region = index, .owner = getpid(), .offset = offset, .bytes = bytes
		};
		s->extents++;
		return (char *)r->base + offset;
	}
	return NULL;
}

void *vroom_dma_alloc(struct vroom_ctrlr *c, size_t bytes, size_t align)
{
	void *mem;

	align = VROOM_MAX(align ? align : c->page_size, 64ul);
	bytes = round_up(bytes ? bytes : 1, 64);
	vroom_lock(&c->shared->lock);
	mem = try_alloc_locked(c, bytes, align);
	if (!mem && c->admin_ready) {
		vroom_qpair_reclaim_locked(c);
		mem = try_alloc_locked(c, bytes, align);
	}
	if (!mem && add_region_locked(c, bytes + align) == 0)
		mem = try_alloc_locked(c, bytes, align);
	vroom_unlock(&c->shared->lock);
	return mem;
}

void vroom_dma_free(struct vroom_ctrlr *c, void *mem)
{
	struct vroom_shared *s = c->shared;

	if (!mem)
		return;
	vroom_lock(&s->lock);
	for (uint32_t i = 0; i < s->extents; i++) {
		const struct vroom_extent *e = &s->extent[i];
		const char *base = c->region[e->region].base;

		if (!base || base + e->offset != mem)
			continue;
		s->extents--;
		memmove(&s->extent[i], &s->extent[i + 1], (s->extents - i) * sizeof(s->extent[0]));
		break;
	}
	vroom_unlock(&s->lock);
}

int vroom_dma_reserve(struct vroom_ctrlr *c, size_t bytes)
{
	struct vroom_shared *s = c->shared;
	uint64_t total = 0, used = 0;
	int ret = 0;

	/* Room for queues and lists besides, so that BYTES can be had in one piece. */
	bytes = round_up(bytes + VROOM_GRANULE / 2, VROOM_GRANULE);
	vroom_lock(&s->lock);
	for (uint32_t i = 0; i < s->regions; i++)
		total += c->region[i].base && !c->region[i].shared ? c->region[i].bytes : 0;
	for (uint32_t i = 0; i < s->extents; i++)
		used += c->region[s->extent[i].region].base ? s->extent[i].bytes : 0;
	used += s->reserved;
	if (total - VROOM_MIN(used, total) < bytes)
		ret = add_region_locked(c, bytes);
	if (!ret)
		s->reserved += bytes;
	vroom_unlock(&s->lock);
	return ret;
}

/* Is the region that starts at BASE known to C? */
static bool has_region(const struct vroom_ctrlr *c, const void *base)
{
	for (unsigned i = 0; i < VROOM_MAX_REGIONS; i++)
		if (c->region[i].base == base)
			return true;
	return false;
}

/*
 * Memory of OWNER's pool that C uses by physical address gets a second name, so that it stays
 * until both controllers have been disabled.
 */
static int share_file(struct vroom_ctrlr *c, const struct vroom_ctrlr *owner, unsigned index)
{
	const char *dir = pool_directory(owner->region[index].granule_shift);
	char from[PATH_MAX], to[PATH_MAX];

	if (!c->pool[0])
		return 0;
	if (!owner->pool[0] || !dir)
		return vroom_fail(ENOTSUP, "%s: cannot reach the memory of %s", c->address.text,
				  owner->address.text);
	pool_path(owner, dir, index, from);
	pool_path(c, dir, c->shared->regions, to);
	return link(from, to) ? vroom_fail(errno, "%s: cannot link %s: %s", c->address.text, from,
					   strerror(errno))
			      : 0;
}

int vroom_dma_share(struct vroom_ctrlr *c, struct vroom_ctrlr *owner)
{
	struct vroom_shared *s = c->shared;
	int ret = 0;

	vroom_lock(&s->lock);
	for (unsigned i = 0; i < VROOM_MAX_REGIONS && !ret; i++) {
		struct vroom_dma_region r = owner->region[i];

		if (!r.base || r.shared || has_region(c, r.base))
			continue;
		if (s->regions == VROOM_MAX_REGIONS) {
			ret = vroom_fail(ENOMEM, "%s: all %d regions of DMA memory are in use",
					 c->address.text, VROOM_MAX_REGIONS);
			break;
		}
		ret = share_file(c, owner, i);
		if (ret)
			break;
		r.shared = true;
		r.iova = calloc(VROOM_MAX(r.bytes >> r.granule_shift, 1ul), sizeof(*r.iova));
		ret = r.iova ? map_region(c, &r, s->next_iova)
			     : vroom_fail(ENOMEM, "%s: out of memory", c->address.text);
		if (ret) {
			free(r.iova);
			break;
		}
		s->next_iova += r.bytes;
		c->region[s->regions++] = r;
	}
	vroom_unlock(&s->lock);
	return ret;
}

void vroom_dma_reclaim_locked(struct vroom_ctrlr *c, pid_t owner)
{
	struct vroom_shared *s = c->shared;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < s->extents; i++)
		if (s->extent[i].owner != owner)
			s->extent[kept++] = s->extent[i];
	s->extents = kept;
}

int vroom_dma_translate(struct vroom_ctrlr *c, const void *va, struct vroom_dma_window *out)
{
	for (unsigned i = 0; i < VROOM_MAX_REGIONS; i++) {
		const struct vroom_dma_region *r = &c->region[i];

		if (r->base && (uintptr_t)va - (uintptr_t)r->base < r->bytes) {
			*out = (struct vroom_dma_window){
				.base = (uintptr_t)r->base,
				.bytes = r->bytes,
				.iova = r->iova,
				.granule_shift = r->granule_shift,
			};
			return 0;
		}
	}
	return -EFAULT;
}

uint64_t vroom_dma_iova(struct vroom_ctrlr *c, const void *va)
{
	struct vroom_dma_window w;
	size_t offset;

	if (vroom_dma_translate(c, va, &w))
		abort(); /* a bug: VA is not from vroom_dma_alloc() */
	offset = (uintptr_t)va - w.base;
	return w.iova[offset >> w.granule_shift] + (offset & ((1ul << w.granule_shift) - 1));
}

void vroom_dma_release_all(struct vroom_ctrlr *c)
{
	for (unsigned i = 0; i < VROOM_MAX_REGIONS; i++) {
		struct vroom_dma_region *r = &c->region[i];

		if (!r->base)
			continue;
		if (!r->shared) {
			munmap(r->base, r->bytes);
			close(r->fd);
		}
		free(r->iova);
		r->base = NULL;
	}
}
