package load

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// call is one request on its way.
type call struct {
	n         uint64 // of the run, from 0: the number that its input begins with
	due       time.Duration
	tier      int
	input     string
	maxTokens int
	body      []byte // only for Echo
}

// conn is one HTTP/1.1 connection that carries one call at a time.
type conn struct {
	c      net.Conn
	target int

	idleSince time.Time // guarded by the run's lock

	mu     sync.Mutex
	busy   bool
	dead   bool
	serial uint64 // of the call it carries or carried last: a deadline names the call that it is for
	call   call
}

// answer is what the reader of a connection needs of a response.
type answer struct {
	status     int
	body       []byte
	keepAlive  bool
	retryAfter bool
}

// maxAnswer bounds a response's body, in bytes.
const maxAnswer = 64 << 20

var errMalformed = errors.New("malformed response")

// readAnswer reads one response; buf is reused for its body. io.EOF says that the connection ended before
// the first byte.
func readAnswer(r *bufio.Reader, buf []byte) (answer, error) {
	a := answer{keepAlive: true}
	line, err := r.ReadSlice('\n')
	if err != nil {
		if len(line) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return a, err
	}
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return a, errMalformed
	}
	a.status, err = strconv.Atoi(string(line[9:12]))
	if err != nil {
		return a, errMalformed
	}
	if line[7] == '0' {
		a.keepAlive = false
	}
	length, chunked := -1, false
	for {
		line, err = r.ReadSlice('\n')
		if err != nil {
			return a, unexpected(err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch len(name) { // the length tells most headers apart without comparing
		case len("Content-Length"):
			if bytes.EqualFold(name, []byte("Content-Length")) {
				if length, err = strconv.Atoi(string(value)); err != nil || length < 0 || length > maxAnswer {
					return a, errMalformed
				}
			}
		case len("Transfer-Encoding"):
			if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
				chunked = bytes.EqualFold(value, []byte("chunked"))
			}
		case len("Connection"):
			if bytes.EqualFold(name, []byte("Connection")) && bytes.EqualFold(value, []byte("close")) {
				a.keepAlive = false
			}
		case len("Retry-After"):
			if bytes.EqualFold(name, []byte("Retry-After")) {
				a.retryAfter = true
			}
		}
	}
	switch {
	case a.status < 200: // 100 Continue and the like: the answer follows
		return readAnswer(r, buf)
	case chunked:
		a.body, err = readChunks(r, buf[:0])
	case length >= 0:
		if cap(buf) < length {
			buf = make([]byte, length, length*2)
		}
		a.body = buf[:length]
		_, err = io.ReadFull(r, a.body)
	default:
		a.keepAlive = false
		a.body, err = io.ReadAll(io.LimitReader(r, maxAnswer))
	}
	return a, unexpected(err)
}

// readChunks appends the chunks of a body to buf.
func readChunks(r *bufio.Reader, buf []byte) ([]byte, error) {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return buf, err
		}
		size, _, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(";"))
		n, err := strconv.ParseUint(string(size), 16, 31)
		if err != nil || len(buf)+int(n) > maxAnswer {
			return buf, errMalformed
		}
		if n == 0 {
			for { // trailers
				if line, err = r.ReadSlice('\n'); err != nil || len(bytes.TrimRight(line, "\r\n")) == 0 {
					return buf, err
				}
			}
		}
		at := len(buf)
		buf = append(buf, make([]byte, n)...)
		if _, err = io.ReadFull(r, buf[at:]); err != nil {
			return buf, err
		}
		if _, err = r.Discard(2); err != nil {
			return buf, err
		}
	}
}

// unexpected turns the end of the stream in the middle of an answer into what it is.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
