# sanitizers.sh: what addresses.sh and races.sh share, read by both with `.`: the folder of the build ($1), a folder for the runs, how
# a command is judged. They set `found`, which begins a report, and the options by which reports go to $work/report.
set -u
build=$(cd "$1" && pwd) || exit 2
work=$(mktemp -d) || exit 2
first= second= bad=0
trap 'for process in $first $second; do kill -9 $process 2> /dev/null; done; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
judge() {                               # judge WHAT OK: OK: did the command end as it should? true or false
    reports=$(cat "$work"/report.* 2> /dev/null | grep -c "$found")
    [ "$reports" = 0 ] && $2 || { bad=1; cat "$work"/report.* 2> /dev/null | head -60; tail -5 "$work"/log*; }
    rm -f "$work"/report.*
    printf '%-50s %s reports%s\n' "$1" "$reports" "$($2 || echo ', and it failed')"
}
