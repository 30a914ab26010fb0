package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// growEvery is how often the claims of a running pod are read to see whether a
// volume must grow: a node may get them but not watch them.
const growEvery = time.Minute

// growAt is when the claims of a pod must be looked at again, zero for never:
// only drivers that grow volumes on the node are a reason.
func (m *Manager) growAt(uid types.UID) time.Time {
	for _, dir := range subdirs(m.layout.volume(uid, pluginCSI, "")) {
		r, err := readRecord(dir)
		if err != nil || r.Lifecycle == ephemeral || r.ReadOnly {
			continue
		}
		if dr, err := m.cfg.Drivers.get(r.Driver); err == nil && dr.can(spec.NodeServiceCapability_RPC_EXPAND_VOLUME) {
			return m.cfg.Clock.Now().Add(growEvery)
		}
	}
	return time.Time{}
}

// growAll looks at the claims of all pods now.
func (m *Manager) growAll() {
	var pods []types.UID
	m.mu.Lock()
	for uid := range m.pods {
		pods = append(pods, uid)
	}
	m.mu.Unlock()
	for _, uid := range pods {
		if m.growAt(uid).IsZero() {
			continue
		}
		m.mu.Lock()
		if st := m.pods[uid]; st != nil {
			st.grow = true
		}
		m.mu.Unlock()
		m.startRefresh(uid, nil)
	}
}

// expand grows a volume whose PersistentVolume is larger than what the claim
// reports. A failure is reported and tried again, unless the driver says that it
// never can; the volume works meanwhile.
func (m *Manager) expand(ctx context.Context, r *request, pvc *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, at Mounted) {
	want, have := pv.Spec.Capacity[v1.ResourceStorage], pvc.Status.Capacity[v1.ResourceStorage]
	if want.Cmp(have) <= 0 || at.ReadOnly || !r.driver.can(spec.NodeServiceCapability_RPC_EXPAND_VOLUME) ||
		pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizeInfeasible {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	err := m.grow(ctx, r, pvc, pv, at)
	if err == nil {
		m.cfg.event(r.pod, v1.EventTypeNormal, "FileSystemResizeSuccessful",
			fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q", pv.Name))
		return
	}
	m.cfg.event(r.pod, v1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q : %v",
		pv.Name, err))
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.OutOfRange:
		if _, err := m.setResizing(ctx, pvc, v1.PersistentVolumeClaimNodeResizeInfeasible); err != nil {
			m.cfg.Log.Warn("reporting that a volume cannot grow", "claim", pvc.Namespace+"/"+pvc.Name, "err", err)
		}
	}
}

func (m *Manager) grow(ctx context.Context, r *request, pvc *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, at Mounted) error {
	secrets, err := m.csi.secrets(ctx, r.expand)
	if err != nil {
		return err
	}
	rec, err := readRecord(m.csi.volumeDir(r.pod.UID, pv.Name))
	if err != nil {
		return err
	}
	if pvc.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimNodeResizePending {
		if pvc, err = m.setResizing(ctx, pvc, v1.PersistentVolumeClaimNodeResizeInProgress); err != nil {
			return err
		}
	}
	want := pv.Spec.Capacity[v1.ResourceStorage]
	_, err = r.driver.node.NodeExpandVolume(ctx, &spec.NodeExpandVolumeRequest{
		VolumeId: r.rec.Handle, VolumePath: at.HostPath, StagingTargetPath: rec.Staging, Secrets: secrets,
		CapacityRange: &spec.CapacityRange{RequiredBytes: want.Value()}, VolumeCapability: r.capability(r.mountGroup()),
	})
	if err != nil {
		return err
	}
	return m.reportSize(ctx, pvc, want.String())
}

// setResizing says in the claim's status how far growing has come.
func (m *Manager) setResizing(ctx context.Context, pvc *v1.PersistentVolumeClaim, state v1.ClaimResourceStatus) (*v1.PersistentVolumeClaim,
	error) {
	return m.patchClaim(ctx, pvc, map[string]any{"allocatedResourceStatuses": map[string]any{string(v1.ResourceStorage): state}})
}

// reportSize writes the claim's new size and drops the conditions about resizing.
func (m *Manager) reportSize(ctx context.Context, pvc *v1.PersistentVolumeClaim, size string) error {
	drop := []map[string]string{}
	for _, c := range pvc.Status.Conditions {
		if c.Type == v1.PersistentVolumeClaimFileSystemResizePending || c.Type == v1.PersistentVolumeClaimResizing {
			drop = append(drop, map[string]string{"type": string(c.Type), "$patch": "delete"})
		}
	}
	change := map[string]any{
		"capacity":                  map[string]string{string(v1.ResourceStorage): size},
		"allocatedResourceStatuses": map[string]any{string(v1.ResourceStorage): nil},
	}
	if len(drop) > 0 {
		change["conditions"] = drop
	}
	_, err := m.patchClaim(ctx, pvc, change)
	return err
}

func (m *Manager) patchClaim(ctx context.Context, pvc *v1.PersistentVolumeClaim, change map[string]any) (*v1.PersistentVolumeClaim, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pvc.UID, "resourceVersion": pvc.ResourceVersion}, "status": change,
	})
	if err != nil {
		return nil, err
	}
	out, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(pvc.Namespace).Patch(ctx, pvc.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("writing the status of claim %s/%s: %w", pvc.Namespace, pvc.Name, err)
	}
	return out, nil
}
