/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The admin queue: one command at a time, under the lock that all processes of a controller share.
 * Who finds that more was submitted than completed inherits it from a process that died, and waits
 * for those completions first.
 */
#ifndef VROOM_ADMIN_H
#define VROOM_ADMIN_H

#include "core/dma.h"
#include "core/doorbell.h"
#include "vroom_queue.h"

struct vroom_ctrlr;

#define VROOM_ADMIN_ENTRIES 32u	  /* of either queue: a power of two, for counters run over */
#define VROOM_ADMIN_BYTES   8192u /* that a command moves at most: two pages */

struct vroom_admin_shared {
	uint32_t submitted; /* commands since it was enabled; stored before the doorbell */
	uint32_t completed; /* completions that were taken */
};

struct vroom_admin {
	struct vroom_sq sq;
	struct vroom_cq cq;
	struct vroom_kick kicks[2];
	void *buffer; /* VROOM_ADMIN_BYTES of DMA memory, aligned to as many: contiguous */
	struct vroom_admin_shared *shared;
};

/*
 * Memory and doorbells of queue pair QID (0: the admin queue), whose sizes are set. KICKS, of
 * submission and completion queue, stay as long as those are used. TRAPS: see doorbell.h.
 */
int vroom_queues_init(struct vroom_ctrlr *c, unsigned qid, struct vroom_sq *sq, struct vroom_cq *cq,
		      struct vroom_kick kicks[2], bool traps);

/* Queues and buffer; the controller is disabled. */
int vroom_admin_init(struct vroom_ctrlr *c);

/* vroom_admin() for a caller who has the controller's lock. */
int vroom_admin_locked(struct vroom_ctrlr *c, const struct nvme_sqe *sqe, void *buf, size_t bytes,
		       struct nvme_cqe *cqe);

/* Identify (Base 5.17) into the NVME_IDENTIFY_BYTES at BUF. */
int vroom_admin_identify(struct vroom_ctrlr *c, uint8_t cns, uint32_t nsid, void *buf);

/* Set Features (Base 5.27). */
int vroom_admin_set_feature(struct vroom_ctrlr *c, uint8_t feature, const uint32_t cdw11_to_15[5],
			    struct nvme_cqe *cqe);

#endif
