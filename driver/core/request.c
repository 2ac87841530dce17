/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Submission and completion of what does not fit the path of vroom_qpair.h: PRP lists, buffers that
 * the controller cannot reach, memory in pieces, ranges, requests larger than a command may be.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "core/prp.h"
#include "core/qpair.h"

/* A request that is copied goes out in parts of this size, so that copies are few and small. */
#define BOUNCE_PART_BYTES (256ul << 10)
/* Memory for copies that a queue pair keeps. */
#define BOUNCE_BYTES_MAX (64ul << 20)

NVME_ASSERT(NVME_DSM_MAX_RANGES * sizeof(struct nvme_dsm_range) <= VROOM_PRP_LIST_BYTES,
	    "ranges lie where PRP lists do");

/* --- the caller's memory ----------------------------------------------------------------------
 */

/* Calls EACH for the pieces of BYTES of IO's memory from OFFSET on, while it returns 0. */
static int for_pieces(const struct vroom_io *io, uint64_t offset, uint64_t bytes,
		      int (*each)(void *arg, void *piece, size_t bytes), void *arg)
{
	int ret = 0;

	if (!io->iov)
		return each(arg, (char *)io->buf + offset, bytes);
	for (unsigned i = 0; i < io->iovcnt && bytes && !ret; i++) {
		size_t length = io->iov[i].iov_len, n;

		if (offset >= length) {
			offset -= length;
			continue;
		}
		n = VROOM_MIN(length - offset, bytes);
		ret = each(arg, (char *)io->iov[i].iov_base + offset, n);
		offset = 0;
		bytes -= n;
	}
	return ret;
}

static int copy_out(void *arg, void *piece, size_t bytes)
{
	char **at = arg;

	memcpy(*at, piece, bytes);
	*at += bytes;
	return 0;
}

static int copy_in(void *arg, void *piece, size_t bytes)
{
	char **at = arg;

	memcpy(piece, *at, bytes);
	*at += bytes;
	return 0;
}

struct add_arg {
	struct vroom_prps *prps;
	struct vroom_dma_space *space;
};

static int add_piece(void *arg, void *piece, size_t bytes)
{
	const struct add_arg *a = arg;

	return vroom_prp_add(a->prps, a->space, piece, bytes);
}

/* Is there memory for all of it? */
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

/* --- memory of the driver's ----------------------------------------------------------------------
 */

