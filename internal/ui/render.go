package ui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/ui/view"
	"github.com/berth-dev/berth/internal/why"
	"github.com/berth-dev/berth/internal/why/ask"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

var templates = template.Must(template.New("").Funcs(functions).ParseFS(templateFiles, "templates/*.html"))

// assetTypes are the files beside the pages. Their addresses name their content.
var assetTypes = map[string]string{"ui.css": "text/css; charset=utf-8", "ui.js": "text/javascript; charset=utf-8",
	"icon.svg": "image/svg+xml"}

// asset serves a file beside the pages.
func asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	kind, ok := assetTypes[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	body, err := assetFiles.ReadFile("assets/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "private, max-age=86400, immutable")
	w.Write(body) //nolint:errcheck // a client that left is no concern
}

// versions are those of the assets, for their addresses.
var versions = func() map[string]string {
	out := map[string]string{}
	for name := range assetTypes {
		body, err := assetFiles.ReadFile("assets/" + name)
		if err != nil {
			panic(err) // the name of an embedded file is misspelt
		}
		out[name] = fmt.Sprintf("%x", sha256.Sum256(body))[:12]
	}
	return out
}()

// rendered is a page without what stands around it.
type rendered struct {
	main   []byte
	title  string
	status int
	now    time.Time
	nodes  []string // whose heartbeats are shown
}

// shown is what templates get.
type shown struct {
	Root, Path string
	Query      view.Query
	View       any
	Now        time.Time
}

// render makes the main part of a page with the rights of the context's user.
func (h *pageHandler) render(ctx context.Context, rt route) rendered {
	u, _ := genericapirequest.UserFrom(ctx)
	r := newRights(ctx, u, h.cfg.Authorizer)
	out := rendered{status: http.StatusOK, now: time.Now(), title: rt.object.Name}
	s := h.snapshot(ctx, rt, r)
	found := true
	var v any
	switch rt.section {
	case "cluster":
		c := view.ClusterView(s, r, rt.query, out.now)
		if c.Nodes != nil {
			for _, n := range c.Nodes.Page.Rows {
				out.nodes = append(out.nodes, n.Name)
			}
		}
		v, out.title = c, "Cluster"
	case "node":
		v, found = asAny(view.NodeView(s, r, rt.object.Name, rt.query, out.now))
		out.nodes = []string{rt.object.Name}
	case "pods":
		v, out.title = view.PodsView(s, r, rt.query, out.now), "Pods"
	case "pod":
		v, found = asAny(view.PodView(s, r, rt.object.Namespace, rt.object.Name, out.now))
	case "workloads":
		v, out.title = view.WorkloadsView(s, r, rt.query, out.now), "Workloads"
	case "workload":
		v, found = asAny(view.WorkloadView(s, r, rt.object, rt.query, out.now))
	case "services":
		v, out.title = view.ServicesView(s, r, rt.query, out.now), "Services"
	case "service":
		v, found = asAny(view.ServiceView(s, r, rt.object.Namespace, rt.object.Name, rt.query, out.now))
	case "zones":
		v, found = asAny(view.ZonesView(s, r, rt.query, out.now))
		out.title = "Zones"
	}
	name := rt.section
	if !found {
		name, out.status, out.title = "missing", http.StatusNotFound, "Not found"
	}
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, shown{rt.root(), rt.path, rt.query, v, out.now}); err != nil {
		h.cfg.Log.Error("rendering the status page", "view", rt.section, "err", err)
		b.Reset()
		b.WriteString("<p>This view could not be rendered; the server's log says why.</p>")
		out.status = http.StatusInternalServerError
	}
	out.main = b.Bytes()
	return out
}

func asAny[T any](v T, ok bool) (any, bool) { return v, ok }

