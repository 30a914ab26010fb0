package volume

import (
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Plugin names, as they appear in directory names and metrics.
const (
	pluginEmptyDir  = "kubernetes.io/empty-dir"
	pluginConfigMap = "kubernetes.io/configmap"
	pluginSecret    = "kubernetes.io/secret"
	pluginDownward  = "kubernetes.io/downward-api"
	pluginProjected = "kubernetes.io/projected"
	pluginHostPath  = "kubernetes.io/host-path"
	pluginImage     = "kubernetes.io/image"
	pluginCSI       = "kubernetes.io/csi"
	pluginLocal     = "kubernetes.io/local-volume"
	pluginNFS       = "kubernetes.io/nfs"
)

// layout is where things are below the agent's root directory. The tree on
// disk is the record of what was set up: recovery reads nothing else.
type layout struct{ root string }

func (l layout) pods() string             { return filepath.Join(l.root, "pods") }
func (l layout) pod(uid types.UID) string { return filepath.Join(l.pods(), string(uid)) }
func (l layout) csiPluginDir() string     { return filepath.Join(l.root, "plugins", pluginCSI) }
func (l layout) csi(driver string) string { return filepath.Join(l.csiPluginDir(), driver) }
func (l layout) blockDir(pv string) string {
	return filepath.Join(l.csiPluginDir(), "volumeDevices", pv)
}

// volume is the directory of one volume of a pod.
func (l layout) volume(uid types.UID, plugin, name string) string {
	return filepath.Join(l.pod(uid), "volumes", escape(plugin), name)
}

// ready is the mark that a volume was set up completely once.
func (l layout) ready(uid types.UID, plugin, name string) string {
	return filepath.Join(l.pod(uid), "plugins", escape(plugin), name, "ready")
}

// subPath is the target of a prepared subPath mount.
func (l layout) subPath(uid types.UID, volume, container, index string) string {
	return filepath.Join(l.pod(uid), "volume-subpaths", volume, container, index)
}

func escape(plugin string) string { return strings.ReplaceAll(plugin, "/", "~") }

// validUID keeps names that are not pods' out of the recovery: a stray file in
// the pods directory must not be taken for a pod and deleted.
func validUID(name string) bool {
	if name == "" || strings.HasPrefix(name, ".") {
		return false
	}
	for _, r := range name {
		if (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_' {
			return false
		}
	}
	return true
}
