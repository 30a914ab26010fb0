// Package manifests applies the files of a directory to the cluster and prunes
// what leaves them.
//
// A round reads the directory (scan.go), the records of what earlier rounds
// applied, and the metadata of the objects concerned. Compute (plan.go) is pure
// and says what to apply and what to prune; run.go carries it out. There is one
// record per file, a ConfigMap in kube-system.
//
// A record is written before the first object of a file is applied and holds
// what the file had and what it has now. A process that is killed at any point
// therefore leaves a record that names all it may have made; the next round
// finds out which of these exist.
package manifests
