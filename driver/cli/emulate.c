/* SPDX-License-Identifier: BSD-3-Clause */
/* `vroom emulate`: options of the emulated controller. */
#include <argp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "emulator/emulator.h"
#include "emulator/size.h"

enum {
	OPT_SOCKET = 256,
	OPT_FD,
	OPT_REPORT_FD,
	OPT_NS,
	OPT_EXTEND,
	OPT_MDTS,
	OPT_QUEUES,
	OPT_ENTRIES,
	OPT_DSTRD,
	OPT_MPSMIN,
	OPT_MMAP,
	OPT_VWC,
	OPT_HMB,
	OPT_SERIAL,
	OPT_READ_LATENCY,
	OPT_WRITE_LATENCY,
	OPT_CHANNELS,
	OPT_READ_IOPS,
	OPT_WRITE_IOPS,
	OPT_READ_BW,
	OPT_WRITE_BW,
	OPT_WRITE_BUFFER,
	OPT_DRAIN_BW,
	OPT_FAULT,
};

static const struct argp_option options[] = {
	{ "socket", OPT_SOCKET, "PATH", 0, "Listen for vfio-user clients on this UNIX socket", 1 },
	{ "ns", OPT_NS, "SPEC", 0,
	  "A namespace, numbered from 1 in the order given: file=PATH, "
	  "mem=SIZE or null=SIZE; then ,lba=512|4096 and ,size=SIZE (creates or extends a file)",
	  1 },
	{ "serial", OPT_SERIAL, "TEXT", 0, "Serial number", 1 },
	{ 0, 0, 0, 0, "Limits:", 2 },
	{ "mdts", OPT_MDTS, "SIZE", 0, "Largest transfer, a power of two; 0: none (1M)", 2 },
	{ "queues", OPT_QUEUES, "N", 0, "I/O queue pairs, 1 to 256 (128)", 2 },
	{ "entries", OPT_ENTRIES, "N", 0, "Entries of a queue, 2 to 65536 (4096)", 2 },
	{ "dstrd", OPT_DSTRD, "N", 0, "Doorbell stride, 4 << N bytes, N up to 10 (4)", 2 },
	{ "mpsmin", OPT_MPSMIN, "N", 0, "Memory page size, 4096 << N bytes, N up to 4 (0)", 2 },
	{ "mmap", OPT_MMAP, "on|off", 0, "Let clients map the doorbells (on)", 2 },
	{ "hmb", OPT_HMB, "SIZE", 0, "Host memory buffer that the drive asks for (none)", 0 },
	{ "vwc", OPT_VWC, "on|off", 0, "Volatile write cache: the page cache, until Flush (on)",
	  2 },
	{ 0, 0, 0, 0, "A drive's timing (none: as fast as possible):", 3 },
	{ "read-latency", OPT_READ_LATENCY, "USEC", 0, "Time of a read", 3 },
	{ "write-latency", OPT_WRITE_LATENCY, "USEC", 0, "Time of a write", 3 },
	{ "channels", OPT_CHANNELS, "N", 0, "Commands served at the same time", 3 },
	{ "read-iops", OPT_READ_IOPS, "N", 0, "Reads a second at most", 3 },
	{ "write-iops", OPT_WRITE_IOPS, "N", 0, "Writes a second at most", 3 },
	{ "read-bw", OPT_READ_BW, "SIZE", 0, "Bytes read a second at most", 3 },
	{ "write-bw", OPT_WRITE_BW, "SIZE", 0, "Bytes written a second at most", 3 },
	{ "write-buffer", OPT_WRITE_BUFFER, "SIZE", 0, "Bytes written fast, until it is full", 3 },
	{ "drain-bw", OPT_DRAIN_BW, "SIZE", 0, "Bytes a second that leave the buffer", 3 },
	{ 0, 0, 0, 0, "For tests of drivers:", 4 },
	{ "fault", OPT_FAULT, "KIND@N", 0,
	  "At I/O command N: drop (no completion), fatal "
	  "(CSTS.CFS), exit, cid (wrong identifier); error@LBA: this block cannot be read",
	  4 },
	{ "fd", OPT_FD, "N", OPTION_HIDDEN, 0, 5 },
	{ "report-fd", OPT_REPORT_FD, "N", OPTION_HIDDEN, 0, 5 },
	{ "extend", OPT_EXTEND, "BYTES", OPTION_HIDDEN, 0, 5 },
	{ 0 },
};

