# Makefile: `make help` lists what can be made.
#   CC=clang        another compiler             DEBUG=1   with sanitizers, little optimized; DEBUG=thread: with that for threads
#   ARCH=x86-64-v3  for another machine          WERROR=1  warnings are errors (CI)
#   NO_OMP=1        one thread                   NO_FETCH=1  do not look for tinyshakespeare
#   V=1             show the commands
#   TRY=X=1         defined in kernels: bench/tiles.py
#   NO_CUDA=1       no GPU                       GPU_ARCH="80 90a"  for these GPUs, not the one that is here
MAKEFLAGS += -rR
Q := $(if $(V),,@)
.SUFFIXES:
.DEFAULT_GOAL := all
CC = gcc
ARCH = native
NVCC = nvcc
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unversioned)

# A probe compiles, links and runs a two-line program with the flags in question: what it finds really works here. If no program can be
# run, because the compiler is for another machine, linking counts. Every flag that a compiler may lack has a probe.
COMMA := ,
NOTHING = int main(void){return 0;}
probe = $(shell t=$$(mktemp -d) && printf '%s' '$(2)' | $(CC) $(1) -x c - -o $$t/a $(3) >/dev/null 2>&1 && { $(RUNS) $$t/a >/dev/null 2>&1 && echo yes; }; rm -rf $$t)
RUNS := true
HAVE_CC := $(call probe,,$(NOTHING))
RUNS :=
HAVE_HOST := $(call probe,,$(NOTHING))
RUNS := $(if $(HAVE_HOST),,true)
# A flag that is only warned of is not known, either: clang takes -mcpu=none for x86.
first = $(if $(1),$(if $(call probe,-Werror $(firstword $(1)),$(NOTHING)),$(firstword $(1)),$(call first,$(wordlist 2,9,$(1)))))
ARCH_FLAG := $(call first,-march=$(ARCH) -mcpu=$(ARCH))
WIDE  := $(if $(ARCH_FLAG),$(call first,-mprefer-vector-width=512))
# 32-bit x86 computes in 80 bits unless it is told not to.
SSE   := $(if $(call probe,-msse2 -mfpmath=sse,char four[sizeof(void *)==4?1:-1];$(NOTHING)),-msse2 -mfpmath=sse)
FUSED := $(call first,-ffp-contract=fast)
# No operation on floats raises a signal here. Unless told so gcc leaves loops with a condition, such as those with fast_exp, without vectors.
TRAPS := $(call first,-fno-trapping-math)
DEPS  := $(call first,-MMD)
# clang says where it does not vectorize what OpenMP's simd asks for; that is known, and no fault.
QUIET := $(if $(call first,-Werror=pass-failed),-Wno-pass-failed)
# With its sanitizers gcc takes it for possible that a format is a null pointer.
QUIET += $(if $(DEBUG),$(call first,-Wno-format-truncation))
# OpenMP: as gcc and clang know it, or Apple's clang with the libomp of Homebrew.
OMP_USE = int omp_get_max_threads(void);int main(void){int n=0;_Pragma("omp parallel for reduction(+:n)")for(int i=0;i<9;i++)n+=i;return n!=36||omp_get_max_threads()<1;}
OMP := $(if $(NO_OMP)$(filter thread,$(DEBUG)),,$(if $(call probe,-fopenmp,$(OMP_USE)),-fopenmp))
OMP_LINK :=
HOMEBREW := $(if $(NO_OMP)$(OMP),,$(wildcard /opt/homebrew/opt/libomp /usr/local/opt/libomp))
ifneq ($(HOMEBREW),)
ifeq ($(call probe,-Xpreprocessor -fopenmp -isystem $(firstword $(HOMEBREW))/include,$(OMP_USE),-L$(firstword $(HOMEBREW))/lib -lomp),yes)
OMP := -Xpreprocessor -fopenmp -isystem $(firstword $(HOMEBREW))/include
OMP_LINK := -L$(firstword $(HOMEBREW))/lib -lomp
endif
endif
# Without it the compiler still vectorizes the loops that ask for it (omp simd).
SIMD := $(if $(OMP)$(filter thread,$(DEBUG)),,$(call first,-fopenmp-simd))

