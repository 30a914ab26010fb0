package resource

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// property is one setting of a systemd unit.
type property struct {
	Name  string
	Value any
}

// Units is what the systemd driver needs of systemd. Slices are started
// through it because systemd resets cgroups that it did not make itself.
type Units interface {
	// StartSlice makes a slice with properties; one that exists is no error.
	StartSlice(name string, props []property) error
	// SetProperties changes a running slice, until the next boot only.
	SetProperties(name string, props []property) error
	// StopSlice ends a slice and all below it; one that is gone is no error.
	StopSlice(name string) error
}

// unitProperties spells limits as systemd properties. Limits without one
// (huge pages) are only written to their files, by the caller.
func unitProperties(version int, l Limits) []property {
	var out []property
	if l.CPUShares != 0 {
		if version == 2 {
			out = append(out, property{"CPUWeight", cpuWeight(l.CPUShares)})
		} else {
			out = append(out, property{"CPUShares", l.CPUShares})
		}
	}
	if l.CPUQuota != 0 {
		perSec := uint64(math.MaxUint64)
		period := l.CPUPeriod
		if period == 0 {
			period = DefaultCPUPeriodMicros
		}
		if l.CPUQuota > 0 {
			perSec = uint64(l.CPUQuota) * 1_000_000 / period
			// systemd keeps whole percents of a CPU; round up, or the slice
			// gets less than the pod was promised.
			if rest := perSec % 10_000; rest != 0 {
				perSec += 10_000 - rest
			}
		}
		out = append(out, property{"CPUQuotaPerSecUSec", perSec}, property{"CPUQuotaPeriodUSec", period})
	}
	if l.MemoryLimit != 0 {
		name := "MemoryMax"
		if version == 1 {
			name = "MemoryLimit"
		}
		out = append(out, property{name, unlimitedOr(l.MemoryLimit)})
	}
	if l.PidsLimit != 0 {
		out = append(out, property{"TasksMax", unlimitedOr(l.PidsLimit)})
	}
	if version == 2 {
		out = append(out, protection(l.Unified)...)
	}
	return out
}

// protection spells what guards memory from reclaim. systemd writes its own
// idea of it whenever it writes a slice again: unless told, none.
func protection(unified map[string]string) []property {
	var out []property
	for _, p := range []struct{ file, property string }{{memoryMin, "MemoryMin"}, {memoryLow, "MemoryLow"}} {
		if n, err := strconv.ParseUint(unified[p.file], 10, 64); err == nil {
			out = append(out, property{p.property, n})
		}
	}
	return out
}

func unlimitedOr(v int64) uint64 {
	if v == Unlimited {
		return math.MaxUint64
	}
	return uint64(v)
}

// systemdUnits is Units over the system bus.
type systemdUnits struct {
	conn *systemd.Conn
	// timeout bounds each call: a hung systemd costs one pod one call.
	timeout time.Duration
}

// ConnectSystemd opens the system bus. Close it with Close.
func ConnectSystemd(ctx context.Context) (*systemdUnits, error) {
	conn, err := systemd.NewWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to systemd: %w; set the cgroup driver to %q on hosts without systemd", err, Cgroupfs)
	}
	return &systemdUnits{conn: conn, timeout: 30 * time.Second}, nil
}

// Close ends the connection.
func (s *systemdUnits) Close() { s.conn.Close() }

// StartSlice makes the slice and waits for the job's result.
func (s *systemdUnits) StartSlice(name string, props []property) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	all := append(busProperties(props),
		systemd.PropDescription("pods of the node agent: "+name),
		systemd.Property{Name: "DefaultDependencies", Value: dbus.MakeVariant(false)},
		systemd.Property{Name: "CPUAccounting", Value: dbus.MakeVariant(true)},
		systemd.Property{Name: "MemoryAccounting", Value: dbus.MakeVariant(true)},
		systemd.Property{Name: "TasksAccounting", Value: dbus.MakeVariant(true)},
		systemd.Property{Name: "IOAccounting", Value: dbus.MakeVariant(true)},
	)
	done := make(chan string, 1)
	_, err := s.conn.StartTransientUnitContext(ctx, name, "replace", all, done)
	if isBusError(err, "org.freedesktop.systemd1.UnitExists") {
		return nil
	}
	if err != nil {
		return err
	}
	return s.finish(ctx, name, done)
}

// SetProperties changes the running unit.
func (s *systemdUnits) SetProperties(name string, props []property) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return s.conn.SetUnitPropertiesContext(ctx, name, true, busProperties(props)...)
}

// StopSlice stops the unit and waits for the job's result.
func (s *systemdUnits) StopSlice(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	done := make(chan string, 1)
	_, err := s.conn.StopUnitContext(ctx, name, "replace", done)
	if isBusError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return nil
	}
	if err != nil {
		return err
	}
	return s.finish(ctx, name, done)
}

func (s *systemdUnits) finish(ctx context.Context, name string, done <-chan string) error {
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("systemd job for %s ended as %q", name, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for systemd job for %s: %w", name, ctx.Err())
	}
}

func busProperties(props []property) []systemd.Property {
	out := make([]systemd.Property, 0, len(props))
	for _, p := range props {
		out = append(out, systemd.Property{Name: p.Name, Value: dbus.MakeVariant(p.Value)})
	}
	return out
}

func isBusError(err error, name string) bool {
	e, ok := err.(dbus.Error)
	return ok && e.Name == name
}
