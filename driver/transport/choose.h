/* SPDX-License-Identifier: BSD-3-Clause */
/* Which transport reaches an address. */
#ifndef VROOM_CHOOSE_H
#define VROOM_CHOOSE_H

#include "transport/transport.h"

/*
 * The address decides the device, the driver that has the device decides the transport. WANTED, a
 * name or NULL, overrides nothing: it only insists. -EBUSY: the kernel's driver has the device.
 */
int vroom_transport_choose(const struct vroom_address *addr, const char *wanted,
			   const struct vroom_transport_ops **out);

#endif
