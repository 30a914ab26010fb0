package stats

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"
)

// family writes the samples of metrics in the Prometheus text format, in
// pieces: a scrape of a full node is over a megabyte.
type family struct {
	out    io.Writer
	pooled *[]byte
	buf    []byte
	err    error
}

// piece is how much text is written at once.
const piece = 32 << 10

var pieces = sync.Pool{New: func() any {
	buf := make([]byte, 0, piece+4<<10)
	return &buf
}}

func newFamily(out io.Writer) *family {
	pooled := pieces.Get().(*[]byte)
	return &family{out: out, pooled: pooled, buf: (*pooled)[:0]}
}

// close writes what is left and returns the first error of writing.
func (f *family) close() error {
	f.flush()
	*f.pooled = f.buf
	pieces.Put(f.pooled)
	f.pooled, f.buf = nil, nil
	return f.err
}

func (f *family) flush() {
	if f.err == nil {
		_, f.err = f.out.Write(f.buf)
	}
	f.buf = f.buf[:0]
}

func (f *family) header(name, kind, help string) {
	f.buf = append(f.buf, "# HELP "...)
	f.buf = append(f.buf, name...)
	f.buf = append(f.buf, ' ')
	f.buf = append(f.buf, help...)
	f.buf = append(f.buf, "\n# TYPE "...)
	f.buf = append(f.buf, name...)
	f.buf = append(f.buf, ' ')
	f.buf = append(f.buf, kind...)
	f.buf = append(f.buf, '\n')
}

// sample writes one value; labels alternate names and values; a zero time
// leaves the time stamp out.
func (f *family) sample(name string, value float64, at time.Time, labels ...string) {
	f.labelled(name, value, at, nil, labels...)
}

// labelled is sample with labels before the others that are text already.
func (f *family) labelled(name string, value float64, at time.Time, first []byte, labels ...string) {
	f.buf = append(f.buf, name...)
	if len(first) > 0 || len(labels) > 1 {
		f.buf = append(f.buf, '{')
		f.buf = append(f.buf, first...)
		if len(first) > 0 && len(labels) > 1 {
			f.buf = append(f.buf, ',')
		}
		f.buf = appendLabels(f.buf, labels...)
		f.buf = append(f.buf, '}')
	}
	f.buf = append(f.buf, ' ')
	f.buf = strconv.AppendFloat(f.buf, value, 'g', -1, 64)
	if !at.IsZero() {
		f.buf = append(f.buf, ' ')
		f.buf = strconv.AppendInt(f.buf, at.UnixMilli(), 10)
	}
	f.buf = append(f.buf, '\n')
	if len(f.buf) >= piece {
		f.flush()
	}
}

func appendLabels(buf []byte, labels ...string) []byte {
	for i := 0; i+1 < len(labels); i += 2 {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = append(buf, labels[i]...)
		buf = append(buf, '=', '"')
		buf = appendEscaped(buf, labels[i+1])
		buf = append(buf, '"')
	}
	return buf
}

func appendEscaped(buf []byte, text string) []byte {
	for i := range len(text) {
		switch text[i] {
		case '\\', '"':
			buf = append(buf, '\\', text[i])
		case '\n':
			buf = append(buf, '\\', 'n')
		default:
			buf = append(buf, text[i])
		}
	}
	return buf
}

func seconds(nanos uint64) float64 { return float64(nanos) / 1e9 }

// WriteResource writes the metrics that metrics-server scrapes.
func (p *Provider) WriteResource(ctx context.Context, out io.Writer) error {
	pods, err := p.measure(ctx, wants{parts: CPU | Memory | Swap})
	if err != nil {
		return err
	}
	node, err := p.cfg.Reader.Read("/", CPU|Memory)
	if err != nil {
		return err
	}
	b := &builder{p: p}
	b.fixRoot(&node)
	now := p.cfg.Now()
	f := newFamily(out)
	f.header("container_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the container in core-seconds")
	f.containers(pods, now, "container_cpu_usage_seconds_total", func(c *measuredContainer) float64 { return seconds(c.usage.CPU) })
	f.header("container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes")
	f.containers(pods, now, "container_memory_working_set_bytes", func(c *measuredContainer) float64 { return float64(c.usage.WorkingSet) })
	f.header("container_start_time_seconds", "gauge", "[STABLE] Start time of the container since unix epoch in seconds")
	f.containers(pods, now, "container_start_time_seconds",
		func(c *measuredContainer) float64 { return float64(c.started.UnixNano()) / 1e9 })
	f.header("container_swap_limit_bytes", "gauge", "[ALPHA] Current amount of the container swap limit in bytes")
	f.containers(pods, now, "container_swap_limit_bytes", func(c *measuredContainer) float64 { return float64(c.usage.SwapLimit) })
	f.header("container_swap_usage_bytes", "gauge", "[ALPHA] Current amount of the container swap usage in bytes")
	f.containers(pods, now, "container_swap_usage_bytes", func(c *measuredContainer) float64 { return float64(c.usage.Swap) })
	f.header("node_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the node in core-seconds")
	f.sample("node_cpu_usage_seconds_total", seconds(node.CPU), now)
	f.header("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes")
	f.sample("node_memory_working_set_bytes", float64(node.WorkingSet), now)
	f.header("node_swap_usage_bytes", "gauge", "[ALPHA] Current swap usage of the node in bytes")
	f.sample("node_swap_usage_bytes", float64(node.Swap), now)
	f.header("pod_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds")
	f.pods(pods, now, "pod_cpu_usage_seconds_total", func(m *measured) float64 { return seconds(m.usage.CPU) })
	f.header("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes")
	f.pods(pods, now, "pod_memory_working_set_bytes", func(m *measured) float64 { return float64(m.usage.WorkingSet) })
	f.header("pod_swap_usage_bytes", "gauge", "[ALPHA] Current amount of the pod swap usage in bytes")
	f.pods(pods, now, "pod_swap_usage_bytes", func(m *measured) float64 { return float64(m.usage.Swap) })
	f.header("resource_scrape_error", "gauge", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise")
	f.sample("resource_scrape_error", 0, time.Time{})
	return f.close()
}

func (f *family) containers(pods []measured, at time.Time, name string, value func(*measuredContainer) float64) {
	for i := range pods {
		for j := range pods[i].containers {
			c := &pods[i].containers[j]
			f.sample(name, value(c), at, "container", c.name, "pod", pods[i].pod.Name, "namespace", pods[i].pod.Namespace)
		}
	}
}

func (f *family) pods(pods []measured, at time.Time, name string, value func(*measured) float64) {
	for i := range pods {
		f.sample(name, value(&pods[i]), at, "pod", pods[i].pod.Name, "namespace", pods[i].pod.Namespace)
	}
}
