package api

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// mergeStringData moves stringData, which exists for writers only, into data.
// It wins over data of the same key, and is never stored.
func mergeStringData(obj runtime.Object) {
	s := obj.(*corev1.Secret)
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

func prepareSecretCreate(_ context.Context, obj runtime.Object) { mergeStringData(obj) }

func prepareSecretUpdate(_ context.Context, obj, _ runtime.Object) { mergeStringData(obj) }
