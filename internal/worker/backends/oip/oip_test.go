package oip

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/wire"
	"sluice.dev/sluice/internal/worker"
)

func config(m *modelServer) Config {
	return Config{
		URL: "http://model:8000/", Model: m.model, Input: DefaultInput, Output: DefaultOutput,
		Transport: worker.InProcess{"model:8000": m},
	}
}

func load(t *testing.T, c Config) worker.Instance {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	i, err := b.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.Close() })
	return i
}

func wantError(t *testing.T, err error, code, text string) {
	t.Helper()
	var e *worker.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Message, text) {
		t.Fatalf("error %v, want %s with %q", err, code, text)
	}
}

func dead(i worker.Instance) bool {
	select {
	case <-i.Done():
		return true
	default:
		return false
	}
}

func TestStringsGoOutAndComeBackInOrder(t *testing.T) {
	for name, prepare := range map[string]func(*modelServer){
		"one dimension":           func(*modelServer) {},
		"two dimensions":          func(m *modelServer) { m.inputShape = []int{-1, 1} },
		"nested answer":           func(m *modelServer) { m.inputShape, m.nested = []int{-1, 1}, true },
		"no metadata":             func(m *modelServer) { m.noMetadata = true },
		"a model name with a dot": func(m *modelServer) { m.model = "upper.v1" },
	} {
		t.Run(name, func(t *testing.T) {
			m := newModelServer()
			prepare(m)
			i := load(t, config(m))
			out, err := i.Run(t.Context(), worker.Batch{ID: "b1", Inputs: []string{"a", "", "é<>\x00", "日本"}})
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(out.Outputs, "|"); got != "A||É<>\x00|日本" {
				t.Errorf("outputs %q", got)
			}
			if i.ParamsMode() != worker.ParamsBatch || m.parameters != nil {
				t.Errorf("mode %s, parameters %v, want batch and none sent", i.ParamsMode(), m.parameters)
			}
		})
	}
}

func TestOverARealConnection(t *testing.T) {
	m := newModelServer()
	srv := httptest.NewServer(m)
	defer srv.Close()
	c := config(m)
	c.URL, c.Transport = srv.URL, nil
	i := load(t, c)
	out, err := i.Run(t.Context(), worker.Batch{Inputs: []string{strings.Repeat("x", 1<<20)}})
	if err != nil || out.Outputs[0] != strings.Repeat("X", 1<<20) {
		t.Errorf("an input of 1 MiB: %v", err)
	}
}

func TestParametersOfTheBatch(t *testing.T) {
	m := newModelServer()
	n, temperature := 5, 0.25
	if _, err := load(t, config(m)).Run(t.Context(), worker.Batch{Inputs: []string{"a"}, Params: wire.Parameters{MaxTokens: &n, Temperature: &temperature}}); err != nil {
		t.Fatal(err)
	}
	if m.parameters["max_tokens"] != 5.0 || m.parameters["temperature"] != 0.25 || len(m.parameters) != 2 {
		t.Errorf("parameters %v", m.parameters)
	}
}

// A parameter that the pool sets stands beside the client's, with the type that its value has.
func TestTheSwitchOfThePool(t *testing.T) {
	for value, want := range map[string]any{"false": false, "true": true, "12": 12.0, "off": "off", "1.5": "1.5"} {
		m := newModelServer()
		n := 5
		if _, err := load(t, config(m)).Run(t.Context(), worker.Batch{Inputs: []string{"a"}, Params: wire.Parameters{MaxTokens: &n, Switch: &wire.Switch{Name: "rerank", Value: value}}}); err != nil {
			t.Fatal(err)
		}
		if m.parameters["rerank"] != want || m.parameters["max_tokens"] != 5.0 || len(m.parameters) != 2 {
			t.Errorf("%q: parameters %v", value, m.parameters)
		}
	}
}

func TestErrorsOfTheServer(t *testing.T) {
	for status, want := range map[int]string{
		400: wire.CodeApplication, 422: wire.CodeApplication, 500: wire.CodeApplication, 502: wire.CodeBackend, 503: wire.CodeBackend,
	} {
		m := newModelServer()
		m.instead = func(w http.ResponseWriter, _ *http.Request, _ []string) { fail(w, status, "the model says no") }
		i := load(t, config(m))
		_, err := i.Run(t.Context(), worker.Batch{Inputs: []string{"a"}})
		wantError(t, err, want, "the model says no")
		if dead(i) {
			t.Errorf("%d: a server that answers was given up", status)
		}
	}
}

func TestUnusableAnswersAreNamed(t *testing.T) {
	tensor := func(name, datatype string, shape []int, data ...any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			answerTensor(w, "b", specTensor{Name: name, Datatype: datatype, Shape: shape, Data: data})
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"fewer":          {tensor(DefaultOutput, "BYTES", []int{1}, "A"), "shape [1] for 2 inputs"},
		"more":           {tensor(DefaultOutput, "BYTES", []int{3}, "A", "B", "C"), "shape [3] for 2 inputs"},
		"less data":      {tensor(DefaultOutput, "BYTES", []int{2}, "A"), "1 strings for 2 inputs"},
		"two a row":      {tensor(DefaultOutput, "BYTES", []int{2, 2}, "A", "B", "C", "D"), "shape [2 2]"},
		"numbers":        {tensor(DefaultOutput, "BYTES", []int{2}, "A", 7), "element 1 is float64"},
		"another type":   {tensor(DefaultOutput, "FP32", []int{2}, 1, 2), "datatype FP32"},
		"another tensor": {tensor("other", "BYTES", []int{2}, "A", "B"), `no output "text_output"`},
		"no JSON":        {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }, "not valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModelServer()
			m.instead = func(w http.ResponseWriter, r *http.Request, _ []string) { c.answer(w, r) }
			_, err := load(t, config(m)).Run(t.Context(), worker.Batch{Inputs: []string{"a", "b"}})
			wantError(t, err, wire.CodeBackend, c.want)
		})
	}
}

