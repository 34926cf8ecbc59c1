#!/usr/bin/env python3
"""prepare.py SOURCE TO: copies kernels/ and makes of its CUDA files C++ for the emulator. Functions that contain assembly are left out
(instructions.h has them), launches call the emulator, and shared memory is static: one block runs at a time."""
import glob, re, shutil, sys

LAUNCHES = """#define LAUNCH(kernel, grid, block, bytes, ...) do { \\
    const dim3 grid_ = dim3(grid); \\
    if (grid_.x && grid_.y && grid_.z) emulator::launch(grid_, dim3(block), bytes, [=] { (kernel)(__VA_ARGS__); }); \\
    } while (0)
#define LAUNCH_CLUSTER(kernel, grid, cluster, block, bytes, ...) LAUNCH(kernel, grid, block, bytes, __VA_ARGS__)
#define LAUNCH_EARLY(kernel, grid, block, bytes, ...) LAUNCH(kernel, grid, block, bytes, __VA_ARGS__)

"""


def without_assembly(text):
    """Functions begin and end at the left margin, or are one line."""
    def keep(function):
        return "" if re.search(r"\basm\b|\bWGMMA", function[0]) else function[0]
    return re.sub(r"^(?:template ?<.*>\s)?__device__ static inline(?:[^\n;]*\{.*\}|[^;{]*\{\n(?:(?!\}).*\n)*\})\n", keep, text, flags=re.M)


def main(source, to):
    shutil.rmtree(f"{to}/kernels", ignore_errors=True)
    shutil.copytree(f"{source}/kernels", f"{to}/kernels")
    for path in glob.glob(f"{to}/kernels/cuda/**/*.cu*", recursive=True):
        with open(path) as f:
            text = f.read()
        text = re.sub(r'asm volatile\("" :[^;]*;', ";", text)       # only for the compiler's eyes
        text = without_assembly(text)
        text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+) (\w+)\[\];", r"\1 *const \2 = (\1 *)emulator::shared;", text)
        text = re.sub(r"__shared__ (alignas\(\d+\) )?", r"\1static ", text)
        if path.endswith("/impl.cuh"):
            begin, end = text.index("// LAUNCH(kernel, grid"), text.index("// Each file fills its part of the table")
            text = text[:begin] + LAUNCHES + text[end:]
        if path.endswith("/ptx.cuh"):
            text = text.replace('#include "impl.cuh"\n', '#include "impl.cuh"\n#include "instructions.h"\n')
            text = re.sub(r".* shared_address\(.*\n", "", text)
        if path.endswith("/wgmma.cuh"):
            text = re.sub(r"enum Major .*\n", "", text)
        with open(path, "w") as f:
            f.write(text)


main(*sys.argv[1:])
