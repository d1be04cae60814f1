package worker

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sluice.dev/sluice/internal/wire"
)

// predictSuffix ends the path of a prediction: POST /v1/models/{model}:predict.
const predictSuffix = ":predict"

type predictRequest struct {
	Instances []string `json:"instances"`
}

type predictResponse struct {
	Predictions []string `json:"predictions"`
}

// handlePredict serves {"instances": [...]} -> {"predictions": [...]}, so that other batchers can be measured
// against this worker. They know no 409: a call waits, in the order of arrival, until the GPU is free. Still
// one batch at a time.
func (s *Server) handlePredict(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.PathValue("model"), predictSuffix) {
		http.NotFound(w, r)
		return
	}
	body, bad := s.readBody(w, r)
	if bad != nil {
		s.writeRefusal(w, bad)
		return
	}
	req, err := decodePredict(body.Bytes(), s.opt.MaxBatch)
	freeBuffer(body)
	if err != nil {
		s.writeRefusal(w, refuse(http.StatusBadRequest, wire.CodeInvalid, err.Error()))
		return
	}
	id := "predict-" + rand.Text()
	inst, no := s.waitBegin(r.Context(), id)
	if no != nil {
		s.writeRefusal(w, no)
		return
	}
	out, _, err := s.run(r.Context(), inst, Batch{ID: id, Inputs: req.Instances})
	if r.Context().Err() != nil {
		s.metrics.abandoned.Inc()
	}
	if err != nil {
		writeFailure(w, err)
		return
	}
	writeJSON(w, http.StatusOK, predictResponse{Predictions: out.Outputs})
}

func decodePredict(body []byte, maxBatch int) (predictRequest, error) {
	var req predictRequest
	if err := json.Unmarshal(body, &req); err != nil {
		return req, fmt.Errorf("want {\"instances\": [strings]}: %w", err)
	}
	if n := len(req.Instances); n == 0 || n > maxBatch {
		return req, fmt.Errorf("instances has %d entries, want 1 to %d (--max-batch)", n, maxBatch)
	}
	return req, nil
}

// NewHTTPServer returns the server for a worker's port, with the limits that keep slow and idle callers
// from holding it. A batch has its own deadlines for body and answer (handlers.go), because its run may take
// longer than either.
func NewHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		// Longer than any client's idle timeout (90 s in Go's default transport), so that the client closes
		// first: a POST on a connection that the server has just closed is an EOF, which the client must not
		// repeat because the batch may have run.
		IdleTimeout:    10 * time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
}
