/* SPDX-License-Identifier: BSD-3-Clause */
/* NVM command set (NVM Command Set Specification 1.0, chapter 3). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emulator/emulator.h"

static struct emu_ns *find_ns(struct emu *e, uint32_t nsid)
{
	return nsid && nsid <= e->opts.nr_ns ? &e->opts.ns[nsid - 1] : NULL;
}

/* Checks SLBA and NLB against NS; the byte range on success. */
static uint32_t check_range(const struct emu_ns *ns, uint64_t slba, uint64_t nlb, uint64_t *offset,
			    uint64_t *bytes)
{
	if (slba > ns->blocks || nlb > ns->blocks - slba)
		return NVME_SC_LBA_RANGE | EMU_DNR;
	*offset = slba << ns->lba_shift;
	*bytes = nlb << ns->lba_shift;
	return 0;
}

/* Reads what is at OFFSET into e->scratch. */
static uint32_t read_scratch(struct emu *e, struct emu_ns *ns, uint64_t offset, uint64_t bytes)
{
	struct iovec iov = { .iov_base = e->scratch, .iov_len = bytes };

	return emu_ns_read(ns, &iov, 1, offset);
}

static uint32_t compare(struct emu *e, struct emu_ns *ns, unsigned count, uint64_t offset,
			uint64_t bytes)
{
	const char *have = e->scratch;
	uint32_t status;

	if (ns->kind == EMU_NS_NULL)
		return 0;
	status = read_scratch(e, ns, offset, bytes);
	for (unsigned i = 0; i < count && !status; i++) {
		if (memcmp(have, e->iov[i].iov_base, e->iov[i].iov_len))
			status = NVME_SC_COMPARE_FAILURE;
		have += e->iov[i].iov_len;
	}
	return status;
}

static bool is_bad_lba(const struct emu *e, uint64_t slba, uint64_t nlb)
{
	return e->opts.fault == EMU_FAULT_ERROR && e->opts.fault_at - slba < nlb;
}

static uint32_t read_write(struct emu *e, struct emu_ns *ns, const struct nvme_sqe *sqe)
{
	uint64_t slba = (uint64_t)sqe->cdw11 << 32 | sqe->cdw10;
	uint64_t nlb = (sqe->cdw12 & NVME_RW_NLB_MASK) + 1;
	bool to_host = sqe->opcode == NVME_CMD_READ;
	uint64_t offset, bytes;
	unsigned count;
	uint32_t status = check_range(ns, slba, nlb, &offset, &bytes);

	if (status)
		return status;
	if (e->opts.mdts && bytes > e->opts.mdts)
		return NVME_SC_INVALID_FIELD | EMU_DNR; /* Base figure 275, MDTS */
	if (sqe->opcode == NVME_CMD_WRITE && ns->read_only)
		return NVME_SC_NS_WRITE_PROTECTED | EMU_DNR;
	status = emu_map_data(e, sqe, bytes, to_host, &count);
	if (status)
		return status;
	if (to_host && is_bad_lba(e, slba, nlb))
		return NVME_SC_UNRECOVERED_READ;
	if (sqe->opcode == NVME_CMD_COMPARE)
		return compare(e, ns, count, offset, bytes);
	if (to_host) {
		e->count.reads++;
		e->count.read_bytes += bytes;
		return emu_ns_read(ns, e->iov, count, offset);
	}
	e->count.writes++;
	e->count.written_bytes += bytes;
	return emu_ns_write(ns, e->iov, count, offset,
			    (sqe->cdw12 & NVME_RW_FUA) ||
				    !e->features[NVME_FEAT_VOLATILE_WRITE_CACHE]);
}

static uint32_t write_zeroes(struct emu *e, struct emu_ns *ns, const struct nvme_sqe *sqe)
{
	uint64_t nlb = (sqe->cdw12 & NVME_RW_NLB_MASK) + 1, offset, bytes;
	uint32_t status =
		check_range(ns, (uint64_t)sqe->cdw11 << 32 | sqe->cdw10, nlb, &offset, &bytes);

	if (!status && ns->read_only)
		status = NVME_SC_NS_WRITE_PROTECTED | EMU_DNR;
	if (!status)
		status = emu_ns_zero(ns, offset, bytes, sqe->cdw12 & NVME_RW_DEAC);
	if (!status && ((sqe->cdw12 & NVME_RW_FUA) || !e->features[NVME_FEAT_VOLATILE_WRITE_CACHE]))
		status = emu_ns_flush(ns);
	return status;
}

