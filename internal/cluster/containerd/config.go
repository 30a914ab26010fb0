// Package containerd runs the container runtime that berth brings along: it
// writes its configuration, starts it in a session of its own so that it and
// the containers outlive berth, finds it again after a restart, starts it
// again when it dies, and fills it with the images of the bundle.
package containerd

import (
	"bytes"
	"fmt"
	"path/filepath"
	"text/template"
)

// maxSocketDir is containerd's own limit on the shim socket directory.
const maxSocketDir = 42

// Layout says where a cluster's runtime keeps its files.
type Layout struct {
	// DataDir is the cluster's data directory.
	DataDir string
	// Instance is the cluster's short name (host.Instance).
	Instance string
}

// Socket is the CRI endpoint's path.
func (l Layout) Socket() string { return filepath.Join(l.DataDir, "run", "containerd.sock") }

// Root holds images, snapshots and metadata; it survives reboots.
func (l Layout) Root() string { return filepath.Join(l.DataDir, "containerd") }

// State holds what is true for this boot only.
func (l Layout) State() string { return filepath.Join(l.DataDir, "run", "containerd") }

// ConfigFile is the rendered configuration.
func (l Layout) ConfigFile() string { return filepath.Join(l.Root(), "config.toml") }

// PIDFile names the running containerd.
func (l Layout) PIDFile() string { return filepath.Join(l.DataDir, "run", "containerd.pid") }

// CNIConfDir is where the pod network is configured.
func (l Layout) CNIConfDir() string { return filepath.Join(l.DataDir, "agent", "cni") }

// SocketDir is where shims listen. A data directory whose path is too long for
// containerd's limit gets a directory of its instance name below /run.
func (l Layout) SocketDir() string {
	if d := filepath.Join(l.DataDir, "run", "s"); len(d) <= maxSocketDir {
		return d
	}
	return filepath.Join("/run", l.Instance)
}

// Options are the choices that depend on the host and the bundle.
type Options struct {
	Layout
	// CNIBinDir holds the CNI plugins.
	CNIBinDir string
	// OCIRuntime is the absolute path of runc or crun.
	OCIRuntime string
	// PauseImage is the sandbox image's name; it is pinned.
	PauseImage string
	// Snapshotter is "overlayfs" or, where that cannot be used, "native".
	Snapshotter   string
	SystemdCgroup bool
	// RestrictOOM caps OOM scores at containerd's own instead of failing
	// where the kernel refuses lower ones.
	RestrictOOM bool
	Hugetlb     bool
	// Credentials are tables of registries' passwords, from registries.yaml.
	Credentials string
	// Handlers are runtimes beside the default one.
	Handlers []Handler
	// Fragments is a directory of configuration files to merge, FragmentSum the
	// sum of what they hold; both empty for none.
	Fragments, FragmentSum string
	// NRI lets plugins change containers, on a socket of this cluster's own.
	NRI bool
	// NoCDI ignores device specifications (/etc/cdi and /var/run/cdi).
	NoCDI bool
}

// The periods are long on purpose: the agent reads cgroups itself, and
// containerd's own collection would wake every shim each second.
var configTemplate = template.Must(template.New("config").Parse(`# Written by berth at each start; changes are lost.
version = 4
root = {{printf "%q" .Root}}
state = {{printf "%q" .State}}
imports = [{{with .Fragments}}{{printf "%q" (print . "/*.toml")}}{{end}}]{{with .FragmentSum}} # {{.}}{{end}}
disabled_plugins = []

[debug]
  level = 'warn'

[plugins.'io.containerd.server.v1.grpc']
  address = {{printf "%q" .Socket}}

[plugins.'io.containerd.server.v1.ttrpc']
  address = {{printf "%q" (print .Socket ".ttrpc")}}

[plugins.'io.containerd.shim.v1.manager']
  socket_dir = {{printf "%q" .SocketDir}}

[plugins.'io.containerd.nri.v1.nri']
  disable = {{not .NRI}}{{if .NRI}}
  socket_path = {{printf "%q" (print .DataDir "/run/nri.sock")}}{{end}}

[plugins.'io.containerd.internal.v1.opt']
  path = {{printf "%q" (print .Root "/opt")}}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = {{printf "%q" .Snapshotter}}
  stats_collect_period = 86400
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = {{printf "%q" .PauseImage}}
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = {{printf "%q" (print .DataDir "/registries")}}

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = {{.RestrictOOM}}
  netns_mounts_under_state_dir = true
  disable_hugetlb_controller = {{not .Hugetlb}}
  stats_collect_period = '24h'{{if .NoCDI}}
  cdi_spec_dirs = []{{end}}
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{{printf "%q" .CNIBinDir}}]
    conf_dir = {{printf "%q" .CNIConfDir}}
    use_internal_loopback = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = {{printf "%q" .OCIRuntime}}
        SystemdCgroup = {{.SystemdCgroup}}
{{- range $h := .Handlers}}
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{printf "%q" .Name}}]
      runtime_type = {{printf "%q" .Type}}
{{- with .Shim}}
      runtime_path = {{printf "%q" .}}
{{- end}}{{with .Binary}}
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{{printf "%q" $h.Name}}.options]
        BinaryName = {{printf "%q" .}}
        SystemdCgroup = {{$.SystemdCgroup}}
{{- end}}{{end}}
{{with .Credentials}}
{{.}}{{end}}`))

// Render returns the configuration file's content.
func (o Options) Render() ([]byte, error) {
	var buf bytes.Buffer
	if err := configTemplate.Execute(&buf, o); err != nil {
		return nil, fmt.Errorf("rendering containerd's configuration: %w", err)
	}
	return buf.Bytes(), nil
}
