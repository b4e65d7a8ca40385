"""Which families of models train privately, by which way, and at what price.

    python benchmarks/families.py [--rounds N] [--models NAME ...]

For every family a small network of the real library (torch, transformers, peft) is built, and AdaDP inspects it. Then
an ordinary and a private step take turns, at one thread, on batches of the same size; the median CPU time counts. A
private step is the whole of it: batch drawn, clipping, noise, the charge on disk, optimizer. Nothing is asserted. The
table is written into docs/models.md. The machine should have nothing else to do.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
import torch.nn.functional as F
import transformers
from harness import RESULTS, ROOT, measured, table, versions_text, write_section
from step_models import Recurrent, resnet18
from torch import Tensor, nn

from adadp import Plan, PrivateGradients

WORDS, TOKENS, WIDTH, CLASSES, RECORDS = 2_000, 48, 128, 4, 2_000
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Family:
    """A network, and what its records are."""

    name: str
    text: str
    build: Callable[[], nn.Module]
    inputs: str = "tokens"
    """tokens, pairs (of an encoder and a decoder) or images."""
    language: bool = False
    """Whether the labels are words."""
    batch_size: int = 64

    def data(self) -> tuple[Tensor, Tensor]:
        """Made-up records."""
        torch.manual_seed(0)
        tokens = torch.randint(3, WORDS, (RECORDS, TOKENS))
        values = torch.randn(RECORDS, 3, 32, 32) if self.inputs == "images" else tokens
        labels = tokens if self.language else torch.randint(CLASSES, (RECORDS,))
        return values, labels

    def loss(self, model: nn.Module, values: Tensor, labels: Tensor) -> Tensor:
        """One number per record."""
        output = model(input_ids=values, decoder_input_ids=labels) if self.inputs == "pairs" else model(values)
        scores = getattr(output, "logits", output)
        if not self.language:
            return F.cross_entropy(scores, labels, reduction="none")
        return F.cross_entropy(scores[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(1)


def _classifier(kind: str, **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**(SIZES | {"num_labels": CLASSES} | settings))
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)


def _decoder(kind: str, **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**(SIZES | {"use_cache": False} | settings))
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def _gpt2(**settings: Any) -> transformers.PreTrainedModel:
    sizes = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, use_cache=False, **settings))


def _image(kind: str, **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(num_labels=CLASSES, image_size=32, **settings)
    return getattr(transformers, f"{kind}ForImageClassification")(config)


def _adapted(config: peft.PeftConfig) -> nn.Module:
    return peft.get_peft_model(_decoder("Llama"), config)


def _t5() -> nn.Module:
    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 32, "d_ff": 4 * WIDTH, "num_layers": 2, "num_heads": 4}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0, use_cache=False)
    )


def _bart() -> nn.Module:
    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads, use_cache=False))


VIT = {"patch_size": 4, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
ATTENTION = ["q_proj", "v_proj"]

FAMILIES = (
    Family("bert", "BERT, dropout .1", partial(_classifier, "Bert")),
    Family("roberta", "RoBERTa, dropout .1", partial(_classifier, "Roberta", pad_token_id=1, bos_token_id=0)),
    Family(
        "distilbert",
        "DistilBERT, dropout .1",
        lambda: transformers.DistilBertForSequenceClassification(
            transformers.DistilBertConfig(
                vocab_size=WORDS, dim=WIDTH, hidden_dim=4 * WIDTH, n_layers=2, n_heads=4, num_labels=CLASSES
            )
        ),
    ),
    Family("electra", "ELECTRA, dropout .1", partial(_classifier, "Electra", embedding_size=WIDTH)),
    Family("albert", "ALBERT: one layer used several times", partial(_classifier, "Albert", embedding_size=64)),
    Family(
        "deberta",
        "DeBERTa-v2: positions relative to each other",
        partial(_classifier, "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    ),
    Family("gpt2", "GPT-2, tied embeddings, dropout .1", _gpt2, language=True),
    Family("gpt-neox", "GPT-NeoX, Pythia", partial(_decoder, "GPTNeoX"), language=True),
    Family(
        "opt", "OPT, dropout .1", partial(_decoder, "OPT", ffn_dim=4 * WIDTH, word_embed_proj_dim=WIDTH), language=True
    ),
    Family("llama", "Llama", partial(_decoder, "Llama"), language=True),
    Family("mistral", "Mistral", partial(_decoder, "Mistral", num_key_value_heads=2), language=True),
    Family("qwen2", "Qwen2", partial(_decoder, "Qwen2", num_key_value_heads=2), language=True),
    Family("qwen3", "Qwen3", partial(_decoder, "Qwen3", num_key_value_heads=2, head_dim=32), language=True),
    Family("gemma2", "Gemma 2", partial(_decoder, "Gemma2", num_key_value_heads=2, head_dim=32), language=True),
    Family("phi3", "Phi-3", partial(_decoder, "Phi3", num_key_value_heads=4), language=True),
    Family(
        "mixtral",
        "Mixtral: experts chosen word by word",
        partial(_decoder, "Mixtral", num_key_value_heads=2, num_local_experts=4),
        language=True,
    ),
    Family("t5", "T5: encoder and decoder, dropout .1", _t5, inputs="pairs", language=True),
    Family("bart", "BART: encoder and decoder, dropout .1", _bart, inputs="pairs", language=True),
    Family("vit", "ViT", partial(_image, "ViT", intermediate_size=512, **VIT), inputs="images"),
    Family("dinov2", "DINOv2", partial(_image, "Dinov2", mlp_ratio=4, **VIT), inputs="images"),
    Family(
        "swin",
        "Swin: windows of an image, stochastic depth",
        partial(_image, "Swin", patch_size=2, embed_dim=32, depths=[1, 1], num_heads=[2, 2], window_size=4),
        inputs="images",
    ),
    Family(
        "convnext",
        "ConvNeXt",
        partial(_image, "ConvNext", patch_size=2, hidden_sizes=[32, 64], depths=[1, 1], num_stages=2),
        inputs="images",
    ),
    Family("resnet-gn", "ResNet-18 with group norm", partial(resnet18, CLASSES), inputs="images"),
    Family("lora", "LoRA on Llama (peft)", lambda: _adapted(peft.LoraConfig(target_modules=ATTENTION)), language=True),
    Family(
        "dora",
        "DoRA on Llama (peft)",
        lambda: _adapted(peft.LoraConfig(target_modules=ATTENTION, use_dora=True)),
        language=True,
    ),
    Family(
        "ia3",
        "IA3 on Llama (peft)",
        lambda: _adapted(
            peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])
        ),
        language=True,
    ),
    Family(
        "prompt",
        "prompt tuning of BERT (peft)",
        lambda: peft.get_peft_model(
            _classifier("Bert"), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=8)
        ),
    ),
    Family("lstm", "nn.LSTM", partial(Recurrent, nn.LSTM, CLASSES, WORDS)),
    Family("gru", "nn.GRU", partial(Recurrent, nn.GRU, CLASSES, WORDS)),
    Family(
        "bag",
        "nn.EmbeddingBag",
        lambda: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH), nn.Linear(WIDTH, CLASSES)),
    ),
)


def measure(family: Family, rounds: int) -> dict[str, Any]:
    """The way of a family, seconds to build, and CPU milliseconds of both steps; or why it is refused."""
    data = family.data()
    torch.manual_seed(1)
    model, private_model = family.build(), family.build()
    plan = Plan.of_noise(noise=1.0, records=RECORDS, batch_size=family.batch_size, steps=10**6, clip_norm=1.0)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        try:
            private = PrivateGradients(private_model.train(), data, family.loss, plan, Path(folder) / "ledger.jsonl")
        except Exception as error:  # a refusal is a result
            return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        built = time.process_time() - start
        optimizer = torch.optim.SGD((each for each in private_model.parameters() if each.requires_grad), 1e-3)
        plain = torch.optim.SGD((each for each in model.train().parameters() if each.requires_grad), 1e-3)
        times: dict[str, list[float]] = {"plain": [], "private": []}
        for turn in range(rounds + 1):
            rows = torch.randperm(RECORDS)[: family.batch_size]
            start = time.process_time()
            family.loss(model, *(part[rows] for part in data)).mean().backward()
            plain.step()
            plain.zero_grad()
            middle = time.process_time()
            private.release()
            optimizer.step()
            optimizer.zero_grad()
            if turn:  # the first warms up, and is checked
                times["plain"].append(middle - start)
                times["private"].append(time.process_time() - middle)
        private.close()
    return {
        "parameters": sum(value.numel() for value in private_model.parameters() if value.requires_grad),
        "notes": list(private.notes),
        "built_s": built,
        **{f"{side}_ms": 1000 * statistics.median(found) for side, found in times.items()},
        "ratio": statistics.median(
            mine / theirs for mine, theirs in zip(times["private"], times["plain"], strict=True)
        ),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    known, results = measured("families", __doc__ or "", FAMILIES, measure, rounds=9)
    if len(results) < len(FAMILIES):
        return
    rows = [(each["text"], *_row(each)) for each in results]
    lines = [
        f"Small networks of the real libraries; CPU time of a private step over an ordinary one, one thread, median of "
        f"{known['rounds']} turns; `benchmarks/families.py`, {known['date']}, {known['cpu']}; {versions_text(known)}, "
        f"transformers {transformers.__version__}, peft {peft.__version__}. `fast` is one forward and one backward "
        "pass for a whole batch; `torch.func` and `record by record` are exact too, and slower.",
        "",
        *table(("family", "way", "inspection, s", "private / ordinary"), rows, left=2),
    ]
    write_section("Families of models", lines, ROOT / "docs" / "models.md")
    worst = max((each["ratio"] for each in results if "ratio" in each and not each["notes"]), default=0.0)
    print(json.dumps({"worst fast": worst, "file": str(RESULTS / "families.json")}))


def _row(found: dict[str, Any]) -> tuple[str, str, str]:
    if "refused" in found:
        return f"refused: {found['refused']}", "", ""
    slow = [note for note in found["notes"] if "no closed form" in note or "record by record" in note]
    way = "fast"
    if any("record by record" in note for note in slow):
        way = "record by record"
    elif slow:
        way = "fast, some parameters by torch.func"
    return way, f"{found['built_s']:.1f}", f"{found['ratio']:.2f}"


if __name__ == "__main__":
    main()
