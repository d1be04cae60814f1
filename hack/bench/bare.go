package main

import (
	"io"
	"net"
	"net/http"
	"strconv"

	"sluice.dev/sluice/internal/gateway"
)

// serveBare is the floor of what a request can cost a Go HTTP server: the batcher's own server, and a
// handler that only reads the body and sends it back. No JSON, no queue, no worker.
func serveBare(l net.Listener) error {
	echo := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}
	return gateway.NewServer(http.HandlerFunc(echo), nil).Serve(l)
}
