/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * NVMe on the wire: registers, queue entries, commands and data structures.
 *
 * Everything here is little endian and laid out as plain integers; bits inside
 * a field are named by a _SHIFT and a _MASK (the mask is applied after the shift).
 * "Base" is the NVM Express Base Specification 2.0, "NVM" the NVM Command Set
 * Specification 1.0, "PCIe" the NVMe over PCIe Transport Specification 1.0.
 */
#ifndef VROOM_NVME_H
#define VROOM_NVME_H

#include <stddef.h>
#include <stdint.h>

/* Holds the size of a wire structure, in C and C++ from 2011 on. */
#ifdef __cplusplus
#define NVME_ASSERT(condition, source) static_assert(condition, source)
#else
#define NVME_ASSERT(condition, source) _Static_assert(condition, source)
#endif

/* Extract the bits NAME of VALUE: NVME_GET(cap, NVME_CAP_MQES). */
#define NVME_GET(value, name) (((value) >> name##_SHIFT) & name##_MASK)
/* Place VALUE at the bits NAME. */
#define NVME_SET(value, name) (((value)&name##_MASK) << name##_SHIFT)

/* Controller properties, byte offsets into BAR0 (Base 3.1.3). */
enum nvme_register {
	NVME_REG_CAP = 0x00, /* 8 bytes */
	NVME_REG_VS = 0x08,  /* 4 bytes from here on, unless noted */
	NVME_REG_INTMS = 0x0c,
	NVME_REG_INTMC = 0x10,
	NVME_REG_CC = 0x14,
	NVME_REG_CSTS = 0x1c,
	NVME_REG_NSSR = 0x20,
	NVME_REG_AQA = 0x24,
	NVME_REG_ASQ = 0x28, /* 8 bytes */
	NVME_REG_ACQ = 0x30, /* 8 bytes */
	NVME_REG_CMBLOC = 0x38,
	NVME_REG_CMBSZ = 0x3c,
	NVME_REG_DOORBELLS = 0x1000, /* PCIe 3.1.2 */
};

/* CAP, Controller Capabilities (Base 3.1.3.1). */
#define NVME_CAP_MQES_SHIFT   0 /* maximum queue entries supported, 0-based */
#define NVME_CAP_MQES_MASK    UINT64_C(0xffff)
#define NVME_CAP_CQR_SHIFT    16 /* contiguous queues required */
#define NVME_CAP_CQR_MASK     UINT64_C(0x1)
#define NVME_CAP_TO_SHIFT     24 /* timeout, units of 500 ms */
#define NVME_CAP_TO_MASK      UINT64_C(0xff)
#define NVME_CAP_DSTRD_SHIFT  32 /* doorbell stride, 2 ^ (2 + DSTRD) bytes */
#define NVME_CAP_DSTRD_MASK   UINT64_C(0xf)
#define NVME_CAP_CSS_SHIFT    37 /* command sets supported, a bit each */
#define NVME_CAP_CSS_MASK     UINT64_C(0xff)
#define NVME_CAP_MPSMIN_SHIFT 48 /* smallest page, 2 ^ (12 + MPSMIN) bytes */
#define NVME_CAP_MPSMIN_MASK  UINT64_C(0xf)
#define NVME_CAP_MPSMAX_SHIFT 52 /* largest page */
#define NVME_CAP_MPSMAX_MASK  UINT64_C(0xf)

#define NVME_CAP_CSS_NVM   0x01 /* the NVM command set */
#define NVME_CAP_CSS_IOCS  0x40 /* one or more I/O command sets, see CC.CSS=110b */
#define NVME_CAP_CSS_ADMIN 0x80 /* no I/O command set at all */

/* VS, Version (Base 3.1.3.2). */
#define NVME_VERSION(major, minor, tertiary) \
	((uint32_t)(major) << 16 | (uint32_t)(minor) << 8 | (uint32_t)(tertiary))

