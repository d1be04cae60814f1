package fleet

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// A pod's clock may be wrong by hours. What it reports has counters, gauges and durations and no instant, so there is
// nothing of its clock that could be read; samples are dated by when they came in. (A certificate's dates are the
// certificate's.)
func TestAReportHasNothingOfItsPodsClock(t *testing.T) {
	var walk func(path string, x reflect.Type)
	walk = func(path string, x reflect.Type) {
		switch {
		case x == reflect.TypeFor[time.Time]():
			t.Errorf("%s is an instant of the pod's clock", path)
		case x == reflect.TypeFor[wire.TLSStatus]():
		case x.Kind() == reflect.Pointer || x.Kind() == reflect.Slice || x.Kind() == reflect.Map:
			walk(path, x.Elem())
		case x.Kind() == reflect.Struct:
			for i := range x.NumField() {
				f := x.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if name == "at" || strings.HasSuffix(name, "_at") || strings.HasSuffix(name, "_since") || strings.HasSuffix(name, "_unix") {
					t.Errorf("%s.%s is called as an instant is", path, name)
				}
				walk(path+"."+name, f.Type)
			}
		}
	}
	walk("stats", reflect.TypeFor[wire.Stats]())
}
