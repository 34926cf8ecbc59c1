# Makefile: `make help` lists what can be made.
#   CC=clang        another compiler             DEBUG=1   no optimization, with sanitizers
#   ARCH=x86-64-v3  for another machine          WERROR=1  warnings are errors (CI)
#   NO_OMP=1        one thread                   NO_FETCH=1  do not look for tinyshakespeare
MAKEFLAGS += -rR
.SUFFIXES:
.DEFAULT_GOAL := all
CC = gcc
ARCH = native
B := build$(if $(DEBUG),/debug)
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unversioned)

# A probe compiles and links a two-line program with the flags in question: what it finds really works here.
probe = $(shell t=$$(mktemp) && printf '%s' '$(2)' | $(CC) $(1) -x c - -o $$t -lm >/dev/null 2>&1 && echo yes; rm -f $$t)
HAVE_ARCH := $(call probe,-march=$(ARCH),int main(void){return 0;})
HAVE_OMP  := $(if $(NO_OMP),,$(call probe,-fopenmp,int omp_get_max_threads(void);int main(void){return omp_get_max_threads()<1;}))

# a*b + c is one fused multiply-add where the machine has it, as the compilers do without -std and GPUs always.
WARN  = -Wall -Wextra -Wshadow -Wpedantic -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(WERROR),-Werror)
OPT   = $(if $(DEBUG),-O1 -g -fsanitize=address$(COMMA)undefined -fno-omit-frame-pointer,-O3)
COMMA := ,
OMP   = $(if $(HAVE_OMP),-fopenmp)
FLAGS = -std=c11 $(OPT) -ffp-contract=fast $(if $(HAVE_ARCH),-march=$(ARCH) -mprefer-vector-width=512) $(OMP) $(WARN) -MMD -MP
LINK  = $(OPT) $(OMP) -lm

# kernels/cpu is compiled once for each number type; the rest once.
PRECISIONS := F32 BF16 F64
KERNELS := $(foreach p,$(PRECISIONS),$(patsubst %.c,$(B)/$p/%.o,$(wildcard kernels/cpu/*.c)))
LIBRARY := $(patsubst %.c,$(B)/%.o,$(wildcard llmc/*.c) kernels/devices.c) $(KERNELS)
TESTS   := $(patsubst %.c,$(B)/%.o,$(wildcard tests/*.c))
CASES   := $(patsubst %.c,$(B)/%.o,$(wildcard tests/cases.c))

.PHONY: all test quick bench mutate data help size clean found
all: train_moe infer_moe

train_moe: found data $(B)/train_moe
	@ln -sf $(B)/train_moe $@
infer_moe: found $(B)/infer_moe
	@ln -sf $(B)/infer_moe $@
bench_moe: found $(B)/bench/bench_moe
	@ln -sf $(B)/bench/bench_moe $@
run_tests: $(B)/run_tests
	@ln -sf $(B)/run_tests $@

$(B)/train_moe $(B)/infer_moe: $(B)/%: $(B)/%.o $(LIBRARY)
	$(CC) $^ $(LINK) -o $@
$(B)/bench/bench_moe: $(B)/bench/bench_moe.o $(CASES) $(LIBRARY)
	$(CC) $^ $(LINK) -o $@
$(B)/run_tests: $(TESTS) $(LIBRARY)
	$(CC) $^ $(LINK) -o $@

$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -DMOE_VERSION='"$(VERSION)"' -c $< -o $@
define precision
$(B)/$1/%.o: %.c Makefile
	@mkdir -p $$(@D)
	$(CC) $(FLAGS) -DPRECISION_$1 -c $$< -o $$@
endef
$(foreach p,$(PRECISIONS),$(eval $(call precision,$p)))
-include $(patsubst %.o,%.d,$(LIBRARY) $(TESTS) $(B)/train_moe.o $(B)/infer_moe.o $(B)/bench/bench_moe.o)

found:
	@echo "compiler $(CC), $(if $(HAVE_ARCH),-march=$(ARCH),no -march=$(ARCH): generic code), OpenMP $(if $(HAVE_OMP),found,not found: one thread)"
data:
	@$(if $(NO_FETCH),true,sh data/tinyshakespeare/fetch.sh)

test: run_tests train_moe infer_moe
	@./run_tests && sh tests/test_programs.sh
quick: run_tests
	@./run_tests files data kernels model reference
bench: bench_moe
	@./bench_moe
mutate:
	python3 tests/mutate.py

help:
	@echo 'make train_moe     the trainer, and tinyshakespeare if it can be had;  then ./train_moe --help'
	@echo 'make infer_moe     generates text from what was trained;               then ./infer_moe --help'
	@echo 'make test          all tests that need no GPU (about a minute)'
	@echo 'make bench         time of every operation, as a share of what this machine can do'
	@echo 'make mutate        breaks one line of each backward pass and expects the tests to notice'
	@echo 'make size          lines per folder'
	@echo 'make clean         removes what was built'
size:
	@for d in . llmc kernels kernels/cpu tests bench docs; do printf '%6d lines  %s\n' $$(cat $$(git ls-files $$d | grep -E "^$$(echo $$d | sed 's/^\.$$//')/?[^/]*\.(c|h|cu|cuh|md|py|sh)$$|Makefile$$") /dev/null | wc -l) $$d; done
clean:
	rm -rf build train_moe infer_moe bench_moe run_tests
