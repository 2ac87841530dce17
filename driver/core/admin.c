/* SPDX-License-Identifier: BSD-3-Clause */
#include "core/admin.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "core/ctrlr.h"

#define HEALTH_INTERVAL_MS 100

/* Zeroed memory for a queue of BYTES, contiguous for the controller: within one huge page. */
static void *alloc_queue(struct vroom_ctrlr *c, size_t bytes)
{
	size_t align = c->page_size;
	void *mem;

	while (align < bytes && align < VROOM_HUGE_PAGE)
		align *= 2;
	mem = vroom_dma_alloc(c, bytes, align);
	if (mem) /* phase tags start at 0 (Base 3.3.3.2) */
		memset(mem, 0, bytes);
	return mem;
}

int vroom_queues_init(struct vroom_ctrlr *c, unsigned qid, struct vroom_sq *sq, struct vroom_cq *cq,
		      struct vroom_kick kicks[2], bool traps)
{
	unsigned dstrd = (unsigned)NVME_GET(c->cap, NVME_CAP_DSTRD);
	struct vroom_transport *t = c->transport;

	sq->entries = alloc_queue(c, sq->size * sizeof(*sq->entries));
	cq->entries = alloc_queue(c, cq->size * sizeof(*cq->entries));
	if (!sq->entries || !cq->entries)
		return -ENOMEM;
	if (vroom_doorbell_init(&sq->doorbell, &kicks[0], t, qid, false, dstrd, traps) ||
	    vroom_doorbell_init(&cq->doorbell, &kicks[1], t, qid, true, dstrd, traps))
		return vroom_fail_on(c->name, ENOTSUP,
				     "the doorbells of queue %u are beyond BAR0 (CAP.DSTRD is %u)",
				     qid, dstrd);
	return 0;
}

int vroom_admin_init(struct vroom_ctrlr *c)
{
	struct vroom_admin *a = &c->admin;

	a->shared = &c->shared->admin;
	a->sq.size = a->cq.size = VROOM_ADMIN_ENTRIES;
	a->buffer = vroom_dma_alloc(c, VROOM_ADMIN_BYTES, VROOM_ADMIN_BYTES);
	return a->buffer ? vroom_queues_init(c, 0, &a->sq, &a->cq, a->kicks, false) : -ENOMEM;
}

static void load_indices(struct vroom_admin *a)
{
	uint32_t completed = a->shared->completed;

	a->sq.tail = a->shared->submitted % VROOM_ADMIN_ENTRIES;
	a->sq.rung = VROOM_ADMIN_ENTRIES; /* none: what a dead process filled is rung again */
	a->cq.head = completed % VROOM_ADMIN_ENTRIES;
	a->cq.phase = completed / VROOM_ADMIN_ENTRIES % 2 ? 0 : NVME_CQE_PHASE;
}

/* Waits for the completion of the first command that has none, whoever's it is, and takes it. */
static int reap(struct vroom_ctrlr *c, const char *what, struct nvme_cqe *out)
{
	struct vroom_admin *a = &c->admin;
	uint64_t now = vroom_now_ms(), deadline = now + c->opts.admin_timeout_ms;
	uint64_t next_look = now + HEALTH_INTERVAL_MS;

	for (unsigned spins = 1; vroom_cq_empty(&a->cq); spins++) {
		int ret;

		if (spins > 100)
			sched_yield();
		if (spins % 64 || (now = vroom_now_ms()) < next_look)
			continue;
		next_look = now + HEALTH_INTERVAL_MS;
		ret = vroom_ctrlr_health(c);
		if (!ret && now > deadline) {
			ret = vroom_fail_on(c->name, ETIMEDOUT,
					    "%s: no completion in %u ms; the controller is stuck",
					    what, c->opts.admin_timeout_ms);
			vroom_ctrlr_mark_failed(c, ret);
		}
		if (ret)
			return ret;
	}
	*out = a->cq.entries[a->cq.head];
	if (out->cid != a->shared->completed % VROOM_ADMIN_ENTRIES) {
		vroom_fail_on(c->name, EPROTO,
			      "the controller completed admin command %u, which is not "
			      "outstanding; it is broken or another program drives it too",
			      out->cid);
		return vroom_ctrlr_mark_failed(c, -EPROTO);
	}
	a->shared->completed++; /* one store: it is taken, or it is not */
	load_indices(a);
	vroom_cq_ring(&a->cq);
	return 0;
}

