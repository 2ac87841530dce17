/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/transport.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "pci/function.h"
#include "pci/holder.h"

/* A driver of the kernel's has the device. Says who uses it, and how to get it. */
static int refuse_bound(const struct vroom_address *addr, const struct vroom_device *d)
{
	char holder[256];

	if (vroom_device_holder(d->bdf, holder, sizeof(holder)))
		return vroom_fail_on(addr->text, EBUSY, "%s is %s; it is left alone", d->bdf,
				     holder);
	return vroom_fail_on(addr->text, EBUSY,
			     "the kernel's driver %s has the device; take it with: vroom bind %s",
			     d->driver, d->bdf);
}

int vroom_transport_choose(const struct vroom_address *addr, const char *wanted,
			   const struct vroom_transport_ops **out)
{
	struct vroom_device d;
	int ret;

	*out = &vroom_transport_vfio_user;
	if (addr->kind != VROOM_ADDRESS_PCI) {
		if (wanted && strcmp(wanted, (*out)->name))
			return vroom_fail_on(addr->text, EINVAL,
					     "transport %s is for PCI functions", wanted);
		return 0;
	}
	ret = vroom_device_look(addr->path, &d);
	if (ret)
		return ret;
	if (!strcmp(d.driver, "vfio-pci"))
		*out = &vroom_transport_vfio;
	else if (!d.driver[0] || !strcmp(d.driver, "uio_pci_generic"))
		*out = &vroom_transport_pci;
	else
		return refuse_bound(addr, &d);
	if (wanted && strcmp(wanted, (*out)->name))
		return vroom_fail_on(addr->text, EINVAL,
				     "transport %s was asked for, but the device is on %s; move it "
				     "with: vroom bind --driver %s %s",
				     wanted, d.driver[0] ? d.driver : "no driver",
				     strcmp(wanted, "vfio") ? "none" : "vfio-pci", d.bdf);
	return 0;
}
