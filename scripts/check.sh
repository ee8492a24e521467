#!/usr/bin/env bash
# The checks and tests of the whole repository, in one of these sizes. make runs them.
#
#   scripts/check.sh quick   the library, memory and file
#   scripts/check.sh test    all modules, and every service: what CI runs
#   scripts/check.sh long    the same, with all laws on all set-ups and longer histories
#   scripts/check.sh lint    the checks that only read the code
#
# With test and long a second argument selects one part of the tests: units (all that need no
# servers), a folder of conformance/containers, or others (the folders there that are not in
# $parts). Without it test runs all of $parts, and lint.
#
# The script reports every half minute what is running, shows each failure at once and again at the
# end, and ends with one verdict.
set -euo pipefail
cd "$(dirname "$0")/.."

size=${1:-}
part=${2:-}  # of the tests; empty: all, and lint
race=-race   # for vet and staticcheck too: their imports and those of the tests are then built once
patience=40m # for the tests of a package: a test that hangs is shown before CI ends the run
case $size in
quick | lint) race=-race=false ;; # needs no C compiler
test) ;;
long) patience=60m && export DLOCK_TEST_LONG=1 ;;
*) size= ;;
esac
readonly large='mysql postgres zookeeper redis moving etcd redlock' # services, the slowest first
readonly parts="units $large others"
case $part in
'') ;;
units | others) [[ $size == @(test|long) ]] || size= ;;
*) [[ $size == @(test|long) && -d conformance/containers/$part ]] || size= ;;
esac
if [[ -z $size ]]; then
  echo "usage: scripts/check.sh quick|lint, or scripts/check.sh test|long [PART]; parts: $parts" >&2
  exit 2
fi

modules=$(go work edit -json go.work | awk -F'"' '/"DiskPath"/ { print $4 }')
out=$(mktemp -d "${TMPDIR:-/tmp}/dlock-check-XXXXXX") # the complete output
bin=$PWD/.bin
# Each module is built on its own, as for its users, and nothing in the checkout changes. With
# -trimpath the build does not depend on the place of the checkout, so the next one finds it in the
# cache.
export GOWORK=off GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
# Without this, compilers and tests spend a fourth of the processor's time collecting garbage, and a
# program under the race detector sleeps for a second when it exits. The detector's reports would
# come between the lines of any test, so they have a file of their own.
export GOGC="${GOGC:-800}" GORACE="${GORACE:-atexit_sleep_ms=0} log_path='$out/race'"
# The helper of testcontainers cannot be pulled everywhere, and the tests remove their containers
# themselves. Published ports are on the loopback.
export TESTCONTAINERS_RYUK_DISABLED="${TESTCONTAINERS_RYUK_DISABLED:-true}"
export TESTCONTAINERS_HOST_OVERRIDE="${TESTCONTAINERS_HOST_OVERRIDE:-127.0.0.1}"
export DLOCK_TEST_LOGS="$out/servers" DLOCK_TEST_COMMAND="$bin/dlock"

if [[ $size == quick ]]; then modules=. && unset DLOCK_TEST_COMMAND; fi
readonly services=./conformance/containers bench=./bench # the modules that need servers
exec 3>&1                                                # for what is shown at once

since() { echo "$(((SECONDS - $1) / 60))m$(((SECONDS - $1) % 60))s"; }

# step NAME COMMAND…: a part of the run. If it fails its output is shown, and the next step runs.
step() {
  local name=$1 file="$out/${1//[^a-zA-Z]/-}" from=$SECONDS verdict='ok  '
  shift
  echo "$name" >"$file.now"
  if ! "$@" >"$file.log" 2>&1; then
    verdict=FAIL
    echo "$name" >>"$out/failed"
    tee -a "$out/failures" <"$file.log" >&3
  fi
  rm "$file.now"
  echo "$verdict  $name  $(since "$from")" | tee -a "$out/steps" >&3
}