/* Verify: like a read whose data goes nowhere (NVM 3.2.5). */
static uint32_t verify(struct emu *e, struct emu_ns *ns, const struct nvme_sqe *sqe)
{
	uint64_t slba = (uint64_t)sqe->cdw11 << 32 | sqe->cdw10;
	uint64_t nlb = (sqe->cdw12 & NVME_RW_NLB_MASK) + 1, offset, bytes;
	uint32_t status = check_range(ns, slba, nlb, &offset, &bytes);

	if (status)
		return status;
	if (e->opts.mdts && bytes > e->opts.mdts)
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	return is_bad_lba(e, slba, nlb) ? NVME_SC_UNRECOVERED_READ
					: read_scratch(e, ns, offset, bytes);
}

/* Dataset Management: all ranges are checked before any is touched (NVM 3.2.3). */
static uint32_t dataset_management(struct emu *e, struct emu_ns *ns, const struct nvme_sqe *sqe)
{
	unsigned count = (sqe->cdw10 & 0xff) + 1;
	struct nvme_dsm_range ranges[NVME_DSM_MAX_RANGES];
	uint64_t offset, bytes;
	uint32_t status = emu_copy_data(e, sqe, ranges, count * sizeof(ranges[0]), false);

	for (unsigned i = 0; i < count && !status; i++)
		status = check_range(ns, ranges[i].slba, ranges[i].nlb, &offset, &bytes);
	if (status || !(sqe->cdw11 & NVME_DSM_DEALLOCATE))
		return status;
	if (ns->read_only)
		return NVME_SC_NS_WRITE_PROTECTED | EMU_DNR;
	for (unsigned i = 0; i < count && !status; i++) {
		check_range(ns, ranges[i].slba, ranges[i].nlb, &offset, &bytes);
		status = emu_ns_zero(ns, offset, bytes, true);
		if (!status)
			emu_timing_deallocated(e, bytes);
	}
	return status;
}

static uint32_t flush(struct emu *e, const struct nvme_sqe *sqe)
{
	uint32_t status = 0;

	if (sqe->nsid != NVME_NSID_ALL) {
		struct emu_ns *ns = find_ns(e, sqe->nsid);

		return ns ? emu_ns_flush(ns) : NVME_SC_INVALID_NS | EMU_DNR;
	}
	for (unsigned i = 0; i < e->opts.nr_ns && !status; i++)
		status = emu_ns_flush(&e->opts.ns[i]);
	return status;
}

uint32_t emu_io(struct emu *e, const struct nvme_sqe *sqe)
{
	struct emu_ns *ns;

	switch (sqe->opcode) {
	case NVME_CMD_FLUSH:
	case NVME_CMD_WRITE:
	case NVME_CMD_READ:
	case NVME_CMD_COMPARE:
	case NVME_CMD_WRITE_ZEROES:
	case NVME_CMD_DSM:
	case NVME_CMD_VERIFY: break;
	default: return NVME_SC_INVALID_OPCODE | EMU_DNR;
	}
	if (sqe->flags & NVME_SQE_FUSE_MASK)
		return NVME_SC_INVALID_FIELD | EMU_DNR; /* FUSES is 0: no fused operations */
	if (sqe->opcode == NVME_CMD_FLUSH)
		return flush(e, sqe);
	ns = find_ns(e, sqe->nsid);
	if (!ns)
		return NVME_SC_INVALID_NS | EMU_DNR;
	switch (sqe->opcode) {
	case NVME_CMD_WRITE_ZEROES: return write_zeroes(e, ns, sqe);
	case NVME_CMD_DSM: return dataset_management(e, ns, sqe);
	case NVME_CMD_VERIFY: return verify(e, ns, sqe);
	default: return read_write(e, ns, sqe);
	}
}
