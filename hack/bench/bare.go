package main

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice.dev/sluice/internal/gateway"
)

// serveBare is the floor of what a request can cost a Go HTTP server: the batcher's own server, and a handler
// that only reads the body and sends it back. No JSON, no queue, no worker.
//
// Parked, the handler waits as a batcher's does before it answers: for 100 ms, and a hundred requests at
// 10,000/s wake at once. That floor has as many connections and goroutines at work as the batcher, all of them
// cold in the processor's caches; the other answers at once and is served by a few hot ones.
func serveBare(l net.Listener, parked bool) error {
	lot := newParking()
	echo := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if parked && len(body) > 0 {
			select {
			case <-lot.leave():
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}
	return gateway.NewServer(http.HandlerFunc(echo), nil).Serve(l)
}

// parking lets those who came within 10 ms leave together, 100 ms later.
type parking struct {
	mu    sync.Mutex
	gates []chan struct{} // the last is open for entering, the first opens next for leaving
}

func newParking() *parking {
	const gate, stay = 10 * time.Millisecond, 100 * time.Millisecond
	p := &parking{}
	for range stay/gate + 1 {
		p.gates = append(p.gates, make(chan struct{}))
	}
	go func() {
		for range time.Tick(gate) {
			p.mu.Lock()
			close(p.gates[0])
			p.gates = append(p.gates[1:], make(chan struct{}))
			p.mu.Unlock()
		}
	}()
	return p
}

func (p *parking) leave() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gates[len(p.gates)-1]
}
