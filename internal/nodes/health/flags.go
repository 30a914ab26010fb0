package health

import "github.com/spf13/pflag"

// AddFlags declares the rules that upstream has as flags, under its names; what
// s holds are the defaults.
func (s *Settings) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&s.Grace, "node-monitor-grace-period", s.Grace, "how long a node may be silent before it is Unknown")
	fs.DurationVar(&s.StartupGrace, "node-startup-grace-period", s.StartupGrace, "the same for a node that never said whether it is ready")
	fs.Float64Var(&s.EvictionRate, "node-eviction-rate", s.EvictionRate, "NoExecute taints a second in a zone")
	fs.Float64Var(&s.SecondaryEvictionRate, "secondary-node-eviction-rate", s.SecondaryEvictionRate,
		"the same in a large zone that is partly disrupted; a small one stops")
	fs.Float64Var(&s.UnhealthyThreshold, "unhealthy-zone-threshold", s.UnhealthyThreshold,
		"share of nodes not ready from which a zone is partly disrupted")
	fs.IntVar(&s.LargeZone, "large-cluster-size-threshold", s.LargeZone, "a zone is large with more nodes than this")
}
