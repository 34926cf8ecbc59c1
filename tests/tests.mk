# tests.mk: the Makefile's rules for tests, benchmarks, fuzzing, the emulator and other platforms.
BENCH   := $(patsubst %.c,$B/%.o,$(wildcard bench/*.c))
TESTS   := $(patsubst %.c,$B/%.o,$(filter-out tests/faults.c tests/fuzz/%,$(wildcard tests/*.c tests/*/*.c)))
# kernels/ladder is for tests and benchmarks; the programs do without.
LADDER  := $B/kernels/ladder/ladder.o $(patsubst %.c,$B/F32/%.o,$(wildcard kernels/ladder/cpu/*.c)) \
           $(if $(CUDA),$(patsubst %.cu,$B/BF16/%.o,$(wildcard kernels/ladder/*.cu kernels/ladder/*/*.cu)))
# What tests and benchmarks have in common.
SHARED  := $B/tests/ops/cases.o $B/tests/ops/cost.o $B/tests/model/trainee.o

# How many jobs mutate, fuzz and platforms start.
JOBS := $(or $(JOBS),$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2))
# Parts that need nothing of each other, so that make -j2 runs two at a time: the longest first. run_tests is two of them.
TEST_PARTS := test_programs test_groups test_kernels test_smoe test_web test_report test_readers
FAULTS := $(addprefix faults_,1 2 3 4)
.PHONY: run_tests test bench_once $(TEST_PARTS) $(FAULTS) test_tutorial tutorial test_gpu \
        test_faults faults sanitize races addresses cuda_check emulate quick bench pays race ladder mutate fuzz fuzz_targets platforms ci size

#: make run_tests     the tests;                                          then ./run_tests --help
run_tests: $B/run_tests
	@ln -sf $B/run_tests $@
#: make bench_moe     the benchmarks;                                     then ./bench_moe --help
bench_moe: found $B/bench/bench_moe
	@ln -sf $B/bench/bench_moe $@
$B/run_tests: $(TESTS) $(LADDER) $(LIBRARY)
	$(link)
$B/bench/bench_moe: $(BENCH) $(SHARED) $(LADDER) $(LIBRARY)
	$(link)
-include $(patsubst %.o,%.d,$(TESTS) $(LADDER) $(BENCH))

#: make quick         the tests of a change: house files data kernels model reference (a minute on two cores)
quick: run_tests
	@./run_tests house files data kernels model reference
#: make test          all tests that need no GPU (make -j2 test: two at a time, 3:47 on two quiet cores)
test: $(TEST_PARTS)
$(TEST_PARTS) test_faults: run_tests train_moe infer_moe bench_moe
test_groups:
	@./run_tests $(filter-out kernels ladder,$(shell ./run_tests -h | sed -n 's/^groups://p'))
test_kernels:
	@./run_tests kernels ladder
test_programs test_faults test_report test_web test_smoe test_readers test_tutorial: test_%:
	@sh tests/$*.sh
test_tutorial: train_moe infer_moe
#: make tutorial      every command of docs/tutorial.md, from the build on (five minutes on two quiet cores)
tutorial:
	@sh tests/tutorial.sh -f
# The longest parts first (.ci/run). A job of each kind at a time: make -j starts several kinds.
#: make ci            all that a change must pass: test, cuda_check, a part of emulate and faults, fuzz, platforms, mutate, tutorial
ci: mutate platforms fuzz emulate test_tutorial test_faults bench_once $(if $(HAVE_NVCC),$(if $(CUDA),,cuda_check)) test
bench_once: bench_moe                   # each operation once: none writes outside of its buffers
	@./bench_moe -t 0 -e m4 > /dev/null && echo "every operation of bench_moe -e m4 ran once"
ci: EMULATE := fp8 orthogonalize parallel_linear_backward_input
#: make faults        all faults of tests/faults.sh: failing calls, kills, damage (a quarter of an hour; make -j2: half)
faults: $(FAULTS)
$(FAULTS): faults_%: train_moe infer_moe
	@sh tests/faults.sh -l -p $*/4
#: make test_gpu      the kernels of the GPU, and training steps against the CPU
# Without a GPU nothing is built first: it fails at once, and says what is missing.
NO_GPU = $(strip $(if $(HAVE_NVCC),,no nvcc (the CUDA toolkit)$(if $(FIND_GPUS),,$(COMMA) and)) \
         $(if $(FIND_GPUS),,no GPU that nvidia-smi lists))
asked = $(if $(filter $1,$(MAKECMDGOALS)),$(NO_GPU))
needs_gpu = $(if $(call asked,$@),@echo "make $@ needs a GPU and the CUDA toolkit; here is $(NO_GPU)" >&2; exit 1,@:)
test_gpu: $(if $(call asked,test_gpu),,run_tests train_moe infer_moe)
	$(needs_gpu)
	@./run_tests kernels model comm gpu decoding ladder soak large

