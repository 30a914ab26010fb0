#!/bin/sh
# Builds the test machine from Debian packages: a root file system with systemd
# (root.img), and its kernel and initramfs (vmlinuz, initrd). Usage, as root:
#
#	build.sh DIRECTORY [PACKAGE...]
#
# Does nothing when DIRECTORY holds what this script, as it is now, builds.
# KERNEL names the kernel's package, SUITE what to take it from besides.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
kernel=${KERNEL:-linux-image-amd64}
suite=${SUITE:-}
stamp=$(cat "$here"/* | sha256sum | cut -d' ' -f1)" $kernel $suite $*"
if [ -f "$out/stamp" ] && [ "$(cat "$out/stamp")" = "$stamp" ]; then
	exit 0
fi
mkdir -p "$out"
rm -f "$out/stamp"
root=$out/root
rm -rf "$root"
mirror=http://deb.debian.org/debian
sources="deb $mirror bookworm main
deb $mirror-security bookworm-security main"
[ -z "$suite" ] || sources="$sources
deb $mirror $suite main"
# The initramfs holds what finds the disk and no more: emulated machines are
# slow to unpack it.
mmdebstrap --quiet --variant=minbase --mode=root --format=directory \
	--aptopt='Apt::Install-Recommends "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d"; printf "MODULES=list\nCOMPRESS=lz4\n" >"$1/etc/initramfs-tools/conf.d/vm"' \
	--essential-hook='printf "virtio_pci\nvirtio_blk\next4\n" >"$1/etc/initramfs-tools/modules"' \
	--include="systemd,systemd-sysv,dbus,udev,kmod,lz4,$kernel,initramfs-tools,iproute2,nftables,iptables,ipset,ipvsadm,conntrack,runc,procps,e2fsprogs,uidmap,curl" \
	bookworm "$root" - <<-EOT
	$sources
	EOT
cp "$here/vm-agent" "$root/usr/local/sbin/vm-agent"
chmod 755 "$root/usr/local/sbin/vm-agent"
cp "$here/vm-agent.service" "$root/etc/systemd/system/"
cp "$here/20-vm.network" "$root/etc/systemd/network/"
ln -sf /etc/systemd/system/vm-agent.service "$root/etc/systemd/system/multi-user.target.wants/"
for unit in systemd-networkd.service; do
	mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
	ln -sf "/lib/systemd/system/$unit" "$root/etc/systemd/system/multi-user.target.wants/$unit"
done
# What only costs time at each start.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer getty@tty1.service; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
echo vm >"$root/etc/hostname"
printf '127.0.0.1 localhost\n10.0.2.15 vm\n' >"$root/etc/hosts"
echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
echo '/dev/vda / ext4 defaults,noatime 0 1' >"$root/etc/fstab"
: >"$root/etc/machine-id"
cp "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp "$root"/boot/initrd.img-* "$out/initrd"
rm -rf "$root"/boot/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
rm -f "$out/root.img"
mke2fs -q -t ext4 -O ^has_journal -L root -d "$root" "$out/root.img" 6G
rm -rf "$root"
echo "$stamp" >"$out/stamp"
