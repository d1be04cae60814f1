"""Runs one Python function for a Sluice GPU worker. Standard library only, Python 3.8 or newer.

usage: python -c <this text> module:function [directory]

Messages are frames: 4 bytes of length (big endian), then that many bytes of JSON. They come in on file
descriptor 3 and leave on 4, so whatever the function prints goes to the worker's log and can't be mistaken
for an answer. End of file on 3 ends the process.
"""
import importlib
import inspect
import json
import os
import struct
import sys
import traceback

VERSION = 1
FRAME_LIMIT = 256 << 20
MESSAGE_LIMIT = 2000
PARAMETER_NAMES = ("parameters", "params")


class ContractError(Exception):
    """What came back from the function is not a list of as many strings."""


def read_exactly(stream, size):
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def read_frame(stream):
    (size,) = struct.unpack(">I", read_exactly(stream, 4))
    return json.loads(read_exactly(stream, size))


def write_frame(stream, message):
    data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    if len(data) > FRAME_LIMIT:
        raise ContractError("the outputs have %d bytes together, the limit is %d" % (len(data), FRAME_LIMIT))
    stream.write(struct.pack(">I", len(data)))
    stream.write(data)
    stream.flush()


def describe(error):
    text = str(error).encode("utf-8", "replace").decode("utf-8")
    if len(text) > MESSAGE_LIMIT:
        text = text[:MESSAGE_LIMIT] + "..."
    return {"type": type(error).__name__, "message": text}


def resolve(spec):
    module_name, _, name = spec.partition(":")
    function = getattr(importlib.import_module(module_name), name)
    if not callable(function):
        raise TypeError("%s is %s, want a function" % (spec, type(function).__name__))
    return function


def parameters_argument(function):
    """How the function takes parameters: None, "positional", or the keyword's name.

    A second argument that the caller must give takes them, whatever its name. One with a default does only
    if it is called parameters or params: `def f(inputs, batch_size=32)` must not get a list of dictionaries.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    positional = 0
    for p in signature.parameters.values():
        named = p.name in PARAMETER_NAMES
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            positional += 1
            if positional == 2 and (named or p.default is p.empty):
                return "positional"
        if named and positional != 1 and p.kind == p.POSITIONAL_OR_KEYWORD:
            return p.name
        if named and p.kind == p.KEYWORD_ONLY:
            return p.name
    return None


def make_call(function, argument):
    def call(inputs, parameters):
        if argument is None:
            return function(inputs)
        if argument == "positional":
            return function(inputs, parameters)
        return function(inputs, **{argument: parameters})

    if not inspect.iscoroutinefunction(function):
        return call
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return lambda inputs, parameters: loop.run_until_complete(call(inputs, parameters))


def checked(outputs, count):
    if not isinstance(outputs, (list, tuple)):
        raise ContractError("the function returned %s, want a list of %d strings" % (type(outputs).__name__, count))
    if len(outputs) != count:
        raise ContractError("the function returned %d outputs for %d inputs" % (len(outputs), count))
    for i, output in enumerate(outputs):
        if not isinstance(output, str):
            raise ContractError("output %d is %s, want str" % (i, type(output).__name__))
        try:
            output.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ContractError("output %d is no valid text: %s" % (i, error)) from None
    return list(outputs)


def answer(call, request):
    reply = {"id": request["id"]}
    inputs = request["inputs"]
    parameters = request.get("parameters") or [{} for _ in inputs]
    count = len(inputs)  # before the call: the function may change its list
    try:
        reply["outputs"] = checked(call(inputs, parameters), count)
    except ContractError as error:
        reply["contract"] = str(error)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: a function must not end the worker
        traceback.print_exc()
        sys.stderr.flush()
        reply["error"] = describe(error)
    return reply


def main():
    requests = os.fdopen(3, "rb")
    replies = os.fdopen(4, "wb")
    # A program that the function starts must not keep the pipes open.
    os.set_inheritable(3, False)
    os.set_inheritable(4, False)
    if len(sys.argv) > 2 and sys.argv[2]:
        sys.path.insert(0, sys.argv[2])
    try:
        function = resolve(sys.argv[1])
        argument = parameters_argument(function)
        call = make_call(function, argument)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        write_frame(replies, {"version": VERSION, "fatal": describe(error)})
        return 1
    write_frame(replies, {"version": VERSION, "python": sys.version.split()[0], "parameters": argument is not None})
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return 0
        reply = answer(call, request)
        try:
            write_frame(replies, reply)
        except ContractError as error:
            write_frame(replies, {"id": request["id"], "contract": str(error)})


if __name__ == "__main__":
    sys.exit(main())