/* CC, Controller Configuration (Base 3.1.3.5). */
#define NVME_CC_EN_SHIFT     0
#define NVME_CC_EN_MASK	     0x1u
#define NVME_CC_CSS_SHIFT    4
#define NVME_CC_CSS_MASK     0x7u
#define NVME_CC_MPS_SHIFT    7
#define NVME_CC_MPS_MASK     0xfu
#define NVME_CC_AMS_SHIFT    11
#define NVME_CC_AMS_MASK     0x7u
#define NVME_CC_SHN_SHIFT    14
#define NVME_CC_SHN_MASK     0x3u
#define NVME_CC_IOSQES_SHIFT 16 /* log2 of the entry size */
#define NVME_CC_IOSQES_MASK  0xfu
#define NVME_CC_IOCQES_SHIFT 20
#define NVME_CC_IOCQES_MASK  0xfu

#define NVME_CC_SHN_NORMAL 1u

/* CSTS, Controller Status (Base 3.1.3.6). */
#define NVME_CSTS_RDY_SHIFT  0
#define NVME_CSTS_RDY_MASK   0x1u
#define NVME_CSTS_CFS_SHIFT  1 /* controller fatal status */
#define NVME_CSTS_CFS_MASK   0x1u
#define NVME_CSTS_SHST_SHIFT 2
#define NVME_CSTS_SHST_MASK  0x3u

#define NVME_CSTS_SHST_DONE 2u

/* AQA, Admin Queue Attributes (Base 3.1.3.8); both sizes 0-based. */
#define NVME_AQA_ASQS_SHIFT 0
#define NVME_AQA_ASQS_MASK  0xfffu
#define NVME_AQA_ACQS_SHIFT 16
#define NVME_AQA_ACQS_MASK  0xfffu

/* Submission queue entry (Base 3.3.3.1), with the names of the common command format. */
struct nvme_sqe {
	uint8_t opcode;
	uint8_t flags; /* FUSE in bits 1:0, PSDT in bits 7:6 */
	uint16_t cid;
	uint32_t nsid;
	uint32_t cdw2;
	uint32_t cdw3;
	uint64_t mptr;
	uint64_t prp1;
	uint64_t prp2;
	uint32_t cdw10;
	uint32_t cdw11;
	uint32_t cdw12;
	uint32_t cdw13;
	uint32_t cdw14;
	uint32_t cdw15;
};
NVME_ASSERT(sizeof(struct nvme_sqe) == 64, "Base 3.3.3.1");

#define NVME_SQE_FUSE_MASK 0x03
#define NVME_SQE_PSDT_MASK 0xc0

/* The first block of a read, write or like: CDW10 and CDW11 (NVM 3.2). */
static inline uint64_t nvme_sqe_slba(const struct nvme_sqe *sqe)
{
	return (uint64_t)sqe->cdw11 << 32 | sqe->cdw10;
}

static inline void nvme_sqe_set_slba(struct nvme_sqe *sqe, uint64_t slba)
{
	sqe->cdw10 = (uint32_t)slba;
	sqe->cdw11 = (uint32_t)(slba >> 32);
}

/* Where a command's data goes: opcode bits 1:0, of admin and of I/O commands (Base 3.3.3.1). */
enum nvme_direction {
	NVME_NO_DATA = 0,
	NVME_TO_CTRLR = 1,
	NVME_TO_HOST = 2,
	NVME_BOTH_WAYS = 3,
};

static inline enum nvme_direction nvme_direction(uint8_t opcode)
{
	return (enum nvme_direction)(opcode & 3);
}

/* Completion queue entry (Base 3.3.3.2). */
struct nvme_cqe {
	uint32_t dw0; /* command specific */
	uint32_t dw1;
	uint16_t sqhd;
	uint16_t sqid;
	uint16_t cid;
	uint16_t status; /* bit 0: phase tag; bits 15:1: the status field */
};
NVME_ASSERT(sizeof(struct nvme_cqe) == 16, "Base 3.3.3.2");

/* DW0 and DW1 of a completion: what commands with a 64-bit result return (NVM 3.2.10, append). */
static inline uint64_t nvme_cqe_result(const struct nvme_cqe *cqe)
{
	return (uint64_t)cqe->dw1 << 32 | cqe->dw0;
}

