#!/usr/bin/env bash
# Installs what the tests need, builds the binary and runs every suite. Usage: tests/run.sh [rust] [python] [js]
#
# The last line is `N passed, N failed, N skipped` over all suites. The exit code is 0 only when nothing failed, nothing
# was skipped, every suite ran something, and neither a process nor a mount nor a file of a test is left.
set -uo pipefail
cd "$(dirname "$0")/.."

root=$PWD
target=$root/target/sdk # where the SDKs and their interpreters are installed
export FOUNTAIN_BIN=$root/target/debug/fountain
export SPRITES_JS_SDK=$target/js/node_modules/@fly/sprites/dist/index.js
export PYTHONDONTWRITEBYTECODE=1
# How many Python workers: the tests wait more than they compute.
workers=4

passed=0 failed=0 skipped=0
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(rust python js)

die() {
  echo "tests/run.sh: $*" >&2
  exit 2
}

say() { printf '\n=== %s\n' "$*"; }

wants() { [[ " ${suites[*]} " == *" $1 "* ]]; }

for suite in "${suites[@]}"; do
  [[ $suite =~ ^(rust|python|js)$ ]] || die "unknown suite '$suite': choose among rust, python, js"
done

# need PROGRAM PACKAGE: installs the Debian package when the program is missing.
need() {
  command -v "$1" >/dev/null || install_package "$2"
}

install_package() {
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  say "installing the Debian package $1"
  { "${as_root[@]}" apt-get update -q && "${as_root[@]}" apt-get install -qy --no-install-recommends "$1"; } >&2 ||
    die "the Debian package '$1' is missing and could not be installed: install it and run this again"
}

install_tools() {
  command -v cargo >/dev/null || die "cargo is missing: install Rust 1.95 or newer from https://rustup.rs"
  need cc build-essential
  need git git
  need zstd zstd
  need python3 python3
}

# A finished installation leaves a stamp that names what it was made from, so that the next run starts at once.
install_python() {
  local wanted stamp=$target/python/.installed
  wanted=$(python3 --version; cat tests/sdk/python/requirements.txt)
  [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
  say "installing the Python SDK"
  rm -rf "$target/python"
  if ! python3 -m venv "$target/python" 2>/dev/null; then
    rm -rf "$target/python"
    install_package python3-venv
    python3 -m venv "$target/python" || die "python3 cannot make a virtual environment"
  fi
  "$target/python/bin/pip" install -q --disable-pip-version-check -r tests/sdk/python/requirements.txt ||
    die "the Python SDK could not be installed"
  printf '%s\n' "$wanted" >"$stamp"
}

install_js() {
  local stamp=$target/js/.installed
  cmp -s "$stamp" tests/sdk/js/package-lock.json && return
  need npm npm
  say "installing the JavaScript SDK and its Node"
  rm -rf "$target/js"
  mkdir -p "$target/js"
  cp tests/sdk/js/package.json tests/sdk/js/package-lock.json "$target/js/"
  # npm runs on the system's Node and warns that the SDK wants a newer one: that one is in the same lock file.
  (cd "$target/js" && npm ci --no-audit --no-fund --loglevel error) || die "the JavaScript SDK could not be installed"
  cp tests/sdk/js/package-lock.json "$stamp"
}

# count SUITE LOG EXIT-CODE: adds up the lines of the form `N passed, N failed, N skipped` that stand in the log.
count() {
  local suite=$1 log=$2 code=$3 p f s
  p=$(sum "$log" passed) f=$(sum "$log" failed) s=$(sum "$log" skipped)
  [ "$suite" = rust ] && s=$(put_aside)
  # A suite that ends badly without naming a failed test, or that ran none, is itself a failure.
  if [ "$f" = 0 ] && { [ "$code" != 0 ] || [ "$p" = 0 ]; }; then f=1; fi
  printf '\n--- %s: %d passed, %d failed, %d skipped\n' "$suite" "$p" "$f" "$s"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# sum LOG WORD: the sum of the numbers before WORD in the summary lines of nextest, of cargo test and of our own suites.
sum() {
  sed 's/\x1b\[[0-9;]*m//g' "$1" |
    sed -nE "/^( *Summary \[|test result: |(python|js): )/ s/^.* ([0-9]+) $2.*/\1/p" |
    awk '{ total += $1 } END { print total + 0 }'
}

run_rust() {
  say "Rust tests"
  if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --no-fail-fast && cargo test --locked --doc
  else
    cargo test --locked --no-fail-fast
  fi
}

# How many Rust tests are ignored that are no measurements: those say so in their reason and are run by hand.
put_aside() {
  grep -rh --include='*.rs' '#\[ignore' src tests | grep -vc '"a measurement'
}

run_python() {
  say "sprites-py"
  (cd tests/sdk/python && "$target/python/bin/python" -m pytest -q -n "$workers")
}

run_js() {
  say "@fly/sprites"
  "$(echo "$target"/js/node_modules/node-linux-*/bin/node)" tests/sdk/js/main.mjs
}

# Processes of the tested binary, one line each.
daemons() {
  local process
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/exe" 2>/dev/null)" = "$FOUNTAIN_BIN" ] || continue
    echo "${process#/proc/} $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)"
  done
}

# What the tests of this run left behind. Each line is one failure.
leftovers() {
  local process
  comm -13 <(sort <<<"$before") <(daemons | sort) | sed 's/^/left running: /'
  for process in /proc/[0-9]*; do
    [[ $(readlink "$process/cwd" 2>/dev/null) == "$TMPDIR"* ]] || continue
    echo "left running in a test's folder: ${process#/proc/} $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)"
  done
  grep -F " $TMPDIR" /proc/mounts | sed 's/^/left mounted: /'
  find "$TMPDIR" -mindepth 1 -maxdepth 1 -printf 'left in the temporary folder: %f\n'
}

install_tools
wants python && install_python
wants js && install_js

say "building"
cargo build --locked || die "the build failed"

# Every test makes its folders here, under a short name: paths of sockets are at most 107 bytes.
TMPDIR=$(mktemp -d /tmp/ft.XXXXXX) || die "no temporary folder"
chmod 1777 "$TMPDIR" # as /tmp is: some tests work in it as another user
export TMPDIR
logs=$(mktemp -d "$root/target/test-logs.XXXXXX")
trap 'rm -rf "$TMPDIR" "$logs"' EXIT
before=$(daemons)

for suite in rust python js; do
  wants "$suite" || continue
  "run_$suite" 2>&1 | tee "$logs/$suite"
  count "$suite" "$logs/$suite" "${PIPESTATUS[0]}"
done

left=$(leftovers)
if [ -n "$left" ]; then
  say "left behind"
  echo "$left"
  failed=$((failed + $(wc -l <<<"$left")))
fi
[ "$skipped" = 0 ] || echo "skipped tests count as failures: this machine can run them all"

printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ] && [ "$skipped" = 0 ] && [ "$passed" -gt 0 ]
