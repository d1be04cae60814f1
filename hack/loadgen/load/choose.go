package load

// chooser picks tiers in proportion to their weights.
type chooser struct{ upTo []float64 }

func newChooser(tiers []Tier) chooser {
	var c chooser
	sum := 0.0
	for _, t := range tiers {
		sum += t.Weight
		c.upTo = append(c.upTo, sum)
	}
	for i := range c.upTo {
		c.upTo[i] /= sum
	}
	return c
}

// tier returns the tier for a uniform draw, 0 <= x < 1.
func (c chooser) tier(x float64) int {
	for i, up := range c.upTo {
		if x < up {
			return i
		}
	}
	return len(c.upTo) - 1
}
