package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ephemeralhelper "k8s.io/component-helpers/storage/ephemeral"
	volumehelper "k8s.io/component-helpers/storage/volume"
	mountutils "k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/berth-dev/berth/internal/agent/container"
)

// claim sets up the volume behind a claim. Volumes that are complete on this
// node are found without asking the API server.
func (m *Manager) claim(ctx context.Context, pod *v1.Pod, v *v1.Volume, name string, readOnly bool) (Mounted, error) {
	if m.cfg.Client == nil {
		return Mounted{}, errors.New("the node agent runs without an API server: claims are not possible")
	}
	pvc, pv, err := m.resolve(ctx, pod, v, name)
	if err != nil {
		if out, ok := m.csi.persisted(pod.UID, v.Name); ok && unavailable(err) {
			return out, nil
		}
		return Mounted{}, err
	}
	if m.cfg.Node != nil {
		if node := m.cfg.Node(); node != nil {
			if err := volumehelper.CheckNodeAffinity(pv, node.Labels); err != nil {
				return Mounted{}, fmt.Errorf("volume %q cannot be used on this node: %w", pv.Name, err)
			}
		}
	}
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
	if err := sameMode(pod, v.Name, pv, block); err != nil {
		return Mounted{}, err
	}
	if slices.Contains(pv.Spec.AccessModes, v1.ReadWriteOncePod) {
		if err := m.alone(pod.UID, pv); err != nil {
			return Mounted{}, err
		}
	}
	readOnly = readOnly || onlyReads(pvc)
	var out Mounted
	switch s := &pv.Spec; {
	case s.CSI != nil:
		out, err = m.persistentCSI(ctx, pod, v, pvc, pv, readOnly || s.CSI.ReadOnly, block)
	case s.HostPath != nil:
		out, err = Mounted{HostPath: s.HostPath.Path, ReadOnly: readOnly}, m.k.hostPath(s.HostPath)
	case s.Local != nil:
		out, err = m.local(pod, pv, readOnly, block)
	case s.NFS != nil:
		out, err = m.nfs(ctx, pod, pv.Name, s.NFS.Server, s.NFS.Path, readOnly || s.NFS.ReadOnly, s.MountOptions)
	default:
		err = fmt.Errorf("the source of PersistentVolume %q is not supported by berth: use a CSI driver", pv.Name)
	}
	out.Groups = volumeGroups(pv)
	return out, err
}

// sameMode refuses a device that is to be mounted, and a file system that is to
// be a device. Clients match the texts.
func sameMode(pod *v1.Pod, volume string, pv *v1.PersistentVolume, block bool) error {
	for _, c := range container.All(pod) {
		for _, d := range c.VolumeDevices {
			if d.Name == volume && !block {
				return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", volume, v1.PersistentVolumeFilesystem)
			}
		}
		for _, mount := range c.VolumeMounts {
			if mount.Name == volume && block {
				return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", volume, v1.PersistentVolumeBlock)
			}
		}
	}
	return nil
}

// alone takes a volume that one pod may use at a time, or says that another
// pod of this node has it. What each pod has is what is on disk: the directory
// of the volume is made here, before anything is in it.
func (m *Manager) alone(uid types.UID, pv *v1.PersistentVolume) error {
	var plugin string
	switch s := &pv.Spec; {
	case s.CSI != nil:
		plugin = pluginCSI
	case s.Local != nil:
		plugin = pluginLocal
	default:
		return nil // a directory of the host leaves no trace, a server's hangs with it
	}
	m.sole.Lock()
	defer m.sole.Unlock()
	for _, dir := range subdirs(m.layout.pods()) {
		other := types.UID(filepath.Base(dir))
		if other == uid {
			continue
		}
		if _, err := os.Lstat(m.layout.volume(other, plugin, pv.Name)); err == nil {
			return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
		}
	}
	return m.k.mkdirAll(m.layout.volume(uid, plugin, pv.Name), 0o750)
}

// volumeGroups are the groups that a PersistentVolume asks its users to have.
func volumeGroups(pv *v1.PersistentVolume) []int64 {
	var g int64
	if _, err := fmt.Sscan(pv.Annotations["pv.beta.kubernetes.io/gid"], &g); err != nil {
		return nil
	}
	return []int64{g}
}

func onlyReads(pvc *v1.PersistentVolumeClaim) bool {
	return len(pvc.Spec.AccessModes) == 1 && pvc.Spec.AccessModes[0] == v1.ReadOnlyMany
}

func (m *Manager) resolve(ctx context.Context, pod *v1.Pod, v *v1.Volume, name string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume,
	error) {
	pvc, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, name, err)
	}
	if v.Ephemeral != nil {
		if err := ephemeralhelper.VolumeIsForPod(pod, pvc); err != nil {
			return nil, nil, err
		}
	}
	if pvc.Status.Phase != v1.ClaimBound || pvc.Spec.VolumeName == "" {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: PVC is not bound", pod.Namespace, name)
	}
	pv, err := m.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, name, err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != pvc.UID {
		return nil, nil, fmt.Errorf("error processing PVC %s/%s: PersistentVolume %q is bound to another claim", pod.Namespace, name,
			pv.Name)
	}
	return pvc, pv, nil
}

