/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The emulated controller as a process: in a session of its own, for Ctrl-C is not for the device,
 * and nobody's child, so that no program waits for it. A process in the middle starts it and ends.
 * Both are raw clones: fork() would run the program's handlers, which expect a fork of the program.
 */
#include "transport/transport.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/base.h"
#include "transport/vfio_user_wire.h"

#define COMMAND_MAX (PATH_MAX + sizeof("/../vroom"))
#define GRACE_MS    500	 /* what a controller has to end by itself */
#define KILL_MS	    2000 /* and once it is killed */

#ifndef VROOM_BINDIR
#define VROOM_BINDIR "/usr/local/bin"
#endif

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

/*
 * The command and its arguments. There is room for what an address may hold: none of its options
 * takes more than twice its length.
 */
struct start {
	char command[COMMAND_MAX];
	char *argv[PATH_MAX / 2 + 8], text[4 * PATH_MAX], *end;
	unsigned count;
	int socket, report; /* the controller's descriptors */
};

__attribute__((format(printf, 2, 3))) static void add(struct start *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	s->argv[s->count++] = s->end;
	s->end += vsprintf(s->end, format, args) + 1;
	va_end(args);
}

static void build_arguments(struct start *s, const struct vroom_address *addr, uint64_t file_bytes)
{
	bool file = addr->kind == VROOM_ADDRESS_FILE;
	char options[PATH_MAX], of_namespace[PATH_MAX + 1] = "", *end = of_namespace, *state;

	if (!file_bytes && !file)
		file_bytes = addr->kind == VROOM_ADDRESS_MEMORY ? 1ull << 30 : 1ull << 40;
	add(s, "vroom");
	add(s, "emulate");
	add(s, "--fd=%d", s->socket);
	add(s, "--report-fd=%d", s->report);
	add(s, "--extend=%llu", (unsigned long long)file_bytes);
	memcpy(options, addr->options, sizeof(options));
	for (char *o = strtok_r(options, ",", &state); o; o = strtok_r(NULL, ",", &state))
		if (!strncmp(o, "lba=", 4) || !strncmp(o, "size=", 5))
			end += sprintf(end, ",%s", o);
		else
			add(s, "--%s", o);
	/* file=PATH, mem, null */
	add(s, "--ns=%s%s%s", file ? "file=" : "", addr->path + (file ? 0 : strlen("emu-")),
	    of_namespace);
}

/* From here to exec nothing that needs a lock: another thread may have held it. */
static void run_controller(const struct start *s)
{
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
	fcntl(s->socket, F_SETFD, 0);
	fcntl(s->report, F_SETFD, 0);
	execv(s->command, s->argv);
	dprintf(s->report, "cannot run %s: %s\n", s->command, strerrordesc_np(errno));
	_exit(127);
}

/* Says on the controller's socket who was born: its pid, or a negative errno, and its pidfd. */
static void run_middle(const struct start *s)
{
	struct vfio_user_header header = { .msg_size = sizeof(header) + sizeof(pid_t) };
	int pidfd;
	/* Flags, stack, where the pidfd goes: the other two differ from one machine to the next. */
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, NULL, &pidfd, NULL, NULL);

	if (pid == 0)
		run_controller(s);
	if (pid < 0)
		pid = -errno;
	_exit(vfio_user_send(s->socket, &header, &pid, &pidfd, pid > 0, 0) != 0);
}

/* Starts the controller, and learns from SOCKET, the other end of its own, who it is. */
static int give_birth(const struct start *s, int socket, struct vroom_emulated *out)
{
	struct vfio_user_inbox in = { 0 };
	sigset_t all, before;
	pid_t middle, pid;
	int ret;

	/* Signals to the program's group are not for its copy in the middle, whose end sends none.
	 */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	middle = (pid_t)syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
	if (middle == 0)
		run_middle(s);
	ret = middle < 0 ? -errno : waitpid(middle, NULL, __WCLONE);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (ret < 0)
		return ret;
	if (vfio_user_receive(socket, &in) != 1)
		return -EAGAIN; /* killed */
	memcpy(&pid, in.bytes + sizeof(in.header), sizeof(pid));
	if (pid < 0)
		return pid;
	*out = (struct vroom_emulated){ .pid = pid, .pidfd = in.fds[0], .report_fd = s->report };
	return 0;
}

int vroom_emulated_start(const struct vroom_address *addr, uint64_t file_bytes,
			 struct vroom_emulated *out)
{
	int pair[2] = { -1, -1 };
	struct start s = { .end = s.text };
	int ret = find_command(s.command);

	if (ret)
		return ret;
	s.report = memfd_create("vroom-report", MFD_CLOEXEC);
	if (s.report < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		ret = -errno;
	s.socket = pair[1];
	build_arguments(&s, addr, file_bytes);
	if (!ret)
		ret = give_birth(&s, pair[0], out);
	close(pair[1]);
	if (!ret)
		return pair[0];
	close(pair[0]);
	close(s.report);
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
	if (!line[0])
		return ret;
	if (strncmp(line, addr->path, strlen(addr->path)) == 0)
		return vroom_fail(-ret, "%s", line);
	return vroom_fail_on(addr->text, -ret, "%s", line);
}

static bool has_ended(const struct vroom_emulated *e, unsigned within_ms)
{
	siginfo_t status;

	if (!vroom_wait_fd(e->pidfd, POLLIN, vroom_now_ms() + within_ms))
		return false;
	/* A program that adopts orphans (PR_SET_CHILD_SUBREAPER, or process 1) is its parent. */
	waitid(P_PIDFD, (id_t)e->pidfd, &status, WEXITED | WNOHANG);
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