# each COMMAND…: in all modules except those in $skip. A file of the step names the present one.
each() {
  local m status=0
  for m in $modules; do
    if [[ " ${skip:-} " == *" $m "* ]]; then continue; fi
    echo "$name: $m" >"$file.now"
    (cd "$m" && "$@") || { status=1 && echo "in $m"; }
  done
  return $status
}

tools() { go build -C internal/tools -o "$bin/" tool; }

compiler() {
  local cc
  cc=$(go env CC)
  [[ $(go env CGO_ENABLED) == 1 ]] && command -v "${cc%% *}" && return
  echo "the race detector needs cgo and a C compiler, and there is no ${cc%% *};" \
    "install gcc (or clang, and set CC)"
  return 1
}

images() {
  go run -C "$services" -race ./images 2>&1 | tee "$out/images" >&3 && return
  cat "$out/images" && return 1
}

formatted() {
  local files
  files=$(gofmt -l .) && [[ -z $files ]] && return
  echo "$files" && echo "not formatted: make fmt" && return 1
}

# A test run skips bench, which no program imports: staticcheck would read the code of all peers.
static() {
  local skip=
  if [[ $size == test ]]; then skip=$bench; fi
  GOFLAGS="$GOFLAGS $race" each "$bin/staticcheck" ./...
}

# system GOOS GOARCH: vets for users of another system. A test run reads only packages that have
# files for a system, and builds their imports without optimizations, which takes half as long.
system() {
  local skip="$bench $services" fast='-gcflags=all=-N -l' status=0 os
  local of='{{range .IgnoredGoFiles}}{{$.ImportPath}} {{.}}{{"\n"}}{{end}}'
  local -x GOOS=$1 GOARCH=$2 CGO_ENABLED=0
  if [[ $size == test ]]; then
    go vet "$fast" $(for os in linux darwin windows; do GOOS=$os go list -f "$of" ./...; done |
      awk 'NF && !/_test\.go$/ && !said[$1]++ { print $1 }') || status=1
  else
    fast=-gcflags=
    each go vet ./... || status=1
  fi
  # only the linker shows whether the driver can call the system's library
  go test "$fast" -c -o /dev/null ./driver/file || status=1
  return $status
}

lint() {
  step gofmt formatted
  step vet each go vet "$race" ./...
  step staticcheck static
  step 'go mod tidy' each go mod tidy -diff
  if [[ $size == quick ]]; then return; fi
  step 'vet for macOS' system darwin arm64
  step 'vet for Windows' system windows amd64
  if [[ $size != test ]]; then step 'vet for macOS on Intel' system darwin amd64; fi
}

# shown COMMAND…: runs a command that writes test events, and shows packages that ended and tests
# that failed.
shown() {
  "$@" | "$bin/gotestsum" --format pkgname-and-test-fails --format-icons text --hide-summary all \
    --format-hide-empty-pkg --jsonfile "$file.events" --raw-command -- cat >&3
}

# go_test MODULE ARGUMENT…: without vet, which is a step of its own, and without debug information.
go_test() {
  echo "$name: $1" >"$file.now"
  go test -C "$1" -json -vet=off -ldflags=-w -timeout="$patience" "${@:2}"
}

# unit: all tests without servers, two packages at once. In a long run those of bench need servers.
unit() {
  local m status=0
  for m in $modules; do
    if [[ $m == "$services" || $m == "$bench" && $size == long ]]; then continue; fi
    go_test "$m" -race -count=1 -p=2 ./... || status=1
  done
  return $status
}

# plain: tests that compute for too long with the race detector, which finds nothing there.
plain() {
  local status=0
  go_test . -count=1 ./driver ./conformance || status=1
  go_test . -count=1 -run='^(TestListOfManyNames|TestBytesOfALongQueue)$' ./driver/file || status=1
  return $status
}

