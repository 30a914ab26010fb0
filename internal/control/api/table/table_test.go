package table_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-dev/berth/internal/control/api/kinds"
	"github.com/berth-dev/berth/internal/control/api/table"
	"github.com/berth-dev/berth/internal/testkit/golden"
)

// layouts are the tables of the kinds that are stored and print more than their name.
var layouts = func() map[schema.GroupResource]table.Layout {
	all := map[schema.GroupResource]table.Layout{}
	for _, k := range kinds.All() {
		if i := k.Info(); !i.Table.Empty() {
			all[i.GroupResource()] = i.Table
		}
	}
	return all
}()

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func decode(t *testing.T, file string) (objects []runtime.Object, resources []schema.GroupResource) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range strings.Split(string(data), "\n---\n") {
		obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(doc), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, doc)
		}
		gvr, _ := meta.UnsafeGuessKindToResource(*gvk)
		objects, resources = append(objects, obj), append(resources, gvr.GroupResource())
	}
	return objects, resources
}

// TestGolden prints every object of testdata/*.yaml and compares with the .txt
// beside it. Regenerate with -rewrite, and read the difference.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	seen := map[schema.GroupResource]bool{}
	for _, file := range files {
		objects, resources := decode(t, file)
		var out bytes.Buffer
		var last schema.GroupResource
		for i, obj := range objects {
			printed, ok := table.Render(layouts[resources[i]], now, obj, false)
			if !ok {
				t.Fatalf("%s: no table for %s (%T)", file, resources[i], obj)
			}
			if resources[i] != last {
				fmt.Fprintf(&out, "# %s\n%s\n", resources[i], header(printed.ColumnDefinitions))
			}
			last = resources[i]
			seen[last] = true
			check(t, resources[i], printed)
			for _, row := range printed.Rows {
				fmt.Fprintln(&out, line(row))
			}
		}
		golden.Check(t, strings.TrimSuffix(file, ".yaml")+".txt", out.String())
	}
	for gr := range layouts {
		if !seen[gr] {
			t.Errorf("%s has a layout and no sample under testdata", gr)
		}
	}
}

// header lists the columns, the wide ones in brackets, with types other than
// string behind a colon.
func header(columns []metav1.TableColumnDefinition) string {
	var names []string
	for _, c := range columns {
		name := c.Name
		if c.Type != "string" || c.Format != "" {
			name += ":" + c.Type + c.Format
		}
		if c.Priority == 1 {
			name = "[" + name + "]"
		}
		names = append(names, name)
	}
	return strings.Join(names, " | ")
}

func line(row metav1.TableRow) string {
	cells := make([]string, len(row.Cells))
	for i, c := range row.Cells {
		cells[i] = fmt.Sprint(c)
	}
	text := strings.Join(cells, " | ")
	for _, c := range row.Conditions {
		text += fmt.Sprintf(" {%s %s %s}", c.Type, c.Status, c.Reason)
	}
	return text
}

// check holds each row to its columns: as many cells, and of types that
// survive JSON and a deep copy.
func check(t *testing.T, gr schema.GroupResource, table *metav1.Table) {
	t.Helper()
	for _, c := range table.ColumnDefinitions {
		if c.Description == "" {
			t.Errorf("%s: column %s has no description", gr, c.Name)
		}
	}
	for _, row := range table.Rows {
		if len(row.Cells) != len(table.ColumnDefinitions) {
			t.Errorf("%s: %d cells in %d columns", gr, len(row.Cells), len(table.ColumnDefinitions))
			continue
		}
		for i, cell := range row.Cells {
			column := table.ColumnDefinitions[i]
			switch cell.(type) {
			case string:
				if column.Type == "integer" {
					t.Errorf("%s: column %s is of type %s and holds %q", gr, column.Name, column.Type, cell)
				}
			case int64, bool:
			default:
				t.Errorf("%s: column %s holds a %T", gr, column.Name, cell)
			}
		}
		row.DeepCopy()
	}
}

func TestLists(t *testing.T) {
	remaining := int64(7)
	list := &v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "42", Continue: "next", RemainingItemCount: &remaining},
		Items: []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}}}
	c := table.Convertor(schema.GroupResource{Resource: "pods"}, table.Pod)
	printed, err := c.ConvertToTable(context.Background(), list, &metav1.TableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if printed.ResourceVersion != "42" || printed.Continue != "next" || *printed.RemainingItemCount != 7 {
		t.Errorf("list metadata got lost: %+v", printed.ListMeta)
	}
	if len(printed.Rows) != 2 || printed.Rows[1].Cells[0] != "b" {
		t.Fatalf("rows: %+v", printed.Rows)
	}
	if pod, ok := printed.Rows[1].Object.Object.(*v1.Pod); !ok || pod.Name != "b" {
		t.Errorf("the row does not hold its object: %+v", printed.Rows[1].Object)
	}
	printed, err = c.ConvertToTable(context.Background(), &list.Items[0], &metav1.TableOptions{NoHeaders: true})
	if err != nil || printed.ColumnDefinitions != nil || len(printed.Rows) != 1 {
		t.Errorf("got %+v, %v", printed, err)
	}
	if empty, _ := table.Render(table.Pod, now, &v1.PodList{}, false); empty.Rows == nil {
		t.Error("rows of an empty list are null in JSON, clients expect []")
	}
}

// Objects that are not of the resource's kind, and resources that no one laid
// out, print their name and creation time.
func TestFallback(t *testing.T) {
	made := metav1.NewTime(now)
	for _, c := range []struct {
		gr  schema.GroupResource
		obj runtime.Object
	}{
		{schema.GroupResource{Resource: "limitranges"}, &v1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "x", CreationTimestamp: made}}},
		{schema.GroupResource{Group: "apps", Resource: "deployments"},
			&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "x", CreationTimestamp: made}}},
		{schema.GroupResource{Group: "example.com", Resource: "things"},
			&v1.LimitRangeList{Items: []v1.LimitRange{{ObjectMeta: metav1.ObjectMeta{Name: "x", CreationTimestamp: made}}}}},
	} {
		printed, err := table.Convertor(c.gr, layouts[c.gr]).ConvertToTable(context.Background(), c.obj, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := header(printed.ColumnDefinitions); got != "Name:stringname | Created At:date" {
			t.Errorf("%s: columns %s", c.gr, got)
		}
		if got := line(printed.Rows[0]); got != "x | 2026-03-01T12:00:00Z" {
			t.Errorf("%s: row %s", c.gr, got)
		}
	}
	if _, err := table.Convertor(schema.GroupResource{Resource: "pods"}, table.Pod).ConvertToTable(context.Background(), &metav1.Status{},
		nil); err == nil {
		t.Error("a Status was printed as a pod")
	}
}

func BenchmarkPodList(b *testing.B) {
	b.ReportAllocs()
	list := &v1.PodList{Items: make([]v1.Pod, 1000)}
	for b.Loop() {
		if _, ok := table.Render(table.Pod, now, list, false); !ok {
			b.Fatal("no table")
		}
	}
}
