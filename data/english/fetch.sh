#!/bin/sh
# Puts train.jsonl and val.jsonl, English prose and manuals, next to this script: a page of Debian's documentation in each line.
#   sh data/english/fetch.sh [MEGABYTES]   of train.jsonl (default 300; all packages give about 310)
# The packages are taken from $MOE_DATA_DIR/english/*.deb (default of MOE_DATA_DIR: shared/data next to the repository) or else by apt-get
# download, about 450 MB; PACKAGES="one-doc other-doc" takes others than those below. Their HTML becomes text, without tags, scripts, menus,
# headers and footers. Lines on more than a twentieth of a package's pages are dropped, and so are pages most of whose text other pages
# have, or that are not UTF-8. One page in a hundred goes into val.jsonl, of those below 100 kB: three generated ones would be more than
# half of it. The order is a function of pages' names: the same packages give the same files. Needs dpkg-deb, tar and awk, 4 GB of disk
# while it works, 1.5 GB of memory, and ten minutes. Old files stay until the new ones are complete.
set -eu
LC_ALL=C; export LC_ALL
packages=${PACKAGES:-python3.11-doc linux-doc-6.1 racket-doc erlang-doc openjdk-17-doc python-pandas-doc python-scipy-doc python-sympy-doc sqlite3-doc
    postgresql-doc-15 apache2-doc git-doc debian-handbook sagemath-doc octave-doc maxima-doc gap-doc singular-doc ghc-doc rust-doc
    gnuplot-doc libboost1.74-doc r-doc-html debian-reference-en qtbase5-doc-html wx3.2-doc lilypond-doc-html libgtk-4-doc libgtk-3-doc
    libglib2.0-doc python-django-doc python-astropy-doc cmake-doc llvm-14-doc libstdc++-12-doc neutron-doc nova-doc cinder-doc
    keystone-doc ruby3.1-doc nodejs-doc kicad-doc-en systemtap-doc installation-guide-amd64 mercurial-common}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
stop() { echo "data/english: $*" >&2; exit 1; }
say() { echo "data/english: $*" >&2; }
has() { command -v "$1" > /dev/null 2>&1; }
[ $# -le 1 ] || { echo "usage: $0 [MEGABYTES]" >&2; exit 2; }
megabytes=${1:-300}
case $megabytes in ''|*[!0-9]*|0*) echo "usage: $0 [MEGABYTES], a whole number from 1; found '$megabytes'" >&2; exit 2 ;; esac
for tool in dpkg-deb tar awk find sort; do has $tool || stop "needs $tool, which is not installed"; done
work=$here/fetch.tmp.$$
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$work" || stop "cannot write to $here"
copies=${MOE_DATA_DIR:-$here/../../../shared/data}/english

