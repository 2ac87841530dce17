/* SPDX-License-Identifier: BSD-3-Clause */
/* Admin commands (NVMe Base Specification 2.0, chapter 5). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "emulator/emulator.h"
#include "vroom.h" /* VROOM_VERSION: the firmware revision */

#define DEFAULT_TEMPERATURE 343 /* over threshold, kelvin */
#define TEMPERATURE	    310

static void pad(char *field, size_t size, const char *text)
{
	size_t len = strlen(text);

	memset(field, ' ', size);
	memcpy(field, text, len < size ? len : size);
}

/* --- Identify (5.17) ------------------------------------------------------------------------ */

static void identify_ctrlr(struct emu *e, struct nvme_id_ctrlr *id)
{
	uint64_t total = 0;

	for (unsigned i = 0; i < e->opts.nr_ns; i++)
		total += e->opts.ns[i].bytes;
	*id = (struct nvme_id_ctrlr){
		.vid = 0x5652,
		.ssvid = 0x5652,
		.rab = 4,
		.cntlid = 1,
		.ver = NVME_VERSION(1, 4, 0),
		.rtd3e = 5000000,
		.cntrltype = NVME_CNTRLTYPE_IO,
		.oacs = NVME_OACS_FORMAT,
		.acl = 3,
		.aerl = EMU_AER_LIMIT - 1,
		.frmw = 0x03, /* one slot, read only */
		.lpa = 0x06,  /* commands supported and effects; offsets */
		.elpe = EMU_ERROR_LOG - 1,
		.wctemp = DEFAULT_TEMPERATURE,
		.cctemp = DEFAULT_TEMPERATURE + 10,
		.sqes = 0x66,
		.cqes = 0x44,
		.nn = e->opts.nr_ns,
		.oncs = NVME_ONCS_COMPARE | NVME_ONCS_DSM | NVME_ONCS_WRITE_ZEROES |
			NVME_ONCS_VERIFY,
		.vwc = e->opts.vwc ? NVME_VWC_PRESENT | NVME_VWC_FLUSH_ALL : NVME_VWC_FLUSH_ALL,
		.awun = 0,
		.fna = 0x03, /* format and erase concern all namespaces when NSID says so */
	};
	id->hmpre = id->hmmin = (uint32_t)(e->opts.hmb / 4096);
	if (e->opts.mdts)
		id->mdts = (uint8_t)(__builtin_ctzll(e->opts.mdts) - 12 - e->opts.mpsmin);
	pad(id->sn, sizeof(id->sn), e->opts.serial);
	pad(id->mn, sizeof(id->mn), "vroom emulated NVMe controller");
	pad(id->fr, sizeof(id->fr), VROOM_VERSION);
	memcpy(id->tnvmcap, &total, sizeof(total));
	snprintf(id->subnqn, sizeof(id->subnqn), "nqn.2014-08.org.nvmexpress:uuid:vroom-%.20s",
		 e->opts.serial);
	id->psd[0].max_power = 1000;
}

static uint64_t allocated_blocks(const struct emu_ns *ns)
{
	struct stat st;
	uint64_t bytes = ns->bytes;

	if (ns->kind == EMU_NS_FILE && fstat(ns->fd, &st) == 0 &&
	    (uint64_t)st.st_blocks * 512 < bytes)
		bytes = (uint64_t)st.st_blocks * 512;
	return bytes >> ns->lba_shift;
}

static void identify_ns(const struct emu_ns *ns, struct nvme_id_ns *id)
{
	memset(id, 0, sizeof(*id));
	id->nsze = ns->blocks;
	id->ncap = ns->blocks;
	id->nuse = allocated_blocks(ns);
	id->nsfeat = 0x10; /* npwg and the like are set */
	id->nlbaf = EMU_LBA_FORMATS - 1;
	id->flbas = ns->lba_shift == 9 ? 0 : 1;
	id->dlfeat =
		ns->kind == EMU_NS_NULL ? 0 : NVME_DLFEAT_READS_ZERO | NVME_DLFEAT_WRITE_ZEROES;
	id->npwg = id->npwa = id->npdg = id->npda = (uint16_t)((4096u >> ns->lba_shift) - 1);
	memcpy(id->nvmcap, &ns->bytes, sizeof(ns->bytes));
	id->nsattr = ns->read_only;
	memcpy(id->nguid, ns->uuid, sizeof(id->nguid));
	id->lbaf[0] = (struct nvme_lbaf){ .lbads = 9, .rp = 1 };
	id->lbaf[1] = (struct nvme_lbaf){ .lbads = 12, .rp = 0 };
}

