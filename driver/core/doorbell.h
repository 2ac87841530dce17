/* SPDX-License-Identifier: BSD-3-Clause */
/* Doorbells that take more than a store: messages, sleeping controllers, traps of an emulator. */
#ifndef VROOM_CORE_DOORBELL_H
#define VROOM_CORE_DOORBELL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/holdoff.h"
#include "transport/transport.h"
#include "vroom_queue.h"

/* How a doorbell is rung where a store is not enough. */
struct vroom_kick {
	struct vroom_transport *transport;
	uint32_t offset; /* of the register in BAR0 */
	uint32_t word;	 /* what stands for it where the register is written by the transport */
	bool message;	 /* it is */
	/* Of a submission queue whose doorbell traps: to know when just one command is in flight.
	 */
	struct vroom_holdoff *holdoff;
	const struct vroom_sq *sq;
	const struct vroom_cq *cq;
	uint32_t last_tail, last_head, in_flight;
};

/*
 * Sets DB up as the doorbell of queue QID (PCIe 3.1.2), with KICK, which stays as long as DB is
 * used. DSTRD: CAP's. TRAPS: a mapped register is written by the transport all the same.
 * -ENOTSUP: BAR0 ends before it.
 */
int vroom_doorbell_init(struct vroom_doorbell *db, struct vroom_kick *kick,
			struct vroom_transport *t, unsigned qid, bool completion, unsigned dstrd,
			bool traps);

#endif
