"""Encodes texts with a static table of word vectors, for `make bench-memory`.

Reads a JSON list of texts from each line, and prints a JSON list of vectors. A text is the mean of
the vectors of its tokens, weighted by their rarity, a/(a+p). The arguments are files and folders
in which the frequencies p are counted; without any, they are estimated from the order of tokens.
"""

import json
import os
import pathlib
import struct
import sys

import numpy
import tokenizers

RARITY = 1e-3


def load_table(path):
    """Reads the only tensor of a file in the format safetensors."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    (tensor,) = header.values()
    start, end = tensor["data_offsets"]
    kind = {"F16": "<f2", "F32": "<f4"}[tensor["dtype"]]
    values = numpy.frombuffer(data[8 + length + start : 8 + length + end], dtype=kind)
    return values.reshape(tensor["shape"]).astype(numpy.float32)


def strings(value):
    """Yields all texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def texts_of(paths):
    """Yields the texts of conversations in files and folders. Questions are not counted."""
    for path in map(pathlib.Path, paths):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".json":
                samples = json.loads(file.read_text())
                for sample in samples if isinstance(samples, list) else [samples]:
                    yield from strings(sample.get("conversation", sample))
            elif file.suffix == ".jsonl" and not file.name.endswith(".queries.jsonl"):
                for line in file.read_text().splitlines():
                    yield from strings(json.loads(line).get("text", ""))


def weights(tokenizer, size, paths):
    """Returns the weight of each token by its rarity."""
    counts = numpy.zeros(size)
    for text in texts_of(paths):
        numpy.add.at(counts, tokenizer.encode(text, add_special_tokens=False).ids, 1)
    if counts.sum() == 0:
        counts = 1 / numpy.arange(1, size + 1)
    return RARITY / (RARITY + counts / counts.sum())


def main():
    folder = os.environ.get("SELVEDGE_BENCH_VECTORS", "target/vectors")
    root = pathlib.Path(__file__).parent.parent / folder / "table/wordllama"
    tokenizer = tokenizers.Tokenizer.from_file(
        str(root / "tokenizers/l2_supercat_tokenizer_config.json")
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    table = load_table(root / "weights/l2_supercat_256.safetensors")
    table *= weights(tokenizer, len(table), sys.argv[1:])[:, None].astype(numpy.float32)
    for line in sys.stdin:
        vectors = []
        for text in json.loads(line):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            vector = table[ids].mean(axis=0) if ids else numpy.zeros(table.shape[1])
            vectors.append([round(float(value), 6) for value in vector])
        print(json.dumps(vectors), flush=True)


if __name__ == "__main__":
    main()
