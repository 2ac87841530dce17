/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Doorbells that take more than a store: messages, sleeping controllers, traps of an emulator.
 *
 * A trap calls the emulator, under a lock that it still holds for some microseconds after it has
 * posted a completion. Who rings at once sleeps until the lock is free, by when the emulator sleeps
 * itself, and so it does for who rings late. The moment in between at which ringing costs little
 * depends on emulator and host, so it is searched for: the holdoff is varied a step at a time, and
 * the direction kept while holding and ringing together get cheaper. Only for a command that is
 * alone: with more in flight the emulator is awake.
 */
#ifndef VROOM_CORE_DOORBELL_H
#define VROOM_CORE_DOORBELL_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/transport.h"
#include "vroom_queue.h"

/* The search for a trap's best moment; times in ticks. */
struct vroom_holdoff {
	uint64_t hold;	   /* to wait before a doorbell write */
	uint64_t quickest; /* write so far */
	uint64_t cost;	   /* of holding and writing since the last step */
	uint64_t last_cost;
	unsigned rings; /* since the last step */
	bool longer;	/* the direction of the next step */
	/* to know when one command is in flight */
	const struct vroom_sq *sq;
	const struct vroom_cq *cq;
	uint32_t last_tail, last_head, in_flight;
};

/* How a doorbell is rung where a store is not enough. */
struct vroom_kick {
	struct vroom_transport *transport;
	uint32_t offset; /* of the register in BAR0 */
	uint32_t word;	 /* what stands for it where the register is written by the transport */
	bool message;	 /* it is */
	struct vroom_holdoff *holdoff; /* of a submission queue whose doorbell traps, or NULL */
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
