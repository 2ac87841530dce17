# SPDX-License-Identifier: BSD-3-Clause
# vroom. `make help` lists the targets.

VERSION := $(shell sed -n 's/.*define VROOM_VERSION "\(.*\)"/\1/p' driver/include/vroom.h)
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
# An instrumented build beside the plain one: BUILD=build/asan SANITIZE=address,undefined
BUILD ?= build
SANITIZE ?=
PYTEST ?= /usr/bin/python3 -m pytest

WARNINGS := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes
ifneq ($(CI),)
WARNINGS += -Werror
endif
CFLAGS ?= -O3 -g
VROOM_CFLAGS := -std=gnu11 -D_GNU_SOURCE -fPIC -pthread -fvisibility=hidden $(WARNINGS) \
	-Idriver/include -Idriver -DVROOM_BINDIR='"$(BINDIR)"' -DVROOM_LIBDIR='"$(LIBDIR)"' \
	$(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
LIBS := -lpciaccess -lhugetlbfs -lnuma -ljson-c -ldl

LIB_SOURCES := $(wildcard driver/base/*.c driver/pci/*.c driver/transport/*.c driver/core/*.c)
CLI_SOURCES := $(wildcard driver/cli/*.c driver/emulator/*.c)
ENGINE_SOURCES := $(wildcard fio_plugin/*.c)
LIB_OBJECTS := $(LIB_SOURCES:%.c=$(BUILD)/%.o)
CLI_OBJECTS := $(CLI_SOURCES:%.c=$(BUILD)/%.o)
ENGINE_OBJECTS := $(ENGINE_SOURCES:%.c=$(BUILD)/%.o)
EXAMPLES := $(patsubst driver/examples/%.c,$(BUILD)/examples/%,$(wildcard driver/examples/*.c))

all: driver engine ## Everything: the driver and the engine

driver: $(BUILD)/vroom $(BUILD)/libvroom.a $(BUILD)/libvroom.so $(BUILD)/vroom.pc $(EXAMPLES) $(BUILD)/tests/transport ## The vroom command and libvroom

engine: $(BUILD)/vroom.so ## The fio engine

$(BUILD)/driver/%.o: driver/%.c
	@mkdir -p $(@D)
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(CPPFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libvroom.a: $(LIB_OBJECTS)
	rm -f $@
	$(AR) rcs $@ $^

# Before 1.0, a minor release may change the interface: the name that programs are linked with says so.
SONAME := libvroom.so.$(basename $(VERSION))
$(BUILD)/libvroom.so: $(LIB_OBJECTS) driver/libvroom.map
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) \
		-Wl,--version-script=driver/libvroom.map $(LIB_OBJECTS) $(LIBS) -o $@

$(BUILD)/vroom: $(CLI_OBJECTS) $(BUILD)/libvroom.a
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/examples/%: driver/examples/%.c $(BUILD)/libvroom.a
	@mkdir -p $(@D)
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

# The unit tests are linked with the driver's own objects, and with cmocka.
UNIT_TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c tests/unit/ops.c))
UNIT_OBJECTS := $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(filter-out tests/unit/test_%.c tests/unit/ops.c,$(wildcard tests/unit/*.c)))
$(BUILD)/tests/unit/%.o: tests/unit/%.c
	@mkdir -p $(@D)
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(CPPFLAGS) -MMD -MP -c $< -o $@

$(UNIT_TESTS): $(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(UNIT_OBJECTS) $(BUILD)/driver/emulator/size.o $(BUILD)/libvroom.a
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -lcmocka -o $@

$(BUILD)/tests/%: tests/%.c $(BUILD)/libvroom.a
	@mkdir -p $(@D)
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/vroom.pc: Makefile driver/include/vroom.h
	@mkdir -p $(@D)
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' \
		'Name: vroom' 'Description: A userspace NVMe driver' 'Version: $(VERSION)' \
		'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lvroom' 'Libs.private: $(LIBS)' > $@

# --- the fio engine -----------------------------------------------------------------------
# fio's headers: FIO_SRC=/path/to/fio's/source, else the source of the fio that is installed.
ifeq ($(FIO_SRC),)
FIO_DIR := build/fio-src/fio
$(FIO_DIR)/config-host.h:
	fio_plugin/fetch-fio.sh build/fio-src
else
FIO_DIR := $(abspath $(FIO_SRC))
$(FIO_DIR)/config-host.h:
	cd $(FIO_DIR) && ./configure --disable-native
endif
FIO_VERSION = $(shell sed -n 's/^FIO_VERSION = //p' $(FIO_DIR)/FIO-VERSION-FILE)

# The version can be another than last time although no file of ours has changed.
$(BUILD)/fio-version: $(FIO_DIR)/config-host.h FORCE
	@cd $(FIO_DIR) && sh ./FIO-VERSION-GEN 2> /dev/null
	@mkdir -p $(@D)
	@echo '$(FIO_DIR)' | cat - $(FIO_DIR)/FIO-VERSION-FILE | cmp -s - $@ || \
		echo '$(FIO_DIR)' | cat - $(FIO_DIR)/FIO-VERSION-FILE > $@

$(BUILD)/fio_plugin/%.o: fio_plugin/%.c $(BUILD)/fio-version
	@mkdir -p $(@D)
	$(CC) $(filter-out -Wextra -Wshadow,$(VROOM_CFLAGS)) $(CFLAGS) $(CPPFLAGS) -Ifio_plugin \
		-isystem $(FIO_DIR) -include $(FIO_DIR)/config-host.h \
		-D'VROOM_FIO_VERSION="$(FIO_VERSION)"' -MMD -MP -c $< -o $@

# nodelete: fio unloads an engine when a job ends, while its controllers are still in use.
$(BUILD)/vroom.so: $(ENGINE_OBJECTS) $(BUILD)/libvroom.a
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,nodelete $^ $(LIBS) -o $@

# --- what people call --------------------------------------------------------------------------
DEPS := gcc make dpkg-dev xz-utils fio libc6-dev zlib1g-dev libpciaccess-dev libhugetlbfs-dev libnuma-dev \
	libjson-c-dev pkg-config python3 python3-pytest python3-pytest-timeout procps
VM_DEPS := qemu-system-x86 busybox-static cpio kmod e2fsprogs dmsetup
TEST_DEPS := chromium fonts-dejavu-core
UNIT_DEPS := libcmocka-dev
CHECK_DEPS := clang-format clang-tidy shellcheck

# $(call install,PACKAGES): installs those of them that are missing, or says how to.
define install
	@missing=$$(for p in $(1); do dpkg-query -W -f '$${db:Status-Status}' $$p 2> /dev/null | \
		grep -qx installed || echo $$p; done); \
	[ -z "$$missing" ] && exit 0; \
	if [ $$(id -u) = 0 ]; then as=; elif command -v sudo > /dev/null; then as=sudo; else \
		echo "missing packages, and neither root nor sudo: apt-get install" $$missing >&2; \
		exit 1; fi; \
	echo "installing:" $$missing; \
	$$as apt-get -qq update && \
	$$as env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
		$$missing > /dev/null
endef

deps: ## Install the packages that demo and test need
	$(call install,$(DEPS))

# Python's libraries, pinned, in an environment of the project's own: sweeps, reports, lint.
.venv/installed: jobs/requirements.txt tests/requirements.txt
	$(call install,python3-venv)
	@echo "installing: Python libraries into .venv"
	@rm -rf .venv && /usr/bin/python3 -m venv .venv
	@.venv/bin/pip -qq install $(REQUIREMENTS:%=-r %) || { \
		echo "cannot install $(REQUIREMENTS) from the package index; is it reachable?" >&2; exit 1; }
	@touch $@
REQUIREMENTS := jobs/requirements.txt tests/requirements.txt

# fio's benchmark of io_uring itself, which Debian does not package.
$(FIO_DIR)/t/io_uring: | $(FIO_DIR)/config-host.h
	@$(MAKE) --no-print-directory -s -C $(FIO_DIR) t/io_uring > /dev/null

sweep-deps: deps .venv/installed $(FIO_DIR)/t/io_uring ## What jobs/sweep.py and jobs/report.py need

demo: deps ## The thesis' jobs on an emulated controller beside fio's own engines: a table, a report
	@$(MAKE) --no-print-directory -j$$(nproc) all > build.log 2>&1 || { tail -20 build.log; exit 1; }
	@rm -f build.log
	@$(MAKE) --no-print-directory sweep-deps
	@rm -rf build/demo
	@jobs/sweep.py run thesis --experiments matrix --engines psync,psync_cached,libaio,io_uring,vroom \
		--runtime 500ms --size 256m --out build/demo $(DEMO_ARGS)
	@jobs/report.py build/demo

unit-programs: $(UNIT_TESTS)

unit: ## The driver's core alone, on a controller in the same process (tests/unit): seconds
	$(call install,$(UNIT_DEPS))
	@$(MAKE) --no-print-directory -s -j$$(nproc) unit-programs
	@tests/unit/run.sh $(BUILD)/tests/unit

quick: deps .venv/installed unit ## What to run while working: unit, and a little of fio on the engine
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	$(PYTEST) tests -q -m quick $(TEST_ARGS)

# The suite needs a plain build and an instrumented one.
test: sweep-deps ## The whole test suite
	$(call install,$(VM_DEPS) $(TEST_DEPS) $(UNIT_DEPS))
	@$(MAKE) --no-print-directory -s -j$$(nproc) all unit-programs
	@$(MAKE) --no-print-directory -s -j$$(nproc) all unit-programs BUILD=build/asan SANITIZE=address,undefined CFLAGS='-O1 -g'
	@$(MAKE) --no-print-directory -s -j$$(nproc) driver unit-programs BUILD=build/tsan SANITIZE=thread CFLAGS='-O1 -g'
	$(PYTEST) tests $(TEST_ARGS)

vm-test: sweep-deps ## The tests in a guest with QEMU's NVMe controllers (part of test)
	$(call install,$(VM_DEPS))
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	$(PYTEST) tests/vm $(TEST_ARGS)

vm-demo: sweep-deps ## The thesis' jobs in a guest: the kernel's engines and vroom on one NVMe drive
	$(call install,$(VM_DEPS))
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@/usr/bin/python3 tests/vm/sweep.py thesis --experiments matrix \
		--engines psync,libaio,io_uring,io_uring_cmd,vroom,vroom_pci,vroom_perf $(DEMO_ARGS)

vm-sweep: sweep-deps ## A whole sweep in a guest (SWEEP_ARGS=thesis ...), and its report
	$(call install,$(VM_DEPS))
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@/usr/bin/python3 tests/vm/sweep.py $(or $(SWEEP_ARGS),thesis)

fresh-test: ## Both README commands in a fresh Debian 12 (debootstrap; needs root)
	$(call install,debootstrap git)
	tests/fresh-test.sh

bench: deps all build/tests/instructions build/tests/roundtrip ## Figures: driver, engine, instructions per I/O (BENCH_ARGS=...)
	$(call install,valgrind)
	@/usr/bin/python3 tests/bench.py $(BENCH_ARGS)

model: deps ## Checks the queue code in every interleaving, and that faults in it are found (MODEL_ARGS=--short)
	@/usr/bin/python3 tests/model/run.py $(MODEL_ARGS)

SOURCES := $(shell git ls-files '*.c' '*.h')
check: deps all .venv/installed ## Layers, layout, static analysis, lint
	$(call install,$(CHECK_DEPS))
	/usr/bin/python3 tests/layers.py
	clang-format --dry-run --Werror $(SOURCES)
	clang-tidy --quiet $(LIB_SOURCES) $(CLI_SOURCES) -- -std=gnu11 -D_GNU_SOURCE -Idriver/include -Idriver 2> /dev/null
	shellcheck $(shell git ls-files '*.sh') .ci/run
	.venv/bin/ruff check jobs tests
	.venv/bin/ruff format --check jobs tests

install: all ## Headers, libraries, vroom.pc, the command and the engine (PREFIX=, DESTDIR=)
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(COMPLETIONDIR)
	install -m 755 $(BUILD)/vroom $(DESTDIR)$(BINDIR)
	install -m 644 driver/include/*.h $(DESTDIR)$(INCLUDEDIR)
	install -m 644 $(BUILD)/libvroom.a $(BUILD)/vroom.so $(DESTDIR)$(LIBDIR)
	install -m 644 $(BUILD)/libvroom.so $(DESTDIR)$(LIBDIR)/libvroom.so.$(VERSION)
	ln -sf libvroom.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libvroom.so
	install -m 644 $(BUILD)/vroom.pc $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 644 driver/cli/completion.bash $(DESTDIR)$(COMPLETIONDIR)/vroom

clean: ## Remove what was built
	rm -rf build

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

FORCE:
.PHONY: all driver engine deps sweep-deps demo unit-programs unit quick test vm-test vm-demo vm-sweep fresh-test bench model check install clean help FORCE
.DELETE_ON_ERROR:

-include $(UNIT_TESTS:=.d) $(UNIT_OBJECTS:.o=.d) $(LIB_OBJECTS:.o=.d) $(CLI_OBJECTS:.o=.d) $(ENGINE_OBJECTS:.o=.d)
