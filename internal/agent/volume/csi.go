package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// csi drives volumes of CSI drivers.
type csi struct {
	m *Manager

	mu    sync.Mutex
	locks map[string]*lock
}

type lock struct {
	ch   chan struct{}
	refs int
}

func newCSI(m *Manager) *csi { return &csi{m: m, locks: map[string]*lock{}} }

// hold locks one volume of a driver: staging and unstaging must not overtake
// each other, whichever pods they are for.
func (c *csi) hold(ctx context.Context, r *record) (release func(), err error) {
	k := r.Driver + "^" + r.Handle
	c.mu.Lock()
	l := c.locks[k]
	if l == nil {
		l = &lock{ch: make(chan struct{}, 1)}
		c.locks[k] = l
	}
	l.refs++
	c.mu.Unlock()
	drop := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.refs--; l.refs == 0 {
			delete(c.locks, k)
		}
	}
	select {
	case l.ch <- struct{}{}:
		return func() { <-l.ch; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, ctx.Err()
	}
}

// request is one volume that a pod wants of a driver.
type request struct {
	pod        *v1.Pod
	rec        record
	driver     *driver
	object     *storage.CSIDriver // nil when the cluster has none
	attributes map[string]string
	fsType     string
	options    []string
	modes      []v1.PersistentVolumeAccessMode
	stage      *v1.SecretReference
	publish    *v1.SecretReference
	expand     *v1.SecretReference
}

func sum(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// volumeDir is where a pod keeps what it has of a CSI volume.
func (c *csi) volumeDir(uid types.UID, name string) string {
	return c.m.layout.volume(uid, pluginCSI, name)
}

func (c *csi) stagingDir(r *record) string {
	return filepath.Join(c.m.layout.csi(r.Driver), sum(r.Handle))
}

// driverObject is the cluster's word on a driver; nil when it has none.
func (c *csi) driverObject(ctx context.Context, name string) (*storage.CSIDriver, error) {
	o, err := c.m.cfg.Client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading CSIDriver %q: %w", name, err)
	}
	return o, nil
}

// inline sets up a volume that lives and dies with its pod.
func (c *csi) inline(ctx context.Context, pod *v1.Pod, v *v1.Volume) (Mounted, error) {
	s := v.CSI
	dir := c.volumeDir(pod.UID, v.Name)
	if out, ok := c.present(dir, v.Name, true); ok {
		return out, nil
	}
	if c.m.cfg.Client == nil {
		return Mounted{}, errors.New("the node agent runs without an API server: CSI volumes are not possible")
	}
	dr, err := c.m.cfg.Drivers.get(s.Driver)
	if err != nil {
		return Mounted{}, err
	}
	object, err := c.driverObject(ctx, s.Driver)
	if err != nil {
		return Mounted{}, err
	}
	if !allows(object, storage.VolumeLifecycleEphemeral) {
		return Mounted{}, fmt.Errorf("driver %q does not support volumeLifecycleMode Ephemeral; its CSIDriver allows %v", s.Driver,
			modesOf(object))
	}
	r := &request{
		pod: pod, driver: dr, object: object, attributes: s.VolumeAttributes,
		modes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		rec: record{
			PV: v.Name, Handle: "csi-" + sum(string(pod.UID), v.Name), Driver: s.Driver, Node: c.m.cfg.NodeName,
			Lifecycle: ephemeral, Volume: v.Name, ReadOnly: s.ReadOnly != nil && *s.ReadOnly,
		},
	}
	if s.FSType != nil {
		r.fsType = *s.FSType
	}
	if s.NodePublishSecretRef != nil {
		r.publish = &v1.SecretReference{Namespace: pod.Namespace, Name: s.NodePublishSecretRef.Name}
	}
	return c.setUp(ctx, r)
}