# The GPU side is built when nvcc works and there is a GPU, or GPU_ARCH names some. 90 becomes 90a: Hopper's own instructions.
HAVE_NVCC := $(if $(NO_CUDA),,$(shell t=$$(mktemp -d) && printf 'int main(){return 0;}' > $$t/a.cu && $(NVCC) $$t/a.cu -o $$t/a >/dev/null 2>&1 && echo yes; rm -rf $$t))
GPUS      := $(or $(GPU_ARCH),$(if $(HAVE_NVCC),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -un)))
CUDA      := $(if $(HAVE_NVCC),$(patsubst 100,100a,$(patsubst 90,90a,$(GPUS))))
SPACE := $(subst ,, )
B := build$(if $(CUDA),/cuda-$(subst $(SPACE),-,$(strip $(CUDA))))$(if $(DEBUG),/debug$(filter thread,$(DEBUG)))$(if $(RACECHECK),/race)$(if $(TRY),/$(subst =,-,$(subst $(SPACE),-,$(TRY))))

# a*b + c is one fused multiply-add where the machine has it, as the compilers do without -std and GPUs always.
WARN  = -Wall -Wextra -Wshadow -Wpedantic -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla $(if $(WERROR),-Werror)
OPT   = $(if $(DEBUG),-O1 -g -fsanitize=$(if $(filter thread,$(DEBUG)),thread,address$(COMMA)undefined) -fno-omit-frame-pointer,-O3)
BUILD = -std=c11 -I. $(OPT) $(FUSED) $(TRAPS) $(ARCH_FLAG) $(WIDE) $(SSE) $(OMP) $(SIMD)
FLAGS = $(BUILD) $(WARN) $(if $(OMP),,-Wno-unknown-pragmas) $(QUIET) $(if $(DEPS),-MMD -MP)
GENCODE = $(foreach a,$(CUDA),-gencode=arch=compute_$a,code=sm_$a)
NVFLAGS = -std=c++17 -I. -O3 -lineinfo $(if $(OMP),-Xcompiler $(OMP)) $(GENCODE) $(if $(RACECHECK),-DRACECHECK) $(addprefix -D,$(TRY)) $(if $(WERROR),-Werror all-warnings) -DBUILT_FOR='"sm_$(subst $(SPACE),$(COMMA)sm_,$(strip $(CUDA)))"' -MMD -MP
# Linked with the runtime inside, so that the program starts where there is no toolkit; cuBLASLt and NCCL are opened when used.
LINKER  = $(if $(CUDA),$(NVCC) -cudart static -Xcompiler '$(OPT) $(OMP)',$(CC) $(OPT) $(OMP))
# What objects are made with. If it changes (CC, ARCH, NO_OMP, DEBUG, ...), the file does, and everything is compiled again.
MADE_BY = $(CC) $(BUILD) $(if $(CUDA),$(NVCC) $(GENCODE))
ifneq ($(filter-out help size clean,$(or $(MAKECMDGOALS),all)),)
$(shell mkdir -p $(B) && { printf '%s\n' '$(subst ','\'',$(MADE_BY))' | cmp -s - $(B)/made-by || printf '%s\n' '$(subst ','\'',$(MADE_BY))' > $(B)/made-by; })
endif

# kernels/cpu is compiled once for each number type; the rest once.
PRECISIONS := F32 BF16 F64
KERNELS := $(foreach p,$(PRECISIONS),$(patsubst %.c,$(B)/$p/%.o,$(wildcard kernels/cpu/*.c)))
CUDA_ONCE := kernels/cuda/context kernels/cuda/nccl kernels/cuda/copies kernels/cuda/meeting
CUDA_KERNELS := $(foreach p,F32 BF16,$(patsubst %.cu,$(B)/$p/%.o,$(filter-out $(CUDA_ONCE:=.cu),$(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)))) $(CUDA_ONCE:%=$(B)/%.o)
# Pages that programs write or serve: llmc/run/NAME/page.html, with llmc/run/style.css, page.css and page.js put in, becomes the array of its
# lines, NAME_page.
PAGES   := $(patsubst llmc/run/%/page.html,%,$(wildcard llmc/run/*/page.html))
# What is written beside models that only this project has, as text: llmc/files/NAME.py becomes the array of its lines, NAME_py.
SCRIPTS := $(patsubst %.py,%_py,$(wildcard llmc/files/*.py))
LIBRARY := $(patsubst %.c,$(B)/%.o,$(wildcard llmc/*/*.c) kernels/devices.c kernels/compound.c) $(SCRIPTS:%=$(B)/%.o) $(PAGES:%=$(B)/llmc/run/%_page.o) $(KERNELS) $(if $(CUDA),$(CUDA_KERNELS))
BENCH   := $(patsubst %.c,$(B)/%.o,$(wildcard bench/*.c))
TESTS   := $(patsubst %.c,$(B)/%.o,$(filter-out tests/faults.c tests/fuzz/%,$(wildcard tests/*.c tests/*/*.c)))
# kernels/ladder is for tests and benchmarks; the programs do without.
LADDER  := $(B)/kernels/ladder/ladder.o $(patsubst %.c,$(B)/F32/%.o,$(wildcard kernels/ladder/cpu/*.c)) $(if $(CUDA),$(patsubst %.cu,$(B)/BF16/%.o,$(wildcard kernels/ladder/*.cu kernels/ladder/*/*.cu)))
# What tests and benchmarks have in common.
SHARED  := $(B)/tests/ops/cases.o $(B)/tests/ops/cost.o $(B)/tests/model/trainee.o

