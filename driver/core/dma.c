/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * DMA memory: a few large shared regions that the controller can reach, and a first-fit
 * allocator over them whose bookkeeping forked processes share.
 *
 * A region is hugetlbfs memory where enough huge pages are free, else an anonymous file.
 * Neither has a name, so nothing is left behind however the process ends. (A transport
 * without an IOMMU will need the pages to outlive the process: docs/architecture.md.)
 */
#include <errno.h>
#include <stddef.h>

#include <hugetlbfs.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/internal.h"

#define GRANULE_SHIFT 21u
#define GRANULE	      (1ul << GRANULE_SHIFT)
/* Memory is taken page by page as it is touched, so that a generous size costs nothing. */
#define REGION_BYTES (256ul << 20)
/* Each region is twice the one before, up to this: controllers allow only so many. */
#define REGION_BYTES_MAX (16ul << 30)

static size_t round_up(size_t value, size_t to)
{
	return (value + to - 1) / to * to;
}

/* BYTES of huge pages, or NULL when there are not enough free ones. */
static void *map_huge(size_t bytes, int *fd)
{
	void *base;

	if (gethugepagesize() != (long)GRANULE)
		return NULL;
	*fd = hugetlbfs_unlinked_fd();
	if (*fd < 0)
		return NULL;
	if (ftruncate(*fd, (off_t)bytes) == 0) {
		/* Reserves all pages at once, or fails: no SIGBUS later. */
		base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
		if (base != MAP_FAILED)
			return base;
	}
	close(*fd);
	return NULL;
}

static void *map_ordinary(size_t bytes, int *fd)
{
	void *base;

	*fd = memfd_create("vroom-dma", MFD_CLOEXEC);
	if (*fd < 0)
		return NULL;
	if (ftruncate(*fd, (off_t)bytes) == 0) {
		base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
		if (base != MAP_FAILED)
			return base;
	}
	close(*fd);
	return NULL;
}

/* Adds a region of at least BYTES. The lock is held. */
static int add_region_locked(struct vroom_ctrlr *c, size_t bytes)
{
	struct vroom_shared *s = c->shared;
	struct vroom_dma_region r = { .granule_shift = GRANULE_SHIFT, .fd = -1 };
	int ret;

	if (s->regions == VROOM_MAX_REGIONS)
		return vroom_fail(ENOMEM, "%s: all %d regions of DMA memory are in use",
				  c->address.text, VROOM_MAX_REGIONS);
	r.bytes = round_up(bytes, GRANULE);
	r.base = map_huge(r.bytes, &r.fd);
	if (!r.base) {
		r.bytes =
			VROOM_MAX(r.bytes, VROOM_MIN(REGION_BYTES << s->regions, REGION_BYTES_MAX));
		r.base = map_ordinary(r.bytes, &r.fd);
	}
	if (!r.base)
		return vroom_fail(ENOMEM, "%s: cannot map %zu bytes of DMA memory: %s",
				  c->address.text, r.bytes, strerror(errno));
	r.iova = calloc(r.bytes >> GRANULE_SHIFT, sizeof(*r.iova));
	if (!r.iova) {
		ret = vroom_fail(ENOMEM, "%s: out of memory", c->address.text);
		goto out_unmap;
	}
	ret = c->transport->ops->dma_map(c->transport, &r, s->next_iova);
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

	bytes = round_up(bytes, GRANULE);
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
		r.shared = true;
		r.iova = calloc(r.bytes >> r.granule_shift, sizeof(*r.iova));
		ret = r.iova ? c->transport->ops->dma_map(c->transport, &r, s->next_iova)
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
