/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A child is first stepped by the processor's trap flag, which is slow. To get to one instruction
 * again, a breakpoint is set on it, in the child's own copy of the code.
 */
#include "kill.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "fake.h"
#include "unit.h"

/* Of an instruction that is in a loop, the times that are tried. */
#define TIMES 2

static void *shared_array(size_t bytes)
{
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_true(mem != MAP_FAILED);
	return mem;
}

static int wait_for(pid_t pid)
{
	int status;

	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

void in_child(void (*fn)(void *arg), void *arg)
{
	pid_t pid = fork();

	if (!pid) {
		fn(arg);
		_exit(0);
	}
	assert_int_equal(wait_for(pid), 0);
}

#if defined(__x86_64__)
#define TRAP_FLAG 0x100

/* What the handlers share with the parent and use. */
static uintptr_t *steps;
static unsigned *count;
static uintptr_t target;
static unsigned times;
static uint8_t original;

static void set_trap_flag(bool on)
{
	if (on)
		__asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "cc", "memory");
	else
		__asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "cc", "memory");
}

static void die(void)
{
	syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}

static void on_step(int sig, siginfo_t *info, void *context)
{
	const ucontext_t *u = context;

	(void)sig, (void)info;
	if (!fake_inside && *count < KILL_MAX_STEPS)
		steps[(*count)++] = (uintptr_t)u->uc_mcontext.gregs[REG_RIP];
}

static void put(uint8_t byte)
{
	*(volatile uint8_t *)target = byte;
}

/* The breakpoint was met, or the instruction under it has been stepped over. */
static void on_breakpoint(int sig, siginfo_t *info, void *context)
{
	ucontext_t *u = context;
	greg_t *regs = u->uc_mcontext.gregs;

	(void)sig, (void)info;
	if (regs[REG_EFL] & TRAP_FLAG) {
		put(0xcc);
		regs[REG_EFL] &= ~TRAP_FLAG;
		return;
	}
	regs[REG_RIP] = (greg_t)target;
	put(original);
	if (!fake_inside && --times == 0)
		die();
	regs[REG_EFL] |= TRAP_FLAG;
}

static void handle(void (*handler)(int, siginfo_t *, void *))
{
	static char stack[1 << 16];
	stack_t ss = { .ss_sp = stack, .ss_size = sizeof(stack) };
	struct sigaction sa = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	sigaltstack(&ss, NULL);
	sigaction(SIGTRAP, &sa, NULL);
}

static void record(void (*fn)(void *arg), void *arg)
{
	pid_t pid = fork();

	if (!pid) {
		handle(on_step);
		set_trap_flag(true);
		fn(arg);
		set_trap_flag(false);
		_exit(0);
	}
	assert_int_equal(wait_for(pid), 0);
}

/* True: the child was killed. */
static bool kill_at(void (*fn)(void *arg), void *arg, uintptr_t at, unsigned nth)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		uintptr_t page = at & ~4095ul;

		target = at;
		times = nth;
		original = *(uint8_t *)at;
		handle(on_breakpoint);
		if (mprotect((void *)page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC))
			_exit(0); /* the kernel's own code, in every process */
		put(0xcc);
		fn(arg);
		_exit(0);
	}
	status = wait_for(pid);
	if (WIFSIGNALED(status)) {
		assert_int_equal(WTERMSIG(status), SIGKILL);
		return true;
	}
	assert_int_equal(WEXITSTATUS(status), 0);
	return false;
}

unsigned kill_everywhere(void (*fn)(void *arg), void (*after)(void *arg), void *arg,
			 unsigned stride)
{
	unsigned killed = 0, tried = 0;

	if (getenv("UNIT_THOROUGH"))
		stride = 1;
	steps = shared_array(KILL_MAX_STEPS * sizeof(*steps));
	count = shared_array(sizeof(*count));
	record(fn, arg);
	after(arg);
	assert_in_range(*count, 1, KILL_MAX_STEPS - 1);
	for (unsigned i = 0; i < *count; i++) {
		unsigned nth = 1;

		for (unsigned before = 0; before < i && nth <= TIMES; before++)
			nth += steps[before] == steps[i];
		if (nth > TIMES || tried++ % stride)
			continue;
		killed += kill_at(fn, arg, steps[i], nth);
		after(arg);
	}
	munmap(steps, KILL_MAX_STEPS * sizeof(*steps));
	munmap(count, sizeof(*count));
	return killed;
}
#else
unsigned kill_everywhere(void (*fn)(void *arg), void (*after)(void *arg), void *arg,
			 unsigned stride)
{
	(void)fn, (void)after, (void)arg, (void)stride;
	return 0;
}
#endif
