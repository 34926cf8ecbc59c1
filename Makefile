# Makefile: builds the programs; the rules of tests are in tests/tests.mk. `make help` shows the lines with #: and this:
#   CC=clang        another compiler           DEBUG=1     with sanitizers, little optimized; DEBUG=thread: for threads
#   ARCH=x86-64-v3  for another machine        WERROR=1    warnings are errors (CI)
#   NO_OMP=1        one thread                 NO_FETCH=1  do not look for tinyshakespeare
#   V=1             show the commands          TRY=X=1     defined in kernels: bench/tiles.py
#   NO_CUDA=1       no GPU                     GPU_ARCH="80 90a"  for these GPUs, not the one that is here
MAKEFLAGS += -rR
Q := $(if $(V),,@)
.SUFFIXES:
.DEFAULT_GOAL := all
CC = gcc
ARCH = native
NVCC = nvcc
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unversioned)

# A probe compiles, links and runs a two-line program with the flags in question: what it finds really works here.
# Every flag that a compiler may lack has a probe. Where no program can be run (a cross compiler), linking counts.
COMMA := ,
SPACE := $(subst ,, )
NOTHING = int main(void){return 0;}
probe = $(shell t=$$(mktemp -d) && printf '%s' '$(2)' | $(CC) $(1) -x c - -o $$t/a $(3) >/dev/null 2>&1 \
        && { $(RUNS) $$t/a >/dev/null 2>&1 && echo yes; }; rm -rf $$t)
RUNS := true
HAVE_CC := $(call probe,,$(NOTHING))
RUNS :=
RUNS := $(if $(call probe,,$(NOTHING)),,true)
# A flag that is only warned of is not known, either: clang takes -mcpu=none for x86.
first = $(if $(1),$(if $(call probe,-Werror $(firstword $(1)),$(NOTHING)),$(firstword $(1)),$(call \
        first,$(wordlist 2,9,$(1)))))
ARCH_FLAG := $(call first,-march=$(ARCH) -mcpu=$(ARCH))
WIDE  := $(if $(ARCH_FLAG),$(call first,-mprefer-vector-width=512))
# 32-bit x86 computes in 80 bits unless it is told not to.
SSE   := $(if $(call probe,-msse2 -mfpmath=sse,char four[sizeof(void *)==4?1:-1];$(NOTHING)),-msse2 -mfpmath=sse)
FUSED := $(call first,-ffp-contract=fast)
# No operation on floats raises a signal. Unless told so, gcc makes no vectors of loops with a condition (fast_exp).
TRAPS := $(call first,-fno-trapping-math)
DEPS  := $(call first,-MMD)
# clang warns of loops with omp simd that it cannot vectorize; gcc, with sanitizers, of formats that may be NULL.
QUIET := $(if $(call first,-Werror=pass-failed),-Wno-pass-failed) $(if $(DEBUG),$(call first,-Wno-format-truncation))
# OpenMP: as gcc and clang know it, or Apple's clang with the libomp of Homebrew.
OMP_USE = int omp_get_max_threads(void);int main(void){int n=0;_Pragma("omp parallel for reduction(+:n)") \
          for(int i=0;i<9;i++)n+=i;return n!=36||omp_get_max_threads()<1;}
OMP := $(if $(NO_OMP)$(filter thread,$(DEBUG)),,$(if $(call probe,-fopenmp,$(OMP_USE)),-fopenmp))
HOMEBREW := $(if $(NO_OMP)$(OMP),,$(firstword $(wildcard /opt/homebrew/opt/libomp /usr/local/opt/libomp)))
LIBOMP := -Xpreprocessor -fopenmp -isystem $(HOMEBREW)/include
OMP_LINK := $(if $(HOMEBREW),$(if $(call probe,$(LIBOMP),$(OMP_USE),-L$(HOMEBREW)/lib -lomp),-L$(HOMEBREW)/lib -lomp))
OMP := $(if $(OMP_LINK),$(LIBOMP),$(OMP))
# Without it the compiler still vectorizes the loops that ask for it (omp simd).
SIMD := $(if $(OMP)$(filter thread,$(DEBUG)),,$(call first,-fopenmp-simd))

# The GPU side is built when nvcc works and there is a GPU, or GPU_ARCH names some. 90 becomes 90a: Hopper's own code.
HAVE_NVCC := $(if $(NO_CUDA),,$(shell t=$$(mktemp -d) && printf 'int main(){return 0;}' > $$t/a.cu \
             && $(NVCC) $$t/a.cu -o $$t/a >/dev/null 2>&1 && echo yes; rm -rf $$t))
