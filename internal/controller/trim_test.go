package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the operator reads of a Pod must survive the trimming of its cache: without the deletion cost it never
// finds the mark on a worker that stayed, and that worker is the first to go in somebody else's scale-down.
func TestCachedPodsKeepWhatIsReadOfThem(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "w", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{corev1.PodDeletionCost: victimCost, "other": "x"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec:   corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "worker"}}},
		Status: corev1.PodStatus{PodIP: "10.0.0.1"},
	}
	got, err := trimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	p := got.(*corev1.Pod)
	if p.Annotations[corev1.PodDeletionCost] != victimCost || p.Spec.NodeName != "n" || p.Status.PodIP == "" || p.Labels["a"] != "b" {
		t.Errorf("lost: %+v", p)
	}
	if len(p.Annotations) != 1 || p.ManagedFields != nil || p.Spec.Containers != nil {
		t.Errorf("kept what nobody reads: %+v", p)
	}
}

// Of a child, what the operator itself has written is how it sees drift.
func TestCachedChildrenKeepTheOperatorsOwnFields(t *testing.T) {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "kubectl"}, {Manager: FieldManager}, {Manager: FieldManager, Subresource: "status"},
	}}}
	got, err := trimOwners(m)
	if err != nil {
		t.Fatal(err)
	}
	if f := got.(*corev1.ConfigMap).ManagedFields; len(f) != 1 || f[0].Manager != FieldManager || f[0].Subresource != "" {
		t.Errorf("%+v", f)
	}
}
