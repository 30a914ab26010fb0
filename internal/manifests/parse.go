package manifests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// objectRef names an object. The version is no part of it: an object is the same one
// in all versions of its kind.
type objectRef struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// key is equal for refs of one object: a namespaced object without a namespace
// is in "default", and one that is not namespaced never has any.
func (r objectRef) key() objectRef {
	if r.Namespace == "default" {
		r.Namespace = ""
	}
	return r
}

// String is the ref as errors show it, such as Deployment.apps default/web.
func (r objectRef) String() string {
	kind := schema.GroupKind{Group: r.Group, Kind: r.Kind}.String()
	if r.Namespace == "" {
		return kind + " " + r.Name
	}
	return kind + " " + r.Namespace + "/" + r.Name
}

// manifest is one object of a file.
type manifest struct {
	objectRef
	Version string
	// File is relative to the directory; Number counts the file's documents
	// from 1.
	File   string
	Number int
	// Body is the object as JSON.
	Body []byte
}

// docFault is what keeps a file or one of its documents from being applied.
type docFault struct {
	File string `json:"file"`
	// Document counts from 1; 0 is the whole file.
	Document int    `json:"document,omitempty"`
	Object   string `json:"object,omitempty"`
	Field    string `json:"field,omitempty"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy,omitempty"`
}

// String is the fault on one line.
func (f docFault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Document > 0 {
		fmt.Fprintf(&b, " document %d", f.Document)
	}
	if f.Object != "" {
		fmt.Fprintf(&b, ", %s", f.Object)
	}
	if f.Field != "" {
		fmt.Fprintf(&b, ", %s", f.Field)
	}
	fmt.Fprintf(&b, ": %s", f.Message)
	if f.Remedy != "" {
		fmt.Fprintf(&b, "; %s", f.Remedy)
	}
	return b.String()
}

// parse reads the objects of a file, in order. A document with a fault is left
// out; the others count.
func parse(file string, text []byte) (docs []manifest, faults []docFault) {
	raw, err := split(file, text)
	if err != nil {
		faults = append(faults, docFault{File: file, Document: len(raw) + 1, Message: err.Error(),
			Remedy: "what follows it in this file is not read: fix it first"})
	}
	for i, doc := range raw {
		fault := func(object, field, message, remedy string) {
			faults = append(faults, docFault{File: file, Document: i + 1, Object: object, Field: field, Message: message, Remedy: remedy})
		}
		body, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			fault("", "", oneLine(err), "correct the YAML; lines count from the start of the document")
			continue
		}
		if string(bytes.TrimSpace(body)) == "null" {
			continue // nothing but comments
		}
		var obj map[string]any
		if err := json.Unmarshal(body, &obj); err != nil {
			fault("", "", "not an object", "write apiVersion, kind and metadata")
			continue
		}
		for _, u := range expand(obj) {
			d, field, err := document(u)
			if err != nil {
				fault(d.describe(), field, err.Error(), "")
				continue
			}
			d.File, d.Number = file, i+1
			docs = append(docs, d)
		}
	}
	return docs, faults
}

// split cuts a file into documents. JSON files may hold one value after the
// other.
func split(file string, text []byte) (docs [][]byte, err error) {
	if strings.HasSuffix(file, ".json") {
		dec := json.NewDecoder(bytes.NewReader(text))
		for {
			var one json.RawMessage
			switch err := dec.Decode(&one); {
			case errors.Is(err, io.EOF):
				return docs, nil
			case err != nil:
				return docs, fmt.Errorf("reading JSON: %w", err)
			}
			docs = append(docs, one)
		}
	}
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		one, err := r.Read()
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, fmt.Errorf("reading YAML: %w", err)
		}
		docs = append(docs, one)
	}
}

// expand is the items of a list, or the object itself.
func expand(obj map[string]any) []map[string]any {
	kind, _ := obj["kind"].(string)
	items, ok := obj["items"].([]any)
	if !ok || !strings.HasSuffix(kind, "List") {
		return []map[string]any{obj}
	}
	var out []map[string]any
	for _, i := range items {
		item, _ := i.(map[string]any)
		out = append(out, item)
	}
	return out
}

// document reads what names an object; field is what is wrong with it.
func document(obj map[string]any) (d manifest, field string, err error) {
	u := unstructured.Unstructured{Object: obj}
	gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
	if err != nil {
		return d, "apiVersion", err
	}
	d.objectRef = objectRef{Group: gv.Group, Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}
	d.Version = gv.Version
	switch {
	case gv.Version == "":
		return d, "apiVersion", errors.New("missing: write the version of the kind, such as v1 or apps/v1")
	case d.Kind == "":
		return d, "kind", errors.New("missing")
	case d.Name == "" && u.GetGenerateName() != "":
		return d, "metadata.generateName", errors.New("a generated name would make another object at every start: write metadata.name")
	case d.Name == "":
		if name, found, _ := unstructured.NestedFieldNoCopy(obj, "metadata", "name"); found {
			return d, "metadata.name", fmt.Errorf("%v is no string: put it in quotes", name)
		}
		return d, "metadata.name", errors.New("missing")
	}
	unstructured.RemoveNestedField(obj, "metadata", "managedFields") // of an exported object: refused by server-side apply
	unstructured.RemoveNestedField(obj, "metadata", "resourceVersion")
	unstructured.RemoveNestedField(obj, "metadata", "uid")
	unstructured.RemoveNestedField(obj, "status")
	d.Body, err = json.Marshal(obj)
	return d, "", err
}

// describe is what is known of a document that has no complete name.
func (d manifest) describe() string {
	return strings.TrimSpace(d.objectRef.String())
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
