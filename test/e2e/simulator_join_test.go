package e2e

import (
	"reflect"
	"testing"
	"time"
)

func TestStepsWithinTwoTicksAreOneAnswer(t *testing.T) {
	seen := []scaled{{61 * time.Second, 2, 4}, {63 * time.Second, 4, 7}, {245 * time.Second, 7, 6}, {247 * time.Second, 6, 7}, {277 * time.Second, 7, 6}}
	want := []scaled{{61 * time.Second, 2, 7}, {245 * time.Second, 7, 6}, {247 * time.Second, 6, 7}, {277 * time.Second, 7, 6}}
	if got := joined(seen); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
