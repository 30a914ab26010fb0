package main

import (
	"fmt"
	"slices"
	"time"
)

// bar is one line of the table of targets.
type bar struct {
	what, target, measured string
	met                    bool
}

var bars []bar

// check adds a line to the table that ends the run.
func check(met bool, what, target, measured string, args ...any) {
	bars = append(bars, bar{what, target, fmt.Sprintf(measured, args...), met})
}

// verdict prints what was asked for and what came out.
func verdict() {
	fmt.Println("\n| what | bar | measured | verdict |")
	fmt.Println("|---|---|---|---|")
	for _, b := range bars {
		said := "MISSED"
		if b.met {
			said = "met"
		}
		fmt.Printf("| %s | %s | %s | %s |\n", b.what, b.target, b.measured, said)
	}
}

// quantile is the value that part q of a sample lies below; it sorts the sample.
func quantile[T time.Duration | float64](of []T, q float64) T {
	slices.Sort(of)
	return of[min(len(of)-1, int(float64(len(of))*q))]
}

func us(d time.Duration) string { return d.Round(time.Microsecond).String() }
