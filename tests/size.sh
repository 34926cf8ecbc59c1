#!/bin/sh
# size.sh: lines of the tree by purpose, and limits that hold for ever. Run from the root of the repository.
#   sh tests/size.sh             prints the table (make size)
#   sh tests/size.sh -w          writes it into README.md, between the comments "size" and "/size"
#   sh tests/size.sh -c [TREE]   a line for each limit that is passed, each source file without a row, and each number
#                                of README.md that is off by more than 10 % and 50 lines (-w); exit code 1 if any
LC_ALL=C; export LC_ALL
cd "${2:-.}" || exit 2

path='^llmc/model/((moe|attention|route|pass)\.c|model\.h)$|^kernels/kernels\.h$'
path="$path|^kernels/cpu/(matmul|expert|route|attention|norm|rope|embed|loss|optimizer|sum|dropout)\.c\$"
speed='^kernels/(cuda|ladder)/|^kernels/cpu/(fp8|loopback|muon)\.|^kernels/comm\.h$|^llmc/ranks/'
speed="$speed|^llmc/model/(check|decode|exchange|fp8|layer_decode|muon|parallel|ranges|recompute|relay|replay|shards)\."
families='^llmc/files/(families|config_json|hf|export|load|pieces|modeling_smoe|safetensors)\.'
families="$families|^llmc/data/(bpe|chat|pattern[a-z_]*|codeset|tokenizer[a-z_]*|unicode)\."
product='^llmc/(run|files|base)/|^llmc/data/[a-tv-z]|^(train_moe|infer_moe)\.c$|^(scripts|data|\.ci)/|^Makefile$'
# Purpose, files (a regular expression; a file counts in the first row that it fits), and where to look.
rows() { cat <<END
an evening: the whole idea in one file; ^smoe\.c\$; \`smoe.c\`
a weekend: the same lines, ready for speed; $path; \`llmc/model/pass.c\` and what it calls, \`kernels/cpu/\`
speed: GPUs, ranks, 8 bits, decoding, memory; $speed; \`kernels/cuda/\`, \`kernels/ladder/\`, \`llmc/ranks/\`
what a model may have besides; ^kernels/|^llmc/model/; \`llmc/model/\`, \`kernels/cpu/\`
families: models' files, tokenizers, chat; $families; \`llmc/files/\`, \`llmc/data/\`
product: runs, data, checkpoints, reports; $product; \`llmc/run/\`, \`llmc/files/\`, \`llmc/data/\`, \`llmc/base/\`
a table of Unicode, generated; ^llmc/data/unicode_table\.h\$; \`llmc/data/unicode_table.h\`
tests; ^tests/; \`tests/\`
benchmarks and figures; ^(bench|docs)/; \`bench/\`, \`docs/figures/\`
END
}
# At most so many lines of which files.
limits() { cat <<END
680; smoe.c; ^smoe\.c\$
150; moe.c; ^llmc/model/moe\.c\$
150; attention.c; ^llmc/model/attention\.c\$
3000; the weekend's path; $path
150; the Makefile; ^Makefile\$
51400; C and CUDA of llmc and kernels, a generated table of 600 lines among them; ^(llmc|kernels)/.*\.(c|h|cu|cuh)\$
END
}
# Expressions that a file must not have.
without() { cat <<'END'
llmc/model/moe.c; fp8_|decode_|sink|value_|narrow
llmc/model/attention.c; fp8_|decode_|sink|value_|narrow
smoe.c; ^.{101}
Makefile; ^.{121}
END
}
files() {
    if [ -e .git ]; then git ls-files; else find . -type f | sed 's/^\.\///'; fi | grep -v '^build/' |
        grep -E '\.(c|h|cu|cuh|cpp|py|sh|js|css|html|sbatch|mk)$|^Makefile$|^\.ci/run$' | sort
}
count() {                                   # the rows' table, or the limits that are passed
    { "$1"; echo; files | xargs wc -l; } | awk -F '; ' -v what="$1" '
    function commas(n) { return n < 1000 ? n : sprintf("%d,%03d", n / 1000, n % 1000) }
    !list && NF { first[++rows] = $1; second[rows] = $2; third[rows] = $3; next }
    !list { list = 1; next }
    { split($0, part, " "); if (part[2] == "total") next; found = 0
      for (i = 1; i <= rows && !(what == "rows" && found); i++)
          if (part[2] ~ (what == "rows" ? second[i] : third[i])) { sum[i] += part[1]; found = 1 }
      all += part[1]
      if (what == "rows" && !found) print part[2] ": no row of tests/size.sh is for this file" }
    END {
      if (what == "rows") print "| purpose | lines | where |\n| --- | ---: | --- |"
      for (i = 1; i <= rows; i++)
          if (what == "rows" && sum[i]) print "| " first[i] " | " commas(sum[i]) " | " third[i] " |"
          else if (what == "limits" && sum[i] > first[i]) print second[i] ": " sum[i] " lines, at most " first[i]
      if (what == "rows") print "| all | " commas(all) " | |" }'
}
compare() {                                 # the table of README.md with the one that would be written
    { sed -n '/^<!-- size/,/^<!-- \/size/p' README.md; echo end; count rows; } | awk -F ' [|] ' '
    $0 == "end" { now = 1; next }
    NF < 3 { next }
    { n = $2; gsub(",", "", n) }
    !now { said[$1] = n; next }
    !($1 in said) { print "README.md: the table of sizes lacks a row (sh tests/size.sh -w): " $1; next }
    n > 0 { off = n > said[$1] ? n - said[$1] : said[$1] - n }
    n > 0 && off > 50 && off > n * .1 { print "README.md: " substr($1, 3) ": " said[$1] ", now " n " (size.sh -w)" }'
}
case $1 in
-c) faults=$(count limits; count rows | grep -v '^|'; [ ! -f README.md ] || compare
        without | while IFS= read -r line; do
            file=${line%%; *}; words=${line#*; }
            [ ! -f "$file" ] || grep -nE "$words" "$file" | sed 's/:.*//' |
                while read -r at; do echo "$file:$at: has $words"; done
        done)
    [ -z "$faults" ] || { echo "$faults"; exit 1; } ;;
-w) count rows > README.md.tmp
    sed -e '/^<!-- size/,/^<!-- \/size/{/^<!--/!d;}' README.md | sed '/^<!-- size/r README.md.tmp' > README.md.new
    mv README.md.new README.md; rm README.md.tmp ;;
*) count rows ;;
esac
