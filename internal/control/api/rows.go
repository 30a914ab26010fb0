package api

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Rows lists every resource that needs no code of its own. Resources with
// storages of their own (see special.go) are not in it.
func Rows() []Row {
	return slices.Concat(
		coreRows(),
		appsRows(),
		batchRows(),
		networkRows(),
		storageRows(),
		policyRows(),
		identityRows(),
		admissionRows(),
		flowRows(),
		deviceRows(),
		trustRows(),
	)
}

// all is the category of workloads shown by "kubectl get all".
var all = []string{"all"}

// family sets the group version of rows that share it and fills in what follows
// from the kind.
func family(gv schema.GroupVersion, rows ...Row) []Row {
	for i := range rows {
		rows[i].GV = gv
		if rows[i].Singular == "" {
			rows[i].Singular = strings.ToLower(rows[i].Kind)
		}
	}
	return rows
}
