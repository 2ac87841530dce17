/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * For `make bench`: submits and reaps reads, waiting in between until they have completed, so that
 * callgrind (--toggle-collect=count_submit --toggle-collect=count_reap) counts what the driver
 * spends on an I/O and nothing that it spends on waiting. Usage: instructions ADDRESS READS DEPTH
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "vroom.h"

static __attribute__((noinline)) void count_submit(struct vroom_qpair *qp,
						   const struct vroom_ns *ns, char *buf,
						   uint64_t first, unsigned depth)
{
	for (unsigned i = 0; i < depth; i++) {
		struct vroom_io io;

		vroom_prep_read(&io, ns, buf + i * 4096, (first + i) * 8, 8, NULL);
		if (vroom_submit(qp, &io))
			abort();
	}
	vroom_ring(qp);
}

static __attribute__((noinline)) int count_reap(struct vroom_qpair *qp,
						struct vroom_completion *done, unsigned depth)
{
	return vroom_poll(qp, done, (int)depth);
}

/* Waits, by looking at the completion queue and no more, until all are there. */
static void wait_for_all(const struct vroom_qpair *qp, unsigned depth)
{
	uint32_t last = qp->cq.head + depth - 1;
	struct vroom_cq cq = qp->cq; /* whose phase is that of the round that LAST is in */

	if (last >= cq.size) {
		last -= cq.size;
		cq.phase ^= NVME_CQE_PHASE;
	}
	while (vroom_cq_peek(&cq, &cq.entries[last]) & NVME_CQE_PHASE)
		usleep(100);
}

int main(int argc, char **argv)
{
	unsigned reads = argc == 4 ? (unsigned)atoi(argv[2]) : 0;
	unsigned depth = argc == 4 ? (unsigned)atoi(argv[3]) : 0;
	struct vroom_completion *done = calloc(depth + 1, sizeof(*done));
	struct vroom_ctrlr *ctrlr;
	struct vroom_qpair *qp;
	struct vroom_ns ns;
	char *buf;

	if (!reads || !depth || !done || vroom_open(argv[1], NULL, &ctrlr) ||
	    vroom_namespace(ctrlr, 0, &ns, NULL) || vroom_qpair_create(ctrlr, depth, &qp)) {
		fprintf(stderr, "instructions: %s\n", vroom_error());
		return 1;
	}
	buf = vroom_dma_alloc(ctrlr, depth * 4096ul, 4096);
	for (unsigned at = 0; at < reads && buf; at += depth) {
		count_submit(qp, &ns, buf, at, depth);
		wait_for_all(qp, depth);
		if (count_reap(qp, done, depth) != (int)depth)
			abort();
	}
	vroom_qpair_destroy(qp);
	vroom_close(ctrlr);
	free(done);
	return 0;
}
