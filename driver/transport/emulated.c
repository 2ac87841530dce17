/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The emulated controller as a child process. It lives in a session of its own, so that
 * Ctrl-C reaches the program that does I/O and not the device under it, and it ends by
 * itself when the last process that holds the other end of its socket has closed it.
 */
#include "transport/emulated.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define MAX_ARGS 64

#ifndef VROOM_BINDIR
#define VROOM_BINDIR "/usr/local/bin"
#endif

/* DIR/vroom or DIR/../vroom, if one of them can be run. */
static bool try_directory(const char *dir, char *path, size_t size)
{
	snprintf(path, size, "%s/vroom", dir);
	if (access(path, X_OK) == 0)
		return true;
	snprintf(path, size, "%s/../vroom", dir);
	return access(path, X_OK) == 0;
}

/* The vroom command: $VROOM, near this library or program, or where it was installed. */
static int find_command(char *path, size_t size)
{
	const char *env = getenv("VROOM");
	char here[PATH_MAX];
	Dl_info info;
	ssize_t n;

	if (env) {
		snprintf(path, size, "%s", env);
		return access(path, X_OK) == 0
			       ? 0
			       : vroom_fail(errno, "$VROOM is %s: %s", env, strerror(errno));
	}
	if (dladdr((void *)(uintptr_t)&vroom_emulated_start, &info) && info.dli_fname &&
	    realpath(info.dli_fname, here) && try_directory(dirname(here), path, size))
		return 0;
	n = readlink("/proc/self/exe", here, sizeof(here) - 1);
	here[n > 0 ? n : 0] = '\0';
	if ((n > 0 && try_directory(dirname(here), path, size)) ||
	    try_directory(VROOM_BINDIR, path, size))
		return 0;
	return vroom_fail(ENOENT,
			  "the vroom command, which runs the emulated controller, is neither "
			  "near the library nor in %s; set VROOM=/path/to/vroom",
			  VROOM_BINDIR);
}

/* Options of a namespace stay with it; the others become --name=value. */
static bool is_namespace_option(const char *item)
{
	return strncmp(item, "lba=", 4) == 0 || strncmp(item, "size=", 5) == 0;
}

static char *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *format(const char *fmt, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, fmt);
	if (vasprintf(&text, fmt, args) < 0)
		text = NULL;
	va_end(args);
	return text;
}

/* Fills ARGV (allocated strings but for the first two). The command gets its socket as fd 3
 * and its report pipe as fd 4. */
static void build_arguments(const struct vroom_address *addr, uint64_t file_bytes, char **argv)
{
	char options[PATH_MAX], ns_options[PATH_MAX] = "", *state = NULL, *item;
	unsigned n = 0;

	argv[n++] = strdup("vroom");
	argv[n++] = strdup("emulate");
	argv[n++] = strdup("--fd=3");
	argv[n++] = strdup("--report-fd=4");
	snprintf(options, sizeof(options), "%s", addr->options);
	for (item = strtok_r(options, ",", &state); item && n < MAX_ARGS - 4;
	     item = strtok_r(NULL, ",", &state)) {
		if (is_namespace_option(item)) {
			strncat(ns_options, ",", sizeof(ns_options) - strlen(ns_options) - 1);
			strncat(ns_options, item, sizeof(ns_options) - strlen(ns_options) - 1);
		} else {
			argv[n++] = format("--%s", item);
		}
	}
	if (addr->kind == VROOM_ADDRESS_FILE) {
		if (file_bytes)
			argv[n++] = format("--extend=%llu", (unsigned long long)file_bytes);
		argv[n++] = format("--ns=file=%s%s", addr->path, ns_options);
	} else {
		const char *kind = addr->kind == VROOM_ADDRESS_MEMORY ? "mem" : "null";

		if (strstr(ns_options, ",size="))
			argv[n++] = format("--ns=%s%s", kind, ns_options);
		else
			argv[n++] = format("--ns=%s=%llu%s", kind,
					   (unsigned long long)(file_bytes ? file_bytes
								: addr->kind == VROOM_ADDRESS_MEMORY
									? 1ull << 30
									: 1ull << 40),
					   ns_options);
	}
	argv[n] = NULL;
}

static void run_child(const char *command, char **argv, int socket, int report)
{
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Move both out of the way of 3 and 4 first; dup2() clears close-on-exec. */
	socket = fcntl(socket, F_DUPFD, 10);
	report = fcntl(report, F_DUPFD, 10);
	if (socket < 0 || report < 0 || dup2(socket, 3) < 0 || dup2(report, 4) < 0)
		_exit(127);
	close_range(5, ~0u, 0);
	execv(command, argv);
	dprintf(4, "cannot run %s: %s\n", command, strerror(errno));
	_exit(127);
}

int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out)
{
	char command[PATH_MAX], *argv[MAX_ARGS] = { NULL };
	int pair[2], report[2], ret;

	memset(out, 0, sizeof(*out));
	out->socket = out->report_fd = -1;
	ret = find_command(command, sizeof(command));
	if (ret)
		return ret;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		return vroom_fail(errno, "%s: socketpair: %s", addr->text, strerror(errno));
	if (pipe2(report, O_CLOEXEC) != 0) {
		ret = vroom_fail(errno, "%s: pipe: %s", addr->text, strerror(errno));
		goto out_pair;
	}
	build_arguments(addr, file_bytes, argv);
	out->pid = fork();
	if (out->pid == 0)
		run_child(command, argv, pair[1], report[1]);
	if (out->pid < 0)
		ret = vroom_fail(errno, "%s: cannot start the emulated controller: %s", addr->text,
				 strerror(errno));
	for (unsigned i = 0; i < MAX_ARGS; i++)
		free(argv[i]);
	if (ret) {
		out->pid = 0;
		close(report[0]);
		close(report[1]);
		goto out_pair;
	}
	close(pair[1]);
	close(report[1]);
	out->parent = getpid();
	out->socket = pair[0];
	out->report_fd = report[0];
	return 0;

out_pair:
	close(pair[0]);
	close(pair[1]);
	return ret;
}

int vroom_emulated_why(struct vroom_emulated *e, const struct vroom_address *addr, int ret)
{
	char line[768];
	size_t got = 0;
	ssize_t n;

	while (got < sizeof(line) - 1 &&
	       (n = read(e->report_fd, line + got, sizeof(line) - 1 - got)) > 0)
		got += (size_t)n;
	line[got] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (line[0] && strncmp(line, addr->path, strlen(addr->path)) == 0)
		return vroom_fail(-ret, "%s", line);
	if (line[0])
		return vroom_fail(-ret, "%s: %s", addr->text, line);
	return vroom_fail(-ret, "%s: the emulated controller did not start", addr->text);
}

void vroom_emulated_end(struct vroom_emulated *e)
{
	uint64_t deadline = vroom_now_ms() + 2000;
	int status;

	if (e->report_fd >= 0)
		close(e->report_fd);
	if (e->parent != getpid())
		return;
	for (;;) {
		pid_t pid = waitpid(e->pid, &status, WNOHANG | WUNTRACED);
		bool stopped = pid > 0 && WIFSTOPPED(status);

		if (pid && !stopped)
			break;
		if (stopped || vroom_now_ms() > deadline) {
			kill(e->pid, SIGKILL);
			waitpid(e->pid, &status, 0);
			break;
		}
		usleep(500);
	}
	e->pid = 0;
}
