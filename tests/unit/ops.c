/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A queue pair that is driven by lines on stdin, for tests that make up sequences of operations:
 *
 *	open DEPTH ENTRIES MDTS SCATTERED MESSAGES
 *	io TAG r|w|z SLBA NLB SEED OFFSET PIECE	OFFSET: into a page, of plain memory when odd in
 *units of 4; PIECE: of a vector, or 0. -> result
 *	ring					-> commands that the controller holds
 *	complete N				the (N modulo held)th -> opcode, SLBA, NLB; or -1
 *	poll MAX				-> number, then TAG STATUS ADLER32 of each
 *	close					-> 0, or what the driver had done wrong
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"
#include "unit.h"

#define MAX_TAGS 4096

struct request {
	char *mem, *buf;
	size_t bytes;
	struct iovec *iov;
	bool read, plain;
};

static struct fake *f;
static struct vroom_ctrlr *c;
static struct vroom_qpair *qp;
static struct request *request[MAX_TAGS];

static unsigned adler32(const struct request *r)
{
	unsigned a = 1, b = 0;

	for (size_t i = 0; i < r->bytes; i++) {
		a = (a + (unsigned char)r->buf[i]) % 65521;
		b = (b + a) % 65521;
	}
	return b << 16 | a;
}

static void drop(unsigned tag)
{
	struct request *r = request[tag];

	if (r->plain)
		free(r->mem);
	else
		vroom_dma_free(c, r->mem);
	free(r->iov);
	free(r);
	request[tag] = NULL;
}

static int open_pair(unsigned depth, const struct fake_opts *opts)
{
	f = fake_new(opts);
	return fake_bring_up(f, &c) || vroom_qpair_create(c, depth, &qp);
}

static int submit(unsigned tag, char what, uint64_t slba, uint64_t nlb, unsigned seed,
		  unsigned offset, size_t piece)
{
	struct request *r = calloc(1, sizeof(*r));
	struct vroom_ns ns = fake_ns(f);
	unsigned count = 0;
	struct vroom_io io;
	int ret;

	request[tag] = r;
	r->plain = offset / 4 & 1;
	r->bytes = what == 'z' ? 0 : nlb * ns.lba_size;
	r->mem = r->plain ? malloc(r->bytes + 8192) : vroom_dma_alloc(c, r->bytes + 8192, 0);
	r->buf = r->mem + offset;
	r->read = what == 'r';
	for (size_t i = 0; i < r->bytes; i++)
		r->buf[i] = (char)(what == 'w' ? seed * 31 + i * 7 + (i >> 9) : 0xee);
	if (piece) {
		r->iov = calloc(r->bytes / piece + 1, sizeof(*r->iov));
		for (size_t at = 0; at < r->bytes; at += piece)
			r->iov[count++] =
				(struct iovec){ r->buf + at,
						piece < r->bytes - at ? piece : r->bytes - at };
	}
	if (what == 'z')
		vroom_prep_write_zeroes(&io, &ns, slba, nlb, (void *)(uintptr_t)tag);
	else if (what == 'r' && piece)
		vroom_prep_readv(&io, &ns, r->iov, count, slba, nlb, (void *)(uintptr_t)tag);
	else if (what == 'r')
		vroom_prep_read(&io, &ns, r->buf, slba, nlb, (void *)(uintptr_t)tag);
	else if (piece)
		vroom_prep_writev(&io, &ns, r->iov, count, slba, nlb, (void *)(uintptr_t)tag);
	else
		vroom_prep_write(&io, &ns, r->buf, slba, nlb, (void *)(uintptr_t)tag);
	ret = vroom_submit(qp, &io);
	memset(&io, 0xff, sizeof(io)); /* it is free to reuse */
	if (ret)
		drop(tag);
	return ret;
}

static void complete(unsigned n)
{
	unsigned held = fake_fetch(f, 1);
	struct nvme_sqe sqe;

	if (!held) {
		printf("-1\n");
		return;
	}
	sqe = *fake_held_sqe(f, 1, n % held);
	if (!fake_complete(f, 1, n % held)) {
		printf("-2\n");
		return;
	}
	printf("%u %llu %u\n", sqe.opcode, (unsigned long long)nvme_sqe_slba(&sqe),
	       nvme_sqe_nlb(&sqe));
}

static void reap(int max)
{
	struct vroom_completion done[64];
	int n = vroom_poll(qp, done, max < 64 ? max : 64);

	printf("%d", n);
	for (int i = 0; i < n; i++) {
		unsigned tag = (unsigned)(uintptr_t)done[i].tag;

		if (tag >= MAX_TAGS || !request[tag]) {
			printf(" %u -1 0", tag);
			continue;
		}
		printf(" %u %u %u", tag, done[i].status,
		       request[tag]->read ? adler32(request[tag]) : 0);
		drop(tag);
	}
	printf("\n");
}

static void close_pair(void)
{
	vroom_qpair_destroy(qp);
	for (unsigned tag = 0; tag < MAX_TAGS; tag++)
		if (request[tag])
			drop(tag);
	vroom_close(c);
	if (f->cq_full)
		printf("the completion queue was full\n");
	else
		printf("%s\n", f->faulted ? f->fault : "0");
	fake_free(f);
}

int main(void)
{
	char line[256], what;

	while (fgets(line, sizeof(line), stdin)) {
		unsigned a, b, d, e, g;
		unsigned long long slba, nlb;
		size_t piece;

		if (sscanf(line, "open %u %u %u %u %u", &a, &b, &d, &e, &g) == 5)
			printf("%d\n", open_pair(a, &(struct fake_opts){ .queue_entries = b,
									 .mdts = d,
									 .scattered = e,
									 .messages = g }));
		else if (sscanf(line, "io %u %c %llu %llu %u %u %zu", &a, &what, &slba, &nlb, &b,
				&d, &piece) == 7)
			printf("%d\n", submit(a, what, slba, nlb, b, d, piece));
		else if (strncmp(line, "ring", 4) == 0)
			vroom_ring(qp), printf("%u\n", fake_fetch(f, 1));
		else if (sscanf(line, "complete %u", &a) == 1)
			complete(a);
		else if (sscanf(line, "poll %u", &a) == 1)
			reap((int)a);
		else if (strncmp(line, "close", 5) == 0)
			close_pair();
		else
			return 1;
		fflush(stdout);
	}
	return 0;
}