# least: the laws with the least versions of the client libraries that the drivers require. The
# modules of one repository go together, so etcd's indirect requirements are replaced too.
least() {
  cat "$services/go.sum" driver/*/go.sum >"$out/least.sum"
  awk 'FILENAME !~ /^driver\// { print; next }
    { sub(/^require /, "") }
    FILENAME !~ /\/all\// && $2 ~ /^v[0-9]/ && $1 !~ /^github\.com\/dlock-go\// &&
      (!/\/\/ indirect/ || $1 ~ /^go\.etcd\.io\//) { print "replace " $1 " => " $1 " " $2 }
  ' "$services/go.mod" driver/*/go.mod >"$out/least.mod"
  go mod tidy -C "$services" -modfile="$out/least.mod" &&
    go_test "$services" -race -count=1 -p=4 -run=Conformance -modfile="$out/least.mod" ./...
}

# served: the packages of the part that need servers, in their order of start.
served() {
  case $part in
  '') printf './%s ' $large ... ;;
  others) go list -C "$services" ./... | grep -Ev "/(${large// /|})$" ;;
  *) echo "./$part/..." ;;
  esac
}

run() {
  # the run ends when its output has no reader (the terminal was closed, and only make got SIGHUP)
  (trap '' PIPE && while sleep 30; do
    echo "... $(since 0): $(running)" >&3 || kill -HUP $$
  done) &
  step 'the tools' tools
  if [[ $race == -race ]]; then step 'the C compiler' compiler; fi
  if [[ -e $out/failed ]]; then return; fi
  case $size in
  lint) lint ;;
  quick)
    lint
    step tests shown go_test . -p=8 ./...
    ;;
  *)
    # The command is built before everything that shares libraries with it, and once for all tests
    # that run it. Images of servers share nothing with it. The tests of a part get their images
    # themselves.
    if [[ -z $part ]]; then step 'images of the servers' images & fi
    step 'the command' go build -C cmd/dlock -race -o "$bin/dlock" .
    if [[ -z $part ]]; then wait $!; fi
    # Steps that compute come first: servers without a core of their own can stall for seconds, and
    # then promises that have a time are not kept. Two services keep two cores busy. The slowest
    # begin, so that no core waits for them at the end.
    if [[ -z $part ]]; then lint; fi
    if [[ -z $part || $part == units ]]; then
      step 'tests' shown unit
      step 'tests without the race detector' shown plain
    fi
    if [[ $part != units ]]; then
      step 'services' shown go_test "$services" -race -count=1 -p=2 -parallel=4 $(served)
    fi
    if [[ $size == test || -n $part ]]; then return; fi
    step 'laws with the least client libraries' shown least
    step 'bench' shown go_test "$bench" -count=1 ./... # with the machine to itself
    ;;
  esac
}