/* The slot's page for PRP lists and ranges; NULL: no memory. */
static void *get_list(struct vroom_qpair *qp, uint32_t cid)
{
	struct vroom_qpair_cold *cold = qp->cold;

	if (!cold->lists) {
		cold->lists = vroom_dma_alloc(qp->ctrlr, qp->depth * VROOM_PRP_LIST_BYTES, 0);
		if (!cold->lists)
			return NULL;
	}
	return cold->lists + (size_t)cid * VROOM_PRP_LIST_BYTES;
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

/* --- one command ----------------------------------------------------------------------------- */

/* How a command's data is reached. */
struct transfer {
	uint64_t prp1, prp2;
	uint64_t offset; /* of the data in the request's memory */
	uint64_t bytes;
	bool copied; /* through the slot's bounce memory */
};

/* Where the controller sees VA of our own, most likely in the window at hand. */
static uint64_t iova_of(const struct vroom_qpair *qp, const void *va)
{
	const struct vroom_dma_window *w = &qp->window;

	if ((uintptr_t)va - w->base < w->bytes)
		return (uintptr_t)va + w->delta;
	return vroom_space_iova(&qp->ctrlr->space, va);
}

static void set_prps(struct vroom_qpair *qp, const struct vroom_prps *prps, const void *list,
		     struct transfer *t)
{
	/* The next buffer is likely to be near this one; translation wants two pages at least. */
	if (prps->window.bytes > 2 * qp->page_mask + 1)
		qp->window = prps->window;
	t->prp1 = prps->prp1;
	t->prp2 = vroom_prp_second(prps, prps->pages > 2 ? iova_of(qp, list) : 0);
}

/* PRPs of the caller's memory itself. An error: it has to be copied. */
static int map_in_place(struct vroom_qpair *qp, uint32_t cid, const struct vroom_io *io,
			struct transfer *t)
{
	struct vroom_prps prps;
	struct add_arg arg = { &prps, &qp->ctrlr->space };
	void *list = get_list(qp, cid);
	int ret;

	if (!list)
		return -ENOMEM;
	vroom_prp_begin(&prps, qp->ctrlr->page_size, list, &qp->window);
	ret = for_pieces(io, t->offset, t->bytes, add_piece, &arg);
	if (!ret)
		set_prps(qp, &prps, list, t);
	return ret;
}

/* The same through memory of the driver's. */
static int map_copied(struct vroom_qpair *qp, uint32_t cid, const struct vroom_io *io,
		      struct transfer *t)
{
	struct vroom_slot_cold *slot = &qp->cold->slots[cid];
	struct vroom_prps prps;
	void *list = get_list(qp, cid);
	char *at;
	int ret;

	if (!list || !get_bounce(qp, slot, t->bytes))
		return -ENOMEM;
	vroom_prp_begin(&prps, qp->ctrlr->page_size, list, &qp->window);
	ret = vroom_prp_add(&prps, &qp->ctrlr->space, slot->bounce, t->bytes);
	if (ret)
		return ret;
	set_prps(qp, &prps, list, t);
	t->copied = true;
	at = slot->bounce;
	if (nvme_direction(io->sqe.opcode) & NVME_TO_CTRLR)
		for_pieces(io, t->offset, t->bytes, copy_out, &at);
	return 0;
}

/* Ranges are copied always, for the caller may change them at once. */
static int map_ranges(struct vroom_qpair *qp, uint32_t cid, const struct vroom_io *io,
		      struct transfer *t)
{
	void *list = get_list(qp, cid);

	if (!list)
		return -ENOMEM;
	memcpy(list, io->buf, io->bytes);
	t->prp1 = iova_of(qp, list);
	return 0;
}

/*
 * Posts one command, whose data is WHOLE's memory from OFFSET on; a free slot is there. REQUEST: it
 * is a part of that one. -ENOMEM: no DMA memory now.
 */
static int post(struct vroom_qpair *qp, const struct vroom_io *io, const struct vroom_io *whole,
		uint64_t offset, struct vroom_request *request)
{
	uint32_t cid = qp->free_slot; /* the one that vroom_post() takes */
	struct vroom_slot_cold *cold = &qp->cold->slots[cid];
	struct transfer t = { .offset = offset, .bytes = io->bytes };
	struct vroom_slot *slot;
	int ret = 0;

	if (io->kind == VROOM_IO_RANGES) {
		ret = map_ranges(qp, cid, io, &t);
	} else if (io->bytes) {
		ret = map_in_place(qp, cid, whole, &t);
		if (ret)
			ret = map_copied(qp, cid, whole, &t);
	}
	if (ret)
		return ret;
	slot = vroom_post(qp, io, t.prp1, t.prp2);
	if (vroom_is_long(io->sqe.opcode))
		slot->deadline = vroom_long_deadline(&qp->cold->watchdog);
	cold->request = request;
	cold->copy_bytes = 0;
	if (t.copied && (nvme_direction(io->sqe.opcode) & NVME_TO_HOST)) {
		cold->copy_bytes = t.bytes;
		cold->buf = whole->buf;
		cold->iov = whole->iov;
		cold->iovcnt = whole->iovcnt;
	}
	if (request || cold->copy_bytes)
		slot->state = VROOM_SLOT_SLOW;
	return 0;
}

/* --- requests of several commands --------------------------------------------------------------
 */

void vroom_qpair_hold_back(struct vroom_qpair *qp)
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
		if (qp->cq.left != qp->cq.slack)
			vroom_cq_ring(&qp->cq);
		qp->blocked = true;
		qp->cold->slack = qp->cq.slack;
		qp->cq.slack = qp->cq.left = 0;
		qp->cold->held_slot = VROOM_NO_SLOT;
	}
	vroom_qpair_hold_back(qp);
}

