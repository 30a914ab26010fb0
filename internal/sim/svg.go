package sim

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Measures of the plot, in pixels.
const (
	plotWidth   = 860
	plotLeft    = 70
	plotRight   = 190 // legend
	panelHeight = 150
	panelGap    = 46
	headHeight  = 84
)

// band is one coloured area or line of a panel.
type band struct {
	name, color string
	of          func(*sample) float64
	line        bool
}

// panel is one diagram. Areas are stacked in order, lines are not.
type panel struct {
	title string
	bands []band
}

// SVG draws runs of one scenario beside each other.
func SVG(runs []*Result) []byte {
	var b strings.Builder
	panels := make([][]panel, len(runs))
	rows := 0
	for i, r := range runs {
		panels[i] = panelsOf(r)
		rows = max(rows, len(panels[i]))
	}
	one := plotLeft + plotWidth + plotRight
	events := 0
	for _, r := range runs {
		events = max(events, len(eventsOf(r)))
	}
	foot := headHeight + rows*(panelHeight+panelGap)
	width, height := one*len(runs), foot+18*events+20
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="system-ui, sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	tops := sharedTops(runs, panels)
	for i, r := range runs {
		fmt.Fprintf(&b, `<g transform="translate(%d,0)">`+"\n", i*one)
		d := drawing{b: &b, r: r}
		d.head(i, len(runs))
		for k, p := range panels[i] {
			d.panel(p, headHeight+k*(panelHeight+panelGap), tops[p.title])
		}
		d.foot(foot)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

func panelsOf(r *Result) []panel {
	out := []panel{
		{title: "nodes that are not simply Ready", bands: []band{
			{name: "down, unnoticed", color: "#e0a100", of: func(s *sample) float64 { return float64(s.Nodes.Unnoticed) }},
			{name: "NotReady", color: "#f2777a", of: func(s *sample) float64 { return float64(s.Nodes.NotReady) }},
			{name: "Unknown", color: "#c0392b", of: func(s *sample) float64 { return float64(s.Nodes.Unknown) }},
			{name: "tainted NoExecute", color: "#5b2c83", of: func(s *sample) float64 { return float64(s.Nodes.Evicting) }},
			{name: "cordoned", color: "#9fb3c8", of: func(s *sample) float64 { return float64(s.Nodes.Cordoned) }},
		}},
		{title: "pods that do not serve", bands: []band{
			{name: "dead, called ready", color: "#e0a100", of: func(s *sample) float64 { return float64(s.Pods.Dead) }},
			{name: "not ready", color: "#c0392b", of: func(s *sample) float64 { return float64(s.Pods.NotReady) }},
			{name: "terminating", color: "#7f8c8d", of: func(s *sample) float64 { return float64(s.Pods.Terminating) }},
			{name: "pending", color: "#2e86c1", of: func(s *sample) float64 { return float64(s.Pods.Pending) }},
			{name: "missing, not made up", color: "black", line: true, of: func(s *sample) float64 { return float64(s.Pods.Lost) }},
			{name: "deleted by taint, sum", color: "#5b2c83", line: true, of: func(s *sample) float64 { return float64(s.Evictions) }},
		}},
	}
	out = append(out, zonePanels(r)...)
	for i := range out {
		out[i].bands = slices.DeleteFunc(out[i].bands, func(b band) bool {
			return !slices.ContainsFunc(r.Series, func(s sample) bool { return b.of(&s) > 0 })
		})
	}
	return append(out, panel{title: fmt.Sprintf("API writes a second, mean over %s", r.Step.D()),
		bands: []band{{name: "all writes", color: "#1e8449", of: func(s *sample) float64 { return s.Writes }}}})
}

// zoneColors are for zones in the order of their names; more than these share.
var zoneColors = []string{"#1f77b4", "#d35400", "#2ca02c", "#8e44ad", "#7f6000", "#16a085", "#c2185b", "#555555"}

// zonePanels show the zones whose rate or queue ever moved.
func zonePanels(r *Result) []panel {
	rates := panel{title: "nodes an hour that may be tainted NoExecute, by zone"}
	queues := panel{title: "nodes waiting to be tainted, by zone"}
	var names []string
	moved, waited := map[string]bool{}, map[string]bool{}
	first := map[string]float64{}
	for i := range r.Series {
		for _, z := range r.Series[i].Zones {
			if _, seen := first[z.Zone]; !seen {
				first[z.Zone] = z.Rate
				names = append(names, z.Zone)
			}
			moved[z.Zone] = moved[z.Zone] || z.Rate != first[z.Zone]
			waited[z.Zone] = waited[z.Zone] || z.Waiting > 0
		}
	}
	for i, name := range names {
		color := zoneColors[i%len(zoneColors)]
		of := func(pick func(*zoneSample) float64) func(*sample) float64 {
			return func(s *sample) float64 {
				for i := range s.Zones {
					if s.Zones[i].Zone == name {
						return pick(&s.Zones[i])
					}
				}
				return 0
			}
		}
		if moved[name] || waited[name] {
			rates.bands = append(rates.bands, band{name: name, color: color, line: true,
				of: of(func(z *zoneSample) float64 { return z.Rate * 3600 })})
		}
		if waited[name] {
			queues.bands = append(queues.bands, band{name: name, color: color, line: true,
				of: of(func(z *zoneSample) float64 { return float64(z.Waiting) })})
		}
	}
	var out []panel
	for _, p := range []panel{rates, queues} {
		if len(p.bands) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// sharedTops gives panels of one title the same scale in every run.
func sharedTops(runs []*Result, panels [][]panel) map[string]float64 {
	tops := map[string]float64{}
	for i, r := range runs {
		for _, p := range panels[i] {
			for k := range r.Series {
				stack := 0.0
				for _, band := range p.bands {
					v := band.of(&r.Series[k])
					if !band.line {
						stack += v
						v = stack
					}
					tops[p.title] = math.Max(tops[p.title], v)
				}
			}
		}
	}
	return tops
}

type drawing struct {
	b *strings.Builder
	r *Result
}

func (d *drawing) text(x, y int, attrs, s string) {
	fmt.Fprintf(d.b, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, attrs, html.EscapeString(s))
}

func (d *drawing) head(i, n int) {
	title := d.r.Name
	if n > 1 {
		title += " - " + column(i)
	}
	d.text(plotLeft, 24, `font-size="17" font-weight="600"`, title)
	s := &d.r.Summary
	line := fmt.Sprintf("%s, %s, %s%s", count(s.Nodes, "node"), count(s.Pods, "pod"), short(d.r.Duration), flagText(d.r.Flags))
	if len(line) > 150 {
		line = line[:147] + "..."
	}
	d.text(plotLeft, 43, `fill="#555"`, line)
}

func (d *drawing) x(at duration) float64 {
	return plotLeft + plotWidth*float64(at)/float64(d.r.Duration)
}

func (d *drawing) panel(p panel, top int, high float64) {
	bottom := top + panelHeight
	scale, step := axis(high)
	y := func(v float64) float64 { return float64(bottom) - v/scale*panelHeight }
	d.text(plotLeft, top-7, `font-weight="600"`, p.title)
	for v := 0.0; v <= scale*1.0001; v += step {
		fmt.Fprintf(d.b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e4e4e4"/>`+"\n", plotLeft, plotLeft+plotWidth, y(v), y(v))
		d.text(plotLeft-6, int(y(v))+4, `text-anchor="end" fill="#555"`, axisLabel(v))
	}
	d.times(bottom)
	floor := make([]float64, len(d.r.Series))
	for i, band := range p.bands {
		var path strings.Builder
		// Steps, not slopes: between two samples nothing is known.
		last := 0.0
		for k := range d.r.Series {
			s := &d.r.Series[k]
			v := band.of(s)
			if !band.line {
				v += floor[k]
			}
			if k == 0 {
				fmt.Fprintf(&path, "M%.1f %.1f", d.x(s.At), y(v))
			} else if v != last || !band.line {
				fmt.Fprintf(&path, "L%.1f %.1fL%.1f %.1f", d.x(s.At), y(last), d.x(s.At), y(v))
			}
			last = v
		}
		end := d.x(d.r.Series[len(d.r.Series)-1].At)
		fmt.Fprintf(&path, "L%.1f %.1f", end, y(last))
		if band.line {
			fmt.Fprintf(d.b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.6"/>`+"\n", path.String(), band.color)
		} else {
			for k := len(d.r.Series) - 1; k >= 0; k-- {
				if k+1 < len(d.r.Series) {
					fmt.Fprintf(&path, "L%.1f %.1f", d.x(d.r.Series[k+1].At), y(floor[k]))
				}
				fmt.Fprintf(&path, "L%.1f %.1f", d.x(d.r.Series[k].At), y(floor[k]))
			}
			fmt.Fprintf(d.b, `<path d="%sZ" fill="%s" fill-opacity="0.85"/>`+"\n", path.String(), band.color)
			for k := range floor {
				floor[k] += band.of(&d.r.Series[k])
			}
		}
		ly := top + 10 + 18*i
		if band.line {
			fmt.Fprintf(d.b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="2.5"/>`+"\n", plotLeft+plotWidth+14,
				plotLeft+plotWidth+26, ly-4, ly-4, band.color)
		} else {
			fmt.Fprintf(d.b, `<rect x="%d" y="%d" width="12" height="12" fill="%s" fill-opacity="0.85"/>`+"\n", plotLeft+plotWidth+14,
				ly-10,
				band.color)
		}
		d.text(plotLeft+plotWidth+32, ly, "", band.name)
	}
	d.events(top, bottom)
	fmt.Fprintf(d.b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#888"/>`+"\n", plotLeft, plotLeft+plotWidth, bottom, bottom)
}

// times writes the time axis.
func (d *drawing) times(bottom int) {
	total := d.r.Duration.D()
	step := time.Minute
	for _, s := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
		20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 24 * time.Hour} {
		step = s
		if total/s <= 13 {
			break
		}
	}
	for t := time.Duration(0); t <= total; t += step {
		x := int(d.x(duration(t)))
		label := fmt.Sprintf("%d:%02d", int(t.Hours()), int(t.Minutes())%60)
		if step < time.Minute {
			label += fmt.Sprintf(":%02d", int(t.Seconds())%60)
		}
		d.text(x, bottom+16, `text-anchor="middle" fill="#555"`, label)
	}
}

// eventsOf is what befell the cluster.
func eventsOf(r *Result) (out []*entry) {
	for _, e := range r.Timeline {
		if e.Kind == "event" {
			out = append(out, e)
		}
	}
	return out
}

// events marks what befell the cluster with numbered lines.
func (d *drawing) events(top, bottom int) {
	for i, e := range eventsOf(d.r) {
		x := d.x(e.At)
		fmt.Fprintf(d.b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#222" stroke-dasharray="3 3"/>`+"\n", x, x, top, bottom)
		d.text(int(x)+3, top+11, `font-size="10"`, strconv.Itoa(i+1))
	}
}

// foot says what the numbers mean.
func (d *drawing) foot(top int) {
	for i, e := range eventsOf(d.r) {
		d.text(plotLeft, top+18*i, "", fmt.Sprintf("%d  %s  %s", i+1, stamp(e.At), e.What))
	}
}

// axis picks a round top and step for values up to high.
func axis(high float64) (top, step float64) {
	if high <= 0 {
		return 1, 1
	}
	step = math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if high/(step*m) <= 4.5 {
			step *= m
			break
		}
	}
	if high >= 4 && step < 1 {
		step = 1
	}
	return step * math.Ceil(high/step), step
}

func axisLabel(v float64) string {
	if v == math.Trunc(v) {
		return thousands(int(v))
	}
	return fmt.Sprintf("%.3g", v)
}
