package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// notInFile are flags that a file cannot set: they are about one start.
var notInFile = []string{"config", "detach", "ephemeral", "help", "lifeline", "name", "progress-fd"}

// fillFlags sets the flags that the command line did not: from the environment,
// then from a file. The flag cluster-cidr is BERTH_CLUSTER_CIDR there, and
// cluster-cidr here.
func fillFlags(f *pflag.FlagSet, file string, env func(string) (string, bool)) error {
	var errs []error
	named := f.Changed("name") || f.Changed("ephemeral") || f.Changed("data-dir")
	for _, name := range []string{"BERTH_DATA_DIR", "BERTH_NAME"} {
		value, _ := env(name)
		named = named || value != ""
	}
	f.VisitAll(func(flag *pflag.Flag) {
		// The data directory and the name have their defaults from there.
		if flag.Changed || slices.Contains(notInFile, flag.Name) || flag.Name == "data-dir" {
			return
		}
		name := "BERTH_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		if value, ok := env(name); ok && value != "" {
			if err := f.Set(flag.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
			}
		}
	})
	if err := errors.Join(errs...); err != nil || file == "" {
		return err
	}
	values, err := readSettings(file)
	if err != nil {
		return err
	}
	for _, key := range sortedKeys(values) {
		if err := checkKey(f, file, key); err != nil {
			return err
		}
		flag := f.Lookup(key)
		if flag.Changed || key == "data-dir" && named {
			continue
		}
		text, err := settingText(values[key])
		if err != nil {
			return fmt.Errorf("%s: %s: %w", file, key, err)
		}
		if err := f.Set(key, text); err != nil {
			return fmt.Errorf("%s: %s: %w", file, key, err)
		}
	}
	return nil
}

// readSettings reads a file of flags.
func readSettings(file string) (map[string]any, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading --config: %w", err)
	}
	values := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return nil, fmt.Errorf("reading --config %s: %w: it holds flags as keys, such as \"cluster-cidr: 10.244.0.0/16\"", file, err)
	}
	return values, nil
}

// checkKey refuses what is no flag, and names the flag that was meant.
func checkKey(f *pflag.FlagSet, file, key string) error {
	if slices.Contains(notInFile, key) && f.Lookup(key) != nil {
		return fmt.Errorf("%s: %s: this is for one start; give it on the command line", file, key)
	}
	if f.Lookup(key) != nil {
		return nil
	}
	best, distance := "", len(key)/2+1
	f.VisitAll(func(flag *pflag.Flag) {
		if d := editDistance(key, flag.Name); d < distance && !flag.Hidden && !slices.Contains(notInFile, flag.Name) {
			best, distance = flag.Name, d
		}
	})
	if best == "" {
		return fmt.Errorf("%s: %s: unknown key; keys are the flags of this command without dashes in front", file, key)
	}
	return fmt.Errorf("%s: %s: unknown key; did you mean %s?", file, key, best)
}

// settingText is a value as the command line would have it.
func settingText(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", errors.New("it has no value: write one, or remove the key")
	case map[string]any:
		return "", errors.New("want a text, a number, true, false or a list of these")
	case []any:
		var words []string
		for _, one := range v {
			text, err := settingText(one)
			if err != nil {
				return "", err
			}
			words = append(words, text)
		}
		return strings.Join(words, ","), nil
	case float64:
		return strings.TrimSuffix(fmt.Sprintf("%f", v), ".000000"), nil
	}
	return fmt.Sprint(v), nil
}

// editDistance is how many letters must be added, removed or changed
// (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := min(row[j]+1, row[j+1]+1, diagonal+1)
			if a[i] == b[j] {
				next = diagonal
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
