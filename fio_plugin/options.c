/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The engine's options (docs/engine.md). Jobs written for the kernel's engines bring those
 * engines' options along; what has no meaning here is accepted and ignored.
 */
#include "engine.h"

#define ENGINE_OPTION(option, member, kind, default_value, text)                        \
	{                                                                               \
		.name = option, .lname = "vroom " option, .type = kind,                 \
		.off1 = offsetof(struct engine_options, member), .def = default_value,  \
		.help = text, .category = FIO_OPT_C_ENGINE, .group = FIO_OPT_G_INVALID, \
	}
#define IGNORED(option, kind) \
	ENGINE_OPTION(option, ignored, kind, NULL, "Of the kernel's engines; ignored")
#define IGNORED_TEXT(option)                                         \
	ENGINE_OPTION(option, ignored_text, FIO_OPT_STR_STORE, NULL, \
		      "Of the kernel's engines; ignored")

struct fio_option vroom_fio_options[] = {
	ENGINE_OPTION("io_timeout", io_timeout, FIO_OPT_INT, "30",
		      "Seconds after which a command without completion ends the job"),
	ENGINE_OPTION("flush_timeout", flush_timeout, FIO_OPT_INT, "0",
		      "The same for syncs and trims, which may work on a whole drive; 0: ten "
		      "times io_timeout"),
	ENGINE_OPTION("transport", transport, FIO_OPT_STR_STORE, NULL,
		      "pci or vfio, for a PCI function; by default what fits its driver"),
	{
		.name = "wait",
		.lname = "vroom wait",
		.type = FIO_OPT_STR,
		.off1 = offsetof(struct engine_options, wait),
		.def = "poll",
		.posval = { { .ival = "poll",
			      .oval = WAIT_POLL,
			      .help = "Look at the completion queue until it has something" },
			    { .ival = "interrupt",
			      .oval = WAIT_INTERRUPT,
			      .help = "Sleep until the controller interrupts" },
			    { .ival = "hybrid",
			      .oval = WAIT_HYBRID,
			      .help = "Look for some microseconds, then sleep" } },
		.help = "How to wait for completions",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	ENGINE_OPTION("readfua", readfua, FIO_OPT_BOOL, "0", "Set FUA on reads"),
	ENGINE_OPTION("writefua", writefua, FIO_OPT_BOOL, "0", "Set FUA on writes"),
	IGNORED("hipri", FIO_OPT_STR_SET),
	IGNORED("hipri_percentage", FIO_OPT_INT),
	IGNORED("fixedbufs", FIO_OPT_STR_SET),
	IGNORED("registerfiles", FIO_OPT_STR_SET),
	IGNORED("sqthread_poll", FIO_OPT_STR_SET),
	IGNORED_TEXT("sqthread_poll_cpu"),
	IGNORED("nonvectored", FIO_OPT_INT),
	IGNORED("uncached", FIO_OPT_INT),
	IGNORED("nowait", FIO_OPT_BOOL),
	IGNORED("force_async", FIO_OPT_INT),
	IGNORED("userspace_reap", FIO_OPT_STR_SET),
	IGNORED_TEXT("cmd_type"),
	IGNORED("cmdprio_percentage", FIO_OPT_INT),
	IGNORED("cmdprio_class", FIO_OPT_INT),
	IGNORED("cmdprio", FIO_OPT_INT),
	IGNORED_TEXT("cmdprio_bssplit"),
	{ .name = NULL },
};
