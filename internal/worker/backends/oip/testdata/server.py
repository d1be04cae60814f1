"""A model server of the Open Inference Protocol v2 over HTTP, written from the public specification (KServe,
docs/predict-api/v2/required_api.md) and from nothing else: it shares no code and no author's habit with the client
that it tests. It serves one model, "upper", of one BYTES input and one BYTES output, and is strict: whatever the
specification requires of a request and is not there is answered 400 with {"error": ...}.

usage: server.py [--port N] [--columns] [--load-seconds S]

It prints the port that it listens on. Inputs that begin with "raise" make the model fail (500), "exit" ends the process.
"""
import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "upper"
INPUT, OUTPUT = "text_input", "text_output"


class Refused(Exception):
    """What is wrong with a request; the status is the first argument."""


def elements_of(shape):
    count = 1
    for dimension in shape:
        count *= dimension
    return count


def flat(data):
    """Tensor data may be flattened or nested as its shape is; both are row-major."""
    for element in data:
        if isinstance(element, list):
            yield from flat(element)
        else:
            yield element


def require(condition, message):
    if not condition:
        raise Refused(400, message)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=None):
        data = b"" if body is None else json.dumps(body).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def ready(self):
        return time.monotonic() >= self.server.ready_at

    def metadata(self):
        shape = [-1, 1] if self.server.columns else [-1]
        return {
            "name": MODEL,
            "versions": ["1"],
            "platform": "python",
            "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": shape}],
            "outputs": [{"name": OUTPUT, "datatype": "BYTES", "shape": shape}],
        }

    def do_GET(self):
        base = "/v2/models/" + MODEL
        if self.path in ("/v2", "/v2/"):
            self.reply(200, {"name": "conforming", "version": "1", "extensions": []})
        elif self.path == "/v2/health/live":
            self.reply(200)
        elif self.path == "/v2/health/ready":
            self.reply(200 if self.ready() else 503)
        elif self.path in (base + "/ready", base + "/versions/1/ready"):
            self.reply(200 if self.ready() else 503)
        elif self.path in (base, base + "/versions/1"):
            self.reply(200, self.metadata())
        else:
            self.reply(404, {"error": "not found: " + self.path})

    def do_POST(self):
        try:
            length = self.headers.get("Content-Length")
            require(length is not None, "Content-Length is missing")
            body = self.rfile.read(int(length))
            if self.path not in ("/v2/models/%s/infer" % MODEL, "/v2/models/%s/versions/1/infer" % MODEL):
                raise Refused(404, "unknown model: " + self.path)
            if not self.ready():
                raise Refused(503, "the model is loading")
            self.reply(200, self.infer(json.loads(body)))
        except Refused as refused:
            self.reply(refused.args[0], {"error": refused.args[1]})
        except Exception as error:  # the model's own, or a body that is no JSON
            self.reply(500, {"error": "%s: %s" % (type(error).__name__, error)})

    def infer(self, request):
        require(isinstance(request, dict), "the request is no object")
        require(set(request) <= {"id", "parameters", "inputs", "outputs"}, "unknown fields in %s" % sorted(request))
        require(isinstance(request.get("id", ""), str), "id is no string")
        require(isinstance(request.get("parameters", {}), dict), "parameters are no object")
        for value in request.get("parameters", {}).values():
            require(isinstance(value, (str, int, float, bool)), "a parameter is neither string, number nor boolean")
        inputs = request.get("inputs")
        require(isinstance(inputs, list) and len(inputs) == 1, "want one input")
        tensor = inputs[0]
        require({"name", "shape", "datatype", "data"} <= set(tensor), "an input lacks name, shape, datatype or data")
        require(tensor["name"] == INPUT, "unexpected input %s" % tensor["name"])
        require(tensor["datatype"] == "BYTES", "datatype %s" % tensor["datatype"])
        shape = tensor["shape"]
        require(all(isinstance(n, int) and n > 0 for n in shape), "shape %s" % shape)
        require(len(shape) == (2 if self.server.columns else 1), "shape %s" % shape)
        require(not self.server.columns or shape[1] == 1, "shape %s" % shape)
        texts = list(flat(tensor["data"]))
        require(len(texts) == elements_of(shape), "%d elements for shape %s" % (len(texts), shape))
        require(all(isinstance(text, str) for text in texts), "an element is no string")
        for wanted in request.get("outputs", [{"name": OUTPUT}]):
            require(wanted.get("name") == OUTPUT, "unexpected output %s" % wanted.get("name"))
        return {
            "model_name": MODEL,
            "model_version": "1",
            "id": request.get("id", ""),
            "outputs": [{"name": OUTPUT, "shape": shape, "datatype": "BYTES", "data": model(texts, request.get("parameters", {}))}],
        }


def model(texts, parameters):
    outputs = []
    for text in texts:
        if text.startswith("raise"):
            raise ValueError("cannot do " + text)
        if text.startswith("exit"):
            os._exit(1)
        # ASCII only: what the whole of Unicode's upper case is, two languages need not agree on.
        output = "".join(c.upper() if "a" <= c <= "z" else c for c in text)
        outputs.append(output[: parameters.get("max_tokens", len(output))])
    return outputs


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--port", type=int, default=0)
    flags.add_argument("--columns", action="store_true", help="the model wants [n, 1], as Triton's with a max_batch_size do")
    flags.add_argument("--load-seconds", type=float, default=0)
    args = flags.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.columns = args.columns
    server.ready_at = time.monotonic() + args.load_seconds
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
