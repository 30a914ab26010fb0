#!/bin/bash
# Builds CRI-O from its Go module, starts it with files of its own below a
# temporary directory, and runs against it the suites that containerd passes in
# `make live`. Needs root, runc, gcc and conmon (installed if missing).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
go=${GO:-go}
dir=$(mktemp -d /tmp/crio.XXXX)
pids=()
finish() {
	for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
	for p in "${pids[@]}"; do wait "$p" 2>/dev/null || true; done
	awk -v d="$dir/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r -n 1 umount -l
	ip link delete criot0 2>/dev/null || true
	rm -rf "$dir"
}
trap finish EXIT

command -v conmon >/dev/null || apt-get install -y --no-install-recommends conmon >/dev/null
tags="containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs btrfs_noversion"
(cd "$root/test/tools/crio" && CGO_ENABLED=1 $go build -tags "$tags" -o "$dir/" github.com/cri-o/cri-o/cmd/crio)
pinns=$(cd "$root/test/tools/crio" && $go list -m -f '{{.Dir}}' github.com/cri-o/cri-o)/pinns/src
gcc -O2 -o "$dir/pinns" "$pinns/pinns.c" "$pinns/sysctl.c"
(cd "$root/test/tools" && $go build -o "$dir/" ./registry ./pull)

serve() { # image: prints where its registry listens
	"$dir/registry" -archive "$root/bin/images/$1.tar" >"$dir/$1.address" &
	pids+=($!)
	until [ -s "$dir/$1.address" ]; do read -r -t 0.05 <> <(:) || true; done
}
mkdir -p "$dir/home/.config/containers" "$dir/cni" "$dir/none"
for image in toolbox pause; do
	serve $image
	cat >>"$dir/home/.config/containers/registries.conf" <<-END
		[[registry]]
		prefix = "berth.dev/$image"
		location = "$(cat "$dir/$image.address")/open/toolbox"
		insecure = true
	END
done
echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$dir/policy.json"
cat >"$dir/cni/10-bridge.conflist" <<END
{"cniVersion":"1.0.0","name":"criot","plugins":[{"type":"bridge","bridge":"criot0","isGateway":true,"hairpinMode":true,"ipam":{"type":"host-local",
"ranges":[[{"subnet":"10.231.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"$dir/cnidata"}},{"type":"portmap","capabilities":{"portMappings":true}}]}
END
cat >"$dir/storage.conf" <<END
[storage]
driver = "overlay"
graphroot = "$dir/root"
runroot = "$dir/runroot"
END
cat >"$dir/crio.conf" <<END
[crio]
root = "$dir/root"
runroot = "$dir/runroot"
storage_driver = "overlay"
log_dir = "$dir/logs"
version_file = "$dir/version"
version_file_persist = "$dir/version-persist"
clean_shutdown_file = "$dir/clean"
[crio.api]
listen = "$dir/crio.sock"
[crio.runtime]
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
pinns_path = "$dir/pinns"
namespaces_dir = "$dir/ns"
container_exits_dir = "$dir/exits"
container_attach_socket_dir = "$dir/attach"
default_runtime = "runc"
enable_pod_events = true
[crio.runtime.runtimes.runc]
runtime_path = "$(command -v runc)"
runtime_root = "$dir/runc"
monitor_path = "$(command -v conmon)"
monitor_cgroup = "pod"
[crio.image]
pause_image = "berth.dev/pause:1"
pause_command = "/pause"
signature_policy = "$dir/policy.json"
[crio.network]
network_dir = "$dir/cni"
plugin_dirs = ["$root/bin"]
[crio.nri]
enable_nri = false
END
HOME="$dir/home" CONTAINERS_STORAGE_CONF="$dir/storage.conf" "$dir/crio" --config "$dir/crio.conf" --config-dir "$dir/none" >"$dir/crio.log" 2>&1 &
pids+=($!)
"$dir/pull" "unix://$dir/crio.sock" berth.dev/toolbox:1 berth.dev/pause:1 || { tail -20 "$dir/crio.log"; exit 1; }
cd "$root"
BERTH_TEST_CRI="unix://$dir/crio.sock" $go test -count=1 -p 1 ${TESTFLAGS:-} ./internal/agent/runtime/contract ./internal/agent
