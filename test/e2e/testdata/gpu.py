"""A function on a GPU that is not there: 100 ms a batch whatever its size, and errors as CUDA's once the GPU is lost,
which the file LOST stands for."""
import os
import time

import work

LOST = "/tmp/gpu-is-lost"


def batchstring(inputs):
    time.sleep(0.1)
    if os.path.exists(LOST):
        raise RuntimeError("CUDA error: unspecified launch failure")
    return [work.digest(text) for text in inputs]
