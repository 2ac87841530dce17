/* SPDX-License-Identifier: BSD-3-Clause */
/* `vroom list`: the NVMe functions of this machine, as libpciaccess sees them. */
#include <argp.h>
#include <errno.h>
#include <json-c/json.h>
#include <pciaccess.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "pci/function.h"
#include "pci/holder.h"
#include "pci/names.h"
#include "pci/owner.h"
#include "pci/sysfs.h"
#include "vroom.h"

#define MAX_NAMES 256

static const struct argp_option options[] = {
	{ "json", 'j', 0, 0, "Print JSON", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	(void)arg;
	if (key != 'j')
		return key == ARGP_KEY_ARG ? (argp_error(state, "unexpected argument"), 0)
					   : ARGP_ERR_UNKNOWN;
	*(bool *)state->input = true;
	return 0;
}

/* "1.0 TB": as drives are sold. */
static void print_size(const char *bytes, char *out, size_t size)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB" };
	double value = strtod(bytes, NULL);
	size_t unit = 0;

	while (value >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1000;
		unit++;
	}
	snprintf(out, size, "%.*f %s", value < 10, value, units[unit]);
}

/* What has the function: somebody by way of the kernel, another vroom, or nobody. */
static void describe_user(const struct vroom_device *d, char *out, size_t size)
{
	if (vroom_device_holder(d->bdf, out, size))
		return;
	if (vroom_device_owner(d->bdf) == -EBUSY)
		snprintf(out, size, "%s", vroom_error() + strlen(d->bdf) + 2);
	else
		snprintf(out, size, "nobody");
}

static void add(struct json_object *o, const char *key, const char *text)
{
	json_object_object_add(o, key, text && text[0] ? json_object_new_string(text) : NULL);
}

static struct json_object *describe(struct pci_device *dev)
{
	static const char *const facts[] = { "model", "serial", "firmware_rev" };
	static const char *const keys[] = { "model", "serial", "firmware" };
	struct json_object *o = json_object_new_object(), *names;
	struct vroom_device_name name[MAX_NAMES];
	char text[512];
	struct vroom_device d;
	int count;

	snprintf(text, sizeof(text), "%04x:%02x:%02x.%x", dev->domain, dev->bus, dev->dev,
		 dev->func);
	if (vroom_device_look(text, &d))
		return o;
	add(o, "address", d.bdf);
	snprintf(text, sizeof(text), "%04x:%04x", dev->vendor_id, dev->device_id);
	add(o, "id", text);
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		cli_fact(d.bdf, facts[i], text, sizeof(text));
		add(o, keys[i], text);
	}
	cli_fact(d.bdf, "bytes", text, sizeof(text));
	json_object_object_add(o, "bytes",
			       text[0] ? json_object_new_uint64(strtoull(text, NULL, 10)) : NULL);
	add(o, "driver", d.driver);
	json_object_object_add(o, "iommu_group",
			       d.iommu_group < 0 ? NULL : json_object_new_int(d.iommu_group));
	json_object_object_add(o, "numa_node",
			       d.numa_node < 0 ? NULL : json_object_new_int(d.numa_node));
	names = json_object_new_array();
	count = vroom_device_names(d.bdf, name, MAX_NAMES);
	if (!count)
		count = vroom_device_recorded_names(d.bdf, name, MAX_NAMES);
	for (int i = 0; i < count; i++)
		json_object_array_add(names, json_object_new_string(name[i].name));
	json_object_object_add(o, "names", names);
	describe_user(&d, text, sizeof(text));
	add(o, "used_by", text);
	return o;
}

/* The text of a member, "-" where it is null or absent. */
static const char *member(struct json_object *o, const char *key)
{
	struct json_object *value;

	return json_object_object_get_ex(o, key, &value) && value ? json_object_get_string(value)
								  : "-";
}

static void print(struct json_object *o)
{
	const char *bytes = member(o, "bytes");
	char size[32];

	snprintf(size, sizeof(size), "%s", bytes);
	if (strcmp(bytes, "-"))
		print_size(bytes, size, sizeof(size));
	printf("%-14s%-26s%-22s%-9s%-16s%-7s%-6s%s\n", member(o, "address"), member(o, "model"),
	       member(o, "serial"), size, member(o, "driver"), member(o, "iommu_group"),
	       member(o, "numa_node"), member(o, "used_by"));
}

int cli_list(int argc, char **argv)
{
	static const struct argp argp = {
		options,
		parse,
		"",
		"Shows the NVMe controllers on this machine's PCI buses, and who uses them.",
		0,
		0,
		0
	};
	struct pci_id_match match = { PCI_MATCH_ANY,
				      PCI_MATCH_ANY,
				      PCI_MATCH_ANY,
				      PCI_MATCH_ANY,
				      VROOM_PCI_CLASS_NVME,
				      0xffffff,
				      0 };
	struct json_object *list = json_object_new_array();
	struct pci_device_iterator *it;
	struct pci_device *dev;
	bool json = false;
	int err;

	argp_parse(&argp, argc, argv, 0, NULL, &json);
	err = pci_system_init();
	/* A machine without a PCI bus has no NVMe function either. */
	if (err && err != ENOENT) {
		fprintf(stderr, "vroom: cannot look at the PCI buses: %s\n", strerror(err));
		return 1;
	}
	it = err ? NULL : pci_id_match_iterator_create(&match);
	while (it && (dev = pci_device_next(it))) {
		pci_device_probe(dev);
		json_object_array_add(list, describe(dev));
	}
	if (json) {
		printf("%s\n", json_object_to_json_string_ext(list, JSON_C_TO_STRING_PRETTY));
	} else if (json_object_array_length(list) == 0) {
		printf("no NVMe controller on this machine's PCI buses; a plain file, emu-mem or "
		       "emu-null as address starts an emulated one\n");
	} else {
		printf("%-14s%-26s%-22s%-9s%-16s%-7s%-6s%s\n", "ADDRESS", "MODEL", "SERIAL", "SIZE",
		       "DRIVER", "GROUP", "NODE", "USED BY");
		for (size_t i = 0; i < json_object_array_length(list); i++)
			print(json_object_array_get_idx(list, i));
	}
	json_object_put(list);
	if (it)
		pci_iterator_destroy(it);
	if (!err)
		pci_system_cleanup();
	return 0;
}
