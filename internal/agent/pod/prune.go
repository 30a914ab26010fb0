package pod

// prune removes what no longer tells anything: all but the newest two
// instances of a container, and sandboxes before the current one that hold
// nothing worth keeping.
func (p *planner) prune() bool {
	seen := map[string]int{}
	keep := map[string]bool{}
	for _, c := range p.held() {
		if seen[c.Name]++; seen[c.Name] <= 2 || alive(c) {
			keep[c.SandboxID] = true
			continue
		}
		p.emit(action{Kind: Remove, Container: c.Name, ID: c.ID}, fact("instances kept", "2"))
	}
	if p.cur == nil {
		return true
	}
	for _, b := range p.obs.Runtime.Sandboxes {
		switch {
		case b.ID == p.cur.ID || keep[b.ID]:
		case !p.obs.Stopped[b.ID]:
			p.emit(action{Kind: StopSandbox, ID: b.ID}, fact("sandbox", "not the current one"))
		case !p.holds(b.ID):
			p.emit(action{Kind: RemoveSandbox, ID: b.ID}, fact("sandbox", "not the current one"))
		}
	}
	return true
}

func (p *planner) holds(sandboxID string) bool {
	for _, c := range p.held() {
		if c.SandboxID == sandboxID {
			return true
		}
	}
	return false
}
