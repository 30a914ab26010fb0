// Package network connects the pods of all nodes: it watches Nodes and keeps
// this host's routes to their pod CIDRs, through VXLAN where no link is
// shared or WireGuard where all is encrypted, and masquerades what pods send
// out of the cluster.
//
// Decide is pure; the rest carries its plan into the kernel and changes only
// what differs.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/podutil"
)

const (
	// lookEvery is how often the host is looked at without any event: a
	// safety net.
	lookEvery = 5 * time.Minute
)

// changeRetry are the pauses before a failed change is made again.
var changeRetry = controller.Backoff{First: time.Second, Most: 10 * time.Second}

// Config is what the network of a node is made with.
type Config struct {
	NodeName string
	// Informers is shared with other roles; Run starts what it asks for.
	Informers informers.SharedInformerFactory
	// Mode must not be None.
	Mode Mode
	// ClusterCIDRs hold the pods of all nodes, one range a family.
	ClusterCIDRs []netip.Prefix
	// Tunnel names the VXLAN device, Instance the tables
	// ("<Instance>-egress"). Every cluster on one host needs its own.
	Tunnel, Instance string
	// WireGuard is the device of that mode, which every cluster on one host
	// needs its own of, too; in other modes its name is that of one to remove.
	WireGuard Device
	// Client writes this node's Annotation: in mode WireGuard it is needed, in
	// others it takes away what was written before.
	Client kubernetes.Interface
	Log    *slog.Logger

	// namespace is another network namespace than the caller's, in tests.
	namespace *netns.NsHandle
}

// table is the name of an instance's tables.
func table(instance string) string { return instance + "-egress" }

// tunnelTable is the name of the tables that let nodes alone into the tunnel.
func tunnelTable(instance string) string { return instance + "-tunnel" }

func (c *Config) complete() error {
	if c.NodeName == "" || c.Informers == nil || c.Tunnel == "" || c.Instance == "" || len(c.ClusterCIDRs) == 0 {
		return errors.New("configuring the pod network: NodeName, Informers, ClusterCIDRs, Tunnel and Instance are needed")
	}
	for _, name := range []string{c.Tunnel, c.WireGuard.Name} {
		if len(name) > 15 {
			return fmt.Errorf("configuring the pod network: the name %q has %d characters: the kernel allows 15", name, len(name))
		}
	}
	if c.Mode == "" {
		c.Mode = Auto
	}
	if c.Mode == None {
		return errors.New("configuring the pod network: with network none there is nothing to run")
	}
	if w := c.WireGuard; c.Mode == WireGuard && (c.Client == nil || w.Name == "" || w.Port == 0 || w.KeyFile == "") {
		return errors.New("configuring the pod network: mode wireguard needs Client and WireGuard's Name, Port and KeyFile")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// tables connects to nftables of the namespace.
func (c *Config) tables() (*nft.Netlink, error) {
	if c.namespace != nil {
		return nft.OpenAt(int(*c.namespace))
	}
	return nft.Open()
}

func (c *Config) hostNetwork() (*hostNetwork, error) {
	if c.namespace != nil {
		return openHost(c.ClusterCIDRs, c.Tunnel, c.WireGuard.Name, *c.namespace)
	}
	return openHost(c.ClusterCIDRs, c.Tunnel, c.WireGuard.Name)
}

// Run keeps the network as the Nodes say until ctx ends. What it made stays: a
// restart finds it and changes nothing. Cleanup removes it.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	m, err := cfg.hostNetwork()
	if err != nil {
		return err
	}
	defer m.close()
	names := linkNames{Tunnel: cfg.Tunnel, VNI: vniOf(cfg.ClusterCIDRs), Cluster: cfg.ClusterCIDRs, Guard: cfg.WireGuard.Name}
	if cfg.Mode == WireGuard {
		if m.guard.key, err = loadKey(cfg.WireGuard.KeyFile, cfg.Log); err != nil {
			return err
		}
		names.published = published{m.guard.key.public(), cfg.WireGuard.Port}
	}
	r := &runner{names: names, cfg: cfg, hostNetwork: m, nodes: cfg.Informers.Core().V1().Nodes().Lister(), wake: make(chan struct{}, 1)}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes, err := r.subscribe(ctx)
	if err != nil {
		return err
	}
	inf := cfg.Informers.Core().V1().Nodes().Informer()
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { r.trigger() }, DeleteFunc: func(any) { r.trigger() },
		UpdateFunc: func(old, now any) {
			was, ok := old.(*corev1.Node)
			is, ok2 := now.(*corev1.Node)
			// Most updates are of other things.
			if !ok || !ok2 || !same(nodeOf(was), nodeOf(is)) {
				r.trigger()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching nodes for the pod network: %w", err)
	}
	defer inf.RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	cfg.Informers.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		return nil
	}
	return r.loop(ctx, changes)
}

type runner struct {
	cfg         Config
	hostNetwork *hostNetwork
	names       linkNames
	nodes       corelisters.NodeLister
	wake        chan struct{}
	// masked is what masquerade was last written for.
	masked  []netip.Prefix
	written bool
	// fenced are the tunnel and the nodes that fence was last written for.
	fenced   string
	problems []string
}

func (r *runner) trigger() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// subscribe wakes the loop on changed links, addresses and routes. Its channel
// gets one message when that has ended, with ctx or because the kernel's
// messages got lost.
func (r *runner) subscribe(ctx context.Context) (<-chan struct{}, error) {
	links, addrs := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	routes := make(chan netlink.RouteUpdate, 256)
	lost := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	failed := func(err error) {
		r.cfg.Log.Warn("listening to the machine's network", "err", err)
	}
	err := errors.Join(
		netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: failed,
			Namespace: r.cfg.namespace}),
		netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: failed,
			Namespace: r.cfg.namespace}),
		netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: failed,
			Namespace: r.cfg.namespace}))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("listening to the machine's network: %w", err)
	}
	go func() {
		// Pods come and go with links of their own; only what the plan was
		// made of, or what it made, is worth a look.
		for links != nil || addrs != nil || routes != nil {
			select {
			case u, ok := <-links:
				if !ok {
					links = nil
					cancel() // the others must end too
				} else if u.Link.Attrs().MasterIndex == 0 {
					r.trigger()
				}
			case _, ok := <-addrs:
				if !ok {
					addrs = nil
					cancel() // the others must end too
				} else {
					r.trigger()
				}
			case u, ok := <-routes:
				if !ok {
					routes = nil
					cancel() // the others must end too
				} else if u.Protocol == protocol {
					r.trigger()
				}
			}
		}
		lost <- struct{}{}
	}()
	return lost, nil
}

