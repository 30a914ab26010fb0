package sim

// SVG draws runs of one scenario below each other.
func SVG(runs []*Result) []byte { return nil }
