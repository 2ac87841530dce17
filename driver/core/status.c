/* SPDX-License-Identifier: BSD-3-Clause */
/* NVMe status codes in words (Base 3.3.3.2.1, NVM 3.1) and as errno values. */
#include <errno.h>
#include <stdio.h>

#include "base/size.h"
#include "vroom.h"

static const struct status {
	uint16_t code;
	short err;
	const char *words;
} statuses[] = {
	{ NVME_SC_SUCCESS, 0, "Successful Completion" },
	{ NVME_SC_INVALID_OPCODE, EOPNOTSUPP, "Invalid Command Opcode" },
	{ NVME_SC_INVALID_FIELD, EINVAL, "Invalid Field in Command" },
	{ NVME_SC_CID_CONFLICT, EIO, "Command ID Conflict" },
	{ NVME_SC_DATA_TRANSFER_ERROR, EIO, "Data Transfer Error" },
	{ NVME_SC_POWER_LOSS, EIO, "Commands Aborted due to Power Loss Notification" },
	{ NVME_SC_INTERNAL_ERROR, EIO, "Internal Error" },
	{ NVME_SC_ABORT_REQUESTED, ECANCELED, "Command Abort Requested" },
	{ NVME_SC_ABORT_SQ_DELETED, ECANCELED, "Command Aborted due to SQ Deletion" },
	{ NVME_SC_ABORT_FAILED_FUSED, EIO, "Command Aborted due to Failed Fused Command" },
	{ NVME_SC_ABORT_MISSING_FUSED, EIO, "Command Aborted due to Missing Fused Command" },
	{ NVME_SC_INVALID_NS, ENODEV, "Invalid Namespace or Format" },
	{ NVME_SC_SEQUENCE_ERROR, EIO, "Command Sequence Error" },
	{ NVME_SC_INVALID_SGL_SEGMENT, EINVAL, "Invalid SGL Segment Descriptor" },
	{ NVME_SC_INVALID_CMB, EINVAL, "Invalid Use of Controller Memory Buffer" },
	{ NVME_SC_INVALID_PRP_OFFSET, EINVAL, "PRP Offset Invalid" },
	{ NVME_SC_ATOMIC_WRITE_UNIT, EINVAL, "Atomic Write Unit Exceeded" },
	{ NVME_SC_OPERATION_DENIED, EACCES, "Operation Denied" },
	{ NVME_SC_KEEP_ALIVE_EXPIRED, EIO, "Keep Alive Timer Expired" },
	{ NVME_SC_KEEP_ALIVE_INVALID, EINVAL, "Keep Alive Timeout Invalid" },
	{ NVME_SC_SANITIZE_FAILED, EIO, "Sanitize Failed" },
	{ NVME_SC_SANITIZE_IN_PROGRESS, EAGAIN, "Sanitize In Progress" },
	{ NVME_SC_NS_WRITE_PROTECTED, EROFS, "Namespace is Write Protected" },
	{ NVME_SC_COMMAND_INTERRUPTED, EAGAIN, "Command Interrupted" },
	{ NVME_SC_TRANSIENT_TRANSPORT, EIO, "Transient Transport Error" },
	{ NVME_SC_LBA_RANGE, ERANGE, "LBA Out of Range" },
	{ NVME_SC_CAPACITY_EXCEEDED, ENOSPC, "Capacity Exceeded" },
	{ NVME_SC_NS_NOT_READY, EAGAIN, "Namespace Not Ready" },
	{ NVME_SC_RESERVATION_CONFLICT, EBADE, "Reservation Conflict" },
	{ NVME_SC_FORMAT_IN_PROGRESS, EAGAIN, "Format In Progress" },
	{ NVME_SC_INVALID_CQ, EINVAL, "Completion Queue Invalid" },
	{ NVME_SC_INVALID_QID, EINVAL, "Invalid Queue Identifier" },
	{ NVME_SC_INVALID_QUEUE_SIZE, EINVAL, "Invalid Queue Size" },
	{ NVME_SC_ABORT_LIMIT, EBUSY, "Abort Command Limit Exceeded" },
	{ NVME_SC_AER_LIMIT, EBUSY, "Asynchronous Event Request Limit Exceeded" },
	{ NVME_SC_INVALID_FIRMWARE_SLOT, EINVAL, "Invalid Firmware Slot" },
	{ NVME_SC_INVALID_VECTOR, EINVAL, "Invalid Interrupt Vector" },
	{ NVME_SC_INVALID_LOG_PAGE, EINVAL, "Invalid Log Page" },
	{ NVME_SC_INVALID_FORMAT, EINVAL, "Invalid Format" },
	{ NVME_SC_INVALID_QUEUE_DELETION, EBUSY, "Invalid Queue Deletion" },
	{ NVME_SC_FEATURE_NOT_SAVEABLE, EINVAL, "Feature Identifier Not Saveable" },
	{ NVME_SC_FEATURE_NOT_CHANGEABLE, EINVAL, "Feature Not Changeable" },
	{ NVME_SC_FEATURE_NOT_NS_SPECIFIC, EINVAL, "Feature Not Namespace Specific" },
	{ NVME_SC_CONFLICTING_ATTRIBUTES, EINVAL, "Conflicting Attributes" },
	{ NVME_SC_INVALID_PROTECTION_INFO, EINVAL, "Invalid Protection Information" },
	{ NVME_SC_WRITE_TO_READ_ONLY, EROFS, "Attempted Write to Read Only Range" },
	{ NVME_SC_SIZE_LIMIT_EXCEEDED, EINVAL, "Command Size Limit Exceeded" },
	{ NVME_SC_WRITE_FAULT, EIO, "Write Fault" },
	{ NVME_SC_UNRECOVERED_READ, EIO, "Unrecovered Read Error" },
	{ NVME_SC_GUARD_CHECK, EILSEQ, "End-to-end Guard Check Error" },
	{ NVME_SC_APPTAG_CHECK, EILSEQ, "End-to-end Application Tag Check Error" },
	{ NVME_SC_REFTAG_CHECK, EILSEQ, "End-to-end Reference Tag Check Error" },
	{ NVME_SC_COMPARE_FAILURE, EILSEQ, "Compare Failure" },
	{ NVME_SC_ACCESS_DENIED, EACCES, "Access Denied" },
	{ NVME_SC_UNWRITTEN_BLOCK, EIO, "Deallocated or Unwritten Logical Block" },
};

static const struct status *find(uint16_t status)
{
	static const struct status unknown = { 0, EIO, "status unknown to vroom" };

	for (size_t i = 0; i < VROOM_LENGTH(statuses); i++)
		if (statuses[i].code == NVME_STATUS_CODE(status))
			return &statuses[i];
	return &unknown;
}

const char *vroom_status_str(uint16_t status)
{
	static _Thread_local char line[96];

	snprintf(line, sizeof(line), "%s (%02xh/%02xh)", find(status)->words,
		 NVME_GET(status, NVME_STATUS_SCT), NVME_GET(status, NVME_STATUS_SC));
	return line;
}

int vroom_status_errno(uint16_t status)
{
	return find(status)->err;
}