func (r *runner) loop(ctx context.Context, lost <-chan struct{}) error {
	retry := controller.Retry{Backoff: changeRetry}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			<-lost
			return nil
		case <-lost:
			if ctx.Err() != nil {
				return nil
			}
			return errors.New("the kernel does not tell of changes of the network any more")
		case <-r.wake:
		case <-next.C:
		}
		after := lookEvery + rand.N(lookEvery/5)
		if err := r.step(ctx); err != nil {
			after = retry.Failed()
			r.cfg.Log.Error("setting up the pod network failed, trying again", "after", after, "err", err)
		} else {
			retry.Succeeded()
		}
		next.Reset(after)
	}
}

func (r *runner) step(ctx context.Context) error {
	list, err := r.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	var nodes []clusterNode
	for _, n := range list {
		nodes = append(nodes, nodeOf(n))
	}
	links, err := r.hostNetwork.links()
	if err != nil {
		return err
	}
	p := decide(r.cfg.Mode, r.cfg.NodeName, nodes, links, r.names)
	if !slices.Equal(p.Problems, r.problems) {
		for _, problem := range p.Problems {
			r.cfg.Log.Warn("pods of a node cannot be reached", "because", problem)
		}
		r.problems = p.Problems
	}
	if len(p.Own) > 0 && (!r.written || !slices.Equal(p.Own, r.masked)) {
		if err := r.cfg.masquerade(p.Own, p.guardName()); err != nil {
			return err
		}
		r.masked, r.written = p.Own, true
	}
	if err := r.fence(p.Tunnel, nodes); err != nil {
		return err
	}
	if len(p.Own) == 0 {
		return nil // not a node yet: nothing is known of what it should reach
	}
	changed, err := r.hostNetwork.apply(p)
	if changed > 0 {
		r.cfg.Log.Info("changed the pod network", "changes", changed, "routes", len(p.Routes), "tunnelled nodes", len(p.Forwards)+p.peers())
	}
	return errors.Join(err, r.publish(ctx, p.Guard, nodes))
}

