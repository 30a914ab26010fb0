package proxy

// Tracer answers questions about packets from a proxy that runs.
type Tracer struct{ r *runner }

func (t *Tracer) attach(r *runner) func() { t.r = r; return func() {} }
