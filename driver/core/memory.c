/* SPDX-License-Identifier: BSD-3-Clause */
/* DMA memory as programs ask for it. */
#include <errno.h>
#include <stdint.h>

#include "base/error.h"
#include "base/size.h"
#include "base/lock.h"
#include "core/qpair.h"

void *vroom_dma_alloc(struct vroom_ctrlr *c, size_t bytes, size_t align)
{
	struct vroom_dma_pool *pool = &c->pool;
	void *mem;

	align = VROOM_MAX(align ? align : c->page_size, VROOM_DMA_UNIT);
	if (!bytes || bytes > VROOM_DMA_MAX || align > VROOM_DMA_MAX || (align & (align - 1))) {
		vroom_fail_on(c->name, EINVAL, "no DMA memory of %zu bytes at %zu", bytes, align);
		return NULL;
	}
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
	if (c->lender)
		return vroom_fail_on(c->name, EBUSY, "shares memory of %s", c->lender->name);
	ret = vroom_pool_share(&owner->pool, &c->space);
	if (!ret)
		c->lender = owner;
	return ret;
}

int vroom_dma_register(struct vroom_ctrlr *c, void *mem, size_t bytes, int fd, uint64_t fd_offset)
{
	struct vroom_dma_map map = { .va = mem, .bytes = bytes, .fd = fd, .fd_offset = fd_offset };
	uintptr_t both = (uintptr_t)mem | bytes;

	if (!mem || !bytes || both % VROOM_DMA_UNIT)
		return vroom_fail_on(c->name, EINVAL, "memory to register is not in units of %lu",
				     VROOM_DMA_UNIT);
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
		if (qp->window.base - (uintptr_t)mem < bytes)
			vroom_qpair_forget_window(qp);
	vroom_unlock(&c->shared->lock);
	if (ret == -ENOENT)
		return vroom_fail_on(c->name, ENOENT, "the memory was not registered so");
	return ret;
}