void vroom_qpair_unblock(struct vroom_qpair *qp)
{
	if (!qp->blocked)
		return;
	vroom_qpair_hold_back(qp);
	qp->blocked = false;
	qp->cq.slack = qp->cq.left = qp->cold->slack;
	qp->free_slot = qp->cold->held_slot;
}

/* Blocks that one command of the kind of IO can name or move. */
static uint64_t blocks_per_command(const struct vroom_qpair *qp, const struct vroom_io *io)
{
	if (io->kind == VROOM_IO_BLOCKS)
		return NVME_RW_MAX_NLB;
	return VROOM_MIN(qp->ctrlr->max_transfer >> io->lba_shift, (uint64_t)NVME_RW_MAX_NLB);
}

/* Posts the next part. -ENOMEM: there is no memory for it now. */
static int post_part(struct vroom_qpair *qp, struct vroom_request *r)
{
	uint64_t nlb = VROOM_MIN(r->io.nlb - r->submitted, r->part_blocks);
	struct vroom_io part = r->io;
	int ret;

	nvme_sqe_set_slba(&part.sqe, nvme_sqe_slba(&r->io.sqe) + r->submitted);
	nvme_sqe_set_nlb(&part.sqe, (uint32_t)nlb);
	part.nlb = nlb;
	part.bytes = r->io.bytes ? nlb << part.lba_shift : 0;
	ret = post(qp, &part, &r->io, r->submitted << part.lba_shift, r);
	if (!ret) {
		r->outstanding++;
		r->submitted += nlb;
	}
	return ret;
}

/*
 * The completion of a part calls this again. Where memory is short, parts wait for others to
 * complete, and get smaller when there are none to wait for; only where there is none at all the
 * rest is given up, and the request ends with an error.
 */
void vroom_request_continue(struct vroom_qpair *qp)
{
	struct vroom_request *r = qp->cold->splitting;
	int ret = 0;

	vroom_qpair_unblock(qp);
	while (r && r->submitted < r->io.nlb && !r->status && qp->free_slot != VROOM_NO_SLOT) {
		ret = post_part(qp, r);
		if (ret && !r->outstanding && r->part_blocks > 1) {
			r->part_blocks /= 2;
			continue;
		}
		if (ret)
			break;
	}
	if (r && ret && !r->outstanding)
		r->status = NVME_SC_INTERNAL_ERROR << NVME_STATUS_SC_SHIFT;
	if (r && r->status) /* failed: what was not submitted never will be */
		r->submitted = r->io.nlb;
	if (r && r->submitted == r->io.nlb)
		qp->cold->splitting = NULL;
	else if (r)
		vroom_qpair_block(qp);
	vroom_ring(qp);
}

/* Does the controller see all of IO's memory, and in a form that PRP entries can describe? */
static bool is_copied(struct vroom_qpair *qp, const struct vroom_io *io)
{
	struct vroom_dma_window w;

	if (io->iov)
		return true; /* perhaps; small parts do no harm */
	return vroom_space_find(&qp->ctrlr->space, io->buf, &w) || ((uintptr_t)io->buf & 3);
}

/* There is no memory for IO: not now, or not at all when no completion can give some back. */
static int no_memory(const struct vroom_qpair *qp, const struct vroom_io *io)
{
	for (uint32_t cid = 0; cid < qp->depth; cid++)
		if (qp->slots[cid].state != VROOM_SLOT_FREE)
			return -EAGAIN;
	return vroom_fail_on(qp->ctrlr->name, ENOMEM, "no DMA memory for a transfer of %llu bytes",
			     (unsigned long long)io->bytes);
}

static int submit_split(struct vroom_qpair *qp, const struct vroom_io *io, uint64_t limit)
{
	struct vroom_request *r = calloc(1, sizeof(*r));

	if (!r)
		return vroom_fail_on(qp->ctrlr->name, ENOMEM, "out of memory");
	r->io = *io;
	r->part_blocks = limit;
	if (io->bytes && is_copied(qp, io))
		r->part_blocks = VROOM_MAX(
			VROOM_MIN(limit, (uint64_t)BOUNCE_PART_BYTES >> io->lba_shift), 1u);
	qp->cold->splitting = r;
	vroom_request_continue(qp);
	if (r->outstanding)
		return 0;
	free(r);
	return no_memory(qp, io);
}