// snapshot is what the views are made of, for one rendering.
func (h *pageHandler) snapshot(ctx context.Context, rt route, r *rights) *view.Snapshot {
	c := &h.cfg
	s := &view.Snapshot{Objects: h.source, Heartbeat: c.Heartbeat, Outlook: c.Outlook, Records: c.Records}
	if c.Zones != nil {
		s.Zones = c.Zones()
	}
	if c.Parts != nil {
		s.Parts = c.Parts()
	}
	if c.Certificates != nil {
		s.Certificates = c.Certificates()
	}
	if rt.usage {
		s.Usage, s.PodUsage = h.sampler.current()
	}
	if c.Rules != nil {
		s.Rules = func(namespace, name string) []string { return c.Rules(ctx, namespace, name) }
	}
	if c.Loopback == nil {
		return s
	}
	s.Events = func(kind, namespace, name string) []*v1.Event {
		return h.asked.events(ctx, r.user, kind, namespace, name)
	}
	s.Thresholds = func(node string) []journal.Fact { return h.asked.thresholds(ctx, r.user, node) }
	s.Why = func(ref journal.Ref) *why.Answer {
		a, err := ask.Why(ctx, ask.Config{Client: h.asked.as(r.user), Now: time.Now()}, ref)
		if err != nil {
			return nil
		}
		return &a
	}
	return s
}

// layout puts a page together.
func layout(rt route, out rendered, r *http.Request) ([]byte, error) {
	u, _ := genericapirequest.UserFrom(r.Context())
	current := rt.path
	if q := r.URL.RawQuery; q != "" {
		current += "?" + q
	}
	var b bytes.Buffer
	err := templates.ExecuteTemplate(&b, "layout", map[string]any{
		"Root": rt.root(), "Section": rt.section, "Title": out.title, "User": u.GetName(),
		"Main":    template.HTML(out.main), //nolint:gosec // ours
		"Current": current, "Now": out.now.UnixMilli(), "Sum": sumOf(out.main), "Versions": versions,
		"Nav": []nav{{"cluster", "", "Cluster", "node"}, {"workloads", "workloads", "Workloads", "workload"},
			{"pods", "pods", "Pods", "pod"},
			{"services", "services", "Services", "service"}, {"zones", "zones", "Zones", ""}},
	})
	return b.Bytes(), err
}

// nav is a place of the navigation; Sub is the section of its single objects.
type nav struct{ Section, Path, Title, Sub string }

var functions = template.FuncMap{
	"age":   func(now, t time.Time) template.HTML { return ageHTML(now, t, "") },
	"beat":  func(now, t time.Time, node string) template.HTML { return ageHTML(now, t, node) },
	"bytes": bytesText, "cpu": cpuText, "took": tookText, "clock": func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
	"date":   func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") },
	"join":   strings.Join,
	"query":  values,
	"lower":  strings.ToLower,
	"href":   href,
	"plural": func(n int, word string) string { return plural(n, word) },
	"args":   func(a ...any) []any { return a },
	"at":     func(a []any, i int) any { return a[i] },
	"short":  func(s []string, n int) []string { return s[:min(n, len(s))] },
	"sub":    func(a, b int) int { return a - b },
	"words":  storyTitle,
}

// storyTitle is the heading of a pod's story.
func storyTitle(decisions bool) string {
	if decisions {
		return "Events and decisions"
	}
	return "Events"
}

// href is the way to an object's page from Prefix; "" where it has none.
func href(ref journal.Ref) string {
	switch ref.Kind {
	case "Node":
		return "nodes/" + ref.Name
	case "Pod":
		return "pods/" + ref.Namespace + "/" + ref.Name
	case "Service":
		return "services/" + ref.Namespace + "/" + ref.Name
	case "Namespace":
		return "pods?ns=" + ref.Name
	case "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob":
		return "workloads/" + ref.Kind + "/" + ref.Namespace + "/" + ref.Name
	}
	return ""
}

// ageHTML is how long ago something was; the page's script keeps it right.
func ageHTML(now, t time.Time, node string) template.HTML {
	if t.IsZero() {
		return "–"
	}
	beat := ""
	if node != "" {
		beat = ` data-beat="` + template.HTMLEscapeString(node) + `"`
	}
	stamp := t.UTC().Format("2006-01-02T15:04:05.000Z")
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s"%s>%s</time>`, stamp, stamp, beat,
		why.Age(now, t))) //nolint:gosec // escaped
}

// tookText is how long a step took.
func tookText(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "<1 s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return why.Age(time.Time{}.Add(d), time.Time{})
}

func bytesText(n int64) string {
	const units = "KMGTP"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if f >= 100 {
		return fmt.Sprintf("%.0f %ciB", f, units[i])
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

func cpuText(milli int64) string {
	if milli > 0 && milli < 1000 {
		return fmt.Sprintf("%dm", milli)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(milli)/1000), ".0")
}

func plural(n int, word string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, word)
	}
	return fmt.Sprintf("%d %ss", n, word)
}