# HTML to text. Records begin at "<": a tag, its attributes, and the text after it. A page is its name, its lines, and a form feed.
cat > "$work/text.awk" << 'AWK'
BEGIN {
    RS = "<"; FS = "\001"
    split("script style nav header footer aside head form button select noscript svg template math", names, " ")
    for (i in names) skips[names[i]] = 1
    split("p div li tr h1 h2 h3 h4 h5 h6 br dt dd table pre section blockquote ul ol dl title article hr caption", names, " ")
    for (i in names) blocks[names[i]] = 1
    split("sidebar sphinxsidebar navigation navbar navset navsettop navsetbottom tocset tocview nav-bar nav top-nav bottom-nav sub-nav topNav bottomNav " \
        "subNav toc breadcrumb breadcrumbs wy-breadcrumbs footer header related search menu headerlink anchor-link copyright rst-versions " \
        "rst-footer-buttons wy-nav-side wy-nav-top bd-sidebar prev-next-area page-toc navheader navfooter NAVHEADER NAVFOOTER nosearch skip-nav " \
        "toctree-wrapper langselect", names, " ")
    for (i in names) menus[names[i]] = 1
    split("lt < gt > quot \" nbsp _ apos ' mdash -- ndash - lsquo ' rsquo ' ldquo \" rdquo \" hellip ... rarr -> larr <- para _ copy (c) times x", names, " ")
    for (i = 1; i < 99 && names[i] != ""; i += 2) entity[names[i]] = names[i + 1]
    entity["nbsp"] = " "; entity["para"] = ""
    for (i = 0; i < 256; i++) byte[i] = sprintf("%c", i)
    HEX = "0123456789abcdef"
}
function character(n) {                 # UTF-8
    if (n == 160) return " "
    if (n == 182 || n < 9 || n > 65535) return ""
    if (n < 128) return byte[n]
    if (n < 2048) return byte[192 + int(n / 64)] byte[128 + n % 64]
    return byte[224 + int(n / 4096)] byte[128 + int(n / 64) % 64] byte[128 + n % 64]
}
function number(digits,   i, n) {       # of &#123; and &#x7b;
    if (digits !~ /^[xX]/) return digits + 0
    digits = tolower(substr(digits, 2))
    for (i = 1; i <= length(digits); i++) n = n * 16 + index(HEX, substr(digits, i, 1)) - 1
    return n
}
function decode(s,   out, name) {
    if (!index(s, "&")) return s
    while (match(s, /&#?[A-Za-z0-9]+;/)) {
        name = substr(s, RSTART + 1, RLENGTH - 2)
        out = out substr(s, 1, RSTART - 1)
        s = substr(s, RSTART + RLENGTH)
        if (substr(name, 1, 1) == "#") out = out character(number(substr(name, 2)))
        else if (name == "amp") out = out "&"
        else out = out (name in entity ? entity[name] : "&" name ";")
    }
    return out s
}
function add(s) {                       # text of the page
    if (!pre) { gsub(/[ \t\r\n\f]+/, " ", s); if (page ~ /[ \n]$/) sub(/^ /, "", s) }
    else gsub(/[\r\f]/, "", s)
    page = page s
    if (length(page) > 4000) { printf "%s", substr(page, 1, length(page) - 1); page = substr(page, length(page)) }
}
function flush() { if (named) print page "\n\f"; page = "" }
FNR == 1 { flush(); print FILENAME; named = 1; skip = ""; depth = pre = comment = 0; next }
comment { if (i = index($0, "-->")) { comment = 0; if (skip == "") add(decode(substr($0, i + 3))) } next }
substr($0, 1, 3) == "!--" {
    if (i = index($0, "-->")) { if (skip == "") add(decode(substr($0, i + 3))) } else comment = 1
    next
}
{
    end = index($0, ">")
    if (!end) next
    tag = substr($0, 1, end - 1)
    close_tag = sub(/^\//, "", tag)
    name = tolower(tag); sub(/[ \t\r\n\/].*/, "", name)
    if (skip != "") {
        if (name == skip && tag !~ /\/$/) depth += close_tag ? -1 : 1
        if (depth > 0) next
        skip = ""
    } else if (!close_tag && (name in skips || is_menu(tag)) && tag !~ /\/$/) {
        skip = name; depth = 1
        next
    }
    if (name == "pre") pre = !close_tag
    if (name in blocks) add_line()
    else if (name == "td" || name == "th") add(" ")
    add(decode(substr($0, end + 1)))
}
function is_menu(tag,   words, i, n) {   # by its class, id or role
    if (!match(tag, /(class|id|role)="[^"]*"/)) return 0
    n = split(substr(tag, RSTART, RLENGTH), words, /[ "=]+/)
    for (i = 2; i <= n; i++) if (words[i] in menus) return 1
    return 0
}
function add_line() { sub(/ $/, "", page); page = page "\n" }
END { flush() }
AWK

# Twice over the pages of a package: lines on many pages are no part of any; then a line of JSON for each page, behind its place in the order,
# its split and its bytes.
cat > "$work/pages.awk" << 'AWK'
BEGIN { FS = "\001"; for (i = 1; i < 256; i++) code[sprintf("%c", i)] = i; for (i = 1; i < 32; i++) control[i] = sprintf("%c", i); PRIME = 2147483647 }
function hash(text, h,   i) {           # in [0,1)
    for (i = 1; i <= length(text); i++) h = (h * 69069 + code[substr(text, i, 1)]) % PRIME
    for (i = 0; i < 4; i++) h = (h * 48271 + 11) % PRIME
    return h / PRIME
}
FNR == 1 { pass++; at_name = 1; pages = total }
at_name { name = $0; at_name = 0; total++; n = 0; next }
$0 == "\f" { at_name = 1; if (pass == 2) write(); next }
{ sub(/[ \t]+$/, "") }
pass == 1 { if ($0 != "" && last[$0] != total) { last[$0] = total; on[$0]++ } next }
$0 == "" ? n && line[n] != "" : on[$0] <= 3 + pages / 20 { line[++n] = $0 }
function escape(text,   i, out) {        # backslashes; gsub counts them differently from awk to awk
    while (i = index(text, "\\")) { out = out substr(text, 1, i) "\\"; text = substr(text, i + 1) }
    return out text
}
function is_utf8(text) {                 # what is left without its characters is ASCII
    gsub(/[\302-\337][\200-\277]|\340[\240-\277][\200-\277]|\355[\200-\237][\200-\277]|[\341-\354\356\357][\200-\277][\200-\277]/, "", text)
    gsub(/\360[\220-\277][\200-\277][\200-\277]|[\361-\363][\200-\277][\200-\277][\200-\277]|\364[\200-\217][\200-\277][\200-\277]/, "", text)
    return text !~ /[\200-\377]/
}
function write(   i, long, old, text, bytes, high) {
    for (i = 1; i <= n; i++) {
        text = text line[i] "\n"
        if (length(line[i]) < 60) continue
        long += length(line[i])
        if (seen[line[i]]++) old += length(line[i])
    }
    bytes = length(text)
    high = gsub(/[\200-\377]/, "&", text)
    if (bytes < 500 || long < bytes / 5 || old > long / 2 || high > bytes / 20) return
    if (high && !is_utf8(text)) return
    text = escape(text); gsub(/"/, "\\\"", text); gsub(/\n/, "\\n", text); gsub(/\t/, "\\t", text)
    for (i = 1; i < 32; i++) if (index(text, control[i])) gsub(control[i], " ", text)
    split_name = hash(name, 3) < 0.01 && bytes < 100000 ? "val" : "train"
    printf "%.9f %s %d {\"text\": \"%s\"}\n", hash(name, 2), split_name, length(text) + 14, text
}
AWK

found=0
for package in $packages; do
    archive=
    for file in "$copies/$package"_*.deb; do [ ! -f "$file" ] || archive=$file; done
    if [ -z "$archive" ] && has apt-get; then
        say "downloading $package"
        (cd "$work" && apt-get -q download "$package" > apt.log 2>&1) || { say "no $package here: $(tail -1 "$work/apt.log")"; continue; }
        for file in "$work/$package"_*.deb; do archive=$file; done
    fi
    [ -n "$archive" ] || { say "no $package: not in $copies, and no apt-get"; continue; }
    mkdir "$work/x"
    dpkg-deb --fsys-tarfile "$archive" | tar -xf - -C "$work/x" --wildcards --no-anchored '*.html' '*.htm' 2> /dev/null || true
    # Of translated manuals the English pages.
    (cd "$work/x" && find . -type f \( -name '*.html' -o -name '*.htm' \) ! -path '*/[a-df-z][a-z]-[A-Z][A-Z]/*' ! -path '*/[a-df-z][a-z]/*' ! -name '*[ 	
]*' ! -name '*genindex*' ! -name 'search*' | sort > ../files
        xargs awk -f ../text.awk < ../files > ../pages)
    if [ -s "$work/pages" ]; then
        awk -f "$work/pages.awk" "$work/pages" "$work/pages" >> "$work/lines"
        found=$((found + 1))
    fi
    say "$package: $(wc -l < "$work/files") pages, in all $(wc -c < "$work/lines") bytes"
    rm -rf "$work/x" "$work/pages" "$work"/*.deb
done
[ $found -gt 0 ] || stop "no package was found: their files belong into $copies, or apt-get has to reach Debian"
say "writing"
sort "$work/lines" | awk -v most="$megabytes" -v to="$work" '
    { split_name = $2; bytes = $3 + 1 }
    split_name == "train" && written + bytes > most * 1000000 { next }
    split_name == "train" { written += bytes }
    { print substr($0, index($0, "{")) > (to "/" split_name ".jsonl") }'
[ -s "$work/val.jsonl" ] && [ -s "$work/train.jsonl" ] || stop "$megabytes MB: no page fits"
mv -f "$work/train.jsonl" "$work/val.jsonl" "$here"
say "train.jsonl $(wc -c < "$here/train.jsonl") bytes, val.jsonl $(wc -c < "$here/val.jsonl") bytes, from $found packages"
