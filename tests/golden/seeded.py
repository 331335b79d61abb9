"""Recipes of files whose tensors PyTorch drew from known seeds, so that the files need not be kept:
    python seeded.py find FOLDER ...    behind the script that wrote the folder: FOLDER/seeded.json from its files
    python seeded.py make [FOLDER ...]  the files again from the recipes, for scripts that read them

`find` looks at the files alone: for each tensor of FILES below the folder it searches the output of a few seeds for the
place that it was drawn from. A tensor that is not found stands in the recipe where it is short, else in
FOLDER/kept.safetensors. Both ways end with an error unless the files made from the recipe have all bytes of those that
were there. README.md says how a recipe reads, `tests/it/golden/seeded.rs` makes the files for the tests.
"""

import hashlib
import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
FILES = ["model.safetensors", "adapter_model.safetensors"]
KEPT = "kept.safetensors"
f32 = np.float32

# What the scripts draw from, and what they do to a normal number n: (n * factor + added) * second.
SEEDS = [1234, 1, 3, 4, 1235, 2, 5, 1241, 8, 10, 11, 7, 77]
FACTORS = [0.05, 0.2, 0.1, 0.02, 0.3, 0.4, 0.5, 0.15, 0.125, 1.0]
ADDED = [0.0, 1.0]
SECOND = [1.0, 0.45, 0.35, 0.7, 0.012]
# Words of a generator that are searched.
WORDS = 400_000
# Tensors up to this many elements stand in the recipe.
FEW = 16


# ---- the generator: MT19937, uniform numbers of 24 bits, normal ones by Box and Muller in blocks of 16, in F32
def fused(a, b, c):
    """a * b + c, rounded once: what is rounded to odd in F64 goes to F32 as the exact sum would."""
    product, c = np.float64(a) * np.float64(b), np.float64(c)
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back)
    bits = np.atleast_1d(total).view(np.int64).copy()
    odd = (np.atleast_1d(rest) != 0) & (bits & 1 == 0)
    away = (np.atleast_1d(rest) > 0) == (np.atleast_1d(total) > 0)
    bits += np.where(odd, np.where(away, 1, -1), 0)
    return bits.view(np.float64).astype(f32)


def polynomial(x, coefficients):
    y = np.full_like(x, f32(coefficients[0]))
    for coefficient in coefficients[1:]:
        y = fused(y, x, f32(coefficient))
    return y


LOG = [7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1]
LOG += [2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1]
COS = [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2]
SIN = [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1]


def logarithm(x):
    bits = x.view(np.int32)
    exponent = ((bits >> 23) - 126).astype(f32)
    x = ((bits & 0x007FFFFF) | 0x3F000000).view(f32)
    low = x < f32(0.7071067811865476)
    exponent = exponent - low.astype(f32)
    x = np.where(low, (x - f32(1)) + x, x - f32(1))
    z = x * x
    y = polynomial(x, LOG) * x
    y = fused(y, z, exponent * f32(-2.12194440e-4))
    y = y - z * f32(0.5)
    return (x + y) + exponent * f32(0.693359375)


def sine_and_cosine(x):
    octant = ((x * f32(1.27323954473516)).astype(np.int32) + 1) & ~1
    y = octant.astype(f32)
    for part in (-0.78515625, -2.4187564849853515625e-4, -3.77489497744594108e-8):
        x = fused(y, f32(part), x)
    z = x * x
    cos = polynomial(z, COS) * z
    cos = fused(cos, z, -(z * f32(0.5))) + f32(1)
    sin = fused(polynomial(z, SIN) * z, x, x)
    straight = octant & 2 == 0
    negative_sin, negative_cos = octant & 4 != 0, (octant - 2) & 4 == 0
    one, other = np.where(straight, sin, cos), np.where(straight, cos, sin)
    return np.where(negative_sin, -one, one), np.where(negative_cos, -other, other)


def pairs(first, second):
    """Two normal numbers from two uniform ones."""
    radius = np.sqrt(f32(-2) * logarithm(f32(1) - first))
    sin, cos = sine_and_cosine(f32(2 * np.pi) * second)
    # A zero has no sign.
    return radius * cos + f32(0), radius * sin + f32(0)


