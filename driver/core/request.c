/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Submission and completion of what does not fit the path of vroom_qpair.h: PRP lists, buffers that
 * the controller cannot reach, memory in pieces, ranges, requests larger than a command may be.
 */

#include "core/core.h"

#define BOUNCE_PART_BYTES (256ul << 10) /* of a request that is copied: few copies, and small */
#define BOUNCE_BYTES_MAX  (64ul << 20)	/* that a queue pair keeps for copies */

NVME_ASSERT(NVME_DSM_MAX_RANGES * sizeof(struct nvme_dsm_range) <= VROOM_PRP_LIST_BYTES,
	    "ranges lie where PRP lists do");

/* Of BYTES from OFFSET on; walk_next() comes to the first piece. */
static struct vroom_walk walk_from(const struct vroom_io *io, uint64_t offset, uint64_t bytes)
{
	return (struct vroom_walk){
		.at = io->buf, .iov = io->iov, .offset = offset, .left = bytes
	};
}

static bool walk_next(struct vroom_walk *w)
{
	if (!w->left)
		return false;
	while (w->iov && w->offset >= w->iov->iov_len)
		w->offset -= w->iov++->iov_len;
	if (w->iov)
		w->at = w->iov->iov_base;
	w->at += w->offset;
	w->bytes = w->iov ? VROOM_MIN(w->iov->iov_len - w->offset, w->left) : w->left;
	w->offset += w->bytes;
	w->left -= w->bytes;
	return true;
}

static void copy(struct vroom_walk w, char *mem, bool to_mem)
{
	for (; walk_next(&w); mem += w.bytes)
		memcpy(to_mem ? mem : w.at, to_mem ? w.at : mem, w.bytes);
}

static bool has_memory(const struct vroom_io *io)
{
	uint64_t bytes = 0;

	if (!io->iov)
		return io->buf || !io->bytes;
	for (unsigned i = 0; i < io->iovcnt; i++) {
		if (!io->iov[i].iov_base && io->iov[i].iov_len)
			return false;
		bytes += io->iov[i].iov_len;
	}
	return bytes >= io->bytes;
}

static void *get_list(struct vroom_qpair *qp, uint32_t cid)
{
	struct vroom_qpair_cold *cold = qp->cold;

	if (!cold->lists)
		cold->lists = vroom_dma_alloc(qp->ctrlr, qp->depth * VROOM_PRP_LIST_BYTES, 0);
	return cold->lists ? cold->lists + (size_t)cid * VROOM_PRP_LIST_BYTES : NULL;
}

static void free_bounce(struct vroom_qpair *qp, struct vroom_slot_cold *slot)
{
	qp->cold->bounce_bytes -= slot->bounce_bytes;
	vroom_dma_free(qp->ctrlr, slot->bounce);
	slot->bounce = NULL;
	slot->bounce_bytes = 0;
}

/* DMA memory of at least BYTES for SLOT, which keeps it. What idle slots have goes first. */
static bool get_bounce(struct vroom_qpair *qp, struct vroom_slot_cold *slot, size_t bytes)
{
	struct vroom_qpair_cold *cold = qp->cold;

	if (slot->bounce_bytes >= bytes)
		return true;
	free_bounce(qp, slot);
	for (uint32_t i = 0; i < qp->depth && cold->bounce_bytes + bytes > BOUNCE_BYTES_MAX; i++)
		if (qp->slots[i].state == VROOM_SLOT_FREE)
			free_bounce(qp, &cold->slots[i]);
	if (cold->bounce_bytes && cold->bounce_bytes + bytes > BOUNCE_BYTES_MAX)
		return false;
	slot->bounce = vroom_dma_alloc(qp->ctrlr, bytes, 0);
	if (!slot->bounce)
		return false;
	slot->bounce_bytes = bytes;
	cold->bounce_bytes += bytes;
	return true;
}

/* PRPs of what W goes over, by two entries in PRP. An error: they cannot be. */
static int map(struct vroom_qpair *qp, void *list, struct vroom_walk w, uint64_t prp[2])
{
	struct vroom_prps prps;
	int ret = 0;

	vroom_prp_begin(&prps, qp->ctrlr->page_size, list);
	while (!ret && walk_next(&w))
		ret = vroom_prp_add(&prps, &qp->ctrlr->space, w.at, w.bytes);
	if (ret)
		return ret;
	/* The next buffer is likely to be near this one; translation wants two pages at least. */
	if (prps.range.bytes > 2 * qp->page_mask + 1)
		vroom_qpair_set_range(qp, &prps.range);
	prp[0] = prps.prp1;
	prp[1] = vroom_prp_second(&prps,
				  prps.pages > 2 ? vroom_space_iova(&qp->ctrlr->space, list) : 0);
	return 0;
}

