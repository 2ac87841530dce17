/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The emulated controller as a process. It lives in a session of its own, so that Ctrl-C reaches
 * the program that does I/O and not the device under it, and it ends by itself when the last
 * process that holds the other end of its socket has closed it.
 *
 * It is nobody's child: a program that waits for its children must neither wait for it nor get
 * its status. A process in the middle starts it and ends; that one's end sends no signal and is
 * seen by who asks with __WCLONE only. Both are raw clones: fork() would run the program's handlers
 * (pthread_atfork) as well, which expect a fork of the program.
 */
#include "transport/emulated.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define END_MS 2000 /* what a controller has to end by itself, and again once it is killed */

#ifndef VROOM_BINDIR
#define VROOM_BINDIR "/usr/local/bin"
#endif

static bool is_program(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* DIR/vroom or DIR/../vroom, if one of them can be run. */
static bool try_directory(const char *dir, char *path, size_t size)
{
	if ((size_t)snprintf(path, size, "%s/vroom", dir) < size && is_program(path))
		return true;
	return (size_t)snprintf(path, size, "%s/../vroom", dir) < size && is_program(path);
}

/* The vroom command: $VROOM, near this library or program, or where it was installed. */
static int find_command(char *path, size_t size)
{
	const char *env = getenv("VROOM");
	char here[PATH_MAX];
	Dl_info info;
	ssize_t n;

	if (env) {
		if ((size_t)snprintf(path, size, "%s", env) >= size)
			return vroom_fail(ENAMETOOLONG, "$VROOM is %s: %s", env,
					  strerror(ENAMETOOLONG));
		if (is_program(path))
			return 0;
		if (access(path, X_OK) == 0)
			return vroom_fail(EACCES, "$VROOM is %s: not a program", env);
		return vroom_fail(errno, "$VROOM is %s: %s", env, strerror(errno));
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

static void free_arguments(char **argv, unsigned n)
{
	while (n)
		free(argv[--n]);
	free(argv);
}

/* The namespace that serves ADDR, with its OPTIONS, each after a comma. */
static char *namespace_argument(const struct vroom_address *addr, uint64_t file_bytes,
				const char *options)
{
	bool memory = addr->kind == VROOM_ADDRESS_MEMORY;

	if (addr->kind == VROOM_ADDRESS_FILE)
		return format("--ns=file=%s%s", addr->path, options);
	if (strstr(options, ",size="))
		return format("--ns=%s%s", memory ? "mem" : "null", options);
	if (!file_bytes)
		file_bytes = memory ? 1ull << 30 : 1ull << 40;
	return format("--ns=%s=%llu%s", memory ? "mem" : "null", (unsigned long long)file_bytes,
		      options);
}

/* The command's N arguments and a NULL, or NULL: out of memory. It gets its socket as fd 3 and its
 * report pipe as fd 4. */
static char **build_arguments(const struct vroom_address *addr, uint64_t file_bytes, unsigned *n)
{
	char options[PATH_MAX], ns_options[PATH_MAX + 1] = "", *end = ns_options, *state = NULL;
	unsigned most = 8;
	bool good = true;
	char **argv;

	for (const char *c = addr->options; *c; c++)
		most += *c == ',';
	argv = calloc(most, sizeof(*argv));
	if (!argv)
		return NULL;
	*n = 0;
	argv[(*n)++] = strdup("vroom");
	argv[(*n)++] = strdup("emulate");
	argv[(*n)++] = strdup("--fd=3");
	argv[(*n)++] = strdup("--report-fd=4");
	memcpy(options, addr->options, sizeof(options));
	for (char *item = strtok_r(options, ",", &state); item; item = strtok_r(NULL, ",", &state))
		if (is_namespace_option(item))
			end += sprintf(end, ",%s", item); /* no more than OPTIONS holds */
		else
			argv[(*n)++] = format("--%s", item);
	if (addr->kind == VROOM_ADDRESS_FILE && file_bytes)
		argv[(*n)++] = format("--extend=%llu", (unsigned long long)file_bytes);
	argv[(*n)++] = namespace_argument(addr, file_bytes, ns_options);
	for (unsigned i = 0; i < *n; i++)
		good &= argv[i] != NULL;
	if (good)
		return argv;
	free_arguments(argv, *n);
	return NULL;
}

/* From here to exec nothing that needs a lock: another thread may have held it. */
static void run_controller(const char *command, char **argv, int socket, int report)
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
	dprintf(4, "cannot run %s: %s\n", command, strerrordesc_np(errno));
	_exit(127);
}

/* What the process in the middle says to the program, on the controller's socket. */
struct birth {
	pid_t pid; /* or a negative errno */
	int pidfd; /* in the table of descriptors, which both share */
};

static void run_middle(const char *command, char **argv, int socket, int report)
{
	struct birth b = { .pidfd = -1 };

	/* Flags, stack, where the pidfd goes: the other two differ from one machine to the next. */
	b.pid = (pid_t)syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, NULL, &b.pidfd, NULL, NULL);
	if (b.pid == 0)
		run_controller(command, argv, socket, report);
	if (b.pid < 0)
		b.pid = -errno;
	_exit(write(socket, &b, sizeof(b)) != sizeof(b));
}

/* Starts the controller on the second one of PAIR, and learns from the first one who it is. */
static int give_birth(const char *command, char **argv, const int *pair, int report,
		      struct birth *b)
{
	sigset_t all, before;
	pid_t middle;
	int ret;

	/* Signals to the program's group are not for the copy of the program in the middle. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	middle = (pid_t)syscall(SYS_clone, CLONE_FILES, NULL, NULL, NULL, NULL);
	if (middle == 0)
		run_middle(command, argv, pair[1], report);
	ret = middle < 0 ? -errno : 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (ret)
		return ret;
	while (waitpid(middle, NULL, __WCLONE) < 0 && errno == EINTR)
		;
	if (recv(pair[0], b, sizeof(*b), MSG_DONTWAIT) != sizeof(*b))
		return -EAGAIN; /* killed */
	return b->pid < 0 ? b->pid : 0;
}

int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out)
{
	char command[PATH_MAX], **argv;
	int pair[2], report[2], ret;
	unsigned nr_args;
	struct birth b;

	memset(out, 0, sizeof(*out));
	ret = find_command(command, sizeof(command));
	if (ret)
		return ret;
	argv = build_arguments(addr, file_bytes, &nr_args);
	if (!argv)
		return vroom_fail(ENOMEM, "%s: out of memory", addr->text);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
		ret = vroom_fail(errno, "%s: socketpair: %s", addr->text, strerror(errno));
		goto out_free;
	}
	if (pipe2(report, O_CLOEXEC) != 0) {
		ret = vroom_fail(errno, "%s: pipe: %s", addr->text, strerror(errno));
		goto out_pair;
	}
	ret = give_birth(command, argv, pair, report[1], &b);
	close(report[1]);
	if (ret) {
		vroom_fail(-ret, "%s: cannot start the emulated controller: %s", addr->text,
			   strerror(-ret));
		close(report[0]);
		goto out_pair;
	}
	out->pid = b.pid;
	out->pidfd = b.pidfd;
	out->socket = pair[0];
	out->report_fd = report[0];
	close(pair[1]);
	free_arguments(argv, nr_args);
	return 0;