class Stream:
    """The uniform numbers of one seed."""

    def __init__(self, seed):
        words = np.random.RandomState(seed).randint(0, 2**32, WORDS, dtype=np.uint32)
        self.uniform = (words & 0xFFFFFF).astype(f32) * f32(2.0**-24)
        self.first, self.second = None, {}

    def normal(self, at, count):
        """What torch.randn gives for `count` elements, 16 or more, from word `at` on."""
        whole = count // 16 * 16
        blocks = self.uniform[at : at + whole].reshape(-1, 16)
        values = np.concatenate(pairs(blocks[:, :8], blocks[:, 8:]), axis=1).reshape(-1)
        if count % 16:
            last = self.uniform[at + count : at + count + 16]
            values = np.concatenate([values[: count - 16], np.concatenate(pairs(last[:8], last[8:]))])
        return values

    def places(self, values, factors):
        """The places at which a block of normal numbers begins as `values` do."""
        if self.first is None:
            self.first = pairs(self.uniform[:-8], self.uniform[8:])[0]
        if factors not in self.second:
            self.second[factors] = changed(self.first, *factors)
        scaled = self.second[factors]
        places = np.flatnonzero(scaled[:-8] == values[0])
        return [int(at) for at in places if np.array_equal(scaled[at : at + 8], values[:8])]


def changed(values, factor, added=0.0, second=1.0):
    values = values * f32(factor)
    if added:
        values = values + f32(added)
    return values * f32(second) if second != 1.0 else values


def spread(uniform, bound):
    """uniform_(-bound, bound)"""
    low, high = f32(-bound), f32(bound)
    return fused(uniform, high - low, low)


STREAMS = {}


def stream(seed):
    if seed not in STREAMS:
        STREAMS[seed] = Stream(seed)
    return STREAMS[seed]


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=f32)


def widened(blocks, scales, shape):
    """Values (experts, inputs, outputs) of MXFP4 codes (experts, outputs, inputs / 32, 16), low half first."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(shape[0], shape[2], shape[1] // 32, 32)
    values = FP4[codes] * np.exp2(scales.astype(f32) - f32(127))[..., None]
    return np.ascontiguousarray(values.reshape(shape[0], shape[2], shape[1]).swapaxes(1, 2))


def draw(shape, kind, *arguments):
    """The F32 values that a seed, a place in its output and factors stand for."""
    count = int(np.prod(shape))
    if kind == "normal":
        seed, at, *factors = arguments
        return changed(stream(seed).normal(at, count), *factors)
    seed, at, bound = arguments
    return spread(stream(seed).uniform[at : at + count], bound)


def made(entry, kept):
    """Dtype and bytes of an entry (name, shape, kind, ...) of a recipe."""
    _, shape, kind, *arguments = entry
    if kind == "kept":
        dtype, _, values = kept[arguments[0]]
        return dtype, values
    if kind == "fill":
        return "F32", f32(arguments[0]).tobytes() * int(np.prod(shape))
    if kind == "values":
        return "F32", np.array(arguments[0], dtype=f32).tobytes()
    if kind == "mxfp4":
        parts = [
            np.frombuffer(kept[arguments[0] + part][2], np.uint8).reshape(kept[arguments[0] + part][1])
            for part in ("_blocks", "_scales")
        ]
        return "F32", widened(*parts, shape).tobytes()
    return "F32", draw(shape, kind, *arguments).tobytes()


# ---- the search
def found(values, shape, seeds):
    """The entry whose values these are, or None."""
    count = len(values)
    if count < 8:
        return None
    for seed in seeds:
        for factors in ((a, b, c) for c in SECOND for b in ADDED for a in FACTORS):
            for at in stream(seed).places(values, factors) if count >= 16 else ():
                if at + count + 16 > WORDS:
                    continue
                used = factors[: 3 if factors[2] != 1 else 2 if factors[1] else 1]
                entry = ["normal", seed, at, *used]
                if np.array_equal(draw(shape, *entry), values):
                    return entry
        bound = float(f32((3.0**0.5) * ((2 / 6) ** 0.5 / shape[-1] ** 0.5)))
        if np.abs(values).max() <= bound and len(shape) > 1:
            scaled = stream(seed).second.setdefault(("uniform", bound), None)
            if scaled is None:
                scaled = stream(seed).second["uniform", bound] = spread(stream(seed).uniform, bound)
            for at in np.flatnonzero(scaled[: WORDS - count] == values[0]):
                if np.array_equal(scaled[at : at + count], values):
                    return ["uniform", seed, int(at), bound]
    return None


def read(data):
    """Metadata and tensors of a safetensors file in the order of its bytes: (name, dtype, shape, bytes)."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    parts = [
        (name, entry["dtype"], entry["shape"], data[8 + length :][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    ]
    return metadata, parts


def written(metadata, parts):
    """The bytes of a safetensors file."""
    header, offset = ({} if metadata is None else {"__metadata__": metadata}), 0
    for name, dtype, shape, values in parts:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(values)]}
        offset += len(values)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(part[3] for part in parts)