struct arguments {
	struct emu_options o;
	const char *spec[EMU_MAX_NS];
};

static void fail(const struct emu_options *o, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));
static void fail(const struct emu_options *o, const char *format, ...)
{
	char line[PATH_MAX + 256];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	if (o->report_fd >= 0)
		dprintf(o->report_fd, "%s\n", line);
	else
		fprintf(stderr, "vroom emulate: %s\n", line);
	exit(2);
}

static uint64_t number(const struct emu_options *o, const char *name, const char *text,
		       uint64_t low, uint64_t high)
{
	uint64_t value;

	if (!vroom_parse_size(text, &value) || value < low || value > high)
		fail(o, "%s=%s: must be %llu to %llu", name, text, (unsigned long long)low,
		     (unsigned long long)high);
	return value;
}

/* Microseconds, with a fraction if need be, as nanoseconds. */
static uint64_t latency(const struct emu_options *o, const char *name, const char *text)
{
	char *end;
	double us = strtod(text, &end);

	if (end == text || *end || !(us >= 0 && us <= 60e6))
		fail(o, "%s=%s: must be 0 to 60000000 microseconds", name, text);
	return (uint64_t)(us * 1000 + 0.5);
}

static bool on_off(const struct emu_options *o, const char *name, const char *text)
{
	if (strcmp(text, "on") && strcmp(text, "off"))
		fail(o, "%s=%s: must be on or off", name, text);
	return !strcmp(text, "on");
}

