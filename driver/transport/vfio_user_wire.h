/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The vfio-user protocol on the wire (vfio-user Protocol Specification 0.9.x), for the client and
 * the emulated controller's server. What it takes over from the kernel is in <linux/vfio.h>.
 */
#ifndef VROOM_VFIO_USER_WIRE_H
#define VROOM_VFIO_USER_WIRE_H

#include <linux/vfio.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum vfio_user_command {
	VFIO_USER_VERSION = 1,
	VFIO_USER_DMA_MAP = 2,
	VFIO_USER_DMA_UNMAP = 3,
	VFIO_USER_DEVICE_GET_INFO = 4,
	VFIO_USER_DEVICE_GET_REGION_INFO = 5,
	VFIO_USER_DEVICE_GET_REGION_IO_FDS = 6,
	VFIO_USER_DEVICE_GET_IRQ_INFO = 7,
	VFIO_USER_DEVICE_SET_IRQS = 8,
	VFIO_USER_REGION_READ = 9,
	VFIO_USER_REGION_WRITE = 10,
	VFIO_USER_DEVICE_RESET = 13,
};

#define VFIO_USER_MAJOR 0
#define VFIO_USER_MINOR 1

struct vfio_user_header {
	uint16_t msg_id;
	uint16_t command;
	uint32_t msg_size; /* bytes, header included */
	uint32_t flags;
	uint32_t error_no;
};
_Static_assert(sizeof(struct vfio_user_header) == 16, "vfio-user header");

#define VFIO_USER_FLAG_TYPE_MASK 0xfu
#define VFIO_USER_FLAG_REPLY	 0x1u
#define VFIO_USER_FLAG_NO_REPLY	 0x10u
#define VFIO_USER_FLAG_ERROR	 0x20u

/* Larger messages than this are refused: both sides move data by DMA, not by message. */
#define VFIO_USER_MAX_MESSAGE 8192
#define VFIO_USER_MAX_PAYLOAD (VFIO_USER_MAX_MESSAGE - sizeof(struct vfio_user_header))
#define VFIO_USER_MAX_FDS     8

struct vfio_user_version {
	uint16_t major;
	uint16_t minor;
	char json[1020]; /* capabilities; as much is sent as there is, with the NUL */
};

/*
 * GET_INFO has as much of struct vfio_device_info; DMA_MAP has struct vfio_iommu_type1_dma_map, in
 * which vaddr is an offset into the descriptor.
 */
#define VFIO_USER_DEVICE_INFO_BYTES offsetof(struct vfio_device_info, cap_offset)

struct vfio_user_region_access {
	uint64_t offset;
	uint32_t region;
	uint32_t count; /* bytes; they follow */
};
_Static_assert(sizeof(struct vfio_user_region_access) == 16, "REGION_READ/WRITE");

/* An eventfd that stands for writes to a part of a region. */
struct vfio_user_ioeventfd {
	uint64_t offset;
	uint64_t size;
	uint32_t fd_index;
	uint32_t type; /* 0: ioeventfd */
	uint32_t flags;
	uint32_t padding;
	uint64_t datamatch;
};
_Static_assert(sizeof(struct vfio_user_ioeventfd) == 40, "GET_REGION_IO_FDS");

struct vfio_user_region_io_fds {
	uint32_t argsz;
	uint32_t flags;
	uint32_t index;
	uint32_t count;
	struct vfio_user_ioeventfd fds[];
};

/*
 * vroom's own, in the JSON of the version reply: the offset of a 32-bit word in BAR0 that is not 0
 * while the controller sleeps. Who finds it set after a doorbell write signals the ioeventfd.
 */
#define VFIO_USER_SLEEP_WORD "/capabilities/vroom/sleep_word"

/*
 * Sends HEADER, the PAYLOAD that its msg_size tells of, and descriptors. FLAGS as sendmsg()'s.
 * -EAGAIN: nothing was sent, with MSG_DONTWAIT; else, if not 0, the connection is lost.
 */
int vfio_user_send(int socket, const struct vfio_user_header *header, const void *payload,
		   const int *fds, unsigned nr_fds, int flags);

/* A message as it comes in, in as many pieces as the socket hands out. */
struct vfio_user_inbox {
	union {
		struct vfio_user_header header;
		_Alignas(8) char bytes[VFIO_USER_MAX_MESSAGE];
	};
	size_t received; /* bytes; 0: the next message has not begun */
	int fds[VFIO_USER_MAX_FDS];
	unsigned nr_fds;
	bool taking; /* who dies now leaves nobody who knows where the next message begins */
};

/*
 * Takes what a look at the socket finds of one message, without waiting. 1: it is complete; 0: more
 * is to come; -EMSGSIZE: it is no message; else the connection is lost.
 */
int vfio_user_receive(int socket, struct vfio_user_inbox *in);

/* Closes descriptors that nobody has taken out. */
void vfio_user_drop_fds(struct vfio_user_inbox *in);

#endif