static void identify_descriptors(const struct emu_ns *ns, uint8_t *out)
{
	static const struct {
		uint8_t type, length;
	} kinds[] = { { NVME_NIDT_NGUID, 16 }, { NVME_NIDT_UUID, 16 } };

	for (unsigned i = 0; i < 2; i++) {
		*out++ = kinds[i].type;
		*out++ = kinds[i].length;
		out += 2;
		memcpy(out, ns->uuid, kinds[i].length);
		out += kinds[i].length;
	}
	out[0] = NVME_NIDT_CSI; /* command set 0: NVM */
	out[1] = 1;
}

static uint32_t identify(struct emu *e, const struct nvme_sqe *sqe)
{
	union {
		struct nvme_id_ctrlr ctrlr;
		struct nvme_id_ns ns;
		uint32_t list[1024];
		uint8_t bytes[NVME_IDENTIFY_BYTES];
	} data;
	const struct emu_ns *ns = NULL;
	unsigned n = 0;

	memset(&data, 0, sizeof(data));
	if (sqe->nsid && sqe->nsid <= e->opts.nr_ns)
		ns = &e->opts.ns[sqe->nsid - 1];
	switch (sqe->cdw10 & 0xff) {
	case NVME_CNS_NS:
		if (!ns)
			return NVME_SC_INVALID_NS | EMU_DNR;
		identify_ns(ns, &data.ns);
		break;
	case NVME_CNS_CTRLR: identify_ctrlr(e, &data.ctrlr); break;
	case NVME_CNS_ACTIVE_NS_LIST:
		if (sqe->nsid >= NVME_NSID_ALL - 1)
			return NVME_SC_INVALID_NS | EMU_DNR;
		for (uint32_t nsid = sqe->nsid + 1; nsid <= e->opts.nr_ns; nsid++)
			data.list[n++] = nsid;
		break;
	case NVME_CNS_NS_DESCRIPTORS:
		if (!ns)
			return NVME_SC_INVALID_NS | EMU_DNR;
		identify_descriptors(ns, data.bytes);
		break;
	default: return NVME_SC_INVALID_FIELD | EMU_DNR;
	}
	return emu_copy_data(e, sqe, &data, sizeof(data), true);
}

/* --- Get Log Page (5.16) -----------------------------------------------------------------------
 */

static size_t log_supported(uint8_t *out)
{
	static const uint8_t pages[] = { NVME_LOG_SUPPORTED_PAGES, NVME_LOG_ERROR,
					 NVME_LOG_SMART,	   NVME_LOG_FIRMWARE_SLOT,
					 NVME_LOG_CHANGED_NS,	   NVME_LOG_COMMANDS_SUPPORTED };

	for (size_t i = 0; i < sizeof(pages); i++)
		out[pages[i] * 4] = 1;
	return 1024;
}

static size_t log_smart(const struct emu *e, uint8_t *out)
{
	struct nvme_smart_log *log = (void *)out;

	/* Units of a thousand 512-byte blocks, rounded up (Base figure 207). */
	*log = (struct nvme_smart_log){
		.avail_spare = 100,
		.spare_threshold = 10,
		.temperature = { TEMPERATURE & 0xff, TEMPERATURE >> 8 },
		.data_units_read = { (e->count.read_bytes + 511999) / 512000 },
		.data_units_written = { (e->count.written_bytes + 511999) / 512000 },
		.host_reads = { e->count.reads },
		.host_writes = { e->count.writes },
		.power_cycles = { 1 },
		.error_log_entries = { e->count.errors },
	};
	return sizeof(*log);
}

static size_t log_firmware(uint8_t *out)
{
	out[0] = 1; /* slot 1 is active */
	pad((char *)out + 8, 8, VROOM_VERSION);
	return 512;
}