# How many jobs mutate, fuzz and platforms start.
JOBS := $(or $(JOBS),$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2))
.PHONY: all run_tests test test_gpu faults sanitize races cuda_check emulate quick bench pays ladder mutate fuzz fuzz_targets platforms data help size clean found ci
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
	@echo "  link  $@"
	$(Q)$(LINKER) $^ -o $@ $(OMP_LINK) -lm $(if $(CUDA),-ldl) -lpthread
$(B)/bench/bench_moe: $(BENCH) $(SHARED) $(LADDER) $(LIBRARY)
	@echo "  link  $@"
	$(Q)$(LINKER) $^ -o $@ $(OMP_LINK) -lm $(if $(CUDA),-ldl) -lpthread
$(B)/run_tests: $(TESTS) $(LADDER) $(LIBRARY)
	@echo "  link  $@"
	$(Q)$(LINKER) $^ -o $@ $(OMP_LINK) -lm $(if $(CUDA),-ldl) -lpthread

$(PAGES:%=$(B)/llmc/run/%_page.c): $(B)/llmc/run/%_page.c: llmc/run/%/page.html llmc/run/style.css llmc/run/%/page.css llmc/run/%/page.js Makefile
	@mkdir -p $(@D)
	@echo "  page  $<"
	$(Q)p=llmc/run/$*/page && { echo 'extern const char *const $*_page[];' && echo 'const char *const $*_page[] = {' && \
	LC_ALL=C sed -e "/^<style>/r llmc/run/style.css" -e "/^<style>/r $$p.css" -e "/^<script>/r $$p.js" $$p.html | LC_ALL=C sed -e 's/[\\"?]/\\&/g' -e 's/.*/"&\\n",/' && echo '0 };'; } > $@.new && mv $@.new $@
$(SCRIPTS:%=$(B)/%.c): $(B)/%_py.c: %.py Makefile
	@mkdir -p $(@D)
	@echo "  text  $<"
	$(Q){ echo 'extern const char *const $(*F)_py[];' && echo 'const char *const $(*F)_py[] = {' && \
	LC_ALL=C sed -e 's/[\\"?]/\\&/g' -e 's/.*/"&\\n",/' $< && echo '0 };'; } > $@.new && mv $@.new $@
