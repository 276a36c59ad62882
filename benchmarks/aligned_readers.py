"""Engines that answer one query of a layer, each made many times so that what it reads comes from memory.

Two processes: this library's kernels, and PyTorch. :class:`Reader` makes copies of one layer's keys and values for each
engine, and times whole passes over all copies of one engine before the next engine's. So between two passes of one
engine the others have read several times what the caches can hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.records import significant

SHAPES = {"32x128": (32, 1, 128), "12x64": (12, 1, 64), "3x64, 9 queries": (3, 3, 64)}  # KV heads, queries each, size
WARM_CALLS = 7
Made = tuple[Callable[[Any], Any], Any]  # how to read a layer, and the layer: arrays


class Reader:
    """What both processes do.

    Parameters
    ----------
    path : str
        Of an npz file: keys and values (N, T, 64) of real heads in fp16, their queries (N, 3, S, 64) at S lengths, and
        these lengths.
    num_threads : int
    """

    engines: tuple[str, ...] = ()

    def __init__(self, path: str, num_threads: int) -> None:
        with np.load(path) as stored:
            self._stored = dict(stored)
        self._threads = num_threads
        self._layers: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {}

    def heads(self, shape: str, length: int) -> tuple[Any, Any, Any]:
        """Real heads dealt out to a shape: q (Hkv, G, D), already divided by the root of D, and k, v (L, Hkv, D).

        A head of 128 channels has the 64 of a real one twice, and a query that makes the same scores of them.
        """
        num_heads, group, dim = SHAPES[shape]
        at = int(np.flatnonzero(self._stored["lengths"] == length)[0])
        pick = np.linspace(0, len(self._stored["k"]) - 1, num_heads).round().astype(int)
        twice = dim // 64
        k, v = (self._stored[n][pick, :length].astype(np.float32).transpose(1, 0, 2) for n in ("k", "v"))
        q = self._stored["q"][pick, :group, at].astype(np.float32) / np.float32(8 * twice)
        return tuple(np.ascontiguousarray(np.concatenate([part] * twice, axis=-1)) for part in (q, k, v))

    def prepare(self, shape: str, length: int, footprint_bytes: int) -> dict[str, Any]:
        """Make every engine's layers; for each the bytes of one, and bits read of a number where they are counted."""
        self._layers.clear()
        q, k, v = self.heads(shape, length)
        about = {}
        for engine in self.engines:
            read, layer = self._make(engine, q, k, v)
            size = sum(int(part.nbytes) for part in layer)
            layers = self._copies(layer, 1 + footprint_bytes // size)
            self._layers[engine] = read, layers
            read(layers[0])  # compiles, and starts the threads
            about[engine] = {"nbytes": size, "layers": len(layers)} | self._bits(engine, k, v, q)
        return about

    def passes(self, warm: bool, backwards: bool) -> dict[str, float]:
        """Seconds a layer, median of one whole pass over each engine's copies, or of the first copy again and again."""
        found = {}
        for engine in reversed(self.engines) if backwards else self.engines:
            read, layers = self._layers[engine]
            chosen = [layers[0]] * WARM_CALLS if warm else layers
            if warm:
                read(layers[0])
            clock = [time.perf_counter()]
            for layer in chosen:
                read(layer)
                clock.append(time.perf_counter())
            found[engine] = float(np.median(np.diff(clock)))
        return found

    def _make(self, engine: str, q: Any, k: Any, v: Any) -> Made:
        raise NotImplementedError

    def _copies(self, layer: Any, count: int) -> list[Any]:
        """Copies of a layer, those of one array behind each other, for a cache of many positions is a large array.

        Large arrays lie in huge pages, where the system has them; small ones would cost every reader more.
        """
        parts = [spread(part, count) for part in layer]
        return [type(layer)(*(part[i] for part in parts)) for i in range(count)]

    def _bits(self, engine: str, k: Any, v: Any, q: Any) -> dict[str, Any]:
        return {}


class LibraryReader(Reader):
    """The kernels of this library."""

    engines = ("half", "paper", "released", "paper-control", "fixed-8", "fixed-11", "fixed-control")

    def __init__(self, path: str, num_threads: int) -> None:
        import numba

        super().__init__(path, num_threads)
        numba.set_num_threads(num_threads)

    def _make(self, engine: str, q: Any, k: Any, v: Any) -> Made:
        from cachequant_lib.kernels.aligned import attend_aligned
        from cachequant_lib.kernels.aligned_paper import attend_planes
        from cachequant_lib.kernels.attention import attend_half, head_tile, pack_half

        tile, out, length = head_tile(*q.shape[1:]), np.empty_like(q), len(k)
        workers = min(self._threads, len(q))
        if engine == "half":
            layer: Any = pack_half(k, v)
            return lambda kv: attend_half(tile, q, kv, length, out, workers), layer
        kv = self._cache(engine, k, v)
        layer, room = kv.layers[0], kv.layers[0].value_high.shape[1]
        if engine.startswith("fixed"):
            bits, counts = np.empty((len(q), 2, room), np.uint8), np.empty((len(q), 2), np.int64)
            tolerance = np.float32(0 if kv.control else kv.tolerance)
            return lambda kv: attend_aligned(tile, q, kv, length, tolerance, out, bits, counts, workers), layer
        key_bits, value_bits = np.empty((len(q), q.shape[2]), np.uint8), np.empty((len(q), room), np.uint8)
        limits = (1000,) * 4 if kv.control else (4, 8, *kv.thresholds)
        return lambda kv: attend_planes(tile, q, kv, length, limits, out, key_bits, value_bits, workers), layer

    def _cache(self, engine: str, k: Any, v: Any) -> Any:
        from benchmarks.aligned_rows import ALIGNED

        kv = ALIGNED[engine].new_kv(1, *k.shape[1:], len(k))
        kv.append(0, k, v)
        return kv

    def _bits(self, engine: str, k: Any, v: Any, q: Any) -> dict[str, Any]:
        if engine == "half":
            return {}
        kv = self._cache(engine, k, v)
        kv.attend(0, (q * np.float32(q.shape[2] ** 0.5)).reshape(1, -1, q.shape[2]))
        return {"bits": significant(kv.reads.bits_per_number, 4)}

    def append(self, shape: str, num_tokens: int) -> dict[str, float]:
        """Seconds to add one token to one layer, the call from Python included."""
        from benchmarks.aligned_rows import ALIGNED, CONTESTANTS

        _, k, v = self.heads(shape, num_tokens)
        found = {}
        for name in ("exact", "paper", "fixed-8"):
            kv = (ALIGNED | CONTESTANTS)[name].new_kv(1, *k.shape[1:], num_tokens)
            for again in (False, True):  # the first time compiles
                kv.truncate(0)
                start = time.perf_counter()
                for t in range(num_tokens):
                    kv.append(0, k[t : t + 1], v[t : t + 1])
                if again:
                    found[name] = (time.perf_counter() - start) / num_tokens
        return found


def spread(part: Any, count: int) -> Any:
    """Copies of an array behind each other: (N, ...)."""
    whole = np.empty((count, *part.shape), part.dtype)
    whole[:] = part
    return whole


class TorchReader(Reader):
    """PyTorch: its fused attention and its matrix products in three types, and what KIVI and GEAR would do in it.

    These two have no CPU code of their own. Here 10-bit codes lie in 16 bits, are turned back into float32 and
    multiplied; GEAR adds a product of rank 4 and 2 % outliers. All tokens are stored so, none as a buffer.
    """

    engines = (
        *(f"{how}_{kind}" for how in ("sdpa", "matmul") for kind in ("fp32", "bf16", "fp16")),
        "kivi-10",
        "gear-10",
    )

    def __init__(self, path: str, num_threads: int) -> None:
        import torch

        super().__init__(path, num_threads)
        torch.set_num_threads(num_threads)
        torch.set_grad_enabled(False)

    def _copies(self, layer: Any, count: int) -> list[Any]:
        """The same in NumPy's memory, so that PyTorch has huge pages as well."""
        import torch

        def parts(tensor: Any) -> Any:
            bits = tensor.contiguous().view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor.contiguous()
            return torch.from_numpy(spread(bits.numpy(), count)).view(tensor.dtype)

        whole = [parts(tensor) for tensor in layer]
        return [[part[i] for part in whole] for i in range(count)]

    def _make(self, engine: str, q: Any, k: Any, v: Any) -> Made:
        import torch

        how, _, kind = engine.partition("_")
        types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        keys, values = (torch.from_numpy(x).transpose(0, 1).contiguous() for x in (k, v))  # (Hkv, L, D)
        asked = torch.from_numpy(q)
        if not kind:
            return self._codes(engine, asked, keys, values)
        layer = [keys.to(types[kind]), values.to(types[kind])]
        asked = asked.to(types[kind])  # (Hkv, G, D)
        if how == "sdpa":
            one, grouped = asked.reshape(1, -1, 1, q.shape[2]), {"enable_gqa": True} if q.shape[1] > 1 else {}
            attend = torch.nn.functional.scaled_dot_product_attention
            return lambda kv: attend(one, kv[0][None], kv[1][None], scale=1.0, **grouped), layer

        def multiply(kv: Any) -> Any:
            shares = torch.softmax((asked @ kv[0].transpose(1, 2)).float(), -1)
            return shares.to(asked.dtype) @ kv[1]

        return multiply, layer

    def _codes(self, engine: str, q: Any, k: Any, v: Any) -> Made:
        import torch

        repair, rng = engine.startswith("gear"), torch.Generator().manual_seed(0)
        (heads, length, dim), group, rank = k.shape, 32, 4
        layer = [*_quantise(k.reshape(heads, length // group, group, dim), 2)]
        layer += _quantise(v.reshape(heads, length, dim // group, group), 3)
        if repair:
            count = heads * length * dim // 50
            layer += [torch.randn((heads, n, rank), generator=rng) * 1e-3 for n in (length, dim, length, dim)]
            for _ in range(2):
                layer += [torch.randint(n, (count,), generator=rng, dtype=torch.int32) for n in (heads, length, dim)]
                layer += [torch.zeros(count)]
        flat = q.reshape(heads, -1, dim)

        def attend(kv: Any) -> Any:
            scores = flat @ (kv[0] * kv[1] + kv[2]).reshape(heads, length, dim).transpose(1, 2)  # (Hkv, G, L)
            if repair:
                scores += (flat @ kv[7]) @ kv[6].transpose(1, 2)
                h, t, c, x = kv[10:14]
                scores.transpose(1, 2).index_put_((h, t), flat[h, :, c] * x[:, None], accumulate=True)
            shares = torch.softmax(scores, -1)
            out = shares @ (kv[3] * kv[4] + kv[5]).reshape(heads, length, dim)
            if repair:
                out += (shares @ kv[8]) @ kv[9].transpose(1, 2)
                h, t, c, x = kv[14:18]
                out.transpose(1, 2).index_put_((h, c), shares[h, :, t] * x[:, None], accumulate=True)
            return out

        return attend, layer


def _quantise(x: Any, axis: int) -> list[Any]:
    """Codes of 10 bits, and scale and zero point along an axis, in fp16."""
    import torch

    low, high = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    scale = ((high - low) / 1023).clamp_min(1e-8)
    return [((x - low) / scale).round().to(torch.int16), scale.half().float(), low.half().float()]