func modesOf(o *storage.CSIDriver) []storage.VolumeLifecycleMode {
	if o == nil || len(o.Spec.VolumeLifecycleModes) == 0 {
		return []storage.VolumeLifecycleMode{storage.VolumeLifecyclePersistent}
	}
	return o.Spec.VolumeLifecycleModes
}

func allows(o *storage.CSIDriver, mode storage.VolumeLifecycleMode) bool {
	for _, m := range modesOf(o) {
		if m == mode {
			return true
		}
	}
	return false
}

// present finds a volume that is complete already, by its record and the
// kernel. republish passes over volumes whose driver wants to be asked again.
func (c *csi) present(dir, volume string, republish bool) (Mounted, bool) {
	r, err := readRecord(dir)
	if err != nil || !r.Done || r.Volume != volume || republish && r.Republish {
		return Mounted{}, false
	}
	if ok, err := isMount(r.Target); err != nil || !ok {
		return Mounted{}, false
	}
	return r.mounted(), true
}

// persisted is a volume of a pod that was set up before, found without the API.
func (c *csi) persisted(uid types.UID, volume string) (Mounted, bool) {
	for _, dir := range subdirs(filepath.Dir(c.volumeDir(uid, "x"))) {
		if out, ok := c.present(dir, volume, false); ok {
			return out, true
		}
	}
	return Mounted{}, false
}

// setUp stages and publishes a volume. Drivers are idempotent by contract, so
// an interrupted attempt is simply repeated.
func (c *csi) setUp(ctx context.Context, r *request) (Mounted, error) {
	release, err := c.hold(ctx, &r.rec)
	if err != nil {
		return Mounted{}, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()

	dir := c.volumeDir(r.pod.UID, r.rec.PV)
	r.rec.Target = filepath.Join(dir, "mount")
	if r.rec.Block {
		r.rec.Target = filepath.Join(c.m.layout.blockDir("publish"), r.rec.PV, string(r.pod.UID))
	}
	if r.rec.Lifecycle == persistent && r.driver.can(spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		r.rec.Staging = filepath.Join(c.stagingDir(&r.rec), "globalmount")
		if r.rec.Block {
			r.rec.Staging = filepath.Join(c.m.layout.blockDir("staging"), r.rec.PV)
		}
	}
	r.rec.Republish = r.object != nil && isOptional(r.object.Spec.RequiresRepublish)
	if err := c.m.k.writeRecord(dir, &r.rec); err != nil {
		return Mounted{}, err
	}
	// Reported before waiting for the attachment: the cluster attaches what is in use.
	c.m.inUseChanged()
	context, err := c.publishContext(ctx, r)
	if err != nil {
		return Mounted{}, err
	}
	if r.rec.Staging != "" {
		if err := c.stage(ctx, r, context); err != nil {
			return Mounted{}, err
		}
	}
	if err := c.publishVolume(ctx, r, context); err != nil {
		return Mounted{}, err
	}
	if err := c.give(r); err != nil {
		return Mounted{}, err
	}
	r.rec.Done = true
	if err := c.m.k.writeRecord(dir, &r.rec); err != nil {
		return Mounted{}, err
	}
	return r.rec.mounted(), nil
}

// errNotAttached says that the cluster has not attached a volume yet.
var errNotAttached = errors.New("waiting for the volume to be attached")

// ErrAttachLimit says that the node has as many volumes as its driver allows:
// the pod can never run here as things are.
var ErrAttachLimit = errors.New("the node has no room for another volume")

// attachError is why a volume is not attached; the controller that attaches
// tells the pod's user. A driver that has no room left is asked again how many
// volumes the node may have, so that the scheduler learns of it.
func (c *csi) attachError(r *request, va *storage.VolumeAttachment) error {
	e := va.Status.AttachError
	if e == nil {
		return fmt.Errorf("%w: VolumeAttachment %s does not say so", errNotAttached, va.Name)
	}
	if e.ErrorCode == nil || *e.ErrorCode != int32(codes.ResourceExhausted) {
		return fmt.Errorf("%w: %s", errNotAttached, e.Message)
	}
	c.m.background(func() { c.m.cfg.Drivers.renew(c.m.ctx, r.driver) })
	return fmt.Errorf("%w: %w: %s", errNotAttached, ErrAttachLimit, e.Message)
}

// publishContext is what the attachment says about the volume. A volume that
// is not attached yet is an error; the pod is woken when the node's status
// lists it.
func (c *csi) publishContext(ctx context.Context, r *request) (map[string]string, error) {
	required := r.object == nil || r.object.Spec.AttachRequired == nil || *r.object.Spec.AttachRequired
	if r.rec.Lifecycle != persistent || !required {
		return nil, nil
	}
	name := v1.UniqueVolumeName(pluginCSI + "/" + r.rec.Driver + "^" + r.rec.Handle)
	id := "csi-" + sum(r.rec.Handle, r.rec.Driver, c.m.cfg.NodeName)
	va, err := c.m.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, id, metav1.GetOptions{})
	// A node may not even read an attachment before the cluster has made it.
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w: there is no VolumeAttachment %s", errNotAttached, id)
	}
	if err != nil {
		return nil, fmt.Errorf("reading VolumeAttachment %s: %w", id, err)
	}
	if !va.Status.Attached {
		return nil, c.attachError(r, va)
	}
	if c.m.cfg.ControllerAttach && c.m.cfg.Node != nil && !attached(c.m.cfg.Node(), name) {
		return nil, fmt.Errorf("%w: volume %s is not in the node's status.volumesAttached", errNotAttached, name)
	}
	r.rec.AttachmentID = id
	return va.Status.AttachmentMetadata, nil
}