func TestServerThatDiesInMidBatch(t *testing.T) {
	m := newModelServer()
	m.instead = func(http.ResponseWriter, *http.Request, []string) { panic(http.ErrAbortHandler) }
	i := load(t, config(m))
	_, err := i.Run(t.Context(), worker.Batch{Inputs: []string{"a"}})
	wantError(t, err, wire.CodeBackend, "reset")
	if !dead(i) {
		t.Error("Run returned before Done was closed")
	}
}

func TestHungServerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelServer()
		m.instead = func(_ http.ResponseWriter, r *http.Request, _ []string) { <-r.Context().Done() }
		i := load(t, config(m))
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, errors.New("the batch took too long"))
		defer cancel()
		_, err := i.Run(ctx, worker.Batch{Inputs: []string{"a"}})
		wantError(t, err, wire.CodeBackend, "took too long")
		if !dead(i) {
			t.Error("the instance lives")
		}
	})
}

func TestReadinessFollowsTheServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelServer()
		m.set(false, false)
		b, err := New(config(m))
		if err != nil {
			t.Fatal(err)
		}
		loaded := make(chan worker.Instance, 1)
		go func() {
			i, err := b.Load(t.Context())
			if err != nil {
				t.Error(err)
			}
			loaded <- i
		}()
		time.Sleep(10 * time.Second)
		m.set(true, false) // the server is up, the model still loads
		time.Sleep(10 * time.Second)
		if len(loaded) != 0 {
			t.Fatal("loaded before the model was ready")
		}
		m.set(true, true)
		time.Sleep(pollEvery)
		synctest.Wait()
		i := <-loaded
		defer func() { _ = i.Close() }()

		m.set(true, false)
		time.Sleep(2*pollEvery + pollEvery/2)
		m.set(true, true) // a blip of two polls
		time.Sleep(10 * pollEvery)
		if dead(i) {
			t.Fatal("given up for a blip")
		}
		m.set(true, false)
		time.Sleep(pollFailures*pollEvery + pollEvery/2)
		if !dead(i) || !strings.Contains(i.Err().Error(), "no longer ready") {
			t.Errorf("not given up after %d polls: %v", pollFailures, i.Err())
		}
	})
}

func TestBusyServerNeedNotAnswerForItsHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModelServer()
		m.instead = func(w http.ResponseWriter, _ *http.Request, _ []string) {
			m.set(false, false)
			time.Sleep(time.Minute)
			m.set(true, true)
			answerTensor(w, "b", specTensor{Name: DefaultOutput, Datatype: "BYTES", Shape: []int{1}, Data: []string{"A"}})
		}
		i := load(t, config(m))
		if _, err := i.Run(t.Context(), worker.Batch{Inputs: []string{"a"}}); err != nil || dead(i) {
			t.Errorf("batch of a minute: %v", err)
		}
	})
}

func TestLoadSaysWhatTheModelLacks(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config, *modelServer)
		want   string
	}{
		"input":      {func(c *Config, _ *modelServer) { c.Input = "prompt" }, `has no input "prompt"`},
		"dimensions": {func(_ *Config, m *modelServer) { m.inputShape = []int{-1, 1, 1} }, "want BYTES of one or two dimensions"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModelServer()
			cfg := config(m)
			c.change(&cfg, m)
			b, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Load(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b, _ := New(Config{URL: "http://nobody:1", Model: "m", Input: "i", Output: "o", Transport: worker.InProcess{}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Load(ctx); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("got %v, want the refused connection", err)
		}
	})
}

func TestCheck(t *testing.T) {
	good := Config{URL: DefaultURL, Model: "m", Input: "i", Output: "o"}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.URL = "localhost:8000" }, func(c *Config) { c.URL = "ftp://x" }, func(c *Config) { c.Model = "" },
		func(c *Config) { c.Input = "" }, func(c *Config) { c.Output = "" },
	} {
		c := good
		change(&c)
		if c.Check() == nil {
			t.Errorf("%+v passes", c)
		}
	}
}

func FuzzDecodeOutputs(f *testing.F) {
	f.Add([]byte(`{"outputs":[{"name":"o","datatype":"BYTES","shape":[2],"data":["a","b"]}]}`))
	f.Add([]byte(`{"outputs":[{"name":"o","datatype":"BYTES","shape":[2,1],"data":[["a"],["b"]]}]}`))
	f.Add([]byte(`{"outputs":[{"name":"o","datatype":"BYTES","shape":[2,-1,-1],"data":[[[[[]]]]]}]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if out, err := decodeOutputs(answer, "o", 2); err == nil && len(out) != 2 {
			t.Fatalf("%d outputs for 2 inputs", len(out))
		}
	})
}
