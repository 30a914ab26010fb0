package stats

import (
	"context"
	"io"
	"strconv"
	"time"
)

// family writes the samples of one metric in the Prometheus text format.
type family struct{ buf []byte }

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
	f.buf = append(f.buf, name...)
	for i := 0; i+1 < len(labels); i += 2 {
		if i == 0 {
			f.buf = append(f.buf, '{')
		} else {
			f.buf = append(f.buf, ',')
		}
		f.buf = append(f.buf, labels[i]...)
		f.buf = append(f.buf, '=', '"')
		f.buf = appendEscaped(f.buf, labels[i+1])
		f.buf = append(f.buf, '"')
	}
	if len(labels) > 1 {
		f.buf = append(f.buf, '}')
	}
	f.buf = append(f.buf, ' ')
	f.buf = strconv.AppendFloat(f.buf, value, 'g', -1, 64)
	if !at.IsZero() {
		f.buf = append(f.buf, ' ')
		f.buf = strconv.AppendInt(f.buf, at.UnixMilli(), 10)
	}
	f.buf = append(f.buf, '\n')
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
	pods, err := p.measure(ctx, CPU|Memory|Swap, false)
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
	f := &family{}
	f.header("container_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the container in core-seconds")
	f.containers(pods, now, "container_cpu_usage_seconds_total", func(c *measuredContainer) float64 { return seconds(c.usage.CPU) })
	f.header("container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes")
	f.containers(pods, now, "container_memory_working_set_bytes", func(c *measuredContainer) float64 { return float64(c.usage.WorkingSet) })
	f.header("container_start_time_seconds", "gauge", "[STABLE] Start time of the container since unix epoch in seconds")
	f.containers(pods, now, "container_start_time_seconds", func(c *measuredContainer) float64 { return float64(c.started.UnixNano()) / 1e9 })
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
	_, err = out.Write(f.buf)
	return err
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
