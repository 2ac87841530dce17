# SPDX-License-Identifier: BSD-3-Clause
# vroom. `make help` lists the targets.

VERSION := $(shell sed -n 's/.*define VROOM_VERSION "\(.*\)"/\1/p' driver/include/vroom.h)
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
CC ?= gcc
# BUILD=build/asan SANITIZE=address,undefined makes an instrumented build beside the plain one.
BUILD ?= build
SANITIZE ?=

WARNINGS := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes
ifneq ($(CI),)
WARNINGS += -Werror
endif
CFLAGS ?= -O3 -g
VROOM_CFLAGS := -std=gnu11 -D_GNU_SOURCE -fPIC -pthread -fvisibility=hidden $(WARNINGS) \
	-Idriver/include -Idriver -DVROOM_BINDIR='"$(BINDIR)"' $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
LIBS := -lhugetlbfs -ljson-c -ldl

LIB_SOURCES := $(wildcard driver/core/*.c driver/transport/*.c)
CLI_SOURCES := $(wildcard driver/cli/*.c driver/emulator/*.c)
ENGINE_SOURCES := $(wildcard fio_plugin/*.c)
LIB_OBJECTS := $(LIB_SOURCES:%.c=$(BUILD)/%.o)
CLI_OBJECTS := $(CLI_SOURCES:%.c=$(BUILD)/%.o)
ENGINE_OBJECTS := $(ENGINE_SOURCES:%.c=$(BUILD)/%.o)
EXAMPLES := $(patsubst driver/examples/%.c,$(BUILD)/examples/%,$(wildcard driver/examples/*.c))

all: $(BUILD)/vroom.so $(BUILD)/vroom $(BUILD)/libvroom.a $(BUILD)/libvroom.so $(EXAMPLES)

$(BUILD)/driver/%.o: driver/%.c
	@mkdir -p $(@D)
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(CPPFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libvroom.a: $(LIB_OBJECTS)
	rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libvroom.so: $(LIB_OBJECTS)
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libvroom.so.0 $^ $(LIBS) -o $@

$(BUILD)/vroom: $(CLI_OBJECTS) $(BUILD)/libvroom.a
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -lpciaccess -o $@

# --- the fio engine -------------------------------------------------------------------
# fio's headers: FIO_SRC=/path/to/configured/fio, else the source of the fio that is installed.
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
$(FIO_DIR)/FIO-VERSION-FILE: $(FIO_DIR)/config-host.h
	cd $(FIO_DIR) && sh ./FIO-VERSION-GEN

$(BUILD)/fio_plugin/%.o: fio_plugin/%.c $(FIO_DIR)/FIO-VERSION-FILE
	@mkdir -p $(@D)
	$(CC) $(filter-out -Wextra -Wshadow,$(VROOM_CFLAGS)) $(CFLAGS) $(CPPFLAGS) -Ifio_plugin -isystem $(FIO_DIR) \
		-D'VROOM_FIO_VERSION="$(FIO_VERSION)"' -include $(FIO_DIR)/config-host.h -MMD -MP -c $< -o $@

# nodelete: fio unloads an engine when a job ends, while the controllers are still in use.
$(BUILD)/vroom.so: $(ENGINE_OBJECTS) $(BUILD)/libvroom.a
	$(CC) $(VROOM_CFLAGS) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,nodelete $^ $(LIBS) -o $@

-include $(LIB_OBJECTS:.o=.d) $(CLI_OBJECTS:.o=.d) $(ENGINE_OBJECTS:.o=.d)