events() { cat /dev/null "$out"/*.events 2>/dev/null || true; }

# running: the present steps, and the longest-running test of each package.
running() {
  { cat "$out"/*.now 2>/dev/null || true; } | paste -s -d ';' -
  events | awk -F'"' '
    $14 != "Test" && $8 == "fail" { for (t in since) if (index(t, $12 " ") == 1) delete since[t] }
    $14 == "Test" && $8 ~ /^(run|cont)$/ {
      since[$12 " " $16] = substr($4, 12, 8)
      order[++n] = $12 " " $16
    }
    $14 == "Test" && $8 ~ /^(pause|pass|fail|skip)$/ { delete since[$12 " " $16] }
    END {
      for (t in since) for (p = t; sub(/\/[^\/]*$/, "", p); ) parts[p]
      for (i = 1; i <= n; i++) {
        split(order[i], name, " ")
        if (!(order[i] in since) || order[i] in parts || said[name[1]]++) continue
        sub(/.*\//, "", name[1])
        print "    " name[1] " " name[2] ", since " since[order[i]]
      }
    }'
}

# report: the end of a run. Where only the end of the output is kept, it is this, so failures are
# short: of the goroutines of a package that timed out, it has those that run code of this
# repository and are not a test that waits for its turn, each place once.
report() {
  local file verdict="ok, ${part:+$part alone, }in $(since 0)"
  for file in "$out"/*.events; do
    if [[ -s $file ]]; then "$bin/gotestsum" --format none --raw-command -- cat "$file" || true; fi
  done >"$out/summary"
  # also of a process that a test kills: its exit status does not show the race
  if sed -n '1,60p' "$out"/race.* >>"$out/failures" 2>/dev/null; then
    echo 'data races' >>"$out/failed"
  fi
  awk '/^=== (Failed|Errors)$/ { on = 1 } /^=== Skipped$|^DONE / { on = 0 } on' "$out/summary" |
    awk 'BEGIN { RS = ""; ORS = "\n\n" }
      /^goroutine / {
        place = $0
        gsub(/goroutine [0-9]+[^:\n]*|0x[0-9a-f]+/, "", place)
        if (!/github\.com\/dlock-go\/dlock/ || /testing\.\(\*T\)\.Parallel\(/ || seen[place]++) next
      }
      { print }' >>"$out/failures"
  echo
  sed -n '1,400p' "$out/failures"
  cat "$out/steps"
  events | laws | sort
  awk '/^=== / { on = $2 == "Skipped" || on && $2 == "SKIP:" }
    on && sub(/^ +[^ :]+\.go:[0-9]+: /, "") { n[$0]++ }
    END { for (why in n) print "skipped: " why " (" n[why] ")" }' "$out/summary" | sort
  sed -n 's/ (unknown)$/ (did not end)/; s/^=== FAIL: /FAILED: /p' "$out/summary"
  if [[ -e $out/failed ]]; then
    verdict="FAILED after $(since 0): $(paste -s -d , "$out/failed" | sed 's/,/, /g')"
    verdict+="; all output is in $out"
  else
    rm -rf "$out"
  fi
  echo && echo "$verdict"
  [[ $verdict == ok* ]]
}

# laws: where the laws ran (suites of services have a line of their own), and what ran again or
# could not run.
laws() {
  awk -F'"' '
    /"Output":"ran on / { sub(/.*"Output":"/, ""); sub(/\\n"}$/, ""); print }
    /proves nothing; once more/ && $16 !~ /^TestTrial/ && !again[$12, $16]++ {
      print "run again, since it failed after a stall: " $12 " " $16
    }
    match($0, /no way to start [a-z]+( again within [0-9a-z]+)?/) &&
      !again[why = substr($0, RSTART, RLENGTH)]++ {
      print "NOT RUN: there is " why ", and what needs it was not run"
    }
    $16 ~ /^TestConformance(InVirtualTime)?\/[^\/]+$/ && $8 ~ /^(pass|fail|skip)$/ {
      what = $12 ($16 ~ /InVirtualTime/ ? ", in virtual time" : "")
      n[what, $8]++
      all[what]
    }
    END {
      for (what in all)
        printf "ran on %s: %d laws passed, %d skipped, %d failed\n",
          what, n[what, "pass"], n[what, "skip"], n[what, "fail"]
    }'
}

# The steps have a process group of their own, which ends with this script, however it ends.
status=0 interrupted=
trap 'interrupted=1' INT TERM HUP
set -m
run </dev/null &
group=$!
set +m
wait $group || status=$?
trap '' INT TERM HUP # a second interrupt does nothing more: tests remove what they started
kill -TERM -- -$group 2>/dev/null || true
if [[ -n $interrupted ]]; then
  for ((i = 0; i < 50; i++)); do
    kill -0 -- -$group 2>/dev/null && sleep 0.2
  done
  kill -KILL -- -$group 2>/dev/null || true
  rm -rf "$out"
  echo && echo "INTERRUPTED after $(since 0)"
  exit 1
fi
if [[ $status != 0 ]]; then echo "scripts/check.sh itself" >>"$out/failed"; fi
report
