/* SPDX-License-Identifier: BSD-3-Clause */
/* Physical Region Page entries and lists (Base 4.1.1). */
#include <errno.h>

#include "core/internal.h"

/*
 * A list page holds page_size / 8 entries; in all but the last page the final entry
 * points to the next page. PRP1 names the first page and, with two pages in all, PRP2
 * the second.
 */
unsigned vroom_prp_list_pages(const struct vroom_ctrlr *c, uint64_t offset_in_page, size_t bytes)
{
	size_t pages = (offset_in_page + bytes + c->page_size - 1) / c->page_size;
	size_t per_page = c->page_size / sizeof(uint64_t);
	size_t entries = pages - 1; /* PRP1 takes one */

	if (pages <= 2)
		return 0;
	if (entries <= per_page)
		return 1;
	/* Every page but the last carries per_page - 1 of them. */
	return (unsigned)((entries - 1 + per_page - 2) / (per_page - 1));
}

int vroom_prp_build(struct vroom_ctrlr *c, const void *va, size_t bytes, uint64_t *list,
		    uint64_t *prp1, uint64_t *prp2)
{
	size_t page = c->page_size, per_page = page / sizeof(uint64_t);
	uint64_t first = vroom_dma_iova(c, va);
	const char *next = (const char *)va + (page - (first & (page - 1)));
	const char *end = (const char *)va + bytes;
	size_t at = 0;

	if (first & 3)
		return -EINVAL;
	*prp1 = first;
	*prp2 = 0;
	if (next >= end)
		return 0;
	if (end <= next + page) {
		*prp2 = vroom_dma_iova(c, next);
		return 0;
	}
	*prp2 = vroom_dma_iova(c, list);
	for (; next < end; next += page) {
		if (at % per_page == per_page - 1 && next + page < end) {
			list[at] = vroom_dma_iova(c, &list[at + 1]);
			at++;
		}
		list[at++] = vroom_dma_iova(c, next);
	}
	return 0;
}
