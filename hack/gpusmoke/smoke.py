"""A small model for gpusmoke, on the GPU unless GPU_SMOKE_DEVICE is cpu: bytes in, a few dense layers, one label out for each input."""
import os

import torch

LENGTH, WIDTH, LAYERS = 256, 2048, 24

torch.manual_seed(0)
device = "cpu" if os.environ.get("GPU_SMOKE_DEVICE") == "cpu" else "cuda"
dtype = torch.float16 if device == "cuda" else torch.float32
embedding = torch.randn(257, WIDTH, device=device, dtype=dtype) / 16
layers = [torch.randn(WIDTH, WIDTH, device=device, dtype=dtype) / WIDTH**0.5 for _ in range(LAYERS)]


def batchstring(inputs):
    rows = []
    for text in inputs:
        data = list(text.encode("utf-8")[:LENGTH])
        rows.append(data + [256] * (LENGTH - len(data)))
    with torch.no_grad():
        x = embedding[torch.tensor(rows, device=device)].mean(dim=1)
        for layer in layers:
            x = torch.nn.functional.gelu(x @ layer)
        labels = x.float().argmax(dim=1).tolist()  # waits for the GPU
    return ["label-%d" % label for label in labels]
