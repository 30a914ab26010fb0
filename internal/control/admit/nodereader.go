package admit

import (
	"errors"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// nodeReader is the part that plugins have in common which read cached nodes:
// it is ready once the nodes are known.
type nodeReader struct {
	*admission.Handler
	plugin string
	nodes  corelisters.NodeLister
}

func newNodeReader(plugin string, handles ...admission.Operation) *nodeReader {
	return &nodeReader{Handler: admission.NewHandler(handles...), plugin: plugin}
}

// SetExternalKubeInformerFactory takes the informer of nodes.
func (r *nodeReader) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	nodes := f.Core().V1().Nodes()
	r.nodes = nodes.Lister()
	r.SetReadyFunc(allSynced(nodes.Informer()))
}

// ValidateInitialization refuses a plugin without an informer factory.
func (r *nodeReader) ValidateInitialization() error {
	if r.nodes == nil {
		return errors.New(r.plugin + " needs an informer factory")
	}
	return nil
}
