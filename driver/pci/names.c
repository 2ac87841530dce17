/* SPDX-License-Identifier: BSD-3-Clause */
#include "pci/names.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "pci/sysfs.h"

struct names {
	struct vroom_device_name *list;
	int count, max;
	const char *controller; /* nvme0 */
};

static void add_name(struct names *n, uint32_t nsid, const char *prefix, const char *name)
{
	if (n->count == n->max)
		return;
	snprintf(n->list[n->count].name, sizeof(n->list->name), "%s%s", prefix, name);
	n->list[n->count++].nsid = nsid;
}

/* nvme0n1 is one; nvme0c0n1 is a hidden path to one, nvme0n1p1 a part of one. */
static bool is_namespace(const char *name)
{
	unsigned controller, ns;
	int end = 0;

	return sscanf(name, "nvme%un%u%n", &controller, &ns, &end) == 2 && !name[end];
}

/* Has N's controller this block device? With native multipath it is the subsystem's instead. */
static bool is_of_controller(const struct names *n, const char *name)
{
	char parent[64], path[PATH_MAX];

	vroom_read_link(parent, sizeof(parent), "/sys/class/block/%s/device", name);
	snprintf(path, sizeof(path), "/sys/class/nvme-subsystem/%s/%s", parent, n->controller);
	return !strcmp(parent, n->controller) || access(path, F_OK) == 0;
}

static bool on_block_device(const char *name, void *arg)
{
	char nsid[32];

	if (!is_namespace(name) || !is_of_controller(arg, name))
		return false;
	vroom_read_line(nsid, sizeof(nsid), "/sys/class/block/%s/nsid", name);
	add_name(arg, (uint32_t)strtoul(nsid, NULL, 10), "", name);
	add_name(arg, (uint32_t)strtoul(nsid, NULL, 10), "ng", name + strlen("nvme"));
	return false;
}

static bool on_controller(const char *controller, void *arg)
{
	struct names *n = arg;

	n->controller = controller;
	add_name(n, 0, "", controller);
	return vroom_for_entries(on_block_device, n, "/sys/class/block");
}

int vroom_device_names(const char *bdf, struct vroom_device_name *names, int max)
{
	struct names n = { .list = names, .max = max };

	vroom_for_entries(on_controller, &n, VROOM_PCI_DEVICES "/%s/nvme", bdf);
	return n.count;
}

bool vroom_device_record(const char *bdf, const char *key, int nth, char *out, size_t size)
{
	char path[PATH_MAX], line[256] = "";
	size_t length = strlen(key);
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), VROOM_RECORDS "/%s", bdf);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f))
		found = strncmp(line, key, length) == 0 && line[length] == ' ' && nth-- == 0;
	if (f)
		fclose(f);
	line[strcspn(line, "\n")] = '\0';
	snprintf(out, size, "%s", found ? line + length + 1 : "");
	return found;
}

int vroom_device_recorded_names(const char *bdf, struct vroom_device_name *names, int max)
{
	char text[128];
	int count = 0;

	while (count < max && vroom_device_record(bdf, "name", count, text, sizeof(text)) &&
	       sscanf(text, "%63s %u", names[count].name, &names[count].nsid) == 2)
		count++;
	return count;
}

struct search {
	const char *name; /* nvme0n1 */
	/* Where names are looked for: in sysfs, or in the records. */
	int (*names_of)(const char *bdf, struct vroom_device_name *names, int max);
	char *bdf;
	uint32_t *nsid;
};

/* Does this PCI function go by the name that is looked for? */
static bool on_function(const char *bdf, void *arg)
{
	struct vroom_device_name names[VROOM_NAMES_MAX];
	const struct search *s = arg;
	int count = s->names_of(bdf, names, VROOM_NAMES_MAX);

	for (int i = 0; i < count; i++) {
		if (strcmp(names[i].name, s->name))
			continue;
		snprintf(s->bdf, VROOM_BDF_MAX, "%s", bdf);
		*s->nsid = names[i].nsid;
		return true;
	}
	return false;
}

int vroom_device_resolve(const char *name, char bdf[VROOM_BDF_MAX], uint32_t *nsid)
{
	struct search s = { .name = name, .bdf = bdf, .nsid = nsid };
	unsigned controller, ns, part;

	*nsid = 0;
	if (vroom_device_parse(name, bdf))
		return 0;
	if (strncmp(name, "/dev/", 5) == 0)
		s.name = name + 5;
	if (sscanf(s.name, "nvme%un%up%u", &controller, &ns, &part) == 3)
		return vroom_fail_on(name, EINVAL,
				     "is a partition; name the namespace, /dev/nvme%un%u",
				     controller, ns);
	s.names_of = vroom_device_names;
	if (vroom_for_entries(on_function, &s, VROOM_PCI_DEVICES))
		return 0;
	s.names_of = vroom_device_recorded_names;
	if (vroom_for_entries(on_function, &s, VROOM_RECORDS))
		return 0;
	return vroom_fail_on(name, ENODEV, "no such NVMe device on a PCI bus; see vroom list");
}
