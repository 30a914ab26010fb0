package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// startControllers runs the scheduler and the controllers.
func (u *up) startControllers(parts context.Context) error {
	u.informers.Start(parts.Done())
	return nil
}

// startNode runs the agent and the proxy and waits for the node to be Ready.
func (u *up) startNode(ctx, parts context.Context) error {
	return nil
}

// status gathers the answer of the control socket.
func (u *up) status(ctx context.Context) Status {
	u.mu.Lock()
	ready, readyIn := u.ready, u.readyIn
	u.mu.Unlock()
	s := Status{
		PID: os.Getpid(), Since: u.clock.began, DataDir: u.DataDir, Instance: u.Instance(), Settings: u.Settings, NodeIP: u.NodeIP,
		Ready: ready, ReadyIn: readyIn, Parts: u.crew.snapshot(), Notes: append(u.facts.Notes(), u.notes...),
	}
	if u.runtime != nil {
		s.RuntimeP = u.runtime.PID()
		s.Runtime = fmt.Sprintf("containerd (bundled), process %d, %s, %s", s.RuntimeP, u.runtime.OCIRuntime, u.runtime.Snapshotter)
	} else {
		s.Runtime = u.RuntimeEndpoint
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	check := func(name string, err error) {
		c := Check{Name: name, OK: err == nil}
		if err != nil {
			c.Detail = err.Error()
		}
		s.Checks = append(s.Checks, c)
	}
	check("store", u.store.Health(ctx))
	_, err := u.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	check("api", err)
	return s
}

func trimUnix(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }
