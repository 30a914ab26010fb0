package registry

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Strategies are those of the object and of its status.
func Strategies[T object](k *Kind[T], typer runtime.ObjectTyper) (main, status rest.RESTUpdateStrategy) {
	e := k.statusEndpoint()
	return k.strategy(typer), &endpointStrategy[T]{strategy: k.strategy(typer), endpoint: e, reset: fieldSet(e.ResetFields)}
}

// Selectable is what a field selector may name, beside name and namespace.
func (k *Kind[T]) Selectable() (keys []string, aliases map[string]string) {
	return k.SelectableFields.Keys, k.SelectableFields.Aliases
}
