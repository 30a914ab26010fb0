// Package table renders built-in objects as the tables that kubectl prints.
//
// Columns, their order and the text of each cell are part of what clients see;
// the rows always carry the wide cells (priority 1) too, and the client
// decides what to show. Everything but Convertor is pure: the age in a cell is
// measured to a time that the caller passes in.
package table

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Layout is how one resource is printed: its columns and, for an object of its
// kind, one row (false for any other object).
type Layout struct {
	columns []metav1.TableColumnDefinition
	row     func(now time.Time, obj runtime.Object) (metav1.TableRow, bool)
}

// Empty says that there is no layout: objects print their name and creation time.
func (l Layout) Empty() bool { return l.row == nil }

// Convertor returns the table convertor of a resource. Resources with an empty
// layout, and objects of another kind that pass through a resource's
// subresources, print Name and Created At.
//
// Rows hold whole objects: the request handler replaces them by what the
// client asked for with includeObject (None, Metadata, Object), as it does for
// every convertor.
func Convertor(gr schema.GroupResource, l Layout) rest.TableConvertor {
	return convertor{layout: l, fallback: rest.NewDefaultTableConvertor(gr), now: time.Now}
}

type convertor struct {
	layout   Layout
	fallback rest.TableConvertor
	now      func() time.Time
}

// ConvertToTable prints obj, which may be a list.
func (c convertor) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	opts, _ := options.(*metav1.TableOptions)
	if t, ok := Render(c.layout, c.now(), obj, opts != nil && opts.NoHeaders); ok {
		return t, nil
	}
	return c.fallback.ConvertToTable(ctx, obj, options)
}

// Render prints an object or a list as it looks at time now,
// without column definitions if noHeaders. It reports false if the layout is
// empty or if an object is not of the resource's kind.
func Render(l Layout, now time.Time, obj runtime.Object, noHeaders bool) (*metav1.Table, bool) {
	if l.Empty() {
		return nil, false
	}
	t := &metav1.Table{}
	if list, err := meta.ListAccessor(obj); err == nil {
		t.ListMeta = metav1.ListMeta{
			ResourceVersion:    list.GetResourceVersion(),
			Continue:           list.GetContinue(),
			RemainingItemCount: list.GetRemainingItemCount(),
		}
	} else if one, err := meta.CommonAccessor(obj); err == nil {
		t.ResourceVersion = one.GetResourceVersion()
	}
	add := func(item runtime.Object) bool {
		row, ok := l.row(now, item)
		if !ok {
			return false
		}
		row.Object = runtime.RawExtension{Object: item}
		t.Rows = append(t.Rows, row)
		return true
	}
	if meta.IsListType(obj) {
		t.Rows = make([]metav1.TableRow, 0, meta.LenList(obj))
		all := true
		err := meta.EachListItem(obj, func(item runtime.Object) error {
			all = all && add(item)
			return nil
		})
		if err != nil || !all {
			return nil, false
		}
	} else if !add(obj) {
		return nil, false
	}
	if !noHeaders {
		t.ColumnDefinitions = l.columns
	}
	return t, true
}

// of builds a layout from the columns and a function that makes one object's
// cells, in the order of the columns.
func of[T any, PT interface {
	*T
	runtime.Object
}](cells func(now time.Time, obj PT) []any, columns ...metav1.TableColumnDefinition) Layout {
	return Layout{columns: columns, row: func(now time.Time, obj runtime.Object) (metav1.TableRow, bool) {
		o, ok := obj.(PT)
		if !ok {
			return metav1.TableRow{}, false
		}
		return metav1.TableRow{Cells: cells(now, o)}, true
	}}
}
