package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/api/v1alpha1"
)

// TestNoise: a steady pool whose numbers wander is not written; whatever a person or a program would act on
// is.
func TestNoise(t *testing.T) {
	shown := v1alpha1.InferencePoolStatus{
		Utilization: "60%", OfferedPerSecond: 1200, CapacityPerSecond: 2000, BusyPercent: 75, FillPercent: 80,
		ServiceTime: metav1.Duration{Duration: 100 * time.Millisecond},
		Queue:       v1alpha1.QueueStatus{Depth: 20, Backlog: metav1.Duration{Duration: 10 * time.Millisecond}},
		Zone:        v1alpha1.ZoneStatus{Name: v1alpha1.ZoneGreen, Message: "1200/s offered, capacity 2000/s"},
		Conditions: []metav1.Condition{
			{Type: ConditionScaling, Status: metav1.ConditionTrue, Reason: "Steady", Message: "steady: utilization 60 % for 2 ready workers"},
			{Type: ConditionReady, Status: metav1.ConditionFalse, Reason: "Starting", Message: "pod a-1 waits"},
		},
	}
	idle := v1alpha1.InferencePoolStatus{Queue: v1alpha1.QueueStatus{Depth: 20, Backlog: shown.Queue.Backlog}}
	tests := []struct {
		name   string
		from   v1alpha1.InferencePoolStatus
		change func(*v1alpha1.InferencePoolStatus)
		noise  bool
	}{
		{"numbers that wander by a step", shown, func(s *v1alpha1.InferencePoolStatus) {
			s.Utilization, s.OfferedPerSecond, s.BusyPercent, s.ServiceTime.Duration = "65%", 1300, 80, 105*time.Millisecond
			s.Queue = v1alpha1.QueueStatus{Depth: 77, Backlog: metav1.Duration{Duration: 40 * time.Millisecond}}
			s.Zone.Message = "1300/s offered, capacity 2000/s"
			s.Conditions[0].Message = "steady: utilization 65 % for 2 ready workers"
		}, true},
		{"utilization by two steps", shown, func(s *v1alpha1.InferencePoolStatus) { s.Utilization = "70%" }, false},
		{"utilization no longer known", shown, func(s *v1alpha1.InferencePoolStatus) { s.Utilization = "n/a" }, false},
		{"load by a quarter", shown, func(s *v1alpha1.InferencePoolStatus) { s.OfferedPerSecond = 1500 }, false},
		{"a queue near the threshold of Yellow", shown, func(s *v1alpha1.InferencePoolStatus) { s.Queue.Backlog.Duration = 250 * time.Millisecond }, false},
		{"an idle pool's queue", idle, func(s *v1alpha1.InferencePoolStatus) { s.Queue = v1alpha1.QueueStatus{} }, false},
		{"a count in a message", shown, func(s *v1alpha1.InferencePoolStatus) {
			s.Conditions[0].Message = "steady: utilization 60 % for 3 ready workers"
		}, false},
		{"a name in a message", shown, func(s *v1alpha1.InferencePoolStatus) { s.Conditions[1].Message = "pod a-2 waits" }, false},
		{"a reason", shown, func(s *v1alpha1.InferencePoolStatus) { s.Conditions[0].Reason = "UpWindow" }, false},
		{"the zone", shown, func(s *v1alpha1.InferencePoolStatus) { s.Zone.Name = v1alpha1.ZoneYellow }, false},
		{"a timer", shown, func(s *v1alpha1.InferencePoolStatus) { s.Scaling.BelowSince = &metav1.Time{Time: time.Unix(1, 0)} }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			next := tt.from.DeepCopy()
			tt.change(next)
			if got := noise(&tt.from, next); got != tt.noise {
				t.Errorf("noise is %v, want %v", got, tt.noise)
			}
		})
	}
}
