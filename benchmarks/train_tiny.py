"""Train the embedded tiny model again: ``python -m benchmarks.train_tiny --texts FOLDER --out FOLDER``.

FOLDER of texts holds one plain ``.txt`` file a novel, or the unpacked data of Debian's ``r-cran-janeaustenr`` (see
``benchmarks/austen.py``). The result is a folder that ``cachequant_lib.load`` opens: float16 weights, configuration,
tokenizer, the held-out text, the log, and checksums. The shipped run took 2518 s of processor time.

From the Debian package the held-out text and the tokenizer come out exactly as shipped. The weights do not: the recipe
is the same, but the shipped run's log does not record its learning rates, and sums run in another order elsewhere.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.austen import read_novels
from cachequant_lib.model.convert import write_checksums

END_OF_TEXT = "<|endoftext|>"
HELD_OUT = 0.05


@dataclass(frozen=True)
class Settings:
    """The shipped model's, by default."""

    texts: Path
    out: Path
    steps: int = 1054
    vocab: int = 4096
    layers: int = 6
    heads: int = 4
    width: int = 256
    context: int = 1024
    batch: int = 4
    muon_rate: float = 2e-2
    adam_rate: float = 2e-3
    weight_decay: float = 0.1
    dropout: float = 0.1
    warmup_steps: int = 20
    steps_between_scores: int = 200
    seed: int = 0


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal: every direction of a weight matrix moves by about the same amount.

    K. Jordan et al., "Muon", 2024, https://kellerjordan.github.io/posts/muon/. At equal tokens it got this model
    further than AdamW. Kept in float32: ``torch.optim.Muon`` rounds to bfloat16, which is slow on processors without
    units for it. A fused query-key-value matrix is three matrices side by side and is orthogonalised as three.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Move every weight by its orthogonalised momentum."""
        for group in self.param_groups:
            for weight in group["params"]:
                average = self.state[weight].setdefault("average", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(average, group["momentum"])  # Nesterov: look ahead along the average
                rows, columns = update.shape
                parts = update.chunk(3, dim=1) if columns == 3 * rows else [update]
                turned = torch.cat([orthogonalise(part) * 0.2 * max(part.shape) ** 0.5 for part in parts], dim=1)
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(turned, alpha=-group["lr"])


def orthogonalise(matrix: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Bring all singular values near 1 by a Newton-Schulz iteration with Muon's published coefficients."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide is matrix else x.T


def split_texts(folder: Path) -> tuple[str, str]:
    """Return training and held-out text: of each novel the last 5 % of its paragraphs is held out.

    Underscores, which mark italics in these files, and line breaks inside paragraphs are taken out.
    """
    files = sorted(folder.glob("*.txt"))
    novels = [file.read_text("utf-8") for file in files] or [*read_novels(folder).values()]
    if not novels:
        raise SystemExit(f"{folder} holds neither .txt files nor Rdata.rdb")
    train, held_out = [], []
    for novel in novels:
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", novel.replace("\r", "").replace("_", ""))]
        paragraphs = [paragraph for paragraph in paragraphs if paragraph]
        cut = int(len(paragraphs) * (1 - HELD_OUT))
        train.append("\n\n".join(paragraphs[:cut]))
        held_out.append("\n\n".join(paragraphs[cut:]))
    return "\n\n\n".join(train), "\n\n\n".join(held_out)


def make_tokenizer(text: str, vocab: int) -> ByteLevelBPETokenizer:
    """Learn a byte-level BPE vocabulary of `vocab` tokens; id 0 ends a text."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        [text], vocab_size=vocab, min_frequency=2, special_tokens=[END_OF_TEXT], show_progress=False
    )
    return tokenizer


