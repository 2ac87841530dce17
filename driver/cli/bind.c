/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * `vroom bind` takes an NVMe function from the kernel's driver, `vroom unbind` gives it back.
 * What the device was, its driver and its names, is written to /run/vroom, so that
 * /dev/nvme0n1 goes on to name it, until the next boot.
 */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/size.h"
#include "pci/function.h"
#include "pci/holder.h"
#include "pci/names.h"
#include "pci/owner.h"
#include "pci/sysfs.h"
#include "transport/address.h"
#include "vroom.h"

#define NAMES_MAX 256

#define ADDRESSES_MAX 64

struct arguments {
	const char *addresses[ADDRESSES_MAX];
	unsigned count;
	const char *driver, *user;
	bool dry_run;
	const char *address; /* the one in hand */
	struct vroom_device device[ADDRESSES_MAX];
	unsigned devices; /* behind the addresses, each once */
};

static const struct argp_option bind_options[] = {
	{ "driver", 'd', "NAME", 0,
	  "vfio-pci, uio_pci_generic or none (vfio-pci with an IOMMU, else none)", 0 },
	{ "user", 'u', "NAME", 0, "Let this user drive the device (vfio-pci)", 0 },
	{ "dry-run", 'n', 0, 0, "Say what would be done, do nothing", 0 },
	{ 0 },
};

