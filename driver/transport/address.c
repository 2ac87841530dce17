/* SPDX-License-Identifier: BSD-3-Clause */
/* From the text of an address to what it names, and what reaches that. Opens nothing. */
#include "transport/transport.h"

#include <sys/stat.h>

#include "pci/pci.h"
#include "vroom.h"

/* "key=value,key=value" with keys of letters: what may follow an address after a comma. */
static bool looks_like_options(const char *text)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
	size_t key = strspn(text, letters);
	const char *comma = strchr(text, ',');

	return key && text[key] == '=' && (!comma || looks_like_options(comma + 1));
}

/*
 * Where the options begin, or the end of TEXT. File names may hold commas themselves, so the
 * longest existing path wins; for a file yet to be created the first comma that can be one.
 */
static size_t address_length(const char *text)
{
	size_t length = strlen(text);
	char path[PATH_MAX];
	struct stat st;

	for (size_t at = length; at; at--) {
		if (text[at] && (text[at] != ',' || !looks_like_options(text + at + 1)))
			continue;
		length = at;
		snprintf(path, sizeof(path), "%.*s", (int)at, text);
		if (stat(path, &st) == 0)
			break;
	}
	return length;
}

/* Takes ns=N out of the options, each after a comma; the rest stays for the emulated controller. */
static int take_options(struct vroom_address *a, const char *options)
{
	char copy[PATH_MAX], *rest, *end = a->options;

	snprintf(copy, sizeof(copy), "%s", options);
	for (char *o = strtok_r(copy, ",", &rest); o; o = strtok_r(NULL, ",", &rest)) {
		unsigned long nsid;
		char *after;

		if (strncmp(o, "ns=", 3) != 0) {
			end += sprintf(end, "%s%s", end > a->options ? "," : "", o);
			continue;
		}
		nsid = strtoul(o + 3, &after, 0);
		if (*after || !nsid || nsid >= NVME_NSID_ALL)
			return vroom_fail_on(a->text, EINVAL, "'%s' is not a namespace number", o);
		a->nsid = (uint32_t)nsid;
	}
	return 0;
}

/* From a PCI address or a name of the kernel's to the function, and maybe the namespace. */
static int take_pci(struct vroom_address *a)
{
	char bdf[VROOM_BDF_MAX];
	uint32_t nsid;
	int ret = vroom_device_resolve(a->path, bdf, &nsid);

	if (ret)
		return ret;
	a->kind = VROOM_ADDRESS_PCI;
	strcpy(a->path, bdf);
	if (!a->nsid)
		a->nsid = nsid;
	return 0;
}

/* A directory with a socket named cntrl is how SPDK's target lays out a vfio-user address. */
static int take_directory(struct vroom_address *a)
{
	struct stat st;

	strncat(a->path, "/cntrl", sizeof(a->path) - strlen(a->path) - 1);
	a->kind = VROOM_ADDRESS_SOCKET;
	if (stat(a->path, &st) == 0 && S_ISSOCK(st.st_mode))
		return 0;
	return vroom_fail_on(a->text, EISDIR,
			     "is a directory; name a file, a vfio-user socket or a PCI address");
}

static bool is_nvme_name(const char *name)
{
	return strncmp(name, "nvme", 4) == 0 || strncmp(name, "ng", 2) == 0;
}

static int take_path(struct vroom_address *a)
{
	char bdf[VROOM_BDF_MAX];
	struct stat st;

	if (stat(a->path, &st) != 0) {
		int err = errno;

		if (vroom_device_parse(a->path, bdf) ||
		    (strncmp(a->path, "/dev/", 5) == 0 && is_nvme_name(a->path + 5)))
			return take_pci(a);
		a->kind = VROOM_ADDRESS_FILE; /* to be created */
		return err == ENOENT ? 0 : vroom_fail_on(a->text, err, "%s", strerror(err));
	}
	switch (st.st_mode & S_IFMT) {
	case S_IFREG: a->kind = VROOM_ADDRESS_FILE; return 0;
	case S_IFSOCK: a->kind = VROOM_ADDRESS_SOCKET; return 0;
	case S_IFDIR: return take_directory(a);
	case S_IFBLK:
	case S_IFCHR:
		if (is_nvme_name(basename(a->path)))
			return take_pci(a);
		return vroom_fail_on(a->text, ENODEV, "is a device, but not an NVMe one");
	default: return vroom_fail_on(a->text, ENODEV, "is neither a file, a socket nor a device");
	}
}

int vroom_address_parse(const char *text, struct vroom_address *out)
{
	size_t length;
	int ret;

	memset(out, 0, sizeof(*out));
	if (!text || !*text)
		return vroom_fail(EINVAL, "no address given; name a file, a vfio-user socket, "
					  "emu-mem, emu-null or a PCI address");
	if (strlen(text) >= sizeof(out->text))
		return vroom_fail(ENAMETOOLONG, "%.40s...: the address is too long", text);
	strcpy(out->text, text);
	length = address_length(text);
	memcpy(out->path, text, length);
	ret = take_options(out, text + length);
	if (ret)
		return ret;
	if (strcmp(out->path, "emu-mem") == 0)
		out->kind = VROOM_ADDRESS_MEMORY;
	else if (strcmp(out->path, "emu-null") == 0)
		out->kind = VROOM_ADDRESS_NULL;
	else
		ret = take_path(out);
	if (!ret && out->options[0] &&
	    (out->kind == VROOM_ADDRESS_SOCKET || out->kind == VROOM_ADDRESS_PCI))
		return vroom_fail_on(out->text, EINVAL,
				     "'%s' can be set for emulated controllers only", out->options);
	return ret;
}

int vroom_address_key(const char *address, char *key, uint32_t *nsid, char *path)
{
	struct vroom_address a;
	char real[PATH_MAX];
	int ret = vroom_address_parse(address, &a);

	if (ret)
		return ret;
	*nsid = a.nsid;
	/* A file that is not there yet has no other name than the one written. */
	snprintf(key, VROOM_ADDRESS_MAX, "%s%s%s", realpath(a.path, real) ? real : a.path,
		 a.options[0] ? "," : "", a.options);
	if (path)
		snprintf(path, VROOM_ADDRESS_MAX, "%s", a.kind == VROOM_ADDRESS_FILE ? a.path : "");
	return 0;
}

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
	bool on_bus = addr->kind == VROOM_ADDRESS_PCI;
	struct vroom_device d = { 0 };
	int ret = on_bus ? vroom_device_look(addr->path, &d) : 0;

	if (ret)
		return ret;
	if (!on_bus)
		*out = &vroom_transport_vfio_user;
	else if (!strcmp(d.driver, "vfio-pci"))
		*out = &vroom_transport_vfio;
	else if (!d.driver[0] || !strcmp(d.driver, "uio_pci_generic"))
		*out = &vroom_transport_pci;
	else
		return refuse_bound(addr, &d);
	if (!wanted || !strcmp(wanted, (*out)->name))
		return 0;
	if (!on_bus)
		return vroom_fail_on(addr->text, EINVAL, "transport %s is for PCI functions",
				     wanted);
	return vroom_fail_on(addr->text, EINVAL,
			     "transport %s was asked for, but the device is on %s; move it with: "
			     "vroom bind --driver %s %s",
			     wanted, d.driver[0] ? d.driver : "no driver",
			     strcmp(wanted, "vfio") ? "none" : "vfio-pci", d.bdf);
}
