package api

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/internal/control/api/table"
)

// etcdComponent is the one component that the API server can judge. Schedulers
// and controllers answer on ports of their own, which the server does not know.
const etcdComponent = "etcd-0"

// componentTimeout bounds how long a component may take to answer.
const componentTimeout = 20 * time.Second

// componentStatuses answers for the deprecated componentstatuses: nothing is
// stored, each read asks the component.
type componentStatuses struct {
	etcd func(context.Context) error
}

func (*componentStatuses) New() runtime.Object     { return &corev1.ComponentStatus{} }
func (*componentStatuses) NewList() runtime.Object { return &corev1.ComponentStatusList{} }
func (*componentStatuses) Destroy()                {}
func (*componentStatuses) NamespaceScoped() bool   { return false }
func (*componentStatuses) GetSingularName() string { return "componentstatus" }
func (*componentStatuses) ShortNames() []string    { return []string{"cs"} }

// Get asks one component.
func (c *componentStatuses) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name != etcdComponent {
		return nil, apierrors.NewNotFound(corev1.Resource("componentstatus"), name)
	}
	return c.etcdStatus(ctx), nil
}

// List asks all components that the selectors name.
func (c *componentStatuses) List(ctx context.Context, options *metainternal.ListOptions) (runtime.Object, error) {
	list := &corev1.ComponentStatusList{Items: []corev1.ComponentStatus{}}
	set := fields.Set{"metadata.name": etcdComponent, "metadata.namespace": ""}
	if options != nil && (options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set{}) ||
		options.FieldSelector != nil && !options.FieldSelector.Matches(set)) {
		return list, nil
	}
	list.Items = append(list.Items, *c.etcdStatus(ctx))
	return list, nil
}

func (c *componentStatuses) etcdStatus(ctx context.Context) *corev1.ComponentStatus {
	ctx, cancel := context.WithTimeout(ctx, componentTimeout)
	defer cancel()
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}
	if err := c.etcd(ctx); err != nil {
		condition.Status, condition.Message, condition.Error = corev1.ConditionFalse, "", err.Error()
	}
	return &corev1.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: etcdComponent}, Conditions: []corev1.ComponentCondition{condition}}
}

func (*componentStatuses) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return table.Convertor(corev1.Resource("componentstatuses"), table.ComponentStatus).ConvertToTable(ctx, obj, options)
}
