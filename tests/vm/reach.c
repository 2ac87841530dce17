/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * For test_group.py: does a controller reach the memory that it was given, and no longer what was
 * taken away? Asks the controllers themselves, by Identify Controller commands of its own.
 * Usage: reach ADDRESS [ADDRESS of the same IOMMU group]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "transport/transport.h"
#include "vroom_nvme.h"

#define BYTES	   (2ul << 20) /* a huge page */
#define QUEUE_SIZE 16

struct memory {
	char *va;
	int fd;
};

struct drive {
	struct vroom_address address;
	struct vroom_transport *t;
	struct memory queues; /* submissions, and completions 4 KiB later */
	uint64_t queues_iova;
	unsigned tail;
};

static void check(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "reach: not so: %s (%s)\n", what, vroom_error());
	exit(1);
}

static struct memory new_memory(void)
{
	struct memory m = { .fd = memfd_create("reach", MFD_HUGETLB) };

	check(m.fd >= 0 && ftruncate(m.fd, BYTES) == 0, "there is a huge page");
	m.va = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	check(m.va != MAP_FAILED, "it can be mapped");
	memset(m.va, 0, BYTES);
	return m;
}

static uint64_t map(struct drive *d, const struct memory *m)
{
	uint64_t page = 0;
	struct vroom_dma_map dma = {
		.va = m->va, .bytes = BYTES, .fd = m->fd, .page_shift = 21, .page_iova = &page
	};

	check(d->t->ops->dma_map(d->t, &dma) == 0, "memory is mapped");
	check(page && page == dma.iova, "both addresses of a page agree");
	return page;
}

static void write32(struct drive *d, uint32_t offset, uint32_t value)
{
	check(d->t->ops->write(d->t, offset, &value, 4) == 0, "a register is written");
}

static void enable(struct drive *d, bool on)
{
	uint32_t status = !on;

	write32(d, NVME_REG_CC, on ? 1 | 6 << NVME_CC_IOSQES_SHIFT | 4 << NVME_CC_IOCQES_SHIFT : 0);
	for (int i = 0; i < 500 && (status & 1) != on; i++) {
		usleep(10000);
		d->t->ops->read(d->t, NVME_REG_CSTS, &status, 4, 0);
	}
	check((status & 1) == on, on ? "the controller starts" : "the controller stops");
}

static void start(struct drive *d, const char *address)
{
	struct vroom_transport_opts opts = { 0 };
	const struct vroom_transport_ops *ops;

	check(!vroom_address_parse(address, &d->address) &&
		      !vroom_transport_choose(&d->address, NULL, &ops) &&
		      !ops->open(&d->address, &opts, &d->t),
	      "the device is opened");
	enable(d, false);
	d->tail = 0;
	d->queues = new_memory();
	d->queues_iova = map(d, &d->queues);
	write32(d, NVME_REG_AQA, (QUEUE_SIZE - 1) << NVME_AQA_ACQS_SHIFT | (QUEUE_SIZE - 1));
	for (unsigned half = 0; half < 2; half++) {
		write32(d, NVME_REG_ASQ + 4 * half, (uint32_t)(d->queues_iova >> 32 * half));
		write32(d, NVME_REG_ACQ + 4 * half,
			(uint32_t)((d->queues_iova + 4096) >> 32 * half));
	}
	check(d->t->ops->allow_dma(d->t) == 0, "DMA is allowed");
	enable(d, true);
}

/* Does an Identify Controller command arrive in M, which the controller is to see at IOVA? */
static bool reaches(struct drive *d, const struct memory *m, uint64_t iova)
{
	struct nvme_sqe *sqe = (struct nvme_sqe *)(void *)d->queues.va + d->tail;
	volatile char *id = m->va;

	memset(m->va, 0, 4096);
	*sqe = (struct nvme_sqe){ .opcode = NVME_ADMIN_IDENTIFY, .prp1 = iova, .cdw10 = 1 };
	d->tail = (d->tail + 1) % QUEUE_SIZE;
	write32(d, NVME_REG_DOORBELLS, d->tail);
	for (int i = 0; i < 50 && !id[0]; i++)
		usleep(10000);
	return id[0];
}

/* In another process, as every operation on a job's device may be. */
static int in_child(int (*step)(struct drive *, uint64_t), struct drive *d, uint64_t iova)
{
	int status = -1;
	pid_t pid = fork();

	if (!pid) {
		int ret = step(d, iova);

		if (ret)
			fprintf(stderr, "reach: %s\n", vroom_error());
		_exit(ret != 0);
	}
	waitpid(pid, &status, 0);
	return status;
}

static int cut_off(struct drive *d, uint64_t iova)
{
	(void)iova;
	return d->t->ops->cut_off(d->t);
}

static int unmap(struct drive *d, uint64_t iova)
{
	return d->t->ops->dma_unmap(d->t, iova, BYTES);
}

/* One function on its own. */
static void test_one(struct drive *d, const struct memory *m)
{
	uint64_t iova = map(d, m);

	check(reaches(d, m, iova), "mapped memory is reached");
	if (d->t->ops->dma_unmap) {
		check(in_child(unmap, d, iova) == 0, "memory is unmapped");
		check(!reaches(d, m, iova), "unmapped memory is not reached");
		enable(d, false);
		enable(d, true);
		d->tail = 0;
		check(map(d, m) == iova, "its address is free again");
		check(reaches(d, m, iova), "memory that is mapped again is reached");
	}
	check(in_child(cut_off, d, 0) == 0, "the controller is cut off");
	check(!reaches(d, m, iova), "a controller that is cut off reaches nothing");
	d->t->ops->close(d->t, true);
}

/* Two of a group: they share what both have mapped, and no more than that. */
static void test_two(struct drive *a, struct drive *b, const struct memory *m, const char *second)
{
	uint64_t iova;

	start(b, second);
	iova = map(a, m);
	check(map(b, m) == iova, "the same memory has one address in the group");
	check(a->queues_iova != b->queues_iova && iova != a->queues_iova,
	      "different memory has different addresses");
	check(reaches(a, m, iova) && reaches(b, m, iova), "both reach it");
	check(in_child(unmap, a, iova) == 0 && reaches(b, m, iova),
	      "one's unmapping is not the other's");
	check(map(a, m) == iova && reaches(a, m, iova), "it is found there again");
	/* From here on the IOMMU lets it through to all it wants, on the other's behalf. */
	check(map(b, &a->queues) == a->queues_iova, "its queues, too, are the other's");
	check(in_child(cut_off, a, 0) == 0, "one is cut off");
	check(!reaches(a, m, iova), "the one that is cut off reaches nothing");
	check(reaches(b, m, iova), "the other works on");
	a->t->ops->close(a->t, true);
	check(reaches(b, m, iova), "the other works on when the one is closed");
	check(in_child(cut_off, b, 0) == 0 && !reaches(b, m, iova), "the other is cut off");
	b->t->ops->close(b->t, true);
}

int main(int argc, char **argv)
{
	struct drive a = { 0 }, b = { 0 };
	struct memory m;

	if (argc < 2)
		return 2;
	m = new_memory();
	start(&a, argv[1]);
	if (argc > 2)
		test_two(&a, &b, &m, argv[2]);
	else
		test_one(&a, &m);
	return 0;
}
