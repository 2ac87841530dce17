/* SPDX-License-Identifier: BSD-3-Clause */
/* The subcommands of `vroom`; each gets its own name as argv[0] and returns an exit status. */
#ifndef VROOM_CLI_H
#define VROOM_CLI_H

#include <stdbool.h>
#include <stddef.h>

int cli_list(int argc, char **argv);
int cli_id(int argc, char **argv);
int cli_perf(int argc, char **argv);
int cli_emulate(int argc, char **argv);
int cli_fio(int argc, char **argv);
int cli_bind(int argc, char **argv);
int cli_unbind(int argc, char **argv);
int cli_hugepages(int argc, char **argv);

/* "vroom: " and vroom_error() on standard error; returns 1. */
int cli_fail(void);

/*
 * What the kernel's driver knows of the device, or knew when `vroom bind` took it: "model",
 * "serial", "firmware_rev", "bytes" (of all namespaces). False, and "" in OUT: unknown.
 */
bool cli_fact(const char *bdf, const char *key, char *out, size_t size);

#endif
