package main

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// serveBare is the floor of what a request can cost a Go HTTP server: the batcher's server settings, and a
// handler that only reads the body and sends it back. No JSON, no queue, no worker.
func serveBare(l net.Listener) error {
	s := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body)
		}),
	}
	return s.Serve(l)
}
