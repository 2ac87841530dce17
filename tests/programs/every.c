/* SPDX-License-Identifier: BSD-3-Clause */
/* every: what a program in any language that knows C's does with the headers; it is not run. */
#include <vroom.h>
int main(int argc, char **argv)
{
	struct vroom_ctrlr *ctrlr;
	struct vroom_qpair *qp;
	struct vroom_completion done[4];
	struct nvme_dsm_range range;
	struct vroom_ns ns;
	struct vroom_io io;

	if (vroom_open(argv[argc - 1], NULL, &ctrlr) || vroom_namespace(ctrlr, 0, &ns, NULL) ||
	    vroom_qpair_create(ctrlr, 32, &qp))
		return 1;
	vroom_prep_write(&io, &ns, vroom_dma_alloc(ctrlr, 4096, 0), 0, 1, NULL);
	vroom_prep_fua(&io);
	vroom_prep_write_zeroes(&io, &ns, 0, 1, NULL);
	range.slba = 0;
	range.nlb = 1;
	vroom_prep_deallocate(&io, &ns, &range, 1, NULL);
	vroom_prep_flush(&io, &ns, NULL);
	if (vroom_submit(qp, &io))
		return 1;
	vroom_ring(qp);
	while (!vroom_poll(qp, done, 4))
		;
	vroom_qpair_destroy(qp);
	vroom_close(ctrlr);
	return done[0].status;
}
