/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * refused ADDRESS: commands that name no blocks, no ranges or no memory, by all the ways to make
 * one. Prints what each submission returned; what is accepted is carried out.
 */
#include "common.h"

static struct vroom_qpair *qp;

static void submit(const char *name, const struct vroom_io *io)
{
	int ret = vroom_submit(qp, io);

	printf("%s: %d", name, ret);
	if (!ret)
		printf(", completed with %#x", (unsigned)complete(qp));
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 1000);
	struct vroom_ns ns = namespace_of(c);
	struct nvme_dsm_range *ranges = vroom_dma_alloc(c, 1 << 20, 0);
	char *buf = vroom_dma_alloc(c, 1 << 20, 0), *own = malloc(1 << 20);
	struct vroom_io io;

	(void)argc;
	CHECK(ranges && buf && own, "no memory");
	memset(buf, 0xee, 1 << 20);
	memset(own, 0xee, 1 << 20);
	for (unsigned i = 0; i < 65536; i++)
		ranges[i] = (struct nvme_dsm_range){ .slba = i % ns.blocks, .nlb = 1 };
	qp = create_qpair(c, 8);

	vroom_prep_read(&io, &ns, NULL, 0, 8, NULL);
	submit("read without memory", &io);
	vroom_prep_read(&io, &ns, NULL, 0, 4096, NULL);
	submit("large read without memory", &io);
	vroom_prep_write(&io, &ns, NULL, 0, 8, NULL);
	submit("write without memory", &io);
	vroom_prep_compare(&io, &ns, NULL, 0, 8, NULL);
	submit("compare without memory", &io);
	vroom_prep_read(&io, &ns, buf, 0, 0, NULL);
	submit("read of no blocks", &io);
	vroom_prep_write(&io, &ns, buf, 0, 0, NULL);
	submit("write of no blocks", &io);
	vroom_prep_write(&io, &ns, own, 0, 0, NULL);
	submit("write of no blocks from ordinary memory", &io);
	vroom_prep_compare(&io, &ns, buf, 0, 0, NULL);
	submit("compare of no blocks", &io);
	vroom_prep_write_zeroes(&io, &ns, 0, 0, NULL);
	submit("zeroes on no blocks", &io);
	vroom_prep_deallocate(&io, &ns, ranges, 0, NULL);
	submit("no ranges", &io);
	vroom_prep_deallocate(&io, &ns, ranges, 257, NULL);
	submit("257 ranges", &io);
	vroom_prep_deallocate(&io, &ns, NULL, 1, NULL);
	submit("ranges without memory", &io);
#ifdef VROOM_ABI /* what there was not before there were vectors */
	{
		const struct nvme_sqe raw = { .opcode = NVME_CMD_WRITE, .nsid = ns.nsid };
		const struct iovec hole[] = { { buf, 2048 }, { NULL, 2048 } };
		const struct iovec little[] = { { buf, 1024 }, { buf, 1024 } };

		vroom_prep_writev(&io, &ns, hole, 2, 0, 8, NULL);
		submit("vector with a piece without memory", &io);
		vroom_prep_writev(&io, &ns, little, 2, 0, 8, NULL);
		submit("vector with too little memory", &io);
		vroom_prep_writev(&io, &ns, NULL, 2, 0, 8, NULL);
		submit("no vector", &io);
		vroom_prep_writev(&io, &ns, hole, 0, 0, 8, NULL);
		submit("vector of no pieces", &io);
		vroom_prep_raw(&io, &raw, NULL, 512, NULL);
		submit("raw write without memory", &io);
	}
#endif
	/* The queue pair is as it was. */
	vroom_prep_read(&io, &ns, buf, 8, 8, NULL);
	CHECK(vroom_submit(qp, &io) == 0 && complete(qp) == 0, "a good read");
	vroom_qpair_destroy(qp);
	vroom_close(c);
	return 0;
}
