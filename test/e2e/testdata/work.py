"""The function of the end-to-end suite: real work, and inputs that break it in every way that a function can break."""
import ctypes
import hashlib
import os
import time

ROUNDS = 200


def digest(text):
    data = text.encode("utf-8")
    for _ in range(ROUNDS):
        data = hashlib.sha256(data).digest()
    return data.hex()


def batchstring(inputs):
    for text in inputs:
        if text.startswith("raise"):
            raise ValueError("poison: " + text)
        if text.startswith("segfault"):
            ctypes.string_at(0)
        if text.startswith("hang"):
            time.sleep(1_000_000)
    if inputs == ["pid"]:
        return [str(os.getpid())]
    return [digest(text) for text in inputs]