FIND_GPUS = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | sort -un)
CUDA := $(if $(HAVE_NVCC),$(patsubst 100,100a,$(patsubst 90,90a,$(or $(GPU_ARCH),$(FIND_GPUS)))))
dashes = $(subst =,-,$(subst $(SPACE),-,$(strip $(1))))
B := build$(if $(CUDA),/cuda-$(call dashes,$(CUDA)))$(if $(DEBUG),/debug$(filter thread,$(DEBUG)))
B := $B$(if $(RACECHECK),/race)$(if $(TRY),/$(call dashes,$(TRY)))

# a*b + c is one fused multiply-add where the machine has it, as the compilers do without -std and GPUs always.
WARN = -Wall -Wextra -Wshadow -Wpedantic -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla \
       $(if $(WERROR),-Werror)
SANITIZE = -fsanitize=$(if $(filter thread,$(DEBUG)),thread,address$(COMMA)undefined)
OPT = $(if $(DEBUG),-O1 -g $(SANITIZE) -fno-omit-frame-pointer,-O3)
BUILD = -std=c11 -I. $(OPT) $(FUSED) $(TRAPS) $(ARCH_FLAG) $(WIDE) $(SSE) $(OMP) $(SIMD)
FLAGS = $(BUILD) $(WARN) $(if $(OMP),,-Wno-unknown-pragmas) $(QUIET) $(if $(DEPS),-MMD -MP)
GENCODE = $(foreach a,$(CUDA),-gencode=arch=compute_$a,code=sm_$a)
BUILT_FOR = -DBUILT_FOR='"sm_$(subst $(SPACE),$(COMMA)sm_,$(strip $(CUDA)))"'
NVFLAGS = -std=c++17 -I. -O3 -lineinfo $(if $(OMP),-Xcompiler $(OMP)) $(GENCODE) $(if $(RACECHECK),-DRACECHECK) \
          $(addprefix -D,$(TRY)) $(if $(WERROR),-Werror all-warnings) $(BUILT_FOR) -MMD -MP
# With the runtime inside, so that programs start where there is no toolkit; cuBLASLt and NCCL are opened when used.
LINKER = $(if $(CUDA),$(NVCC) -cudart static -Xcompiler '$(OPT) $(OMP)',$(CC) $(OPT) $(OMP))
# What objects are made with. If it changes (CC, ARCH, DEBUG, ...), the file does, and everything is compiled again.
MADE_BY = '$(subst ','\'',$(CC) $(BUILD) $(if $(CUDA),$(NVCC) $(GENCODE)))'
ifneq ($(filter-out help size clean smoe,$(or $(MAKECMDGOALS),all)),)
$(shell mkdir -p $B; printf '%s\n' $(MADE_BY) | cmp -s - $B/made-by || printf '%s\n' $(MADE_BY) > $B/made-by)
endif

