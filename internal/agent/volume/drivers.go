package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/localvolume"
)

// nodeIDAnnotation maps driver names to the node's id with each, as JSON.
const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// csiTimeout bounds one call to a driver.
const csiTimeout = 2 * time.Minute

// Drivers are the CSI drivers registered on this node. It handles the plugin
// type CSIPlugin; see package plugins.
type Drivers struct {
	client   kubernetes.Interface
	nodeName string
	log      *slog.Logger

	mu      sync.Mutex
	drivers map[string]*driver
	changed func()
	// called, if set, is called after every call to a driver.
	called func(driver, method string, took time.Duration, err error)
	// api serializes changes to the CSINode and the Node.
	api sync.Mutex
}

// RegisterAfter is d as a handler of plugins that registers a driver only when
// node is closed: its id goes onto the Node, which does not exist yet when an
// agent starts for the first time. The driver of local volumes waits for
// certificate as well, that of the agent's API, through which its controller
// calls it; nil is none to wait for.
func (d *Drivers) RegisterAfter(node, certificate <-chan struct{}) afterEvents {
	return afterEvents{d, node, certificate}
}

type afterEvents struct {
	*Drivers
	node, certificate <-chan struct{}
}

// Register waits for the driver's events and then registers it.
func (a afterEvents) Register(ctx context.Context, name, endpoint string, versions []string) error {
	var events []<-chan struct{}
	if a.client != nil {
		events = append(events, a.node)
		if name == localvolume.Name && a.certificate != nil {
			events = append(events, a.certificate)
		}
	}
	for _, event := range events {
		select {
		case <-event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return a.Drivers.Register(ctx, name, endpoint, versions)
}

// NewDrivers makes an empty set.
func NewDrivers(client kubernetes.Interface, nodeName string, log *slog.Logger) *Drivers {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Drivers{client: client, nodeName: nodeName, log: log, drivers: map[string]*driver{}}
}

// driver is a registered driver and its connection.
type driver struct {
	name, endpoint string
	conn           *grpc.ClientConn
	node           spec.NodeClient
	caps           map[spec.NodeServiceCapability_RPC_Type]bool
}

func (d *driver) can(c spec.NodeServiceCapability_RPC_Type) bool { return d.caps[c] }

// get finds a driver by name.
func (d *Drivers) get(name string) (*driver, error) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if found := d.drivers[name]; found != nil {
			return found, nil
		}
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// Register connects to a driver, asks who the node is to it, and tells the
// cluster.
func (d *Drivers) Register(ctx context.Context, name, endpoint string, versions []string) error {
	if !slices.ContainsFunc(versions, func(v string) bool { return strings.HasPrefix(strings.TrimPrefix(v, "v"), "1.") }) {
		return fmt.Errorf("CSI driver %q offers versions %v: this node speaks 1.x", name, versions)
	}
	d.mu.Lock()
	old := d.drivers[name]
	d.mu.Unlock()
	if old != nil && old.endpoint == endpoint {
		old.conn.ResetConnectBackoff()
	}
	conn, err := grpc.NewClient("unix:"+strings.TrimPrefix(endpoint, "unix://"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(d.observe(name)))
	if err != nil {
		return fmt.Errorf("connecting to CSI driver %q: %w", name, err)
	}
	dr := &driver{name: name, endpoint: endpoint, conn: conn, node: spec.NewNodeClient(conn),
		caps: map[spec.NodeServiceCapability_RPC_Type]bool{}}
	if err := d.introduce(ctx, dr); err != nil {
		conn.Close()
		return fmt.Errorf("registering CSI driver %q: %w", name, err)
	}
	d.mu.Lock()
	d.drivers[name] = dr
	changed := d.changed
	d.mu.Unlock()
	if old != nil {
		old.conn.Close()
	}
	if changed != nil {
		changed()
	}
	return nil
}

// observe reports the calls to one driver.
func (d *Drivers) observe(name string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		start := time.Now()
		err := invoke(ctx, method, req, reply, conn, opts...)
		d.mu.Lock()
		called := d.called
		d.mu.Unlock()
		if called != nil {
			called(name, method, time.Since(start), err)
		}
		return err
	}
}

func (d *Drivers) introduce(ctx context.Context, dr *driver) error {
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	info, err := dr.node.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("asking for the node's id: %w", err)
	}
	if err := checkInfo(info); err != nil {
		return err
	}
	caps, err := dr.node.NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("asking for capabilities: %w", err)
	}
	for _, c := range caps.GetCapabilities() {
		dr.caps[c.GetRpc().GetType()] = true
	}
	if d.client == nil {
		return nil
	}
	return d.publish(ctx, dr.name, info)
}

// checkInfo refuses what the API could not hold or no one could act upon.
func checkInfo(info *spec.NodeGetInfoResponse) error {
	if id := info.GetNodeId(); id == "" || len(id) > 192 {
		return fmt.Errorf("the driver's id of the node has %d characters: allowed are 1 to 192", len(id))
	}
	if n := info.GetMaxVolumesPerNode(); n < 0 {
		return fmt.Errorf("the driver allows %d volumes on the node: must not be negative", n)
	}
	for key, value := range info.GetAccessibleTopology().GetSegments() {
		problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(problems) > 0 {
			return fmt.Errorf("the driver's topology %q=%q is no label: %s", key, value, strings.Join(problems, "; "))
		}
	}
	return nil
}

// renew asks a driver again how many volumes the node may have.
func (d *Drivers) renew(ctx context.Context, dr *driver) {
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	info, err := dr.node.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
	if err == nil {
		err = checkInfo(info)
	}
	if err == nil {
		d.api.Lock()
		defer d.api.Unlock()
		err = retryConflict(ctx, func() error { return d.publishCSINode(ctx, dr.name, info) })
	}
	if err != nil && ctx.Err() == nil {
		d.log.Warn("renewing what a CSI driver says of the node", "driver", dr.name, "err", err)
	}
}

