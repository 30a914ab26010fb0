package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/agent/launch"
	"github.com/berth-dev/berth/internal/cluster/host"
	podnetwork "github.com/berth-dev/berth/internal/network"
)

// filterBridge has packets between pods on one bridge pass the rules, before
// the policies and the proxy look whether they can count on it.
func (u *up) filterBridge(ctx context.Context) error {
	if u.bridge() == "" {
		return nil
	}
	switch loaded, err := host.LoadBridgeFilter(ctx); {
	case err != nil:
		u.clock.note("node", fmt.Sprintf("policies do not hold between pods on one bridge: %v", err))
	case loaded:
		u.log.Info("loaded br_netfilter, so that packets between pods on one bridge pass the rules of Services and policies")
	}
	return nil
}

// startAgent runs the agent and waits for the node to be Ready.
func (u *up) startAgent(ctx context.Context) error {
	ended := make(chan error, refusals)
	u.keep("agent", func(ctx context.Context) error {
		err := launch.Run(ctx, u.agent)
		select {
		case ended <- err:
		default: // it was read long enough
		}
		return err
	})
	return u.clock.stage("node", func() (string, error) {
		state, err := u.waitNodeReady(ctx, ended)
		if err != nil {
			return "", err
		}
		if u.requestsServing() {
			err = u.waitServing(ctx)
		}
		if err == nil && u.Role.control() {
			err = u.nameRole(ctx)
		}
		return state, err
	})
}

// waitServing returns when the agent's API can be reached: its certificate is
// requested and approved while the node is already Ready, and until then
// no one could read logs. A cluster whose approver is slow is no failure.
func (u *up) waitServing(ctx context.Context) error {
	// Whether there is a certificate is the question, not whose: the CA of
	// agents' servers is not known to nodes, this is the host's own agent, and
	// nothing is sent to it. Without one it ends the handshake.
	dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}} //nolint:gosec // see above
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.NodeIP, strconv.Itoa(u.Ports.Agent)))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			u.clock.note("node", "its serving certificate is not approved yet: until then logs and exec do not work (kubectl get csr)")
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// nameRole labels this node as what it is. A node may not claim a role for
// itself (NodeRestriction), so the cluster does it.
func (u *up) nameRole(ctx context.Context) error {
	patch := []byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
	_, err := u.client.CoreV1().Nodes().Patch(ctx, u.NodeName, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: "berth-up"})
	if err != nil {
		return fmt.Errorf("labelling the node: %w", err)
	}
	return nil
}

// refusals is how often in a row the agent may end before a start is given up.
// What does not pass by itself, such as a configuration that does not fit the
// host, is reported within two seconds then, and a runtime that stumbles is not
// taken for it.
const refusals = 3

// waitNodeReady returns when the Node object says Ready, in words of this
// start: what an earlier one left there proves nothing. ended tells each time
// that the agent ends.
// A node whose network is another party's may wait for that: it can only be
// installed once the cluster is up.
func (u *up) waitNodeReady(ctx context.Context, ended <-chan error) (state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	since := u.clock.began.Truncate(time.Second) // as times are in objects
	words := make(chan v1.NodeCondition)
	look := func(obj any) {
		n, ok := obj.(*v1.Node)
		if !ok || n.Name != u.NodeName {
			return
		}
		for _, c := range n.Status.Conditions {
			if c.Type != v1.NodeReady || c.LastHeartbeatTime.Time.Before(since) {
				continue
			}
			select {
			case words <- c:
			case <-ctx.Done():
			}
		}
	}
	inf := u.informers.Core().V1().Nodes().Informer()
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }})
	if err != nil {
		return "", fmt.Errorf("watching the node: %w", err)
	}
	defer inf.RemoveEventHandler(reg) //nolint:errcheck // the informer may be gone
	last := "the agent did not report"
	for ends := 0; ; {
		select {
		case c := <-words:
			if c.Status == v1.ConditionTrue {
				return "Ready", nil
			}
			if last = c.Message; u.Network == podnetwork.None && strings.HasPrefix(last, "container runtime network not ready") {
				return "not Ready before a pod network is installed: its CNI configuration goes to " + u.Layout().CNIConfDir(), nil
			}
		case err := <-ended:
			if err == nil {
				continue // it was asked to: this start ends too
			}
			last = err.Error()
			if ends++; ends == refusals {
				return "", fmt.Errorf("the agent ended %d times in a row: %w (see logs/agent.log in the data directory)", ends, err)
			}
		case <-ctx.Done():
			return "", fmt.Errorf("the node is not Ready: %s (see logs/agent.log in the data directory): %w", last, ctx.Err())
		}
	}
}