/* A process died with commands under way. Their data would arrive in the buffer of the next. */
static int drain(struct vroom_ctrlr *c)
{
	struct vroom_admin *a = &c->admin;
	struct nvme_cqe ignored;
	int ret = 0;

	load_indices(a);
	if (a->shared->submitted != a->shared->completed)
		vroom_sq_ring(&a->sq);
	while (!ret && a->shared->submitted != a->shared->completed)
		ret = reap(c, "an admin command of a job that was killed", &ignored);
	return ret;
}

static void submit(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, size_t bytes)
{
	struct vroom_admin *a = &c->admin;
	struct nvme_sqe *entry = vroom_sq_entry(&a->sq);

	*entry = *sqe;
	entry->cid = (uint16_t)(a->shared->submitted % VROOM_ADMIN_ENTRIES);
	if (bytes) { /* two pages at most, which are neighbours */
		entry->prp1 = vroom_space_iova(&c->space, a->buffer);
		entry->prp2 = bytes > c->page_size ? entry->prp1 + c->page_size : 0;
	}
	/* Release: the entry is whole before it counts. For a kill, not for readers. */
	__atomic_store_n(&a->shared->submitted, a->shared->submitted + 1, __ATOMIC_RELEASE);
	load_indices(a);
	vroom_sq_ring(&a->sq);
}

int vroom_admin_locked(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		       struct nvme_cqe *cqe)
{
	enum nvme_direction direction = nvme_direction(sqe->opcode);
	struct vroom_admin *a = &c->admin;
	struct nvme_cqe done;
	char what[32];
	int ret;

	snprintf(what, sizeof(what), "admin command %02xh", sqe->opcode);
	if (bytes > VROOM_ADMIN_BYTES)
		return vroom_fail_on(c->name, EINVAL, "%s moves %zu bytes, the limit is %u", what,
				     bytes, VROOM_ADMIN_BYTES);
	if (bytes && (!buf || direction == NVME_NO_DATA))
		return vroom_fail_on(c->name, EINVAL, "%s: %zu bytes, but %s", what, bytes,
				     buf ? "the opcode moves none" : "no buffer");
	ret = vroom_ctrlr_failed(c);
	if (!ret)
		ret = drain(c);
	if (ret)
		return ret;
	if (bytes && (direction & NVME_TO_CTRLR))
		memcpy(a->buffer, buf, bytes);
	submit(c, sqe, bytes);
	ret = reap(c, what, &done);
	if (ret)
		return ret;
	done.status &= (uint16_t)~NVME_STATUS_PHASE_MASK;
	if (bytes && (direction & NVME_TO_HOST) && !done.status)
		memcpy(buf, a->buffer, bytes);
	if (cqe)
		*cqe = done;
	else if (done.status)
		ret = vroom_fail_on(c->name, EIO, "%s failed: %s", what,
				    vroom_status_str(done.status));
	return ret;
}

int vroom_admin(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		struct nvme_cqe *cqe)
{
	int ret;

	vroom_lock(&c->shared->lock);
	ret = vroom_admin_locked(c, sqe, buf, bytes, cqe);
	vroom_unlock(&c->shared->lock);
	return ret;
}

int vroom_admin_identify(struct vroom_ctrlr *c, uint8_t cns, uint32_t nsid, void *buf)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_IDENTIFY, .nsid = nsid, .cdw10 = cns };

	return vroom_admin(c, &sqe, buf, NVME_IDENTIFY_BYTES, NULL);
}

int vroom_admin_set_feature(struct vroom_ctrlr *c, uint8_t feature, const uint32_t cdw11_to_15[5],
			    struct nvme_cqe *cqe)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_SET_FEATURES, .cdw10 = feature };

	sqe.cdw11 = cdw11_to_15[0];
	sqe.cdw12 = cdw11_to_15[1];
	sqe.cdw13 = cdw11_to_15[2];
	sqe.cdw14 = cdw11_to_15[3];
	sqe.cdw15 = cdw11_to_15[4];
	return vroom_admin(c, &sqe, NULL, 0, cqe);
}
