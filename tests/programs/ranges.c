/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * ranges ADDRESS dma|own: deallocates the first MiB and the third, and changes the ranges, which
 * lie in DMA memory or in this program's own, to the second and the fourth after submission.
 */
#include "common.h"

int main(int argc, char **argv)
{
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 0);
	struct vroom_ns ns = namespace_of(c);
	struct vroom_qpair *qp = create_qpair(c, 8);
	uint32_t mib = (uint32_t)((1 << 20) >> ns.lba_shift);
	struct nvme_dsm_range own[2], *ranges = own;
	struct vroom_io io;
	int ret;

	if (!strcmp(argv[argc - 1], "dma"))
		ranges = vroom_dma_alloc(c, 4096, 0);
	CHECK(ranges, "no memory");
	ranges[0] = (struct nvme_dsm_range){ .slba = 0, .nlb = mib };
	ranges[1] = (struct nvme_dsm_range){ .slba = 2 * mib, .nlb = mib };
	vroom_prep_deallocate(&io, &ns, ranges, 2, NULL);
	ret = vroom_submit(qp, &io);
	CHECK(ret == 0, "submit: %d", ret);
	ranges[0].slba = mib;
	ranges[1].slba = 3 * mib;
	ret = complete(qp);
	CHECK(ret == 0, "completion: %#x", (unsigned)ret);
	vroom_qpair_destroy(qp);
	vroom_close(c);
	return 0;
}