def bytes_of(recipe, kept):
    parts = []
    for entry in recipe["tensors"]:
        dtype, values = made(entry, kept)
        parts.append((entry[0], dtype, entry[1], values))
    return written(recipe["metadata"], parts)


def kept_tensors(folder):
    file = folder / KEPT
    return {name: rest for name, *rest in read(file.read_bytes())[1]} if file.exists() else {}


# ---- the two ways
def entries(file, parts, folded, kept, same):
    """Entries of a file's recipe. Adds to `kept` what was not found; `same` has the keys there by their bytes."""
    seeds, result = list(SEEDS), []
    for name, dtype, shape, data in parts:
        values = np.frombuffer(data, f32) if dtype == "F32" else None
        entry = None if values is None or name in folded else found(values, shape, seeds)
        if entry is not None:
            # The next tensor probably comes from the same seed.
            seeds.remove(entry[1])
            seeds.insert(0, entry[1])
        elif name in folded:
            entry = ["mxfp4", folded[name]]
        elif values is not None and len(set(values.view(np.uint32))) == 1 and len(values) > 1:
            entry = ["fill", float(values[0])]
        elif values is not None and len(values) <= FEW:
            entry = ["values", [float(value) for value in values]]
        else:
            key = same.setdefault((dtype, tuple(shape), data), f"{file}:{name}")
            kept[key] = (dtype, shape, data)
            entry = ["kept", key]
        result.append([name, shape, *entry])
    return result


def find(folder):
    files = sorted(path for path in folder.rglob("*.safetensors") if path.name in FILES)
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    kept, same, recipes = {}, {}, {}
    packed = "model_mxfp4/model.safetensors"
    blocks = [part[0] for part in read(contents[packed])[1]] if packed in contents else []
    blocks = [name.removesuffix("_blocks") for name in blocks if name.endswith("_blocks")]
    for file, data in contents.items():
        metadata, parts = read(data)
        folded = {name: f"{packed}:{name}" for name in blocks} if file == "model/model.safetensors" else {}
        recipes[file] = {"sha256": hashlib.sha256(data).hexdigest(), "metadata": metadata}
        recipes[file]["tensors"] = entries(file, parts, folded, kept, same)
    for file, data in contents.items():
        assert bytes_of(recipes[file], kept) == data, f"{folder / file} is not what its recipe makes"
    (folder / KEPT).unlink(missing_ok=True)
    if kept:
        # Wide types first, as safetensors wants them to lie.
        size = {"F32": 0, "F16": 1, "BF16": 1}
        parts = sorted(((key, *kept[key]) for key in kept), key=lambda part: size.get(part[1], 2))
        (folder / KEPT).write_bytes(written(None, parts))
    (folder / "seeded.json").write_text(text_of(recipes))
    drawn, in_full = sum(map(len, contents.values())), sum(len(value[2]) for value in kept.values())
    print(f"{folder.name}: {drawn} bytes, {in_full} of them kept", flush=True)


def text_of(recipes):
    """JSON with a line for each tensor."""
    short = lambda value: json.dumps(value, separators=(",", ":"))
    files = []
    for file, recipe in recipes.items():
        lines = ",\n".join(short(entry) for entry in recipe["tensors"])
        head = f'"sha256":{short(recipe["sha256"])},"metadata":{short(recipe["metadata"])}'
        files.append(f'{short(file)}:{{{head},"tensors":[\n{lines}]}}')
    return "{" + ",\n".join(files) + "}\n"


def make(folder):
    kept = kept_tensors(folder)
    for file, recipe in json.loads((folder / "seeded.json").read_text()).items():
        data = bytes_of(recipe, kept)
        assert hashlib.sha256(data).hexdigest() == recipe["sha256"], f"{folder / file}"
        (folder / file).write_bytes(data)


def main(what="", *names):
    if what not in ("find", "make") or (what == "find" and not names):
        sys.exit(__doc__)
    folders = [pathlib.Path(name) for name in names] or sorted(file.parent for file in HERE.glob("*/seeded.json"))
    for folder in folders:
        {"find": find, "make": make}[what](folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
