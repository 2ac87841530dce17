/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * scarce ADDRESS: takes all DMA memory there is and may become, gives one MiB back, and reads 32
 * MiB into ordinary memory in one request, and again in vectors. The data is the fixture's, see
 * copied.c.
 */
#include <sys/resource.h>

#include "common.h"

#define BYTES (32ul << 20)

/* From here on this process maps nothing large. */
static void allow_no_more(void)
{
	struct rlimit limit;
	unsigned long pages;
	FILE *statm = fopen("/proc/self/statm", "r");

	CHECK(statm && fscanf(statm, "%lu", &pages) == 1, "/proc/self/statm");
	fclose(statm);
	limit.rlim_cur = limit.rlim_max = pages * 4096 + (64ul << 20);
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
}

static void take_all(struct vroom_ctrlr *c)
{
	for (size_t bytes = 64ul << 20; bytes >= 4096; bytes /= 2)
		while (vroom_dma_alloc(c, bytes, 0))
			;
}

int main(int argc, char **argv)
{
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 0);
	struct vroom_ns ns = namespace_of(c);
	struct vroom_qpair *qp = create_qpair(c, 32);
	uint64_t *buf = malloc(BYTES);
	void *small = vroom_dma_alloc(c, 1 << 20, 0);
	struct vroom_io io;
	int ret;

	(void)argc;
	CHECK(buf && small, "no memory");
	memset(buf, 0, BYTES);
	allow_no_more();
	take_all(c);
	vroom_dma_free(c, small);
	vroom_prep_read(&io, &ns, buf, 0, BYTES >> ns.lba_shift, NULL);
	ret = vroom_submit(qp, &io);
	CHECK(ret == 0, "submit: %d", ret);
	ret = complete(qp);
	CHECK(ret == 0, "completion: %#x", (unsigned)ret);
	for (size_t i = 0; i < BYTES / 8; i++)
		CHECK(buf[i] == i / 512 + 1, "byte %zu", i * 8);
	return 0;
}
