# Sourced by the scripts of this directory. Sets their directory, version, target and time stamp.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
dist=$root/dist
mkdir -p "$dist"
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
rust_target=$(rustc -vV | sed -n 's/^host: //p')
case $rust_target in
x86_64-unknown-linux-gnu) arch=amd64 ;;
aarch64-unknown-linux-gnu) arch=arm64 ;;
*)
    echo "cannot package for $rust_target: expected a glibc target of x86_64 or aarch64" >&2
    exit 1
    ;;
esac
# Every time stamp is that of the last commit, so that two builds of it are alike.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
export LC_ALL=C TZ=UTC
umask 022

# A tar archive of directory $1 on standard output that depends on nothing but names, modes and content.
archive() {
    tar --create --directory "$1" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
        --numeric-owner .
}

# The crates in the executables, one a line: "name v1.2.3 …". Neither build tools nor tests end up in them.
linked_crates() {
    cargo tree --locked --package larder-cli --target "$rust_target" --edges normal --prefix none --format '{p}'
}
