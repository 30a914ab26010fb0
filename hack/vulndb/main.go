// Vulndb makes a database for govulncheck of OSV records, as data/osv of a copy of
// github.com/golang/vulndb holds them, for machines that do not reach
// vuln.go.dev. The layout is that of https://go.dev/doc/security/vuln/database.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	from := flag.String("osv", "", "folder of OSV records (GO-*.json)")
	to := flag.String("out", "", "folder to make; govulncheck -db file://FOLDER reads it")
	flag.Parse()
	count, err := convert(*from, *to)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulndb:", err)
		os.Exit(1)
	}
	fmt.Printf("%d records in %s\n", count, *to)
}

// record is the part of an OSV record that the indexes hold.
type record struct {
	ID       string    `json:"id"`
	Modified time.Time `json:"modified"`
	Aliases  []string  `json:"aliases,omitempty"`
	Affected []struct {
		Package struct {
			Name string `json:"name"`
		} `json:"package"`
		Ranges []struct {
			Events []struct {
				Fixed string `json:"fixed"`
			} `json:"events"`
		} `json:"ranges"`
	} `json:"affected"`
}

// The indexes: when the database changed, its vulnerabilities, and by module.
type (
	meta struct {
		Modified time.Time `json:"modified"`
	}
	vulnerability struct {
		ID       string    `json:"id"`
		Modified time.Time `json:"modified"`
		Aliases  []string  `json:"aliases,omitempty"`
	}
	module struct {
		Path  string   `json:"path"`
		Vulns []inside `json:"vulns"`
	}
	inside struct {
		ID       string    `json:"id"`
		Modified time.Time `json:"modified"`
		Fixed    string    `json:"fixed,omitempty"`
	}
)

func convert(from, to string) (int, error) {
	files, err := filepath.Glob(filepath.Join(from, "GO-*.json"))
	if err == nil && (from == "" || to == "" || len(files) == 0) {
		err = fmt.Errorf("-osv %q: no GO-*.json there, or no -out %q: want data/osv of a copy of github.com/golang/vulndb", from, to)
	}
	if err != nil {
		return 0, err
	}
	var db meta
	var all []vulnerability
	byModule := map[string]*module{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		var r record
		if err := json.Unmarshal(text, &r); err != nil || r.ID != strings.TrimSuffix(filepath.Base(file), ".json") {
			return 0, fmt.Errorf("%s is no OSV record of that name: %w", file, errors.Join(err, errors.New("id "+r.ID)))
		}
		if err := write(to, "ID/"+r.ID+".json", json.RawMessage(text)); err != nil {
			return 0, err
		}
		if r.Modified.After(db.Modified) {
			db.Modified = r.Modified
		}
		all = append(all, vulnerability{r.ID, r.Modified, r.Aliases})
		r.index(byModule)
	}
	modules := []module{}
	for _, m := range byModule {
		modules = append(modules, *m)
	}
	slices.SortFunc(modules, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return len(all), errors.Join(write(to, "index/db.json", db), write(to, "index/vulns.json", all), write(to, "index/modules.json",
		modules))
}

// index adds a record to the modules that it affects, once each, with the newest
// version that has the repair.
func (r *record) index(byModule map[string]*module) {
	for _, a := range r.Affected {
		m := byModule[a.Package.Name]
		if m == nil {
			m = &module{Path: a.Package.Name}
			byModule[m.Path] = m
		}
		fixed := ""
		for _, ranged := range a.Ranges {
			if n := len(ranged.Events); n > 0 {
				fixed = ranged.Events[n-1].Fixed
			}
		}
		if n := len(m.Vulns); n > 0 && m.Vulns[n-1].ID == r.ID {
			m.Vulns[n-1].Fixed = fixed
			continue
		}
		m.Vulns = append(m.Vulns, inside{r.ID, r.Modified, fixed})
	}
}

func write(dir, name string, v any) error {
	text, err := json.Marshal(v)
	path := filepath.Join(dir, name)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	return err
}
