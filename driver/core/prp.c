/* SPDX-License-Identifier: BSD-3-Clause */
#include "core/core.h"

void vroom_prp_begin(struct vroom_prps *p, size_t page_size, uint64_t *list)
{
	*p = (struct vroom_prps){ .page_size = page_size, .list = list };
}

static int add_page(struct vroom_prps *p, uint64_t iova, size_t bytes)
{
	uint64_t offset = iova & (p->page_size - 1);

	if (p->open || (p->pages ? offset : iova & 3))
		return -EINVAL;
	if (p->pages > VROOM_PRP_LIST_ENTRIES)
		return -E2BIG;
	if (p->pages == 0)
		p->prp1 = iova;
	else if (p->pages == 1)
		p->second = iova;
	if (p->pages == 2)
		p->list[0] = p->second;
	if (p->pages >= 2)
		p->list[p->pages - 1] = iova;
	p->pages++;
	p->open = offset + bytes < p->page_size;
	return 0;
}

int vroom_prp_add(struct vroom_prps *p, struct vroom_dma_space *space, const void *va, size_t bytes)
{
	uintptr_t at = (uintptr_t)va, end = at + bytes;
	struct vroom_dma_range *w = &p->range;
	int ret = 0;

	while (at < end && !ret) {
		uint64_t iova;
		size_t n;

		if (at - w->base >= w->bytes && vroom_space_find(space, (const void *)at, w))
			return -EFAULT;
		iova = at + w->delta;
		n = VROOM_MIN(end - at, p->page_size - (iova & (p->page_size - 1)));
		if (n > w->bytes - (at - w->base)) /* a controller's page in two places */
			return -EINVAL;
		ret = add_page(p, iova, n);
		at += n;
	}
	return ret;
}

uint64_t vroom_prp_second(const struct vroom_prps *p, uint64_t list_iova)
{
	return p->pages > 2 ? list_iova : p->second;
}