/* Bits of nvme_cqe.status (Base 3.3.3.2.1). */
#define NVME_STATUS_PHASE_SHIFT 0
#define NVME_STATUS_PHASE_MASK	0x1u
#define NVME_STATUS_SC_SHIFT	1
#define NVME_STATUS_SC_MASK	0xffu
#define NVME_STATUS_SCT_SHIFT	9
#define NVME_STATUS_SCT_MASK	0x7u
#define NVME_STATUS_MORE_SHIFT	14
#define NVME_STATUS_MORE_MASK	0x1u
#define NVME_STATUS_DNR_SHIFT	15 /* do not retry */
#define NVME_STATUS_DNR_MASK	0x1u

/* A status as (type << 8 | code): what enum nvme_status holds. */
#define NVME_STATUS_CODE(cqe_status) \
	((NVME_GET(cqe_status, NVME_STATUS_SCT) << 8) | NVME_GET(cqe_status, NVME_STATUS_SC))

/* Status type << 8 | status code (Base figures 97 to 101, NVM figures 16 to 18). */
enum nvme_status {
	NVME_SC_SUCCESS = 0x000,
	NVME_SC_INVALID_OPCODE = 0x001,
	NVME_SC_INVALID_FIELD = 0x002,
	NVME_SC_CID_CONFLICT = 0x003,
	NVME_SC_DATA_TRANSFER_ERROR = 0x004,
	NVME_SC_POWER_LOSS = 0x005,
	NVME_SC_INTERNAL_ERROR = 0x006,
	NVME_SC_ABORT_REQUESTED = 0x007,
	NVME_SC_ABORT_SQ_DELETED = 0x008,
	NVME_SC_ABORT_FAILED_FUSED = 0x009,
	NVME_SC_ABORT_MISSING_FUSED = 0x00a,
	NVME_SC_INVALID_NS = 0x00b,
	NVME_SC_SEQUENCE_ERROR = 0x00c,
	NVME_SC_INVALID_SGL_SEGMENT = 0x00d,
	NVME_SC_INVALID_CMB = 0x012,
	NVME_SC_INVALID_PRP_OFFSET = 0x013,
	NVME_SC_ATOMIC_WRITE_UNIT = 0x014,
	NVME_SC_OPERATION_DENIED = 0x015,
	NVME_SC_KEEP_ALIVE_EXPIRED = 0x018,
	NVME_SC_KEEP_ALIVE_INVALID = 0x019,
	NVME_SC_SANITIZE_FAILED = 0x01c,
	NVME_SC_SANITIZE_IN_PROGRESS = 0x01d,
	NVME_SC_NS_WRITE_PROTECTED = 0x020,
	NVME_SC_COMMAND_INTERRUPTED = 0x021,
	NVME_SC_TRANSIENT_TRANSPORT = 0x022,
	NVME_SC_LBA_RANGE = 0x080,
	NVME_SC_CAPACITY_EXCEEDED = 0x081,
	NVME_SC_NS_NOT_READY = 0x082,
	NVME_SC_RESERVATION_CONFLICT = 0x083,
	NVME_SC_FORMAT_IN_PROGRESS = 0x084,

	NVME_SC_INVALID_CQ = 0x100,
	NVME_SC_INVALID_QID = 0x101,
	NVME_SC_INVALID_QUEUE_SIZE = 0x102,
	NVME_SC_ABORT_LIMIT = 0x103,
	NVME_SC_AER_LIMIT = 0x105,
	NVME_SC_INVALID_FIRMWARE_SLOT = 0x106,
	NVME_SC_INVALID_VECTOR = 0x108,
	NVME_SC_INVALID_LOG_PAGE = 0x109,
	NVME_SC_INVALID_FORMAT = 0x10a,
	NVME_SC_INVALID_QUEUE_DELETION = 0x10c,
	NVME_SC_FEATURE_NOT_SAVEABLE = 0x10d,
	NVME_SC_FEATURE_NOT_CHANGEABLE = 0x10e,
	NVME_SC_FEATURE_NOT_NS_SPECIFIC = 0x10f,
	NVME_SC_CONFLICTING_ATTRIBUTES = 0x180,
	NVME_SC_INVALID_PROTECTION_INFO = 0x181,
	NVME_SC_WRITE_TO_READ_ONLY = 0x182,
	NVME_SC_SIZE_LIMIT_EXCEEDED = 0x183,