#: make cuda_check    compiles the CUDA side for sm_80 and sm_90a (four minutes on two cores); needs nvcc, no GPU
# For the oldest and the newest architecture that it uses. Warnings are errors, and no register may spill.
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
CHECKS := $(foreach p,BF16 F32,$(CUDA_SOURCES:%.cu=build/check/$p/%.txt)) \
          $(patsubst %.cu,build/check/BF16/%.txt,$(wildcard kernels/ladder/*.cu kernels/ladder/*/*.cu))
CHECK_FOR = -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a
cuda_check: $(CHECKS)
	@! grep -hE "bytes spill stores" $(CHECKS) | grep -vE " 0 bytes spill stores, 0 bytes spill loads" \
	|| { echo "kernels spill registers: see build/check"; exit 1; }
	@echo "CUDA: $(words $(CHECKS)) objects compile for sm_80 and sm_90a without warnings or spills"
CUDA_HEADERS := $(wildcard $(addprefix kernels/,*.h cuda/*.cuh cuda/*/*.cuh ladder/*.h ladder/*/*.cuh))
define check
build/check/$1/%.txt: %.cu $(CUDA_HEADERS) tests/tests.mk
	@mkdir -p $$(@D) && echo "  check $$<, $1"
	$(Q)$(NVCC) -std=c++17 -I. -O3 -Werror all-warnings -Xptxas -v -Xcompiler -O0 $(CHECK_FOR) -DPRECISION_$1 \
	-c $$< -o $$(@:.txt=.o) > $$@.new 2>&1 || { cat $$@.new; exit 1; }
	@mv $$@.new $$@
endef
$(foreach p,BF16 F32,$(eval $(call check,$p)))

