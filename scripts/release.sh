#!/usr/bin/env bash
# Makes a release of all modules of the repository, as docs/release.md describes it.
#
#   scripts/release.sh --dry-run v0.1.0   everything but the tags
#   scripts/release.sh v0.1.0             the tags too, in this clone; it pushes nothing
#
# With --proxy FOLDER the release is kept as a module proxy of files. It is made in a clone: this
# repository changes only after everything was done and tried there.
set -euo pipefail

die() { echo "release: $*" >&2 && exit 1; }

dry='' proxy=''
while [[ ${1:-} == --* ]]; do
  case $1 in
  --dry-run) dry=1 && shift ;;
  --proxy) proxy=${2:?"--proxy takes a folder"} && shift 2 ;;
  *) die "unknown flag $1" ;;
  esac
done
[[ $# == 1 ]] || die "usage: scripts/release.sh [--dry-run] [--proxy folder] vX.Y.Z"
version=$1
number='(0|[1-9][0-9]*)' part='(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)'
[[ $version =~ ^v[01]\.$number\.$number(-$part(\.$part)*)?$ ]] ||
  die "$version is not a version: want v0.Y.Z or v1.Y.Z (a greater one changes the modules' paths)"

dir=$(mktemp -d "${TMPDIR:-/tmp}/dlock-release-XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP
[[ $proxy == /* ]] || proxy=${proxy:+$PWD/$proxy}
proxy=${proxy:-$dir/proxy}
repo=$(git rev-parse --show-toplevel)
clone=$dir/clone
module=github.com/dlock-go/dlock
changes=$(git -C "$repo" status --porcelain)
if [[ -n $changes && -z $dry ]]; then die "there are uncommitted changes:"$'\n'"$changes"; fi
if [[ -n $changes ]]; then echo "note: uncommitted changes are not part of this dry run"; fi
git clone -q "$repo" "$clone"
cd "$clone"

# As git sorts versions: one with a suffix comes before the one without it.
git show-ref --quiet --verify "refs/tags/$version" && die "$version is not newer: it exists already"
git tag "$version"
newest=$(git -c versionsort.suffix=- tag --list 'v[0-9]*' --sort=-version:refname | head -n 1)
[[ $newest == "$version" ]] || die "$version is not newer than $newest"
git tag -d "$version" >/dev/null

# The version gets the text under Unreleased. main gets this commit, and nothing else.
awk -v head="## ${version#v} - $(date -u +%Y-%m-%d)" '
  /^## / { on = /^## Unreleased$/ }
  { print }
  /^## Unreleased$/ { print "\n" head }
  on && !/^## / && NF { news = 1 }
  END { exit !news }' CHANGELOG.md >"$dir/changelog" ||
  die "CHANGELOG.md has nothing under ## Unreleased"
cat "$dir/changelog" >CHANGELOG.md
git commit -q --all --message "Changelog of $version"
git branch kept-of-release
echo "ok  changelog"

# A program imports no tests of services and no tools.
unreleased='^(bench|conformance/containers|examples|internal/tools)$|(^|/)testdata(/|$)'

path() { if [[ $1 == . ]]; then echo $module; else echo "$module/$1"; fi; }
tag() { if [[ $1 == . ]]; then echo "$version"; else echo "$1/$version"; fi; }
# required and replaced are the modules that a go.mod requires, or replaces.
required() { awk '{ sub(/^require /, "") } $2 ~ /^v[0-9]/ { print $1 }' "$1/go.mod"; }
replaced() { awk '{ sub(/^replace /, "") } / => / { print $1 }' "$1/go.mod"; }
ours() { grep -E "^$module(/|\$)" || true; }

# The modules, each after those that it requires.
all=$(git ls-files go.mod '*/go.mod' | sed 's#/go.mod$##; s#^go.mod$#.#' | grep -Ev "$unreleased")
for m in $all; do
  [[ $(awk '$1 == "module" { print $2 }' "$m/go.mod") == "$(path "$m")" ]] ||
    die "the module in $m has a path that does not match its folder"
  foreign=$(replaced "$m" | grep -Ev "^$module(/|\$)") &&
    die "$m replaces $foreign, which has no effect for its users"
  echo "$m $m"
  for r in $(required "$m" | ours); do
    r=${r#"$module"} && r=${r#/}
    grep -qx "${r:-.}" <<<"$all" || die "$m requires $r, which is not released"
    echo "${r:-.} $m"
  done
done >"$dir/pairs"
modules=$(tsort "$dir/pairs") || die "these modules require each other: $modules"
echo "ok  modules"

# Modules of this repository come from the clone and its tags, whatever the hosting has. All others
# come from their usual source, but are not downloaded again.
others=file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)
export GOWORK=off GOFLAGS='-modcacherw -trimpath' GOPROXY=$others GOPRIVATE='' GONOPROXY=$module
export GONOSUMDB=$module GOVCS=$module:git GIT_CONFIG_COUNT=1 GIT_CONFIG_VALUE_0=https://$module
export GIT_CONFIG_KEY_0=url.file://$clone.insteadOf GOMODCACHE=$dir/modules

# sums MODULE: its lines in a go.sum. Outside of a module nothing else is looked up.
sums() {
  (cd "$dir" && go mod download -json "$1@$version") | awk -F'"' -v at="$1 $version" '
    $2 == "Sum" { print at " " $4 }
    $2 == "GoModSum" { print at "/go.mod " $4 }
    $2 == "Error" { print >"/dev/stderr" }'
}

# The modules require each other by version. The sums of a module are known when it is tagged, and
# do not change when other modules do: no module has the files of another one. main keeps the
# replace lines: the commit that is tagged is beside it.
git checkout -q --detach
for m in $modules; do
  edits=() lines=
  for r in $(replaced "$m"); do edits+=("-dropreplace=$r"); done
  for r in $(required "$m" | ours); do
    edits+=("-require=$r@$version")
    lines+=$(sums "$r")$'\n'
  done
  if [[ ${#edits[@]} != 0 ]]; then go -C "$m" mod edit "${edits[@]}"; fi
  if [[ -n $lines ]]; then
    { cat "$m/go.sum" 2>/dev/null || true; printf %s "$lines"; } |
      LC_ALL=C sort -s -k1,1 >"$dir/sum"
    cat "$dir/sum" >"$m/go.sum"
  fi
  git add --all
  git commit -q --allow-empty --message "$(path "$m") $version"
  git tag "$(tag "$m")"
done
git reset -q --soft kept-of-release # one commit with everything
git commit -q --message "Release $version: the modules require each other by version"
refs=()
for m in $modules; do
  refs+=("refs/tags/$(tag "$m"):refs/tags/$(tag "$m")")
  git tag --force --annotate --message "$(path "$m") $version" "$(tag "$m")" >/dev/null
done
echo "ok  tags"

# As a proxy would read it from the tags, with the sums that the modules require.
export GOMODCACHE=$dir/again
for m in $modules; do
  want=$(sums "$(path "$m")")
  for o in $modules; do
    required "$o" | grep -qx "$(path "$m")" || continue
    while read -r line; do
      grep -qxF "$line" "$o/go.sum" || die "$o/go.sum does not have $line"
    done <<<"$want"
  done
done
mkdir -p "$proxy"
cp -R "$GOMODCACHE/cache/download/." "$proxy"
echo "ok  proxy of files"

# As a user does it that has the proxy and nothing else of this repository.
export GOBIN=$dir/bin GOMODCACHE=$dir/installed GONOPROXY=none GOPROXY=file://$proxy,$others
(cd "$dir" && go install "$module/cmd/dlock@$version")
[[ $("$dir/bin/dlock" --version) == *"$version"* ]] || die "dlock --version does not show $version"
echo "ok  installation"

if [[ -n $dry ]]; then echo "a dry run: nothing was tagged" && exit; fi
cd "$repo"
git fetch -q "$clone" "${refs[@]}"
git fetch -q "$clone" kept-of-release
git merge -q --ff-only FETCH_HEAD
echo "tagged. To publish everything at once:"
echo
echo "	git push --atomic origin HEAD $(for m in $modules; do tag "$m"; done | paste -s -d ' ' -)"