	NVME_SC_WRITE_FAULT = 0x280,
	NVME_SC_UNRECOVERED_READ = 0x281,
	NVME_SC_GUARD_CHECK = 0x282,
	NVME_SC_APPTAG_CHECK = 0x283,
	NVME_SC_REFTAG_CHECK = 0x284,
	NVME_SC_COMPARE_FAILURE = 0x285,
	NVME_SC_ACCESS_DENIED = 0x286,
	NVME_SC_UNWRITTEN_BLOCK = 0x287,
};

/* Admin command opcodes (Base figure 138). */
enum nvme_admin_opcode {
	NVME_ADMIN_DELETE_SQ = 0x00,
	NVME_ADMIN_CREATE_SQ = 0x01,
	NVME_ADMIN_GET_LOG_PAGE = 0x02,
	NVME_ADMIN_DELETE_CQ = 0x04,
	NVME_ADMIN_CREATE_CQ = 0x05,
	NVME_ADMIN_IDENTIFY = 0x06,
	NVME_ADMIN_ABORT = 0x08,
	NVME_ADMIN_SET_FEATURES = 0x09,
	NVME_ADMIN_GET_FEATURES = 0x0a,
	NVME_ADMIN_ASYNC_EVENT = 0x0c,
	NVME_ADMIN_KEEP_ALIVE = 0x18,
	NVME_ADMIN_FORMAT_NVM = 0x80,
};

/* NVM command set opcodes (NVM figure 15). */
enum nvme_io_opcode {
	NVME_CMD_FLUSH = 0x00,
	NVME_CMD_WRITE = 0x01,
	NVME_CMD_READ = 0x02,
	NVME_CMD_COMPARE = 0x05,
	NVME_CMD_WRITE_ZEROES = 0x08,
	NVME_CMD_DSM = 0x09, /* dataset management */
	NVME_CMD_VERIFY = 0x0c,
};

/* CDW10 of Create I/O Submission/Completion Queue (Base 5.4, 5.5). */
#define NVME_CREATE_QID_SHIFT	0
#define NVME_CREATE_QID_MASK	0xffffu
#define NVME_CREATE_QSIZE_SHIFT 16 /* 0-based */
#define NVME_CREATE_QSIZE_MASK	0xffffu
/* CDW11 of both. */
#define NVME_CREATE_PC		 0x1u /* physically contiguous */
#define NVME_CREATE_IEN		 0x2u /* completion queue: interrupts enabled */
#define NVME_CREATE_HIGH16_SHIFT 16   /* SQ: the CQ's identifier; CQ: the interrupt vector */

/* Feature identifiers (Base figure 317) and CDW10 of Get/Set Features. */
enum nvme_feature {
	NVME_FEAT_ARBITRATION = 0x01,
	NVME_FEAT_POWER_MANAGEMENT = 0x02,
	NVME_FEAT_TEMPERATURE_THRESHOLD = 0x04,
	NVME_FEAT_ERROR_RECOVERY = 0x05,
	NVME_FEAT_VOLATILE_WRITE_CACHE = 0x06,
	NVME_FEAT_NUMBER_OF_QUEUES = 0x07,
	NVME_FEAT_INTERRUPT_COALESCING = 0x08,
	NVME_FEAT_INTERRUPT_VECTOR = 0x09,
	NVME_FEAT_WRITE_ATOMICITY = 0x0a,
	NVME_FEAT_ASYNC_EVENT_CONFIG = 0x0b,
	NVME_FEAT_HOST_MEMORY = 0x0d,
	NVME_FEAT_KEEP_ALIVE_TIMER = 0x0f,
};
#define NVME_FEAT_FID_MASK  0xffu
#define NVME_FEAT_SEL_SHIFT 8 /* Get Features: which value */
#define NVME_FEAT_SEL_MASK  0x7u
#define NVME_FEAT_SAVE	    (1u << 31)