$(B)/%.o: $(B)/%.c $(B)/made-by
	$(Q)$(CC) $(FLAGS) -c $< -o $@
# Here, where no number depends on it, roots need not set errno, which vectors of them cannot.
$(B)/llmc/base/random.o: FLAGS += $(call first,-fno-math-errno)
$(B)/%.o: %.c Makefile $(B)/made-by
	@mkdir -p $(@D)
	@echo "  cc    $<"
	$(Q)$(CC) $(FLAGS) -DMOE_VERSION='"$(VERSION)"' -DCOMPILER_FLAGS='"$(strip $(OPT) $(ARCH_FLAG) $(OMP))"' $(if $(CUDA),-DWITH_CUDA) -c $< -o $@
define precision
$(B)/$1/%.o: %.c Makefile $(B)/made-by
	@mkdir -p $$(@D)
	@echo "  cc    $$<, $1"
	$(Q)$(CC) $(FLAGS) -DPRECISION_$1 -c $$< -o $$@
$(B)/$1/%.o: %.cu Makefile $(B)/made-by
	@mkdir -p $$(@D)
	@echo "  nvcc  $$<, $1"
	$(Q)$(NVCC) $(NVFLAGS) -DPRECISION_$1 -c $$< -o $$@
endef
$(CUDA_ONCE:%=$(B)/%.o): $(B)/%.o: %.cu Makefile $(B)/made-by
	@mkdir -p $(@D)
	@echo "  nvcc  $<"
	$(Q)$(NVCC) $(NVFLAGS) -c $< -o $@
$(foreach p,$(PRECISIONS),$(eval $(call precision,$p)))
-include $(patsubst %.o,%.d,$(LIBRARY) $(TESTS) $(LADDER) $(B)/train_moe.o $(B)/infer_moe.o $(BENCH))

found:
	@$(if $(HAVE_CC),,echo "$(CC) is not a C compiler that works here. Another one: make CC=clang" >&2; exit 1)
	@echo "compiler $(CC), $(or $(ARCH_FLAG),no -march=$(ARCH): slower code for any processor of this kind; ARCH=... names one), OpenMP $(if $(OMP),found,$(if $(NO_OMP),left out,not found): one thread does all work)"
	@echo "CUDA: $(if $(CUDA),for $(CUDA),$(if $(NO_CUDA),left out: the CPU only,$(if $(HAVE_NVCC),nvcc but no GPU: the CPU only (GPU_ARCH=90 builds for one elsewhere),no nvcc: the CPU only)))"
data:
	@$(if $(NO_FETCH),true,sh data/tinyshakespeare/fetch.sh)

# Parts that share nothing, so that make -j2 runs two at a time. run_tests is two parts, which share the cases of operations.
TEST_PARTS := test_groups test_cases test_programs test_faults test_report test_web
.PHONY: $(TEST_PARTS)
test: $(TEST_PARTS) $(if $(HAVE_NVCC),$(if $(CUDA),,cuda_check))
$(TEST_PARTS): run_tests train_moe infer_moe bench_moe
test_groups:
	@./run_tests -p 1/2
test_cases:
	@./run_tests -p 2/2 kernels ladder
test_programs test_faults test_report test_web: test_%:
	@sh tests/$*.sh
# All that a change must pass (.ci/run), the longest parts first. A job of each kind at a time: make -j starts several kinds.
ci: mutate platforms fuzz emulate test
ci: EMULATE := fp8 orthogonalize parallel_linear_backward_input
# Every place where a call can fail or a kill can come, and a thousand flipped bits.
faults: train_moe infer_moe
	@sh tests/faults.sh -l
# On a machine with a GPU: every kernel of every device, and training steps against the CPU.
test_gpu: run_tests train_moe infer_moe
	@./run_tests kernels model comm gpu decoding ladder soak large
