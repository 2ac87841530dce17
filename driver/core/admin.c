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
#include "core/prp.h"

#define HEALTH_INTERVAL_MS 100

int vroom_admin_init(struct vroom_ctrlr *c)
{
	unsigned dstrd = (unsigned)NVME_GET(c->cap, NVME_CAP_DSTRD);
	struct vroom_admin *a = &c->admin;

	a->shared = &c->shared->admin;
	a->sq.size = a->cq.size = VROOM_ADMIN_ENTRIES;
	a->sq.entries =
		vroom_dma_alloc(c, VROOM_ADMIN_ENTRIES * sizeof(struct nvme_sqe), c->page_size);
	a->cq.entries =
		vroom_dma_alloc(c, VROOM_ADMIN_ENTRIES * sizeof(struct nvme_cqe), c->page_size);
	a->buffer = vroom_dma_alloc(c, VROOM_ADMIN_BYTES, VROOM_ADMIN_BYTES);
	if (!a->sq.entries || !a->cq.entries || !a->buffer)
		return -ENOMEM;
	memset(a->sq.entries, 0, VROOM_ADMIN_ENTRIES * sizeof(struct nvme_sqe));
	memset(a->cq.entries, 0, VROOM_ADMIN_ENTRIES * sizeof(struct nvme_cqe));
	vroom_doorbell_init(&a->sq.doorbell, &a->sq_kick, c->transport, 0, false, dstrd, false);
	vroom_doorbell_init(&a->cq.doorbell, &a->cq_kick, c->transport, 0, true, dstrd, false);
	return 0;
}

/* The queues' indices follow from the counters. */
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
		if (ret)
			return ret;
		if (now > deadline) {
			vroom_fail_on(c->name, ETIMEDOUT,
				      "%s has no completion after %u ms; the controller is stuck",
				      what, c->opts.admin_timeout_ms);
			return vroom_ctrlr_mark_failed(c, -ETIMEDOUT);
		}
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

static int submit(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, size_t bytes)
{
	struct vroom_admin *a = &c->admin;
	struct nvme_sqe *entry = vroom_sq_entry(&a->sq);
	struct vroom_prps prps;

	*entry = *sqe;
	entry->cid = (uint16_t)(a->shared->submitted % VROOM_ADMIN_ENTRIES);
	if (bytes) {
		vroom_prp_begin(&prps, c->page_size, a->list, NULL);
		if (vroom_prp_add(&prps, &c->space, a->buffer, bytes))
			return -EFAULT;
		entry->prp1 = prps.prp1;
		entry->prp2 = prps.second;
	}
	a->shared->submitted++;
	load_indices(a);
	vroom_sq_ring(&a->sq);
	return 0;
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
		return vroom_fail_on(c->name, EINVAL, "%s moves %zu bytes, at most %u go at once",
				     what, bytes, VROOM_ADMIN_BYTES);
	if (bytes && (!buf || direction == NVME_NO_DATA))
		return vroom_fail_on(c->name, EINVAL, "%s: %zu bytes, but %s", what, bytes,
				     buf ? "the opcode says that it moves none" : "no buffer");
	ret = vroom_ctrlr_failed(c);
	if (!ret)
		ret = drain(c);
	if (ret)
		return ret;
	if (bytes && (direction & NVME_TO_CTRLR))
		memcpy(a->buffer, buf, bytes);
	ret = submit(c, sqe, bytes);
	if (!ret)
		ret = reap(c, what, &done);
	if (ret)
		return ret;
	done.status &= (uint16_t)~NVME_STATUS_PHASE_MASK;
	if (cqe)
		*cqe = done;
	else if (done.status)
		return vroom_fail_on(c->name, EIO, "%s failed: %s", what,
				     vroom_status_str(done.status));
	if (bytes && (direction & NVME_TO_HOST) && !done.status)
		memcpy(buf, a->buffer, bytes);
	return 0;
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
	struct nvme_sqe sqe = {
		.opcode = NVME_ADMIN_SET_FEATURES,
		.cdw10 = feature,
		.cdw11 = cdw11_to_15[0],
		.cdw12 = cdw11_to_15[1],
		.cdw13 = cdw11_to_15[2],
		.cdw14 = cdw11_to_15[3],
		.cdw15 = cdw11_to_15[4],
	};

	return vroom_admin(c, &sqe, NULL, 0, cqe);
}