func (m *Manager) persistentCSI(ctx context.Context, pod *v1.Pod, v *v1.Volume, pvc *v1.PersistentVolumeClaim, pv *v1.PersistentVolume,
	readOnly, block bool) (Mounted, error) {
	s := pv.Spec.CSI
	dr, err := m.cfg.Drivers.get(s.Driver)
	if err != nil {
		if out, ok := m.csi.persisted(pod.UID, v.Name); ok {
			return out, nil // it works without its driver
		}
		return Mounted{}, err
	}
	r := &request{
		pod: pod, driver: dr, attributes: s.VolumeAttributes, fsType: s.FSType, options: pv.Spec.MountOptions,
		modes: pv.Spec.AccessModes, stage: s.NodeStageSecretRef, publish: s.NodePublishSecretRef, expand: s.NodeExpandSecretRef,
		rec: record{
			PV: pv.Name, Handle: s.VolumeHandle, Driver: s.Driver, Node: m.cfg.NodeName, Lifecycle: persistent,
			Volume: v.Name, Block: block, ReadOnly: readOnly,
		},
	}
	out, ok := m.csi.present(m.csi.volumeDir(pod.UID, pv.Name), v.Name, true)
	if !ok {
		if r.object, err = m.csi.driverObject(ctx, s.Driver); err != nil {
			return Mounted{}, err
		}
		if !allows(r.object, storage.VolumeLifecyclePersistent) {
			return Mounted{}, fmt.Errorf("driver %q does not support volumeLifecycleMode Persistent", s.Driver)
		}
		if out, err = m.csi.setUp(ctx, r); err != nil {
			return Mounted{}, err
		}
		if block {
			m.cfg.event(pod, v1.EventTypeNormal, "SuccessfulMountVolume",
				fmt.Sprintf("MapVolume.MapPodDevice succeeded for volume %q volumeMapPath %q", pv.Name, out.HostPath))
		}
	}
	m.expand(ctx, r, pvc, pv, out)
	return out, nil
}

// local mounts a directory, or a device with its file system, of this node.
func (m *Manager) local(pod *v1.Pod, pv *v1.PersistentVolume, readOnly, block bool) (Mounted, error) {
	path := pv.Spec.Local.Path
	info, err := os.Stat(path)
	if err != nil {
		return Mounted{}, fmt.Errorf("local volume %q: %w", pv.Name, err)
	}
	device := info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0
	if block {
		if !device {
			return Mounted{}, fmt.Errorf("local volume %q: %s is not a block device", pv.Name, path)
		}
		return Mounted{HostPath: path, Block: true, ReadOnly: readOnly}, nil
	}
	dir := m.layout.volume(pod.UID, pluginLocal, pv.Name)
	out := Mounted{HostPath: dir, ReadOnly: readOnly, SELinuxRelabel: true}
	if mounted, err := isMount(dir); err != nil || mounted {
		return out, err
	}
	if err := m.k.mkdirAll(dir, 0o750); err != nil {
		return out, err
	}
	m.k.step("mount local")
	switch {
	case device:
		fsType := "ext4"
		if pv.Spec.Local.FSType != nil && *pv.Spec.Local.FSType != "" {
			fsType = *pv.Spec.Local.FSType
		}
		options := slices.Clone(pv.Spec.MountOptions)
		if readOnly {
			options = append(options, "ro")
		}
		err = mountutils.NewSafeFormatAndMount(mountutils.New(""), exec.New()).FormatAndMount(path, dir, fsType, options)
	case info.IsDir():
		err = unix.Mount(path, dir, "", unix.MS_BIND, "")
	default:
		err = fmt.Errorf("%s is neither a directory nor a block device", path)
	}
	if err != nil {
		return out, fmt.Errorf("mounting local volume %q: %w", pv.Name, err)
	}
	if readOnly {
		return out, nil
	}
	return out, podGroup(pod, false).apply(dir)
}

// nfs mounts an export with the host's own tools.
func (m *Manager) nfs(_ context.Context, pod *v1.Pod, name, server, path string, readOnly bool, options []string) (Mounted, error) {
	dir := m.layout.volume(pod.UID, pluginNFS, name)
	out := Mounted{HostPath: dir, ReadOnly: readOnly}
	if mounted, err := isMount(dir); err != nil || mounted {
		return out, err
	}
	if err := m.k.mkdirAll(dir, 0o750); err != nil {
		return out, err
	}
	options = slices.Clone(options)
	if readOnly {
		options = append(options, "ro")
	}
	if strings.Contains(server, ":") && !strings.HasPrefix(server, "[") {
		server = "[" + server + "]"
	}
	m.k.step("mount nfs")
	if err := mountutils.New("").Mount(server+":"+path, dir, "nfs", options); err != nil {
		return out, fmt.Errorf("mounting %s:%s: %w", server, path, err)
	}
	return out, nil
}
