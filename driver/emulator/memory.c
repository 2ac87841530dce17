/* SPDX-License-Identifier: BSD-3-Clause */
/* The client's memory as DMA_MAP announced it, and PRPs that point into it (Base 4.1.1). */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "emulator/emulator.h"

int emu_memory_map(struct emu *e, uint64_t iova, uint64_t bytes, int fd, uint64_t offset,
		   bool writeable)
{
	struct emu_region r = { .iova = iova, .bytes = bytes, .writeable = writeable };

	if (!bytes || iova + bytes < iova || e->nr_regions == EMU_MAX_REGIONS)
		return e->nr_regions == EMU_MAX_REGIONS ? -ENOSPC : -EINVAL;
	for (unsigned i = 0; i < e->nr_regions; i++)
		if (iova < e->region[i].iova + e->region[i].bytes &&
		    e->region[i].iova < iova + bytes)
			return -EEXIST;
	if (fd >= 0) {
		r.va = mmap(NULL, bytes, PROT_READ | (writeable ? PROT_WRITE : 0), MAP_SHARED, fd,
			    (off_t)offset);
		if (r.va == MAP_FAILED)
			return -errno;
	}
	e->region[e->nr_regions++] = r;
	e->last_region = &e->region[0];
	return 0;
}

static void remove_region(struct emu *e, unsigned i)
{
	if (e->region[i].va)
		munmap(e->region[i].va, e->region[i].bytes);
	e->region[i] = e->region[--e->nr_regions];
	e->last_region = &e->region[0];
}

/* A live queue in memory that goes away: the controller cannot go on (Base 9.5). */
static void check_queues(struct emu *e, const struct emu_region *r)
{
	for (unsigned i = 0; i <= EMU_MAX_QUEUES; i++) {
		const char *sq = (const char *)e->sq[i].entries;
		const char *cq = (const char *)e->cq[i].entries;

		if (r->va && ((sq >= r->va && sq < r->va + r->bytes) ||
			      (cq >= r->va && cq < r->va + r->bytes))) {
			emu_fatal(e);
			return;
		}
	}
}

int emu_memory_unmap(struct emu *e, uint64_t iova, uint64_t bytes)
{
	bool found = false;

	for (unsigned i = 0; i < e->nr_regions;) {
		const struct emu_region *r = &e->region[i];

		if (r->iova < iova || r->iova + r->bytes > iova + bytes) {
			i++;
			continue;
		}
		check_queues(e, r);
		remove_region(e, i);
		found = true;
	}
	return found ? 0 : -ENOENT;
}

void emu_memory_unmap_all(struct emu *e)
{
	while (e->nr_regions)
		remove_region(e, 0);
}

void *emu_memory(struct emu *e, uint64_t iova, uint64_t bytes, bool write)
{
	struct emu_region *r = e->last_region;

	for (unsigned i = 0; i <= e->nr_regions; i++) {
		uint64_t offset = iova - r->iova;

		if (e->nr_regions && iova >= r->iova && offset < r->bytes &&
		    bytes <= r->bytes - offset) {
			e->last_region = r;
			return r->va && (r->writeable || !write) ? r->va + offset : NULL;
		}
		r = &e->region[i < e->nr_regions ? i : 0];
	}
	return NULL;
}

/* Adds BYTES at IOVA to e->iov, joined to the last piece where it continues it. */
static uint32_t add_piece(struct emu *e, uint64_t iova, uint64_t bytes, bool to_host,
			  unsigned *count)
{
	char *va = emu_memory(e, iova, bytes, to_host);

	if (!va)
		return NVME_SC_DATA_TRANSFER_ERROR;
	if (*count && (char *)e->iov[*count - 1].iov_base + e->iov[*count - 1].iov_len == va) {
		e->iov[*count - 1].iov_len += bytes;
		return 0;
	}
	e->iov[(*count)++] = (struct iovec){ .iov_base = va, .iov_len = bytes };
	return 0;
}

static uint32_t map_list(struct emu *e, uint64_t list_iova, uint64_t bytes, bool to_host,
			 unsigned *count)
{
	uint32_t status;

	if (list_iova & 7)
		return NVME_SC_INVALID_PRP_OFFSET | EMU_DNR;
	while (bytes) {
		uint64_t in_page = e->page_size - (list_iova & (e->page_size - 1));
		size_t entries = in_page / sizeof(uint64_t);
		size_t needed = (bytes + e->page_size - 1) / e->page_size;
		bool chained = needed > entries;
		size_t use = chained ? entries - 1 : needed;
		const uint64_t *list = emu_memory(e, list_iova, in_page, false);
		uint64_t next = 0;

		/* The list may end before its page does. */
		if (!list)
			list = emu_memory(e, list_iova, (use + chained) * sizeof(*list), false);
		if (!list)
			return NVME_SC_DATA_TRANSFER_ERROR;
		for (size_t i = 0; i < use; i++) {
			uint64_t prp = __atomic_load_n(&list[i], __ATOMIC_RELAXED);
			uint64_t piece = bytes < e->page_size ? bytes : e->page_size;

			if (prp & (e->page_size - 1))
				return NVME_SC_INVALID_PRP_OFFSET | EMU_DNR;
			status = add_piece(e, prp, piece, to_host, count);
			if (status)
				return status;
			bytes -= piece;
		}
		if (chained)
			next = __atomic_load_n(&list[entries - 1], __ATOMIC_RELAXED);
		if (chained && (next & (e->page_size - 1)))
			return NVME_SC_INVALID_PRP_OFFSET | EMU_DNR;
		list_iova = next;
	}
	return 0;
}

uint32_t emu_map_data(struct emu *e, const struct nvme_sqe *sqe, uint64_t bytes, bool to_host,
		      unsigned *count)
{
	uint64_t in_page = e->page_size - (sqe->prp1 & (e->page_size - 1));
	uint32_t status;

	*count = 0;
	if (sqe->flags & NVME_SQE_PSDT_MASK)
		return NVME_SC_INVALID_FIELD | EMU_DNR; /* no SGLs */
	if (sqe->prp1 & 3)
		return NVME_SC_INVALID_PRP_OFFSET | EMU_DNR;
	if (bytes <= in_page)
		return add_piece(e, sqe->prp1, bytes, to_host, count);
	status = add_piece(e, sqe->prp1, in_page, to_host, count);
	if (status)
		return status;
	bytes -= in_page;
	if (bytes > e->page_size)
		return map_list(e, sqe->prp2, bytes, to_host, count);
	if (sqe->prp2 & (e->page_size - 1))
		return NVME_SC_INVALID_PRP_OFFSET | EMU_DNR;
	return add_piece(e, sqe->prp2, bytes, to_host, count);
}

uint32_t emu_copy_data(struct emu *e, const struct nvme_sqe *sqe, void *buf, uint64_t bytes,
		       bool to_host)
{
	unsigned count;
	char *at = buf;
	uint32_t status = emu_map_data(e, sqe, bytes, to_host, &count);

	for (unsigned i = 0; i < count && !status; i++) {
		if (to_host)
			memcpy(e->iov[i].iov_base, at, e->iov[i].iov_len);
		else
			memcpy(at, e->iov[i].iov_base, e->iov[i].iov_len);
		at += e->iov[i].iov_len;
	}
	return status;
}