// fence keeps the table of those who may send into the tunnel as the nodes are.
// It is written before the tunnel is made.
func (r *runner) fence(t *tunnel, nodes []clusterNode) error {
	var from []netip.Addr
	for _, n := range nodes {
		if n.Name != r.cfg.NodeName {
			from = append(from, n.IPs...)
		}
	}
	slices.SortFunc(from, netip.Addr.Compare)
	from = slices.Compact(from)
	state := "no tunnel"
	if t != nil {
		state = fmt.Sprint(t.Local, t.VNI, from)
	}
	if state == r.fenced {
		return nil
	}
	if err := r.cfg.fence(t, from); err != nil {
		return err
	}
	r.fenced = state
	return nil
}

func (c *Config) fence(t *tunnel, from []netip.Addr) error {
	k, err := c.tables()
	if err != nil {
		return err
	}
	defer k.Close()
	return fence(k, tunnelTable(c.Instance), t, from)
}

// masquerade writes the tables for these ranges of own pods, or removes them if
// there are none.
func (c *Config) masquerade(own []netip.Prefix, guard string) error {
	k, err := c.tables()
	if err != nil {
		return err
	}
	defer k.Close()
	return masquerade(k, table(c.Instance), own, c.ClusterCIDRs, guard)
}

// publishFor is how long a node waits for the API to take its annotation;
// meanwhile it looks at nothing else.
const publishFor = 10 * time.Second

// publish tells the others of this node's WireGuard device, or that it has none
// any more. Only this one annotation is touched.
func (r *runner) publish(ctx context.Context, g *guard, nodes []clusterNode) error {
	var want *string // null removes it
	have := ""
	if g != nil {
		s := g.published.String()
		want = &s
	}
	if i := slices.IndexFunc(nodes, func(n clusterNode) bool { return n.Name == r.cfg.NodeName }); i >= 0 {
		have = nodes[i].Published
	}
	if have == ptr.Deref(want, "") || r.cfg.Client == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{Annotation: want}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishFor)
	defer cancel()
	_, err = r.cfg.Client.CoreV1().Nodes().Patch(ctx, r.cfg.NodeName, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "berth-network"})
	if err != nil {
		return fmt.Errorf("writing annotation %s of node %s, without which others do not send to it: %w", Annotation, r.cfg.NodeName, err)
	}
	return nil
}

// nodeOf picks what the network must know of a Node.
func nodeOf(n *corev1.Node) clusterNode {
	out := clusterNode{Name: n.Name, Published: n.Annotations[Annotation]}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out.IPs = append(out.IPs, ip.Unmap())
		}
	}
	for _, c := range podutil.PodCIDRs(n) {
		if p, err := netip.ParsePrefix(c); err == nil {
			out.PodCIDRs = append(out.PodCIDRs, p.Masked())
		}
	}
	return out
}

func same(a, b clusterNode) bool {
	return a.Name == b.Name && slices.Equal(a.IPs, b.IPs) && slices.Equal(a.PodCIDRs, b.PodCIDRs) && a.Published == b.Published
}

// Cleanup removes the routes, the devices and the tables of a cluster, and
// nothing else. It is no error when there are none.
func Cleanup(instance, tunnel, wireguard string, clusterCIDRs []netip.Prefix) error {
	cfg := Config{Instance: instance, Tunnel: tunnel, WireGuard: Device{Name: wireguard}, ClusterCIDRs: clusterCIDRs}
	return cfg.cleanup()
}

func (c *Config) cleanup() error {
	m, err := c.hostNetwork()
	if err != nil {
		return err
	}
	defer m.close()
	_, err = m.apply(plan{})
	return errors.Join(err, c.masquerade(nil, ""), c.fence(nil, nil))
}

// PodMTU is the MTU of pods' links on a node with this address, so that what
// they send fits through every way of the mode. An address that no link has
// (one that a router translates) is taken to be behind Ethernet.
func PodMTU(mode Mode, node netip.Addr) (int, error) {
	m, err := openHost(nil, "", "")
	if err != nil {
		return 0, err
	}
	defer m.close()
	links, err := m.links()
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr() == node }) {
			return min(l.MTU, 65535) - mode.Overhead(node), nil
		}
	}
	return 1500 - mode.Overhead(node), nil
}