def make_model(settings: Settings) -> GPT2LMHeadModel:
    """Make an untrained GPT-2 of this size."""
    config = GPT2Config(
        vocab_size=settings.vocab,
        n_layer=settings.layers,
        n_head=settings.heads,
        n_embd=settings.width,
        n_positions=settings.context,
        resid_pdrop=settings.dropout,
        embd_pdrop=settings.dropout,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def make_optimisers(model: GPT2LMHeadModel, settings: Settings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for embeddings, norms and biases; only matrices decay."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.dim() == 2 and ".h." in name]
    embeddings = [weight for name, weight in named if weight.dim() == 2 and ".h." not in name]
    vectors = [weight for _, weight in named if weight.dim() == 1]
    groups = [{"params": embeddings, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [
        Muon(matrices, lr=settings.muon_rate, weight_decay=settings.weight_decay),
        torch.optim.AdamW(groups, lr=settings.adam_rate, betas=(0.9, 0.98)),
    ]


def rate_factor(step: int, settings: Settings) -> float:
    """Rise over the first steps, hold for two fifths of the run, then fall in a straight line to 2 %."""
    done = step / max(1, settings.steps)
    return min(1.0, (step + 1) / settings.warmup_steps) * (1.0 if done < 0.4 else max(0.02, (1 - done) / 0.6))


def batches(ids: torch.Tensor, settings: Settings) -> Iterator[torch.Tensor]:
    """Random windows of the training text, (batch, context) each, for ever."""
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        starts = torch.randint(0, len(ids) - settings.context + 1, (settings.batch,), generator=generator)
        yield torch.stack([ids[start : start + settings.context] for start in starts])


def loss(model: GPT2LMHeadModel, windows: torch.Tensor) -> torch.Tensor:
    """Mean surprise, in nats a token, of windows of ids (batch, T) at every position but the first."""
    logits = model(windows).logits[:, :-1]  # (batch, T) -> (batch, T, V) -> (batch, T-1, V)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def score(model: GPT2LMHeadModel, ids: torch.Tensor, context: int, num_windows: int | None = None) -> float:
    """Mean loss in nats a token over consecutive windows; the first token of each window is not scored."""
    model.eval()
    total, count = 0.0, 0
    for window in ids.split(context)[:num_windows]:
        if len(window) > 1:
            total += loss(model, window[None]).item() * (len(window) - 1)
            count += len(window) - 1
    model.train()
    return total / count


def train(settings: Settings) -> Path:
    """Train, and write the finished model; returns its folder."""
    torch.manual_seed(settings.seed)
    text, held_out = split_texts(settings.texts)
    tokenizer = make_tokenizer(text, settings.vocab)
    ids, held_out_ids = (torch.tensor(tokenizer.encode(part).ids) for part in (text, held_out))
    if len(ids) <= settings.context:
        raise SystemExit(f"the training text is {len(ids)} tokens, too short for windows of {settings.context}")
    bytes_per_token = len(held_out.encode()) / len(held_out_ids)
    model = make_model(settings)
    optimisers = make_optimisers(model, settings)
    peaks = [[group["lr"] for group in optimiser.param_groups] for optimiser in optimisers]
    log: list[str] = []
    began = time.perf_counter()

    def report(step: int, num_windows: int | None) -> None:
        nats = score(model, held_out_ids, settings.context, num_windows)
        tokens = step * settings.batch * settings.context / 1e6
        log.append(
            f"step {step}, {tokens:.2f}M tokens: held-out {nats:.4f} nats, perplexity {math.exp(nats):.1f}, "
            f"{nats / math.log(2) / bytes_per_token:.3f} bits per byte, {time.perf_counter() - began:.0f} s"
        )
        print(log[-1], flush=True)

    windows = batches(ids, settings)
    model.train()
    for step in range(settings.steps):
        if step % settings.steps_between_scores == 0:
            report(step, num_windows=12)
        for optimiser, rates in zip(optimisers, peaks, strict=True):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * rate_factor(step, settings)
        window = next(windows)
        loss(model, window).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        model.zero_grad(set_to_none=True)
    report(settings.steps, num_windows=None)
    save(model, tokenizer, held_out, log, settings.out)
    return settings.out


def save(model: GPT2LMHeadModel, tokenizer: ByteLevelBPETokenizer, held_out: str, log: list[str], folder: Path) -> None:
    """Write everything ``cachequant_lib.load`` needs, and what the run was."""
    model.half().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "heldout.txt").write_text(held_out, "utf-8", newline="\n")
    (folder / "training.log").write_text("\n".join(log) + "\n", "utf-8")
    write_checksums(folder, ("model.safetensors", "config.json", "tokenizer.json", "heldout.txt"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in Settings.__dataclass_fields__.items():
        if name in ("texts", "out"):
            parser.add_argument(f"--{name}", type=Path, required=True)
        else:
            kind = type(value.default)
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value.default, help="%(default)s")
    train(Settings(**vars(parser.parse_args(arguments))))


if __name__ == "__main__":
    main()
