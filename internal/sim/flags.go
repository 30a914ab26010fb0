package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/nodes/health"
)

// settings are the flags' values.
type settings struct {
	health             health.Settings
	notReadySeconds    int64
	unreachableSeconds int64
	leaseSeconds       int32
	statusEvery        time.Duration
}

func defaults() settings {
	return settings{health: health.Defaults(), notReadySeconds: 300, unreachableSeconds: 300, leaseSeconds: 40,
		statusEvery: 5 * time.Minute}
}

// flags are the names that a scenario may set, with what they set.
var flags = map[string]func(*settings, string) error{
	"node-monitor-grace-period":    span(func(s *settings) *time.Duration { return &s.health.Grace }),
	"node-startup-grace-period":    span(func(s *settings) *time.Duration { return &s.health.StartupGrace }),
	"node-eviction-rate":           number(func(s *settings) *float64 { return &s.health.EvictionRate }),
	"secondary-node-eviction-rate": number(func(s *settings) *float64 { return &s.health.SecondaryEvictionRate }),
	"unhealthy-zone-threshold":     number(func(s *settings) *float64 { return &s.health.UnhealthyThreshold }),
	"large-cluster-size-threshold": func(s *settings, v string) (err error) {
		s.health.LargeZone, err = strconv.Atoi(v)
		return err
	},
	"default-not-ready-toleration-seconds":   whole(func(s *settings) *int64 { return &s.notReadySeconds }),
	"default-unreachable-toleration-seconds": whole(func(s *settings) *int64 { return &s.unreachableSeconds }),
	"node-lease-duration-seconds": func(s *settings, v string) error {
		n, err := strconv.ParseInt(v, 10, 32)
		if err == nil && n < 1 {
			err = fmt.Errorf("must be at least 1")
		}
		s.leaseSeconds = int32(n)
		return err
	},
	"node-status-report-frequency": span(func(s *settings) *time.Duration { return &s.statusEvery }),
}

func span(of func(*settings) *time.Duration) func(*settings, string) error {
	return func(s *settings, v string) error {
		d, err := time.ParseDuration(v)
		if err == nil && d <= 0 {
			err = fmt.Errorf("must be more than 0")
		}
		*of(s) = d
		return err
	}
}

func number(of func(*settings) *float64) func(*settings, string) error {
	return func(s *settings, v string) (err error) { *of(s), err = strconv.ParseFloat(v, 64); return err }
}

func whole(of func(*settings) *int64) func(*settings, string) error {
	return func(s *settings, v string) (err error) { *of(s), err = strconv.ParseInt(v, 10, 64); return err }
}

// allFlags lists the flags that a scenario may set.
func allFlags() []string { return slices.Sorted(maps.Keys(flags)) }

func (s *settings) set(name, value string) error {
	f := flags[name]
	if f == nil {
		return fmt.Errorf("flags: %q is not one that the simulation knows; allowed are %s", name, strings.Join(allFlags(), ", "))
	}
	if err := f(s, value); err != nil {
		return fmt.Errorf("flags: %s=%s: %w", name, value, err)
	}
	return nil
}

func (sc *Scenario) settings() (settings, error) {
	s := defaults()
	for _, name := range slices.Sorted(maps.Keys(sc.Flags)) {
		if err := s.set(name, fmt.Sprint(sc.Flags[name])); err != nil {
			return s, err
		}
	}
	if err := s.health.Validate(); err != nil {
		return s, fmt.Errorf("flags: %w", err)
	}
	return s, nil
}

// With returns the scenario with some flags changed: "name=value,name=value".
func (sc *Scenario) With(changes string) (*Scenario, error) {
	out := *sc
	out.Flags = maps.Clone(sc.Flags)
	if out.Flags == nil {
		out.Flags = map[string]any{}
	}
	for _, c := range strings.Split(changes, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(c), "=")
		if !ok {
			return nil, fmt.Errorf("%q: write flag changes as name=value,name=value", c)
		}
		out.Flags[strings.TrimLeft(name, "-")] = value
	}
	_, err := out.settings()
	return &out, err
}
