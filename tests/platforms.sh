#!/bin/sh
# platforms.sh: builds both programs with other compilers, for other machines and in poor surroundings, and trains, resumes and generates
# with each; what is not installed is skipped. Start it from the repository root after `make train_moe infer_moe`, or by `make platforms`.
# Objects stay in build/platforms/NAME. The results are the table of docs/platforms.md.
#   sh tests/platforms.sh [NAME...]      only these. JOBS: of make. MAKE: another make
set -u
root=$(pwd) passed=0 failed=0 only=$*
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
LC_ALL=C OMP_NUM_THREADS=2 NO_COLOR=1 CUDA_VISIBLE_DEVICES=
export LC_ALL OMP_NUM_THREADS NO_COLOR CUDA_VISIBLE_DEVICES
unset MAKEFLAGS MFLAGS MAKELEVEL        # of the make that started this
make="${MAKE:-make} -j${JOBS:-2} NO_CUDA=1 NO_FETCH=1"
verdict() {                             # verdict RESULT WHAT: RESULT 0 is good
    if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok   platforms  $2"
    else failed=$((failed + 1)); echo "FAIL platforms  $2"; fi
}
has() { command -v "$1" > /dev/null 2>&1; }
fingerprint() { sed -n 's/.*"fingerprint": "\([0-9a-f]*\)".*/\1/p' "$1/log.jsonl" | tail -1; }
cat llmc/model/*.c | head -c 60000 > "$work/text.txt"

# short NAME FOLDER [COMMAND...]: 20 steps, the last ten of them once more after a resume, and a few tokens. The loss must be the reference's.
reference= said=$work/said
short() {
    name=$1 bin=$2 out=$work/out-$1; shift 2
    run="-i $work/text.txt -e m2:c64h4e4k2f64 -b 4 -t 32 -x 20 -u 5 -v 10 -n 10 -m 20 -s 20 -g 20 -dv cpu"
    "$@" "$bin/train_moe" $run -o "$out" > "$said" 2>&1 || { verdict 1 "$name: training: $(tail -1 "$said")"; return; }
    loss=$(sed -n 's/^val loss \([0-9.]*\).*/\1/p' "$said" | tail -1) weights=$(fingerprint "$out")
    [ -n "$reference" ] || reference=$loss
    rm -rf "$out/state/step-00000020"
    "$@" "$bin/train_moe" -o "$out" -y 1 > "$said" 2>&1 || { verdict 1 "$name: resuming: $(tail -1 "$said")"; return; }
    [ -n "$weights" ] && [ "$weights" = "$(fingerprint "$out")" ]; verdict $? "$name: resumes to the same bits ($weights)"
    awk "BEGIN { d = $loss - $reference; exit !(d < 1e-3 && d > -1e-3) }"; verdict $? "$name: loss $loss, here $reference"
    "$@" "$bin/infer_moe" "$out" -i static -n 20 > "$said" 2>&1; verdict $? "$name: generates: $(tail -1 "$said" | cut -c1-60)"
}
# build NAME "MAKE'S ARGUMENTS" [PROGRAM...]: builds the two programs, and these, without warnings. 1: it failed or was not asked for.
build() {
    id=$1 settings=$2 objects=build/platforms/$1; shift 2
    case " $only " in "  "|*" $id "*) ;; *) return 1 ;; esac
    programs="$objects/train_moe $objects/infer_moe"
    for program; do programs="$programs $objects/$program"; done
    $make $settings "B=$objects" $programs > "$work/build" 2>&1
    code=$?
    $make -s $settings "B=$objects" found | sed -n 1p
    [ $code = 0 ] && ! grep -q 'warning:' "$work/build"
    verdict $? "$id: make ${settings:-as it is}: $(grep -c '^  cc' "$work/build") files$(grep -m1 'warning:\|rror' "$work/build")"
    return $code
}
# platform NAME "MAKE'S ARGUMENTS" [COMMAND...]: builds, then short; COMMAND runs the programs.
platform() {
    build "$1" "$2" || return
    shift 2
    short "$id" "$objects" "$@"
}
skip() { echo "skip platforms  $1: $2 is not installed"; }

# The programs that are here come first: their loss is the reference.
short here .
if has clang; then platform clang "CC=clang"; else skip clang clang; fi
case " $only " in "  "|*" debug "*)                       # gcc warns of more with its sanitizers
    $make DEBUG=1 WERROR=1 B=build/platforms/debug build/platforms/debug/llmc/base/base.o build/platforms/debug/llmc/base/text.o > "$work/build" 2>&1
    verdict $? "debug: make DEBUG=1 WERROR=1: $(grep -m1 'error:' "$work/build")" ;;
esac
# Without wide vectors sums have another order: every operation is tested once more.
if [ "$(uname -m)" = x86_64 ]; then
    platform x86-64-v2 "ARCH=x86-64-v2"
    case " $only " in "  "|*" x86-64-v2 "*)
        old=build/platforms/x86-64-v2
        $make -s ARCH=x86-64-v2 "B=$old" $old/run_tests > /dev/null && $old/run_tests kernels > "$said"
        verdict $? "x86-64-v2: run_tests kernels: $(grep -m1 FAIL "$said" || tail -1 "$said")" ;;
    esac
