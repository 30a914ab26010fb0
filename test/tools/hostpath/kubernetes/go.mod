module k8s.io/kubernetes

go 1.26.0

require golang.org/x/sys v0.36.0