/* CDW11 of Host Memory Buffer, and an entry of its descriptor list (Base 5.27.1.10). */
#define NVME_HMB_ENABLE 0x1u
struct nvme_hmb_descriptor {
	uint64_t address; /* aligned to CC.MPS */
	uint32_t size;	  /* pages of CC.MPS */
	uint32_t reserved;
};
NVME_ASSERT(sizeof(struct nvme_hmb_descriptor) == 16, "Base figure 328");

enum nvme_feature_select {
	NVME_FEAT_SEL_CURRENT = 0,
	NVME_FEAT_SEL_DEFAULT = 1,
	NVME_FEAT_SEL_SAVED = 2,
	NVME_FEAT_SEL_SUPPORTED = 3,
};

/* Log page identifiers (Base figure 202); CDW10/11 hold NUMD. */
enum nvme_log_page {
	NVME_LOG_SUPPORTED_PAGES = 0x00,
	NVME_LOG_ERROR = 0x01,
	NVME_LOG_SMART = 0x02,
	NVME_LOG_FIRMWARE_SLOT = 0x03,
	NVME_LOG_CHANGED_NS = 0x04,
	NVME_LOG_COMMANDS_SUPPORTED = 0x05,
};

/* Identify CNS values (Base figure 273). */
enum nvme_identify_cns {
	NVME_CNS_NS = 0x00,
	NVME_CNS_CTRLR = 0x01,
	NVME_CNS_ACTIVE_NS_LIST = 0x02,
	NVME_CNS_NS_DESCRIPTORS = 0x03,
};

#define NVME_NSID_ALL	    0xffffffffu
#define NVME_IDENTIFY_BYTES 4096

/* CDW12 of read, write, compare, write zeroes (NVM 3.2): NLB is bits 15:0, 0-based. */
#define NVME_RW_NLB_MASK 0xffffu
#define NVME_RW_MAX_NLB	 65536u	    /* blocks that one command can name */
#define NVME_RW_DEAC	 (1u << 25) /* write zeroes: deallocate */
#define NVME_RW_FUA	 (1u << 30) /* force unit access */
#define NVME_RW_LR	 (1u << 31) /* limited retry */

/* The number of blocks that CDW12 names, from 1 on. */
static inline uint32_t nvme_sqe_nlb(const struct nvme_sqe *sqe)
{
	return (sqe->cdw12 & NVME_RW_NLB_MASK) + 1;
}

static inline void nvme_sqe_set_nlb(struct nvme_sqe *sqe, uint32_t nlb)
{
	sqe->cdw12 = (sqe->cdw12 & ~NVME_RW_NLB_MASK) | ((nlb - 1) & NVME_RW_NLB_MASK);
}

/* CDW11 of dataset management (NVM 3.2.3). */
#define NVME_DSM_DEALLOCATE 0x4u
#define NVME_DSM_MAX_RANGES 256
struct nvme_dsm_range {
	uint32_t attributes;
	uint32_t nlb; /* blocks, not 0-based */
	uint64_t slba;
};
NVME_ASSERT(sizeof(struct nvme_dsm_range) == 16, "NVM figure 41");

/* Power state descriptor (Base figure 276). */
struct nvme_power_state {
	uint16_t max_power; /* units of 10 mW */
	uint8_t reserved[30];
};
NVME_ASSERT(sizeof(struct nvme_power_state) == 32, "Base figure 276");

