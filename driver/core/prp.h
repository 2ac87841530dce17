/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Physical Region Page entries and lists (Base 4.1.1). PRP1 names the first page, from any offset
 * on; with two pages in all PRP2 names the second, with more it names a list of them. A list holds
 * VROOM_PRP_LIST_ENTRIES at most, so it never goes on in another: commands are not larger.
 */
#ifndef VROOM_PRP_H
#define VROOM_PRP_H

#include <stddef.h>
#include <stdint.h>

#include "core/dma.h"

#define VROOM_PRP_LIST_BYTES   4096u
#define VROOM_PRP_LIST_ENTRIES (VROOM_PRP_LIST_BYTES / sizeof(uint64_t))

/* A list being written. */
struct vroom_prps {
	size_t page_size;
	struct vroom_dma_window window; /* where memory was found last, or is likely to be found */
	uint64_t *list;			/* VROOM_PRP_LIST_ENTRIES long */
	uint64_t prp1;
	uint64_t second; /* the second entry, which the list begins with if there is a third */
	unsigned pages;
	bool open; /* the last page ended before its end: nothing can follow */
};

/* Begins a list in LIST for pages of PAGE_SIZE bytes. WINDOW: a place to look first, or NULL. */
void vroom_prp_begin(struct vroom_prps *p, size_t page_size, uint64_t *list,
		     const struct vroom_dma_window *window);

/*
 * Adds BYTES at VA. 0; -EFAULT: SPACE does not see all of it; -EINVAL: PRP entries cannot describe
 * it (alignment, or a hole between pieces); -E2BIG: the list is full.
 */
int vroom_prp_add(struct vroom_prps *p, struct vroom_dma_space *space, const void *va,
		  size_t bytes);

/* PRP2, with the list at LIST_IOVA. */
uint64_t vroom_prp_second(const struct vroom_prps *p, uint64_t list_iova);

#endif
