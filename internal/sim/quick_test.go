package sim

import (
	"context"
	"os"
	"runtime/pprof"
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	f := os.Getenv("SCEN")
	text, _ := os.ReadFile(f)
	sc, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("PROF") != "" {
		pf, _ := os.Create("/tmp/simrun/cpu.prof")
		pprof.StartCPUProfile(pf)
		defer pprof.StopCPUProfile()
	}
	b := time.Now()
	r, err := Run(context.Background(), sc)
	if err != nil {
		t.Fatal(err)
	}
	Text(os.Stdout, []*Result{r})
	t.Log(time.Since(b))
}