static void parse_fault(struct emu_options *o, const char *text)
{
	static const char *const names[] = { [EMU_FAULT_DROP] = "drop@",
					     [EMU_FAULT_FATAL] = "fatal@",
					     [EMU_FAULT_EXIT] = "exit@",
					     [EMU_FAULT_CID] = "cid@",
					     [EMU_FAULT_ERROR] = "error@" };

	for (unsigned kind = EMU_FAULT_DROP; kind <= EMU_FAULT_ERROR; kind++) {
		size_t len = strlen(names[kind]);

		if (strncmp(text, names[kind], len))
			continue;
		o->fault = kind;
		o->fault_at = number(o, "fault", text + len, 0, UINT64_MAX);
		return;
	}
	fail(o, "fault=%s: must be drop@N, fatal@N, exit@N, cid@N or error@LBA", text);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	struct emu_options *o = &a->o;

	switch (key) {
	case OPT_SOCKET: o->socket_path = arg; break;
	case OPT_FD: o->socket_fd = atoi(arg); break;
	case OPT_REPORT_FD: o->report_fd = atoi(arg); break;
	case OPT_EXTEND: o->extend = number(o, "extend", arg, 0, INT64_MAX); break;
	case OPT_NS:
		if (o->nr_ns == EMU_MAX_NS)
			fail(o, "at most %d namespaces", EMU_MAX_NS);
		a->spec[o->nr_ns++] = arg;
		break;
	case OPT_MDTS: o->mdts = number(o, "mdts", arg, 0, 65536ull * 4096); break;
	case OPT_QUEUES: o->queues = (unsigned)number(o, "queues", arg, 1, EMU_MAX_QUEUES); break;
	case OPT_ENTRIES: o->queue_entries = (unsigned)number(o, "entries", arg, 2, 65536); break;
	case OPT_DSTRD: o->dstrd = (unsigned)number(o, "dstrd", arg, 0, 10); break;
	case OPT_MPSMIN: o->mpsmin = (unsigned)number(o, "mpsmin", arg, 0, 4); break;
	case OPT_MMAP: o->mmap = on_off(o, "mmap", arg); break;
	case OPT_VWC: o->vwc = on_off(o, "vwc", arg); break;
	case OPT_HMB: o->hmb = number(o, "hmb", arg, 0, 1ull << 40); break;
	case OPT_SERIAL: o->serial = arg; break;
	case OPT_READ_LATENCY: o->timing.read_latency_ns = latency(o, "read-latency", arg); break;
	case OPT_WRITE_LATENCY:
		o->timing.write_latency_ns = latency(o, "write-latency", arg);
		break;
	case OPT_CHANNELS:
		o->timing.channels = (unsigned)number(o, "channels", arg, 0, 4096);
		break;
	case OPT_READ_IOPS:
		o->timing.read_iops = (double)number(o, "read-iops", arg, 0, 1ull << 40);
		break;
	case OPT_WRITE_IOPS:
		o->timing.write_iops = (double)number(o, "write-iops", arg, 0, 1ull << 40);
		break;
	case OPT_READ_BW:
		o->timing.read_bandwidth = (double)number(o, "read-bw", arg, 0, 1ull << 50);
		break;
	case OPT_WRITE_BW:
		o->timing.write_bandwidth = (double)number(o, "write-bw", arg, 0, 1ull << 50);
		break;
	case OPT_WRITE_BUFFER:
		o->timing.write_buffer = number(o, "write-buffer", arg, 0, 1ull << 50);
		break;
	case OPT_DRAIN_BW:
		o->timing.drain_bandwidth = (double)number(o, "drain-bw", arg, 1, 1ull << 50);
		break;
	case OPT_FAULT: parse_fault(o, arg); break;
	case ARGP_KEY_ARG: fail(o, "'%s': unexpected argument; see vroom emulate --help", arg);
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

/* argp would print a usage text; an unknown option of an address deserves one line. */
static void check_known(int argc, char **argv, const struct emu_options *o)
{
	for (int i = 1; i < argc && o->report_fd >= 0; i++) {
		size_t len = strcspn(argv[i] + 2, "=");
		bool known = false;

		for (const struct argp_option *opt = options; opt->key || opt->doc; opt++)
			known |= opt->name && strlen(opt->name) == len &&
				 !strncmp(opt->name, argv[i] + 2, len);
		if (!known)
			fail(o,
			     "'%s': the emulated controller has no such option; see vroom emulate "
			     "--help",
			     argv[i] + 2);
	}
}

int cli_emulate(int argc, char **argv)
{
	static const struct argp argp = {
		options,
		parse,
		"--socket PATH --ns SPEC [--ns SPEC ...]",
		"Serves an emulated NVMe controller to one vfio-user client after the other, until "
		"SIGTERM or Ctrl-C. Sizes take K, M, G, T.\v"
		"Example: vroom emulate --socket /tmp/nvme.sock --ns file=disk.img,size=1G "
		"--ns null=64G,lba=4096",
		0,
		0,
		0
	};
	struct arguments a = { .o = { .socket_fd = -1,
				      .report_fd = -1,
				      .mdts = 1 << 20,
				      .queues = 128,
				      .queue_entries = 4096,
				      .dstrd = 4,
				      .mmap = true,
				      .vwc = true,
				      .serial = "VROOM0001" } };
	char error[PATH_MAX + 256];

	for (int i = 1; i < argc; i++) /* known before anything can fail */
		if (!strncmp(argv[i], "--report-fd=", 12))
			a.o.report_fd = atoi(argv[i] + 12);
	check_known(argc, argv, &a.o);
	argp_parse(&argp, argc, argv, 0, NULL, &a);
	if (a.o.socket_path && a.o.socket_fd >= 0)
		fail(&a.o, "socket=%s: cannot be set here; start it by hand with --socket",
		     a.o.socket_path);
	if (!a.o.socket_path && a.o.socket_fd < 0)
		fail(&a.o, "where? give --socket PATH; see vroom emulate --help");
	if (!a.o.nr_ns)
		fail(&a.o, "no namespace; give --ns file=PATH, --ns mem=SIZE or --ns null=SIZE");
	if (a.o.mdts && ((a.o.mdts & (a.o.mdts - 1)) || a.o.mdts < 2ull * 4096 << a.o.mpsmin))
		fail(&a.o, "mdts=%llu: must be a power of two of two pages or more, or 0",
		     (unsigned long long)a.o.mdts);
	if (!a.o.timing.write_buffer != !(a.o.timing.drain_bandwidth > 0))
		fail(&a.o, "write-buffer= and drain-bw= go together");
	for (unsigned i = 0; i < a.o.nr_ns; i++)
		if (emu_ns_open(&a.o.ns[i], a.spec[i], a.o.extend, error, sizeof(error)))
			fail(&a.o, "%s", error);
	return emu_run(&a.o);
}
