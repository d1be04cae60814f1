package batching

import (
	"testing"

	"sluice.dev/sluice/internal/wire"
)

// Where parameters hold for a batch, requests with another switch of the pool are another batch; where they hold
// for an item, all share one.
func TestTheSwitchIsPartOfTheBatchKey(t *testing.T) {
	n := 5
	on := wire.Parameters{MaxTokens: &n, Switch: &wire.Switch{Name: "rerank", Value: "on"}}
	same := wire.Parameters{MaxTokens: &n, Switch: &wire.Switch{Name: "rerank", Value: "on"}}
	off := wire.Parameters{MaxTokens: &n, Switch: &wire.Switch{Name: "rerank", Value: "off"}}
	none := wire.Parameters{MaxTokens: &n}
	if keyOf(ParamsBatch, on) != keyOf(ParamsBatch, same) {
		t.Error("equal switches do not share a batch")
	}
	if keyOf(ParamsBatch, on) == keyOf(ParamsBatch, off) || keyOf(ParamsBatch, on) == keyOf(ParamsBatch, none) {
		t.Error("different switches share a batch")
	}
	if keyOf(ParamsItem, on) != keyOf(ParamsItem, none) {
		t.Error("parameters of items divide a batch")
	}
	if p := keyOf(ParamsBatch, on).parameters(); *p.Switch != *on.Switch || *p.MaxTokens != n {
		t.Errorf("%+v", p)
	}
	if p := keyOf(ParamsBatch, wire.Parameters{Switch: on.Switch}).parameters(); p == nil || *p.Switch != *on.Switch {
		t.Errorf("a switch alone: %+v", p)
	}
}
