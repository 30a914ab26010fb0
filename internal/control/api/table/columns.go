package table

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var metaDoc = metav1.ObjectMeta{}.SwaggerDoc()

// Columns that most resources share.
var (
	nameColumn = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: metaDoc["name"]}
	ageColumn  = metav1.TableColumnDefinition{Name: "Age", Type: "string", Description: metaDoc["creationTimestamp"]}
)

// text, number and boolean make a column that is always shown.
func text(name, about string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: about}
}

func number(name, about string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "integer", Description: about}
}

func boolean(name, about string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "boolean", Description: about}
}

// wide makes a column that is shown with -o wide.
func wide(name, about string) metav1.TableColumnDefinition {
	c := text(name, about)
	c.Priority = 1
	return c
}

// What workloads show of their pod template.
var (
	containersColumn = wide("Containers", "Names of each container in the template.")
	imagesColumn     = wide("Images", "Images referenced by each container in the template.")
	selectorColumn   = wide("Selector", "Which pods belong to the object.")
)