static size_t log_commands(uint8_t *out)
{
	static const uint8_t admin[] = { NVME_ADMIN_DELETE_SQ,	  NVME_ADMIN_CREATE_SQ,
					 NVME_ADMIN_GET_LOG_PAGE, NVME_ADMIN_DELETE_CQ,
					 NVME_ADMIN_CREATE_CQ,	  NVME_ADMIN_IDENTIFY,
					 NVME_ADMIN_ABORT,	  NVME_ADMIN_SET_FEATURES,
					 NVME_ADMIN_GET_FEATURES, NVME_ADMIN_ASYNC_EVENT,
					 NVME_ADMIN_FORMAT_NVM };
	static const uint8_t io[] = { NVME_CMD_FLUSH,	NVME_CMD_WRITE,	       NVME_CMD_READ,
				      NVME_CMD_COMPARE, NVME_CMD_WRITE_ZEROES, NVME_CMD_DSM,
				      NVME_CMD_VERIFY };
	uint32_t *effects = (void *)out;

	for (size_t i = 0; i < sizeof(admin); i++)
		effects[admin[i]] = 1;
	effects[NVME_ADMIN_FORMAT_NVM] |= 0x20002; /* changes contents; alone on its namespace */
	for (size_t i = 0; i < sizeof(io); i++)
		effects[256 + io[i]] = 1;
	effects[256 + NVME_CMD_WRITE] |= 2;
	effects[256 + NVME_CMD_WRITE_ZEROES] |= 2;
	effects[256 + NVME_CMD_DSM] |= 2;
	return 4096;
}

static uint32_t get_log_page(struct emu *e, const struct nvme_sqe *sqe)
{
	uint8_t data[EMU_ERROR_LOG * sizeof(struct nvme_error_log)] = { 0 };
	uint64_t bytes = (((uint64_t)(sqe->cdw11 & 0xffff) << 16 | sqe->cdw10 >> 16) + 1) * 4;
	uint64_t offset = (uint64_t)sqe->cdw13 << 32 | sqe->cdw12;
	uint8_t *reply;
	uint32_t status;
	size_t size;

	_Static_assert(sizeof(data) >= 4096, "the largest page");
	switch (sqe->cdw10 & 0xff) {
	case NVME_LOG_SUPPORTED_PAGES: size = log_supported(data); break;
	case NVME_LOG_ERROR:
		size = sizeof(e->errors);
		memcpy(data, e->errors, size);
		break;
	case NVME_LOG_SMART:
		if (sqe->nsid && sqe->nsid != NVME_NSID_ALL)
			return NVME_SC_INVALID_NS | EMU_DNR; /* LPA bit 0: not by namespace */
		size = log_smart(e, data);
		break;
	case NVME_LOG_FIRMWARE_SLOT: size = log_firmware(data); break;
	case NVME_LOG_CHANGED_NS:
		size = 4096; /* none ever changes */
		break;
	case NVME_LOG_COMMANDS_SUPPORTED: size = log_commands(data); break;
	default: return NVME_SC_INVALID_LOG_PAGE | EMU_DNR;
	}
	if (offset > size || (offset & 3))
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	if (e->opts.mdts && bytes > e->opts.mdts)
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	/* Beyond the page's end the data is zero. */
	reply = calloc(1, bytes);
	if (!reply)
		return NVME_SC_INTERNAL_ERROR;
	memcpy(reply, data + offset, bytes < size - offset ? bytes : size - offset);
	status = emu_copy_data(e, sqe, reply, bytes, true);
	free(reply);
	return status;
}

/* --- features (5.15, 5.27)
 * ------------------------------------------------------------------------ */

static bool feature_known(const struct emu *e, uint8_t fid)
{
	if (fid == NVME_FEAT_VOLATILE_WRITE_CACHE)
		return e->opts.vwc;
	if (fid == NVME_FEAT_HOST_MEMORY)
		return e->opts.hmb;
	return (fid >= NVME_FEAT_ARBITRATION && fid <= NVME_FEAT_ASYNC_EVENT_CONFIG && fid != 0x03);
}

