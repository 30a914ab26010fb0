package stats

import (
	"encoding/json"
	"fmt"
	"io"
	"testing"
)

func BenchmarkSummary(b *testing.B) {
	for _, pods := range []int{10, 110, 500} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			p := provider(b, 2, pods, nil)
			if _, err := p.Summary(b.Context(), false); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				summary, err := p.Summary(b.Context(), false)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := json.Marshal(summary); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCAdvisor(b *testing.B) {
	p := provider(b, 2, 110, nil)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.WriteCAdvisor(b.Context(), io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