// Deregister forgets a driver. Volumes stay; taking them down waits for the
// driver to come back.
func (d *Drivers) Deregister(name, endpoint string) {
	d.mu.Lock()
	dr := d.drivers[name]
	if dr == nil || dr.endpoint != endpoint {
		d.mu.Unlock()
		return
	}
	delete(d.drivers, name)
	d.mu.Unlock()
	dr.conn.Close()
	if d.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := d.publish(ctx, name, nil); err != nil {
		d.log.Warn("withdrawing a CSI driver from the node", "driver", name, "err", err)
	}
}

// Close ends all connections; the cluster keeps believing in the drivers.
func (d *Drivers) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dr := range d.drivers {
		dr.conn.Close()
	}
	d.drivers = map[string]*driver{}
}

// EnsureCSINode makes the node's CSINode object, which says that the agent is
// ready for drivers.
func (d *Drivers) EnsureCSINode(ctx context.Context) error {
	d.api.Lock()
	defer d.api.Unlock()
	_, err := d.csiNode(ctx)
	return err
}

func (d *Drivers) csiNode(ctx context.Context) (*storage.CSINode, error) {
	api := d.client.StorageV1().CSINodes()
	got, err := api.Get(ctx, d.nodeName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return got, err
	}
	node, err := d.client.CoreV1().Nodes().Get(ctx, d.nodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the node: %w", err)
	}
	got, err = api.Create(ctx, &storage.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name:            d.nodeName,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
	}, Spec: storage.CSINodeSpec{Drivers: []storage.CSINodeDriver{}}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return api.Get(ctx, d.nodeName, metav1.GetOptions{})
	}
	return got, err
}

// publish writes what a driver said into the CSINode, and its id and topology
// onto the Node; a nil info withdraws the driver.
func (d *Drivers) publish(ctx context.Context, name string, info *spec.NodeGetInfoResponse) error {
	d.api.Lock()
	defer d.api.Unlock()
	if err := retryConflict(ctx, func() error { return d.publishNode(ctx, name, info) }); err != nil {
		return fmt.Errorf("updating the node: %w", err)
	}
	if err := retryConflict(ctx, func() error { return d.publishCSINode(ctx, name, info) }); err != nil {
		return fmt.Errorf("updating the CSINode: %w", err)
	}
	return nil
}

func retryConflict(ctx context.Context, f func() error) error {
	for range 5 {
		err := f()
		if err == nil || !apierrors.IsConflict(err) || ctx.Err() != nil {
			return err
		}
	}
	return errors.New("the object kept changing")
}

func (d *Drivers) publishCSINode(ctx context.Context, name string, info *spec.NodeGetInfoResponse) error {
	cn, err := d.csiNode(ctx)
	if err != nil {
		return err
	}
	drivers := []storage.CSINodeDriver{}
	for _, dr := range cn.Spec.Drivers {
		if dr.Name != name {
			drivers = append(drivers, dr)
		}
	}
	if info != nil {
		next := storage.CSINodeDriver{Name: name, NodeID: info.NodeId, TopologyKeys: []string{}}
		for k := range info.GetAccessibleTopology().GetSegments() {
			next.TopologyKeys = append(next.TopologyKeys, k)
		}
		sort.Strings(next.TopologyKeys)
		if info.MaxVolumesPerNode > 0 {
			n := int32(min(info.MaxVolumesPerNode, 1<<31-1))
			next.Allocatable = &storage.VolumeNodeResources{Count: &n}
		}
		drivers = append(drivers, next)
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": cn.ResourceVersion},
		"spec":     map[string]any{"drivers": drivers},
	})
	if err != nil {
		return err
	}
	_, err = d.client.StorageV1().CSINodes().Patch(ctx, d.nodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (d *Drivers) publishNode(ctx context.Context, name string, info *spec.NodeGetInfoResponse) error {
	node, err := d.client.CoreV1().Nodes().Get(ctx, d.nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ids := map[string]string{}
	if text := node.Annotations[nodeIDAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			ids = map[string]string{} // not ours to keep when unreadable
		}
	}
	labels := map[string]string{}
	if info == nil {
		delete(ids, name)
	} else {
		ids[name] = info.NodeId
		for k, v := range info.GetAccessibleTopology().GetSegments() {
			if have, ok := node.Labels[k]; ok && have != v {
				return fmt.Errorf("driver %q puts the node at %s=%s, but the node is labelled %s=%s", name, k, v, k, have)
			}
			labels[k] = v
		}
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	var annotation any = string(text)
	if len(ids) == 0 {
		annotation = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion,
		"labels":          labels,
		"annotations":     map[string]any{nodeIDAnnotation: annotation},
	}})
	if err != nil {
		return err
	}
	_, err = d.client.CoreV1().Nodes().Patch(ctx, d.nodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// attached says whether the cluster reports a volume attached to the node.
func attached(node *v1.Node, volume v1.UniqueVolumeName) bool {
	if node == nil {
		return false
	}
	return slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == volume })
}

// Announce makes the CSINode once there is a Node to own it, and tries again
// until it is made or ctx ends.
func (d *Drivers) Announce(ctx context.Context, nodeSeen <-chan struct{}) error {
	select {
	case <-nodeSeen:
	case <-ctx.Done():
		return nil
	}
	retry := controller.Retry{Backoff: controller.Backoff{First: time.Second, Most: 5 * time.Minute}}
	for {
		err := d.EnsureCSINode(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		pause := retry.Failed()
		d.log.Warn("making the node's CSINode", "err", err, "retry", pause)
		controller.Sleep(ctx, pause)
	}
}
