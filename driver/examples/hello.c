/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The whole API in one program: writes a few blocks, all in flight at once, flushes, reads
 * them back and compares. Usage: hello ADDRESS, for instance hello emu-mem
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vroom.h"

#define BLOCKS 8

static int fail(void)
{
	fprintf(stderr, "hello: %s\n", vroom_error());
	return 1;
}

/* Rings the doorbell and waits until *IN_FLIGHT is at most LEFT. Tags are block numbers. */
static int reap(struct vroom_qpair *qp, int *in_flight, int left)
{
	struct vroom_completion done[BLOCKS];

	vroom_ring(qp);
	while (*in_flight > left) {
		int n = vroom_poll(qp, done, BLOCKS);

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++)
			if (done[i].status)
				fprintf(stderr, "hello: block %d: %s\n", (int)(intptr_t)done[i].tag,
					vroom_status_str(done[i].status));
		*in_flight -= n;
	}
	return 0;
}

/* One command a block, as many in flight as the queue pair holds. */
static int transfer(struct vroom_qpair *qp, const struct vroom_ns *ns, char *buf, bool write)
{
	int in_flight = 0, ret;

	for (intptr_t block = 0; block < BLOCKS; block++) {
		struct vroom_io io;
		char *at = buf + (size_t)block * ns->lba_size;

		if (write)
			vroom_prep_write(&io, ns, at, (uint64_t)block, 1, (void *)block);
		else
			vroom_prep_read(&io, ns, at, (uint64_t)block, 1, (void *)block);
		while ((ret = vroom_submit(qp, &io)) == -EAGAIN) /* full: make room */
			if ((ret = reap(qp, &in_flight, in_flight - 1)))
				return ret;
		if (ret)
			return ret;
		in_flight++;
	}
	return reap(qp, &in_flight, 0);
}

static int flush(struct vroom_qpair *qp, const struct vroom_ns *ns)
{
	struct vroom_io io;
	int in_flight = 1, ret;

	vroom_prep_flush(&io, ns, NULL);
	ret = vroom_submit(qp, &io);
	return ret ? ret : reap(qp, &in_flight, 0);
}

static int run(struct vroom_ctrlr *ctrlr, struct vroom_qpair *qp, const struct vroom_ns *ns)
{
	size_t bytes = (size_t)BLOCKS * ns->lba_size;
	char *out = vroom_dma_alloc(ctrlr, bytes, 0), *in = vroom_dma_alloc(ctrlr, bytes, 0);

	if (!out || !in)
		return fail();
	memset(in, 0, bytes);
	for (size_t i = 0; i < bytes; i++)
		out[i] = (char)(i / ns->lba_size + i);
	if (transfer(qp, ns, out, true) || flush(qp, ns) || transfer(qp, ns, in, false))
		return fail();
	printf("%d blocks of %u bytes: %s\n", BLOCKS, ns->lba_size,
	       memcmp(in, out, bytes) ? "read back DIFFERENT" : "read back as written");
	return memcmp(in, out, bytes) != 0;
}

int main(int argc, char **argv)
{
	struct vroom_ctrlr *ctrlr;
	struct vroom_qpair *qp;
	struct vroom_ns ns;
	int ret = 1;

	if (argc != 2) {
		fprintf(stderr, "Usage: hello ADDRESS (its first blocks are overwritten)\n");
		return 2;
	}
	if (vroom_open(argv[1], NULL, &ctrlr))
		return fail();
	if (vroom_namespace(ctrlr, 0, &ns, NULL) || vroom_qpair_create(ctrlr, BLOCKS, &qp)) {
		fail();
	} else {
		ret = run(ctrlr, qp, &ns);
		vroom_qpair_destroy(qp);
	}
	vroom_close(ctrlr);
	return ret;
}
