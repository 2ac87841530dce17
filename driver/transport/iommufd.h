/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The few calls of iommufd and of vfio's character devices (Linux 6.2 and 6.6,
 * Documentation/userspace-api/iommufd.rst); Debian 12's kernel headers are older.
 */
#ifndef VROOM_IOMMUFD_H
#define VROOM_IOMMUFD_H

#include <linux/vfio.h>
#include <stdint.h>
#include <sys/ioctl.h>

#ifndef VFIO_DEVICE_BIND_IOMMUFD
struct vfio_device_bind_iommufd {
	uint32_t argsz;
	uint32_t flags;
	int32_t iommufd;
	uint32_t out_devid;
};
#define VFIO_DEVICE_BIND_IOMMUFD _IO(VFIO_TYPE, VFIO_BASE + 18)

struct vfio_device_attach_iommufd_pt {
	uint32_t argsz;
	uint32_t flags;
	uint32_t pt_id;
};
#define VFIO_DEVICE_ATTACH_IOMMUFD_PT _IO(VFIO_TYPE, VFIO_BASE + 19)
#endif

#ifndef IOMMU_IOAS_ALLOC
struct iommu_ioas_alloc {
	uint32_t size;
	uint32_t flags;
	uint32_t out_ioas_id;
};
#define IOMMU_IOAS_ALLOC _IO(';', 0x81)

struct iommu_ioas_map {
	uint32_t size;
	uint32_t flags;
	uint32_t ioas_id;
	uint32_t reserved;
	uint64_t user_va;
	uint64_t length;
	uint64_t iova;
};
#define IOMMU_IOAS_MAP		 _IO(';', 0x85)
#define IOMMU_IOAS_MAP_WRITEABLE (1u << 1)
#define IOMMU_IOAS_MAP_READABLE	 (1u << 2)

struct iommu_ioas_unmap {
	uint32_t size;
	uint32_t ioas_id;
	uint64_t iova;
	uint64_t length;
};
#define IOMMU_IOAS_UNMAP _IO(';', 0x86)
#endif

#endif