out_pair:
	close(pair[0]);
	close(pair[1]);
out_free:
	free_arguments(argv, nr_args);
	return ret;
}

int vroom_emulated_why(struct vroom_emulated *e, const struct vroom_address *addr, int ret)
{
	struct pollfd p = { .fd = e->report_fd, .events = POLLIN };
	char line[PATH_MAX + 512];
	size_t got = 0;
	ssize_t n;

	/* It ends after its words; one that is stuck has none. */
	while (got < sizeof(line) - 1 && poll(&p, 1, 1000) == 1 &&
	       (n = read(e->report_fd, line + got, sizeof(line) - 1 - got)) > 0)
		got += (size_t)n;
	line[got] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (line[0] && strncmp(line, addr->path, strlen(addr->path)) == 0)
		return vroom_fail(-ret, "%s", line);
	if (line[0])
		return vroom_fail(-ret, "%s: %s", addr->text, line);
	if (ret == -ENODEV)
		return vroom_fail(ENODEV, "%s: the emulated controller did not start", addr->text);
	return ret;
}

/* Has it ended, or does it within TIMEOUT_MS? Its status goes to who is its parent now. */
static bool has_ended(const struct vroom_emulated *e, uint64_t timeout_ms)
{
	struct pollfd p = { .fd = e->pidfd, .events = POLLIN };
	uint64_t now = vroom_now_ms(), deadline = now + timeout_ms;

	while (poll(&p, 1, now < deadline ? (int)(deadline - now) : 0) != 1) {
		if (now >= deadline)
			return false;
		now = vroom_now_ms();
	}
	/* A program that adopts orphans (PR_SET_CHILD_SUBREAPER, or process 1) is its parent. */
	waitid(P_PIDFD, (id_t)e->pidfd, NULL, WEXITED | WNOHANG);
	return true;
}

/* Stopped, by a signal or a debugger. */
static bool is_stopped(pid_t pid)
{
	char path[32], text[256] = "";
	const char *state;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		text[0] = '\0';
	if (fd >= 0)
		close(fd);
	state = strrchr(text, ')'); /* of "PID (NAME) STATE ..." */
	return state && (!strncmp(state, ") T", 3) || !strncmp(state, ") t", 3));
}

int vroom_emulated_kill(const struct vroom_emulated *e, const char *name)
{
	syscall(SYS_pidfd_send_signal, e->pidfd, SIGKILL, NULL, 0);
	if (has_ended(e, END_MS))
		return 0;
	return vroom_fail(ETIMEDOUT, "%s: process %d, the emulated controller, does not end", name,
			  e->pid);
}

void vroom_emulated_close(struct vroom_emulated *e, bool end)
{
	uint64_t deadline = vroom_now_ms() + END_MS;

	while (end && !has_ended(e, 20))
		if (vroom_now_ms() >= deadline || is_stopped(e->pid)) {
			vroom_emulated_kill(e, "");
			break;
		}
	close(e->report_fd);
	close(e->pidfd);
	e->pid = 0;
}
