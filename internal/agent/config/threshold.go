package config

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Threshold is an amount of a resource, either absolute or as a share of the
// capacity it is compared with. The zero Threshold is an amount of zero.
type Threshold struct {
	Quantity resource.Quantity
	// Share is in (0, 1) and only meaningful if Relative is set.
	Share    float64
	Relative bool
}

// Of returns the amount in the unit of capacity (bytes, inodes or processes).
func (t Threshold) Of(capacity int64) int64 {
	if t.Relative {
		return int64(float64(capacity) * t.Share)
	}
	return t.Quantity.Value()
}

func (t Threshold) String() string {
	if t.Relative {
		return strconv.FormatFloat(t.Share*100, 'g', -1, 64) + "%"
	}
	return t.Quantity.String()
}

// ParseThreshold reads "100Mi" or "10%". The second result is false for "0%"
// and "100%", which switch a signal off.
func ParseThreshold(text string) (Threshold, bool, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		value, err := strconv.ParseFloat(percent, 64)
		if err != nil {
			return Threshold{}, false, fmt.Errorf("parsing threshold %q: %w", text, err)
		}
		if value < 0 || value > 100 {
			return Threshold{}, false, fmt.Errorf("parsing threshold %q: a percentage lies between 0%% and 100%%", text)
		}
		if value == 0 || value == 100 {
			return Threshold{}, false, nil
		}
		return Threshold{Share: value / 100, Relative: true}, true, nil
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return Threshold{}, false, fmt.Errorf("parsing threshold %q: %w", text, err)
	}
	if quantity.Sign() < 0 {
		return Threshold{}, false, fmt.Errorf("parsing threshold %q: must not be negative", text)
	}
	return Threshold{Quantity: quantity}, true, nil
}