/* Identify Controller data structure (Base figure 275). */
struct nvme_id_ctrlr {
	uint16_t vid;
	uint16_t ssvid;
	char sn[20]; /* ASCII, padded with spaces, as are the next two */
	char mn[40];
	char fr[8];
	uint8_t rab;
	uint8_t ieee[3];
	uint8_t cmic;
	uint8_t mdts; /* 2 ^ MDTS units of CAP.MPSMIN; 0: no limit */
	uint16_t cntlid;
	uint32_t ver;
	uint32_t rtd3r;
	uint32_t rtd3e;
	uint32_t oaes;
	uint32_t ctratt;
	uint16_t rrls;
	uint8_t reserved102[9];
	uint8_t cntrltype; /* 1: I/O, 2: discovery, 3: administrative */
	uint8_t fguid[16];
	uint16_t crdt[3];
	uint8_t reserved134[122];
	uint16_t oacs;
	uint8_t acl;
	uint8_t aerl;
	uint8_t frmw;
	uint8_t lpa;
	uint8_t elpe;
	uint8_t npss;
	uint8_t avscc;
	uint8_t apsta;
	uint16_t wctemp; /* kelvin */
	uint16_t cctemp;
	uint16_t mtfa;
	uint32_t hmpre;	     /* host memory buffer that is preferred, units of 4 KiB */
	uint32_t hmmin;	     /* and the least that is of use */
	uint8_t tnvmcap[16]; /* bytes, 128-bit little endian */
	uint8_t unvmcap[16];
	uint32_t rpmbs;
	uint16_t edstt;
	uint8_t dsto;
	uint8_t fwug;
	uint16_t kas;
	uint16_t hctma;
	uint16_t mntmt;
	uint16_t mxtmt;
	uint32_t sanicap;
	uint32_t hmminds; /* smallest piece of a host memory buffer, units of 4 KiB */
	uint16_t hmmaxd;  /* pieces at most; 0: any number */
	uint8_t reserved338[174];
	uint8_t sqes; /* bits 3:0 required, 7:4 maximum, log2 bytes */
	uint8_t cqes;
	uint16_t maxcmd;
	uint32_t nn; /* number of namespaces */
	uint16_t oncs;
	uint16_t fuses;
	uint8_t fna;
	uint8_t vwc;
	uint16_t awun;
	uint16_t awupf;
	uint8_t icsvscc;
	uint8_t nwpc;
	uint16_t acwu;
	uint16_t reserved534;
	uint32_t sgls;
	uint32_t mnan;
	uint8_t reserved544[224];
	char subnqn[256];
	uint8_t reserved1024[768];
	uint8_t fabrics[256];
	struct nvme_power_state psd[32];
	uint8_t vendor[1024];
};
NVME_ASSERT(sizeof(struct nvme_id_ctrlr) == 4096, "Base figure 275");
NVME_ASSERT(offsetof(struct nvme_id_ctrlr, oacs) == 256, "Base figure 275");
NVME_ASSERT(offsetof(struct nvme_id_ctrlr, sqes) == 512, "Base figure 275");
NVME_ASSERT(offsetof(struct nvme_id_ctrlr, subnqn) == 768, "Base figure 275");
NVME_ASSERT(offsetof(struct nvme_id_ctrlr, psd) == 2048, "Base figure 275");

enum nvme_cntrltype {
	NVME_CNTRLTYPE_UNREPORTED = 0,
	NVME_CNTRLTYPE_IO = 1,
	NVME_CNTRLTYPE_DISCOVERY = 2,
	NVME_CNTRLTYPE_ADMIN = 3,
};

/* OACS, ONCS and VWC bits (Base figure 275). */
#define NVME_OACS_FORMAT	  0x0002
#define NVME_OACS_DOORBELL_BUFFER 0x0100
#define NVME_ONCS_COMPARE	  0x0001
#define NVME_ONCS_DSM		  0x0004
#define NVME_ONCS_WRITE_ZEROES	  0x0008
#define NVME_ONCS_SAVE_SELECT	  0x0010
#define NVME_ONCS_VERIFY	  0x0080
#define NVME_VWC_PRESENT	  0x01
#define NVME_VWC_FLUSH_ALL_NO	  (2 << 1) /* NSID FFFFFFFFh in Flush is refused */
#define NVME_VWC_FLUSH_ALL	  (3 << 1) /* NSID FFFFFFFFh in Flush names all */

/* LBA format (NVM figure 98). */
struct nvme_lbaf {
	uint16_t ms;   /* metadata, bytes */
	uint8_t lbads; /* log2 of the block size */
	uint8_t rp;
};
NVME_ASSERT(sizeof(struct nvme_lbaf) == 4, "NVM figure 98");

