"""Public models of others: a local folder, or a name on the Hugging Face hub, pinned by a digest of its files.

A folder may come from a stranger. Nothing in it is run: weights are read as safetensors only, never as a pickle, and
code that it brings along is refused (``trust_remote_code`` is off). The digest is of every file that is read (weights,
configuration, tokenizer). It is written behind the name when a run begins, so a certificate says which model it was,
and a folder that has changed since is refused.

    case                                           what happens
    an existing folder                             is read; the hub is not asked
    another name                                   the copy in the cache of huggingface_hub, or downloaded
    no network and no copy, or no such name        InputError that says how to bring the files
    no *.safetensors, no config.json               InputError
    an adapter, weights in another folder          InputError: the digest would not cover what is read
    other files than the digest says               InputError
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adadp.errors import InputError

READ = (".safetensors", ".json", ".txt", ".model")
"""Endings of the files that are read, in the folder itself."""
_CHUNK = 1 << 20
_QUOTED = 200
"""Characters of a library's words that an error repeats."""


@dataclass(frozen=True)
class PublicModel:
    """A model by ``name``, and the digest its files must have; "" takes them as they are found."""

    name: str
    sha256: str = ""

    def pinned(self) -> PublicModel:
        """The same with its digest; looks for the files only where it is not known."""
        return self if self.sha256 else PublicModel(self.name, digest_of(folder_of(self.name)))

    def folder(self) -> Path:
        """The folder of the files, which have the digest."""
        folder = folder_of(self.name)
        if self.sha256 and digest_of(folder) != self.sha256:
            raise InputError(
                f"The files of the model {self.name} are not those the run was begun with.",
                why=f"Their digest must be {self.sha256}.",
                fix="Put the files back as they were, or begin a new run with the files that are there.",
            )
        return folder

    def describe(self) -> str:
        """The model in a sentence for a certificate."""
        return f"Weights of the public model {self.name}, taken as public; SHA-256 of its files: {self.sha256}."


def folder_of(name: str) -> Path:
    """Where the files of the model ``name`` are; downloaded if it is no folder and not in the cache of the hub."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        hub = library("huggingface_hub", "Models of the hub need")
        try:
            folder = Path(hub.snapshot_download(name, allow_patterns=[f"*{ending}" for ending in READ]))
        except Exception as error:  # what a library of the network raises is not one family of errors
            raise InputError(
                f"The model {name} cannot be had: it is no folder here, and the hub did not give it.",
                why=_first_line(error),
                fix="Download its files (config.json, *.safetensors and those of the tokenizer) where the hub can be "
                "reached, bring the folder here, and name the folder.",
            ) from error
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise InputError(
            f"The model {name} has no config.json, or no weights as *.safetensors.",
            why="Weights in another form are pickles, which can run code when they are read.",
            fix="Save it again with model.save_pretrained(folder), and tokenizer.save_pretrained(folder).",
        )
    if (folder / "adapter_config.json").exists() or not all(map(_stays_in_folder, folder.glob("*.index.json"))):
        raise InputError(
            f"The model {name} reads weights that lie elsewhere than among its own files.",
            why="An adapter names its base model, and an index may name files of other folders. The digest would not "
            "cover them.",
            fix="Load it, merge an adapter into its base (merge_and_unload), and save the whole by save_pretrained.",
        )
    return folder


def _stays_in_folder(index: Path) -> bool:
    """Whether the parts that a file of sharded weights lists are files beside it."""
    try:
        parts = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return all(isinstance(part, str) and (index.parent / part).parent == index.parent for part in parts)


def digest_of(folder: Path) -> str:
    """The SHA-256 of the names and contents of all files that are read."""
    whole = hashlib.sha256()
    for path in sorted(each for each in folder.iterdir() if each.suffix in READ and each.is_file()):
        one = hashlib.sha256()
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                one.update(chunk)
        whole.update(json.dumps([path.name, one.hexdigest()]).encode())
    return whole.hexdigest()


def pretrained(kind: str, model: PublicModel, **options: Any) -> Any:
    """What the class ``kind`` of transformers makes of the files of ``model``: a tokenizer, settings, a model."""
    transformers = library("transformers", "Models of the hub need")
    folder = model.folder()
    if kind.startswith("AutoModel"):
        options["use_safetensors"] = True
    try:
        return getattr(transformers, kind).from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        raise InputError(
            f"transformers cannot read the model {model.name} as {kind}.",
            why=_first_line(error),
            fix="Name a model of a kind that transformers knows without code of the model's own, saved with its "
            "tokenizer.",
        ) from error


def token_rows(tokenizer: Any, texts: list[str], length: int) -> Tensor:
    """Each text as a row of ``length`` whole numbers: 1 + the number of each token, and 0 where the text has ended.

    That 0 is no token lets every model share one sign for "no more text": GPT-2, for one, has no padding token.
    """
    rows = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in zip(rows, texts, strict=True):
        ids = tokenizer(text, truncation=True, max_length=length)["input_ids"][:length]
        row[: len(ids)] = torch.tensor(ids, dtype=torch.long) + 1
    return rows


def from_rows(rows: Tensor, padding: int | None) -> dict[str, Tensor]:
    """What a model of transformers takes, from rows of ``token_rows``.

    The first position is never masked: attention over nothing at all is not a number.
    """
    there = rows > 0
    ids = torch.where(there, rows - 1, padding or 0)
    mask = torch.cat([torch.ones_like(there[:, :1]), there[:, 1:]], 1)
    return {"input_ids": ids, "attention_mask": mask.long()}


def check_context(config: Any, name: str, length: int, stage: str) -> None:
    """Refuse texts of more tokens than a model has places for."""
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(
            f"{name} reads at most {longest} tokens, and the features make {length}.",
            fix=f"Pass the features {stage}:{name},length={longest}, or fewer.",
        )


def library(name: str, needs: str) -> Any:
    """The package ``name``, or an error that says what ``needs`` it."""
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # a package built for another torch fails while it registers kernels
        raise InputError(
            f"{needs} the package {name}, which cannot be imported.",
            why=_first_line(error),
            fix="pip install 'adadp[transformers]'"
            if name != "timm"
            else "pip install timm, and the torchvision of your torch",
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:_QUOTED] if lines else type(error).__name__
