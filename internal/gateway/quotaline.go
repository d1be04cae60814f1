package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"sluice.dev/sluice/internal/quota"
	"sluice.dev/sluice/internal/wire"
)

// pathQuota takes quotaMessages between the gateways of one pool, on the internal port.
const pathQuota = "/internal/quota"

// Bounds of what travels between a gateway and a bucket's owner.
const (
	// messageGap times the number of gateways is the shortest time between two messages from one gateway to one owner,
	// at most messageGapMost: an owner gets at most 2,000 messages a second from up to ten gateways, however many
	// requests they decide. Of a reservation that comes alone nothing waits.
	messageGap     = 500 * time.Microsecond
	messageGapMost = 5 * time.Millisecond
	// messageMost bounds the questions, and the settlements, in one message.
	messageMost = 512
	// settleQueue bounds the settlements on their way to one owner. One that finds no place is dropped: its
	// reservation counts as spent, so the limit errs on the strict side.
	settleQueue = 4096
	// messageBytes bounds what is read of a message: messageMost asks with tenants' names of 128 bytes, twice over.
	messageBytes = 1 << 20
)

// quotaMessage is what a gateway sends to an owner: what came together while the last message was under way.
type quotaMessage struct {
	Asks    []quota.Ask  `json:"asks,omitempty"`
	Settles []settlement `json:"settles,omitempty"`
}

// quotaAnswer has a reply for each of the asks, in their order.
type quotaAnswer struct {
	Replies []quota.Reply `json:"replies"`
}

type settlement struct {
	Grant quota.Grant `json:"grant"`
	Used  quota.Cost  `json:"used"`
}

// quotaLine carries questions and settlements to one owner, one message at a time: what comes while it is under way
// travels together in the next. An HTTP request for each reservation costs an owner a third of a core at 10,000/s.
// Safe for concurrent use.
type quotaLine struct {
	fleet *FleetQuota
	addr  string

	mu      sync.Mutex
	asks    []*question
	settles []settlement
	flying  bool // a goroutine sends
	last    time.Time
}

// question is an ask on its way.
type question struct {
	ask   quota.Ask
	done  chan struct{} // closed when reply and err are there
	reply quota.Reply
	err   error
	gone  bool // nobody waits any more: a grant goes back. Guarded by the line's lock, as done's closing is
}

var errNoAnswer = errors.New("the bucket's owner did not answer in time")

// ask returns the owner's answer, or an error when it does not answer within the fleet's timeout or ctx ends.
func (l *quotaLine) ask(ctx context.Context, a quota.Ask) (quota.Reply, error) {
	q := &question{ask: a, done: make(chan struct{})}
	l.mu.Lock()
	l.asks = append(l.asks, q)
	l.start()
	l.mu.Unlock()
	timer := time.NewTimer(l.fleet.timeout)
	defer timer.Stop()
	var err error
	select {
	case <-q.done:
		return q.reply, q.err
	case <-timer.C:
		err = errNoAnswer
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-q.done: // at the last moment
		return q.reply, q.err
	default:
		q.gone = true
		return quota.Reply{}, err
	}
}

// settle takes a settlement along and says whether there was a place for it. It never waits.
func (l *quotaLine) settle(s settlement) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keep(s)
}

// keep is settle; l.mu is held.
func (l *quotaLine) keep(s settlement) bool {
	if len(l.settles) >= settleQueue {
		return false
	}
	l.settles = append(l.settles, s)
	l.start()
	return true
}

// start lets a goroutine send what there is, if none does. l.mu is held.
func (l *quotaLine) start() {
	if !l.flying {
		l.flying = true
		l.fleet.flights.Go(l.fly)
	}
}

// fly sends until nothing is left.
func (l *quotaLine) fly() {
	for {
		if wait := l.gap() - time.Since(l.last); wait > 0 {
			time.Sleep(wait)
		}
		l.last = time.Now() // only the goroutine that flies touches it
		asks, settles := l.take()
		if asks == nil && settles == nil {
			return
		}
		l.send(asks, settles)
	}
}

func (l *quotaLine) gap() time.Duration {
	n := 1
	if p := l.fleet.peers.Load(); p != nil {
		n = len(p.names)
	}
	return min(time.Duration(n)*messageGap, messageGapMost)
}

// take is what the next message has; with nothing to send the goroutine ends.
func (l *quotaLine) take() (asks []*question, settles []settlement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	live := l.asks[:0]
	for _, q := range l.asks {
		if !q.gone {
			live = append(live, q)
		}
	}
	asks, l.asks = cut(live)
	settles, l.settles = cut(l.settles)
	l.flying = asks != nil || settles != nil
	return asks, settles
}

// cut divides a list into what one message has and the rest, of which nothing is shared.
func cut[T any](list []T) (now, later []T) {
	if len(list) <= messageMost {
		if len(list) == 0 {
			return nil, nil
		}
		return list, nil
	}
	return list[:messageMost:messageMost], append([]T(nil), list[messageMost:]...)
}

// send sends one message and hands out the replies.
func (l *quotaLine) send(asks []*question, settles []settlement) {
	m := quotaMessage{Settles: settles, Asks: make([]quota.Ask, len(asks))}
	for i, q := range asks {
		m.Asks[i] = q.ask
	}
	a, err := l.fleet.post(l.addr, &m)
	if err == nil && len(a.Replies) != len(asks) {
		err = fmt.Errorf("%s answered %d of %d questions", l.addr, len(a.Replies), len(asks))
	}
	if err != nil {
		l.fleet.dropped.Add(uint64(len(settles)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, q := range asks {
		if err != nil {
			q.err = err
		} else {
			q.reply = a.Replies[i]
		}
		close(q.done)
		if q.gone && q.reply.Granted && !l.keep(settlement{Grant: q.reply.Grant}) {
			l.fleet.dropped.Add(1)
		}
	}
}

// post sends a message to an owner.
func (f *FleetQuota) post(addr string, m *quotaMessage) (a quotaAnswer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	body, err := wire.AppendJSON(nil, m)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+pathQuota, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := f.client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, messageBytes)) // to its end, so that the connection is used again
	switch {
	case err != nil:
		return a, err
	case res.StatusCode != http.StatusOK:
		return a, fmt.Errorf("%s answered %s", addr, res.Status)
	}
	return a, wire.Decode(raw, &a)
}

// routes serves the other gateways' messages.
func (f *FleetQuota) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST "+pathQuota, func(w http.ResponseWriter, r *http.Request) {
		var m quotaMessage
		raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, messageBytes))
		if err != nil || wire.Decode(raw, &m) != nil || !m.valid() {
			http.Error(w, "want reservations and settlements", http.StatusBadRequest)
			return
		}
		now := time.Now()
		for _, s := range m.Settles {
			f.ledger.Settle(now, s.Grant, s.Used)
		}
		a := quotaAnswer{Replies: make([]quota.Reply, len(m.Asks))}
		for i := range m.Asks {
			a.Replies[i] = f.ledger.Reserve(now, m.Asks[i])
		}
		// By the codec that reads it: encoding/json writes durations in another form.
		writeJSON(w, http.StatusOK, "application/json", a)
	})
}

func (m *quotaMessage) valid() bool {
	if len(m.Asks) > messageMost || len(m.Settles) > messageMost {
		return false
	}
	for i := range m.Asks {
		if !m.Asks[i].Valid() {
			return false
		}
	}
	for i := range m.Settles {
		if !m.Settles[i].Grant.Cost.Valid() || !m.Settles[i].Used.Valid() {
			return false
		}
	}
	return true
}