/* The same through memory of the driver's. */
static int map_copied(struct vroom_qpair *qp, uint32_t cid, void *list, struct vroom_walk w,
		      uint8_t opcode, uint64_t prp[2])
{
	struct vroom_slot_cold *slot = &qp->cold->slots[cid];
	struct vroom_walk bounce = { .left = w.left };
	int ret;

	if (!get_bounce(qp, slot, w.left))
		return -ENOMEM;
	bounce.at = slot->bounce;
	ret = map(qp, list, bounce, prp);
	if (ret)
		return ret;
	if (nvme_direction(opcode) & NVME_TO_CTRLR)
		copy(w, slot->bounce, true);
	if (nvme_direction(opcode) & NVME_TO_HOST)
		slot->copy_to = w;
	return 0;
}

/* PRPs of the data of IO, which is what W goes over. -ENOMEM: no DMA memory now. */
static int map_data(struct vroom_qpair *qp, uint32_t cid, const struct vroom_io *io,
		    struct vroom_walk w, uint64_t prp[2])
{
	void *list;

	if (!io->bytes)
		return 0;
	list = get_list(qp, cid);
	if (!list)
		return -ENOMEM;
	if (io->kind == VROOM_IO_RANGES) { /* copied always: the caller may change them at once */
		memcpy(list, io->buf, io->bytes);
		prp[0] = vroom_space_iova(&qp->ctrlr->space, list);
		return 0;
	}
	if (map(qp, list, w, prp) == 0)
		return 0;
	return map_copied(qp, cid, list, w, io->sqe.opcode, prp);
}

/*
 * Posts one command, whose data W goes over; a free slot is there. REQUEST: it is a part of that
 * one. -ENOMEM: no DMA memory now.
 */
static int post(struct vroom_qpair *qp, const struct vroom_io *io, struct vroom_walk w,
		struct vroom_request *request)
{
	uint32_t cid = qp->free_slot; /* the one that vroom_post() takes */
	struct vroom_slot_cold *cold = &qp->cold->slots[cid];
	uint64_t prp[2] = { 0 };
	struct vroom_slot *slot;
	int ret;

	cold->request = request;
	cold->copy_to.left = 0;
	ret = map_data(qp, cid, io, w, prp);
	if (ret)
		return ret;
	slot = vroom_post(qp, io, prp[0], prp[1]);
	if (vroom_is_long(io->sqe.opcode))
		slot->deadline = vroom_long_deadline(&qp->cold->watchdog);
	if (request || cold->copy_to.left)
		slot->state = VROOM_SLOT_SLOW;
	return 0;
}

/* Moves slots that were freed since to those that are held back. */
static void hold_back(struct vroom_qpair *qp)
{
	while (qp->free_slot != VROOM_NO_SLOT) {
		struct vroom_slot *slot = &qp->slots[qp->free_slot];
		uint32_t cid = qp->free_slot;

		qp->free_slot = slot->next_free;
		slot->next_free = qp->cold->held_slot;
		qp->cold->held_slot = cid;
	}
}

/* With no slack each poll that finds something comes to vroom_poll_rest(). */
void vroom_qpair_block(struct vroom_qpair *qp)
{
	if (!qp->blocked) {
		qp->blocked = true;
		qp->cold->slack = qp->cq.slack;
		qp->cq.slack = qp->cq.left = 0;
		qp->cold->held_slot = VROOM_NO_SLOT;
	}
	hold_back(qp);
}

static void unblock(struct vroom_qpair *qp)
{
	if (!qp->blocked)
		return;
	hold_back(qp);
	qp->blocked = false;
	qp->cq.slack = qp->cq.left = qp->cold->slack;
	qp->free_slot = qp->cold->held_slot;
}

