/* SPDX-License-Identifier: BSD-3-Clause */
/* Which namespaces there are, and what they look like. */
#include <errno.h>

#include "base/error.h"
#include "base/size.h"
#include "core/ctrlr.h"

int vroom_namespaces(struct vroom_ctrlr *c, uint32_t *nsids, int max)
{
	uint32_t list[NVME_IDENTIFY_BYTES / sizeof(uint32_t)], last = 0;
	int count = 0;

	for (;;) {
		int ret = vroom_admin_identify(c, NVME_CNS_ACTIVE_NS_LIST, last, list);

		if (ret)
			return ret;
		for (size_t i = 0; i < VROOM_LENGTH(list); i++) {
			if (!list[i])
				return count;
			if (list[i] <= last) /* Base 5.17.2.2: in rising order */
				return vroom_fail_on(c->name, EPROTO, "namespaces out of order");
			last = list[i];
			if (count < max)
				nsids[count] = last;
			count++;
		}
	}
}

/* The command set of namespace NSID (Base 5.17.2.4); NVM's where the controller does not say. */
static uint8_t command_set(struct vroom_ctrlr *c, uint32_t nsid)
{
	const struct nvme_sqe sqe = { .opcode = NVME_ADMIN_IDENTIFY,
				      .nsid = nsid,
				      .cdw10 = NVME_CNS_NS_DESCRIPTORS };
	uint8_t list[NVME_IDENTIFY_BYTES];
	struct nvme_cqe cqe;

	if (!(NVME_GET(c->cap, NVME_CAP_CSS) & NVME_CAP_CSS_IOCS) ||
	    vroom_admin(c, &sqe, list, sizeof(list), &cqe) || cqe.status)
		return NVME_CSI_NVM;
	for (size_t at = 0; at + 5 <= sizeof(list) && list[at + 1]; at += 4 + list[at + 1])
		if (list[at] == NVME_NIDT_CSI)
			return list[at + 4];
	return NVME_CSI_NVM;
}

static int check_namespace(struct vroom_ctrlr *c, uint32_t nsid, const struct nvme_lbaf *format)
{
	uint8_t csi = command_set(c, nsid);
	unsigned shift = format->lbads;

	if (csi != NVME_CSI_NVM)
		return vroom_fail_on(c->name, ENOTSUP,
				     "namespace %u is %s; vroom drives NVM's only", nsid,
				     csi == NVME_CSI_ZNS ? "zoned" : "of an unknown kind");
	if (shift < 9 || shift > 16)
		return vroom_fail_on(
			c->name, ENOTSUP,
			"namespace %u has blocks of 2^%u bytes, vroom uses 2^9 to 2^16", nsid,
			shift);
	if (c->max_transfer >> shift == 0)
		return vroom_fail_on(c->name, ENOTSUP,
				     "namespace %u has blocks of %u bytes, MDTS allows %zu", nsid,
				     1u << shift, c->max_transfer);
	if (format->ms)
		return vroom_fail_on(
			c->name, ENOTSUP,
			"namespace %u has %u bytes of metadata a block; format it without", nsid,
			format->ms);
	return 0;
}

int vroom_namespace(struct vroom_ctrlr *c, uint32_t nsid, struct vroom_ns *out,
		    struct nvme_id_ns *raw)
{
	struct nvme_sqe sqe = { .opcode = NVME_ADMIN_IDENTIFY, .cdw10 = NVME_CNS_NS };
	const struct nvme_lbaf *format;
	struct nvme_id_ns id;
	struct nvme_cqe cqe;
	int ret;

	if (!nsid)
		nsid = c->address.nsid ? c->address.nsid : 1;
	sqe.nsid = nsid;
	ret = vroom_admin(c, &sqe, &id, sizeof(id), &cqe);
	if (ret)
		return ret;
	if (cqe.status || !id.nsze) /* refused, or an inactive one: all zeroes */
		return vroom_fail_on(c->name, ENXIO, "has no namespace %u", nsid);
	if (raw)
		*raw = id;
	format = &id.lbaf[nvme_lba_format_index(id.flbas)];
	ret = check_namespace(c, nsid, format);
	if (ret)
		return ret;
	*out = (struct vroom_ns){
		.nsid = nsid,
		.lba_size = 1u << format->lbads,
		.lba_shift = format->lbads,
		.blocks = id.nsze,
		.read_only = id.nsattr & 1,
		.deallocates = c->id.oncs & NVME_ONCS_DSM,
	};
	return 0;
}