static uint32_t feature_default(const struct emu *e, uint8_t fid)
{
	switch (fid) {
	case NVME_FEAT_ARBITRATION: return 7; /* no limit on the burst */
	case NVME_FEAT_TEMPERATURE_THRESHOLD: return DEFAULT_TEMPERATURE;
	case NVME_FEAT_VOLATILE_WRITE_CACHE: return e->opts.vwc;
	case NVME_FEAT_NUMBER_OF_QUEUES: return (e->opts.queues - 1) << 16 | (e->opts.queues - 1);
	default: return 0;
	}
}

void emu_features_reset(struct emu *e)
{
	for (unsigned fid = 0; fid < 256; fid++)
		e->features[fid] = feature_default(e, (uint8_t)fid);
	e->hmb = (struct emu_hmb){ 0 };
}

static uint32_t get_features(struct emu *e, const struct nvme_sqe *sqe, uint32_t *result)
{
	uint8_t fid = sqe->cdw10 & NVME_FEAT_FID_MASK;

	if (!feature_known(e, fid))
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	if (fid == NVME_FEAT_ERROR_RECOVERY && (!sqe->nsid || sqe->nsid > e->opts.nr_ns))
		return NVME_SC_INVALID_NS | EMU_DNR;
	/* ONCS says that features have no other than a current value, so SEL is ignored. */
	*result = e->features[fid];
	if (fid == NVME_FEAT_INTERRUPT_VECTOR)
		*result = sqe->cdw11 & 0xffff;
	return 0;
}

static uint32_t set_number_of_queues(struct emu *e, uint32_t value, uint32_t *result)
{
	uint32_t sqs = value & 0xffff, cqs = value >> 16, most = e->opts.queues - 1;

	if (sqs == 0xffff || cqs == 0xffff)
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	if (e->nr_active || e->nr_cqs) /* I/O queues exist (5.27.1.5) */
		return NVME_SC_SEQUENCE_ERROR | EMU_DNR;
	*result = (cqs < most ? cqs : most) << 16 | (sqs < most ? sqs : most);
	e->features[NVME_FEAT_NUMBER_OF_QUEUES] = *result;
	return 0;
}

static uint32_t set_features(struct emu *e, const struct nvme_sqe *sqe, uint32_t *result)
{
	uint8_t fid = sqe->cdw10 & NVME_FEAT_FID_MASK;
	uint32_t status;

	if (!feature_known(e, fid))
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	if (sqe->cdw10 & NVME_FEAT_SAVE)
		return NVME_SC_FEATURE_NOT_SAVEABLE | EMU_DNR;
	switch (fid) {
	case NVME_FEAT_NUMBER_OF_QUEUES: return set_number_of_queues(e, sqe->cdw11, result);
	case NVME_FEAT_POWER_MANAGEMENT:
		if (sqe->cdw11 & 0x1f) /* NPSS is 0: one power state */
			return NVME_SC_INVALID_FIELD | EMU_DNR;
		break;
	case NVME_FEAT_ERROR_RECOVERY:
		if (!sqe->nsid || (sqe->nsid > e->opts.nr_ns && sqe->nsid != NVME_NSID_ALL))
			return NVME_SC_INVALID_NS | EMU_DNR;
		break;
	case NVME_FEAT_INTERRUPT_VECTOR:
		if ((sqe->cdw11 & 0xffff) > e->opts.queues)
			return NVME_SC_INVALID_FIELD | EMU_DNR;
		return 0;
	case NVME_FEAT_VOLATILE_WRITE_CACHE:
		if (!(sqe->cdw11 & 1) && e->features[fid]) /* what is in the cache goes out */
			for (unsigned i = 0; i < e->opts.nr_ns; i++)
				emu_ns_flush(&e->opts.ns[i]);
		e->features[fid] = sqe->cdw11 & 1;
		return 0;
	case NVME_FEAT_HOST_MEMORY:
		status = emu_set_host_memory(e, sqe);
		if (status)
			return status;
		break;
	default: break;
	}
	e->features[fid] = sqe->cdw11;
	return 0;
}

/* --- queues (5.4 to 5.7)
 * ------------------------------------------------------------------------------ */