static uint64_t blocks_per_command(const struct vroom_qpair *qp, const struct vroom_io *io)
{
	if (io->kind == VROOM_IO_BLOCKS)
		return NVME_RW_MAX_NLB;
	return VROOM_MIN(qp->ctrlr->max_transfer >> io->lba_shift, (uint64_t)NVME_RW_MAX_NLB);
}

static int post_part(struct vroom_qpair *qp, struct vroom_request *r)
{
	uint64_t nlb = VROOM_MIN(r->io.nlb - r->submitted, r->part_blocks);
	struct vroom_io part = r->io;
	struct vroom_walk w;
	int ret;

	nvme_sqe_set_slba(&part.sqe, nvme_sqe_slba(&r->io.sqe) + r->submitted);
	nvme_sqe_set_nlb(&part.sqe, (uint32_t)nlb);
	part.nlb = nlb;
	part.bytes = r->io.bytes ? nlb << part.lba_shift : 0;
	w = walk_from(&r->io, r->submitted << part.lba_shift, part.bytes);
	ret = post(qp, &part, w, r);
	if (!ret) {
		r->outstanding++;
		r->submitted += nlb;
	}
	return ret;
}

/*
 * Where memory is short, parts wait for others to complete, and get smaller when there are none to
 * wait for; only where there is none at all the rest is given up, and the request ends with an
 * error.
 */
static void post_parts(struct vroom_qpair *qp, struct vroom_request *r)
{
	while (r->submitted < r->io.nlb && !r->status && qp->free_slot != VROOM_NO_SLOT) {
		if (post_part(qp, r) == 0)
			continue;
		if (r->outstanding)
			return;
		if (r->part_blocks == 1)
			r->status = NVME_SC_INTERNAL_ERROR << NVME_STATUS_SC_SHIFT;
		r->part_blocks = VROOM_MAX(r->part_blocks / 2, 1u);
	}
}

/* The completion of a part calls this again. */
void vroom_request_continue(struct vroom_qpair *qp)
{
	struct vroom_request *r = qp->cold->splitting;

	unblock(qp);
	if (r)
		post_parts(qp, r);
	if (r && (r->status || r->submitted == r->io.nlb)) {
		r->submitted = r->io.nlb; /* after a failure nothing more will be */
		qp->cold->splitting = NULL;
	} else if (r) {
		vroom_qpair_block(qp);
	}
	vroom_ring(qp);
}

/* Perhaps, for an iovec; small parts do no harm. */
static bool is_copied(struct vroom_qpair *qp, const struct vroom_io *io)
{
	struct vroom_dma_range w;

	if (io->iov)
		return true;
	return vroom_space_find(&qp->ctrlr->space, io->buf, &w) || ((uintptr_t)io->buf & 3);
}

/* There is no memory for IO: not now, or not at all when no completion can give some back. */
static int no_dma_memory(const struct vroom_qpair *qp, const struct vroom_io *io)
{
	for (uint32_t cid = 0; cid < qp->depth; cid++)
		if (qp->slots[cid].state != VROOM_SLOT_FREE)
			return -EAGAIN;
	return vroom_fail_on(qp->ctrlr->name, ENOMEM, "no DMA memory for a transfer of %llu bytes",
			     (unsigned long long)io->bytes);
}

static int submit_split(struct vroom_qpair *qp, const struct vroom_io *io, uint64_t part_blocks)
{
	struct vroom_request *r = calloc(1, sizeof(*r));
	uint64_t copied = (uint64_t)BOUNCE_PART_BYTES >> io->lba_shift;

	if (!r)
		return vroom_fail_on(qp->ctrlr->name, ENOMEM, "out of memory");
	if (io->bytes && is_copied(qp, io))
		part_blocks = VROOM_MAX(VROOM_MIN(part_blocks, copied), 1u);
	r->io = *io;
	r->part_blocks = part_blocks;
	qp->cold->splitting = r;
	vroom_request_continue(qp);
	if (r->outstanding)
		return 0;
	free(r);
	return no_dma_memory(qp, io);
}

static bool names_blocks(const struct vroom_io *io)
{
	return io->kind == VROOM_IO_DATA || io->kind == VROOM_IO_BLOCKS;
}