static const struct argp_option unbind_options[] = {
	{ "dry-run", 'n', 0, 0, "Say what would be done, do nothing", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;

	switch (key) {
	case 'd':
		if (strcmp(arg, "vfio-pci") && strcmp(arg, "uio_pci_generic") &&
		    strcmp(arg, "none"))
			argp_error(state, "--driver %s: must be vfio-pci, uio_pci_generic or none",
				   arg);
		a->driver = arg;
		return 0;
	case 'u': a->user = arg; return 0;
	case 'n': a->dry_run = true; return 0;
	case ARGP_KEY_ARG:
		if (a->count == ADDRESSES_MAX)
			argp_error(state, "more than %d addresses", ADDRESSES_MAX);
		a->addresses[a->count++] = arg;
		return 0;
	case ARGP_KEY_END:
		if (!a->count)
			argp_error(state, "an address is needed; see vroom list");
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

/* --- steps: done, or only said -------------------------------------------------------------- */

static int write_sysfs(const struct arguments *a, const char *text, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static int write_sysfs(const struct arguments *a, const char *text, const char *format, ...)
{
	char path[PATH_MAX];
	va_list args;
	int fd, ret = 0;

	va_start(args, format);
	vsnprintf(path, sizeof(path), format, args);
	va_end(args);
	if (a->dry_run) {
		printf("would write '%s' to %s\n", strcmp(text, "\n") ? text : "", path);
		return 0;
	}
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		ret = vroom_fail(errno, "%s: cannot write '%s' to %s: %s", a->address, text, path,
				 strerror(errno));
	if (fd >= 0)
		close(fd);
	return ret;
}

static int load_module(const struct arguments *a, const char *driver)
{
	char path[PATH_MAX], *const argv[] = { "modprobe", "-q", (char *)(uintptr_t)driver, NULL };
	int status = -1;
	pid_t pid;

	snprintf(path, sizeof(path), "/sys/bus/pci/drivers/%s", driver);
	if (access(path, F_OK) == 0)
		return 0;
	if (a->dry_run) {
		printf("would run modprobe %s\n", driver);
		return 0;
	}
	if (posix_spawnp(&pid, "modprobe", NULL, NULL, argv, environ) == 0)
		waitpid(pid, &status, 0);
	return status == 0 ? 0
			   : vroom_fail(ENOENT,
					"%s: the module %s cannot be loaded; it comes with the "
					"kernel's package, and modprobe %s says more",
					a->address, driver, driver);
}

/* --- bind ----------------------------------------------------------------------------------- */

static int write_record(const struct vroom_device *d)
{
	static const char *const facts[] = { "model", "serial", "firmware_rev", "bytes" };
	struct vroom_device_name names[NAMES_MAX];
	int count = vroom_device_names(d->bdf, names, NAMES_MAX);
	char path[PATH_MAX], text[128];
	FILE *f;

	snprintf(path, sizeof(path), VROOM_RECORDS "/%s", d->bdf);
	if (!count && access(path, F_OK) == 0)
		return 0; /* of an earlier bind, when the names were still there */
	mkdir(VROOM_RECORDS, 0755);
	f = fopen(path, "we");
	if (!f)
		return vroom_fail(errno, "%s: cannot write %s: %s", d->bdf, path, strerror(errno));
	fprintf(f, "driver %s\n", d->driver[0] ? d->driver : "nvme");
	for (int i = 0; i < count; i++)
		fprintf(f, "name %s %u\n", names[i].name, names[i].nsid);
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
		if (cli_fact(d->bdf, facts[i], text, sizeof(text)))
			fprintf(f, "%s %s\n", facts[i], text);
	return fclose(f)
		       ? vroom_fail(errno, "%s: cannot write %s: %s", d->bdf, path, strerror(errno))
		       : 0;
}

/* The device is where it was before the first bind. */
static void forget_record(const struct vroom_device *d)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), VROOM_RECORDS "/%s", d->bdf);
	unlink(path);
}

/* Keeps every other vroom away from the device, until this process ends. */
static int take(const struct arguments *a, const struct vroom_device *d)
{
	int fd;

	return a->dry_run ? 0 : vroom_device_lock(d->bdf, &fd);
}

/* The function behind the address, free to be moved. */
static int look(const struct arguments *a, struct vroom_device *d)
{
	struct vroom_address address;
	char holder[256];
	int ret = vroom_address_parse(a->address, &address);

	if (!ret && address.kind != VROOM_ADDRESS_PCI)
		ret = vroom_fail(EINVAL,
				 "%s: is not an NVMe device of this machine; see vroom list",
				 a->address);
	if (!ret)
		ret = vroom_device_look(address.path, d);
	if (!ret && geteuid() != 0 && !a->dry_run)
		ret = vroom_fail(EPERM,
				 "%s: moving a device between drivers takes root: sudo vroom "
				 "bind, or unbind",
				 a->address);
	if (!ret && vroom_device_holder(d->bdf, holder, sizeof(holder)))
		ret = vroom_fail(EBUSY, "%s: %s is %s; nothing was changed", a->address, d->bdf,
				 holder);
	return ret ? ret : vroom_device_owner(d->bdf);
}

static bool is_among(const struct arguments *a, const char *bdf)
{
	for (unsigned i = 0; i < a->devices; i++)
		if (!strcmp(a->device[i].bdf, bdf))
			return true;
	return false;
}

/* Looks at all addresses before anything is changed. */
static int look_at_all(struct arguments *a)
{
	for (unsigned i = 0; i < a->count; i++) {
		struct vroom_device d;
		int ret;

		a->address = a->addresses[i];
		ret = look(a, &d);
		if (ret)
			return ret;
		if (!is_among(a, d.bdf)) {
			a->addresses[a->devices] = a->address;
			a->device[a->devices++] = d;
		}
	}
	return 0;
}

/* From whatever driver D has to DRIVER; "" leaves it without one, NULL to the kernel's choice. */
static int move(const struct arguments *a, const struct vroom_device *d, const char *driver)
{
	/* What no driver is called keeps all drivers away. */
	const char *override = !driver ? "\n" : driver[0] ? driver : "none";
	int ret = write_sysfs(a, override, "/sys/bus/pci/devices/%s/driver_override", d->bdf);

	if (!ret && d->driver[0])
		ret = write_sysfs(a, d->bdf, "/sys/bus/pci/devices/%s/driver/unbind", d->bdf);
	if (!ret && (!driver || driver[0]))
		ret = write_sysfs(a, d->bdf, "/sys/bus/pci/drivers_probe");
	return ret;
}

/* Is the function on DRIVER now? */
static int check_driver(const struct arguments *a, const struct vroom_device *d, const char *driver)
{
	struct vroom_device now;
	int ret = a->dry_run ? 0 : vroom_device_look(d->bdf, &now);

	if (a->dry_run || ret || !strcmp(now.driver, driver))
		return ret;
	return vroom_fail(EIO, "%s: the driver %s did not take the device; see dmesg", a->address,
			  driver);
}

/* After a move that failed: to the driver that the device was on. */
static void move_back(const struct arguments *a, struct vroom_device *d)
{
	char driver[64];

	vroom_device_record(d->bdf, "driver", 0, driver, sizeof(driver));
	vroom_device_look(d->bdf, d);
	move(a, d, NULL);
	vroom_device_look(d->bdf, d);
	if (!strcmp(d->driver, driver))
		forget_record(d);
}

/* The files of vfio that the user needs. */
static int give_to_user(const struct arguments *a, const struct vroom_device *d)
{
	const struct passwd *user = getpwnam(a->user);
	char path[64];

	snprintf(path, sizeof(path), "/dev/vfio/%d", d->iommu_group);
	if (!user)
		return vroom_fail(ENOENT, "%s: no user %s", a->address, a->user);
	if (a->dry_run) {
		printf("would give %s to %s\n", path, a->user);
		return 0;
	}
	return chown(path, user->pw_uid, user->pw_gid)
		       ? vroom_fail(errno, "%s: cannot give %s to %s: %s", a->address, path,
				    a->user, strerror(errno))
		       : 0;
}

static int check_target(const struct arguments *a, const struct vroom_device *d, const char *driver)
{
	char rest[512];

	if (!strcmp(driver, "vfio-pci"))
		return d->iommu_group < 0 ? vroom_fail(ENOTSUP,
						       "%s: there is no IOMMU for the device; "
						       "enable VT-d or AMD-Vi "
						       "in the firmware (and intel_iommu=on), or "
						       "use --driver none",
						       a->address)
					  : vroom_device_group_rest(d, rest, sizeof(rest));
	if (d->iommu_translates)
		return vroom_fail(ENOTSUP,
				  "%s: an IOMMU translates the device's addresses; use --driver "
				  "vfio-pci",
				  a->address);
	return a->user ? vroom_fail(EINVAL,
				    "%s: --user takes vfio-pci; without an IOMMU only root may "
				    "drive a device",
				    a->address)
		       : 0;
}

/* Where D is to go: as --driver says, else to vfio-pci if there is an IOMMU. */
static const char *target_of(const struct arguments *a, const struct vroom_device *d)
{
	return a->driver ? a->driver : d->iommu_group >= 0 ? "vfio-pci" : "none";
}

static int bind_one(const struct arguments *a, struct vroom_device *d)
{
	const char *driver = target_of(a, d);
	char was[sizeof(d->driver)];

	if (!strcmp(driver, "none"))
		driver = "";
	snprintf(was, sizeof(was), "%s", d->driver);
	if (strcmp(driver, was)) {
		if ((driver[0] && load_module(a, driver)) || (!a->dry_run && write_record(d)))
			return cli_fail();
		if (move(a, d, driver) || check_driver(a, d, driver)) {
			cli_fail();
			move_back(a, d);
			return 1;
		}
	}
	if (a->user && give_to_user(a, d))
		return cli_fail();
	if (!a->dry_run)
		printf("%s: on %s, was on %s; back to the kernel with: vroom unbind %s\n", d->bdf,
		       driver[0] ? driver : "no driver", was[0] ? was : "no driver", d->bdf);
	return 0;
}

/* What else of D's group must be bound before a job can use any function of it. */
static void name_rest_of_group(const struct arguments *a, const struct vroom_device *d)
{
	char rest[512], missing[512] = "", *state = NULL;

	if (strcmp(target_of(a, d), "vfio-pci") || vroom_device_group_rest(d, rest, sizeof(rest)))
		return;
	for (char *bdf = strtok_r(rest, " ", &state); bdf; bdf = strtok_r(NULL, " ", &state)) {
		size_t length = strlen(missing);

		if (!is_among(a, bdf)) /* in a dry run they are still where they were */
			snprintf(missing + length, sizeof(missing) - length, " %s", bdf);
	}
	if (missing[0])
		printf("%s: IOMMU group %d goes to vfio as a whole; before a job can use it: "
		       "vroom bind%s\n",
		       d->bdf, d->iommu_group, missing);
}

int cli_bind(int argc, char **argv)
{
	static const struct argp argp = { bind_options,
					  parse,
					  "ADDRESS...",
					  "Takes the NVMe controller at each ADDRESS from the "
					  "kernel's driver, for vroom to drive: a "
					  "PCI address or a name like /dev/nvme0n1, which goes on "
					  "to name it. Refuses what is "
					  "mounted, part of LVM or md, in use as swap, or held "
					  "open; nothing is changed then. A job "
					  "can use a controller when all of its IOMMU group are "
					  "bound. vroom unbind gives it back.",
					  0,
					  0,
					  0 };
	struct arguments a = { 0 };

	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (look_at_all(&a))
		return cli_fail();
	for (unsigned i = 0; i < a.devices; i++) {
		a.address = a.addresses[i];
		if (check_target(&a, &a.device[i], target_of(&a, &a.device[i])) ||
		    take(&a, &a.device[i]))
			return cli_fail();
	}
	for (unsigned i = 0; i < a.devices; i++) {
		a.address = a.addresses[i];
		if (bind_one(&a, &a.device[i]))
			return 1;
	}
	for (unsigned i = 0; i < a.devices; i++)
		if (!i || a.device[i].iommu_group != a.device[i - 1].iommu_group)
			name_rest_of_group(&a, &a.device[i]);
	return 0;
}

/* --- unbind --------------------------------------------------------------------------------- */

/* What a killed run left: its controller is disabled, its memory given back. */
static void recover(const struct vroom_device *d)
{
	struct vroom_ctrlr *c;

	if (vroom_open(d->bdf, NULL, &c) == 0)
		vroom_close(c);
}

/* Namespaces that the record names; 1 where there is no record. */
static int recorded_namespaces(const struct vroom_device *d)
{
	struct vroom_device_name names[NAMES_MAX];
	int recorded = vroom_device_recorded_names(d->bdf, names, NAMES_MAX), count = 0;

	for (int i = 0; i < recorded; i++) /* once, though it has a character device, too */
		count += names[i].nsid && strncmp(names[i].name, "nvme", 4) == 0;
	return VROOM_MAX(count, 1);
}

/*
 * The kernel's driver probes in the background. Waits for the namespaces' files in /dev: who
 * opened one too early would create a plain file there.
 */
static int wait_for_names(const struct vroom_device *d, struct vroom_device_name *names)
{
	int wanted = recorded_namespaces(d), count = 0;

	for (int tries = 0; tries < 100; tries++) {
		int ready = 0;

		count = vroom_device_names(d->bdf, names, NAMES_MAX);
		for (int i = 0; i < count; i++) {
			char path[sizeof(names->name) + 8];

			snprintf(path, sizeof(path), "/dev/%.63s", names[i].name);
			ready += names[i].nsid && access(path, F_OK) == 0;
		}
		if (ready >= 2 * wanted) /* a block and a character device each */
			break;
		usleep(100000);
	}
	return count;
}

static bool on_group_member(const char *bdf, void *arg)
{
	const struct vroom_device *d = arg;

	return strcmp(bdf, d->bdf) && vroom_device_owner(bdf) == -EBUSY;
}

/* While vfio has a function of a group in use, the kernel gives no other of it to a driver. */
static int check_group_idle(const struct arguments *a, struct vroom_device *d)
{
	return !strcmp(d->driver, "vfio-pci") &&
			       vroom_for_entries(on_group_member, d,
						 VROOM_IOMMU_GROUPS "/%d/devices", d->iommu_group)
		       ? vroom_fail(EBUSY, "%s: is in IOMMU group %d with %s; nothing was changed",
				    a->address, d->iommu_group, vroom_error())
		       : 0;
}

static int unbind_one(const struct arguments *a, struct vroom_device *d)
{
	struct vroom_device_name names[NAMES_MAX];
	char driver[64];
	int count;

	if (!vroom_device_record(d->bdf, "driver", 0, driver, sizeof(driver)))
		snprintf(driver, sizeof(driver), "nvme");
	if (strcmp(d->driver, driver)) {
		if (!a->dry_run && strcmp(d->driver, "vfio-pci"))
			recover(d);
		if (take(a, d) || load_module(a, driver) || move(a, d, NULL) ||
		    check_driver(a, d, driver))
			return cli_fail();
	}
	if (a->dry_run)
		return 0;
	count = wait_for_names(d, names);
	forget_record(d);
	printf("%s: on %s:", d->bdf, driver);
	for (int i = 0; i < count; i++)
		printf(" /dev/%s", names[i].name);
	printf("\n");
	return 0;
}

int cli_unbind(int argc, char **argv)
{
	static const struct argp argp = {
		unbind_options,
		parse,
		"ADDRESS...",
		"Gives the NVMe controller at each ADDRESS back to the driver "
		"that it was on before vroom bind.",
		0,
		0,
		0
	};
	struct arguments a = { 0 };

	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (look_at_all(&a))
		return cli_fail();
	for (unsigned i = 0; i < a.devices; i++) {
		a.address = a.addresses[i];
		if (check_group_idle(&a, &a.device[i]))
			return cli_fail();
	}
	for (unsigned i = 0; i < a.devices; i++) {
		a.address = a.addresses[i];
		if (unbind_one(&a, &a.device[i]))
			return 1;
	}
	return 0;
}