/* Checks that a queue of SIZE entries of ENTRY bytes lies in one mapping. */
static void *queue_memory(struct emu *e, const struct nvme_sqe *sqe, uint32_t size, size_t entry,
			  bool write, uint32_t *status)
{
	void *mem;

	*status = 0;
	if (size < 2 || size > e->opts.queue_entries)
		*status = NVME_SC_INVALID_QUEUE_SIZE | EMU_DNR;
	else if (!(sqe->cdw11 & NVME_CREATE_PC)) /* CAP.CQR: contiguous queues only */
		*status = NVME_SC_INVALID_FIELD | EMU_DNR;
	else if (sqe->prp1 & (e->page_size - 1))
		*status = NVME_SC_INVALID_PRP_OFFSET | EMU_DNR;
	if (*status)
		return NULL;
	mem = emu_memory(e, sqe->prp1, size * entry, write);
	if (!mem)
		*status = NVME_SC_DATA_TRANSFER_ERROR | EMU_DNR;
	return mem;
}

static uint32_t create_cq(struct emu *e, const struct nvme_sqe *sqe)
{
	uint32_t qid = NVME_GET(sqe->cdw10, NVME_CREATE_QID), status;
	uint32_t size = NVME_GET(sqe->cdw10, NVME_CREATE_QSIZE) + 1;
	uint16_t vector = (uint16_t)(sqe->cdw11 >> NVME_CREATE_HIGH16_SHIFT);
	struct nvme_cqe *mem;

	if (!qid || qid > (e->features[NVME_FEAT_NUMBER_OF_QUEUES] >> 16) + 1 || e->cq[qid].entries)
		return NVME_SC_INVALID_QID | EMU_DNR;
	if (vector > e->opts.queues)
		return NVME_SC_INVALID_VECTOR | EMU_DNR;
	mem = queue_memory(e, sqe, size, sizeof(*mem), true, &status);
	if (status)
		return status;
	e->cq[qid] = (struct emu_cq){ .entries = mem,
				      .size = size,
				      .id = (uint16_t)qid,
				      .vector = vector,
				      .phase = 1,
				      .interrupts = sqe->cdw11 & NVME_CREATE_IEN };
	e->nr_cqs++;
	emu_doorbell_clear(e, qid, true);
	return 0;
}

static uint32_t create_sq(struct emu *e, const struct nvme_sqe *sqe)
{
	uint32_t qid = NVME_GET(sqe->cdw10, NVME_CREATE_QID), status;
	uint32_t size = NVME_GET(sqe->cdw10, NVME_CREATE_QSIZE) + 1;
	uint32_t cqid = sqe->cdw11 >> NVME_CREATE_HIGH16_SHIFT;
	const struct nvme_sqe *mem;

	if (!qid || qid > (e->features[NVME_FEAT_NUMBER_OF_QUEUES] & 0xffff) + 1 ||
	    e->sq[qid].entries)
		return NVME_SC_INVALID_QID | EMU_DNR;
	if (!cqid || cqid > EMU_MAX_QUEUES || !e->cq[cqid].entries)
		return NVME_SC_INVALID_CQ | EMU_DNR;
	mem = queue_memory(e, sqe, size, sizeof(*mem), false, &status);
	if (status)
		return status;
	e->sq[qid] = (struct emu_sq){
		.entries = mem, .cq = &e->cq[cqid], .size = size, .id = (uint16_t)qid
	};
	e->cq[cqid].users++;
	emu_doorbell_clear(e, qid, false);
	e->active[e->nr_active++] = &e->sq[qid];
	return 0;
}

static uint32_t delete_sq(struct emu *e, const struct nvme_sqe *sqe)
{
	uint32_t qid = sqe->cdw10 & 0xffff;

	if (!qid || qid > EMU_MAX_QUEUES || !e->sq[qid].entries)
		return NVME_SC_INVALID_QID | EMU_DNR;
	emu_pending_remove(e, &e->sq[qid], -1, true);
	for (unsigned i = 0; i < e->nr_active; i++) {
		if (e->active[i] != &e->sq[qid])
			continue;
		e->active[i] = e->active[--e->nr_active];
		break;
	}
	e->sq[qid].cq->users--;
	e->sq[qid].entries = NULL;
	return 0;
}

