#!/usr/bin/env bash
# Checks every module of the repository: formatting, go vet and staticcheck; with "test", also every test under the race
# detector. Usage: scripts/check.sh lint|test
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-}
case $what in lint | test) ;; *) echo "usage: $0 lint|test" >&2; exit 2 ;; esac

fail() { echo "FAILED: $*" >&2; exit 1; }

command -v go >/dev/null || fail "there is no go in the PATH; Go 1.26 is needed (https://go.dev/dl)"
if [ "$what" = test ]; then
	read -r cc _ <<<"$(go env CC)"
	{ [ "$(go env CGO_ENABLED)" = 1 ] && command -v "$cc" >/dev/null; } ||
		fail "the race detector needs cgo and a C compiler, and there is no ${cc:-gcc}; install gcc (or clang, and set CC)"
fi

# The servers of conformance/containers: testcontainers' own helper cannot be pulled everywhere, and the tests remove what they start
# themselves; published ports are on the loopback. What ran on what is said at the end.
export TESTCONTAINERS_RYUK_DISABLED=${TESTCONTAINERS_RYUK_DISABLED:-true}
export TESTCONTAINERS_HOST_OVERRIDE=${TESTCONTAINERS_HOST_OVERRIDE:-127.0.0.1}
DLOCK_TEST_REPORT=$(mktemp)
export DLOCK_TEST_REPORT
trap 'rm -f "$DLOCK_TEST_REPORT"' EXIT

# Each module has to stand on its own, as it does for its users: a workspace would hide a requirement that is missing.
export GOWORK=off

echo "== gofmt"
unformatted=$("$(go env GOROOT)/bin/gofmt" -l .)
[ -z "$unformatted" ] || fail "not formatted (make fmt):"$'\n'"$unformatted"

echo "== building staticcheck"
go build -C internal/tools -o "$PWD/.bin/" honnef.co/go/tools/cmd/staticcheck || fail "building staticcheck"

summary=()
modules=$(find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*' -exec dirname {} + | sed 's|^\./||' | sort)
for dir in $modules; do
	if [ -z "$(go list -C "$dir" ./... 2>/dev/null || echo broken)" ]; then
		summary+=("ok  $dir (no packages)")
		continue
	fi
	echo "== $dir: vet, staticcheck"
	go vet -C "$dir" ./... || fail "go vet in $dir"
	(cd "$dir" && "$OLDPWD/.bin/staticcheck" ./...) || fail "staticcheck in $dir"
	ran="gofmt, vet, staticcheck"
	if [ "$dir" = . ]; then # the library has to compile for its users on other systems
		for os in darwin windows; do
			echo "== $dir: vet for $os"
			GOOS=$os CGO_ENABLED=0 go vet ./... || fail "go vet for $os in $dir"
		done
		ran+=", vet for darwin and windows"
	fi
	if [ "$what" = test ]; then
		echo "== $dir: test -race"
		go test -C "$dir" -race -timeout 60m $([ "$dir" != conformance/containers ] || echo -count=1) ./... || fail "tests in $dir"
		ran+=", tests with -race"
	fi
	summary+=("ok  $dir ($ran)")
done

echo
printf '%s\n' "${summary[@]}"
[ ! -s "$DLOCK_TEST_REPORT" ] || { echo; cat "$DLOCK_TEST_REPORT"; }
