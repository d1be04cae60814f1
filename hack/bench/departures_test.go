package main

import (
	"bufio"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestItemsThatStartedAfterTheirClientLeftAreWaste(t *testing.T) {
	path := filepath.Join(t.TempDir(), "starts")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	log := &startLog{w: bufio.NewWriter(f)}
	at := time.Unix(1000, 0)
	if err := log.add(at, []string{"1-before", "2-after", "a-just after", "4-stays", "warm-up"}); err != nil {
		t.Fatal(err)
	}
	d := &departures{}
	d.add(1, at.Add(-50*time.Millisecond))
	d.add(2, at.Add(50*time.Millisecond))
	d.add(10, at.Add(-newsTravels/2))
	n, err := d.inBatch(path)
	if err != nil || n != 2 {
		t.Errorf("%d items (%v) ran with a client that left in mid-batch, want 2 and a", n, err)
	}
}