# The same kernels under compute-sanitizer; racecheck has a build of its own (kernels/cuda/hopper/pipeline.cuh says why).
sanitize: run_tests
	@$(MAKE) -s RACECHECK=1 $(B)/race/run_tests
	@RACE_TESTS=$(B)/race/run_tests sh tests/sanitize.sh
# Several ranks under the thread sanitizer. Without OpenMP, whose library it does not know.
races:
	@$(MAKE) -s DEBUG=thread NO_CUDA=1 WARN=-w build/debugthread/run_tests build/debugthread/train_moe
	@sh tests/races.sh build/debugthread

# Without a GPU the CUDA side is at least compiled, for the oldest and the newest architecture that it uses. Warnings are errors,
# and the compiler must report no spilled registers.
CHECKS := $(foreach p,BF16 F32,$(patsubst %.cu,build/check/$p/%.txt,$(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu))) \
          $(patsubst %.cu,build/check/BF16/%.txt,$(wildcard kernels/ladder/*.cu kernels/ladder/*/*.cu))
cuda_check: $(CHECKS)
	@! grep -hE "bytes spill stores" $(CHECKS) | grep -vE " 0 bytes spill stores, 0 bytes spill loads" || { echo "kernels spill registers: see build/check"; exit 1; }
	@echo "CUDA: $(words $(CHECKS)) objects compile for sm_80 and sm_90a without warnings or spills"
define check
build/check/$1/%.txt: %.cu Makefile $(wildcard kernels/*.h kernels/cuda/*.cuh kernels/cuda/*/*.cuh kernels/ladder/*.h kernels/ladder/*/*.cuh)
	@mkdir -p $$(@D)
	@echo "  check $$<, $1"
	$(Q)$(NVCC) -std=c++17 -I. -O3 -Werror all-warnings -Xptxas -v -Xcompiler -O0 -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a -DPRECISION_$1 -c $$< -o $$(@:.txt=.o) > $$@.new 2>&1 || { cat $$@.new; exit 1; }
	@mv $$@.new $$@
endef
$(foreach p,BF16 F32,$(eval $(call check,$p)))

