/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * outsider ADDRESS: a program by somebody who has nothing but what was installed, in C and, as
 * outsider.cpp, in C++. Memory of its own, registered; vectors; two threads with a queue pair each.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vroom.h>

#define BYTES  (4ul << 20) /* of a thread */
#define PIECES 64

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (condition)                                                                     \
			break;                                                                     \
		fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, vroom_error()); \
		exit(1);                                                                           \
	} while (0)

struct worker {
	struct vroom_ctrlr *ctrlr;
	unsigned char *memory; /* 2 * BYTES, registered */
	uint64_t number;
	pthread_t thread;
};

static void finish(struct vroom_qpair *qp, const struct vroom_io *io)
{
	struct vroom_completion done;
	int n;

	CHECK(vroom_submit(qp, io) == 0);
	vroom_ring(qp);
	do
		n = vroom_poll(qp, &done, 1);
	while (n == 0);
	CHECK(n == 1 && done.status == 0 && done.tag == (void *)qp);
}

/* Writes from pieces in reverse order of memory, and reads what it wrote in one piece. */
static void *work(void *arg)
{
	struct worker *w = (struct worker *)arg;
	unsigned char *from = w->memory, *to = w->memory + BYTES;
	const size_t piece = BYTES / PIECES;
	struct iovec iov[PIECES];
	struct vroom_qpair *qp;
	struct vroom_io io;
	struct vroom_ns ns;
	uint64_t nlb;

	CHECK(vroom_namespace(w->ctrlr, 0, &ns, NULL) == 0);
	CHECK(vroom_qpair_create(w->ctrlr, 16, &qp) == 0);
	nlb = BYTES >> ns.lba_shift;
	for (size_t i = 0; i < BYTES; i++)
		from[i] = (unsigned char)(i / 512 * 7 + i + w->number);
	for (size_t i = 0; i < PIECES; i++) {
		iov[i].iov_base = from + (PIECES - 1 - i) * piece;
		iov[i].iov_len = piece;
	}
	vroom_prep_writev(&io, &ns, iov, PIECES, w->number * nlb, nlb, qp);
	finish(qp, &io);
	vroom_prep_read(&io, &ns, to, w->number * nlb, nlb, qp);
	finish(qp, &io);
	for (size_t i = 0; i < PIECES; i++)
		CHECK(memcmp(to + i * piece, from + (PIECES - 1 - i) * piece, piece) == 0);
	memset(to, 0, BYTES);
	for (size_t i = 0; i < PIECES; i++)
		iov[i].iov_base = to + (PIECES - 1 - i) * piece;
	vroom_prep_readv(&io, &ns, iov, PIECES, w->number * nlb, nlb, qp);
	finish(qp, &io);
	CHECK(memcmp(from, to, BYTES) == 0);
	vroom_qpair_destroy(qp);
	return NULL;
}

int main(int argc, char **argv)
{
	int fd = memfd_create("outsider", MFD_CLOEXEC);
	struct vroom_opts opts;
	struct vroom_ctrlr *ctrlr;
	struct worker workers[2];
	unsigned char *memory;

	CHECK(argc == 2 && fd >= 0 && ftruncate(fd, 4 * BYTES) == 0);
	memory = (unsigned char *)mmap(NULL, 4 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(memory != MAP_FAILED);
	memset(&opts, 0, sizeof(opts));
	opts.size = sizeof(opts);
	opts.io_timeout_ms = 10000;
	CHECK(vroom_open(argv[1], &opts, &ctrlr) == 0);
	CHECK(vroom_dma_register(ctrlr, memory, 4 * BYTES, fd, 0) == 0);
	CHECK(vroom_dma_register(ctrlr, memory + 4096, 4096, fd, 4096) == -EEXIST);
	for (uint64_t i = 0; i < 2; i++) {
		workers[i].ctrlr = ctrlr;
		workers[i].memory = memory + 2 * BYTES * i;
		workers[i].number = i;
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(workers[i].thread, NULL) == 0);
	CHECK(vroom_dma_unregister(ctrlr, memory, 4 * BYTES) == 0);
	CHECK(vroom_dma_unregister(ctrlr, memory, 4 * BYTES) == -ENOENT);
	CHECK(memcmp(memory, memory + BYTES, BYTES) == 0);
	vroom_close(ctrlr);
	printf("as written, version %s\n", VROOM_VERSION);
	return 0;
}
