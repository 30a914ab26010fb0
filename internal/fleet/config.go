// Package fleet runs thousands of hollow nodes in one process: Node objects
// that register, renew their leases, post their status and run pods by the
// agent's own code, on hosts that are not there.
package fleet

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// Label is on every Node and Pod that a fleet makes; its value is the prefix.
const Label = "berth.dev/fleet"

// Config is a fleet. Client, Prefix, Nodes, Log and Out are required.
type Config struct {
	// Client reaches the API server; its rate limit is lifted.
	Client *rest.Config
	Nodes  int
	// Prefix begins the nodes' names: prefix-0 and so on.
	Prefix string
	Labels map[string]string
	// Zones is how many zones the nodes are dealt out over, zone-a and so on;
	// none for 0.
	Zones int
	// LeaseSeconds is each lease's duration; it is renewed four times as often.
	LeaseSeconds int32
	// ReportEvery is how often an unchanged status is posted.
	ReportEvery time.Duration
	// CPUs, Memory and MaxPods are each host's.
	CPUs    int
	Memory  resource.Quantity
	MaxPods int64
	// Pods is how many pods are made for each node; others may be scheduled.
	Pods int
	// RegisterRate is how many nodes a second begin.
	RegisterRate float64
	// Version is what nodes say their agent's is.
	Version string
	Script  script
	// Duration ends the fleet; 0 runs until the context does.
	Duration time.Duration
	// Keep leaves Nodes, leases and pods behind.
	Keep bool
	// Events of the agents; nil drops them.
	Events record.EventRecorder
	Log    *slog.Logger
	// Out gets progress every ProgressEvery (10 s when 0) and the summary.
	Out           io.Writer
	ProgressEvery time.Duration
}

func (c *Config) complete() error {
	switch {
	case c.Client == nil || c.Log == nil || c.Out == nil:
		return errors.New("configuring a fleet: Client, Log and Out are required")
	case c.Nodes < 1:
		return fmt.Errorf("configuring a fleet: %d nodes: must be at least 1", c.Nodes)
	case c.LeaseSeconds < 1:
		return fmt.Errorf("configuring a fleet: leases of %d s: must be at least 1", c.LeaseSeconds)
	case c.Zones < 0 || c.Zones > 26:
		return fmt.Errorf("configuring a fleet: %d zones: must be from 0 to 26", c.Zones)
	case c.Pods < 0 || int64(c.Pods) > c.MaxPods:
		return fmt.Errorf("configuring a fleet: %d pods a node: must be from 0 to the %d that a node takes", c.Pods, c.MaxPods)
	case c.CPUs < 1 || c.Memory.Sign() <= 0 || c.MaxPods < 1:
		return fmt.Errorf("configuring a fleet: %d CPUs, memory %s, %d pods: each must be more than 0", c.CPUs, c.Memory.String(),
			c.MaxPods)
	case c.RegisterRate <= 0:
		return fmt.Errorf("configuring a fleet: %g registrations a second: must be more than 0", c.RegisterRate)
	}
	if problems := validation.IsDNS1123Subdomain(c.Prefix + "-0"); len(problems) > 0 {
		return fmt.Errorf("configuring a fleet: name prefix %q: %s", c.Prefix, strings.Join(problems, "; "))
	}
	if c.ProgressEvery == 0 {
		c.ProgressEvery = 10 * time.Second
	}
	if c.Events == nil {
		c.Events = noEvents{}
	}
	return nil
}