# kernels/cpu is compiled once for each number type, most of kernels/cuda for two; the rest once.
PRECISIONS := F32 BF16 F64
CUDA_ONCE := $(patsubst %,kernels/cuda/%,context nccl copies barrier)
CUDA_TWICE := $(filter-out $(CUDA_ONCE:=.cu),$(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu))
CUDA_KERNELS := $(foreach p,F32 BF16,$(CUDA_TWICE:%.cu=$B/$p/%.o)) $(CUDA_ONCE:%=$B/%.o)
KERNELS := $(foreach p,$(PRECISIONS),$(patsubst %.c,$B/$p/%.o,$(wildcard kernels/cpu/*.c)))
# A page that programs write or serve, llmc/run/NAME/page.html, becomes the array of its lines, NAME_page, with
# style.css, page.css and page.js put in. What is written beside models, llmc/files/NAME.py, becomes NAME_py, and a
# text of llmc/data NAME_txt.
PAGES   := $(patsubst llmc/run/%/page.html,$B/llmc/run/%_page,$(wildcard llmc/run/*/page.html))
SCRIPTS := $(patsubst %.py,$B/%_py,$(wildcard llmc/files/*.py)) $(patsubst %.txt,$B/%_txt,$(wildcard llmc/data/*.txt))
LIBRARY := $(patsubst %.c,$B/%.o,$(wildcard llmc/*/*.c) kernels/devices.c kernels/compound.c) \
           $(SCRIPTS:=.o) $(PAGES:=.o) $(KERNELS) $(if $(CUDA),$(CUDA_KERNELS))

.PHONY: all data help clean found
all: train_moe infer_moe
#: make train_moe     the trainer, and tinyshakespeare if it can be fetched;  then ./train_moe --help
train_moe: found data $B/train_moe
#: make infer_moe     generates text from what was trained;               then ./infer_moe --help
infer_moe: found $B/infer_moe
train_moe infer_moe:
	@ln -sf $B/$@ $@
#: make smoe          the whole idea in one file (smoe.c), without the rest; then ./smoe data/tinyshakespeare/input.txt
smoe: smoe.c
	$(CC) -std=c11 -O3 $(ARCH_FLAG) $(OMP) smoe.c -o smoe $(OMP_LINK) -lm
$B/train_moe $B/infer_moe: $B/%: $B/%.o $(LIBRARY)
	$(link)
link = $(Q)echo "  link  $@" && $(LINKER) $^ -o $@ $(OMP_LINK) -lm $(if $(CUDA),-ldl) -lpthread

array = { echo 'extern const char *const $(1)[];' && echo 'const char *const $(1)[] = {' && LC_ALL=C sed $(2) \
        | LC_ALL=C sed -e 's/[\\"?]/\\&/g' -e 's/.*/"&\\n",/' && echo '0 };'; } > $@.new && mv $@.new $@
$(PAGES:=.c): $B/llmc/run/%_page.c: $(addprefix llmc/run/,%/page.html %/page.css %/page.js style.css) Makefile
	@mkdir -p $(@D) && echo "  page  $<"
	$(Q)p=llmc/run/$*/page; $(call array,$*_page,-e '/^<style>/r llmc/run/style.css' \
	-e "/^<style>/r $$p.css" -e "/^<script>/r $$p.js" $$p.html)
text = $(Q)mkdir -p $(@D) && echo "  text  $<" && $(call array,$(1),'' $<)
$(filter %_py.c,$(SCRIPTS:=.c)): $B/%_py.c: %.py Makefile
	$(call text,$(*F)_py)
$(filter %_txt.c,$(SCRIPTS:=.c)): $B/%_txt.c: %.txt Makefile
	$(call text,$(*F)_txt)
$B/%.o: $B/%.c $B/made-by
	$(Q)$(CC) $(FLAGS) -c $< -o $@
# Here, where no number depends on it, roots need not set errno, which vectors of them cannot.
$B/llmc/base/random.o: FLAGS += $(call first,-fno-math-errno)
TOLD = -DMOE_VERSION='"$(VERSION)"' -DCOMPILER_FLAGS='"$(strip $(OPT) $(ARCH_FLAG) $(OMP))"' $(if $(CUDA),-DWITH_CUDA)
define compile
$B/$(1:%=%/)%.o: %.c Makefile $B/made-by
	@mkdir -p $$(@D) && echo "  cc    $$<$(1:%=, %)"
	$$(Q)$$(CC) $$(FLAGS) $(or $(1:%=-DPRECISION_%),$$(TOLD)) -c $$< -o $$@
$B/$(1:%=%/)%.o: %.cu Makefile $B/made-by
	@mkdir -p $$(@D) && echo "  nvcc  $$<$(1:%=, %)"
	$$(Q)$$(NVCC) $$(NVFLAGS) $(1:%=-DPRECISION_%) -c $$< -o $$@
endef
$(eval $(call compile))$(foreach p,$(PRECISIONS),$(eval $(call compile,$p)))
-include $(patsubst %.o,%.d,$(LIBRARY) $B/train_moe.o $B/infer_moe.o)

ANY_CPU = no -march=$(ARCH): slower code for any processor of this kind; ARCH=... names one
HAS_OMP = $(if $(OMP),found,$(if $(NO_OMP),left out,not found): one thread does all work)
HAS_GPU = $(if $(HAVE_NVCC),nvcc but no GPU: the CPU only (GPU_ARCH=90 builds for one elsewhere),no nvcc: the CPU only)
found:
	@$(if $(HAVE_CC),,echo "$(CC) is not a C compiler that works here. Another one: make CC=clang" >&2; exit 1)
	@echo "compiler $(CC), $(or $(ARCH_FLAG),$(ANY_CPU)), OpenMP $(HAS_OMP)"
	@echo "CUDA: $(if $(CUDA),for $(CUDA),$(if $(NO_CUDA),left out: the CPU only,$(HAS_GPU)))"
data:
	@$(if $(NO_FETCH),true,sh data/tinyshakespeare/fetch.sh)
#: make clean         removes what was built
clean:
	rm -rf build train_moe infer_moe bench_moe run_tests smoe
help:
	@sed -n 's/^#: //p' Makefile tests/tests.mk
	@echo 'Settings (CONTRIBUTING.md, docs/platforms.md):' && sed -n 's/^#   /    /p' Makefile
include tests/tests.mk
