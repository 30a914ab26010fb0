package volume

import (
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// noPlugin is what metrics call the plugin of a claim nothing is known of yet.
const noPlugin = "N/A"

// Plugin is what metrics call the kind of a pod's volume. A CSI driver is named
// with its plugin; what a claim is made of is known once it was set up.
func (m *Manager) Plugin(uid types.UID, v *v1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return pluginEmptyDir
	case v.HostPath != nil:
		return pluginHostPath
	case v.Image != nil:
		return pluginImage
	case v.NFS != nil:
		return pluginNFS
	case isPayload(v):
		return payloadPlugin(v)
	case v.CSI != nil:
		return pluginCSI + ":" + v.CSI.Driver
	case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
		return noPlugin
	}
	for _, dir := range subdirs(m.layout.volume(uid, pluginCSI, "")) {
		if r, err := readRecord(dir); err == nil && r.Volume == v.Name {
			return pluginCSI + ":" + r.Driver
		}
	}
	for _, plugin := range []string{pluginLocal, pluginNFS} {
		if _, err := os.Lstat(m.layout.volume(uid, plugin, v.Name)); err == nil {
			return plugin
		}
	}
	return noPlugin
}
