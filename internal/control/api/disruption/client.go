package disruption

import (
	"context"
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyclient "k8s.io/client-go/kubernetes/typed/policy/v1"
)

// Client reads and spends budgets through the API, so that status writes pass
// the budget's own strategy.
type Client struct {
	API policyclient.PodDisruptionBudgetsGetter
}

// Budgets lists the budgets of a namespace, straight from the store: a budget
// created a moment ago must count.
func (c Client) Budgets(ctx context.Context, namespace string) ([]policyv1.PodDisruptionBudget, error) {
	list, err := c.API.PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing disruption budgets of namespace %s: %w", namespace, err)
	}
	return list.Items, nil
}

// Get reads one budget.
func (c Client) Get(ctx context.Context, namespace, name string) (*policyv1.PodDisruptionBudget, error) {
	return c.API.PodDisruptionBudgets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// UpdateStatus writes the budget's status under its resourceVersion.
func (c Client) UpdateStatus(ctx context.Context, b *policyv1.PodDisruptionBudget) error {
	_, err := c.API.PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, b, metav1.UpdateOptions{})
	return err
}