#: make emulate       the kernels of the GPU on a CPU, emulated (minutes); EMULATE="fp8 attention": only these
# In bf16 (kernels/cuda/emulator).
CXX = g++
EMULATED := build/emulated
EMULATED_SOURCES := $(wildcard kernels/cuda/*.cu kernels/cuda/hopper/*.cu kernels/cuda/decode/*.cu)
EMULATED_KERNELS := $(patsubst kernels/cuda/%.cu,$(EMULATED)/o/%.o,\
                    $(filter-out $(CUDA_ONCE:=.cu) kernels/cuda/dense.cu,$(EMULATED_SOURCES)))
EMULATOR := $(EMULATED)/o/emulator/emulator.o $(EMULATED)/o/emulator/device.o $(EMULATED)/o/devices.o
CXXFLAGS = -std=c++20 -O2 $(ARCH_FLAG) -w -fpermissive -DPRECISION_BF16 -Ikernels/cuda/emulator -I$(EMULATED) -x c++
HAVE_EMULATOR = $(shell command -v python3 > /dev/null && test "$$(uname -m)" = x86_64 \
                && printf '_Float16 x;' | $(CXX) -std=c++20 -x c++ -c - -o /dev/null 2> /dev/null && echo yes)
NO_EMULATOR = echo "skip emulate: needs python3 and $(CXX) for C++20 on x86-64"
emulate:
	@$(if $(HAVE_EMULATOR),$(MAKE) -s NO_CUDA=1 $(EMULATED)/run_tests \
	&& sh tests/emulate.sh $(EMULATED)/run_tests $(EMULATE),$(NO_EMULATOR))
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
$(EMULATED)/run_tests: $(filter-out $B/kernels/devices.o,$(TESTS) $(LADDER) $(LIBRARY)) $(EMULATED_KERNELS) $(EMULATOR)
	@echo "  link  $@"
	$(Q)$(CXX) $(OPT) $(OMP) $^ -o $@ $(OMP_LINK) -lm -lpthread

#: make sanitize      compute-sanitizer over all kernels of the GPU (minutes)
# racecheck has a build of its own (kernels/cuda/hopper/pipeline.cuh says why).
sanitize: $(if $(call asked,sanitize),,run_tests)
	$(needs_gpu)
	@$(MAKE) -s RACECHECK=1 $B/race/run_tests
	@RACE_TESTS=$B/race/run_tests sh tests/sanitize.sh
#: make races         several ranks and processes under the thread sanitizer (minutes)
# Without OpenMP, whose library it does not know.
races:
	@$(MAKE) -s DEBUG=thread NO_CUDA=1 WARN=-w build/debugthread/run_tests build/debugthread/train_moe
	@sh tests/races.sh build/debugthread
#: make addresses     the programs under the sanitizers for addresses and undefined behaviour (minutes); CC=clang too
addresses:
	@$(MAKE) -s DEBUG=1 NO_CUDA=1 WARN=-w B=build/addresses build/addresses/train_moe build/addresses/infer_moe
	@sh tests/addresses.sh build/addresses
#: make bench         times of all operations, compared with the limits of this machine (eight minutes on two cores)
bench: bench_moe
	@./bench_moe
#: make pays          a mixture and its dense twin on a GPU: losses over time, and a picture (settings: bench/pays.sh)
pays: $(if $(if $(DEVICE),,$(call asked,pays)),,train_moe)
	$(if $(DEVICE),@:,$(needs_gpu))
	@sh bench/pays.sh
#: make race          the preset race on a GPU: losses over seconds of training, and a picture (rules: docs/race.md)
race: train_moe
	@sh bench/race.sh
#: make ladder        times of all rungs of kernels/ladder on the GPU of this machine, or on its CPU
ladder: run_tests bench_moe
	@./run_tests ladder
ifeq ($(CUDA),)
	@./bench_moe -d cpu-f32 -e ladder > build/ladder.new && mv build/ladder.new bench/results/ladder-cpu.txt
	@cat bench/results/ladder-cpu.txt
else
	@nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > build/ladder.new
	@./bench_moe -d cuda-bf16 -e ladder >> build/ladder.new && mv build/ladder.new bench/results/ladder.txt
	@cat bench/results/ladder.txt
endif

#: make fuzz          damaged and malicious input for every parser, for 8 seconds each (SECONDS=n); needs clang
# Every file of tests/fuzz/ is a target of libFuzzer (tests/fuzz/support/fuzz.h); FUZZ="json data" picks targets.
# The library is built with the sanitizers, kernels/cpu without coverage, and in f32 only with sanitizers.
FUZZ_CC = clang
FUZZ_FLAGS = -std=c11 -I. -O1 -g -fno-omit-frame-pointer $(WARN) -MMD -MP \
             -DMOE_VERSION='"fuzz"' -DCOMPILER_FLAGS='"fuzz"'
FUZZ_CHECKS = -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
FUZZ_WRAP = -Wl$(subst $(SPACE),,$(addprefix $(COMMA)--wrap=,fail warn exit malloc calloc realloc free))
# They build tables from what others have parsed: their comparisons say nothing about the input, and traced they take
# two thirds of the time of the target.
FUZZ_TABLES = llmc/data/codeset.c llmc/data/pattern.c llmc/data/unicode.c
FUZZ_TARGETS = $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/*.c))
FUZZ_SOURCES = $(wildcard llmc/*/*.c tests/fuzz/support/*.c kernels/*.c) $(SCRIPTS:=.c) $(PAGES:=.c)
FUZZ_LIBRARY = $(FUZZ_SOURCES:%.c=build/fuzz/once/%.o) \
               $(foreach p,$(PRECISIONS),$(patsubst %.c,build/fuzz/$p/%.o,$(wildcard kernels/cpu/*.c)))
HAVE_FUZZER = $(shell printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d[n] * 0; }' \
              | $(FUZZ_CC) -fsanitize=fuzzer,address -x c - -o /dev/null 2> /dev/null && echo yes)
NO_FUZZER = echo "skip fuzz: no $(FUZZ_CC) with libFuzzer (FUZZ_CC names another)"
fuzz:
	$(if $(HAVE_FUZZER),@$(MAKE) -s $(if $(filter 1,$(JOBS)),,-j$(JOBS)) fuzz_targets)
	@$(if $(HAVE_FUZZER),FUZZ_JOBS=$(JOBS) sh tests/fuzz/support/run.sh $(or $(SECONDS),8) $(FUZZ),$(NO_FUZZER))
fuzz_targets: $(if $(FUZZ),$(addprefix build/fuzz/,$(FUZZ)),$(FUZZ_TARGETS))
build/fuzz/libmoe.a: $(FUZZ_LIBRARY)
	@rm -f $@
	$(Q)ar rcs $@ $^
$(FUZZ_TARGETS): build/fuzz/%: build/fuzz/once/tests/fuzz/%.o build/fuzz/libmoe.a
	@echo "  link  $@"
	$(Q)$(FUZZ_CC) -g -fsanitize=fuzzer $(FUZZ_CHECKS) $(FUZZ_WRAP) $^ -o $@ -lm -ldl -lpthread
build/fuzz/once/%.o: %.c tests/tests.mk
	@mkdir -p $(@D) && echo "  fuzz  $<"
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) $(FUZZ_CHECKS) $(if $(findstring fuzz/support,$<),,-fsanitize=fuzzer-no-link) \
	$(if $(filter $(FUZZ_TABLES),$<),-fno-sanitize-coverage=trace-cmp) -c $< -o $@
define fuzz_precision
build/fuzz/$1/%.o: %.c tests/tests.mk
	@mkdir -p $$(@D)
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) $(if $(filter F32,$1),$(FUZZ_CHECKS)) -DPRECISION_$1 -c $$< -o $$@
endef
$(foreach p,$(PRECISIONS),$(eval $(call fuzz_precision,$p)))
-include $(FUZZ_LIBRARY:.o=.d) $(FUZZ_TARGETS:build/fuzz/%=build/fuzz/once/tests/fuzz/%.d)

#: make platforms     builds with clang, musl, for i686, aarch64 (qemu), without OpenMP, and trains a little with each
platforms: train_moe infer_moe
	@JOBS=$(JOBS) sh tests/platforms.sh
#: make mutate        breaks one line at a time and expects the tests to fail (three minutes on two cores)
mutate: run_tests
	@if command -v python3 > /dev/null; then python3 tests/mutate.py -j $(JOBS); else echo "skip mutate: no python3"; fi
#: make size          lines by purpose: what a learner reads, speed, families, product, tests
size:
	@sh tests/size.sh
