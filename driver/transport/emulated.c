/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The emulated controller as a process. It lives in a session of its own, so that Ctrl-C reaches
 * the program that does I/O and not the device under it, and it ends by itself when the last
 * process that holds the other end of its socket has closed it.
 *
 * It is nobody's child: a program that waits for its children must neither wait for it nor get
 * its status. A process in the middle starts it and ends; that one's end sends no signal and is
 * seen by who asks with __WCLONE only. Neither is made with fork(), which would run the program's
 * handlers (pthread_atfork): they expect a fork of the program.
 */
#include "transport/emulated.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/vfio_user_wire.h"

#define GRACE_MS 500  /* what a controller has to end by itself */
#define KILL_MS	 2000 /* and once it is killed */

#ifndef VROOM_BINDIR
#define VROOM_BINDIR "/usr/local/bin"
#endif

#define COMMAND_MAX (PATH_MAX + sizeof("/../vroom"))

static bool is_program(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* The vroom command in DIRECTORY, or in the one above. */
static bool find_in(const char *directory, char *command)
{
	snprintf(command, COMMAND_MAX, "%s/vroom", directory);
	if (is_program(command))
		return true;
	snprintf(command, COMMAND_MAX, "%s/../vroom", directory);
	return is_program(command);
}

/* $VROOM, or near this library or the program, or where it was installed. */
static int find_command(char *command)
{
	const char *env = getenv("VROOM");
	char here[PATH_MAX];
	Dl_info library;

	if (env) {
		snprintf(command, COMMAND_MAX, "%s", env);
		return is_program(command) ? 0
					   : vroom_fail(EACCES, "$VROOM is %s: not a program", env);
	}
	if ((dladdr((void *)(uintptr_t)&vroom_emulated_start, &library) &&
	     realpath(library.dli_fname, here) && find_in(dirname(here), command)) ||
	    (realpath("/proc/self/exe", here) && find_in(dirname(here), command)) ||
	    find_in(VROOM_BINDIR, command))
		return 0;
	return vroom_fail(ENOENT,
			  "the vroom command, which runs the emulated controller, is neither near "
			  "the library nor in %s; set VROOM=/path/to/vroom",
			  VROOM_BINDIR);
}

/* Room for what an address may hold: none of its options takes more than twice its length. */
struct arguments {
	char *argv[PATH_MAX / 2 + 8];
	unsigned count;
	char text[4 * PATH_MAX], *end;
};

static void add(struct arguments *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct arguments *a, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	a->argv[a->count++] = a->end;
	a->end += vsprintf(a->end, format, args) + 1;
	a->argv[a->count] = NULL;
	va_end(args);
}

/* The command's arguments. It gets its socket as descriptor 3 and its report as 4. */
static void build_arguments(struct arguments *a, const struct vroom_address *addr,
			    uint64_t file_bytes)
{
	static const struct {
		const char *name;
		uint64_t bytes;
	} kinds[] = {
		[VROOM_ADDRESS_FILE] = { "file=", 0 },
		[VROOM_ADDRESS_MEMORY] = { "mem", 1ull << 30 },
		[VROOM_ADDRESS_NULL] = { "null", 1ull << 40 },
	};
	const char *path = addr->kind == VROOM_ADDRESS_FILE ? addr->path : "";
	char options[PATH_MAX], of_namespace[PATH_MAX + 1], *end = of_namespace, *state;

	a->count = 0;
	a->end = a->text;
	*end = '\0';
	add(a, "vroom");
	add(a, "emulate");
	add(a, "--fd=3");
	add(a, "--report-fd=4");
	add(a, "--extend=%llu",
	    (unsigned long long)(file_bytes ? file_bytes : kinds[addr->kind].bytes));
	memcpy(options, addr->options, sizeof(options));
	for (char *o = strtok_r(options, ",", &state); o; o = strtok_r(NULL, ",", &state))
		if (!strncmp(o, "lba=", 4) || !strncmp(o, "size=", 5))
			end += sprintf(end, ",%s", o);
		else
			add(a, "--%s", o);
	add(a, "--ns=%s%s%s", kinds[addr->kind].name, path, of_namespace);
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

/* Says on the controller's socket who was born: its pid, or a negative errno, and its pidfd. */
static void run_middle(const char *command, char **argv, int socket, int report)
{
	struct vfio_user_header header = { .msg_size = sizeof(header) + sizeof(pid_t) };
	int pidfd;
	/* Flags, stack, where the pidfd goes: the other two differ from one machine to the next. */
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, NULL, &pidfd, NULL, NULL);

	if (pid == 0)
		run_controller(command, argv, socket, report);
	if (pid < 0)
		pid = -errno;
	_exit(vfio_user_send(socket, &header, &pid, &pidfd, pid > 0, 0) != 0);
}

/* Starts the controller on the second one of PAIR, and learns from the first one who it is. */
static int give_birth(const char *command, char **argv, const int *pair, int report,
		      struct vroom_emulated *out)
{
	struct vfio_user_inbox in = { 0 };
	sigset_t all, before;
	pid_t middle, pid;
	int ret;

	/* Signals to the program's group are not for the copy of the program in the middle. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	middle = (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
	if (middle == 0)
		run_middle(command, argv, pair[1], report);
	ret = middle < 0 ? -errno : waitpid(middle, NULL, __WCLONE);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (ret < 0)
		return ret;
	if (vfio_user_receive(pair[0], &in) != 1)
		return -EAGAIN; /* killed */
	memcpy(&pid, in.bytes + sizeof(in.header), sizeof(pid));
	if (pid < 0)
		return pid;
	*out = (struct vroom_emulated){ .pid = pid, .pidfd = in.fds[0], .report_fd = report };
	return 0;
}

int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out)
{
	char command[COMMAND_MAX];
	struct arguments args;
	int pair[2] = { -1, -1 }, report;
	int ret = find_command(command);

	if (ret)
		return ret;
	build_arguments(&args, addr, file_bytes);
	report = memfd_create("vroom-report", MFD_CLOEXEC);
	if (report < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		ret = -errno;
	else
		ret = give_birth(command, args.argv, pair, report, out);
	close(pair[1]);
	if (!ret)
		return pair[0];
	close(pair[0]);
	close(report);
	return vroom_fail_on(addr->text, -ret, "cannot start the emulated controller: %s",
			     strerror(-ret));
}

int vroom_emulated_why(const struct vroom_emulated *e, const struct vroom_address *addr, int ret)
{
	char line[PATH_MAX + 512];
	/* It said them before it ended; one that is stuck has none. */
	ssize_t n = pread(e->report_fd, line, sizeof(line) - 1, 0);

	line[n > 0 ? n : 0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (line[0] && strncmp(line, addr->path, strlen(addr->path)) == 0)
		return vroom_fail(-ret, "%s", line);
	if (line[0])
		return vroom_fail_on(addr->text, -ret, "%s", line);
	return ret;
}

static bool has_ended(const struct vroom_emulated *e, unsigned within_ms)
{
	if (!vroom_wait_fd(e->pidfd, POLLIN, vroom_now_ms() + within_ms))
		return false;
	/* A program that adopts orphans (PR_SET_CHILD_SUBREAPER, or process 1) is its parent. */
	waitid(P_PIDFD, (id_t)e->pidfd, NULL, WEXITED | WNOHANG);
	return true;
}

int vroom_emulated_kill(const struct vroom_emulated *e, const char *name)
{
	syscall(SYS_pidfd_send_signal, e->pidfd, SIGKILL, NULL, 0);
	if (has_ended(e, KILL_MS))
		return 0;
	return vroom_fail_on(name, ETIMEDOUT, "process %d, the emulated controller, does not end",
			     e->pid);
}

void vroom_emulated_close(const struct vroom_emulated *e, bool end)
{
	if (end && !has_ended(e, GRACE_MS))
		vroom_emulated_kill(e, "");
	close(e->report_fd);
	close(e->pidfd);
}