/* Identify Namespace data structure (NVM figure 97). */
struct nvme_id_ns {
	uint64_t nsze; /* blocks */
	uint64_t ncap;
	uint64_t nuse;
	uint8_t nsfeat;
	uint8_t nlbaf; /* 0-based */
	uint8_t flbas;
	uint8_t mc;
	uint8_t dpc;
	uint8_t dps;
	uint8_t nmic;
	uint8_t rescap;
	uint8_t fpi;
	uint8_t dlfeat;
	uint16_t nawun;
	uint16_t nawupf;
	uint16_t nacwu;
	uint16_t nabsn;
	uint16_t nabo;
	uint16_t nabspf;
	uint16_t noiob;
	uint8_t nvmcap[16];
	uint16_t npwg;
	uint16_t npwa;
	uint16_t npdg;
	uint16_t npda;
	uint16_t nows;
	uint16_t mssrl;
	uint32_t mcl;
	uint8_t msrc;
	uint8_t reserved81[11];
	uint32_t anagrpid;
	uint8_t reserved96[3];
	uint8_t nsattr;
	uint16_t nvmsetid;
	uint16_t endgid;
	uint8_t nguid[16];
	uint8_t eui64[8];
	struct nvme_lbaf lbaf[64];
	uint8_t vendor[3712];
};
NVME_ASSERT(sizeof(struct nvme_id_ns) == 4096, "NVM figure 97");
NVME_ASSERT(offsetof(struct nvme_id_ns, nguid) == 104, "NVM figure 97");
NVME_ASSERT(offsetof(struct nvme_id_ns, lbaf) == 128, "NVM figure 97");

/* The index of the format in use: FLBAS bits 6:5 above bits 3:0 (NVM figure 97). */
static inline unsigned nvme_lba_format_index(uint8_t flbas)
{
	return (flbas & 0x0fu) | ((flbas >> 1) & 0x30u);
}

#define NVME_DLFEAT_READS_ZERO	 0x01
#define NVME_DLFEAT_WRITE_ZEROES 0x08 /* the DEAC bit of write zeroes */

/* Namespace Identification Descriptor types (Base figure 277). */
enum nvme_ns_descriptor {
	NVME_NIDT_EUI64 = 1,
	NVME_NIDT_NGUID = 2,
	NVME_NIDT_UUID = 3,
	NVME_NIDT_CSI = 4,
};

/* Command Set Identifiers (Base figure 274). */
enum nvme_csi {
	NVME_CSI_NVM = 0,
	NVME_CSI_KV = 1,
	NVME_CSI_ZNS = 2,
};

/* Error Information log entry (Base figure 205). */
struct nvme_error_log {
	uint64_t error_count;
	uint16_t sqid;
	uint16_t cid;
	uint16_t status;
	uint16_t parameter_location;
	uint64_t lba;
	uint32_t nsid;
	uint8_t vendor;
	uint8_t trtype;
	uint8_t reserved30[2];
	uint64_t cs;
	uint8_t reserved40[24];
};
NVME_ASSERT(sizeof(struct nvme_error_log) == 64, "Base figure 205");

/* SMART / Health Information log (Base figure 207); 16-byte fields are 128-bit counters. */
struct nvme_smart_log {
	uint8_t critical_warning;
	uint8_t temperature[2]; /* kelvin */
	uint8_t avail_spare;
	uint8_t spare_threshold;
	uint8_t percent_used;
	uint8_t endurance;
	uint8_t reserved7[25];
	uint64_t data_units_read[2]; /* thousands of 512-byte units */
	uint64_t data_units_written[2];
	uint64_t host_reads[2];
	uint64_t host_writes[2];
	uint64_t busy_minutes[2];
	uint64_t power_cycles[2];
	uint64_t power_on_hours[2];
	uint64_t unsafe_shutdowns[2];
	uint64_t media_errors[2];
	uint64_t error_log_entries[2];
	uint8_t reserved192[320];
};
NVME_ASSERT(sizeof(struct nvme_smart_log) == 512, "Base figure 207");

/* Asynchronous event: CDW0 of its completion (Base figure 146). */
#define NVME_AER_TYPE_ERROR	  0u
#define NVME_AER_INVALID_DOORBELL 0u
#define NVME_AER_INVALID_DB_VALUE 1u

#endif
