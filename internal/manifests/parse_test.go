package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestParse: one bad document does not hide the good ones, and each fault says
// where it is.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		docs, faults     string
	}{
		{"two documents and a comment", "a.yaml",
			"# c\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n---\n# only this\n---\n" +
				"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n", "ConfigMap x|Deployment.apps shop/web",
			""},
		{"a list", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: a}}\n" +
			"- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n", "Secret a|Secret b", ""},
		{"JSON values one after the other", "a.json", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}` +
			`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"}}`, "Secret a|Secret b", ""},
		{"broken JSON", "a.json", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}} {`, "Secret a",
			"a.json document 2: reading JSON: unexpected EOF; what follows it in this file is not read: fix it first"},
		{"broken YAML", "a.yaml", "a: [\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", "Secret a",
			"a.yaml document 1: "},
		{"a key twice", "a.yaml", "kind: Secret\nkind: Secret\n", "", `a.yaml document 1: yaml: unmarshal errors: line 2: key "kind" ` +
			`already set in map`},
		{"no name", "a.yaml", "apiVersion: v1\nkind: Secret\n", "", "a.yaml document 1, Secret, metadata.name: missing"},
		{"a name that YAML reads as true", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: y}\n", "",
			"metadata.name: true is no string: put it in quotes"},
		{"no kind", "a.yaml", "apiVersion: v1\nmetadata: {name: a}\n", "", "kind: missing"},
		{"no version", "a.yaml", "kind: Secret\nmetadata: {name: a}\n", "", "apiVersion: missing"},
		{"a generated name", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {generateName: a}\n", "", "metadata.generateName"},
		{"a string", "a.yaml", "hello\n", "", "a.yaml document 1: not an object"},
	} {
		docs, faults := parse(c.file, []byte(c.text))
		var names, wrong []string
		for _, d := range docs {
			names = append(names, d.objectRef.String())
		}
		for _, f := range faults {
			wrong = append(wrong, f.String())
		}
		if got := strings.Join(names, "|"); got != c.docs {
			t.Errorf("%s: objects %q, want %q", c.name, got, c.docs)
		}
		if got := strings.Join(wrong, "|"); (got == "") != (c.faults == "") || !strings.Contains(got, c.faults) {
			t.Errorf("%s: faults %q, want %q", c.name, got, c.faults)
		}
	}
}

// TestParseDropsWhatTheServerWrites: an exported object is applied as it is.
func TestParseDropsWhatTheServerWrites(t *testing.T) {
	docs, faults := parse("a.yaml",
		[]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: a, uid: u, resourceVersion: '7', managedFields: []}\n"+
			"status: {x: y}\n"))
	if len(faults) != 0 || string(docs[0].Body) != `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}` {
		t.Errorf("%s, %v", docs[0].Body, faults)
	}
}

// TestScan reads files below sub-directories, and leaves out what is hidden, is
// skipped, or has another ending. What cannot be read is broken, not absent.
func TestScan(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"
	write("a.yaml", secret, 0o644)
	write("sub/b.yml", secret, 0o644)
	write("sub/c.json", "{", 0o644)
	write("skipped.yaml", "{{", 0o644)
	write("skipped.yaml.skip", "", 0o644)
	write("off/d.yaml", "{{", 0o644)
	write("off.skip", "", 0o644)
	write(".git/e.yaml", "{{", 0o644)
	write(".hidden.yaml", "{{", 0o644)
	write("notes.txt", "{{", 0o644)
	write("open.yaml", secret, 0o666)
	write("large.yaml", secret+"#"+strings.Repeat("x", maxFile), 0o644)
	if err := os.Symlink("nowhere", filepath.Join(root, "z.yaml")); err != nil {
		t.Fatal(err)
	}
	files, dirs, faults, err := scan(root)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		word := f.Path
		if f.Skip {
			word += " skip"
		}
		if f.Broken {
			word += " broken"
		}
		got = append(got, word)
	}
	want := "a.yaml|large.yaml broken|off skip|open.yaml broken|skipped.yaml skip|sub/b.yml|sub/c.json broken|z.yaml broken"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	if len(faults) != 4 || !strings.Contains(faults[1].Message, "chmod o-w") {
		t.Errorf("faults: %v", faults)
	}
	if len(dirs) != 2 {
		t.Errorf("watched: %v", dirs)
	}
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := scan(root); err == nil || !strings.Contains(err.Error(), "chmod o-w") {
		t.Errorf("a directory open to all is read: %v", err)
	}
	if _, _, _, err := scan(filepath.Join(root, "gone")); err == nil {
		t.Error("a directory that is gone is an empty one")
	}
}

// TestKeysOfRecords: names of records are valid and do not clash.
func TestKeysOfRecords(t *testing.T) {
	seen := map[string]string{}
	for _, f := range []string{"a.yaml", "a-yaml", "A.yaml", "x/a.yaml", "x-a.yaml", "ä ö.yaml", strings.Repeat("long/", 60) + "a.yaml"} {
		n := recordName(f)
		if len(n) > 253 || seen[n] != "" || strings.Trim(n, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("%s: %s (also of %s)", f, n, seen[n])
		}
		seen[n] = f
	}
}