/* --- submission ------------------------------------------------------------------------------ */

/* Why IO is no command, or NULL. */
static const char *what_is_wrong(const struct vroom_qpair *qp, const struct vroom_io *io)
{
	bool names_blocks = io->kind == VROOM_IO_DATA || io->kind == VROOM_IO_BLOCKS;

	if (names_blocks && !io->nlb)
		return "it names no blocks";
	if (io->kind == VROOM_IO_RANGES && (!io->nlb || io->nlb > NVME_DSM_MAX_RANGES))
		return "it names no ranges, or more than 256";
	if (io->kind == VROOM_IO_DATA && io->nlb > UINT64_MAX >> 1 >> io->lba_shift)
		return "it names too many blocks";
	if (io->kind == VROOM_IO_RAW && io->bytes && !nvme_direction(io->sqe.opcode))
		return "it has data, but its opcode says that it moves none";
	if (!has_memory(io))
		return "it has no memory for its data, or too little";
	if (names_blocks && !blocks_per_command(qp, io))
		return "the controller's transfers (MDTS) are smaller than a block";
	return NULL;
}

int vroom_submit_blocked(const struct vroom_qpair *qp)
{
	return qp->error ? qp->error : -EAGAIN;
}

int vroom_submit_slow(struct vroom_qpair *qp, const struct vroom_io *io)
{
	const char *address = qp->ctrlr->name, *wrong = what_is_wrong(qp, io);
	bool names_blocks = io->kind == VROOM_IO_DATA || io->kind == VROOM_IO_BLOCKS;
	int ret;

	if (wrong)
		return vroom_fail(EINVAL, "%s: command %02xh was not submitted: %s", address,
				  io->sqe.opcode, wrong);
	if (names_blocks && io->nlb > blocks_per_command(qp, io))
		return submit_split(qp, io, blocks_per_command(qp, io));
	if (io->bytes > qp->ctrlr->max_transfer)
		return vroom_fail(EINVAL,
				  "%s: a command of %llu bytes is larger than the controller's "
				  "limit of %llu and cannot be split",
				  address, (unsigned long long)io->bytes,
				  (unsigned long long)qp->ctrlr->max_transfer);
	ret = post(qp, io, io, 0, NULL);
	if (ret && names_blocks && io->nlb > 1) /* less at a time may go */
		return submit_split(qp, io, (io->nlb + 1) / 2);
	return ret ? no_memory(qp, io) : 0;
}

/* --- completion --------------------------------------------------------------------------------
 */

static int bad_completion(struct vroom_qpair *qp, uint32_t cid)
{
	int ret = vroom_fail_on(qp->ctrlr->name, EPROTO,
				"queue %u: the controller completed command %u, which is not "
				"outstanding; it is broken or another program drives it too",
				qp->qid, cid);

	vroom_ctrlr_mark_failed(qp->ctrlr, ret);
	qp->error = ret;
	qp->look_ticks = 0;
	vroom_qpair_block(qp);
	return ret;
}

/* Data that came through the slot's memory goes to where the caller wants it. */
static void copy_to_caller(const struct vroom_slot *slot, struct vroom_slot_cold *cold)
{
	const struct vroom_request *r = cold->request;
	const struct vroom_io memory = { .buf = cold->buf,
					 .iov = cold->iov,
					 .iovcnt = cold->iovcnt };
	uint64_t first = r ? nvme_sqe_slba(&r->io.sqe) : slot->slba;
	char *at = cold->bounce;

	for_pieces(&memory, r ? (slot->slba - first) << r->io.lba_shift : 0, cold->copy_bytes,
		   copy_in, &at);
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
	if (slow && cold->copy_bytes && !done->status)
		copy_to_caller(slot, cold);
	slot->state = VROOM_SLOT_FREE;
	slot->next_free = qp->free_slot;
	qp->free_slot = cid;
	if (qp->blocked)
		vroom_qpair_hold_back(qp);
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