fi
# gcc makes vectors of loops with fast_exp; without them such a loop takes three to five times as long. Where it does not, it names the line.
vectors() {
    o=build/platforms/vectors/F32/kernels/cpu arch=
    [ "$(uname -m)" != x86_64 ] || arch=ARCH=x86-64-v3
    $make "OPT=-O3 -fopt-info-vec-missed" $arch B=build/platforms/vectors $o/expert.o $o/attention.o $o/loss.o > "$work/build" 2>&1
    code=$?
    sed -n 's/^\([a-z/]*\.c\):\([0-9]*\):.*control flow in loop.*/\1 \2/p' "$work/build" | sort -u | while read -r file line; do
        sed -n "$line,$((line + 2))p" "$file" | grep -q 'fast_\|swiglu' && echo "$file:$line"
    done > "$work/missed"
    [ $code = 0 ] && [ ! -s "$work/missed" ]
    verdict $? "vectors: gcc vectorizes every loop with fast_exp$(sed 's/^/, but not /' "$work/missed" | tr -d '\n')"
}
case " $only " in "  "|*" vectors "*) if has gcc; then rm -rf build/platforms/vectors; vectors; else skip vectors gcc; fi ;; esac
# clang reads the pragmas of OpenMP without OpenMP, too; musl and i686 are gcc without it.
if has clang; then platform generic "ARCH=none NO_OMP=1 CC=clang"; else platform generic "ARCH=none NO_OMP=1"; fi
if has musl-gcc; then platform musl "CC=musl-gcc"; else skip musl "musl-gcc (musl-tools)"; fi
if has i686-linux-gnu-gcc; then platform i686 "CC=i686-linux-gnu-gcc"; else skip i686 gcc-i686-linux-gnu; fi
if has aarch64-linux-gnu-gcc && has qemu-aarch64; then platform aarch64 "CC=aarch64-linux-gnu-gcc" qemu-aarch64 -L /usr/aarch64-linux-gnu
else skip aarch64 "gcc-aarch64-linux-gnu or qemu-user"; fi
# Systems that are not here: compiled and linked, tests included. zig has the headers and libraries of these; `pip install ziglang` suffices.
if has zig; then zig=zig; elif python3 -m ziglang version > /dev/null 2>&1; then zig="python3 -m ziglang"; else zig=; fi
for target in aarch64-macos x86_64-macos x86_64-freebsd x86_64-openbsd; do
    if [ -z "$zig" ]; then skip $target "zig (PyPI: ziglang)"; continue; fi
    mkdir -p build/platforms && printf '#!/bin/sh\nexec %s cc -target %s "$@"\n' "$zig" $target > build/platforms/$target.cc
    chmod +x build/platforms/$target.cc
    build $target "CC=build/platforms/$target.cc" run_tests bench/bench_moe
done

# A path with spaces, and a machine without git, python, curl and bash.
case " $only " in "  "|*" poor "*)
    mkdir -p "$work/a b/tools"
    tar -c --exclude=./build --exclude=./.git . 2> /dev/null | tar -x -C "$work/a b"
    for tool in sh make gcc as ld ar sed cat mv mkdir rm mktemp cmp ln printf echo head grep uname nproc tr dirname basename cp tail wc touch; do
        has $tool && ln -s "$(command -v $tool)" "$work/a b/tools/$tool" 2> /dev/null
    done
    poor="${MAKE:-make} NO_CUDA=1 OPT=-O0"                 # what is built here is tested by the others
    ( cd "$work/a b" && rm -f train_moe infer_moe && PATH="$work/a b/tools" $poor -j${JOBS:-2} > ../build 2>&1 )
    verdict $? "poor: make in a path with spaces, without git, python, curl: $(tail -1 "$work/build" | cut -c1-80)"
    ( cd "$work/a b" && PATH="$work/a b/tools" ./train_moe -e m2:c32h4 -b 2 -t 32 -x 3 -m 2 -s 0 > ../said 2>&1 )
    verdict $? "poor: ./train_moe: $(grep '^weights' "$work/said")"
    # What objects are made with counts.
    compiled() { (cd "$work/a b" && $poor -n NO_FETCH=1 "$@" build/train_moe | grep -c 'echo "  cc'); }
    n=$(compiled); verdict $((n != 0)) "poor: a second make compiles nothing ($n)"
    for change in NO_OMP=1 ARCH=none CC=cc; do n=$(compiled $change); verdict $((n < 50)) "poor: $change compiles everything again ($n)"; done
    n=$(cd "$work/a b" && $poor -n NO_FETCH=1 DEBUG=1 train_moe | grep -c 'echo "  cc'); verdict $((n < 50)) "poor: so does DEBUG=1 ($n)"
esac
echo "$passed passed, $failed failed"
[ $failed = 0 ]
