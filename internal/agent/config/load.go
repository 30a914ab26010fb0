package config

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

//go:embed defaults.yaml
var defaultsYAML []byte

// SourceDefault is the source of a value that no one set.
const SourceDefault = "default"

// Effective is the configuration that applies, with what it was made from.
type Effective struct {
	Kubelet *kubeletv1beta1.KubeletConfiguration
	Agent   Agent
	// Sources maps each field that has a value (by its path in the file) to
	// the file or flag that set it, or SourceDefault.
	Sources map[string]string
	// Notes are to be logged at start: what is accepted but done differently.
	Notes []string
	// Flags are all flags with their values, given or not.
	Flags map[string]string

	values map[string]any
}

// DefaultEvictionHard are the hard eviction thresholds that apply if no one
// sets any.
func DefaultEvictionHard() map[string]string {
	return map[string]string{
		"memory.available":   "100Mi",
		"nodefs.available":   "10%",
		"nodefs.inodesFree":  "5%",
		"imagefs.available":  "15%",
		"imagefs.inodesFree": "5%",
	}
}

// Over returns the defaults, the configuration base over them, and the file at
// path, if any, over both.
func Over(base []byte, path string) (*Effective, error) {
	cfg, err := decodeStrict("the configuration built in", base)
	if err != nil {
		return nil, err
	}
	fields, err := set(cfg)
	if err != nil {
		return nil, err
	}
	layers := []layer{{source: SourceDefault, fields: fields}}
	if path != "" {
		read, err := readLayer(path)
		if err != nil {
			return nil, err
		}
		// As with the agent's own defaults, one signal replaces all of them.
		_, given := read.fields[evictionHard]
		if mergeDefaults, _ := read.fields[mergeEviction].(bool); given && !mergeDefaults {
			delete(fields, evictionHard)
		}
		layers = append(layers, read)
	}
	return assemble(layers, Agent{})
}

const (
	evictionHard  = "evictionHard"
	mergeEviction = "mergeDefaultEvictionSettings"
)

// layer is one origin of settings.
type layer struct {
	source string
	fields tree
}

// Load reads the file and the drop-in directory that the flags name and lays
// the flags that were given over them. Everything wrong is reported at once.
func Load(flags *flags) (*Effective, error) {
	var layers []layer
	if path := flags.Agent.ConfigFile; path != "" {
		read, err := readLayer(path)
		if err != nil {
			return nil, err
		}
		layers = append(layers, read)
	}
	if dir := flags.Agent.ConfigDir; dir != "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("reading --config-dir: %w", err)
		}
		for _, entry := range entries { // sorted by name
			if entry.IsDir() || filepath.Ext(entry.Name()) != ".conf" {
				continue
			}
			read, err := readLayer(filepath.Join(dir, entry.Name()))
			if err != nil {
				return nil, err
			}
			layers = append(layers, read)
		}
	}
	given, err := flags.layers()
	if err != nil {
		return nil, err
	}
	e, err := assemble(append(layers, given...), flags.Agent)
	if err != nil {
		return nil, err
	}
	e.Flags = map[string]string{}
	flags.set.VisitAll(func(f *pflag.Flag) { e.Flags[f.Name] = f.Value.String() })
	return e, nil
}

func readLayer(path string) (layer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return layer{}, fmt.Errorf("reading the configuration: %w", err)
	}
	cfg, err := decodeStrict(path, text)
	if err != nil {
		return layer{}, err
	}
	fields, err := set(cfg)
	return layer{source: path, fields: fields}, err
}

func assemble(layers []layer, agent Agent) (*Effective, error) {
	defaults, err := decodeStrict("the built-in defaults", defaultsYAML)
	if err != nil {
		return nil, err
	}
	base, err := set(defaults)
	if err != nil {
		return nil, err
	}
	sources := map[string]string{}
	fields := tree{}
	merge(fields, base, SourceDefault, "", sources)
	plain := map[string]any{}
	flatten(fields, "", plain)
	for _, l := range layers {
		merge(fields, l.fields, l.source, "", sources)
	}
	dependentDefaults(fields, sources)
	cfg, err := decodeTree(fields)
	if err != nil {
		return nil, err
	}
	e := &Effective{Kubelet: cfg, Agent: agent, Sources: sources, values: map[string]any{}}
	flatten(fields, "", e.values)
	problems := e.unsupported(plain)
	problems = append(problems, validate(cfg)...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("checking the agent's configuration:\n  %s", strings.Join(problems, "\n  "))
	}
	return e, nil
}

// dependentDefaults sets what defaults to something else's value.
func dependentDefaults(fields tree, sources map[string]string) {
	const report, update = "nodeStatusReportFrequency", "nodeStatusUpdateFrequency"
	if _, isSet := fields[report]; !isSet {
		fields[report], sources[report] = "5m0s", SourceDefault
		if sources[update] != SourceDefault {
			fields[report] = fields[update]
		}
	}
	hard, isSet := fields[evictionHard].(tree)
	mergeDefaults, _ := fields[mergeEviction].(bool)
	if isSet && !mergeDefaults {
		return
	}
	if hard == nil {
		hard = tree{}
		fields[evictionHard] = hard
	}
	for signal, value := range DefaultEvictionHard() {
		if _, given := hard[signal]; !given {
			hard[signal] = value
			sources[evictionHard+"."+signal] = SourceDefault
		}
	}
}

// unsupported names the fields that were set to something berth does not do,
// and notes those it does differently.
func (e *Effective) unsupported(defaults map[string]any) []string {
	var problems []string
	for _, path := range slices.Sorted(maps.Keys(e.values)) {
		source := e.Sources[path]
		if source == SourceDefault || reflect.DeepEqual(e.values[path], defaults[path]) {
			continue
		}
		field, known := fieldFor(path)
		switch {
		case !known || field.Support == Refused:
			problems = append(problems, fmt.Sprintf("field %s (%s) is not supported by berth: %s", path, source, field.Note))
		case field.Support == Subsumed:
			e.Notes = append(e.Notes, fmt.Sprintf("field %s (%s) has no effect of its own: %s", path, source, field.Note))
		}
	}
	return problems
}

// Explain prints every field with its value, its source and what berth does
// with it, a line each, sorted.
func (e *Effective) Explain() string {
	paths := slices.Collect(maps.Keys(e.values))
	sort.Strings(paths)
	var out strings.Builder
	for _, path := range paths {
		field, _ := fieldFor(path)
		value := e.values[path]
		if strings.HasPrefix(path, "staticPodURLHeader") {
			value = "<masked>"
		}
		fmt.Fprintf(&out, "%s = %v\t(%s)", path, value, e.Sources[path])
		if field.Support != Honoured {
			fmt.Fprintf(&out, "\t%s: %s", field.Support, field.Note)
		}
		out.WriteByte('\n')
	}
	return out.String()
}
