// Package strict reads YAML files that people write for berth: what is not
// known is refused, by its path and with what is allowed there.
package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Unmarshal reads text into a pointer to a value with json tags.
func Unmarshal(text []byte, into any) error {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return err
	}
	if err := known("", tree, reflect.TypeOf(into)); err != nil {
		return err
	}
	err = json.Unmarshal(raw, into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s is a %s: allowed is %s", wrong.Field, wrong.Value, wrong.Type)
	}
	return err
}

// known refuses fields that a type does not have.
func known(path string, value any, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := value.(type) {
	case []any:
		if t.Kind() != reflect.Slice {
			return nil
		}
		for i, item := range v {
			if err := known(fmt.Sprintf("%s[%d]", path, i), item, t.Elem()); err != nil {
				return err
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct {
			return nil
		}
		fields := fieldsOf(t)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			at := strings.TrimPrefix(path+"."+name, ".")
			ft, ok := fields[name]
			if !ok {
				return fmt.Errorf("%s is not a field: allowed are %s", at, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
			}
			if err := known(at, v[name], ft); err != nil {
				return err
			}
		}
	}
	return nil
}

func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range t.Fields() {
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(out, fieldsOf(f.Type))
			continue
		}
		out[name] = f.Type
	}
	return out
}

// Duration reads and writes as Go writes durations: "90s", "1h30m".
type Duration time.Duration

// D is the duration as time has it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// MarshalJSON writes the duration as text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.D().String()) }

// UnmarshalJSON reads a duration from text.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		return fmt.Errorf("duration %s: write it as text with a unit, such as \"90s\" or \"5m\"", b)
	}
	v, err := time.ParseDuration(text)
	if err != nil || v < 0 {
		return fmt.Errorf("duration %q: write a number that is not negative with a unit, such as \"90s\" or \"5m\"", text)
	}
	*d = Duration(v)
	return nil
}