func (c *csi) stage(ctx context.Context, r *request, publishContext map[string]string) error {
	rec := r.rec
	rec.Target, rec.Volume, rec.Done = "", "", false
	if err := c.m.k.writeRecord(c.stagingDir(&rec), &rec); err != nil {
		return err
	}
	if err := c.m.k.mkdirAll(rec.Staging, 0o750); err != nil {
		return err
	}
	secrets, err := c.secrets(ctx, r.stage)
	if err != nil {
		return err
	}
	group := r.mountGroup()
	c.m.k.step("stage volume")
	_, err = r.driver.node.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{
		VolumeId: rec.Handle, PublishContext: publishContext, StagingTargetPath: rec.Staging,
		VolumeCapability: r.capability(group), Secrets: secrets, VolumeContext: r.attributes,
	})
	if err != nil {
		return &eventError{reason: "FailedMount", format: "MountVolume.MountDevice failed for volume %q : %v", err: err}
	}
	return nil
}

func (c *csi) publishVolume(ctx context.Context, r *request, publishContext map[string]string) error {
	secrets, err := c.secrets(ctx, r.publish)
	if err != nil {
		return err
	}
	attributes, err := c.attributes(ctx, r, &secrets)
	if err != nil {
		return err
	}
	// The driver makes the target itself; only its parent is ours.
	if err := c.m.k.mkdirAll(filepath.Dir(r.rec.Target), 0o750); err != nil {
		return err
	}
	c.m.k.step("publish volume")
	_, err = r.driver.node.NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{
		VolumeId: r.rec.Handle, PublishContext: publishContext, StagingTargetPath: r.rec.Staging, TargetPath: r.rec.Target,
		VolumeCapability: r.capability(r.mountGroup()), Readonly: r.rec.ReadOnly, Secrets: secrets, VolumeContext: attributes,
	})
	if err != nil && r.rec.Block {
		return &eventError{reason: "FailedMapVolume", format: "MapVolume.MapPodDevice failed for volume %q : %v", err: err}
	}
	return err
}

// mountGroup is the group that the driver itself applies, "" when we do.
func (r *request) mountGroup() string {
	g := podGroup(r.pod, false)
	if g == nil || r.rec.Block || !r.driver.can(spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		return ""
	}
	return fmt.Sprint(g.group)
}