static const char *what_is_wrong(const struct vroom_qpair *qp, const struct vroom_io *io)
{
	if (names_blocks(io) && !io->nlb)
		return "it names no blocks";
	if (io->kind == VROOM_IO_RANGES && (!io->nlb || io->nlb > NVME_DSM_MAX_RANGES))
		return "it names no ranges, or more than 256";
	if (io->kind == VROOM_IO_DATA && io->nlb > UINT64_MAX >> 1 >> io->lba_shift)
		return "it names too many blocks";
	if (io->kind == VROOM_IO_RAW && io->bytes && !nvme_direction(io->sqe.opcode))
		return "it has data, but its opcode says that it moves none";
	if (!has_memory(io))
		return "it has no memory for its data, or too little";
	if (names_blocks(io) && !blocks_per_command(qp, io))
		return "the controller's transfers (MDTS) are smaller than a block";
	if (!names_blocks(io) && io->bytes > qp->ctrlr->max_transfer)
		return "it moves more than the controller's limit (MDTS) and cannot be split";
	return NULL;
}

int vroom_submit_blocked(const struct vroom_qpair *qp)
{
	return qp->error ? qp->error : -EAGAIN;
}

int vroom_submit_slow(struct vroom_qpair *qp, const struct vroom_io *io)
{
	const char *wrong = what_is_wrong(qp, io);
	int ret;

	if (wrong)
		return vroom_fail_on(qp->ctrlr->name, EINVAL, "command %02xh was not submitted: %s",
				     io->sqe.opcode, wrong);
	if (names_blocks(io) && io->nlb > blocks_per_command(qp, io))
		return submit_split(qp, io, blocks_per_command(qp, io));
	ret = post(qp, io, walk_from(io, 0, io->bytes), NULL);
	if (ret && names_blocks(io) && io->nlb > 1) /* less at a time may go */
		return submit_split(qp, io, (io->nlb + 1) / 2);
	return ret ? no_dma_memory(qp, io) : 0;
}

static int bad_completion(struct vroom_qpair *qp, uint32_t cid)
{
	int ret = vroom_fail_on(qp->ctrlr->name, EPROTO,
				"queue %u: the controller completed command %u, which is not "
				"outstanding; it is broken or another program drives it too",
				qp->qid, cid);

	vroom_ctrlr_mark_failed(qp->ctrlr, ret);
	vroom_qpair_end(qp, ret);
	return ret;
}

/* A part of R has completed with STATUS: is that the end of R? */
static bool finish_part(struct vroom_qpair *qp, struct vroom_request *r, uint16_t *status)
{
	r->outstanding--;
	if (*status && !r->status)
		r->status = *status;
	if (r->outstanding || (r->submitted < r->io.nlb && !r->status))
		return false;
	if (qp->cold->splitting == r)
		qp->cold->splitting = NULL;
	*status = r->status;
	free(r);
	return true;
}

int vroom_complete(struct vroom_qpair *qp, uint32_t last, struct vroom_completion *done)
{
	uint32_t cid = last & 0xffff;
	struct vroom_slot *slot = &qp->slots[cid];
	struct vroom_slot_cold *cold;
	bool slow;

	if (cid >= qp->depth || slot->state == VROOM_SLOT_FREE)
		return bad_completion(qp, cid);
	cold = &qp->cold->slots[cid];
	slow = slot->state == VROOM_SLOT_SLOW;
	done->tag = slot->tag;
	done->status = (uint16_t)(last >> 16);
	done->result = nvme_cqe_result(&qp->cq.entries[qp->cq.head]);
	if (slow && !done->status)
		copy(cold->copy_to, cold->bounce, false);
	slot->state = VROOM_SLOT_FREE;
	slot->next_free = qp->free_slot;
	qp->free_slot = cid;
	if (slow && cold->request)
		return finish_part(qp, cold->request, &done->status);
	return 1;
}

void vroom_request_free_all(struct vroom_qpair *qp)
{
	struct vroom_request *r = qp->cold->splitting;

	if (r && !r->outstanding) /* QP failed, and then its parts completed all the same */
		free(r);
	qp->cold->splitting = NULL;
	for (uint32_t cid = 0; cid < qp->depth; cid++) {
		struct vroom_slot_cold *slot = &qp->cold->slots[cid];

		if (qp->slots[cid].state == VROOM_SLOT_SLOW && slot->request &&
		    --slot->request->outstanding == 0)
			free(slot->request);
		free_bounce(qp, slot);
	}
	vroom_dma_free(qp->ctrlr, qp->cold->lists);
	qp->cold->lists = NULL;
}
