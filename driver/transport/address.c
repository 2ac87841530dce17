/* SPDX-License-Identifier: BSD-3-Clause */
/* From the text of an address to what it names. Looks at file system and sysfs, opens nothing. */
#include "transport/address.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/error.h"
#include "pci/names.h"
#include "vroom.h"

/* "key=value,key=value" with keys of letters: what may follow an address after a comma. */
static bool looks_like_options(const char *text)
{
	while (*text) {
		const char *equals = text;

		while (isalpha((unsigned char)*equals) || *equals == '-' || *equals == '_')
			equals++;
		if (equals == text || *equals != '=')
			return false;
		text = strchr(equals, ',');
		if (!text)
			return true;
		text++;
	}
	return false;
}

/*
 * Where the options begin, or the end of TEXT. File names may hold commas themselves, so the
 * longest existing path wins; for a file yet to be created the first comma that can be one.
 */
static size_t address_length(const char *text)
{
	size_t len = strlen(text);
	char path[PATH_MAX];
	struct stat st;

	for (size_t at = len;; at--) {
		if (at == 0)
			break;
		if (at != len && (text[at] != ',' || !looks_like_options(text + at + 1)))
			continue;
		memcpy(path, text, at);
		path[at] = '\0';
		if (stat(path, &st) == 0)
			return at;
	}
	for (size_t at = 1; at < len; at++)
		if (text[at] == ',' && looks_like_options(text + at + 1))
			return at;
	return len;
}

/* Takes ns=N out of the option list; the rest stays for the emulated controller. */
static int take_options(struct vroom_address *a, const char *options)
{
	char copy[PATH_MAX], *state = NULL;

	snprintf(copy, sizeof(copy), "%s", options);
	for (char *item = strtok_r(copy, ",", &state); item; item = strtok_r(NULL, ",", &state)) {
		if (strncmp(item, "ns=", 3) == 0) {
			char *end;
			unsigned long nsid = strtoul(item + 3, &end, 0);

			if (*end || end == item + 3 || !nsid || nsid >= NVME_NSID_ALL)
				return vroom_fail(EINVAL, "%s: '%s' is not a namespace number",
						  a->text, item);
			a->nsid = (uint32_t)nsid;
			continue;
		}
		if (a->options[0])
			strncat(a->options, ",", sizeof(a->options) - strlen(a->options) - 1);
		strncat(a->options, item, sizeof(a->options) - strlen(a->options) - 1);
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
	snprintf(a->path, sizeof(a->path), "%s", bdf);
	if (!a->nsid)
		a->nsid = nsid;
	return 0;
}

/* A directory with a socket named cntrl is how SPDK's target lays out a vfio-user address. */
static int take_directory(struct vroom_address *a)
{
	struct stat st;
	size_t len = strlen(a->path);

	if (len + sizeof("/cntrl") > sizeof(a->path))
		return vroom_fail(ENAMETOOLONG, "%s: the path is too long", a->text);
	memcpy(a->path + len, "/cntrl", sizeof("/cntrl"));
	if (stat(a->path, &st) == 0 && S_ISSOCK(st.st_mode)) {
		a->kind = VROOM_ADDRESS_SOCKET;
		return 0;
	}
	return vroom_fail(EISDIR,
			  "%s: is a directory; name a file, a vfio-user socket or a "
			  "PCI address",
			  a->text);
}

static int take_device(struct vroom_address *a, const struct stat *st)
{
	const char *name = strrchr(a->path, '/');

	name = name ? name + 1 : a->path;
	if (strncmp(name, "nvme", 4) == 0 || strncmp(name, "ng", 2) == 0)
		return take_pci(a);
	return vroom_fail(ENODEV,
			  "%s: is a %s device, not an NVMe one; name a file, a vfio-user "
			  "socket or an NVMe device",
			  a->text, S_ISBLK(st->st_mode) ? "block" : "character");
}

int vroom_address_parse(const char *text, struct vroom_address *out)
{
	char bdf[VROOM_BDF_MAX];
	struct stat st;
	size_t len;
	int ret;

	memset(out, 0, sizeof(*out));
	if (!text || !*text)
		return vroom_fail(EINVAL, "no address given; name a file, a vfio-user socket, "
					  "emu-mem, emu-null or a PCI address");
	if (strlen(text) >= sizeof(out->text))
		return vroom_fail(ENAMETOOLONG, "%.40s...: the address is too long", text);
	snprintf(out->text, sizeof(out->text), "%s", text);

	len = address_length(text);
	memcpy(out->path, text, len);
	if (text[len]) {
		ret = take_options(out, text + len + 1);
		if (ret)
			return ret;
	}
	if (strcmp(out->path, "emu-mem") == 0) {
		out->kind = VROOM_ADDRESS_MEMORY;
		return 0;
	}
	if (strcmp(out->path, "emu-null") == 0) {
		out->kind = VROOM_ADDRESS_NULL;
		return 0;
	}
	if (stat(out->path, &st) != 0) {
		int err = errno;

		out->kind = VROOM_ADDRESS_FILE;
		if (vroom_device_parse(out->path, bdf) || strncmp(out->path, "/dev/nvme", 9) == 0 ||
		    strncmp(out->path, "/dev/ng", 7) == 0)
			ret = take_pci(out);
		else
			ret = err == ENOENT ? 0
					    : vroom_fail(err, "%s: %s", out->text, strerror(err));
	} else if (S_ISREG(st.st_mode)) {
		out->kind = VROOM_ADDRESS_FILE;
		ret = 0;
	} else if (S_ISSOCK(st.st_mode)) {
		out->kind = VROOM_ADDRESS_SOCKET;
		ret = 0;
	} else if (S_ISDIR(st.st_mode)) {
		ret = take_directory(out);
	} else if (S_ISBLK(st.st_mode) || S_ISCHR(st.st_mode)) {
		ret = take_device(out, &st);
	} else {
		ret = vroom_fail(ENODEV, "%s: is neither a file, a socket nor a device", out->text);
	}
	if (!ret && out->options[0] &&
	    (out->kind == VROOM_ADDRESS_SOCKET || out->kind == VROOM_ADDRESS_PCI))
		return vroom_fail(EINVAL, "%s: '%s' can be set for emulated controllers only",
				  out->text, out->options);
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
