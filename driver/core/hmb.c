/* SPDX-License-Identifier: BSD-3-Clause */
/* The host memory buffer: without it drives that ask for one are slower than under the kernel. */
#include <string.h>

#include "base/size.h"
#include "core/ctrlr.h"

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
