/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What to measure a driver against: random reads of 4 KiB by a loop over bare queues that
 * translates nothing, checks no status, keeps no deadline and takes no tags; the commands are
 * written beforehand, only their first block changes. The queue pair itself is made by the driver.
 * Usage: plainloop ADDRESS DEPTH SECONDS; prints IOPS.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "vroom.h"

#define LOOKS 256 /* rounds between two looks at the clock */

struct loop {
	struct vroom_qpair *qp;
	struct nvme_sqe *commands; /* by command identifier */
	uint64_t random, places;
};

static void put(struct loop *l, uint16_t cid)
{
	struct vroom_sq *sq = &l->qp->sq;
	struct nvme_sqe *command = &l->commands[cid];

	l->random ^= l->random << 13; /* xorshift64 */
	l->random ^= l->random >> 7;
	l->random ^= l->random << 17;
	nvme_sqe_set_slba(command,
			  (uint64_t)(((unsigned __int128)l->random * l->places) >> 64) * 8);
	sq->entries[sq->tail] = *command;
	vroom_sq_advance(sq);
}

static unsigned reap(struct loop *l)
{
	struct vroom_cq *cq = &l->qp->cq;
	unsigned n = 0;

	while (!vroom_cq_empty(cq)) {
		uint16_t cid = cq->entries[cq->head].cid;

		cq->head = vroom_cq_next(cq, cq->head);
		put(l, cid);
		n++;
	}
	if (n) {
		vroom_sq_ring(&l->qp->sq);
		vroom_cq_ring(cq);
	}
	return n;
}

static double run(struct loop *l, unsigned depth, double seconds)
{
	uint64_t done = 0, begin = vroom_now_ns(), now = begin;

	for (unsigned cid = 0; cid < depth; cid++)
		put(l, (uint16_t)cid);
	vroom_sq_ring(&l->qp->sq);
	while ((double)(now - begin) < seconds * 1e9) {
		for (int i = 0; i < LOOKS; i++)
			done += reap(l);
		now = vroom_now_ns();
	}
	return (double)done * 1e9 / (double)(now - begin);
}

int main(int argc, char **argv)
{
	unsigned depth = argc == 4 ? (unsigned)atoi(argv[2]) : 0;
	struct vroom_ctrlr *ctrlr;
	struct loop l = { .random = 0x9e3779b97f4a7c15ull };
	struct vroom_ns ns;
	char *buffers;

	if (!depth || vroom_open(argv[1], NULL, &ctrlr) || vroom_namespace(ctrlr, 0, &ns, NULL) ||
	    vroom_qpair_create(ctrlr, depth, &l.qp)) {
		fprintf(stderr, "plainloop: %s\n", vroom_error());
		return 1;
	}
	l.places = ns.blocks / 8;
	l.commands = calloc(depth, sizeof(*l.commands));
	buffers = vroom_dma_alloc(ctrlr, depth * 4096ul, 4096);
	if (!l.commands || !buffers)
		return 1;
	for (unsigned cid = 0; cid < depth; cid++)
		l.commands[cid] = (struct nvme_sqe){
			.opcode = NVME_CMD_READ,
			.cid = (uint16_t)cid,
			.nsid = ns.nsid,
			.prp1 = (uintptr_t)buffers + cid * 4096ul + l.qp->range.delta,
			.cdw12 = (4096u >> ns.lba_shift) - 1,
		};
	printf("%.0f\n", run(&l, depth, atof(argv[3])));
	fflush(stdout);
	_Exit(0); /* with commands in flight: the controller is disabled by its next user */
}