static uint32_t delete_cq(struct emu *e, const struct nvme_sqe *sqe)
{
	uint32_t qid = sqe->cdw10 & 0xffff;

	if (!qid || qid > EMU_MAX_QUEUES || !e->cq[qid].entries)
		return NVME_SC_INVALID_QID | EMU_DNR;
	if (e->cq[qid].users)
		return NVME_SC_INVALID_QUEUE_DELETION | EMU_DNR;
	e->cq[qid].entries = NULL;
	e->nr_cqs--;
	return 0;
}

/* --- the others
 * ---------------------------------------------------------------------------------------- */

/* Abort (5.1): only commands that wait for their time can still be caught. */
static uint32_t abort_command(struct emu *e, const struct nvme_sqe *sqe, uint32_t *result)
{
	uint32_t sqid = sqe->cdw10 & 0xffff;

	*result = 1; /* not aborted */
	if (sqid <= EMU_MAX_QUEUES && e->sq[sqid].entries &&
	    emu_pending_remove(e, &e->sq[sqid], (int)(sqe->cdw10 >> 16), true))
		*result = 0;
	return 0;
}

static uint32_t async_event_request(struct emu *e, const struct nvme_sqe *sqe)
{
	if (e->nr_aer == EMU_AER_LIMIT)
		return NVME_SC_AER_LIMIT | EMU_DNR;
	e->aer_cid[e->nr_aer++] = sqe->cid;
	return EMU_NO_COMPLETION;
}

/* Format NVM (5.14): erases, and changes the block size. */
static uint32_t format_nvm(struct emu *e, const struct nvme_sqe *sqe)
{
	uint32_t format = sqe->cdw10 & 0xf, ses = sqe->cdw10 >> 9 & 7;
	unsigned first = sqe->nsid == NVME_NSID_ALL ? 1 : sqe->nsid;
	unsigned last = sqe->nsid == NVME_NSID_ALL ? e->opts.nr_ns : sqe->nsid;

	if (!sqe->nsid || last > e->opts.nr_ns)
		return NVME_SC_INVALID_NS | EMU_DNR;
	if (format >= EMU_LBA_FORMATS || (sqe->cdw10 & 0x1f0)) /* no metadata, no protection */
		return NVME_SC_INVALID_FORMAT | EMU_DNR;
	if (ses > 1) /* no cryptographic erase */
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	for (unsigned nsid = first; nsid <= last; nsid++)
		if (e->opts.ns[nsid - 1].read_only)
			return NVME_SC_NS_WRITE_PROTECTED | EMU_DNR;
	for (unsigned nsid = first; nsid <= last; nsid++)
		emu_ns_format(&e->opts.ns[nsid - 1], format ? 12 : 9);
	return 0;
}

uint32_t emu_admin(struct emu *e, const struct nvme_sqe *sqe, uint32_t *result)
{
	if (sqe->flags & NVME_SQE_FUSE_MASK)
		return NVME_SC_INVALID_FIELD | EMU_DNR;
	switch (sqe->opcode) {
	case NVME_ADMIN_DELETE_SQ: return delete_sq(e, sqe);
	case NVME_ADMIN_CREATE_SQ: return create_sq(e, sqe);
	case NVME_ADMIN_GET_LOG_PAGE: return get_log_page(e, sqe);
	case NVME_ADMIN_DELETE_CQ: return delete_cq(e, sqe);
	case NVME_ADMIN_CREATE_CQ: return create_cq(e, sqe);
	case NVME_ADMIN_IDENTIFY: return identify(e, sqe);
	case NVME_ADMIN_ABORT: return abort_command(e, sqe, result);
	case NVME_ADMIN_SET_FEATURES: return set_features(e, sqe, result);
	case NVME_ADMIN_GET_FEATURES: return get_features(e, sqe, result);
	case NVME_ADMIN_ASYNC_EVENT: return async_event_request(e, sqe);
	case NVME_ADMIN_FORMAT_NVM: return format_nvm(e, sqe);
	default: /* Keep Alive among them: KAS is 0 (Base 3.1.2.1.1) */
		return NVME_SC_INVALID_OPCODE | EMU_DNR;
	}
}
