/* SPDX-License-Identifier: BSD-3-Clause */
/* DMA memory as programs ask for it, and as drives do (host memory buffer). */
#include <sys/stat.h>

#include "core/core.h"

void *vroom_dma_alloc(struct vroom_ctrlr *c, size_t bytes, size_t align)
{
	struct vroom_dma_pool *pool = &c->pool;
	void *mem;

	if (!bytes || bytes > VROOM_DMA_MAX || align > VROOM_DMA_MAX || (align & (align - 1))) {
		vroom_fail_on(c->name, EINVAL, "no DMA memory of %zu bytes at %zu", bytes, align);
		return NULL;
	}
	align = VROOM_MAX(align ? align : c->page_size, VROOM_DMA_UNIT);
	mem = vroom_pool_alloc(pool, bytes, align);
	if (!mem && c->ready) {
		vroom_ctrlr_reclaim(c);
		mem = vroom_pool_alloc(pool, bytes, align);
	}
	/* Others may take what was added, so more than once. */
	for (int tries = 0; !mem && tries < 3 && !vroom_pool_grow(pool, bytes, align); tries++)
		mem = vroom_pool_alloc(pool, bytes, align);
	return mem;
}

void vroom_dma_free(struct vroom_ctrlr *c, void *mem)
{
	vroom_pool_free_memory(&c->pool, mem);
}

int vroom_dma_reserve(struct vroom_ctrlr *c, size_t bytes)
{
	if (bytes > VROOM_DMA_MAX)
		return vroom_fail_on(c->name, EINVAL, "cannot reserve %zu bytes", bytes);
	bytes += VROOM_HUGE_PAGE / 2; /* for queues and lists */
	if (vroom_pool_has_room(&c->pool, bytes))
		return 0;
	return vroom_pool_grow(&c->pool, bytes, VROOM_DMA_UNIT);
}

int vroom_dma_share(struct vroom_ctrlr *c, struct vroom_ctrlr *owner)
{
	int ret;

	if (c == owner || c->lender == owner)
		return 0;
	if (c->lender || owner->lender)
		return vroom_fail_on(c->name, EBUSY, "one of them shares another's memory already");
	ret = vroom_pool_share(&owner->pool, &c->space);
	if (!ret)
		c->lender = owner;
	return ret;
}

int vroom_dma_register(struct vroom_ctrlr *c, void *mem, size_t bytes, int fd, uint64_t fd_offset)
{
	struct vroom_dma_map map = { .va = mem, .bytes = bytes, .fd = fd, .fd_offset = fd_offset };
	uintptr_t both = (uintptr_t)mem | bytes;
	struct stat st;

	if (!mem || !bytes || both % VROOM_DMA_UNIT)
		return vroom_fail_on(c->name, EINVAL, "memory to register is not in units of %lu",
				     VROOM_DMA_UNIT);
	if (fd >= 0 && (fstat(fd, &st) || fd_offset > (uint64_t)st.st_size ||
			bytes > (uint64_t)st.st_size - fd_offset))
		return vroom_fail_on(c->name, EINVAL, "descriptor %d holds no such memory", fd);
	if (c->space.prefix[0])
		return vroom_fail_on(c->name, ENOTSUP, "needs an IOMMU; use vroom_dma_alloc()");
	if (vroom_space_overlaps(&c->space, mem, bytes))
		return vroom_fail_on(c->name, EEXIST, "can reach a part of the memory already");
	/* As large pages as there are in it, for there are fewer of them then. */
	map.page_shift = (unsigned)__builtin_ctzl(both);
	return vroom_space_map(&c->space, &map, 0);
}

int vroom_dma_unregister(struct vroom_ctrlr *c, void *mem, size_t bytes)
{
	int ret = vroom_space_unmap(&c->space, mem, bytes);

	vroom_lock(&c->shared->lock);
	for (struct vroom_qpair *qp = c->first_qpair; qp && !ret; qp = qp->cold->next)
		if (__atomic_load_n(&qp->range.base, __ATOMIC_RELAXED) - (uintptr_t)mem < bytes)
			__atomic_store_n(&qp->range.base, VROOM_NOWHERE, __ATOMIC_RELAXED);
	vroom_unlock(&c->shared->lock);
	if (ret == -ENOENT)
		return vroom_fail_on(c->name, ENOENT, "the memory was not registered so");
	return ret;
}

#define MAX_BYTES   (128ul << 20)   /* as the kernel's driver lends at most */
#define HMB_UNIT    4096ul	    /* of HMPRE, HMMIN and HMMINDS in Identify Controller */
#define PIECE_BYTES VROOM_HUGE_PAGE /* contiguous for the controller */

static void free_all(struct vroom_ctrlr *c)
{
	struct vroom_hmb *h = &c->hmb;

	while (h->pieces)
		vroom_dma_free(c, h->piece[--h->pieces]);
	vroom_dma_free(c, h->list);
	*h = (struct vroom_hmb){ 0 };
}

static void allocate(struct vroom_ctrlr *c, size_t wanted, size_t piece, unsigned limit)
{
	struct vroom_hmb *h = &c->hmb;

	h->list = vroom_dma_alloc(c, limit * sizeof(*h->list), c->page_size);
	while (h->list && h->bytes < wanted && h->pieces < limit) {
		void *mem = vroom_dma_alloc(c, piece, piece);

		if (!mem)
			break;
		memset(mem, 0, piece);
		h->list[h->pieces] = (struct nvme_hmb_descriptor){
			.address = vroom_space_iova(&c->space, mem),
			.size = (uint32_t)(piece / c->page_size),
		};
		h->piece[h->pieces++] = mem;
		h->bytes += piece;
	}
}

static int set_feature(struct vroom_ctrlr *c, bool enable)
{
	const struct vroom_hmb *h = &c->hmb;
	uint64_t list = vroom_space_iova(&c->space, h->list);
	const uint32_t disable[5] = { 0 };
	const uint32_t cdw[5] = { NVME_HMB_ENABLE, (uint32_t)(h->bytes / c->page_size),
				  (uint32_t)list, (uint32_t)(list >> 32), h->pieces };

	return vroom_admin_set_feature(c, NVME_FEAT_HOST_MEMORY, enable ? cdw : disable, NULL);
}

void vroom_hmb_lend(struct vroom_ctrlr *c)
{
	size_t wanted = VROOM_MIN(c->id.hmpre * HMB_UNIT, MAX_BYTES);
	size_t least = c->id.hmmin * HMB_UNIT, piece = PIECE_BYTES;
	unsigned limit = VROOM_HMB_MAX_PIECES;

	if (!c->id.hmpre || c->opts.no_host_memory)
		return;
	if (c->id.hmmaxd)
		limit = VROOM_MIN(limit, c->id.hmmaxd);
	/* As few pieces as the drive allows, and none larger than the buffer. */
	while (piece * limit < wanted)
		piece *= 2;
	while (piece > c->page_size && piece / 2 >= wanted)
		piece /= 2;
	while (piece < c->id.hmminds * HMB_UNIT)
		piece *= 2;
	if (least > piece * limit || (c->transport->pool && piece > PIECE_BYTES))
		return;
	allocate(c, wanted, piece, limit);
	if (!c->hmb.bytes || c->hmb.bytes < least || set_feature(c, true))
		free_all(c);
	else
		vroom_notice(
			c, "lends the drive %zu KiB of memory, as it asks for (host memory buffer)",
			c->hmb.bytes >> 10);
}

void vroom_hmb_take_back(struct vroom_ctrlr *c)
{
	if (c->hmb.bytes && !set_feature(c, false))
		free_all(c);
}
