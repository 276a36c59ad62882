"""Other projects' engines, for the speed experiment: each reads the very weights that ours reads.

They are installed by ``make peers`` into ``.venv-peers``, never beside the book's own packages, and run there in
processes of their own. What is said of a peer in this file is all that the rest of the project knows of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
PINS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Peer:
    """One other project.

    Attributes
    ----------
    name : str
        Its section in ``requirements.txt``, and its module in this folder.
    label : str
        What tables call it.
    module : str
        What Python imports.
    class_name : str
        The engine in its module.
    build : mapping of str to str
        Environment variables for an installation that compiles.
    """

    name: str
    label: str
    module: str
    class_name: str
    build: dict[str, str] = field(default_factory=dict)


PEERS = (
    Peer("ctranslate2", "CTranslate2, int8", "ctranslate2", "CTranslate2Model"),
    Peer(
        "llamacpp",
        "llama.cpp, Q8_0",
        "llama_cpp",
        "LlamaCppModel",
        # The kernels of this very processor, which no published wheel may use; nothing but the library itself.
        {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF", "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1)},
    ),
    Peer("onnxruntime", "ONNX Runtime, int8", "onnxruntime", "OnnxRuntimeModel"),
    Peer("openvino", "OpenVINO, int8", "openvino", "OpenVINOModel"),
)


def interpreter() -> Path:
    """The Python of the peers' environment, whether it is there or not."""
    return ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def section(name: str, text: str | None = None) -> list[str]:
    """The requirements under ``# [name]`` in the file of pins."""
    found: list[str] = []
    current = ""
    for line in (PINS.read_text("utf-8") if text is None else text).splitlines():
        if line.startswith("# ["):
            current = line[3:].split("]")[0]
        elif current == name and line and not line.startswith("#"):
            found.append(line.split("#")[0].strip())
    return found