# The kernels of kernels/cuda on a CPU, in bf16 (kernels/cuda/emulator). EMULATE="fp8 attention": only operations with these names.
CXX = g++
EMULATED := build/emulated
EMULATED_KERNELS := $(patsubst kernels/cuda/%.cu,$(EMULATED)/o/%.o,$(filter-out $(CUDA_ONCE:=.cu) kernels/cuda/dense.cu,$(wildcard kernels/cuda/*.cu kernels/cuda/hopper/*.cu) kernels/cuda/decode/attention.cu))
EMULATOR := $(EMULATED)/o/emulator/emulator.o $(EMULATED)/o/emulator/device.o $(EMULATED)/o/devices.o
CXXFLAGS = -std=c++20 -O2 $(ARCH_FLAG) -w -fpermissive -DPRECISION_BF16 -Ikernels/cuda/emulator -I$(EMULATED) -x c++
HAVE_EMULATOR = $(shell command -v python3 > /dev/null && test "$$(uname -m)" = x86_64 && printf '_Float16 x;' | $(CXX) -std=c++20 -x c++ -c - -o /dev/null 2> /dev/null && echo yes)
emulate:
	@$(if $(HAVE_EMULATOR),$(MAKE) -s NO_CUDA=1 $(EMULATED)/run_tests && sh tests/emulate.sh $(EMULATED)/run_tests $(EMULATE),echo "skip emulate: needs python3 and $(CXX) for C++20 on x86-64")
$(EMULATED)/prepared: $(wildcard kernels/*.h kernels/cuda/*.cu* kernels/cuda/*/*.cu* kernels/cuda/emulator/*)
	@mkdir -p $(EMULATED)/o/hopper $(EMULATED)/o/decode $(EMULATED)/o/emulator
	$(Q)python3 kernels/cuda/emulator/prepare.py . $(EMULATED) && touch $@
$(EMULATED_KERNELS): $(EMULATED)/o/%.o: $(EMULATED)/prepared
	@echo "  emulate $*"
	$(Q)$(CXX) $(CXXFLAGS) -c $(EMULATED)/kernels/cuda/$*.cu -o $@
$(EMULATED)/o/emulator/%.o: $(EMULATED)/prepared
	$(Q)$(CXX) $(CXXFLAGS) -c kernels/cuda/emulator/$*.cpp -o $@
$(EMULATED)/o/devices.o: kernels/devices.c $(EMULATED)/prepared
	$(Q)$(CC) $(FLAGS) -DWITH_CUDA -DEMULATED -c $< -o $@
$(EMULATED)/run_tests: $(filter-out $(B)/kernels/devices.o,$(TESTS) $(LADDER) $(LIBRARY)) $(EMULATED_KERNELS) $(EMULATOR)
	@echo "  link  $@"
	$(Q)$(CXX) $(OPT) $(OMP) $^ -o $@ $(OMP_LINK) -lm -lpthread

quick: run_tests
	@./run_tests house files data kernels model reference
bench: bench_moe
	@./bench_moe
pays: train_moe
	@sh bench/pays.sh
# Tests all rungs of kernels/ladder, then times them and keeps the table; without a GPU those for CPUs.
ladder: run_tests bench_moe
	@./run_tests ladder
ifeq ($(CUDA),)
	@./bench_moe -d cpu-f32 -e ladder | tee bench/results/ladder-cpu.txt
else
	@{ nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; ./bench_moe -d cuda-bf16 -e ladder; } > bench/results/ladder.new
	@mv bench/results/ladder.new bench/results/ladder.txt
	@cat bench/results/ladder.txt
endif
# Other compilers and machines, as far as they are installed.
platforms: train_moe infer_moe
	@JOBS=$(JOBS) sh tests/platforms.sh
mutate: run_tests
	@if command -v python3 > /dev/null; then python3 tests/mutate.py -j $(JOBS); else echo "skip mutate: no python3"; fi

# Fuzzing: every file of tests/fuzz/ is a target of libFuzzer (tests/fuzz/support/fuzz.h). SECONDS=n gives each n seconds, FUZZ="json data"
# picks targets. The library is built with the sanitizers, kernels/cpu without coverage, and in f32 only with sanitizers.
FUZZ_CC = clang
FUZZ_FLAGS = -std=c11 -I. -O1 -g -fno-omit-frame-pointer $(WARN) -DMOE_VERSION='"fuzz"' -DCOMPILER_FLAGS='"fuzz"' -MMD -MP
FUZZ_CHECKS = -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
FUZZ_WRAP = -Wl$(subst $(SPACE),,$(addprefix $(COMMA)--wrap=,fail warn exit malloc calloc realloc free))
FUZZ_TARGETS = $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/*.c))
FUZZ_LIBRARY = $(patsubst %.c,build/fuzz/once/%.o,$(wildcard llmc/*/*.c tests/fuzz/support/*.c) kernels/devices.c kernels/compound.c $(SCRIPTS:%=$(B)/%.c) $(PAGES:%=$(B)/llmc/run/%_page.c)) $(foreach p,$(PRECISIONS),$(patsubst %.c,build/fuzz/$p/%.o,$(wildcard kernels/cpu/*.c)))
HAVE_FUZZER = $(shell printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d[n] * 0; }' | $(FUZZ_CC) -fsanitize=fuzzer,address -x c - -o /dev/null 2> /dev/null && echo yes)
fuzz:
	$(if $(HAVE_FUZZER),@$(MAKE) -s $(if $(filter 1,$(JOBS)),,-j$(JOBS)) fuzz_targets)
	@$(if $(HAVE_FUZZER),FUZZ_JOBS=$(JOBS) sh tests/fuzz/support/run.sh $(or $(SECONDS),8) $(FUZZ),echo "skip fuzz: no $(FUZZ_CC) with libFuzzer (FUZZ_CC names another)")
fuzz_targets: $(if $(FUZZ),$(addprefix build/fuzz/,$(FUZZ)),$(FUZZ_TARGETS))
build/fuzz/libmoe.a: $(FUZZ_LIBRARY)
	@rm -f $@
	$(Q)ar rcs $@ $^
$(FUZZ_TARGETS): build/fuzz/%: build/fuzz/once/tests/fuzz/%.o build/fuzz/libmoe.a
	@echo "  link  $@"
	$(Q)$(FUZZ_CC) -g -fsanitize=fuzzer $(FUZZ_CHECKS) $(FUZZ_WRAP) $^ -o $@ -lm -ldl -lpthread
build/fuzz/once/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  fuzz  $<"
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) $(FUZZ_CHECKS) $(if $(findstring fuzz/support,$<),,-fsanitize=fuzzer-no-link) -c $< -o $@
define fuzz_precision
build/fuzz/$1/%.o: %.c Makefile
	@mkdir -p $$(@D)
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) $(if $(filter F32,$1),$(FUZZ_CHECKS)) -DPRECISION_$1 -c $$< -o $$@
endef
$(foreach p,$(PRECISIONS),$(eval $(call fuzz_precision,$p)))
-include $(patsubst %.o,%.d,$(FUZZ_LIBRARY)) $(patsubst tests/fuzz/%.c,build/fuzz/once/tests/fuzz/%.d,$(wildcard tests/fuzz/*.c))

help:
	@echo 'make train_moe     the trainer, and tinyshakespeare if it can be fetched;  then ./train_moe --help'
	@echo 'make infer_moe     generates text from what was trained;               then ./infer_moe --help'
	@echo 'make run_tests     the tests;                                          then ./run_tests --help'
	@echo 'make bench_moe     the benchmarks;                                     then ./bench_moe --help'
	@echo 'make quick         the tests of a change: house files data kernels model reference (a minute on two cores)'
	@echo 'make test          all tests that need no GPU (three to six minutes; make -j2 test: two at a time)'
	@echo 'make ci            all that a change must pass: test, emulate (a part), fuzz, platforms, mutate'
	@echo 'make faults        all faults of tests/faults.sh: failing calls, kills, damage (a quarter of an hour)'
	@echo 'make test_gpu      the kernels of the GPU, and training steps against the CPU'
	@echo 'make emulate       the kernels of the GPU on a CPU, emulated (minutes); EMULATE="fp8 attention": only these operations'
	@echo 'make sanitize      compute-sanitizer over all kernels of the GPU (minutes)'
	@echo 'make races         several ranks and processes under the thread sanitizer (minutes)'
	@echo 'make bench         times of all operations, compared with the limits of this machine (eight minutes on two cores)'
	@echo 'make pays          a mixture and its dense twin on a GPU: losses over time, and a picture (bench/pays.sh: its settings)'
	@echo 'make ladder        times of all rungs of kernels/ladder on the GPU of this machine, or on its CPU'
	@echo 'make fuzz          damaged and malicious input for every parser, for 8 seconds each (SECONDS=n); needs clang'
	@echo 'make platforms     builds with clang, musl, for i686, aarch64 (qemu), without OpenMP, and trains a little with each'
	@echo 'make mutate        breaks one line at a time and expects the tests to fail (three minutes on two cores)'
	@echo 'make size          lines per folder'
	@echo 'make clean         removes what was built'
	@echo 'Settings: CC=clang, DEBUG=1, WERROR=1, NO_CUDA=1, NO_OMP=1, ARCH=x86-64-v3, GPU_ARCH="80 90a" (CONTRIBUTING.md, docs/platforms.md)'
# Lines of every folder, and all together.
size:
	@git ls-files | grep -E '(\.(c|h|cu|cuh|md|py|sh)|Makefile)$$' | xargs wc -l | awk '$$2 != "total" { d = $$2; if (!sub("/[^/]*$$", "", d)) d = "."; n[d] += $$1; all += $$1 } END { for (d in n) printf "%6d lines  %s\n", n[d], d; printf "%6d lines  in all\n", all }' | sort -k3
clean:
	rm -rf build train_moe infer_moe bench_moe run_tests
