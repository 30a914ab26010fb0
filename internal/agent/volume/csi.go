package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Drivers finds the CSI drivers registered on this node.
type Drivers interface{}

type csi struct{ m *Manager }

func newCSI(m *Manager) *csi { return &csi{m} }

func (c *csi) inline(_ context.Context, _ *v1.Pod, v *v1.Volume) (Mounted, error) {
	return Mounted{}, fmt.Errorf("CSI driver %q is not registered on this node", v.CSI.Driver)
}

func (c *csi) unpublishPod(_ context.Context, uid types.UID) error {
	dir := filepath.Dir(c.m.layout.volume(uid, pluginCSI, "x"))
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.New("volumes of CSI drivers are present: no driver is registered")
}

func (c *csi) unstageUnused(context.Context) error { return nil }

func (m *Manager) claim(_ context.Context, _ *podState, pod *v1.Pod, v *v1.Volume, claim string, readOnly bool) (Mounted, error) {
	return Mounted{}, fmt.Errorf("claim %s/%s of volume %q: no CSI driver is registered on this node", pod.Namespace, claim, v.Name)
}

func (m *Manager) nfs(context.Context, *v1.Pod, string, string, string, bool, []string) (Mounted, error) {
	return Mounted{}, errors.New("nfs: not yet")
}
