/* SPDX-License-Identifier: BSD-3-Clause */
/* `vroom id ADDR` and `vroom list`. */
#include <argp.h>
#include <dirent.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "vroom.h"

#define MAX_NS 1024

struct arguments {
	const char *address;
	struct vroom_opts opts;
	bool json;
};

static const struct argp_option options[] = {
	{ "transport", 'x', "NAME", 0, "pci or vfio, for a PCI function (what fits its driver)",
	  0 },
	{ "json", 'j', 0, 0, "Print JSON", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;

	switch (key) {
	case 'j': a->json = true; return 0;
	case 'x': a->opts.transport = arg; return 0;
	case ARGP_KEY_ARG:
		if (a->address)
			argp_error(state, "one address at a time");
		a->address = arg;
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

/* An ASCII field without its padding. */
static char *trim(const char *field, size_t size, char *out)
{
	while (size && (field[size - 1] == ' ' || !field[size - 1]))
		size--;
	memcpy(out, field, size);
	out[size] = '\0';
	return out;
}

static struct json_object *describe_ns(const struct vroom_ns *ns, const struct nvme_id_ns *raw)
{
	struct json_object *o = json_object_new_object(), *formats = json_object_new_array();
	unsigned in_use = nvme_lba_format_index(raw->flbas);
	char hex[33];

	json_object_object_add(o, "nsid", json_object_new_int64(ns->nsid));
	json_object_object_add(o, "blocks", json_object_new_uint64(ns->blocks));
	json_object_object_add(o, "block_bytes", json_object_new_int64(ns->lba_size));
	json_object_object_add(o, "bytes", json_object_new_uint64(ns->blocks << ns->lba_shift));
	json_object_object_add(o, "blocks_in_use", json_object_new_uint64(raw->nuse));
	json_object_object_add(o, "read_only", json_object_new_boolean(ns->read_only));
	for (unsigned i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", raw->nguid[i]);
	json_object_object_add(o, "nguid", json_object_new_string(hex));
	for (unsigned i = 0; i <= raw->nlbaf && i < 64; i++) {
		struct json_object *f = json_object_new_object();

		json_object_object_add(f, "index", json_object_new_int((int)i));
		json_object_object_add(f, "block_bytes",
				       json_object_new_int64(1ll << raw->lbaf[i].lbads));
		json_object_object_add(f, "metadata_bytes", json_object_new_int(raw->lbaf[i].ms));
		json_object_object_add(f, "in_use", json_object_new_boolean(i == in_use));
		json_object_array_add(formats, f);
	}
	json_object_object_add(o, "lba_formats", formats);
	return o;
}

/* The composite temperature in degrees Celsius; false: the controller does not tell. */
static bool read_temperature(struct vroom_ctrlr *c, int *celsius)
{
	struct nvme_smart_log log = { 0 };
	struct nvme_sqe sqe = {
		.opcode = NVME_ADMIN_GET_LOG_PAGE,
		.nsid = NVME_NSID_ALL,
		.cdw10 = NVME_LOG_SMART | (sizeof(log) / 4 - 1) << 16,
	};
	int kelvin;

	if (vroom_admin(c, &sqe, &log, sizeof(log), NULL))
		return false;
	kelvin = log.temperature[0] | log.temperature[1] << 8;
	*celsius = kelvin - 273;
	return kelvin != 0;
}

static struct json_object *describe_ctrlr(const struct vroom_ctrlr_info *info)
{
	struct json_object *o = json_object_new_object();
	char text[64];

	json_object_object_add(o, "address", json_object_new_string(info->address));
	json_object_object_add(o, "transport", json_object_new_string(info->transport));
	json_object_object_add(
		o, "model", json_object_new_string(trim(info->id->mn, sizeof(info->id->mn), text)));
	json_object_object_add(
		o, "serial",
		json_object_new_string(trim(info->id->sn, sizeof(info->id->sn), text)));
	json_object_object_add(
		o, "firmware",
		json_object_new_string(trim(info->id->fr, sizeof(info->id->fr), text)));
	snprintf(text, sizeof(text), "%u.%u.%u", info->vs >> 16, info->vs >> 8 & 0xff,
		 info->vs & 0xff);
	json_object_object_add(o, "nvme_version", json_object_new_string(text));
	json_object_object_add(o, "max_transfer_bytes", json_object_new_uint64(info->max_transfer));
	json_object_object_add(o, "max_queue_entries",
			       json_object_new_int64(info->max_queue_entries));
	json_object_object_add(o, "io_queue_pairs", json_object_new_int64(info->max_qpairs));
	json_object_object_add(o, "host_memory_bytes", json_object_new_uint64(info->host_memory));
	json_object_object_add(o, "page_bytes", json_object_new_uint64(info->page_size));
	json_object_object_add(o, "doorbell_stride_bytes",
			       json_object_new_int64(4ll << NVME_GET(info->cap, NVME_CAP_DSTRD)));
	json_object_object_add(o, "doorbells_mapped",
			       json_object_new_boolean(info->doorbells_mapped));
	json_object_object_add(o, "volatile_write_cache",
			       json_object_new_boolean(info->id->vwc & NVME_VWC_PRESENT));
	json_object_object_add(o, "deallocate",
			       json_object_new_boolean(info->id->oncs & NVME_ONCS_DSM));
	json_object_object_add(o, "write_zeroes",
			       json_object_new_boolean(info->id->oncs & NVME_ONCS_WRITE_ZEROES));
	json_object_object_add(o, "compare",
			       json_object_new_boolean(info->id->oncs & NVME_ONCS_COMPARE));
	return o;
}

/* "name: value" lines out of the JSON object, arrays indented below. */
static void print_text(struct json_object *o, int indent)
{
	json_object_object_foreach (o, key, value) {
		if (json_object_is_type(value, json_type_array)) {
			size_t n = json_object_array_length(value);

			printf("%*s%s:\n", indent, "", key);
			for (size_t i = 0; i < n; i++) {
				print_text(json_object_array_get_idx(value, i), indent + 4);
				if (i + 1 < n)
					printf("\n");
			}
			continue;
		}
		printf("%*s%-*s %s\n", indent, "", 24 - indent, key, json_object_get_string(value));
	}
}

int cli_id(int argc, char **argv)
{
	static const struct argp argp = {
		options,
		parse,
		"ADDRESS",
		"Shows the controller at ADDRESS: what it is, its limits, its namespaces and all "
		"their LBA formats.",
		0,
		0,
		0
	};
	struct json_object *root, *list;
	struct vroom_ctrlr_info info;
	struct arguments a = { 0 };
	uint32_t nsids[MAX_NS];
	struct vroom_ctrlr *c;
	int count, celsius, ret = 0;

	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (vroom_open(a.address, &a.opts, &c))
		return cli_fail();
	vroom_ctrlr_info(c, &info);
	root = describe_ctrlr(&info);
	if (read_temperature(c, &celsius))
		json_object_object_add(root, "temperature_celsius", json_object_new_int(celsius));
	list = json_object_new_array();
	json_object_object_add(root, "namespaces", list);
	nsids[0] = info.nsid; /* the one that the address names, or all */
	count = info.nsid ? 1 : vroom_namespaces(c, nsids, MAX_NS);
	if (count < 0)
		ret = cli_fail();
	for (int i = 0; i < count && i < MAX_NS; i++) {
		struct nvme_id_ns raw;
		struct vroom_ns ns;

		if (vroom_namespace(c, nsids[i], &ns, &raw))
			ret = cli_fail();
		else
			json_object_array_add(list, describe_ns(&ns, &raw));
	}
	if (a.json)
		printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY));
	else
		print_text(root, 0);
	json_object_put(root);
	vroom_close(c);
	return ret;
}