func (r *request) capability(group string) *spec.VolumeCapability {
	out := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: r.accessMode()}}
	if r.rec.Block {
		out.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
		return out
	}
	out.AccessType = &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{
		FsType: r.fsType, MountFlags: r.options, VolumeMountGroup: group,
	}}
	return out
}

// accessMode is the widest of the claim's modes that CSI has a word for.
func (r *request) accessMode() spec.VolumeCapability_AccessMode_Mode {
	has := map[v1.PersistentVolumeAccessMode]bool{}
	for _, m := range r.modes {
		has[m] = true
	}
	fine := r.driver.can(spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	switch {
	case has[v1.ReadWriteMany]:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case has[v1.ReadOnlyMany] && has[v1.ReadWriteOnce]:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	case has[v1.ReadOnlyMany]:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case has[v1.ReadWriteOncePod] && fine:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case has[v1.ReadWriteOnce] && fine:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// attributes are the volume's own with what the CSIDriver asks to know.
func (c *csi) attributes(ctx context.Context, r *request, secrets *map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for k, v := range r.attributes {
		out[k] = v
	}
	if r.object == nil {
		return out, nil
	}
	if isOptional(r.object.Spec.PodInfoOnMount) {
		out["csi.storage.k8s.io/pod.name"] = r.pod.Name
		out["csi.storage.k8s.io/pod.namespace"] = r.pod.Namespace
		out["csi.storage.k8s.io/pod.uid"] = string(r.pod.UID)
		out["csi.storage.k8s.io/serviceAccount.name"] = r.pod.Spec.ServiceAccountName
		out["csi.storage.k8s.io/ephemeral"] = fmt.Sprint(r.rec.Lifecycle == ephemeral)
	}
	if len(r.object.Spec.TokenRequests) == 0 {
		return out, nil
	}
	type issued struct {
		Token      string    `json:"token"`
		Expiration time.Time `json:"expirationTimestamp"`
	}
	all := map[string]issued{}
	for _, t := range r.object.Spec.TokenRequests {
		value, _, err := c.m.tokens.get(ctx, r.pod, &v1.ServiceAccountTokenProjection{Audience: t.Audience,
			ExpirationSeconds: t.ExpirationSeconds}, "")
		if value == "" {
			return nil, err
		}
		parsed, _ := parseToken(value)
		all[t.Audience] = issued{value, parsed.expires.UTC()}
	}
	b, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	const name = "csi.storage.k8s.io/serviceAccount.tokens"
	if isOptional(r.object.Spec.ServiceAccountTokenInSecrets) {
		if *secrets == nil {
			*secrets = map[string]string{}
		}
		(*secrets)[name] = string(b)
		return out, nil
	}
	out[name] = string(b)
	return out, nil
}

func (c *csi) secrets(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := c.m.cfg.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading secret %s/%s of the volume: %w", ref.Namespace, ref.Name, err)
	}
	out := map[string]string{}
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

// give applies the pod's group as the driver's policy says.
func (c *csi) give(r *request) error {
	group := podGroup(r.pod, r.rec.ReadOnly)
	if group == nil || r.rec.Block || r.rec.ReadOnly || r.mountGroup() != "" {
		return nil
	}
	policy := storage.ReadWriteOnceWithFSTypeFSGroupPolicy
	if r.object != nil && r.object.Spec.FSGroupPolicy != nil {
		policy = *r.object.Spec.FSGroupPolicy
	}
	switch policy {
	case storage.NoneFSGroupPolicy:
		return nil
	case storage.FileFSGroupPolicy:
		return group.apply(r.rec.Target)
	}
	for _, m := range r.modes {
		if m == v1.ReadWriteOnce && r.fsType != "" {
			return group.apply(r.rec.Target)
		}
	}
	return nil
}
