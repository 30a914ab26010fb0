#!/bin/sh
# Installs what berth needs from Debian and the machine does not have yet:
# runc to start containers, nft for the CNI plugins' masquerading, and the
# kernel tools tests use. Does nothing (and needs no network) when all is there.
set -eu
want=""
need() { # command, package
	command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || want="$want $2"
}
need runc runc
need nft nftables
if [ "${1:-}" = test ]; then
	need ip iproute2
	need mkfs.ext4 e2fsprogs
	need dbus-daemon dbus-daemon
	need iptables-nft iptables
	# To build a runc of the tests' own, one that knows user namespaces.
	need gcc gcc
	need pkg-config pkg-config
	[ -e /usr/include/seccomp.h ] || want="$want libseccomp-dev"
	# To look at the status page (test/e2e/ui), which `make test` leaves out.
	if [ "${BERTH_TESTS:-short}" = all ]; then
		need chromium chromium
		[ -d /usr/share/fonts/truetype/dejavu ] || want="$want fonts-dejavu-core"
	fi
fi
if [ "${1:-}" = vm ]; then
	need qemu-system-x86_64 "qemu-system-x86 ipxe-qemu"
	need mmdebstrap mmdebstrap
	need mke2fs e2fsprogs
fi
[ -n "$want" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
	echo "install: missing$want; run as root, or: apt-get install$want" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "install: missing$want, and this is not Debian: install them with your package manager" >&2
	exit 1
fi
echo "installing$want"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >/dev/null
# shellcheck disable=SC2086 # a list of packages
apt-get install -q -y --no-install-recommends $want >/dev/null
