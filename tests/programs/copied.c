/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * copied ADDRESS MIB WORKERS: each of WORKERS forked processes, or this one if 0, takes MIB of DMA
 * memory and reads MIB from the start of the namespace into ordinary memory in one request. What
 * it reads is what the fixture `disk` wrote: 4096 bytes full of their own number, from 1 on.
 */
#include "common.h"

static void check(const uint64_t *data, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i++)
		CHECK(data[i] == i / 512 + 1, "byte %zu: read %llu, not %zu", i * 8,
		      (unsigned long long)data[i], i / 512 + 1);
}

static void read_all(struct vroom_ctrlr *c, size_t bytes)
{
	struct vroom_ns ns = namespace_of(c);
	struct vroom_qpair *qp = create_qpair(c, 32);
	void *mine = vroom_dma_alloc(c, bytes, 0), *buf = malloc(bytes);
	struct vroom_io io;
	int ret;

	CHECK(mine && buf, "no memory");
	memset(mine, 0x77, bytes);
	vroom_prep_read(&io, &ns, buf, 0, bytes >> ns.lba_shift, NULL);
	ret = vroom_submit(qp, &io);
	CHECK(ret == 0, "submit: %d", ret);
	ret = complete(qp);
	CHECK(ret == 0, "completion: %d", ret);
	check(buf, bytes);
	for (size_t i = 0; i < bytes; i++)
		CHECK(((unsigned char *)mine)[i] == 0x77, "byte %zu of other memory", i);
	free(buf);
	vroom_dma_free(c, mine);
	vroom_qpair_destroy(qp);
}

int main(int argc, char **argv)
{
	size_t bytes = (size_t)atoi(argv[2]) << 20;
	unsigned workers = (unsigned)atoi(argv[argc - 1]);
	struct vroom_ctrlr *c = open_ctrlr(argv[1], 0);

	for (unsigned i = 0; i < workers; i++) {
		if (fork() == 0) {
			read_all(c, bytes);
			_exit(0);
		}
	}
	reap(workers);
	if (!workers)
		read_all(c, bytes);
	vroom_close(c);
	return 0;
}
